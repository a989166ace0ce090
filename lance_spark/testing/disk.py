"""A disk that can be full: the store's file operations, refused on demand."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from lance_spark.model import Buffer
from lance_spark.store.files import File, OsFiles


class ScratchDisk(OsFiles):
    """The operating system's files, which take nothing more while the disk is full.

    As on most file systems, what is there already can be written over, cut, renamed
    and removed even then.
    """

    def __init__(self) -> None:
        self._is_full = threading.Event()

    @property
    def is_full(self) -> bool:
        """Whether writes fail."""
        return self._is_full.is_set()

    def fill(self) -> None:
        """Refuse what needs room, from now on."""
        self._is_full.set()

    def free(self) -> None:
        """Take everything again."""
        self._is_full.clear()

    def check_room(self, name: Path) -> None:
        """Refuse as the system does.

        Raises:
            OSError: the disk is full.
        """
        if self.is_full:
            code = errno.ENOSPC
            raise OSError(code, os.strerror(code), str(name))

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        """Open a file whose writes need room."""
        if create:
            self.check_room(path)
        file = super().open(path, create=create, write=write)
        return ScratchFile(self, path, file) if write else file

    def mkdir(self, path: Path) -> None:
        """Make a directory, which needs room if it is not there."""
        if not self.exists(path):
            self.check_room(path)
        super().mkdir(path)


class ScratchFile:
    """A file of a `ScratchDisk`, open for writing."""

    def __init__(self, disk: ScratchDisk, path: Path, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self.pread = file.pread
        self.pread_into = file.pread_into
        self.sync = file.sync
        self.size = file.size
        self.fileno = file.fileno
        self.close = file.close

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data`, unless the file would have to grow on a full disk."""
        if position + memoryview(data).nbytes > self._file.size():
            self._disk.check_room(self._path)
        self._file.pwrite(data, position)

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it where there is room."""
        if size > self._file.size():
            self._disk.check_room(self._path)
        self._file.truncate(size)
