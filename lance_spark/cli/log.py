"""What the library logs, as lines on standard error while a command runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ROOT = "lance_spark"


@contextmanager
def shown_log(*, verbose: bool = False) -> Iterator[None]:
    """Show warnings and worse; with `verbose` all that is of interest, and when."""
    logger = logging.getLogger(_ROOT)
    level = logger.level
    handler = _Handler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        if verbose
        else _OneLine("lance-spark: %(levelname)s: %(message)s")
    )
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Handler(logging.Handler):
    """Writes to what standard error is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            return  # Nobody is there to be told, which is no reason to fail.


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            # A traceback is for those who ask for it.
            error = record.exc_info[1]
            text = f"{text}: {type(error).__name__}: {error}"
        return f"lance-spark: {level}: {' '.join(text.split())}"
