"""Timing, tables, and the place in the docs where tables go.

A table of benchmark NAME stands in the docs between `<!-- bench:NAME -->` and the next
`<!-- /bench -->`; everything between them is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs" / "performance.md"


class Report:
    """Collects the tables of one benchmark.

    Args:
        quick: measure less often.
    """

    def __init__(self, *, quick: bool = False) -> None:
        self.quick = quick
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All that was added, as Markdown."""
        return "\n\n".join(self._parts)

    def time_s(self, call: Callable[[], object]) -> float:
        """Time a call: the best of several, which noise can only make worse."""
        return time_best_s(call, 0.1 if self.quick else 0.6)

    def add_text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(text)

    def add_table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], title: str = ""
    ) -> None:
        """Add a table; all columns but the first are numbers."""
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        self._parts.append(f"{title}\n\n{table}" if title else table)


def time_best_s(call: Callable[[], object], budget_s: float) -> float:
    """Time the best of at least three calls and as many as fit the budget."""
    best, spent, calls = float("inf"), 0.0, 0
    while calls < 3 or spent < budget_s:
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best, spent, calls = min(best, took), spent + took, calls + 1
    return best


def format_rate(per_second: float, unit: str = "") -> str:
    """Write a rate with three digits."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}{unit}".rstrip()
    return f"{per_second:.3g} {unit}".rstrip()


def format_s(seconds: float) -> str:
    """Write seconds with three digits."""
    return f"{seconds:.3g}"


def format_ms(seconds: float) -> str:
    """Write a time that is best read in ms."""
    return f"{seconds * 1000:.0f} ms"


def format_ratio(ratio: float) -> str:
    """Write a ratio with two digits, more of them where it is large."""
    return f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.2g} x"


def write_tables(path: Path, name: str, text: str) -> None:
    """Replace the tables of a benchmark in a document.

    Raises:
        ValueError: if the document has no place for them.
    """
    document = path.read_text(encoding="utf-8")
    before, begin, rest = document.partition(f"<!-- bench:{name} -->\n")
    _, end, after = rest.partition("<!-- /bench -->")
    if not begin or not end:
        raise ValueError(f"{path} has no <!-- bench:{name} --> ... <!-- /bench -->")
    document = f"{before}{begin}\n{text}\n\n{end}{after}"
    path.write_text(document, encoding="utf-8")
