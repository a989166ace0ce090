"""The standard streams: made fit for use at the start, and let go of at the end.

A shell can close them (`>&-`), and Python then has None in their place. `print` to such
a standard error writes to standard output.
"""

from __future__ import annotations

import io
import os
import sys

from lance_spark.errors import LanceError

_STANDARD_ERROR = 2


def prepare_streams() -> None:
    """Make standard output write all it is given, and standard error be there.

    Raises:
        LanceError: there is no standard output.
    """
    _hold_descriptors()
    if sys.stderr is None:
        sys.stderr = _open_text(os.open(os.devnull, os.O_WRONLY), "utf-8")
    if sys.stdout is None:
        raise LanceError("standard output is closed: say >/dev/null if you want none")
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    # Typed as buffered, which it is not with `python -u` or PYTHONUNBUFFERED.
    binary: object = sys.stdout.buffer
    if isinstance(binary, io.RawIOBase):
        # A raw file may write less than it is given, and Python's text does not look.
        sys.stdout.flush()
        sys.stdout = _open_text(binary.fileno(), sys.stdout.encoding)
    # Data that a terminal's encoding can't show is no reason to fail.
    sys.stdout.reconfigure(errors="backslashreplace")


def settle_output() -> None:
    """Write what is still buffered, or drop it if that fails.

    Python would try it again when it exits, complain, and change the exit code.
    """
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def drop_output() -> None:
    """Let what is still buffered go nowhere when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _hold_descriptors() -> None:
    """Fill the places of closed streams.

    The next file or connection would get one of them, and what a library says to
    standard error would end up in it.
    """
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(nowhere)


def _open_text(descriptor: int, encoding: str) -> io.TextIOWrapper:
    """Open a stream that is flushed at each end of a line, and never closed."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, line_buffering=True)
