"""How a stage's segments become part of a topic: copied, or taken over as they are."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from lance_spark.errors import Corrupt
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW_BYTES,
    Mark,
    Rows,
    SegmentName,
    decode_rows,
    encode_header,
    valid_rows,
)
from lance_spark.store.log import Log
from lance_spark.store.segment import DamagedIndex, Segment, verify_range

logger = logging.getLogger(__name__)


def copy_segment(target: Log, source: Log, segment: Segment, *, now_ns: int) -> None:
    """Append all batches of a segment to another log, with the rows that they have."""
    with target.exclusive(), target.writing("copy a stage"):
        data = _read_sound(source, segment)
        rows = _read_rows(source, segment).copy()
        target.append_rows(data, rows, segment.records, now_ns)


def adopt_segment(target: Log, source: Log, segment: Segment, *, now_ns: int) -> None:
    """Make a segment the next one of another log, without copying its data.

    The data file gets a second name, so that the source stays whole until it is
    removed; the index is written anew with the new log's header.
    """
    with target.exclusive(), target.writing("adopt a stage"):
        last = target.segments()[-1:]
        if last and not last[0].closed:
            # A stage before this one may have been copied there, and a later sync
            # looks only at the segment that is the last one then.
            target.sync()
        source.open_segment(segment).sync()
        rows = _read_rows(source, segment)
        adopted = _moved(segment, target, now_ns)
        _link_or_copy(source, segment, target.directory / adopted.name.data_file)
        index_path = target.directory / adopted.name.index_file
        index = target.context.files.open(index_path, create=True)
        header = encode_header(adopted.header(target.topic), Mark())
        index.pwrite(header + rows.tobytes(), 0)
        index.sync()
        target.open_segment(adopted).write_mark(segment.size, segment.rows)
        target.add_segment(adopted)


def _moved(segment: Segment, target: Log, now_ns: int) -> Segment:
    end = target.end()
    # Not before any of its rows either, should the clock have gone back.
    append_ns = max(now_ns, target.last_append_ns, segment.last_append_ns)
    return replace(
        segment,
        name=SegmentName(end.next_segment, segment.name.start_ns),
        base_offset=end.offset,
        base_record=end.record,
        time_floor_ns=append_ns,
        last_append_ns=append_ns,
        # The file has two names until the stage is surely gone: if it grew, the stage
        # would seem to hold more than it was given.
        closed=True,
    )


def _link_or_copy(source: Log, segment: Segment, target: Path) -> None:
    files = source.context.files
    try:
        files.link(source.directory / segment.name.data_file, target)
    except OSError as error:
        # Not every file system has hard links; real trouble shows in the copy too.
        logger.info("%s: copying a stage, it can't be linked: %s", target, error)
        opened = source.open_segment(segment)
        copy = files.open(target, create=True)
        step = source.context.config.stage_adopt_bytes
        for position in range(0, segment.size, step):
            end = min(position + step, segment.size)
            copy.pwrite(opened.read(position, end), position)
        copy.sync()


def _read_rows(source: Log, segment: Segment) -> Rows:
    index = source.open_segment(segment).index
    rows = decode_rows(index.pread(segment.rows * ROW_BYTES, HEADER_BYTES))
    if len(rows) < segment.rows or not valid_rows(rows).all():
        raise DamagedIndex(f"{source.where}: rows of the index are damaged")
    return rows


def _read_sound(source: Log, segment: Segment) -> bytes:
    opened = source.open_segment(segment)
    table = opened.table(segment.rows)
    base, size = segment.base_offset, segment.size
    sound = verify_range(source.where, base, opened, table, 0, size)
    if sound < size:
        start = base + sound
        raise Corrupt(source.where, start, segment.end, "the checksum differs")
    return opened.read(0, size)
