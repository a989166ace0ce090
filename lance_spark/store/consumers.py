"""Committed offsets of consumers, one per (consumer, topic), durable.

A header of 16 bytes and entries of 24, the last one for a pair counts:

     0         8       12      16       24
    +---------+-------+-------+--------+
    |consumer | topic | crc32c| offset |
    +---------+-------+-------+--------+

The checksum is over the other 20 bytes. An entry that is not whole is passed over: it
can only be one that was not answered for, or damage of a single entry.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from lance_spark.errors import StoreError, StoreWriteFailed
from lance_spark.store.files import File, Files, remove_if_there

MAGIC = b"LSCONSU0"
VERSION = 1
_FILE_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<QIIQ")
# Rewritten when it has this many entries and most of them are out of date.
_COMPACT_ENTRIES = 4096


class ConsumerKey(NamedTuple):
    """A consumer's place in a topic."""

    consumer: int
    topic: int


class Parsed(NamedTuple):
    """The content of a file of offsets."""

    offsets: dict[ConsumerKey, int]
    entries: int
    damaged: int
    fault: str | None = None


def encode_entry(key: ConsumerKey, offset: int) -> bytes:
    """Encode one entry."""
    return _ENTRY.pack(key.consumer, key.topic, _checksum(key, offset), offset)


def _checksum(key: ConsumerKey, offset: int) -> int:
    checksum: int = crc32c(struct.pack("<QIQ", key.consumer, key.topic, offset))
    return checksum


def parse_consumers(data: bytes) -> Parsed:
    """Find the offsets in a file.

    Raises:
        StoreError: it was written by another version, and is not to be touched.
    """
    if len(data) < _FILE_HEADER.size or not data.startswith(MAGIC):
        return Parsed({}, 0, 0, "not a file of consumer offsets")
    version = _FILE_HEADER.unpack_from(data)[1]
    if version != VERSION:
        raise StoreError(f"the offsets have version {version}, which is not supported")
    offsets: dict[ConsumerKey, int] = {}
    damaged = 0
    entries = (len(data) - _FILE_HEADER.size) // _ENTRY.size
    whole = _FILE_HEADER.size + entries * _ENTRY.size
    for fields in _ENTRY.iter_unpack(data[_FILE_HEADER.size : whole]):
        consumer, topic, crc, offset = fields
        key = ConsumerKey(consumer, topic)
        if crc == _checksum(key, offset):
            offsets[key] = offset
        else:
            damaged += 1
    return Parsed(offsets, entries, damaged)


class Consumers:
    """The committed offsets of a store."""

    def __init__(self, files: Files, path: Path, parsed: Parsed, *, sync: bool) -> None:
        self._files = files
        self._path = path
        self._sync = sync
        self._lock = threading.Lock()
        self._offsets = parsed.offsets
        self._entries = parsed.entries
        self._file: File = self._rewrite()

    def committed(self, consumer: int, topic: int) -> int | None:
        """Give a committed offset."""
        with self._lock:
            return self._offsets.get(ConsumerKey(consumer, topic))

    def __len__(self) -> int:
        return len(self._offsets)

    def all(self) -> dict[ConsumerKey, int]:
        """Copy all committed offsets."""
        with self._lock:
            return dict(self._offsets)

    def commit(self, consumer: int, topic: int, offset: int) -> None:
        """Set an offset, durably if the policy asks for it.

        Raises:
            StoreWriteFailed: the disk refused; the old offset may still count.
        """
        key = ConsumerKey(consumer, topic)
        entry = encode_entry(key, offset)
        with self._lock:
            try:
                if self._entries >= max(_COMPACT_ENTRIES, 2 * len(self._offsets)):
                    self._file = self._rewrite()
                position = _FILE_HEADER.size + self._entries * _ENTRY.size
                self._file.pwrite(entry, position)
                if self._sync:
                    self._file.sync()
            except OSError as error:
                raise StoreWriteFailed(
                    f"{self._path.name}: could not commit offset {offset} of topic "
                    f"{topic}: {error}"
                ) from error
            self._entries += 1
            self._offsets[key] = offset

    def forget_topic(self, topic: int) -> None:
        """Forget the offsets of a deleted topic; the file follows when rewritten."""
        with self._lock:
            for key in [k for k in self._offsets if k.topic == topic]:
                del self._offsets[key]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _rewrite(self) -> File:
        temporary = self._path.with_name(self._path.name + ".tmp")
        remove_if_there(self._files, temporary)
        entries = [encode_entry(k, offset) for k, offset in self._offsets.items()]
        file = self._files.open(temporary, create=True)
        file.pwrite(_FILE_HEADER.pack(MAGIC, VERSION, 0) + b"".join(entries), 0)
        file.sync()
        self._files.replace(temporary, self._path)
        self._files.sync_dir(self._path.parent)
        self._entries = len(entries)
        return file
