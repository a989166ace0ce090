"""`lance-spark consume`: records to lines."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.cli.display import format_json, show_progress
from lance_spark.cli.options import (
    NAME,
    NUMBER,
    SEPARATOR,
    TOPIC,
    OptionType,
    connected,
    connected_log,
    option,
    server_options,
    take_name,
)
from lance_spark.client import (
    ClientConfig,
    LanceClient,
    RecordReader,
    SeekKind,
    SeekPosition,
    consumer_id,
)
from lance_spark.client.config import ConnectionConfig
from lance_spark.client.driver import (
    ChunkReader,
    Driver,
    warn_if_new,
)
from lance_spark.client.log import describe_partition
from lance_spark.columnar import make_schema, write_records
from lance_spark.columnar.decode import decode
from lance_spark.errors import DataLoss, OptionError, TopicNotFound
from lance_spark.model import Bounds, Buffer
from lance_spark.quantity import parse_time
from lance_spark.wire.lwp import Capability

# How long the server holds a fetch at the end of the log.
_FOLLOW_S = 1.0
# How often progress is committed.
_COMMIT_S = 1.0


# Where to start and to end, as typed and as offsets.


def parse_start(text: str) -> SeekPosition:
    """Read `beginning`, `end`, an offset, or a time.

    Raises:
        OptionError: it is none of them.
    """
    if text == "beginning":
        return SeekPosition.BEGINNING
    if text == "end" or _is_offset(text):
        return parse_end(text)
    try:
        return SeekPosition.time_ns(parse_time(text))
    except OptionError as error:
        raise OptionError(f"{error}; or beginning, end, or an offset") from None


def parse_end(text: str) -> SeekPosition:
    """Read `end` or an offset.

    Raises:
        OptionError: it is neither.
    """
    if text == "end":
        return SeekPosition.END
    if _is_offset(text):
        return SeekPosition.offset(int(text))
    raise OptionError(f"{text!r} is no end: give end, or an offset")


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal()


START = OptionType("place", parse_start)
END = OptionType("place", parse_end)


def find_start(
    client: LanceClient, topic: int | str, position: SeekPosition
) -> tuple[int, str | None]:
    """Find the record to start with.

    Returns:
        Its offset, and a note if that is not what was asked for.

    Raises:
        Unsupported: a time, and the server can't find it.
    """
    if position.kind is SeekKind.TIME:
        return client.locate_time(topic, position.value).offset, None
    bounds = client.bounds(topic)
    start, asked = bounds.start or 0, position.value
    if position.kind is not SeekKind.OFFSET:
        return (start if position.kind is SeekKind.BEGINNING else bounds.end), None
    found = asked
    if client.supports(Capability.LOCATE):
        found = client.locate_offset(topic, asked).offset
    if found == asked:
        return found, None
    where = "inside a record"
    if not start <= asked <= bounds.end:
        where = f"not there {'any more' if asked < start else 'yet'}"
    return found, f"offset {asked} is {where}, starting at {found}"


def find_end(client: LanceClient, topic: int | str, position: SeekPosition) -> int:
    """Find the offset to stop at."""
    if position.kind is SeekKind.OFFSET:
        return position.value
    return client.bounds(topic).end


# How records are printed: one line each, in bytes.


def encode_raw(rows: pa.RecordBatch, topic: str, separator: bytes | None) -> Buffer:
    """Write values as they are, without a Python object for any; Null is empty."""
    parts = [pc.fill_null(rows.column("value"), b""), pa.scalar(b"\n", pa.binary())]
    if separator is not None:
        between = pa.scalar(separator, pa.binary())
        parts = [pc.fill_null(rows.column("key"), b""), between, *parts]
    lines = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    _, offsets, data = lines.buffers()
    end = int(np.frombuffer(offsets, np.int32)[len(lines)])
    # The array was made just now, so its bytes start where its buffer does.
    return data.slice(0, end)


def encode_hex(rows: pa.RecordBatch, topic: str, separator: bytes | None) -> Buffer:
    """Write values as hexadecimal digits."""
    digits = {}
    for name in rows.schema.names:
        values = rows.column(name).to_pylist()
        digits[name] = pa.array(
            [(v or b"").hex().encode() for v in values], pa.binary()
        )
    return encode_raw(pa.record_batch(digits), topic, separator)


def encode_json(rows: pa.RecordBatch, topic: str, separator: bytes | None) -> Buffer:
    """Write one object per record; bytes that are no text are in base64."""
    lines = []
    for row in rows.to_pylist():
        document: dict[str, Any] = {"topic": topic}
        for name, value in row.items():
            document |= _to_field(name, value) if name in _PAIR else {name: value}
        lines.append(f"{format_json(document)}\n")
    return "".join(lines).encode()


def _to_field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


Encode = Callable[[pa.RecordBatch, str, bytes | None], Buffer]

# How records can be printed: the columns that it needs, and what writes them.
_PAIR = ("key", "value")
FORMATS: dict[str, tuple[Sequence[str], Encode]] = {
    "raw": (_PAIR, encode_raw),
    "json": (("offset", "type", *_PAIR, "timestamp_ns"), encode_json),
    "hex": (_PAIR, encode_hex),
}


# The command.


@click.command("consume")
@click.argument("topic", type=TOPIC)
@option(
    *("--from start", START),
    "beginning, end, an offset, or when it was appended: 2024-05-01T12:00:00Z. "
    "[default: where the group is, else beginning]",
)
@option("--to end", END, "end, or an offset.  [default: end]")
@option("--max most", NUMBER, "Stop after this many records.")
@option("--follow -f", bool, "Wait for more at the end.")
@option("--output=raw -o", list(FORMATS), "How to print a record.")
@option(
    *("--key-separator separator", SEPARATOR),
    r"Print the key and this before the value; \t is a tab.",
)
@option(
    *("--group --consumer consumer", NAME),
    "Commit on the server what was printed, and go on there next time.",
)
@option("--partition", NUMBER, "Which one; not by LWP.  [default: all of them]")
@server_options
def command(config: ConnectionConfig, topic: int | str, **how: Any) -> None:
    """Print the records of TOPIC, one per line.

    raw prints values as they are, hex as digits, json an object with all there is.
    Without --follow it ends where the topic ended when it began.
    """
    if how["follow"] and how["end"] is SeekPosition.END:
        raise click.UsageError("--follow goes beyond --to end: leave one of them out")
    places = [how["start"], how["end"]]
    if all(place is not None and place.kind is SeekKind.OFFSET for place in places):
        first, last = (place.value for place in places)
        if first > last:
            raise click.UsageError(
                f"--from {first} is behind --to {last}: exchange them"
            )
    if how["separator"] is not None and how["output"] == "json":
        raise click.UsageError("--key-separator is for raw and hex; json has the key")
    if not isinstance(config, ClientConfig):
        if how["consumer"] is not None:
            raise click.UsageError(
                f"--group: offsets are committed by LWP only, not by {config.protocol}"
            )
        name = take_name(topic, config)
        with connected_log(config) as log:
            _print(_read_log(log.driver, name, how), name, how)
        return
    if how["partition"] is not None:
        raise click.UsageError("--partition: LWP has no partitions")
    # Commits have a connection of their own: a fetch that waits would hold them up.
    with connected(config) as client, client.dedicated() as other:
        commits = _Commits(other, topic, how["consumer"])
        start, note = find_start(client, topic, how["start"] or commits.load())
        if note is not None:
            print(f"lance-spark: {note}", file=sys.stderr)
        end = None
        if how["end"] is not None or not how["follow"]:
            end = find_end(client, topic, how["end"] or SeekPosition.END)
        name = topic if isinstance(topic, str) else client.topic(topic).name
        reader = RecordReader(client, topic, start, end=end)
        try:
            _print(_read(reader, how, commits), name, how)
        except (KeyboardInterrupt, BrokenPipeError):
            # What was printed before counts. After trouble with the server a commit
            # would only meet the same.
            commits.finish()
            raise
        finally:
            reader.close()
        commits.finish()


def _print(
    found: Iterator[tuple[pa.RecordBatch, int]], topic: str, how: dict[str, Any]
) -> None:
    """Print rows; each batch comes with how many bytes were read for it."""
    records = size = 0
    _, encode = FORMATS[how["output"]]
    # On a terminal the records themselves show how far it is.
    with show_progress("consuming", hidden=sys.stdout.isatty()) as update:
        for rows, read in found:
            sys.stdout.buffer.write(encode(rows, topic, how["separator"]))
            # What is committed must have been seen.
            sys.stdout.buffer.flush()
            records, size = records + rows.num_rows, size + read
            update(records, size, None)


def _read(
    reader: RecordReader, how: dict[str, Any], commits: _Commits
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Read by LWP, and commit each batch when the next one is asked for."""
    records, most, follow = 0, how["most"], how["follow"]
    columns, _ = FORMATS[how["output"]]
    while most is None or records < most:
        chunk = reader.next_chunk(_FOLLOW_S if follow else 0.0)
        if chunk is None:
            if not follow or reader.is_finished:
                return
            commits.finish_if_due()
            continue
        if most is not None:
            chunk, _ = chunk.split(most - records)
        found = decode(
            chunk.data,
            base_offset=chunk.start,
            columns=columns,
            stamp_type=pa.uint64(),
        )
        yield found.batch, len(chunk.data)
        records += chunk.records
        commits.position = chunk.end
        commits.finish_if_due()


# Other protocols than LWP: positions of partitions that count records.


def _read_log(
    driver: Driver, topic: str, how: dict[str, Any]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Read partitions in turns, a batch of each."""
    traits = driver.traits
    if how["separator"] is not None and "key" not in traits.columns:
        raise OptionError(f"--key-separator: {traits.protocol} has no keys")
    readers = dict(_open_readers(driver, topic, how))
    columns: Sequence[str] = _PAIR if how["separator"] is not None else ("value",)
    if how["output"] == "json":
        wanted = ("partition", *FORMATS["json"][0])
        columns = [n for n in wanted if n.removesuffix("_ns") in traits.columns]
    schema = make_schema(columns)
    left = sys.maxsize if how["most"] is None else how["most"]
    pause_s = 0.0
    try:
        while readers and left:
            pause_s = min(2 * pause_s + _PAUSE_S_MIN, _PAUSE_S_MAX)
            # Only a server that is asked for one partition can be left to wait.
            wait_s = _FOLLOW_S if how["follow"] and len(readers) == 1 else 0.0
            for number, reader in list(readers.items()):
                records = reader.next_records(wait_s)
                if records is not None:
                    pause_s = 0.0
                    records = records.cut(0, min(left, len(records)))
                    left -= len(records)
                    rows = write_records(records, schema, topic=topic, partition=number)
                    yield rows, int(records.values.lengths.sum())
                    if not left:
                        return
                    if records.fault is not None:
                        raise records.fault
                elif reader.is_finished:
                    readers.pop(number).close()
                elif not how["follow"]:
                    raise DataLoss(topic, reader.position, None, None, _CUT)
            if len(readers) > 1 and pause_s:
                time.sleep(pause_s)
    finally:
        for reader in readers.values():
            reader.close()


_CUT = "the log ends before the range"
# How long a log's end is left alone if nothing comes.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.005, 0.25
_FETCH_BYTES = 1024 * 1024


def _open_readers(
    driver: Driver, topic: str, how: dict[str, Any]
) -> Iterator[tuple[int, ChunkReader]]:
    """Open a reader for each partition that is asked for."""
    found = driver.topics([topic])
    if not found:
        raise TopicNotFound(driver.config.describe_missing(topic))
    logs = {log.partition.number: log for log in found[0].logs}
    if (partition := how["partition"]) is not None:
        if partition not in logs:
            raise TopicNotFound(describe_partition(topic, partition, len(logs)))
        logs = {partition: logs[partition]}
    bounds = driver.bounds(list(logs.values()))
    warn_if_new(driver, topic, bounds.values())
    start, end = how["start"] or SeekPosition.BEGINNING, how["end"]
    if start.kind is SeekKind.TIME:
        reason = f"{driver.traits.protocol} can't look for a time: give an offset"
        raise OptionError(f"--from: {reason}")
    for name, given in (("--from", start), ("--to", end)):
        if given is not None and given.kind is SeekKind.OFFSET:
            driver.traits.check_position(name, given.value)
    if len(logs) > 1 and SeekKind.OFFSET in (start.kind, end and end.kind):
        raise OptionError("an offset is one of a partition: give --partition, too")
    for number, log in logs.items():
        at = bounds.get(log.partition)
        if at is None:
            raise TopicNotFound(f"topic {topic!r} is gone")
        stop = None
        if end is not None or not how["follow"]:
            stop = _place(end or SeekPosition.END, at)
            stop = stop if how["follow"] else min(stop, at.end)
        asked = _place(start, at)
        first = min(max(asked, at.start), at.end)
        if first != asked:
            _note(asked, first, at.start)
        reader = driver.open_reader(log, first, end=stop, fetch_bytes=_FETCH_BYTES)
        yield number, reader


def _place(position: SeekPosition, bounds: Bounds) -> int:
    if position.kind is SeekKind.OFFSET:
        return position.value
    return bounds.start if position.kind is SeekKind.BEGINNING else bounds.end


def _note(asked: int, found: int, start: int) -> None:
    when = "any more" if asked < start else "yet"
    text = f"offset {asked} is not there {when}, starting at {found}"
    print(f"lance-spark: {text}", file=sys.stderr)


class _Commits:
    """Tells the server how far a consumer is, now and then and at the end.

    Args:
        client: has a connection of its own.
        topic: name or id.
        consumer: the name; without one nothing is committed.
    """

    def __init__(
        self, client: LanceClient, topic: int | str, consumer: str | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._consumer_id = None if consumer is None else consumer_id(consumer)
        self._due_s = time.monotonic() + _COMMIT_S
        # What was printed and is not committed.
        self.position: int | None = None

    def load(self) -> SeekPosition:
        """Ask how far the consumer has come; a new one begins at the beginning."""
        if self._consumer_id is not None:
            committed = self._client.committed_offset(self._topic, self._consumer_id)
            if committed is not None:
                return SeekPosition.offset(committed)
        return SeekPosition.BEGINNING

    def finish_if_due(self) -> None:
        """Commit if the last time was long ago."""
        if time.monotonic() >= self._due_s:
            self.finish()

    def finish(self) -> None:
        """Commit what was printed and is not committed."""
        position, self.position = self.position, None
        if position is not None and self._consumer_id is not None:
            self._client.commit_offset(self._topic, self._consumer_id, position)
            self._due_s = time.monotonic() + _COMMIT_S
