"""The console command's way in and its only way out: every end becomes an exit code.

    0    done
    1    it could not be done, or what was checked is damaged; one line says why
    2    wrong usage, or click or rich is not installed
    130  interrupted by Ctrl-C
    141  the program that read the output has ended

Nothing here needs click before it was looked for. The standard streams are made fit for
use at the start, and let go of at the end: a shell can close them (`>&-`), Python then
has None in their place, and `print` to such a standard error writes to standard output.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence

from lance_spark.errors import LanceError

FAILED = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: those of the command line if not given.
    """
    # Without a handler, Python prints warnings of the store, which commands show
    # themselves.
    logger = logging.getLogger("lance_spark")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    try:
        prepare_streams()
    except LanceError as error:
        return _fail(str(error), FAILED)
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt as interrupt:
        # The terminal shows ^C on the line that was begun. A command may have said
        # how far it came.
        print("", *interrupt.args, sep="\n", file=sys.stderr)
        settle_output()
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return PIPE_CLOSED
    except (LanceError, OSError) as error:
        settle_output()
        return _fail(str(error), FAILED)


def _run(arguments: list[str]) -> int:
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        hint = f"the command line needs {error.name}: pip install 'lance-spark[cli]'"
        return _fail(hint, USAGE)
    from lance_spark.cli.group import run_group

    code = run_group(arguments)
    sys.stdout.flush()  # A closed pipe should be met here, not while Python exits.
    return code


def _fail(text: str, code: int) -> int:
    """Say in one line what is wrong."""
    print("lance-spark:", " ".join(text.split()), file=sys.stderr)
    return code


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
