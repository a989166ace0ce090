"""`lance-spark produce`: lines to records."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
import pyarrow as pa

from lance_spark.cli.connect import connected, server_options
from lance_spark.cli.line import LineReader, make_columns, read_whole
from lance_spark.cli.pace import Pace
from lance_spark.cli.progress import Progress
from lance_spark.cli.quantity import BATCH_SIZE, RECORD_TYPE, SEPARATOR, TOPIC
from lance_spark.cli.text import count, format_bytes
from lance_spark.client import ClientConfig, Producer
from lance_spark.errors import LanceError, RowError
from lance_spark.quantity import RECORD_TYPES


@click.command("produce")
@click.argument("topic", type=TOPIC)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--key-separator",
    "separator",
    type=SEPARATOR,
    help=r"Each line is a key, this, and a value; \t is a tab.",
)
@click.option(
    "--type",
    "record_type",
    type=RECORD_TYPE,
    help=f"{', '.join(RECORD_TYPES)}, or 0x80 to 0xFE.  [default: raw]",
)
@click.option("--timestamp", "stamped", is_flag=True, help="Give records the time.")
@click.option("--null-delimited", "-0", is_flag=True, help="Lines end in a zero byte.")
@click.option("--whole-file", is_flag=True, help="Send all of it as one record.")
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4"]),
    default="none",
    show_default=True,
    help="Of batches on their way; a plain server has none.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0.001), help="Records per second at most."
)
@click.option(
    "--batch-bytes",
    type=BATCH_SIZE,
    default="1m",
    show_default=True,
    help="Size of a batch.",
)
@click.option("--create", "create_topic", is_flag=True, help="Create a missing topic.")
@server_options
def command(
    config: ClientConfig, topic: int | str, file: Path | None, **how: Any
) -> None:
    """Send the lines of FILE, or of standard input, to TOPIC, a record each.

    When it ends, all of them are acknowledged. After an error or Ctrl-C it says how
    many are; those behind them may be stored or not.
    """
    plain = how["separator"] is None and not how["stamped"]
    if how["record_type"] is not None and not plain:
        raise click.UsageError("--type is for records without key and timestamp")
    if how["whole_file"] and (how["null_delimited"] or how["separator"] is not None):
        raise click.UsageError("--whole-file has no lines to be separated")
    with _open(file) as stream, connected(config) as client:
        producer = Producer(
            client,
            topic,
            batch_bytes=how["batch_bytes"],
            compression=how["compression"],
            create_topic=how["create_topic"],
            record_type=how["record_type"] or RECORD_TYPES["raw"],
        )
        _send(producer, _Input(stream, how), Pace(how["rate"]) if how["rate"] else None)
    print(_tell(producer), file=sys.stderr)


@contextmanager
def _open(file: Path | None) -> Iterator[BinaryIO]:
    if file is None or str(file) == "-":
        if sys.stdin is None:
            raise LanceError("standard input is closed: give a FILE to send")
        yield sys.stdin.buffer
        return
    with file.open("rb") as stream:
        yield stream


class _Input:
    """The records to send, in columns."""

    def __init__(self, stream: BinaryIO, how: dict[str, Any]) -> None:
        self._how = how
        self._stream = stream
        self._lines = LineReader(stream, b"\0" if how["null_delimited"] else b"\n")
        self._size = _find_size(stream)

    @property
    def first_line(self) -> int:
        """Number of the first line of the columns that were given last."""
        return self._lines.lines + 1

    @property
    def done(self) -> float | None:
        """How much of the input was read, where that is known."""
        return self._lines.size / self._size if self._size else None

    def columns(self) -> Iterator[pa.RecordBatch]:
        how = self._how
        whole = how["whole_file"]
        for lines in [read_whole(self._stream)] if whole else self._lines.blocks():
            yield make_columns(
                lines,
                separator=how["separator"],
                stamped=how["stamped"],
                first_line=self.first_line,
            )


def _find_size(stream: BinaryIO) -> int:
    """Give the size of a file, 0 for anything else."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _send(producer: Producer, source: _Input, pace: Pace | None) -> None:
    """Send everything and wait for the acknowledgements."""
    progress = Progress("producing")
    try:
        for columns in source.columns():
            _write(producer, columns, source.first_line, pace)
            progress.update(producer.acked_records, producer.acked_bytes, source.done)
        producer.close()
    except KeyboardInterrupt:
        producer.close(abandon=True)
        progress.clear()
        raise KeyboardInterrupt(_tell(producer)) from None
    except BaseException:
        producer.close(abandon=True)
        progress.clear()
        print(_tell(producer), file=sys.stderr)
        raise
    progress.clear()


def _write(
    producer: Producer, columns: pa.RecordBatch, first_line: int, pace: Pace | None
) -> None:
    line = first_line
    for portion in [columns] if pace is None else pace.portions(columns):
        try:
            producer.write(portion)
        except RowError as error:
            raise LanceError(f"line {line + error.row}: {error.reason}") from error
        line += portion.num_rows


def _tell(producer: Producer) -> str:
    records = count(producer.acked_records, "record")
    return f"{records}, {format_bytes(producer.acked_bytes)} acknowledged"
