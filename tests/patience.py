"""Calls of clients whose times are too short for a busy machine.

A test that waits for a client to give up makes its times short. What the same client
does before and after it must not fail of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lance_spark.errors import LanceError

# Long enough for a busy machine, and much less than a hang.
PATIENCE_S = 30.0

_T = TypeVar("_T")


def try_patiently(call: Callable[[], _T]) -> _T:
    """Make a call that is to succeed, again if it must, and give what it returns."""
    over_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except LanceError:
            if time.monotonic() > over_s:
                raise
