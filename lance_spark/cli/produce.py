"""`lance-spark produce`: lines to records."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.checksum import crc32c
from lance_spark.cli.display import count, show_progress
from lance_spark.cli.options import (
    NUMBER,
    PATH,
    RECORD_TYPE,
    SEPARATOR,
    TOPIC,
    batch_option,
    compression_option,
    connected,
    connected_log,
    option,
    server_options,
    take_name,
)
from lance_spark.client import ClientConfig, Producer
from lance_spark.client.config import ConnectionConfig
from lance_spark.client.driver import (
    Driver,
    RecordWriter,
    WriterSettings,
)
from lance_spark.client.log import describe_partition
from lance_spark.errors import LanceError, OptionError, RowError, TopicNotFound
from lance_spark.model import Partition
from lance_spark.quantity import RECORD_TYPES, format_bytes
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX


@click.command("produce")
@click.argument("topic", type=TOPIC)
@click.argument("file", type=PATH, required=False)
@option(
    *("--key-separator separator", SEPARATOR),
    r"Each line is a key, this, and a value; \t is a tab.",
)
@option(
    *("--type record_type", RECORD_TYPE),
    f"{', '.join(RECORD_TYPES)}, or 0x80 to 0xFE.  [default: raw]",
)
@option("--timestamp stamped", bool, "Give each record the current time.")
@option("--null-delimited -0", bool, "Lines end in a zero byte.")
@option("--whole-file", bool, "Send the whole input as one record.")
@compression_option
@option("--rate", click.FloatRange(min=0.001), "Records per second at most.")
@batch_option
@option("--create create_topic", bool, "Create the topic if it does not exist.")
@option(
    *("--partitions=1", click.IntRange(min=1)),
    "How many a topic gets that is created; not by LWP.",
)
@option(
    *("--partition", NUMBER),
    "Where to; not by LWP.  [default: by the key, or one after the other]",
)
@server_options
def command(
    config: ConnectionConfig, topic: int | str, file: Path | None, **how: Any
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
    producer: Producer | LogProducer
    if not isinstance(config, ClientConfig):
        name = take_name(topic, config)
        with _open(file) as stream, connected_log(config) as log:
            producer = LogProducer(log.driver, name, how)
            _send(producer, stream, how)
    else:
        if how["partition"] is not None or how["partitions"] != 1:
            raise click.UsageError("LWP has no partitions: give --protocol, too")
        with _open(file) as stream, connected(config) as client:
            producer = Producer(
                client,
                topic,
                batch_bytes=how["batch_bytes"],
                compression=how["compression"],
                create_topic=how["create_topic"],
                record_type=how["record_type"] or RECORD_TYPES["raw"],
            )
            _send(producer, stream, how)
    print(_tell(producer), file=sys.stderr)


class LogProducer:
    """Appends rows by any protocol, as `Producer` does by LWP.

    Rows with a key go to the partition that the key's CRC32C says, modulo the number of
    partitions; others go to one partition after the other, block by block.

    Args:
        driver: speaks the protocol.
        topic: where to.
        how: the command's options.

    Raises:
        OptionError: the protocol does not have what the options ask for.
        TopicNotFound: there is no such topic, and none is to be created.
    """

    def __init__(self, driver: Driver, topic: str, how: dict[str, Any]) -> None:
        self._driver, self._topic = driver, topic
        self._check(how)
        self._is_created = how["create_topic"]
        found = driver.topics([topic])
        if self._is_created and not found:
            driver.create_topic(topic, how["partitions"])
            found = driver.topics([topic])
        if not found:
            missing = driver.config.describe_missing(topic)
            raise TopicNotFound(f"{missing}: create it with --create")
        numbers = found[0].partitions
        if (partition := how["partition"]) is not None:
            if partition not in numbers:
                text = describe_partition(topic, partition, len(numbers))
                raise TopicNotFound(text)
            numbers = (partition,)
        self._settings = WriterSettings(
            batch_bytes=how["batch_bytes"],
            linger_s=0.0,
            max_in_flight=4,
            buffer_bytes=16 * how["batch_bytes"],
            compression=how["compression"],
            record_type=RECORD_TYPES["raw"],
            allow_null_records=False,
            partitions=how["partitions"],
        )
        self._numbers = numbers
        self._writers: dict[int, RecordWriter] = {}
        self._blocks = 0
        self.acked_records = self.acked_bytes = 0

    def _check(self, how: dict[str, Any]) -> None:
        traits = self._driver.traits
        columns, codec = traits.columns, how["compression"]
        for flag, what, is_carried in (
            ("--key-separator", "keys", how["separator"] is None or "key" in columns),
            ("--timestamp", "times", not how["stamped"] or "timestamp" in columns),
            ("--type", "types", how["record_type"] is None or "type" in columns),
            (
                *("--partitions", "topics with several partitions"),
                how["partitions"] == 1 or "partition" in columns,
            ),
            ("--compression", f"{codec} compression", codec in traits.compressions),
        ):
            if not is_carried:
                reason = f"{traits.protocol} has no {what}"
                raise OptionError(f"{flag}: {reason}: leave it out")

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, and wait until the server has all of them."""
        for number, part in self._spread(rows):
            writer = self._writers.get(number)
            if writer is None:
                writer = self._writers[number] = self._driver.open_writer(
                    Partition(self._topic, number),
                    options=self._settings,
                    create_topic=self._is_created,
                    check=lambda server: None,
                )
            writer.write(pa.Table.from_batches([part]))
            writer.flush()
            self.acked_records += part.num_rows
            for name in {"key", "value"} & {*part.schema.names}:
                sizes = pc.sum(pc.binary_length(part.column(name)))
                self.acked_bytes += sizes.as_py() or 0

    def _spread(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        numbers, block = self._numbers, self._blocks
        self._blocks += 1
        if "key" not in rows.schema.names or len(numbers) == 1:
            yield numbers[block % len(numbers)], rows
            return
        keys = rows.column("key").to_pylist()
        chosen = np.array([crc32c(key) % len(numbers) for key in keys])
        for number in np.unique(chosen):
            yield int(number), rows.take(pa.array(np.flatnonzero(chosen == number)))

    def close(self, *, abandon: bool = False) -> None:
        """Let go of the writers."""
        for writer in self._writers.values():
            writer.close(abandon=abandon)


def _open(file: Path | None) -> AbstractContextManager[BinaryIO]:
    if file is not None and str(file) != "-":
        return file.open("rb")
    if sys.stdin is None:
        raise LanceError("standard input is closed: give a FILE to send")
    return nullcontext(sys.stdin.buffer)


def _read(
    stream: BinaryIO, how: dict[str, Any]
) -> Iterator[tuple[pa.RecordBatch, int, float | None]]:
    """Give records in columns, the number of the first line, and how much was read."""
    line, size = 1, _find_size(stream)
    blocks = read_lines(stream, b"\0" if how["null_delimited"] else b"\n")
    for lines in read_whole(stream) if how["whole_file"] else blocks:
        columns = make_columns(
            lines, separator=how["separator"], stamped=how["stamped"], first_line=line
        )
        yield columns, line, stream.tell() / size if size else None
        line += len(lines)


def _find_size(stream: BinaryIO) -> int:
    """Give the size of a file, 0 for anything else."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _send(
    producer: Producer | LogProducer, stream: BinaryIO, how: dict[str, Any]
) -> None:
    """Send everything and wait for the acknowledgements."""
    rate = SteadyRate(how["rate"]) if how["rate"] else None
    try:
        # A bar that is drawn ten times a second would erase what a person types.
        with show_progress("producing", hidden=stream.isatty()) as update:
            for columns, line, done in _read(stream, how):
                for portion in [columns] if rate is None else rate.portions(columns):
                    _write(producer, portion, line)
                    line += portion.num_rows
                update(producer.acked_records, producer.acked_bytes, done)
            producer.close()
    except KeyboardInterrupt:
        producer.close(abandon=True)
        raise KeyboardInterrupt(_tell(producer)) from None
    except BaseException:
        producer.close(abandon=True)
        print(_tell(producer), file=sys.stderr)
        raise


def _write(producer: Producer | LogProducer, rows: pa.RecordBatch, line: int) -> None:
    try:
        producer.write(rows)
    except RowError as error:
        where = f"line {line + error.row}"
        if isinstance(producer, LogProducer):
            # Rows were sorted into partitions and batches since.
            where = f"a line from {line} to {line + rows.num_rows - 1}"
        raise LanceError(f"{where}: {error.reason}") from error


def _tell(producer: Producer | LogProducer) -> str:
    records = count(producer.acked_records, "record")
    return f"{records}, {format_bytes(producer.acked_bytes)} acknowledged"


BLOCK_BYTES = 1024 * 1024
# A line with its key is a record or too large to be one.
LINE_BYTES_MAX = RECORD_VALUE_BYTES_MAX + 64 * 1024
_TOO_LONG = (
    f"longer than {RECORD_VALUE_BYTES_MAX} bytes, the most that a record can have"
)


def read_lines(stream: BinaryIO, delimiter: bytes = b"\n") -> Iterator[pa.Array]:
    """Give the lines without what ends them, as binary arrays.

    Raises:
        LanceError: a line is longer than any record.
    """
    # Returns what is there, also of a pipe; `BinaryIO` does not know of it.
    read: Callable[[int], bytes] = getattr(stream, "read1")  # noqa: B009
    tail, number = b"", 0
    while block := read(BLOCK_BYTES):
        data, found, rest = block.rpartition(delimiter)
        if found:
            lines = split(tail + data, delimiter)
            yield lines
            number, tail = number + len(lines), rest
            continue
        tail += block
        if len(tail) > LINE_BYTES_MAX:
            raise LanceError(f"line {number + 1} is {_TOO_LONG}")
    if tail:
        yield split(tail, delimiter)  # The last line need not be ended.


def read_whole(stream: BinaryIO) -> Iterator[pa.Array]:
    """Give everything as one value.

    Raises:
        LanceError: it is more than a record can have.
    """
    data = stream.read(RECORD_VALUE_BYTES_MAX + 1)
    if len(data) > RECORD_VALUE_BYTES_MAX:
        raise LanceError(f"the input is {_TOO_LONG}")
    yield pa.array([data], pa.binary())


def split(data: bytes, delimiter: bytes) -> pa.Array:
    """Split bytes at each delimiter."""
    return pc.split_pattern(pa.array([data], pa.binary()), pattern=delimiter).values


def make_columns(
    lines: pa.Array,
    *,
    separator: bytes | None,
    stamped: bool,
    first_line: int,
    clock_ns: Callable[[], int] = time.time_ns,
) -> pa.RecordBatch:
    """Make the columns of a write from lines.

    Args:
        lines: binary.
        separator: what is between key and value; None if lines have no key.
        stamped: give each record the time.
        first_line: number of the first line, for errors.
        clock_ns: the time.

    Raises:
        LanceError: a line lacks the separator.
    """
    columns = {"value": lines}
    if separator is not None:
        parts = pc.split_pattern(lines, pattern=separator, max_splits=1)
        is_single = pc.list_value_length(parts).to_numpy() < 2
        if is_single.any():
            line = first_line + int(is_single.argmax())
            raise LanceError(f"line {line} has no {separator!r} between key and value")
        halves = parts.flatten()
        evens = np.arange(0, len(halves), 2)
        columns = {"key": halves.take(evens), "value": halves.take(evens + 1)}
    if stamped:
        columns["timestamp_ns"] = pa.array(np.full(len(lines), clock_ns()))
    return pa.record_batch(columns)


# Records go in portions of about this time, which looks even to a person.
_PORTION_S = 0.1


class SteadyRate:
    """Lets records pass at a rate, and does not catch up after a pause.

    Args:
        rate: records per second.
        clock: a monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._portion = max(1, int(rate * _PORTION_S))
        self._due_s = clock()

    def portions(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the rows in portions, each when it is due."""
        for start in range(0, rows.num_rows, self._portion):
            portion = rows.slice(start, self._portion)
            now_s = self._clock()
            if self._due_s > now_s:
                self._sleep(self._due_s - now_s)
            self._due_s = max(self._due_s, now_s) + portion.num_rows / self._rate
            yield portion
