"""Many cases of one thing as one test.

pytest and xdist take some milliseconds for every test, and each process remembers all
of them. That is more than most cases of a codec or a parser take.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest


def each(
    argnames: str | Sequence[str],
    argvalues: Iterable[Any],
    ids: Callable[[Any], object] | Iterable[object] = reprlib.repr,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test for all cases, until one fails; the failure names that case.

    Takes what `pytest.mark.parametrize` does, for tests that need nothing fresh: all
    cases have the same fixtures.

    Args:
        argnames: of the parameters that a case has values for.
        argvalues: the values, in tuples where there are several names.
        ids: what to call the cases, or a function that says it of each.
    """
    known = list(argvalues)
    assert known, "there is no case"
    joined = argnames if isinstance(argnames, str) else " ".join(argnames)
    split = joined.replace(",", " ").split()
    rows = [(case,) if len(split) == 1 else case for case in known]
    # Few are ever shown, and a large value takes long to be.
    texts = known if callable(ids) else list(ids)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run_all(*args: Any, **fixtures: Any) -> None:
            for text, row in zip(texts, rows, strict=True):
                try:
                    test(*args, **fixtures, **dict(zip(split, row, strict=True)))
                # A skipped case would skip those behind it.
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as why:
                    shown = ids(text) if callable(ids) else text
                    raise AssertionError(f"case {shown}: {why}") from why

        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in split]
        run_all.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run_all

    return decorate
