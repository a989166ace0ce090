"""`stages.log`: the batches of small stages, which need no files of their own.

A stage with files of its own takes eight syncs before its first batch is durable, and
two more before its commit. A stage of a few rows is kept here instead, beside those of
other jobs, and takes two, which it shares with them. One that outgrows
`stage_inline_bytes` moves to files: see `Stage`.

A head with two marks (see `entrylog`), then entries:

     0       4       8      12      16      20      24      28         36      40
    +-------+-------+-------+-------+-------+-------+-------+----------+-------+------+
    |"LSSE" |length | stage | number|records| rows  | crc   |append_ns | crc   | body |
    |       | u32   | u32   | u32   | u32   | u32   | u32   | u64      | u32   |      |
    +-------+-------+-------+-------+-------+-------+-------+----------+-------+------+
                                                     of data            of header

Number 0 opens a stage; the body is what `stage.json` would hold. Number 1 and those
behind are its batches: so many bytes of index rows, which count from the batch's own
start, then the records. `_GONE` as number says that the stage is over.

What is promised is synced: a stage before its id is given out, a batch before it is
acknowledged, the end of a stage before an abort is. That one was committed is known
from the journal.

An entry behind the mark that is not whole was never answered for: it is cut off with
all that follows. Before the mark it is damage: a stage with such a batch can't be
committed. No entry is searched for behind a header that can't be read, because the
bodies are users' bytes and might look like entries; all stages in the file are gone
then, and their jobs have to write them again.

The file is written anew with the stages that are open, once more than
`GARBAGE_BYTES_MAX` of it is over, and by maintenance. While open stages take
`LIVE_BYTES_MAX`, or the file can't be written anew, further ones get files.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lance_spark.checksum import crc32c
from lance_spark.errors import (
    Corrupt,
    StageUnknown,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    Timeout,
)
from lance_spark.model import Buffer
from lance_spark.store.entrylog import (
    HEAD_BYTES,
    NO_MARK,
    VERSION,
    DurableMark,
    decode_head,
    move_mark,
    write_beside,
)
from lance_spark.store.files import File, Files, Reserve, is_full, keep_copy, read_file
from lance_spark.store.format import ROW_BYTES, Rows, decode_rows, valid_rows

logger = logging.getLogger(__name__)

STAGE_LOG = "stages.log"
MAGIC = b"LSSTAGE0"
_ENTRY = struct.Struct("<4sIIIIIIQI")
_ENTRY_MARK = b"LSSE"
_OPENED, _GONE = 0, 2**32 - 1

# The file is read as a whole when the store is opened, so it must not get large; and it
# must not be written anew for every few stages.
LIVE_BYTES_MAX = 16 * 1024 * 1024
GARBAGE_BYTES_MAX = 16 * 1024 * 1024


class InlineBatch(NamedTuple):
    """A batch of a small stage: its index rows, its records, and their number."""

    rows: Rows
    data: bytes
    records: int


class _Entry(NamedTuple):
    """An entry, and where it is."""

    stage: int
    number: int
    records: int
    row_bytes: int
    data_crc: int
    append_ns: int
    position: int
    length: int

    @property
    def end(self) -> int:
        return self.position + _ENTRY.size + self.length

    @property
    def size(self) -> int:
        return self.end - self.position


@dataclass(slots=True)
class InlineStage:
    """What the log has of one stage.

    Args:
        opened: the entry that opens it, with its metadata.
        batches: those of its batches.
        size: how many bytes of records it holds.
        file_bytes: how much of the file it takes.
        written: how many entries the log had behind the last of them.
        is_lost: the stage was dropped before that was durable.
    """

    opened: _Entry
    batches: list[_Entry] = field(default_factory=list)
    size: int = 0
    file_bytes: int = 0
    written: int = 0
    is_lost: bool = False

    def add(self, batch: _Entry) -> None:
        """Take in a batch."""
        self.batches.append(batch)
        self.size += batch.length - batch.row_bytes
        self.file_bytes += batch.size

    @property
    def last_append_ns(self) -> int:
        """Time of the last batch, 0 if there is none."""
        return self.batches[-1].append_ns if self.batches else 0


@dataclass(slots=True)
class StageLogContent:
    """The content of a file.

    Args:
        stages: those that are not over.
        end: where the last whole entry ends.
        mark: how far the file is durable.
        damaged: entries that were promised and can't be read, with the reason.
        faults: what is wrong with the head; the entries can be relied on.
        lost: why nothing of the file can be read.
        torn: a mark is not whole, as after a crash.
    """

    stages: dict[int, InlineStage] = field(default_factory=dict)
    end: int = 0
    mark: DurableMark = NO_MARK
    damaged: list[tuple[int, int, str]] = field(default_factory=list)
    faults: tuple[str, ...] = ()
    lost: str | None = None
    torn: bool = False


def encode_stage_entry(
    stage: int,
    number: int,
    body: bytes,
    *,
    records: int = 0,
    row_bytes: int = 0,
    append_ns: int = 0,
    data_crc: int | None = None,
) -> bytes:
    """Encode one entry."""
    if data_crc is None:
        data_crc = crc32c(body)
    numbers = (len(body), stage, number, records, row_bytes, data_crc, append_ns)
    header = _ENTRY.pack(_ENTRY_MARK, *numbers, 0)[:-4]
    return header + crc32c(header).to_bytes(4, "little") + body


def parse_stage_log(data: bytes) -> StageLogContent:
    """Find the stages of a file.

    Raises:
        StoreError: a newer release wrote it, and it is not to be touched.
    """
    head = decode_head(data, MAGIC, "the log of stages has")
    if head is None or head.version != VERSION:
        return StageLogContent(lost=f"{len(data)} bytes are no log of stages")
    found = StageLogContent(
        end=head.start, mark=head.mark, faults=head.faults, torn=head.torn
    )
    damaged: dict[int, list[tuple[int, int, str]]] = {}
    while (entry := _parse_entry(data, found.end)) is not None:
        fault = _find_fault(data, entry)
        if fault is not None and entry.end > found.mark.end:
            break  # It was not answered for.
        if fault is not None:
            damage = (entry.position, entry.end, fault)
            damaged.setdefault(entry.stage, []).append(damage)
        if entry.number == _GONE:
            damaged.pop(entry.stage, None)
        _take_in(found.stages, entry, is_sound=fault is None)
        found.end = entry.end
    found.damaged = sorted(each for one in damaged.values() for each in one)
    if found.end < found.mark.end:
        # Nothing tells of which stages batches are missing now.
        found.damaged.append((found.end, found.mark.end, "not an entry"))
        found.stages.clear()
    return found


def _take_in(stages: dict[int, InlineStage], entry: _Entry, *, is_sound: bool) -> None:
    if entry.number == _GONE:
        stages.pop(entry.stage, None)
    elif entry.number == _OPENED:
        if is_sound:
            stages[entry.stage] = InlineStage(entry, file_bytes=entry.size)
    elif entry.stage in stages:
        # One that is damaged keeps its number: a commit that needs it is refused.
        stages[entry.stage].add(entry)


def _parse_entry(data: bytes, at: int) -> _Entry | None:
    header = data[at : at + _ENTRY.size]
    if len(header) < _ENTRY.size:
        return None
    mark, length, stage, number, records, rows, data_crc, append_ns, crc = (
        _ENTRY.unpack(header)
    )
    if mark != _ENTRY_MARK or crc32c(header[:-4]) != crc:
        return None
    if at + _ENTRY.size + length > len(data) or rows > length:
        return None
    return _Entry(stage, number, records, rows, data_crc, append_ns, at, length)


def _find_fault(data: bytes, entry: _Entry) -> str | None:
    """Say what is wrong with the body of an entry; None if nothing is."""
    start = entry.position + _ENTRY.size
    behind = start + entry.row_bytes
    rows = decode_rows(data[start:behind])
    if len(rows) * ROW_BYTES != entry.row_bytes or not valid_rows(rows).all():
        return "index rows are damaged"
    if crc32c(memoryview(data)[behind : entry.end]) != entry.data_crc:
        return "the checksum differs"
    return None


def list_inline_ids(files: Files, root: Path) -> list[int]:
    """List the stages in a directory's file, as far as it can be read."""
    data = read_file(files, root / STAGE_LOG)
    try:
        return [] if data is None else list(parse_stage_log(data).stages)
    except StoreError:
        return []


class StageLog:
    """The file, open for appending. Any number of threads may use it.

    `_syncing` lets one thread sync, or write the file anew; `_state` guards the rest.
    They are taken in this order.
    """

    where = STAGE_LOG

    def __init__(self, files: Files, root: Path, reserve: Reserve) -> None:
        self._files = files
        self._reserve = reserve
        self._path = root / STAGE_LOG
        self._syncing = threading.Lock()
        self._state = threading.Condition()  # Of a lock that its owner may take again.
        self._file: File | None = None
        self._mark = NO_MARK
        self._end = 0
        self._stages: dict[int, InlineStage] = {}
        self._live_bytes = 0
        # Stages that are over, of which the file does not say so yet.
        self._over: set[int] = set()
        # How many entries were written, and how many of them a sync has covered.
        self._written = self._synced = 0
        # Why nothing can be added any more.
        self._failure: str | None = None

    # Opening.

    def read(self) -> StageLogContent:
        """Read what the last process has left, before anything is acted on."""
        data = read_file(self._files, self._path)
        if data is None:
            return StageLogContent()
        found = parse_stage_log(data)
        self._stages = found.stages
        return found

    def resume(self, found: StageLogContent) -> None:
        """Go on behind the last whole entry; or anew, without what is damaged.

        Raises:
            OSError: the disk refused.
        """
        if not found.end and found.lost is None:
            return  # There is no file, until it is needed.
        self._file = self._files.open(self._path)
        self._mark, self._end = found.mark, found.end
        self._live_bytes = sum(each.file_bytes for each in self._stages.values())
        if found.lost is not None or found.faults or found.end < found.mark.end:
            keep_copy(self._files, self._path)
            with self._syncing, self._state:
                self._rewrite()
            return
        if self._file.size() > found.end:
            self._file.truncate(found.end)
        # What a killed process wrote is acted on from now on: it has to stay.
        self._file.sync()
        self._files.sync_dir(self._path.parent)
        self._mark = move_mark(self._file, self._mark, self._end)

    @property
    def stages(self) -> dict[int, InlineStage]:
        """The stages that are here, by id."""
        with self._state:
            return dict(self._stages)

    def has_room(self, size: int) -> bool:
        """Tell whether so many bytes of a stage may be kept here."""
        with self._state:
            if self._failure is not None:
                return False
            if self._end > LIVE_BYTES_MAX + 2 * GARBAGE_BYTES_MAX:
                return False
            return self._live_bytes + size <= LIVE_BYTES_MAX

    # Writing.

    def open_stage(self, stage: int, metadata: bytes) -> InlineStage:
        """Take in a stage; `sync` makes it last.

        Raises:
            OSError: it is not here.
        """
        with self._state:
            entry = self._write(stage, _OPENED, metadata)
            made = InlineStage(entry, file_bytes=entry.size, written=self._written)
            self._stages[stage] = made
            self._live_bytes += entry.size
        return made

    def append(
        self,
        stage: InlineStage,
        rows: bytes,
        data: Buffer,
        *,
        records: int,
        data_crc: int,
        append_ns: int,
    ) -> None:
        """Add a batch to a stage; it is durable once `wait` says so.

        Raises:
            OSError: it is not here.
        """
        with self._state:
            entry = self._write(
                stage.opened.stage,
                len(stage.batches) + 1,
                b"".join((rows, data)),
                records=records,
                row_bytes=len(rows),
                data_crc=data_crc,
                append_ns=append_ns,
            )
            stage.add(entry)
            stage.written = self._written
            self._live_bytes += entry.size

    def drop(self, stages: Iterable[int]) -> None:
        """Note that stages are over; `sync` makes it last.

        Raises:
            OSError: they may be back after the next opening, unless `sync` succeeds.
        """
        with self._state:
            for each in self._stages.keys() & set(stages):
                self._live_bytes -= self._stages.pop(each).file_bytes
                self._over.add(each)
            if self._note_over():
                return
        with self._syncing, self._state:
            self._reserve.spend(self._rewrite)

    def _note_over(self) -> bool:
        """Write which stages are over; False if there is no room for that.

        Then the file is to be written anew: what is over takes the room.
        """
        over = [encode_stage_entry(each, _GONE, b"") for each in sorted(self._over)]
        try:
            if over:
                self._write_all(over)
        except OSError as error:
            if is_full(error):
                return False
            raise
        self._over.clear()
        return True

    def _write(
        self,
        stage: int,
        number: int,
        body: bytes,
        *,
        records: int = 0,
        row_bytes: int = 0,
        data_crc: int | None = None,
        append_ns: int = 0,
    ) -> _Entry:
        if data_crc is None:
            data_crc = crc32c(body)
        data = encode_stage_entry(
            stage,
            number,
            body,
            records=records,
            row_bytes=row_bytes,
            data_crc=data_crc,
            append_ns=append_ns,
        )
        at = self._write_all([data])
        return _Entry(
            stage, number, records, row_bytes, data_crc, append_ns, at, len(body)
        )

    def _write_all(self, entries: list[bytes]) -> int:
        """Write entries behind the last one; tell where."""
        if self._failure is not None:
            raise StoreReadOnly(self._failure)
        if self._file is None:
            self._replace_by(b"")
        assert self._file is not None
        data = b"".join(entries)
        try:
            self._file.pwrite(data, self._end)
        except OSError as error:
            self._take_back(error)
            raise
        at = self._end
        self._end += len(data)
        self._written += len(entries)
        return at

    def _take_back(self, cause: OSError) -> None:
        assert self._file is not None
        try:
            # A write that is refused may have written all of the entry: the loss of
            # power must not bring back what was answered as not stored.
            self._file.truncate(self._end)
            self._file.sync()
        except OSError as error:
            self.fail(f"an entry failed ({cause}) and could not be undone ({error})")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the disk says into an error of the store."""
        try:
            yield
        except OSError as error:
            text = f"{STAGE_LOG}: could not write: {error}; nothing was stored"
            raise StoreWriteFailed(text) from error

    # Durability.

    def sync(self) -> None:
        """Make everything that was written so far durable.

        Raises:
            StoreReadOnly: the disk failed; nothing can be added any more.
            StoreWriteFailed: it refuses to note that a stage is over.
        """
        with self._syncing:
            with self._state, self.writing():
                if not self._note_over():
                    self._reserve.spend(self._rewrite)
                file, end, written = self._file, self._end, self._written
                if file is None or written == self._synced:
                    return
                if self._failure is not None:
                    raise StoreReadOnly(self._failure)
            try:
                file.sync()
            except OSError as error:
                # The kernel may have dropped the pages: see `Log.sync`.
                failure = self.fail(f"a sync failed ({error})")
                raise StoreReadOnly(failure) from error
            with self._state:
                self._mark = move_mark(file, self._mark, end)
                self._synced = written
                self._state.notify_all()

    def retire(self, stage: InlineStage) -> None:
        """Wake all threads that wait for a stage, which is to be dropped."""
        with self._state:
            stage.is_lost = stage.written > self._synced
            self._state.notify_all()

    def is_durable(self, stage: InlineStage) -> bool:
        """Tell whether all that was added to a stage is durable."""
        with self._state:
            return stage.written <= self._synced and not stage.is_lost

    def wait(self, stage: InlineStage, *, timeout_s: float) -> None:
        """Wait until all that was added to a stage is durable.

        Raises:
            Timeout: it took too long; it may still become durable.
            StageUnknown: the stage was dropped before.
            StoreReadOnly: the disk failed.
        """
        written = stage.written
        with self._state:
            self._state.wait_for(
                lambda: (
                    self._failure is not None
                    or stage.is_lost
                    or written <= self._synced
                ),
                timeout_s,
            )
            if stage.is_lost:
                raise StageUnknown(f"stage {stage.opened.stage} was dropped")
            if written <= self._synced:
                return
            if self._failure is not None:
                raise StoreReadOnly(self._failure)
        raise Timeout(f"{STAGE_LOG}: not durable after {timeout_s} s")

    # Reading.

    def batches(self, stage: InlineStage) -> list[InlineBatch]:
        """Read the batches of a stage.

        Raises:
            Corrupt: one is not as it was written.
            OSError: the file can't be read.
        """
        return [self._read(stage, number) for number in range(len(stage.batches))]

    def _read(self, stage: InlineStage, number: int) -> InlineBatch:
        with self._state:
            # Also its place is only known for now: the file may be written anew.
            entry = stage.batches[number]
            assert self._file is not None
            data = self._file.pread(entry.size, entry.position)
        there = entry._replace(position=0)
        fault = "the file is too short" if len(data) < entry.size else None
        fault = fault or _find_fault(data, there)
        if fault is not None:
            where = f"stages/{entry.stage}"
            raise Corrupt(where, entry.position, entry.end, fault)
        behind = _ENTRY.size + entry.row_bytes
        rows = decode_rows(data[_ENTRY.size : behind])
        return InlineBatch(rows, data[behind:], entry.records)

    def metadata(self, stage: InlineStage) -> bytes:
        """Read what a stage was opened for."""
        with self._state:
            assert self._file is not None
            opened = stage.opened
            data = self._file.pread(opened.size, opened.position)
        return data[_ENTRY.size :]

    # Keeping it short.

    def tidy(self, garbage_bytes_max: int | None = None) -> None:
        """Write the file anew if more than this of it is over."""
        if garbage_bytes_max is None:
            garbage_bytes_max = GARBAGE_BYTES_MAX
        if not self._is_longer(garbage_bytes_max):
            return
        with self._syncing, self._state:
            if not self._is_longer(garbage_bytes_max):
                return
            try:
                self._rewrite()
            except OSError as error:
                # It grows on until there is room; `has_room` bounds it.
                logger.warning("%s: could not be shortened: %s", STAGE_LOG, error)

    def _is_longer(self, garbage_bytes_max: int) -> bool:
        with self._state:
            over = self._end - HEAD_BYTES - self._live_bytes
            return over > garbage_bytes_max and self._failure is None

    def _rewrite(self) -> None:
        """Write the file anew with the stages that are left."""
        assert self._file is not None
        parts: list[bytes] = []
        moved: dict[int, list[_Entry]] = {}
        at = HEAD_BYTES
        for number, stage in self._stages.items():
            moved[number] = []
            for entry in (stage.opened, *stage.batches):
                parts.append(self._file.pread(entry.size, entry.position))
                moved[number].append(entry._replace(position=at))
                at += entry.size
        self._replace_by(b"".join(parts))
        for number, entries in moved.items():
            stage = self._stages[number]
            stage.opened, stage.batches = entries[0], entries[1:]
        self._over.clear()
        self._synced = self._written
        self._state.notify_all()

    def _replace_by(self, body: bytes) -> None:
        beside = write_beside(self._files, self._path, MAGIC, body)
        try:
            self._files.replace(beside.path, self._path)
            self._files.sync_dir(self._path.parent)
        except OSError as error:
            # Which of the two files a loss of power would leave is not known.
            self.fail(f"it could not be replaced ({error})")
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._mark, self._end = beside.file, beside.mark, beside.mark.end

    def fail(self, reason: str) -> str:
        """Add nothing any more; give the text that says why."""
        text = f"{STAGE_LOG}: read-only since {reason}; mend the disk and reopen"
        with self._state:
            if self._failure is None:
                logger.error("%s", text)
                self._failure = text
            self._state.notify_all()
            return self._failure

    # Like a log, for `Store.sync`: what is here is synced under any policy.
    sync_written = sync

    def close(self) -> None:
        """Make everything durable and close the file."""
        try:
            if self._failure is None:
                self.sync()
        finally:
            with self._state:
                self._failure = self._failure or f"{STAGE_LOG}: the store is closed"
                if self._file is not None:
                    self._file.close()
                self._state.notify_all()
