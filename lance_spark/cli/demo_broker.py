"""The demo's broker: a process of its own, there to be killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from lance_spark.errors import LanceError

_COMMAND = (sys.executable, "-m", "lance_spark", "broker")
_READY = re.compile(r"lance-spark broker listening on (\S+), data in ")
_WARNING = "lance-spark: warning: "
_START_S = 30.0
_STOP_S = 30.0


class BrokerProcess:
    """Runs `lance-spark broker`; started again, it is at the same address.

    Args:
        data_dir: its data directory.

    It is a context manager, and no process is left when that ends.
    """

    def __init__(self, data_dir: Path) -> None:
        self.address = "127.0.0.1:0"
        # What it said before it was ready: what it found after a crash.
        self.notes: list[str] = []
        self.start_s = 0.0
        self._data_dir = data_dir
        self._child: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._child is None:
            raise LanceError("the demo's broker is not running")
        return self._child

    def start(self) -> None:
        """Start the process and wait until clients can connect.

        Raises:
            LanceError: it ended instead.
        """
        began_s = time.perf_counter()
        arguments = ["--listen", self.address, "--data-dir", str(self._data_dir)]
        with held_signals():
            self._child = subprocess.Popen(
                [*_COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # Ctrl-C is for us; we end it then.
            )
        # A process that hangs is killed, which ends the wait for its words. The timer
        # must not outlive us if Ctrl-C comes while it starts.
        watch = threading.Timer(_START_S, self._child.kill)
        watch.daemon = True
        try:
            watch.start()
            self._await_ready(self._child)
        finally:
            watch.cancel()
        self.start_s = time.perf_counter() - began_s

    def _await_ready(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        self.notes = []
        for line in child.stdout:
            ready = _READY.match(line)
            if ready:
                self.address = ready[1]
                return
            self.notes.append(line.strip().removeprefix(_WARNING))
        raise LanceError(f"the demo's broker did not start: {' '.join(self.notes)}")

    def kill(self) -> None:
        """End it by a signal that it can't notice."""
        child = self._running
        child.kill()
        child.wait()
        self._release()

    def stop(self) -> str:
        """Ask it to stop, and return the last words.

        Raises:
            LanceError: it did not stop cleanly.
        """
        child = self._running
        child.terminate()
        try:
            said, _ = child.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise LanceError("the demo's broker did not stop when asked to") from None
        self._release()
        if child.returncode != 0:
            raise LanceError(
                f"the demo's broker ended with {child.returncode}: {said.strip()}"
            )
        return said.strip()

    def _release(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.stdout is not None:
            child.stdout.close()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self.kill()


@contextmanager
def held_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait, because between the start of a process and its
    number nobody could end it.
    """
    # To block them is not enough: they would be taken by a thread of a library.
    waiting: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    usual = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])
