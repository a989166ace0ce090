"""`lance-spark consume`: records to lines."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

import click
import pyarrow as pa

from lance_spark.cli.connect import connected, server_options
from lance_spark.cli.output import OUTPUTS, Output
from lance_spark.cli.place import END, START, find_end, find_start
from lance_spark.cli.progress import Progress
from lance_spark.cli.quantity import SEPARATOR, TOPIC
from lance_spark.client import (
    Chunk,
    ClientConfig,
    LanceClient,
    RecordReader,
    SeekPosition,
    consumer_id,
)
from lance_spark.columnar.decode import decode

# How long the server holds a fetch at the end of the log.
_FOLLOW_S = 1.0
# How often progress is committed.
_COMMIT_S = 1.0


@click.command("consume")
@click.argument("topic", type=TOPIC)
@click.option(
    "--from",
    "start",
    type=START,
    help="beginning, end, an offset, or when it was appended: 2024-05-01T12:00:00Z. "
    "[default: where the group is, else beginning]",
)
@click.option("--to", "end", type=END, help="end, or an offset.  [default: end]")
@click.option("--max", "most", type=click.IntRange(min=0), help="Stop after so many.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end.")
@click.option(
    "--output",
    "-o",
    type=click.Choice(list(OUTPUTS)),
    default="raw",
    show_default=True,
    help="How to print a record.",
)
@click.option(
    "--key-separator",
    "separator",
    type=SEPARATOR,
    help=r"Print the key and this before the value; \t is a tab.",
)
@click.option(
    "--group",
    "--consumer",
    "consumer",
    metavar="NAME",
    help="Commit on the server what was printed, and go on there next time.",
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
    output = OUTPUTS[how["output"]](name, how["separator"])
    start = _choose_start(client, topic, how["start"], commits)
    end = None
    if how["end"] is not None or not how["follow"]:
        end = find_end(client, topic, how["end"] or SeekPosition.END)
    reader = RecordReader(client, topic, start, end=end)
    try:
        _print(reader, output, how["most"], commits, follow=how["follow"])
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
    output: Output,
    most: int | None,
    commits: _Commits | None,
    *,
    follow: bool,
) -> None:
    # On a terminal the records themselves show how far it is.
    progress = Progress("consuming", hidden=sys.stdout.isatty())
    records = size = 0
    try:
        while most is None or records < most:
            chunk = reader.next_chunk(_FOLLOW_S if follow else 0.0)
            if chunk is None:
                if not follow or reader.is_finished:
                    break
                if commits is not None:
                    commits.finish_if_due()
                continue
            if most is not None:
                chunk, _ = chunk.split(most - records)
            _print_chunk(chunk, output)
            records, size = records + chunk.records, size + len(chunk.data)
            progress.update(records, size)
            if commits is not None:
                commits.note(chunk.end)
    finally:
        progress.clear()


def _print_chunk(chunk: Chunk, output: Output) -> None:
    decoded = decode(
        chunk.data,
        base_offset=chunk.start,
        columns=output.COLUMNS,
        stamp_type=pa.uint64(),
    )
    sys.stdout.buffer.write(output.encode(decoded.batch))
    # What is committed must have been seen.
    sys.stdout.buffer.flush()


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
