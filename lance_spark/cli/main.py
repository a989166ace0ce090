"""The console command's way in and its only way out: every end becomes an exit code.

    0    done
    1    it could not be done, or what was checked is damaged; one line says why
    2    wrong usage, or click is not installed
    130  interrupted by Ctrl-C
    141  whoever read the output has gone

Nothing here needs click before it was looked for.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from lance_spark.cli.stream import drop_output, prepare_streams, settle_output
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
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        hint = "the command line needs click: pip install 'lance-spark[cli]'"
        return _fail(hint, USAGE)
    from lance_spark.cli.group import run_group

    code = run_group(arguments)
    sys.stdout.flush()  # A closed pipe should be met here, not while Python exits.
    return code


def _fail(text: str, code: int) -> int:
    """Say in one line what is wrong."""
    print("lance-spark:", " ".join(text.split()), file=sys.stderr)
    return code
