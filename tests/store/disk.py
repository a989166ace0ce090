"""A disk in memory that can lose power, and fail any operation.

Every change is kept twice: as the running process sees it, and as what the disk is sure
to have. `File.sync` and `sync_dir` move changes from the first to the second. The loss
of power keeps an arbitrary part of what is in between: whole, torn into sectors, in any
order, or not at all.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lance_spark.store.files import DirectoryEntry

SECTOR = 512


@dataclass
class Inode:
    """A file: what is seen, what is durable, and the writes in between."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)

    def write(self, position: int, data: bytes) -> None:
        apply_write(self.seen, position, data)
        self.pending.append((position, data))

    def truncate(self, size: int) -> None:
        apply_truncate(self.seen, size)
        self.pending.append(size)

    def sync(self) -> None:
        self.durable = bytes(self.seen)
        self.pending.clear()


def apply_write(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def apply_truncate(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))
    del content[size:]


@dataclass(frozen=True)
class NameChange:
    """Names that appear (inode number) or vanish (None) in one atomic step."""

    names: tuple[tuple[str, int | None], ...]

    def concerns(self, directory: str) -> bool:
        return any(os.path.dirname(name) == directory for name, _ in self.names)


DIRECTORY = 0


class Disk:
    """The disk. Names are absolute paths; inode 0 stands for any directory."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.seen: dict[str, int] = {"/": DIRECTORY}
        self.durable: dict[str, int] = {"/": DIRECTORY}
        self.pending: list[NameChange] = []
        self.next_inode = 1

    def clone(self) -> Disk:
        other = Disk()
        other.inodes = {
            number: Inode(bytearray(inode.seen), inode.durable, [*inode.pending])
            for number, inode in self.inodes.items()
        }
        other.seen, other.durable = dict(self.seen), dict(self.durable)
        other.pending, other.next_inode = [*self.pending], self.next_inode
        return other

    def change(self, *names: tuple[str, int | None]) -> None:
        change = NameChange(names)
        apply_change(self.seen, change)
        self.pending.append(change)

    def sync_dir(self, directory: str) -> None:
        for change in [c for c in self.pending if c.concerns(directory)]:
            apply_change(self.durable, change)
            self.pending.remove(change)

    def image(self) -> tuple[object, ...]:
        """All that is on the disk, to tell one disk from another."""
        contents = {n: bytes(inode.seen) for n, inode in self.inodes.items()}
        return tuple(
            (name, contents.get(number)) for name, number in sorted(self.seen.items())
        )

    # What is left.

    def killed(self) -> Disk:
        """The process is gone, the machine is not: everything written is there.

        What was not synced is still not: a later loss of power can take it.
        """
        return self.clone()

    def without_power(self, how: str, rng: random.Random) -> Disk:
        """The machine is gone.

        Args:
            how: `drop` keeps nothing that was not synced, `keep` all of it but the
                very last write, torn; `reorder` any part of it.
            rng: decides what is kept.
        """
        names = dict(self.durable)
        for change in self.pending:
            if how == "keep" or (how == "reorder" and rng.random() < 0.5):
                apply_change(names, change)
        return self._left(names, lambda inode: surviving(inode, how, rng))

    def _left(self, names: dict[str, int], content: Callable[[Inode], bytes]) -> Disk:
        left = Disk()
        left.next_inode = self.next_inode
        for name, number in names.items():
            # A name in a directory that did not make it is gone with it.
            if name == "/" or all(p in names for p in parents(name)):
                left.seen[name] = number
                if number != DIRECTORY and number not in left.inodes:
                    data = content(self.inodes[number])
                    left.inodes[number] = Inode(bytearray(data), data)
        left.durable = dict(left.seen)
        return left


# Few names are asked about, and very often.
@cache
def parents(name: str) -> tuple[str, ...]:
    return tuple(str(p) for p in Path(name).parents)


def apply_change(names: dict[str, int], change: NameChange) -> None:
    for name, number in change.names:
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def surviving(inode: Inode, how: str, rng: random.Random) -> bytes:
    content = bytearray(inode.durable)
    if how == "drop":
        return bytes(content)
    for number, write in enumerate(inode.pending):
        last = number == len(inode.pending) - 1
        if isinstance(write, int):
            if how == "keep" or rng.random() < 0.5:
                apply_truncate(content, write)
        elif how == "keep":
            position, data = write
            whole = len(data) if not last else rng.randrange(len(data) + 1)
            apply_write(content, position, data[:whole])
        else:
            position, data = write
            for start in range(0, len(data), SECTOR):
                if rng.random() < 0.5:
                    sector = data[start : start + SECTOR]
                    apply_write(content, position + start, sector)
    return bytes(content)


class DiskFile:
    """An open file of a `Disk`."""

    def __init__(self, files: DiskFiles, number: int, name: str) -> None:
        self._files = files
        self._number = number
        self._name = name
        self._locked = False

    @property
    def _inode(self) -> Inode:
        return self._files.disk.inodes[self._number]

    def pread(self, length: int, position: int) -> bytes:
        self._files.reading("pread", self._name)
        return bytes(self._inode.seen[position : position + length])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: object, position: int) -> None:
        content = bytes(memoryview(data))  # type: ignore[arg-type]
        try:
            self._files.changing("pwrite", self._name)
        except OSError:
            # A disk that is full takes a part.
            taken = int(len(content) * self._files.torn_share)
            self._inode.write(position, content[:taken])
            raise
        self._files.take_room(position + len(content) - self.size(), self._name)
        self._inode.write(position, content)

    def truncate(self, size: int) -> None:
        self._files.changing("truncate", self._name)
        self._inode.truncate(size)

    def sync(self) -> None:
        self._files.changing("sync", self._name)
        self._inode.sync()

    def size(self) -> int:
        return len(self._inode.seen)

    def fileno(self) -> int:
        raise AssertionError("a file in memory has no descriptor")

    def close(self) -> None:
        if self._locked:
            self._files.locks.discard(self._name)


class DiskFiles:
    """The store's file operations on a `Disk`.

    `before` is called with the name of each operation that changes something and the
    file concerned, `before_read` with the others; the operation raises what they raise.
    `torn_share` is how much a write that is refused has written all the same.
    With a `capacity` in bytes the disk can be full: no file grows past it, and none is
    made on a disk without room.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.capacity: int | None = None
        self.locks: set[str] = set()
        self.before: Callable[[str, str], None] = lambda operation, name: None
        self.before_read: Callable[[str, str], None] = lambda operation, name: None
        self.torn_share = 0.5

    def changing(self, operation: str, name: str) -> None:
        self.before(operation, name)

    @property
    def used(self) -> int:
        """Count the bytes of all files that have a name."""
        numbers = {n for n in self.disk.seen.values() if n != DIRECTORY}
        return sum(len(self.disk.inodes[n].seen) for n in numbers)

    def take_room(self, size: int, name: str) -> None:
        if self.capacity is not None and size > max(0, self.capacity - self.used):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def reading(self, operation: str, name: str) -> None:
        self.before_read(operation, name)

    def _number(self, path: Path) -> int:
        number = self.disk.seen.get(str(path))
        if number is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return number

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> DiskFile:
        name = str(path)
        if create:
            self.changing("create", name)
            self.take_room(1, name)
            self._number(path.parent)
            if name in self.disk.seen:
                raise FileExistsError(errno.EEXIST, "File exists", name)
            number = self.disk.next_inode
            self.disk.next_inode += 1
            self.disk.inodes[number] = Inode()
            self.disk.change((name, number))
            return DiskFile(self, number, name)
        self.reading("open", name)
        return DiskFile(self, self._number(path), name)

    def link(self, source: Path, target: Path) -> None:
        self.changing("link", str(target))
        if str(target) in self.disk.seen:
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        self.disk.change((str(target), self._number(source)))

    def replace(self, source: Path, target: Path) -> None:
        self.changing("replace", str(target))
        number = self._number(source)
        moved: list[tuple[str, int | None]] = [(str(source), None)]
        moved.append((str(target), number))
        if number == DIRECTORY:
            prefix = f"{source}/"
            for name, inside in list(self.disk.seen.items()):
                if name.startswith(prefix):
                    moved.append((name, None))
                    moved.append((f"{target}/{name[len(prefix) :]}", inside))
        self.disk.change(*moved)

    def unlink(self, path: Path) -> None:
        self._number(path)
        self.changing("unlink", str(path))
        self.disk.change((str(path), None))

    def exists(self, path: Path) -> bool:
        return str(path) in self.disk.seen

    def mkdir(self, path: Path) -> None:
        if str(path) not in self.disk.seen:
            self.changing("mkdir", str(path))
            self.take_room(1, str(path))
            self._number(path.parent)
            self.disk.change((str(path), DIRECTORY))

    def rmdir(self, path: Path) -> None:
        self._number(path)
        self.changing("rmdir", str(path))
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        self.disk.change((str(path), None))

    def list(self, path: Path) -> list[DirectoryEntry]:
        self.reading("list", str(path))
        entries = []
        prefix = f"{path}/"
        for name, number in self.disk.seen.items():
            if name.startswith(prefix) and "/" not in name[len(prefix) :]:
                size = 0 if number == DIRECTORY else len(self.disk.inodes[number].seen)
                entries.append(
                    DirectoryEntry(name[len(prefix) :], number == DIRECTORY, size)
                )
        return sorted(entries, key=lambda entry: entry.name)

    def sync_dir(self, path: Path) -> None:
        self.changing("sync_dir", str(path))
        self.disk.sync_dir(str(path))

    def lock(self, path: Path, *, write: bool = True) -> DiskFile:
        if str(path) not in self.disk.seen:
            self.open(path, create=True)
        assert str(path) not in self.locks, "the store is opened twice"
        self.locks.add(str(path))
        file = DiskFile(self, self._number(path), str(path))
        file._locked = True
        return file
