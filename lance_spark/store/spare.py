"""Descriptors and room on the disk, kept back for what must not fail for want of them.

A commit that can't be carried out has to be undone, and that opens files. Where others
have taken all descriptors, those that are kept here are given up for it. Retention
makes room on a full disk, but has to write down first what it drops.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lance_spark.store.files import File, Files, is_full, remove_if_there

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
    """A few open files that nobody reads."""

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
            file = self._files.open(self._path, create=True)
            try:
                # Some file systems store what can be compressed in no room at all.
                file.pwrite(random.Random(0).randbytes(RESERVE_BYTES), 0)
            finally:
                file.close()
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
