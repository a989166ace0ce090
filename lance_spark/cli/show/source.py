"""A file to be shown, and which part of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lance_spark.cli.text import Preview, count
from lance_spark.errors import LanceError

# Files that are read as a whole, such as the journal, are a few MiB long. Anything
# much larger is something else.
WHOLE_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Selection:
    """Which items of a file are shown, and how.

    Args:
        skip: how many are passed over first.
        limit: how many are shown then.
        preview: writes the values.
    """

    skip: int
    limit: int
    preview: Preview

    @property
    def end(self) -> int:
        """Number of the first item that is not shown any more."""
        return self.skip + self.limit


class Source:
    """An open file of which parts can be read; made by `open_source`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        parts = []
        while length and (data := os.pread(self._descriptor, length, position)):
            parts.append(data)
            position, length = position + len(data), length - len(data)
        return b"".join(parts)

    def read_whole(self) -> bytes:
        """Read the file, which must be a small one."""
        if self.size > WHOLE_BYTES_MAX:
            raise self.error(f"{count(self.size, 'byte')} are too many for such a file")
        return self.read(0, self.size)

    def error(self, text: str) -> LanceError:
        """Make the error that ends the showing of this file."""
        return LanceError(f"{self.path}: {text}")


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a file for reading.

    Raises:
        LanceError: it can't be opened or read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise LanceError(f"{path}: {error.strerror}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise LanceError(f"{path}: a directory; `lance-spark check` reads stores")
        if not stat.S_ISREG(mode):
            raise LanceError(f"{path}: not a regular file")
        yield Source(path, descriptor)
    finally:
        os.close(descriptor)


def print_rest(selection: Selection, noun: str, *, more: bool) -> None:
    """Tell how to see what was not shown, if anything was not."""
    if more:
        print(f"… more {noun} follow: --skip {selection.end}")
