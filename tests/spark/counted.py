"""A protocol with partitions that counts records: the least that a driver has to be.

Servers are dicts in this process. Positions start at 1, as TANK's do, so that nothing
can take 0 for the beginning of a partition.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from lance_spark.client.driver import (
    CheckServer,
    ConnectionConfig,
    CountedFinder,
    CountedRuler,
    Driver,
    FinderName,
    LogRef,
    News,
    Range,
    ServerKind,
    TopicEntry,
    Traits,
    Unread,
    WriterSettings,
)
from lance_spark.errors import DataLoss, TopicNotFound, Unsupported
from lance_spark.model import Bounds, OffsetMark, Partition
from lance_spark.records import Records, Spans
from lance_spark.value import dataclass

FIRST = 1
FETCH_RECORDS = 4

TRAITS = Traits(
    "counted",
    "records",
    "counted",
    columns=("topic", "partition", "offset", "value"),
    first_position=FIRST,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ConnectionConfig):
    """How to reach a server: its name in `SERVERS`."""

    protocol: ClassVar[str] = "counted"
    default_port: ClassVar[int] = 1

    servers: str = "here:1"


@dataclass
class Log:
    """Values, and the position of the first of them."""

    values: list[bytes] = field(default_factory=list)
    start: int = FIRST

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.start, self.start + len(self.values))

    def drop(self, count: int) -> None:
        """Remove the first records, as retention does."""
        self.values = self.values[count:]
        self.start += count


SERVERS: dict[str, dict[Partition, Log]] = {}


def open_driver(config: Config) -> Driver:
    """Open the driver of a server."""
    driver: Driver = CountedDriver(config)
    return driver


class CountedDriver:
    """Drives a dict."""

    traits = TRAITS

    def __init__(self, config: Config) -> None:
        self.config = config
        self.logs = SERVERS[config.servers]
        self.is_closed = False

    @property
    def server(self) -> ServerKind:
        return ServerKind(self.config.servers, has_stages=False)

    def refresh(self) -> Driver:
        return self

    def close(self) -> None:
        self.is_closed = True

    def make_unsupported(self, what: str, needs: Any = None) -> Unsupported:
        return Unsupported(what, needs, self.config.servers)

    def topics(self, names: Collection[str] | None = None) -> list[TopicEntry]:
        numbers: dict[str, list[int]] = {}
        for partition in sorted(self.logs):
            numbers.setdefault(partition.topic, []).append(partition.number)
        return [
            TopicEntry(name, partitions=tuple(found))
            for name, found in numbers.items()
            if names is None or name in names
        ]

    def describe(self, log: LogRef) -> TopicEntry:
        for entry in self.topics([log.topic]):
            return entry
        raise TopicNotFound(log.topic)

    def bounds(self, logs: Sequence[LogRef]) -> dict[Partition, Bounds]:
        wanted = [log.partition for log in logs if log.partition in self.logs]
        return {partition: self.logs[partition].bounds for partition in wanted}

    def wait(self, known: Mapping[LogRef, int], version: int, wait_s: float) -> News:
        raise self.make_unsupported("waiting")

    def locate_time(self, log: LogRef, time_ns: int, *, option: str) -> int:
        raise self.make_unsupported(option)

    def align(self, log: LogRef, position: int) -> int:
        return max(position, self.logs[log.partition].start)

    def make_ruler(self, log: LogRef, *, fetch_bytes: int) -> CountedRuler:
        return CountedRuler()

    def count_unread(self, log: LogRef, position: int) -> Unread:
        return Unread(self.logs[log.partition].bounds.end - position)

    # A server that forgets everything looks like another one: the mark is a checksum
    # of the record before a position.

    def _sum(self, log: LogRef, position: int) -> tuple[int, int]:
        found = self.logs.get(log.partition, Log())
        index = position - 1 - found.start
        value = found.values[index : index + 1] if index >= 0 else []
        return len(value), zlib.crc32(b"".join(value))

    def mark_position(
        self, log: LogRef, position: int, log_end: int
    ) -> OffsetMark | None:
        return OffsetMark(*self._sum(log, position), end=log_end)

    def is_mark_right(self, log: LogRef, position: int, mark: OffsetMark) -> bool:
        size, crc = self._sum(log, position)
        return not mark.size or not size or (size, crc) == (mark.size, mark.crc)

    def mark_range(self, piece: Range, log_end: int) -> Range:
        return piece

    def is_range_right(self, piece: Range) -> bool:
        return True

    def choose_finder(self, splitting: str) -> FinderName:
        return "counted"

    def find_with(self, name: FinderName) -> CountedFinder:
        assert name == "counted"
        return CountedFinder()

    def open_reader(
        self,
        log: LogRef,
        start: int,
        *,
        end: int | None,
        fetch_bytes: int,
        first_fetch_bytes: int | None = None,
        last_end: int | None = None,
        on_bad: Literal["fail", "skip"] = "fail",
    ) -> LogReader:
        assert end is not None
        return LogReader(self.logs, log.partition, start, end)

    def open_writer(
        self,
        to: Partition,
        *,
        options: WriterSettings,
        create_topic: bool,
        check: CheckServer,
    ) -> LogWriter:
        check(self.server)
        return LogWriter(self.logs.setdefault(to, Log()))

    def stages(self) -> None:
        return None

    def commit_position(self, log: LogRef, group: str, position: int) -> None:
        raise self.make_unsupported("groups")


class LogReader:
    """Reads a few records at a time."""

    skipped = (0, 0)

    def __init__(
        self, logs: dict[Partition, Log], partition: Partition, start: int, end: int
    ) -> None:
        self.position = start
        self._logs = logs
        self._partition = partition
        self._end = end

    @property
    def is_finished(self) -> bool:
        return self.position >= self._end

    def next_records(self, wait_s: float = 0.0) -> Records | None:
        log, start, topic = self._logs[self._partition], self.position, self._partition
        if start < log.start:
            reason = "what was before the log start is removed"
            raise DataLoss(topic.topic, start, log.start, log.bounds.end, reason)
        stop = min(start + FETCH_RECORDS, self._end)
        found = log.values[start - log.start : stop - log.start]
        if not found:
            return None
        self.position = start + len(found)
        ends = np.cumsum([len(value) for value in found])
        starts = ends - [len(value) for value in found]
        data = np.frombuffer(b"".join(found), np.uint8)
        return Records(Spans(data, starts, ends), base=start)

    def seek(self, position: int) -> None:
        self.position = position

    def close(self) -> None:
        pass


class LogWriter:
    """Appends values."""

    pending_bytes = 0

    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self, columns: pa.Table) -> None:
        self._log.values += columns.column("value").to_pylist()

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        return None

    def close(self, *, abandon: bool = False) -> None:
        pass
