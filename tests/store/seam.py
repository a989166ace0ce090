"""The operating system's files with a hook before each change: to refuse, to hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lance_spark.model import Buffer
from lance_spark.store.files import File, OsFiles


class SeamFiles(OsFiles):
    """Calls `before` with the name of each operation and the file concerned.

    What it raises is what the operation raises; a write is torn then. Without `sync`
    the disk is spared, for tests that lose no power.
    """

    def __init__(self, *, sync: bool = True) -> None:
        self.is_synced = sync
        self.before: Callable[[str, str], None] = lambda operation, name: None

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        if create:
            self.before("create", str(path))
        file = super().open(path, create=create, write=write)
        return SeamFile(self, str(path), file) if write else file

    def link(self, source: Path, target: Path) -> None:
        self.before("link", str(target))
        super().link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        self.before("replace", str(target))
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self.before("unlink", str(path))
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self.before("mkdir", str(path))
        super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        self.before("rmdir", str(path))
        super().rmdir(path)

    def sync_dir(self, path: Path) -> None:
        self.before("sync_dir", str(path))
        if self.is_synced:
            super().sync_dir(path)


class SeamFile:
    """A file of `SeamFiles`, open for writing."""

    def __init__(self, files: SeamFiles, name: str, file: File) -> None:
        self._files = files
        self._name = name
        self._file = file
        self.pread = file.pread
        self.pread_into = file.pread_into
        self.size = file.size
        self.fileno = file.fileno
        self.close = file.close

    def pwrite(self, data: Buffer, position: int) -> None:
        try:
            self._files.before("pwrite", self._name)
        except OSError:
            view = memoryview(data).cast("B")
            self._file.pwrite(view[: len(view) // 2], position)
            raise
        self._file.pwrite(data, position)

    def truncate(self, size: int) -> None:
        self._files.before("truncate", self._name)
        self._file.truncate(size)

    def sync(self) -> None:
        self._files.before("sync", self._name)
        if self._files.is_synced:
            self._file.sync()
