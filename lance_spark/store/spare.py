"""Descriptors that are kept back for what must not fail for want of one.

A commit that can't be carried out has to be undone, and that opens files. Where others
have taken all descriptors, those that are kept here are given up for it.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lance_spark.store.files import File, Files

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
