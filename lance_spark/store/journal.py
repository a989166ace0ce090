"""The journal: decisions that concern more than one file.

A file header of 16 bytes, then entries, each appended and synced before anything that
depends on it is done:

     0        8       12      16
    +--------+-------+-------+
    |LSJOURN0|version| 0     |                       file header
    +--------+-------+-------+
    |"LSJE" u32 | length u32 | crc32c u32 | JSON |   entry, repeated
    +--------+-------+-------+-------------+------+

An entry at the end that is not whole was never answered for: it is cut off. One in the
middle is damage; the search for the next entry's mark goes on behind it.

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
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from lance_spark.errors import StoreError
from lance_spark.store.files import File, Files, remove_if_there
from lance_spark.store.spare import is_out_of_files

MAGIC = b"LSJOURN0"
VERSION = 1
_FILE_HEADER = struct.Struct("<8sII")
_ENTRY_HEADER = struct.Struct("<4sII")
_ENTRY_MARK = b"LSJE"
# The largest entry is a commit of all stages that may be open at once.
ENTRY_BYTES_MAX = 64 * 1024 * 1024

Entry = dict[str, Any]


class Parsed(NamedTuple):
    """The content of a journal file.

    Args:
        entries: the whole entries, in order.
        end: where the last of them ends.
        damaged: ranges in front of that end that are no entries.
        fault: why the file can't be read at all.
    """

    entries: list[Entry]
    end: int
    damaged: list[tuple[int, int]]
    fault: str | None = None


def encode_file_header() -> bytes:
    """Encode the header of a journal file."""
    return _FILE_HEADER.pack(MAGIC, VERSION, 0)


def encode_entry(entry: Entry) -> bytes:
    """Encode one entry."""
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return _ENTRY_HEADER.pack(_ENTRY_MARK, len(body), crc32c(body)) + body


def parse_journal(data: bytes) -> Parsed:
    """Find the entries of a journal.

    Raises:
        StoreError: it was written by another version, and is not to be touched.
    """
    if len(data) < _FILE_HEADER.size:
        return Parsed([], 0, [], f"{len(data)} bytes are no journal")
    magic, version, _ = _FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        return Parsed([], 0, [], "not a journal file")
    if version != VERSION:
        raise StoreError(f"the journal has version {version}, which is not supported")
    entries: list[Entry] = []
    damaged: list[tuple[int, int]] = []
    end = at = _FILE_HEADER.size
    while (at := data.find(_ENTRY_MARK, at)) >= 0:
        entry = _parse_entry(data, at)
        if entry is None:
            at += 1
            continue
        if at > end:
            damaged.append((end, at))
        at = end = at + _ENTRY_HEADER.size + entry[1]
        entries.append(entry[0])
    return Parsed(entries, end, damaged)


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

    def __init__(self, files: Files, path: Path, file: File, end: int) -> None:
        self._files = files
        self._path = path
        self._file = file
        self._end = end
        # Whether the loss of power would leave this file and not the one before it.
        self._in_place = True
        self._failed: OSError | None = None

    @classmethod
    def create(cls, files: Files, path: Path, entries: Iterable[Entry]) -> Journal:
        """Write a new journal with these entries in the place of any old one."""
        file, size = _write_beside(files, path, entries)
        files.replace(_beside(path), path)
        files.sync_dir(path.parent)
        return cls(files, path, file, size)

    @classmethod
    def resume(cls, files: Files, path: Path, end: int) -> Journal:
        """Go on with a journal behind its last whole entry."""
        file = files.open(path)
        if file.size() > end:
            file.truncate(end)
        # What a killed process wrote is acted on from now on: it has to stay.
        file.sync()
        files.sync_dir(path.parent)
        return cls(files, path, file, end)

    @property
    def size(self) -> int:
        """Length of the file."""
        return self._end

    def append(self, entry: Entry) -> None:
        """Add an entry, durably.

        Raises:
            OSError: the entry is not there; or, where `failed` says so, that is not
                known, and nothing more can be added.
        """
        if self._failed is not None:
            raise self._failed
        if not self._in_place:
            self._sync_place()
        data = encode_entry(entry)
        if len(data) > ENTRY_BYTES_MAX:
            raise StoreError(
                f"a journal entry of {len(data)} bytes, {ENTRY_BYTES_MAX} are the "
                "most: commit fewer stages at once"
            )
        try:
            self._file.pwrite(data, self._end)
        except OSError:
            self._take_back()
            raise
        try:
            self._file.sync()
        except OSError as error:
            self._failed = error
            raise
        self._end += len(data)

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace all entries by others that say the same.

        Raises:
            OSError: see `append`, unless `failed` says that the old one is still good.
        """
        file, size = _write_beside(self._files, self._path, entries)
        try:
            self._files.replace(_beside(self._path), self._path)
        except OSError as error:
            # Which of the two is there is not known: neither may be written to.
            self._failed = error
            raise
        self._file.close()
        self._file, self._end = file, size
        self._in_place = False
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
            self._file.truncate(self._end)
            # A write that is refused may have written all of the entry: the loss of
            # power must not bring back what was answered as not done.
            self._file.sync()
        except OSError as error:
            self._failed = error

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
) -> tuple[File, int]:
    remove_if_there(files, _beside(path))
    data = encode_file_header() + b"".join(map(encode_entry, entries))
    file = files.open(_beside(path), create=True)
    file.pwrite(data, 0)
    file.sync()
    return file, len(data)
