"""`lance-spark consume`: records to lines."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

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
    option,
    server_options,
)
from lance_spark.client import (
    Chunk,
    ClientConfig,
    LanceClient,
    RecordReader,
    SeekKind,
    SeekPosition,
    consumer_id,
)
from lance_spark.columnar.decode import decode
from lance_spark.errors import OptionError
from lance_spark.model import Buffer
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
    if text == "end":
        return SeekPosition.END
    if text.isascii() and text.isdecimal():
        return SeekPosition.offset(int(text))
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
    if text.isascii() and text.isdecimal():
        return SeekPosition.offset(int(text))
    raise OptionError(f"{text!r} is no end: give end, or an offset")


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
    if position.kind is SeekKind.BEGINNING:
        return client.bounds(topic).start or 0, None
    if position.kind is SeekKind.END:
        return client.bounds(topic).end, None
    if position.kind is SeekKind.TIME:
        return client.locate_time(topic, position.value).offset, None
    asked = position.value
    if not client.supports(Capability.LOCATE):
        return asked, None
    found = client.locate_offset(topic, asked).offset
    if found == asked:
        return found, None
    bounds = client.bounds(topic)
    if bounds.start is not None and asked < bounds.start:
        return found, f"offset {asked} is not there any more, starting at {found}"
    if asked > bounds.end:
        return found, f"offset {asked} is not there yet, starting at {found}"
    return found, f"offset {asked} is inside a record, starting at {found}"


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
    lines = []
    for key, value in zip(*(rows.column(n).to_pylist() for n in _PAIR), strict=True):
        line = (value or b"").hex().encode() + b"\n"
        if separator is not None:
            line = (key or b"").hex().encode() + separator + line
        lines.append(line)
    return b"".join(lines)


def encode_json(rows: pa.RecordBatch, topic: str, separator: bytes | None) -> Buffer:
    """Write one object per record; bytes that are no text are in base64."""
    lines = []
    for row in rows.to_pylist():
        document = {
            "topic": topic,
            "offset": row["offset"],
            "type": row["type"],
            **_to_field("key", row["key"]),
            **_to_field("value", row["value"]),
            "timestamp_ns": row["timestamp_ns"],
        }
        lines.append(f"{format_json(document)}\n")
    return "".join(lines).encode()


def _to_field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


class RecordFormat(NamedTuple):
    """A way to print records: the columns that it needs, and what writes them."""

    columns: Sequence[str]
    encode: Callable[[pa.RecordBatch, str, bytes | None], Buffer]


_PAIR = ("key", "value")
FORMATS = {
    "raw": RecordFormat(_PAIR, encode_raw),
    "json": RecordFormat(("offset", "type", *_PAIR, "timestamp_ns"), encode_json),
    "hex": RecordFormat(_PAIR, encode_hex),
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
@option("--output -o", list(FORMATS), "How to print a record.", default="raw")
@option(
    *("--key-separator separator", SEPARATOR),
    r"Print the key and this before the value; \t is a tab.",
)
@option(
    *("--group --consumer consumer", NAME),
    "Commit on the server what was printed, and go on there next time.",
)
@server_options
def command(config: ClientConfig, topic: int | str, **how: Any) -> None:
    """Print the records of TOPIC, one per line.

    raw prints values as they are, hex as digits, json an object with all there is.
    Without --follow it ends where the topic ended when it began.
    """
    if how["follow"] and how["end"] is SeekPosition.END:
        raise click.UsageError("--follow goes beyond --to end: leave one of them out")
    if how["separator"] is not None and how["output"] == "json":
        raise click.UsageError("--key-separator is for raw and hex; json has the key")
    with connected(config) as client, ExitStack() as stack:
        commits = None
        if how["consumer"] is not None:
            # On a connection of its own: a fetch that waits would hold it up.
            own = stack.enter_context(client.dedicated())
            commits = _Commits(own, topic, how["consumer"])
        _consume(client, topic, how, commits)


def _consume(
    client: LanceClient, topic: int | str, how: dict[str, Any], commits: _Commits | None
) -> None:
    name = topic if isinstance(topic, str) else client.topic(topic).name
    format = FORMATS[how["output"]]

    def print_chunk(chunk: Chunk) -> None:
        decoded = decode(
            chunk.data,
            base_offset=chunk.start,
            columns=format.columns,
            stamp_type=pa.uint64(),
        )
        lines = format.encode(decoded.batch, name, how["separator"])
        sys.stdout.buffer.write(lines)
        # What is committed must have been seen.
        sys.stdout.buffer.flush()

    start = _choose_start(client, topic, how["start"], commits)
    end = None
    if how["end"] is not None or not how["follow"]:
        end = find_end(client, topic, how["end"] or SeekPosition.END)
    reader = RecordReader(client, topic, start, end=end)
    try:
        _print(reader, print_chunk, how["most"], commits, follow=how["follow"])
    except (KeyboardInterrupt, BrokenPipeError):
        # What was printed before counts. After trouble with the server a commit would
        # only meet the same.
        if commits is not None:
            commits.finish()
        raise
    finally:
        reader.close()
    if commits is not None:
        commits.finish()


def _choose_start(
    client: LanceClient,
    topic: int | str,
    given: SeekPosition | None,
    commits: _Commits | None,
) -> int:
    position = given or SeekPosition.BEGINNING
    if given is None and commits is not None:
        committed = commits.load()
        if committed is not None:
            position = SeekPosition.offset(committed)
    start, note = find_start(client, topic, position)
    if note is not None:
        print(f"lance-spark: {note}", file=sys.stderr)
    return start


def _print(
    reader: RecordReader,
    print_chunk: Callable[[Chunk], None],
    most: int | None,
    commits: _Commits | None,
    *,
    follow: bool,
) -> None:
    records = size = 0
    # On a terminal the records themselves show how far it is.
    with show_progress("consuming", hidden=sys.stdout.isatty()) as update:
        while most is None or records < most:
            chunk = reader.next_chunk(_FOLLOW_S if follow else 0.0)
            if chunk is None:
                if not follow or reader.is_finished:
                    return
                if commits is not None:
                    commits.finish_if_due()
                continue
            if most is not None:
                chunk, _ = chunk.split(most - records)
            print_chunk(chunk)
            records, size = records + chunk.records, size + len(chunk.data)
            update(records, size, None)
            if commits is not None:
                commits.note(chunk.end)


class _Commits:
    """Tells the server how far we are, now and then and at the end.

    Args:
        client: has a connection of its own.
        topic: name or id.
        consumer: the name.
    """

    def __init__(self, client: LanceClient, topic: int | str, consumer: str) -> None:
        self._client = client
        self._topic = topic
        self._consumer_id = consumer_id(consumer)
        self._position: int | None = None
        self._due_s = time.monotonic() + _COMMIT_S

    def load(self) -> int | None:
        """Ask how far the consumer has come."""
        return self._client.committed_offset(self._topic, self._consumer_id)

    def note(self, position: int) -> None:
        """Take note of what was printed, and commit it if it is time."""
        self._position = position
        self.finish_if_due()

    def finish_if_due(self) -> None:
        """Commit if the last time was long ago."""
        if time.monotonic() >= self._due_s:
            self.finish()

    def finish(self) -> None:
        """Commit what was printed and is not committed."""
        if self._position is None:
            return
        position, self._position = self._position, None
        self._client.commit_offset(self._topic, self._consumer_id, position)
        self._due_s = time.monotonic() + _COMMIT_S
