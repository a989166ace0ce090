"""The journal: decisions that concern more than one file.

A head with two marks (see `head`), then entries, each appended and synced before
anything that depends on it is done:

     0       4       8      12
    +-------+-------+-------+--------+
    |"LSJE" |length | crc   | JSON   |    crc over the JSON
    |       | u32   | u32   |        |
    +-------+-------+-------+--------+

An entry behind the mark that is not whole was never answered for: it is cut off. What
is no entry before the mark, or before another entry, is damage; the search for the next
entry goes on behind it. The mark's state says how the last commit that was begun
stands, so that this is known even if the entry that ended it is damaged.

The kinds of entries:
- `begin`: a commit is decided, with all that is needed to carry it out again.
- `done`: it is carried out; with what a repeated commit is answered.
- `undone`: it could not be carried out and nothing of it is left.
- `expired`: the stages of a job were dropped for want of activity.
- `lost`: the journal before this entry is gone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from lance_spark.errors import StoreError
from lance_spark.store.files import File, Files, remove_if_there
from lance_spark.store.head import (
    HEAD_BYTES,
    NO_MARK,
    VERSION,
    DurableMark,
    decode_head,
    encode_head,
    encode_mark,
    mark_position,
)
from lance_spark.store.spare import is_out_of_files

MAGIC = b"LSJOURN0"
_ENTRY_HEADER = struct.Struct("<4sII")
_ENTRY_MARK = b"LSJE"
# The largest entry is a commit of all stages that may be open at once.
ENTRY_BYTES_MAX = 64 * 1024 * 1024

Entry = dict[str, Any]


class CommitState(IntEnum):
    """How the commit stands that was begun last; the state in a journal's mark."""

    NONE = 0
    BEGUN = 1
    DONE = 2
    UNDONE = 3


_STATES = {
    "begin": CommitState.BEGUN,
    "done": CommitState.DONE,
    "undone": CommitState.UNDONE,
}


class Parsed(NamedTuple):
    """The content of a journal file.

    Args:
        entries: the whole entries, in order.
        end: where the last of them ends.
        damaged: ranges that were entries once, or are in front of one.
        begun: where the last `begin` among the entries ends.
        mark: how far the file is durable; version 1 can't tell.
        faults: what is wrong with the head; the entries can be relied on.
        lost: why nothing of the file can be read.
        current: the file can be appended to as it is.
        torn: a mark is not whole, as after a crash.
    """

    entries: list[Entry]
    end: int
    damaged: list[tuple[int, int]]
    begun: int = 0
    mark: DurableMark = NO_MARK
    faults: tuple[str, ...] = ()
    lost: str | None = None
    current: bool = True
    torn: bool = False

    @property
    def ended(self) -> CommitState | None:
        """How the commit of the last `begin` ended, by the mark alone."""
        state = CommitState(self.mark.state)
        if self.begun > self.mark.end or state in (CommitState.NONE, CommitState.BEGUN):
            return None
        return state

    @property
    def is_begun_unread(self) -> bool:
        """Whether the mark says that a commit is begun, and all entries are before."""
        begun = self.mark.state == CommitState.BEGUN
        return begun and self.end <= self.mark.end


def encode_entry(entry: Entry) -> bytes:
    """Encode one entry."""
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return _ENTRY_HEADER.pack(_ENTRY_MARK, len(body), crc32c(body)) + body


def parse_journal(data: bytes) -> Parsed:
    """Find the entries of a journal.

    Raises:
        StoreError: it was written by another version, and is not to be touched.
    """
    head = decode_head(data, MAGIC, "the journal has")
    if head is None:
        return Parsed([], 0, [], lost=f"{len(data)} bytes are no journal")
    entries: list[Entry] = []
    damaged: list[tuple[int, int]] = []
    end = at = head.start
    begun = 0
    while (at := data.find(_ENTRY_MARK, at)) >= 0:
        entry = _parse_entry(data, at)
        if entry is None:
            at += 1
            continue
        if at > end:
            damaged.append((end, at))
        at = end = at + _ENTRY_HEADER.size + entry[1]
        entries.append(entry[0])
        begun = end if entry[0].get("kind") == "begin" else begun
    if head.faults and not entries and head.version == 1:
        return Parsed([], 0, [], lost="not a journal file")
    if end < head.mark.end:
        damaged.append((end, head.mark.end))
    return Parsed(
        entries,
        end,
        damaged,
        begun,
        head.mark,
        head.faults,
        current=head.version == VERSION and not head.faults and not damaged,
        torn=head.torn,
    )


def _parse_entry(data: bytes, at: int) -> tuple[Entry, int] | None:
    if at + _ENTRY_HEADER.size > len(data):
        return None
    _, length, crc = _ENTRY_HEADER.unpack_from(data, at)
    start = at + _ENTRY_HEADER.size
    if length > ENTRY_BYTES_MAX or start + length > len(data):
        return None
    body = data[start : start + length]
    if crc32c(body) != crc:
        return None
    entry = json.loads(body)
    return (entry, length) if isinstance(entry, dict) else None


class Journal:
    """The journal file, open for appending."""

    def __init__(self, files: Files, path: Path, file: File, mark: DurableMark) -> None:
        self._files = files
        self._path = path
        self._file = file
        self._mark = mark
        # Whether the loss of power would leave this file and not the one before it.
        self._in_place = True
        self._failed: OSError | None = None
        # Writes the file anew before the first entry, if it is of version 1 or damaged.
        self._renew: Callable[[], None] | None = None

    @classmethod
    def create(cls, files: Files, path: Path, entries: Iterable[Entry]) -> Journal:
        """Write a new journal with these entries in the place of any old one."""
        file, mark = _write_beside(files, path, entries)
        files.replace(_beside(path), path)
        files.sync_dir(path.parent)
        return cls(files, path, file, mark)

    @classmethod
    def resume(cls, files: Files, path: Path, parsed: Parsed) -> Journal:
        """Go on with a journal behind its last whole entry."""
        file = files.open(path)
        if file.size() > parsed.end:
            file.truncate(parsed.end)
        # What a killed process wrote is acted on from now on: it has to stay.
        file.sync()
        files.sync_dir(path.parent)
        journal = cls(files, path, file, parsed.mark)
        if parsed.torn or parsed.mark.end != parsed.end:
            journal._set_mark(parsed.end, _fold(parsed.entries, parsed.mark.state))
        return journal

    @classmethod
    def outdated(
        cls,
        files: Files,
        path: Path,
        entries: Iterable[Entry],
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
        journal = cls(files, path, files.open(path, write=False), NO_MARK)
        kept = list(entries)

        def renew() -> None:
            prepare()
            journal.rewrite(kept)

        journal._renew = renew
        return journal

    @property
    def size(self) -> int:
        """Length of the file."""
        return self._mark.end

    def append(self, entry: Entry) -> None:
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
        try:
            self._file.pwrite(data, self._mark.end)
        except OSError:
            self._take_back()
            raise
        try:
            self._file.sync()
        except OSError as error:
            self._failed = error
            raise
        self._set_mark(self._mark.end + len(data), _fold([entry], self._mark.state))

    def _set_mark(self, end: int, state: int) -> None:
        self._mark = DurableMark(end, self._mark.turn + 1, state)
        # The entry is durable, whatever becomes of the mark: an old one only says less.
        with suppress(OSError):
            self._file.pwrite(encode_mark(self._mark), mark_position(self._mark))

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace all entries by others that say the same.

        Raises:
            OSError: see `append`, unless `failed` says that the old one is still good.
        """
        file, mark = _write_beside(self._files, self._path, entries)
        try:
            self._files.replace(_beside(self._path), self._path)
        except OSError as error:
            # Which of the two is there is not known: neither may be written to.
            self._failed = error
            raise
        self._file.close()
        self._file, self._mark = file, mark
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

    def _take_back(self) -> None:
        try:
            self._file.truncate(self._mark.end)
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
        self._file.close()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _write_beside(
    files: Files, path: Path, entries: Iterable[Entry]
) -> tuple[File, DurableMark]:
    remove_if_there(files, _beside(path))
    kept = list(entries)
    body = b"".join(map(encode_entry, kept))
    mark = DurableMark(HEAD_BYTES + len(body), state=_fold(kept))
    file = files.open(_beside(path), create=True)
    file.pwrite(encode_head(MAGIC, mark) + body, 0)
    file.sync()
    return file, mark


def _fold(entries: Iterable[Entry], state: int = CommitState.NONE) -> int:
    for entry in entries:
        state = _STATES.get(str(entry.get("kind")), state)
    return state
