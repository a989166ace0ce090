"""Faults that tests can have a broker and its network make.

Each call begins one and gives a `Fault`, which ends it: by `end`, at the end of a
`with` block, or with the broker, whichever comes first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lance_spark.errors import OptionError
from lance_spark.model import Buffer
from lance_spark.store.files import File, OsFile, OsFiles

if TYPE_CHECKING:
    from lance_spark.testing.process import BrokerProcess
    from lance_spark.testing.relay import Relay


class Fault(AbstractContextManager["Fault"]):
    """Something that is broken until `end`; a context manager, too.

    Args:
        undo: mends it.
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo

    @property
    def is_over(self) -> bool:
        """Whether it was ended."""
        return self._undo is None

    def end(self) -> None:
        """Mend it; may be called again."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __exit__(self, *_: object) -> None:
        self.end()


class Faults:
    """What can go wrong between a job and its broker, on demand.

    Args:
        relay: stands between clients and the broker, if there is one.
        disk: the broker's disk, if it can be filled.
        process: the broker's process, if it has one of its own.
    """

    def __init__(
        self,
        *,
        relay: Relay | None = None,
        disk: ScratchDisk | None = None,
        process: BrokerProcess | None = None,
    ) -> None:
        self._relay = relay
        self._disk = disk
        self._process = process
        self._begun = ExitStack()

    # The network.

    def drop_connections(self) -> None:
        """End all connections that clients have now; they may connect again."""
        self._find_relay("drop_connections").drop()

    def delay(self, seconds: float) -> Fault:
        """Hold up all that is sent, in both directions: a round trip takes twice that.

        Raises:
            OptionError: the time is below 0, or there is no relay.
        """
        network = self._find_relay("delay").network
        if not seconds >= 0:  # Nor anything that is no number.
            raise OptionError(f"a delay of {seconds} s: give 0 or more")
        return self._begin(network.add_delay(seconds))

    def cut_after(self, size: int, *, times: int = 1, towards: str = "client") -> Fault:
        """End connections in the middle of what they carry.

        Bytes are counted over all connections from now on. The one that carries the
        last of them ends right behind it, and the count begins anew for the next.

        Args:
            size: how many bytes are let through.
            times: how many connections end.
            towards: `client` counts what the broker sends, so that acknowledgements
                are lost; `broker` what clients send.

        Raises:
            OptionError: an argument can't be used, or there is no relay.
        """
        network = self._find_relay("cut_after").network
        if size < 0 or times < 1 or towards not in ("broker", "client"):
            raise OptionError(
                f"cut_after({size}, times={times}, towards={towards!r}): give a size "
                "of 0 or more, 1 time or more, and broker or client"
            )
        return self._begin(network.add_cut(towards, size, times))

    # The disk.

    def fill_disk(self) -> Fault:
        """Have every write of the broker fail that needs room on its disk.

        Raises:
            OptionError: the broker has the machine's disk and no other.
        """
        disk = _need(
            self._disk,
            "fill_disk: a broker in a process of its own has the disk of the machine; "
            "use run_broker or the fixture lance_broker",
        )
        disk.fill()
        return self._begin(disk.free)

    def free_disk(self) -> None:
        """Make room on the disk again."""
        if self._disk is not None:
            self._disk.free()

    # The process.

    def kill(self) -> Fault:
        """Kill the broker as `kill -9` does; the end of the fault starts it again.

        Raises:
            OptionError: it has no process of its own.
        """
        process = _need(
            self._process,
            "kill: this broker runs in the process of the test; use "
            "run_broker_process or the fixture lance_broker_process",
        )
        process.kill()

        def restart() -> None:
            if not process.is_running:
                process.start()

        return self._begin(restart)

    def kill_and_restart(self) -> None:
        """Kill the broker as `kill -9` does, and start it again at once.

        Raises:
            OptionError: it has no process of its own.
            LanceError: it does not start again.
        """
        self.kill().end()

    def clear(self) -> None:
        """End all faults, the last one first."""
        self._begun.close()

    def _find_relay(self, what: str) -> Relay:
        return _need(
            self._relay,
            f"{what}: clients of this broker are connected without a relay; leave out "
            "relay=False",
        )

    def _begin(self, undo: Callable[[], None]) -> Fault:
        return self._begun.enter_context(Fault(undo))


_Part = TypeVar("_Part")


def _need(part: _Part | None, text: str) -> _Part:
    if part is None:
        raise OptionError(text)
    return part


class ScratchDisk(OsFiles):
    """The operating system's files, which take nothing more while the disk is full.

    As on most file systems, what is there already can be written over, cut, renamed
    and removed even then.
    """

    is_full = False

    def fill(self) -> None:
        """Refuse what needs room, from now on."""
        self.is_full = True

    def free(self) -> None:
        """Take everything again."""
        self.is_full = False

    def check_room(self, name: Path) -> None:
        """Refuse as the system does.

        Raises:
            OSError: the disk is full.
        """
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        """Open a file whose writes need room."""
        if create:
            self.check_room(path)
        file = super().open(path, create=create, write=write)
        return ScratchFile(os.dup(file.fileno()), self, path) if write else file

    def mkdir(self, path: Path) -> None:
        """Make a directory, which needs room if it is not there."""
        if not self.exists(path):
            self.check_room(path)
        super().mkdir(path)


class ScratchFile(OsFile):
    """A file of a `ScratchDisk`, open for writing."""

    def __init__(self, descriptor: int, disk: ScratchDisk, path: Path) -> None:
        super().__init__(descriptor)
        self._disk = disk
        self._path = path

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data`, unless the file would have to grow on a full disk."""
        if position + memoryview(data).nbytes > self.size():
            self._disk.check_room(self._path)
        super().pwrite(data, position)

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it where there is room."""
        if size > self.size():
            self._disk.check_room(self._path)
        super().truncate(size)
