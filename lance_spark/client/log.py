"""The small client that every protocol has: topics, bounds, records as Arrow.

    with connect("tank://127.0.0.1:11011") as client:
        client.append("orders", pa.table({"value": [b"one", b"two"]}), create=True)
        for batch in client.read("orders"):
            print(batch.to_pylist())

It goes through the protocol's driver, as Spark does. LWP has a larger client,
`LanceClient`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from lance_spark.client.driver import (
    Driver,
    LogRef,
    TopicEntry,
    WriterSettings,
    find_protocol,
    open_driver,
    protocols,
    warn_if_new,
)
from lance_spark.columnar import check_columns, make_schema, write_records
from lance_spark.errors import DataLoss, LanceError, OptionError, TopicNotFound
from lance_spark.model import Bounds, Partition
from lance_spark.net.deadline import Deadline

_FETCH_BYTES = 4 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024
# For so long records are waited for at once: a client that is closed meanwhile waits no
# longer.
_WAIT_S = 1.0


def connect(url: str, **settings: Any) -> LogClient:
    """Connect to servers of any protocol.

    Args:
        url: the protocol and the servers: `tank://127.0.0.1:11011`, or several with
            commas between them.
        settings: those of the protocol's `Config`, such as `request_timeout_s`.

    Raises:
        OptionError: the address or a setting can't be used.
        LanceError: no server can be reached.
    """
    protocol, mark, servers = url.partition("://")
    if not mark:
        known = ", ".join(f"{name}://" for name in protocols())
        raise OptionError(
            f"address {url!r} names no protocol: begin with one of {known}"
        )
    kind = find_protocol(protocol).Config
    names = {field.name for field in fields(kind)} - {"servers"}
    unknown = sorted(settings.keys() - names)
    if unknown:
        raise OptionError(
            f"{protocol} has no setting {', '.join(unknown)}: there are "
            f"{', '.join(sorted(names))}"
        )
    return LogClient(open_driver(kind(servers=servers.rstrip("/"), **settings)))


class LogClient:
    """Topics and records of a server, as Arrow; close it when done.

    Args:
        driver: speaks the protocol, and is closed with the client.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        # Rows without a key go to one partition after the other, append by append.
        self._turns = itertools.count()

    def topics(self) -> list[TopicEntry]:
        """List the topics with their partitions, sorted by name."""
        return self.driver.topics()

    def bounds(self, topic: str) -> dict[int, Bounds]:
        """Tell where each partition of a topic starts and ends.

        Raises:
            TopicNotFound: it does not exist.
        """
        logs = self._find(topic).logs
        found = self.driver.bounds(logs)
        warn_if_new(self.driver, topic, found.values())
        return {at.number: bounds for at, bounds in sorted(found.items())}

    def read(
        self,
        topic: str,
        partition: int = 0,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        fetch_bytes: int = _FETCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Read the records `[start, end)` of a partition.

        Args:
            topic: its topic.
            partition: its number.
            start: the first position; that of the first record if not given.
            end: the position behind the last; where the log ends now if not given.
            columns: which ones; all that the protocol has if not given.
            fetch_bytes: how much to ask for at once.

        Raises:
            TopicNotFound: there is no such partition.
            OptionError: the protocol has no such position.
            DataLoss: records of the range are not there any more.
        """
        log, bounds = self._find_log(topic, partition)
        for name, position in (("start", start), ("end", end)):
            if position is not None:
                self.driver.traits.check_position(name, position)
        if end is None:
            end = max(bounds.end, start or 0)
        return self._read(
            log,
            bounds.start if start is None else start,
            end,
            columns,
            fetch_bytes,
            None,
        )

    def follow(
        self,
        topic: str,
        partition: int = 0,
        start: int | None = None,
        *,
        timeout_s: float | None = None,
        columns: Sequence[str] | None = None,
        fetch_bytes: int = _FETCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Read a partition and go on with the records that come.

        Args:
            topic: its topic.
            partition: its number.
            start: the first position; where the log ends now if not given.
            timeout_s: end after so long without a record; None never ends.
            columns: which ones; all that the protocol has if not given.
            fetch_bytes: how much to ask for at once.

        Raises:
            TopicNotFound: there is no such partition.
            OptionError: the protocol has no such position.
            DataLoss: the next record is not there any more, or the server has lost
                those that were read, so that positions mean other records.
        """
        log, bounds = self._find_log(topic, partition)
        if start is not None:
            self.driver.traits.check_position("start", start)
        at = bounds.end if start is None else start
        patience_s = float("inf") if timeout_s is None else timeout_s
        return self._read(log, at, None, columns, fetch_bytes, patience_s)

    def append(
        self,
        topic: str,
        rows: pa.Table | pa.RecordBatch | Sequence[bytes],
        partition: int | None = None,
        *,
        create: bool = False,
        partitions: int = 1,
        compression: str = "none",
        sole_writer: bool = False,
    ) -> None:
        """Append rows, each at least once; returns when the server has all of them.

        Args:
            topic: where to.
            rows: values, or a table with `value` and what else the protocol carries.
            partition: its number. Without it, rows go to the partition that a column
                `partition` names. Without that, this call's rows go to one partition,
                and those of the next call to the next one.
            create: create the topic if it does not exist.
            partitions: how many it gets then.
            compression: one of the traits' compressions.
            sole_writer: no other writer is there: see `WriterSettings`.

        Raises:
            RowError: the protocol can't carry a row.
            OptionError: the columns or the compression can't be used.
            TopicNotFound: there is no such topic and it is not to be created, or no
                such partition. Kimberlite's servers create a stream in any case.
        """
        known = self.driver.traits.compressions
        if compression not in known:
            raise OptionError(
                f"compression {compression!r}: {self.driver.traits.protocol} has "
                f"{', '.join(known)}"
            )
        options = WriterSettings(
            batch_bytes=_BATCH_BYTES,
            linger_s=0.0,
            max_in_flight=4,
            buffer_bytes=16 * _BATCH_BYTES,
            compression=compression,
            record_type=1,
            allow_null_records=False,
            partitions=partitions,
            sole_writer=sole_writer,
        )
        if partitions < 1:
            raise OptionError(f"partitions={partitions}: must be at least 1")
        table, numbers = _make_table(rows)
        if partition is None and numbers is None:
            found = self.driver.topics([topic])
            count = len(found[0].partitions) if found else partitions
            partition = next(self._turns) % count
        if partition is not None:
            self._append(Partition(topic, partition), table, options, create)
            return
        assert numbers is not None
        rows_of = np.asarray(numbers)
        # Before the first row is written: what is written once is not taken back.
        found = self.driver.topics([topic])
        count = len(found[0].partitions) if found else partitions
        wrong = rows_of[(rows_of < 0) | (rows_of >= count)]
        if len(wrong):
            raise OptionError(
                f"column partition: topic {topic!r} has partitions 0 to {count - 1}, "
                f"and a row names {wrong[0]}"
            )
        for number in np.unique(rows_of).tolist():
            some = table.filter(pa.array(rows_of == number))
            self._append(Partition(topic, number), some, options, create)

    def _append(
        self, to: Partition, rows: pa.Table, options: WriterSettings, create: bool
    ) -> None:
        writer = self.driver.open_writer(
            to, options=options, create_topic=create, check=lambda server: None
        )
        try:
            writer.write(rows)
            writer.finish()
        except BaseException as error:
            writer.close(abandon=True)
            if isinstance(error, TopicNotFound):
                self._explain(to)
            raise

    def _explain(self, to: Partition) -> None:
        """Say what is missing of a partition that the server does not know.

        Raises:
            TopicNotFound: the topic or the partition does not exist.
        """
        found = self.driver.topics([to.topic])
        if not found:
            text = self.driver.config.describe_missing(to.topic)
            raise TopicNotFound(f"{text}: create it with create=True")
        count = len(found[0].partitions)
        if to.number not in found[0].partitions:
            raise TopicNotFound(describe_partition(to.topic, to.number, count))

    def close(self) -> None:
        """Close the connection."""
        self.driver.close()

    def __enter__(self) -> LogClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _find(self, topic: str) -> TopicEntry:
        found = self.driver.topics([topic])
        if not found:
            raise TopicNotFound(self.driver.config.describe_missing(topic))
        return found[0]

    def _find_log(self, topic: str, partition: int) -> tuple[LogRef, Bounds]:
        logs = {log.partition.number: log for log in self._find(topic).logs}
        if partition not in logs:
            raise TopicNotFound(describe_partition(topic, partition, len(logs)))
        log = logs[partition]
        bounds = self.driver.bounds([log]).get(log.partition)
        if bounds is None:
            raise TopicNotFound(f"topic {topic!r} is gone")
        warn_if_new(self.driver, topic, [bounds])
        return log, bounds

    def _read(
        self,
        log: LogRef,
        start: int,
        end: int | None,
        columns: Sequence[str] | None,
        fetch_bytes: int,
        patience_s: float | None,
    ) -> Iterator[pa.RecordBatch]:
        schema = make_schema(columns or self.driver.traits.columns)
        at = log.partition
        reader = self.driver.open_reader(log, start, end=end, fetch_bytes=fetch_bytes)
        patience = Deadline.after(patience_s or 0.0)
        try:
            while not reader.is_finished:
                records = reader.next_records(min(patience.remaining(), _WAIT_S))
                if records is not None:
                    yield write_records(
                        records, schema, topic=at.topic, partition=at.number
                    )
                    patience = Deadline.after(patience_s or 0.0)
                    continue
                if reader.is_finished:
                    break  # The rest are numbers that a sparse bundle leaves out.
                if patience_s is None:
                    reason = "the log ends before the range"
                    raise DataLoss(at.topic, reader.position, None, None, reason)
                if self.driver.is_closed:
                    servers = self.driver.config.servers
                    raise LanceError(
                        f"the client of {servers} is closed; make a new one"
                    )
                if patience.expired:
                    return
        finally:
            reader.close()


def describe_partition(topic: str, number: int, count: int) -> str:
    """Say that a topic with so many partitions has none of a number."""
    there = "only 0" if count == 1 else f"only 0 to {count - 1}"
    return f"topic {topic!r} has no partition {number}, {there}"


def _make_table(
    rows: pa.Table | pa.RecordBatch | Sequence[bytes],
) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """Make a table of what is to be written, and say to which partitions it goes."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif not isinstance(rows, pa.Table):
        try:
            rows = pa.table({"value": pa.array(rows, pa.binary())})
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise OptionError(f"rows are not values of bytes: {error}") from error
    numbers = None
    if "partition" in rows.column_names:
        numbers = rows.column("partition")
        rows = rows.drop_columns(["partition"])
        if not pa.types.is_integer(numbers.type) or numbers.null_count:
            raise OptionError("column partition has to be a number in every row")
    check_columns(rows.schema)
    return rows, numbers
