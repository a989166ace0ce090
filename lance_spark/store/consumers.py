"""Committed positions of consumers, durable: one per consumer and log.

LWP numbers its consumers and commits byte offsets. Other protocols name groups and
commit record numbers. A head with two marks (see `entrylog`) and entries, the last one
for a pair counts:

     0         8       12      16         24
    +---------+-------+-------+----------+------------------------------+
    |consumer | topic | crc32c| position | a group's name, to 8 n bytes |
    +---------+-------+-------+----------+------------------------------+

The entry of a group has the top bit of the topic set, the length of its name in place
of the consumer, and the name behind it. The checksum is over everything else. A file
without groups is of version 2, which releases before 0.8 read; with the first group it
becomes one of version 3.

An entry that is not whole is passed over. The last one was not answered for if it is
behind the mark; anything else is damage of a single entry.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from lance_spark.checksum import crc32c
from lance_spark.errors import StoreClosed, StoreWriteFailed
from lance_spark.store.entrylog import (
    NO_MARK,
    VERSION,
    decode_head,
    move_mark,
    write_beside,
)
from lance_spark.store.files import File, Files, is_full

MAGIC = b"LSCONSU0"
# The first version that can hold groups.
_VERSION_GROUPS = 3
_ENTRY = struct.Struct("<QIIQ")
# Rewritten when it has this many entries and most of them are out of date.
_COMPACT_ENTRIES = 4096
# No topic has an id with this bit: see `document.FIRST_STAGE_ID`.
_IS_GROUP = 1 << 31
# Entries of groups end at multiples of this.
_STEP = 8
GROUP_BYTES_MAX = 255


class ConsumerKey(NamedTuple):
    """A consumer's place in a topic, which is a byte offset."""

    consumer: int
    topic: int


class GroupKey(NamedTuple):
    """A group's place in a topic, which is a record number."""

    group: str
    topic: int


Key = ConsumerKey | GroupKey


def _make_key(consumer: int | str, topic: int) -> Key:
    if isinstance(consumer, str):
        return GroupKey(consumer, topic)
    return ConsumerKey(consumer, topic)


class ConsumersContent(NamedTuple):
    """The content of a file of offsets.

    Args:
        offsets: what can be read.
        entries: how many entries there are.
        damaged: ranges of entries that were answered for and can't be read.
        torn: where an entry starts that is not whole and was not answered for.
        faults: what is wrong with the head; the entries can be relied on.
        lost: why nothing of the file can be read.
        records: the same as `offsets` for groups, in record numbers.
    """

    offsets: dict[ConsumerKey, int]
    entries: int = 0
    damaged: tuple[tuple[int, int], ...] = ()
    torn: int | None = None
    faults: tuple[str, ...] = ()
    lost: str | None = None
    records: dict[GroupKey, int] = {}  # noqa: RUF012


def encode_entry(key: Key, position: int) -> bytes:
    """Encode one entry."""
    first, topic = key
    name = b""
    if isinstance(first, str):
        # JSON may have half a surrogate pair, and a name is whatever the client says.
        name = first.encode("utf-8", "surrogatepass")
        first, topic = len(name), topic | _IS_GROUP
    name += bytes(-len(name) % _STEP)
    crc = crc32c(struct.pack("<QIQ", first, topic, position) + name)
    return _ENTRY.pack(first, topic, crc, position) + name


def _decode_entry(data: bytes, at: int) -> tuple[Key, int, int] | None:
    """Read the entry at a place, and how long it is; None if it is not whole."""
    first, topic, _, position = _ENTRY.unpack_from(data, at)
    key: Key = ConsumerKey(first, topic)
    if topic & _IS_GROUP:
        name = data[at + _ENTRY.size : at + _ENTRY.size + min(first, GROUP_BYTES_MAX)]
        try:
            text = name.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return None
        key = GroupKey(text, topic ^ _IS_GROUP)
    # The same bytes again only if length, padding and checksum are right, too.
    entry = encode_entry(key, position)
    return (key, position, len(entry)) if data.startswith(entry, at) else None


def parse_consumers(data: bytes) -> ConsumersContent:
    """Find the positions in a file.

    Raises:
        StoreError: it was written by another version, and is not to be touched.
    """
    head = decode_head(data, MAGIC, "the offsets have", _VERSION_GROUPS)
    if head is None:
        return ConsumersContent(
            {}, lost=f"{len(data)} bytes are no file of consumer offsets"
        )
    found: dict[Key, int] = {}
    bad: list[tuple[int, int]] = []
    at, entries = head.start, 0
    # Where entries have several lengths, the next one is looked for behind a bad one.
    step = _STEP if head.version >= _VERSION_GROUPS else _ENTRY.size
    while len(data) - at >= _ENTRY.size:
        entry = _decode_entry(data, at)
        if entry is not None:
            key, position, size = entry
            found[key] = position
            entries += 1
            at += size
        elif step == _STEP and bad and bad[-1][1] == at:
            at += step
            bad[-1] = (bad[-1][0], at)
        else:
            bad.append((at, at + step))
            entries += 1
            at += step
    if head.faults and not found and head.version == 1:
        return ConsumersContent({}, lost="not a file of consumer offsets")
    mark, torn = head.mark.end, at if at < len(data) else None
    if at < mark:
        is_same = step == _STEP and bad and bad[-1][1] == at
        bad.append((bad.pop()[0] if is_same else at, mark))
        torn = None
    elif head.version > 1 and bad and bad[-1][1] == at > mark:
        # One entry is synced before the next is written: only the last can be torn.
        start, _ = bad.pop()
        if start < mark:
            bad.append((start, mark))
        torn = max(start, mark)
    return ConsumersContent(
        {k: at for k, at in found.items() if isinstance(k, ConsumerKey)},
        entries,
        tuple(bad),
        torn,
        head.faults,
        records={k: at for k, at in found.items() if isinstance(k, GroupKey)},
    )


class Consumers:
    """The committed offsets of a store."""

    def __init__(
        self,
        files: Files,
        path: Path,
        positions: Mapping[Key, int],
        *,
        sync: bool,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the file anew, or before the first commit if there is no room now.

        Args:
            files: file operations.
            path: the file.
            positions: what was read of it.
            sync: make each commit durable.
            prepare: called before the file is written.
        """
        self._files = files
        self._path = path
        self._sync = sync
        self._prepare = prepare
        self._lock = threading.Lock()
        self._positions = dict(positions)
        self._closed = False
        self._entries = self._end = 0
        self._has_groups = False
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

    def committed(self, consumer: int | str, topic: int) -> int | None:
        """Give a committed position."""
        with self._lock:
            return self._positions.get(_make_key(consumer, topic))

    def __len__(self) -> int:
        return len(self._positions)

    def all(self) -> dict[ConsumerKey, int]:
        """Copy all committed offsets; those of groups are not among them."""
        with self._lock:
            found = self._positions.items()
            return {key: at for key, at in found if isinstance(key, ConsumerKey)}

    def commit(self, consumer: int | str, topic: int, position: int) -> None:
        """Set the position of a consumer, or of a group by its name, durably.

        Without `sync` it is only written.

        Raises:
            StoreWriteFailed: the disk refused; the old position may still count.
        """
        key = _make_key(consumer, topic)
        entry = encode_entry(key, position)
        with self._lock:
            if self._closed:
                # Asked under the lock: the file may be another process's by now.
                raise StoreClosed("the store is closed")
            try:
                file = self._file
                full = self._entries >= max(_COMPACT_ENTRIES, 2 * len(self._positions))
                is_first = isinstance(key, GroupKey) and not self._has_groups
                if file is None or full or is_first:
                    file = self._file = self._rewrite(has_groups=is_first)
                file.pwrite(entry, self._end)
                if self._sync:
                    file.sync()
            except OSError as error:
                raise StoreWriteFailed(
                    f"{self._path.name}: could not commit offset {position} of topic "
                    f"{topic}: {error}"
                ) from error
            self._entries += 1
            self._end += len(entry)
            self._positions[key] = position
            if self._sync:
                self._mark = move_mark(file, self._mark, self._end)

    def forget_topic(self, topic: int) -> None:
        """Forget the offsets of a deleted topic; the file follows when rewritten."""
        with self._lock:
            for key in [k for k in self._positions if k.topic == topic]:
                del self._positions[key]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _rewrite(self, *, has_groups: bool = False) -> File:
        self._prepare()
        has_groups |= any(isinstance(key, GroupKey) for key in self._positions)
        body = b"".join(encode_entry(key, at) for key, at in self._positions.items())
        version = _VERSION_GROUPS if has_groups else VERSION
        beside = write_beside(self._files, self._path, MAGIC, body, version=version)
        self._files.replace(beside.path, self._path)
        self._files.sync_dir(self._path.parent)
        mark = self._mark = beside.mark
        self._entries, self._end = len(self._positions), mark.end
        self._has_groups = has_groups
        return beside.file
