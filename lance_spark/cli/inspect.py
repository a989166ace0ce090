"""`lance-spark inspect`: find out what a file is, and show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from lance_spark.cli.inspect_frame import show_frames
from lance_spark.cli.inspect_store import (
    InspectedFile,
    Selection,
    is_record,
    open_file,
    show_consumers,
    show_document,
    show_index,
    show_journal,
    show_segment,
)
from lance_spark.cli.options import NUMBER, PATH, option
from lance_spark.store import consumers, format, journal

Show = Callable[[InspectedFile, Selection], None]


# What a file starts with. No record can start like this, as what stands in the place of
# its length is far over the limit: a segment is never mistaken for anything else.
STARTS: dict[bytes, Show] = {
    format.MAGIC: show_index,
    journal.MAGIC: show_journal,
    consumers.MAGIC: show_consumers,
    b"LANC\x01": show_frames,
    b'{"': show_document,
    b"{\n": show_document,
    b"{ ": show_document,
}

# How its name ends, where the start says nothing: damaged, empty, or a segment.
ENDS: dict[str, Show] = {
    ".lnc": show_segment,
    ".idx": show_index,
    "journal.log": show_journal,
    "consumers.log": show_consumers,
    ".json": show_document,
}

_HEAD_BYTES = 4096


@click.command("inspect")
@click.argument("file", type=PATH)
@option("--limit=50", NUMBER, "How many records, rows, entries or frames to show.")
@option("--skip=0", NUMBER, "How many to pass over first.")
@option("--full", bool, "Show whole keys and values.")
@option("--hex as_hex", bool, "Show keys and values as hex.")
def command(file: Path, limit: int, skip: int, full: bool, as_hex: bool) -> None:
    """Show what is inside FILE: a segment, an index, the journal, consumer offsets,
    metadata, or captured LWP frames.

    A file is recognised by its content, then by its name. What is damaged or cut off
    is shown as far as it can be read; the exit code is 1 then.
    """
    selection = Selection(skip, limit, full, as_hex)
    with open_file(file) as opened:
        recognise(opened)(opened, selection)


def recognise(file: InspectedFile) -> Show:
    """Find what can show a file.

    Raises:
        LanceError: nothing can.
    """
    head = file.read(0, _HEAD_BYTES)
    for start, show in STARTS.items():
        if head.startswith(start):
            return show
    for end, show in ENDS.items():
        if file.path.name.endswith(end):
            return show
    if not head:
        raise file.error("the file is empty")
    if head.startswith(b"LANC"):
        return show_frames  # Of another version, or cut off.
    if is_record(head):
        return show_segment
    raise file.error(
        "not a segment, index, journal, metadata or capture of LWP frames (byte 0)"
    )
