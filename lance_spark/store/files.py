"""The store's only door to the disk: a small set of file operations.

Everything else in `store` calls these, so that tests can refuse, tear, lose or reorder
any operation. This is what each operation promises about durability:

- `File.pwrite` and `File.truncate` are visible to every reader at once and survive the
  death of the process; only `File.sync` makes them survive the loss of power.
- `create`, `link`, `replace`, `unlink`, `mkdir` and `rmdir` change a directory; only
  `sync_dir` of that directory makes the change survive the loss of power.

`OSError` passes through this module unchanged; its callers translate it.

Some things must not fail for want of descriptors or room. A commit that can't be
carried out has to be undone, which opens files: `Spare` keeps a few descriptors back
for that. Retention makes room on a full disk, but has to write down first what it
drops: `Reserve` keeps some room back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lance_spark.errors import StoreLocked
from lance_spark.model import Buffer

# Linux has the call that leaves time stamps alone; elsewhere the full one serves.
_datasync = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A name in a directory; `size` is 0 for directories."""

    name: str
    is_dir: bool
    size: int


class File(Protocol):
    """An open file. It is closed when the last reference to it goes."""

    def pread(self, length: int, position: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer; tell how many bytes there were, fewer only at the end."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data`; on an error any part of it may be written."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""

    def sync(self) -> None:
        """Make all that was written survive the loss of power."""

    def size(self) -> int:
        """Tell the file's length."""

    def fileno(self) -> int:
        """Give the descriptor, for sendfile."""

    def close(self) -> None:
        """Close now; harmless when repeated."""


class Files(Protocol):
    """File operations of the store."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        """Open a file; with `create` it must not exist yet."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename, over an existing target if there is one."""

    def unlink(self, path: Path) -> None:
        """Remove a file."""

    def exists(self, path: Path) -> bool:
        """Tell whether there is a file or directory of that name."""

    def mkdir(self, path: Path) -> None:
        """Make a directory if it is not there, in one that is."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""

    def list(self, path: Path) -> list[DirectoryEntry]:
        """List a directory, sorted by name; empty if it is not there."""

    def sync_dir(self, path: Path) -> None:
        """Make the directory's names survive the loss of power."""

    def lock(self, path: Path, *, write: bool = True) -> File:
        """Take the lock at `path`, held until the file is closed.

        Without `write` others may have it too, as long as none of them writes; the
        file has to be there then, and is not changed.

        Raises:
            StoreLocked: another process has it.
        """


class OsFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) in (0, length):
            return data
        parts = [data]  # One call reads at most 2 GiB, and may be interrupted.
        remaining, position = length - len(data), position + len(data)
        while remaining and (data := os.pread(self._descriptor, remaining, position)):
            parts.append(data)
            remaining, position = remaining - len(data), position + len(data)
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        filled = 0
        while filled < len(buffer):
            size = os.preadv(self._descriptor, [buffer[filled:]], position + filled)
            if not size:
                break
            filled += size
        return filled

    def pwrite(self, data: Buffer, position: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._descriptor, view, position)
            view, position = view[written:], position + written

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        _datasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        # The number is forgotten first: closing it twice could hit a file that
        # another thread has opened meanwhile.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class OsFiles:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(os.open(path, flags, 0o644))

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def mkdir(self, path: Path) -> None:
        if not os.path.isdir(path):
            os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def list(self, path: Path) -> list[DirectoryEntry]:
        try:
            with os.scandir(path) as entries:
                found = [self._entry(e) for e in entries]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda e: e.name)

    @staticmethod
    def _entry(entry: os.DirEntry[str]) -> DirectoryEntry:
        if entry.is_dir():
            return DirectoryEntry(entry.name, True, 0)
        return DirectoryEntry(entry.name, False, entry.stat().st_size)

    def sync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path, *, write: bool = True) -> File:
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        kind = fcntl.LOCK_EX if write else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StoreLocked(
                f"{path.parent}: already in use by process {holder or 'unknown'}; "
                "stop it first, or choose another data directory"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        file = OsFile(descriptor)
        if write:
            owner = f"{os.getpid()}\n".encode()
            # Over the old content, which needs no room. It is only shown to a person.
            with suppress(OSError):
                file.pwrite(owner, 0)
                file.truncate(len(owner))
        return file


def is_full(error: OSError) -> bool:
    """Tell whether nothing was written for want of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def read_file(files: Files, path: Path) -> bytes | None:
    """Read a whole small file; None if it is not there."""
    try:
        file = files.open(path, write=False)
    except FileNotFoundError:
        return None
    with closing(file):
        return file.pread(file.size(), 0)


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Replace a small file's content so that a crash leaves the old or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    remove_if_there(files, temporary)
    with closing(files.open(temporary, create=True)) as file:
        file.pwrite(data, 0)
        file.sync()
    files.replace(temporary, path)
    files.sync_dir(path.parent)


def list_ids(files: Files, directory: Path) -> list[int]:
    """List the topics or stages in a directory: those of its names that are numbers."""
    entries = files.list(directory)
    return sorted(int(e.name) for e in entries if e.is_dir and e.name.isdecimal())


def keep_copy(files: Files, path: Path) -> None:
    """Keep a damaged file beside the one that replaces it, for a person to look at.

    The file itself stays in its place, so that a crash leaves no gap.
    """
    kept = path.with_name(path.name + ".damaged")
    data = read_file(files, path) or b""
    remove_if_there(files, kept)
    with closing(files.open(kept, create=True)) as file:
        file.pwrite(data, 0)


def make_directories(files: Files, path: Path) -> None:
    """Make a directory and those above it that are not there, durably."""
    if not files.exists(path):
        make_directories(files, path.parent)
        files.mkdir(path)
        files.sync_dir(path.parent)


def remove_if_there(files: Files, path: Path) -> None:
    """Remove a file that may be gone already."""
    with suppress(FileNotFoundError):
        files.unlink(path)


def remove_tree(files: Files, path: Path) -> None:
    """Remove a directory and the files in it."""
    for entry in files.list(path):
        if entry.is_dir:
            remove_tree(files, path / entry.name)
        else:
            remove_if_there(files, path / entry.name)
    with suppress(FileNotFoundError):
        files.rmdir(path)


LOCK = "lock"
RESERVE = "reserve"
# Enough for metadata, and for the rebuilt index of a segment of the default size.
RESERVE_BYTES = 64 * 1024

# To set a log back takes three at a time: data, index and directory.
SPARE_FILES = 4
_PATIENCE_S = 2.0
_PAUSE_S = 0.01


def is_out_of_files(error: OSError) -> bool:
    """Tell whether nothing was done because no descriptor was free."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class Spare:
    """A few open files that are kept only for their descriptors."""

    def __init__(
        self, files: Files, path: Path, *, patience_s: float = _PATIENCE_S
    ) -> None:
        """Keep nothing yet.

        Args:
            files: file operations.
            path: a file that is there as long as the store is open.
            patience_s: how long `insist` tries.
        """
        self._files = files
        self._path = path
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._kept: list[File] = []

    def keep(self) -> None:
        """Have all of them, before something is begun that may need them.

        Raises:
            OSError: there are not enough.
        """
        with self._lock:
            while len(self._kept) < SPARE_FILES:
                self._kept.append(self._files.open(self._path, write=False))

    def give_up(self) -> bool:
        """Close them; tell whether there were any."""
        with self._lock:
            kept, self._kept = self._kept, []
        for file in kept:
            file.close()
        return bool(kept)

    def insist(self, do: Callable[[], None]) -> None:
        """Do what can be repeated, again for as long as no descriptor is free for it.

        Raises:
            OSError: it failed for another reason, or there was none all the time.
        """
        end_s = time.monotonic() + self._patience_s
        while True:
            try:
                return do()
            except OSError as error:
                if not is_out_of_files(error) or time.monotonic() >= end_s:
                    raise
            # Another thread may be quicker to take them: then it is waited for.
            if not self.give_up():
                time.sleep(_PAUSE_S)


class Reserve:
    """A file that takes some room, until a full disk has none for what frees it."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path

    def keep(self) -> None:
        """Make the file unless it is there; a disk without room does without it."""
        if self._files.exists(self._path):
            return
        try:
            with closing(self._files.open(self._path, create=True)) as file:
                # Some file systems store what can be compressed in no room at all.
                file.pwrite(random.Random(0).randbytes(RESERVE_BYTES), 0)
        except OSError:
            with suppress(OSError):
                remove_if_there(self._files, self._path)

    def spend(self, do: Callable[[], None]) -> None:
        """Do what can be repeated, and once more with the reserve's room.

        Raises:
            OSError: it failed all the same, or for another reason.
        """
        try:
            return do()
        except OSError as error:
            if not (is_full(error) and self._files.exists(self._path)):
                raise
        self.give_up()
        return do()

    def give_up(self) -> None:
        """Let others have its room."""
        remove_if_there(self._files, self._path)
