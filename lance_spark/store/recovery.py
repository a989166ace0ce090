"""Opening a log after whatever happened to it.

The rules, in the order in which they are applied to a directory:

1. Files before the log's start are what retention did not get to remove: removed.
2. A segment with a successor was made durable before its successor was created. Its
   files are expected to be whole; what is not is damage, kept and reported.
3. The last segment is durable up to the mark in its index. Behind the mark batches are
   taken one by one for as long as row, bytes and checksum agree; what follows was
   never acknowledged and is cut off. A lazy segment, written with `fsync=none`, has no
   mark to speak of: it is taken to be durable up to its last whole row. After a kill
   it is; what a loss of power has taken before that row can't be told from damage. The
   same goes for a segment one of whose marks can't be read.
4. An index that is missing, foreign or too short is rebuilt from the data. Without an
   index there is no mark: everything that can be framed is kept.
5. Data that is missing before the mark is damage. The offsets stay taken: the log goes
   on in a new segment behind them.

`Rebuilt` makes index rows from the data. What they can't know is taken from what is
left: the append time of the batch before, a checksum of the bytes as they are now.
Batches come out at other sizes than they were appended in; offsets and records are the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.model import Framing
from lance_spark.store.config import Fsync
from lance_spark.store.context import Context
from lance_spark.store.files import File, Files, remove_if_there, replace_file
from lance_spark.store.format import (
    HEADER_BYTES,
    INNER_ROWS,
    ROW,
    ROW_BYTES,
    IndexHeader,
    IndexMark,
    Kind,
    Rows,
    SegmentName,
    decode_header,
    decode_mark,
    decode_rows,
    encode_header,
    encode_mark,
    has_lost_mark,
    make_batch_rows,
    mark_position,
    parse_segment_name,
    seal_rows,
    valid_rows,
)
from lance_spark.store.log import Log, Point, Tail, start_of
from lance_spark.store.segment import (
    Boundary,
    DamagedIndex,
    IndexTable,
    OpenSegment,
    Segment,
    SegmentKey,
    check_batch,
    remove_files,
)

# How much is framed at once; a longer record makes it grow.
_WINDOW_BYTES = 1024 * 1024
# A row's length field is a u32.
_LOST_BYTES_MAX = 2**31


_START = Boundary(0, 0)
_NO_ROWS = decode_rows(b"")
# All rows of a batch are among the last ones, as this version writes them.
_LAST_ROWS = INNER_ROWS + 2


@dataclass(slots=True)
class Rebuilt:
    """Rows of a segment, old and new, up to `end`.

    Args:
        data: the segment's data.
        framing: finds record starts.
        stride: distance of inner rows.
        last_append_ns: time of the last row.
        end: how far the rows reach.
        parts: the rows' bytes.
        rows: how many they are.
        made: ranges whose rows were made from the data.
        lost: ranges of bytes that could not be framed.
        unknown: how many bytes at the end are lost. Nothing tells how many records
            they held, but no record is shorter than a byte.
    """

    data: File
    framing: Framing
    stride: int
    last_append_ns: int = 0
    end: Boundary = _START
    parts: list[bytes] = field(default_factory=list)
    rows: int = 0
    made: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    unknown: int = 0

    @classmethod
    def begin(cls, context: Context, data: File, name: SegmentName) -> Rebuilt:
        """Begin with no rows; the first ones are dated as the segment is."""
        stride = context.config.index_stride_bytes
        return cls(data, context.framing, stride, name.start_ns)

    def keep(self, rows: Rows) -> None:
        """Take over the rows of whole batches as they are."""
        if len(rows):
            last = rows[-1]  # Whatever its kind: it reaches to the end of its batch.
            record = int(last["record"] + last["records"])
            self.end = Boundary(int(last["position"] + last["length"]), record)
            self.last_append_ns = int(last["append_ns"])
            self.unknown = count_unknown(rows)
            self._add(rows.tobytes(), len(rows))

    def make(self, end: int, *, cut_tail: bool) -> None:
        """Make rows from the data up to a position.

        Args:
            end: where the data to look at ends.
            cut_tail: leave out a last record that is not whole, instead of counting
                it as lost.
        """
        first, window = self.end.position, _WINDOW_BYTES
        while self.end.position < end:
            start = self.end.position
            chunk = self.data.pread(min(window, end - start), start)
            scan = self.framing(chunk)
            if scan.end:
                self._make_batch(chunk[: scan.end], scan.starts)
                window = _WINDOW_BYTES
            elif not (scan.fault and scan.fault.truncated):
                self.lose(end)
            elif window == len(chunk) < end - start:
                window *= 2
            elif cut_tail:
                break
            else:
                self.lose(end)
        if self.end.position > first:
            self.made.append((first, self.end.position))

    def _make_batch(self, data: bytes, starts: NDArray[np.int64]) -> None:
        position, record = self.end.position, self.end_record
        rows = make_batch_rows(
            position,
            record,
            self.last_append_ns,
            len(data),
            starts,
            crc32c(data),
            self.stride,
        )
        self._add(rows, len(rows) // ROW.itemsize)
        self.end = Boundary(position + len(data), record + len(starts))
        self.unknown = 0

    def lose(self, end: int) -> None:
        """Cover everything up to a position with rows that say it is lost."""
        self.lost.append((self.end.position, end))
        self.unknown += end - self.end.position
        while self.end.position < end:
            length = min(end - self.end.position, _LOST_BYTES_MAX)
            row = np.zeros(1, ROW)
            row["position"], row["record"] = self.end
            row["append_ns"], row["length"] = self.last_append_ns, length
            row["kind"] = Kind.LOST
            self._add(seal_rows(row), 1)
            self.end = Boundary(self.end.position + length, self.end.record)

    @property
    def end_record(self) -> int:
        """A number that no record before the end has been given."""
        return self.end.record + self.unknown

    def _add(self, rows: bytes, count: int) -> None:
        self.parts.append(rows)
        self.rows += count


def rebuild(
    result: Rebuilt, rows: Rows, end: int, *, cut_tail: bool = False
) -> Rebuilt:
    """Keep the rows that are sound and make the others from the data.

    Args:
        result: takes the rows; its time is that of rows that have none before them.
        rows: what the index holds.
        end: where the data ends, or the part of it that is to be covered.
        cut_tail: see `Rebuilt.make`.
    """
    valid = valid_rows(rows)
    heads = valid & (rows["kind"] != Kind.INNER)
    number = 0
    while number < len(rows):
        if not heads[number]:
            # Behind damaged rows: go on with the next batch whose row is sound.
            behind = np.flatnonzero(heads[number:])
            number = number + int(behind[0]) if len(behind) else len(rows)
            continue
        row = rows[number]
        position = int(row["position"])
        size = 0
        if position >= result.end.position:
            size = sound_rows(rows[number:], position, end, valid[number:])
        if size and position > result.end.position:
            # A clock that went back may have dated the segment after its batches.
            result.last_append_ns = min(result.last_append_ns, int(row["append_ns"]))
            result.make(position, cut_tail=False)
        # A kept row knows how many records there were before it, also if some of the
        # bytes between could not be framed.
        result.keep(rows[number : number + size])
        number += max(size, 1)
    result.make(end, cut_tail=cut_tail)
    return result


def count_unknown(rows: Rows) -> int:
    """Count the bytes of the last rows, if nothing tells what they held."""
    known = np.flatnonzero((rows["kind"] != Kind.LOST) | (rows["records"] > 0))
    return int(rows["length"][known[-1] + 1 if len(known) else 0 :].sum())


def sound_rows(
    rows: Rows, start: int, end: int, valid: NDArray[np.bool_] | None = None
) -> int:
    """Count the first rows that are whole batches, in line within [start, end).

    Lost bytes need not be there. All rows are looked at together: an index may have
    hundreds of thousands. `valid` is what `valid_rows` says of them, where that is
    known.
    """
    if valid is None:
        valid = valid_rows(rows)
    rows = rows[: len(rows) if valid.all() else int(np.argmin(valid))]
    heads = np.flatnonzero(rows["kind"] != Kind.INNER)
    batches = rows[heads]
    next_head = heads + 1 + batches["inner"]
    ends = (batches["position"] + batches["length"]).astype(np.int64)
    begins = np.concatenate(([start], ends[:-1])) if len(ends) else ends
    there = (ends <= end) | (batches["kind"] == Kind.LOST)
    good = (batches["position"] == begins) & there & (next_head <= len(rows))
    good[:-1] &= next_head[:-1] == heads[1:]
    if len(heads) and heads[0] != 0:
        return 0
    whole = len(good) if good.all() else int(np.argmin(good))
    return int(next_head[whole - 1]) if whole else 0


def find_promise(mark: IndexMark, rows: Rows) -> tuple[IndexMark, int]:
    """Find what was acknowledged of a lazy segment, beyond its mark.

    Returns:
        Up to where rows promise their batches; and how many rows behind that can't be
        read, or are missing before the mark. What they and later ones stood for was
        acknowledged as well: a process that is killed leaves half a row behind its
        last one, never a whole one that differs.
    """
    valid = valid_rows(rows)
    end = len(rows)
    heads = np.flatnonzero(valid & (rows["kind"] != Kind.INNER))
    if len(heads) and heads[-1] + 1 + rows[heads[-1]]["inner"] > end:
        # The rows of this batch were being written.
        end = int(heads[-1])
    known = np.flatnonzero(valid[:end])
    if len(known) and known[-1] >= mark.rows:
        # Whatever its kind: it reaches to the end of its batch.
        row = rows[known[-1]]
        count = int(known[-1]) + 1 + int(row["inner"])
        mark = IndexMark(int(row["position"] + row["length"]), count)
    return mark, abs(end - mark.rows)


def write_index(
    context: Context, directory: Path, header: IndexHeader, rebuilt: Rebuilt
) -> None:
    """Put a rebuilt index in the place of the old one."""
    mark = IndexMark(rebuilt.end.position, rebuilt.rows)
    data = encode_header(header, mark) + b"".join(rebuilt.parts)
    path = directory / header.name.index_file
    context.reserve.spend(lambda: replace_file(context.files, path, data))


def report_rebuilt(context: Context, where: str, base: int, rebuilt: Rebuilt) -> None:
    """Say what was rebuilt and what was lost."""
    for start, end in rebuilt.made:
        text = "index rows were rebuilt from the data"
        context.findings.note(where, text, base + start, base + end)
    for start, end in rebuilt.lost:
        text = "index rows are gone and the bytes can't be framed"
        context.findings.damage(where, text, base + start, base + end)


def open_with_table(log: Log, segment: Segment) -> tuple[OpenSegment, IndexTable]:
    """Open a segment with its index, rebuilding rows that have become damaged."""
    opened = log.open_segment(segment)
    try:
        table = opened.table(segment.rows)
    except DamagedIndex:
        with log.exclusive():
            _mend(log, segment)
        opened = log.open_segment(segment)
        table = opened.table(segment.rows)
    log.context.segments.trim_tables()
    return opened, table


def _mend(log: Log, segment: Segment) -> None:
    context = log.context
    opened = log.open_segment(segment)
    # The new index says that everything in it is durable.
    opened.sync()
    rows = decode_rows(opened.index.pread(segment.index_bytes, HEADER_BYTES))
    if len(rows) >= segment.rows and valid_rows(rows[: segment.rows]).all():
        return  # Another thread was here first.
    rebuilt = Rebuilt.begin(context, opened.data, segment.name)
    rebuild(rebuilt, rows[: segment.rows], segment.size)
    header = segment.header(log.topic)
    try:
        context.spare.insist(
            lambda: write_index(context, log.directory, header, rebuilt)
        )
    except OSError as error:
        # Which of the two indexes is there is not known: none may be written to.
        log.fail(f"an index could not be rebuilt ({error})")
        raise
    finally:
        context.segments.drop(SegmentKey(log.topic, segment.name.number))
    report_rebuilt(context, log.where, segment.base_offset, rebuilt)
    segment.rows = rebuilt.rows


class _Index(NamedTuple):
    """What is read of an index at first, or why it can't be used.

    `promising` says that each whole row promises its batch, whatever the mark says:
    the segment is lazy, or a mark is lost that may have been the newest.
    """

    header: IndexHeader | str
    mark: IndexMark = IndexMark()
    last_rows: Rows = _NO_ROWS
    promising: bool = False


@dataclass(slots=True)
class Found:
    """The files of one segment; a size of None means that the file is missing."""

    name: SegmentName
    data_bytes: int | None = None
    index_bytes: int | None = None


def list_segments(files: Files, directory: Path) -> list[Found]:
    """List the segments of a directory by number."""
    found: dict[SegmentName, Found] = {}
    for entry in files.list(directory):
        parsed = parse_segment_name(entry.name)
        if parsed is not None:
            name, ending = parsed
            segment = found.setdefault(name, Found(name))
            if ending == "lnc":
                segment.data_bytes = entry.size
            else:
                segment.index_bytes = entry.size
    return [found[name] for name in sorted(found)]


def open_log(context: Context, topic: int, directory: Path, start: Point | None) -> Log:
    """Open the log in a directory, mending what a crash has left.

    Args:
        context: what the store's logs share.
        topic: id of the topic or stage.
        directory: where its files are.
        start: where the log starts; None if that is not known any more, then it is
            where the first segment starts.
    """
    _remove_temporary(context.files, directory)
    found = list_segments(context.files, directory)
    if start is not None:
        found = _remove_before(context.files, directory, found, start)
    recovery = _Recovery(context, topic, directory, start)
    for number, files in enumerate(found):
        recovery.load(files, found[number + 1 :])
    segments = recovery.segments
    if segments and not segments[-1].is_counted:
        recovery.count_lost(segments[-1], segments[-1].end_record)
    if start is None:
        start = start_of(segments[0]) if segments else Point()
    return Log(context, topic, directory, start, segments)


def reset_files(context: Context, directory: Path, end: Tail) -> None:
    """Bring a directory back to an end that was durable once."""
    files = context.files
    for segment in list_segments(files, directory):
        if segment.name.number > end.segment:
            remove_files(files, directory, segment.name)
        elif segment.name.number == end.segment:
            opened = OpenSegment(files, directory, segment.name)
            _cut(opened, end.size, end.rows)
    files.sync_dir(directory)


def _cut(opened: OpenSegment, size: int, rows: int) -> None:
    # The mark comes down first: one that points behind the end would make the next
    # opening believe that durable bytes are missing.
    old = decode_mark(opened.index.pread(HEADER_BYTES, 0))
    if old.position > size or old.rows > rows:
        # Both slots, since the older mark may be too high as well.
        for count in (old.count + 1, old.count + 2):
            mark = encode_mark(IndexMark(size, rows, count))
            opened.index.pwrite(mark, mark_position(count))
        opened.index.sync()
    # A row without its bytes would be damage in a lazy segment.
    opened.index.truncate(HEADER_BYTES + rows * ROW_BYTES)
    # A file that has lost bytes stays as short as it is: zeros might pass for records.
    if opened.data.size() > size:
        opened.data.truncate(size)
    opened.sync()


def _remove_temporary(files: Files, directory: Path) -> None:
    for entry in files.list(directory):
        if entry.name.endswith(".tmp"):
            remove_if_there(files, directory / entry.name)


def _remove_before(
    files: Files, directory: Path, found: list[Found], start: Point
) -> list[Found]:
    if any(segment.name.number < start.segment for segment in found):
        # The start may be known to the kernel only, if the process before was killed.
        files.sync_dir(directory)
    for segment in found:
        if segment.name.number < start.segment:
            remove_files(files, directory, segment.name)
    return [s for s in found if s.name.number >= start.segment]


class _Recovery:
    """Loads the segments of one log, in order."""

    def __init__(
        self, context: Context, topic: int, directory: Path, start: Point | None
    ) -> None:
        self._context = context
        self._topic = topic
        self._directory = directory
        self._where = f"{directory.parent.name}/{directory.name}"
        self._indexes: dict[SegmentName, _Index] = {}
        # Where the segments so far end, if that is known.
        self._end = start
        self.segments: list[Segment] = []

    def load(self, found: Found, following: Sequence[Found]) -> None:
        """Load the next segment, if there is anything to keep of it.

        Args:
            found: its files.
            following: the files of the segments behind it.
        """
        segment = self._load(found, following)
        if segment is None:
            return
        before = self.segments[-1] if self.segments else None
        if self._end is not None and segment.base_offset > self._end.offset:
            gap = (self._end.offset, segment.base_offset)
            self._context.findings.damage(self._where, "the segment is missing", *gap)
        elif before is not None and not before.is_counted:
            self.count_lost(before, segment.base_record)
        if before is not None:
            records = segment.base_record - before.base_record
            before.records = min(before.records, records)
        self.segments.append(segment)
        self._end = Point(segment.end, segment.end_record)

    def count_lost(self, segment: Segment, end_record: int) -> None:
        """Note how many numbers the lost end of a segment takes.

        The header of the next segment tells how many. It goes into the row of the lost
        bytes, because that header may be lost one day as well.
        """
        segment.records = end_record - segment.base_record
        opened = OpenSegment(self._context.files, self._directory, segment.name)
        at = segment.index_bytes - ROW_BYTES
        row = decode_rows(opened.index.pread(ROW_BYTES, at)).copy()
        lost = segment.records - int(row["record"][0])
        if 0 < lost < 2**32:
            row["records"], segment.is_counted = lost, True
            sealed = seal_rows(row)
            self._context.reserve.spend(lambda: opened.index.pwrite(sealed, at))
            opened.index.sync()

    def _load(self, found: Found, following: Sequence[Found]) -> Segment | None:
        header, mark, rows, promising = self._read_index(found)
        if isinstance(header, str):
            return self._without_index(found, following, header)
        segment = self._segment(found, header.base_offset, header.base_record)
        segment.lift(header.time_floor_ns)
        # A segment is written under one policy, which its header tells.
        segment.closed = header.lazy != segment.lazy
        segment.lazy = header.lazy
        _take_rows(segment, rows, _row_count(found))
        if found.data_bytes is None and not (mark.rows or _row_count(found)):
            # The crash came between the making of the two files.
            remove_files(self._context.files, self._directory, found.name)
            return None
        data_bytes = found.data_bytes or 0
        if following:
            mark = IndexMark(
                max(segment.size, data_bytes, mark.position),
                max(_row_count(found), mark.rows),
            )
            behind = self._read_index(following[0]).header
            if isinstance(behind, IndexHeader):
                limit = behind.base_offset - segment.base_offset
                if limit < mark.position:
                    return self._recover_overlong(segment, found, limit)
        rows_agree = segment.rows == mark.rows == _row_count(found)
        if segment.size == data_bytes == mark.position and rows_agree:
            return segment
        # Files of 0.5 do not tell their policy: that of today is most likely theirs.
        return self._recover(segment, found, mark, promising or self._lazy)

    @property
    def _lazy(self) -> bool:
        return self._context.config.fsync is Fsync.NONE

    def _segment(self, found: Found, base_offset: int, base_record: int) -> Segment:
        segment = Segment(found.name, base_offset, base_record, lazy=self._lazy)
        if self.segments:
            # No later batch counts as older: a search by time relies on that, also
            # where a rebuilt index does not know the times any more.
            segment.lift(self.segments[-1].last_append_ns)
        return segment

    def _read_index(self, found: Found) -> _Index:
        """Read header, mark and last rows of an index, once."""
        if found.name not in self._indexes:
            self._indexes[found.name] = self._read_index_file(found)
        return self._indexes[found.name]

    def _read_index_file(self, found: Found) -> _Index:
        if found.index_bytes is None:
            return _Index("it is missing")
        path = self._directory / found.name.index_file
        file = self._context.files.open(path, write=False)
        data = file.pread(HEADER_BYTES, 0)
        last = min(_row_count(found), _LAST_ROWS)
        at = HEADER_BYTES + (_row_count(found) - last) * ROW_BYTES
        rows = decode_rows(file.pread(last * ROW_BYTES, at))
        file.close()
        header = decode_header(data, of=(self._topic, found.name))
        if isinstance(header, str):
            return _Index(header)
        promising = header.lazy or has_lost_mark(data)
        return _Index(header, decode_mark(data), rows, promising)

    def _read_rows(self, found: Found) -> Rows:
        count = _row_count(found)
        if not count:
            return _NO_ROWS
        path = self._directory / found.name.index_file
        file = self._context.files.open(path, write=False)
        rows = file.pread(count * ROW_BYTES, HEADER_BYTES)
        file.close()
        return decode_rows(rows)

    def _without_index(
        self, found: Found, following: Sequence[Found], reason: str
    ) -> Segment | None:
        """Rule 4: make a new index, as far as the bytes can be framed."""
        if found.data_bytes is None:
            remove_files(self._context.files, self._directory, found.name)
            return None
        end = self._end or Point()
        segment = self._segment(found, end.offset, end.record)
        cut_tail = not following
        rebuilt = self._rebuild(_NO_ROWS, found, found.data_bytes, cut_tail=cut_tail)
        self._place(segment, [found, *following], rebuilt)
        shown = replace(found, index_bytes=None)
        self._finish(segment, shown, rebuilt, "the last record is not whole")
        text = f"the index can't be used ({reason}); a new one was made"
        base = segment.base_offset
        self._context.findings.note(self._where, text, base, segment.end)
        return segment

    def _place(self, segment: Segment, rest: Sequence[Found], rebuilt: Rebuilt) -> None:
        """Find a segment's first offset and record, where those before do not tell.

        Args:
            segment: it has none but those that follow from the segments before.
            rest: its files and those of the segments behind it.
            rebuilt: its rows.
        """
        behind = self._read_index(rest[1]).header if rest[1:] else None
        is_counted = not self.segments or self.segments[-1].is_counted
        if isinstance(behind, IndexHeader):
            if self._end is None:
                segment.base_offset = behind.base_offset - rebuilt.end.position
            if self._end is None or not is_counted:
                # Records that can't be numbered get no number of their own: those that
                # they may have had are lost.
                held = 0 if rebuilt.lost else rebuilt.end.record
                segment.base_record = behind.base_record - held
        elif not is_counted:
            # Above every number that a record from here on can have been given: none
            # is shorter than a byte.
            segment.base_record += sum(found.data_bytes or 0 for found in rest)

    def _recover_overlong(self, segment: Segment, found: Found, limit: int) -> Segment:
        """Leave out what is behind a segment's end: offsets behind it must not move."""
        rows = self._read_rows(found)
        inside = rows["position"] + rows["length"] <= limit
        rebuilt = self._rebuild(rows[inside], found, limit)
        start = segment.base_offset + limit
        text = f"{found.name.data_file} goes on behind the start of the next segment"
        self._context.findings.damage(self._where, text, start, start)
        # As if it had no index: a new one is written, and the data is left alone.
        shown = replace(found, data_bytes=limit, index_bytes=None)
        self._finish(segment, shown, rebuilt)
        return segment

    def _recover(
        self, segment: Segment, found: Found, mark: IndexMark, promising: bool
    ) -> Segment:
        """Rules 2, 3 and 5: bring rows and data to the same, sound end."""
        data_bytes = found.data_bytes or 0
        rows = self._read_rows(found)
        cut, damaged = "written but never acknowledged", 0
        if promising:
            mark, damaged = find_promise(mark, rows)
            cut = "there is no index row for it"
        there = min(mark.position, data_bytes)
        rebuilt = self._rebuild(rows[: mark.rows], found, there)
        if data_bytes < mark.position:
            if rebuilt.end.position < mark.position:
                rebuilt.lose(mark.position)
            segment.closed = True
        elif damaged and data_bytes > mark.position:
            self._make_tail(rebuilt, data_bytes, segment)
            cut = "the last record is not whole"
        else:
            self._keep_tail(rebuilt, rows[mark.rows :], data_bytes)
        self._finish(segment, found, rebuilt, cut)
        return segment

    def _make_tail(self, rebuilt: Rebuilt, data_bytes: int, segment: Segment) -> None:
        """Rule 3: keep what rows stood for that were acknowledged and are damaged."""
        span = (segment.base_offset + n for n in (rebuilt.end.position, data_bytes))
        text = (
            "the last index rows are damaged: what follows the framing is kept, but "
            "nothing tells whether these bytes are as they were written"
        )
        self._context.findings.damage(self._where, text, *span)
        rebuilt.make(data_bytes, cut_tail=True)

    @staticmethod
    def _keep_tail(rebuilt: Rebuilt, rows: Rows, data_bytes: int) -> None:
        """Rule 3: keep batches behind the mark for as long as everything agrees."""
        rows = rows[: sound_rows(rows, rebuilt.end.position, data_bytes)]
        table = IndexTable()
        table.extend(rows)
        for number in range(table.batches):
            batch = table.batch(number)
            if check_batch(batch, rebuilt.data):
                rows = rows[rows["position"] < batch.position]
                break
        rebuilt.keep(rows)

    def _rebuild(
        self, rows: Rows, found: Found, end: int, *, cut_tail: bool = False
    ) -> Rebuilt:
        path = self._directory / found.name.data_file
        # A data file that is gone is made anew, empty: its bytes are lost rows then.
        data = self._context.files.open(path, create=found.data_bytes is None)
        result = Rebuilt.begin(self._context, data, found.name)
        return rebuild(result, rows, end, cut_tail=cut_tail)

    def _finish(
        self, segment: Segment, found: Found, rebuilt: Rebuilt, cut: str = ""
    ) -> None:
        """Write what was decided, in an order that a second crash can't hurt.

        Args:
            segment: is given its end.
            found: its files.
            rebuilt: its rows, with its open data.
            cut: why what is behind the rows goes.
        """
        reached = Boundary(rebuilt.end.position, rebuilt.end_record)
        _set_end(segment, reached, rebuilt.rows, rebuilt.last_append_ns)
        segment.is_counted = not rebuilt.unknown
        report_rebuilt(self._context, self._where, segment.base_offset, rebuilt)
        data_bytes = found.data_bytes or 0
        if data_bytes > segment.size:
            start = segment.base_offset + segment.size
            end = segment.base_offset + data_bytes
            self._context.findings.note(self._where, f"{cut}; cut off", start, end)
        if not _is_prefix(rebuilt, found):
            rebuilt.data.sync()
            header = segment.header(self._topic)
            write_index(self._context, self._directory, header, rebuilt)
            if data_bytes > segment.size:
                rebuilt.data.truncate(segment.size)
                rebuilt.data.sync()
            return
        opened = OpenSegment(self._context.files, self._directory, found.name)
        _cut(opened, segment.size, segment.rows)
        opened.write_mark(segment.size, segment.rows)


def _is_prefix(rebuilt: Rebuilt, found: Found) -> bool:
    """Tell whether the index only has to be cut, if anything."""
    kept = not rebuilt.made and not rebuilt.lost and found.index_bytes is not None
    return kept and rebuilt.rows <= _row_count(found)


def _row_count(found: Found) -> int:
    return max(0, ((found.index_bytes or 0) - HEADER_BYTES) // ROW_BYTES)


def _take_rows(segment: Segment, rows: Rows, count: int) -> None:
    """Set a segment's end from the last rows of its index, if they are sound."""
    if len(rows) and valid_rows(rows).all():
        heads = np.flatnonzero(rows["kind"] != Kind.INNER)
        if len(heads) and heads[-1] + 1 + rows[heads[-1]]["inner"] != len(rows):
            return  # Inner rows of the last batch are missing.
        # Whatever its kind: a row reaches to the end of its batch.
        end = int(rows[-1]["position"] + rows[-1]["length"])
        unknown = count_unknown(rows)
        records = int(rows[-1]["record"] + rows[-1]["records"]) + unknown
        segment.is_counted = not unknown
        segment.closed |= bool(rows[-1]["kind"] == Kind.LOST)
        _set_end(segment, Boundary(end, records), count, int(rows[-1]["append_ns"]))


def _set_end(segment: Segment, end: Boundary, rows: int, append_ns: int) -> None:
    segment.size, segment.records = end
    segment.rows = rows
    if rows:
        segment.last_append_ns = max(append_ns, segment.time_floor_ns)
