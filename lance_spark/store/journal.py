"""The journal: decisions that concern more than one file.

A head with two marks (see `entrylog`), then entries, each appended and synced before
anything that depends on it is done:

     0       4       8      12
    +-------+-------+-------+--------+
    |"LSJE" |length | crc   | JSON   |    crc over the JSON
    |       | u32   | u32   |        |
    +-------+-------+-------+--------+

An entry behind the mark that is not whole was never answered for: it is cut off. What
is no entry before the mark, or before another entry, is damage; the search for the next
entry goes on behind it. The mark's state says what is begun and not ended (see
`OpenDecisions`), so that this is known even if the entry that ended it is damaged.

The kinds of entries:
- `begin`: a commit is decided, with all that is needed to carry it out again.
- `done`: it is carried out; with what a repeated commit is answered.
- `undone`: it could not be carried out and nothing of it is left.
- `expired`: the stages of a job were dropped for want of activity.
- `remove`: the next opening removes these topics, which are being made or deleted.
- `settled`: it need not: they are all there, or all gone.
- `lost`: the journal before this entry is gone.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any, NamedTuple

from lance_spark.checksum import crc32c
from lance_spark.errors import StoreError
from lance_spark.store.entrylog import (
    NO_MARK,
    VERSION,
    DurableMark,
    decode_head,
    move_mark,
    write_beside,
)
from lance_spark.store.files import File, Files, is_out_of_files

MAGIC = b"LSJOURN0"
_ENTRY_HEADER = struct.Struct("<4sII")
_ENTRY_MARK = b"LSJE"
# The largest entry is a commit of all stages that may be open at once.
ENTRY_BYTES_MAX = 64 * 1024 * 1024

JournalEntry = dict[str, Any]
_U32 = 2**32 - 1


class OpenDecisions:
    """What entries have begun and not ended, and the state in a journal's mark.

    Several things may be begun at once, each under a checksum of what it is. The state
    is the exclusive or of these: once of those that are not ended, and once of those
    that are undone. Where it differs from what the entries say, it names the one whose
    entry is damaged.
    """

    def __init__(self) -> None:
        # The entries that have begun something, by their checksums.
        self.begun: dict[int, JournalEntry] = {}
        self._undone = 0

    def add(self, entry: JournalEntry) -> None:
        """Take in an entry."""
        kind, key = entry.get("kind"), _checksum_subject(entry)
        if kind == "undone" and "writer" not in entry:
            # Of lance_spark 0.5, which had one commit at a time and did not name it.
            key = next(iter(self.begun), key)
        if kind in _BEGINS:
            self.begun[key] = entry
        elif kind in _ENDS and self.begun.pop(key, None) is not None:
            self._undone ^= key if kind == "undone" else 0

    @property
    def state(self) -> int:
        """What the mark says of them."""
        return reduce(xor, self.begun, 0) | self._undone << 32


_BEGINS = ("begin", "remove")
_ENDS = ("done", "undone", "settled")


def _checksum_subject(entry: JournalEntry) -> int:
    """Give the checksum of the job, or of the topics, that an entry is about."""
    job = [entry.get("writer"), entry.get("sequence")]
    checksum: int = crc32c(
        json.dumps(entry.get("topics") if _is_removal(entry) else job).encode()
    )
    return checksum


def _is_removal(entry: JournalEntry) -> bool:
    return entry.get("kind") in ("remove", "settled")


class Ended(NamedTuple):
    """Something whose last entry is damaged: what began it, and whether it was done."""

    begin: JournalEntry
    is_done: bool


class JournalContent(NamedTuple):
    """The content of a journal file.

    Args:
        entries: the whole entries, in order.
        end: where the last of them ends.
        damaged: ranges that were entries once, or are in front of one.
        ended: a commit that was ended by a damaged entry.
        is_begun_unread: a commit is begun, and its entry is damaged.
        mark: how far the file is durable; version 1 can't tell.
        faults: what is wrong with the head; the entries can be relied on.
        lost: why nothing of the file can be read.
        current: the file can be appended to as it is.
        torn: a mark is not whole, as after a crash.
    """

    entries: list[JournalEntry]
    end: int
    damaged: list[tuple[int, int]]
    ended: Ended | None = None
    is_begun_unread: bool = False
    mark: DurableMark = NO_MARK
    faults: tuple[str, ...] = ()
    lost: str | None = None
    current: bool = True
    torn: bool = False


def encode_entry(entry: JournalEntry) -> bytes:
    """Encode one entry."""
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return _ENTRY_HEADER.pack(_ENTRY_MARK, len(body), crc32c(body)) + body


def parse_journal(data: bytes) -> JournalContent:
    """Find the entries of a journal.

    Raises:
        StoreError: it was written by another version, and is not to be touched.
    """
    head = decode_head(data, MAGIC, "the journal has")
    if head is None:
        return JournalContent([], 0, [], lost=f"{len(data)} bytes are no journal")
    entries: list[JournalEntry] = []
    damaged: list[tuple[int, int]] = []
    end = at = head.start
    ends: list[int] = []
    while (at := data.find(_ENTRY_MARK, at)) >= 0:
        entry = _parse_entry(data, at)
        if entry is None:
            at += 1
            continue
        if at > end:
            damaged.append((end, at))
        at = end = at + _ENTRY_HEADER.size + entry[1]
        entries.append(entry[0])
        ends.append(end)
    if head.faults and not entries and head.version == 1:
        return JournalContent([], 0, [], lost="not a journal file")
    if end < head.mark.end:
        damaged.append((end, head.mark.end))
    ended, is_begun_unread = None, False
    if damaged and head.mark != NO_MARK:
        ended, is_begun_unread = _explain(entries, ends, head.mark)
    return JournalContent(
        entries,
        end,
        damaged,
        ended,
        is_begun_unread,
        head.mark,
        head.faults,
        current=head.version == VERSION and not head.faults and not damaged,
        torn=head.torn,
    )


def _explain(
    entries: list[JournalEntry], ends: list[int], mark: DurableMark
) -> tuple[Ended | None, bool]:
    """Tell what the damaged entries did to commits: one ended, one can't be read."""
    marked = bisect_right(ends, mark.end)
    now = OpenDecisions()
    for entry in entries[:marked]:
        now.add(entry)
    differs = now.state ^ mark.state
    job, undone = differs & _U32, differs >> 32
    begin = now.begun.get(job)
    for entry in entries[marked:]:
        now.add(entry)
        if _checksum_subject(entry) == job and entry.get("kind") in _ENDS:
            return None, False  # It says itself how the commit ended.
    if not job:
        return None, False
    if begin is None or undone not in (0, job):
        return None, True
    # It may have been begun once more since.
    is_last = now.begun.get(job) is begin
    return (Ended(begin, undone == 0) if is_last else None), False


def _parse_entry(data: bytes, at: int) -> tuple[JournalEntry, int] | None:
    if at + _ENTRY_HEADER.size > len(data):
        return None
    _, length, crc = _ENTRY_HEADER.unpack_from(data, at)
    start = at + _ENTRY_HEADER.size
    # Zeros are the header of nothing, whose checksum is 0.
    if not 0 < length <= ENTRY_BYTES_MAX or start + length > len(data):
        return None
    body = data[start : start + length]
    if crc32c(body) != crc:
        return None
    entry = json.loads(body)
    return (entry, length) if isinstance(entry, dict) else None


class Journal:
    """The journal file, open for appending."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self._mark = NO_MARK
        self._begun = OpenDecisions()
        # Whether the loss of power would leave this file and not the one before it.
        self._in_place = True
        self._failed: OSError | None = None
        # Writes the file anew before the first entry, if it is of version 1 or damaged.
        self._renew: Callable[[], None] | None = None

    @classmethod
    def create(
        cls, files: Files, path: Path, entries: Iterable[JournalEntry]
    ) -> Journal:
        """Write a new journal with these entries in the place of any old one."""
        journal = cls(files, path)
        journal.rewrite(entries)
        return journal

    @classmethod
    def resume(cls, files: Files, path: Path, parsed: JournalContent) -> Journal:
        """Go on with a journal behind its last whole entry."""
        file = files.open(path)
        if file.size() > parsed.end:
            file.truncate(parsed.end)
        # What a killed process wrote is acted on from now on: it has to stay.
        file.sync()
        files.sync_dir(path.parent)
        journal = cls(files, path)
        journal._file, journal._mark = file, parsed.mark
        for entry in parsed.entries:
            journal._begun.add(entry)
        if parsed.torn or parsed.mark.end != parsed.end:
            journal._set_mark(parsed.end)
        return journal

    @classmethod
    def outdated(
        cls,
        files: Files,
        path: Path,
        entries: Iterable[JournalEntry],
        *,
        prepare: Callable[[], None],
    ) -> Journal:
        """Read on in a file that has to be written anew, for which there is no room.

        Args:
            files: file operations.
            path: the file.
            entries: what the new one will say.
            prepare: called before the new one is written.
        """
        journal, kept = cls(files, path), list(entries)

        def renew() -> None:
            prepare()
            journal.rewrite(kept)

        journal._renew = renew
        return journal

    @property
    def size(self) -> int:
        """Length of the file."""
        return self._mark.end

    def append(self, entry: JournalEntry) -> None:
        """Add an entry, durably.

        Raises:
            OSError: the entry is not there; or, where `failed` says so, that is not
                known, and nothing more can be added.
        """
        if self._failed is not None:
            raise self._failed
        if self._renew is not None:
            self._renew()
        if not self._in_place:
            self._sync_place()
        data = encode_entry(entry)
        if len(data) > ENTRY_BYTES_MAX:
            raise StoreError(
                f"a journal entry of {len(data)} bytes, {ENTRY_BYTES_MAX} are the "
                "most: commit fewer stages at once"
            )
        assert self._file is not None
        try:
            self._file.pwrite(data, self._mark.end)
        except OSError:
            self._take_back(self._file)
            raise
        try:
            self._file.sync()
        except OSError as error:
            self._failed = error
            raise
        self._begun.add(entry)
        self._set_mark(self._mark.end + len(data))

    def _set_mark(self, end: int) -> None:
        assert self._file is not None
        self._mark = move_mark(self._file, self._mark, end, self._begun.state)

    def rewrite(self, entries: Iterable[JournalEntry]) -> None:
        """Replace all entries by others that say the same.

        Raises:
            OSError: see `append`, unless `failed` says that the old one is still good.
        """
        begun, body = OpenDecisions(), b""
        for entry in entries:
            body += encode_entry(entry)
            begun.add(entry)
        beside = write_beside(self._files, self._path, MAGIC, body, begun.state)
        try:
            self._files.replace(beside.path, self._path)
        except OSError as error:
            # Which of the two is there is not known: neither may be written to.
            self._failed = error
            raise
        self.close()
        self._file, self._mark, self._begun = beside.file, beside.mark, begun
        self._in_place, self._renew = False, None
        self._sync_place()

    def _sync_place(self) -> None:
        try:
            self._files.sync_dir(self._path.parent)
        except OSError as error:
            # Without a descriptor it was not even tried: the next entry waits for it.
            if not is_out_of_files(error):
                self._failed = error
            raise
        self._in_place = True

    def _take_back(self, file: File) -> None:
        try:
            file.truncate(self._mark.end)
            # A write that is refused may have written all of the entry: the loss of
            # power must not bring back what was answered as not done.
            file.sync()
        except OSError as error:
            self._failed = error

    @property
    def is_outdated(self) -> bool:
        """Whether the file has to be written anew before an entry is added."""
        return self._renew is not None

    @property
    def failed(self) -> bool:
        """Whether nothing more can be added."""
        return self._failed is not None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
