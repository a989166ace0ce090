"""Committed offsets of consumers, one per (consumer, topic), durable.

A head with two marks (see `head`) and entries of 24 bytes, the last one for a pair
counts:

     0         8       12      16       24
    +---------+-------+-------+--------+
    |consumer | topic | crc32c| offset |
    +---------+-------+-------+--------+

The checksum is over the other 20 bytes. An entry that is not whole is passed over. The
last one was not answered for if it is behind the mark; anything else is damage of a
single entry.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from lance_spark.errors import StoreClosed, StoreWriteFailed
from lance_spark.store.entrylog import (
    HEAD_BYTES,
    NO_MARK,
    decode_head,
    move_mark,
    write_beside,
)
from lance_spark.store.files import File, Files, is_full

MAGIC = b"LSCONSU0"
_ENTRY = struct.Struct("<QIIQ")
# Rewritten when it has this many entries and most of them are out of date.
_COMPACT_ENTRIES = 4096


class ConsumerKey(NamedTuple):
    """A consumer's place in a topic."""

    consumer: int
    topic: int


class ConsumersContent(NamedTuple):
    """The content of a file of offsets.

    Args:
        offsets: what can be read.
        entries: how many entries there are.
        damaged: ranges of entries that were answered for and can't be read.
        torn: where an entry starts that is not whole and was not answered for.
        faults: what is wrong with the head; the entries can be relied on.
        lost: why nothing of the file can be read.
    """

    offsets: dict[ConsumerKey, int]
    entries: int = 0
    damaged: tuple[tuple[int, int], ...] = ()
    torn: int | None = None
    faults: tuple[str, ...] = ()
    lost: str | None = None


def encode_entry(key: ConsumerKey, offset: int) -> bytes:
    """Encode one entry."""
    return _ENTRY.pack(key.consumer, key.topic, _checksum(key, offset), offset)


def _checksum(key: ConsumerKey, offset: int) -> int:
    checksum: int = crc32c(struct.pack("<QIQ", key.consumer, key.topic, offset))
    return checksum


def parse_consumers(data: bytes) -> ConsumersContent:
    """Find the offsets in a file.

    Raises:
        StoreError: it was written by another version, and is not to be touched.
    """
    head = decode_head(data, MAGIC, "the offsets have")
    if head is None:
        return ConsumersContent(
            {}, lost=f"{len(data)} bytes are no file of consumer offsets"
        )
    offsets: dict[ConsumerKey, int] = {}
    bad: list[tuple[int, int]] = []
    entries = (len(data) - head.start) // _ENTRY.size
    whole = head.start + entries * _ENTRY.size
    for number, fields in enumerate(_ENTRY.iter_unpack(data[head.start : whole])):
        consumer, topic, crc, offset = fields
        key = ConsumerKey(consumer, topic)
        if crc == _checksum(key, offset):
            offsets[key] = offset
        else:
            at = head.start + number * _ENTRY.size
            bad.append((at, at + _ENTRY.size))
    if head.faults and not offsets and head.version == 1:
        return ConsumersContent({}, lost="not a file of consumer offsets")
    torn = whole if whole < len(data) else None
    if whole < head.mark.end:
        bad.append((whole, head.mark.end))
        torn = None
    elif head.version > 1 and bad and bad[-1][1] == whole > head.mark.end:
        # One entry is synced before the next is written: only the last can be torn.
        torn = bad.pop()[0]
    return ConsumersContent(offsets, entries, tuple(bad), torn, head.faults)


class Consumers:
    """The committed offsets of a store."""

    def __init__(
        self,
        files: Files,
        path: Path,
        offsets: dict[ConsumerKey, int],
        *,
        sync: bool,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the file anew, or before the first commit if there is no room now.

        Args:
            files: file operations.
            path: the file.
            offsets: what was read of it.
            sync: make each commit durable.
            prepare: called before the file is written.
        """
        self._files = files
        self._path = path
        self._sync = sync
        self._prepare = prepare
        self._lock = threading.Lock()
        self._offsets = offsets
        self._closed = False
        self._entries = 0
        self._mark = NO_MARK
        self._file: File | None = None
        try:
            self._file = self._rewrite()
        except OSError as error:
            if not is_full(error):
                raise

    @property
    def is_written(self) -> bool:
        """Whether the file is of this version."""
        return self._file is not None

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
            if self._closed:
                # Asked under the lock: the file may be another process's by now.
                raise StoreClosed("the store is closed")
            try:
                file = self._file
                full = self._entries >= max(_COMPACT_ENTRIES, 2 * len(self._offsets))
                if file is None or full:
                    file = self._file = self._rewrite()
                position = HEAD_BYTES + self._entries * _ENTRY.size
                file.pwrite(entry, position)
                if self._sync:
                    file.sync()
            except OSError as error:
                raise StoreWriteFailed(
                    f"{self._path.name}: could not commit offset {offset} of topic "
                    f"{topic}: {error}"
                ) from error
            self._entries += 1
            self._offsets[key] = offset
            if self._sync:
                self._mark = move_mark(file, self._mark, position + _ENTRY.size)

    def forget_topic(self, topic: int) -> None:
        """Forget the offsets of a deleted topic; the file follows when rewritten."""
        with self._lock:
            for key in [k for k in self._offsets if k.topic == topic]:
                del self._offsets[key]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _rewrite(self) -> File:
        self._prepare()
        entries = [encode_entry(k, offset) for k, offset in self._offsets.items()]
        beside = write_beside(self._files, self._path, MAGIC, b"".join(entries))
        self._files.replace(beside.path, self._path)
        self._files.sync_dir(self._path.parent)
        self._entries, self._mark = len(entries), beside.mark
        return beside.file
