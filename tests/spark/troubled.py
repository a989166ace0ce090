"""Writes of which a task runs into trouble.

They live in a module of their own as Spark's workers have to import it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lance_spark.spark.source import LanceDataSource

PATIENCE_S = 60.0

# So many batches pass before there is trouble, if it does not come behind the last.
PASSED = 10
# What such a batch is made of. A writer sends nothing before it has 4 MiB, or the end.
BATCH_ROWS = 20
ROW_BYTES = 25_000
# Two partitions of equal size.
ROWS = 480
HALF = ROWS // 2
ALL = list(range(ROWS))


class TroubleError(Exception):
    """What somebody else's code raises."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What happens to the task of partition 1.

    Args:
        what: `raise`, `kill` (of the process, by itself), or nothing but a `wait`; or
            `meet`: the first attempt and the second one wait for each other.
        ready: a file that it waits for, first; for `meet` two, with the attempts'
            numbers behind the name.
        always: it happens to every attempt; else to the first one only.
        at_end: it happens when all rows are written; else in the middle.
    """

    what: str
    ready: str | None = None
    always: bool = False
    at_end: bool = False

    def pass_on(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Let rows pass, and have it happen in the middle."""
        for number, batch in enumerate(batches):
            if number == PASSED:
                self.strike()
            yield batch

    def strike(self) -> None:
        """Have it happen, if this is the task."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 1:
            return
        attempt = context.attemptNumber()
        if self.what == "meet":
            Path(f"{self.ready}.{attempt}").touch()
            wait_for(Path(f"{self.ready}.{1 if attempt == 0 else 0}"))
            return
        if attempt > 0 and not self.always:
            return
        if self.ready is not None:
            wait_for(Path(self.ready))
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "raise":
            raise TroubleError("as the test wants it")

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def wait_for(path: Path) -> None:
    """Wait for a file that another process makes."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            mark_late(path).touch()  # Spark would try again, and hide it.
            raise TimeoutError(f"no {path}")
        time.sleep(0.005)


def mark_late(path: Path) -> Path:
    """Name the file that says that another one was waited for in vain."""
    return path.with_name(f"{path.name}.late")


class TroubledSource(LanceDataSource):
    """Writes as `lance` does, with the trouble of its option in the writing process."""

    def __init__(self, options: dict[str, str]) -> None:
        others = {name: text for name, text in options.items() if name != "trouble"}
        super().__init__(others)
        self._trouble = Trouble(**json.loads(options["trouble"]))

    @classmethod
    def name(cls) -> str:
        return "troubled"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        writer = super().writer(schema, overwrite)
        assert isinstance(writer, DataSourceArrowWriter)
        return TroubledWriter(writer, self._trouble)


class TroubledWriter(DataSourceArrowWriter):
    """Passes everything on to a writer, and has the trouble happen in a task."""

    def __init__(self, writer: DataSourceArrowWriter, trouble: Trouble) -> None:
        self._writer = writer
        self._trouble = trouble

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._trouble.at_end:
            return self._writer.write(self._trouble.pass_on(iterator))
        message = self._writer.write(iterator)
        self._trouble.strike()
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)
