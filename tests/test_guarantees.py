"""The page on guarantees: its texts are the code's, and the tests it names exist."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| ([RWSBC]\d+) \| (.*) \|$", re.MULTILINE)


def rows_of(heading: str) -> dict[str, list[str]]:
    """Return the cells of the numbered rows below a heading, by number."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {number: cells.split(" | ") for number, cells in _ROW.findall(section)}


FAILURES = {
    heading: rows_of(heading)
    for heading in ("Reading", "Writing", "Streaming", "The broker", "The client")
}
EVIDENCE = {
    number: cells[0] for number, cells in rows_of("Which test shows it").items()
}


@lru_cache
def find_functions(path: str) -> frozenset[str]:
    """Give the names of a file's functions, or none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


@lru_cache
def find_texts() -> tuple[str, ...]:
    """Give every text of the package, without the values that are put into it."""
    found = set()
    for path in (ROOT / "lance_spark").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value for p in node.values if isinstance(p, ast.Constant)]
                found.add("\0".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return tuple(found)


@pytest.mark.parametrize("heading", FAILURES)
def test_rows_are_numbered_and_whole(heading: str) -> None:
    rows = FAILURES[heading]
    assert len(rows) >= 12
    letter = next(iter(rows))[0]
    assert list(rows) == [f"{letter}{n}" for n in range(1, len(rows) + 1)]
    for number, cells in rows.items():
        assert len(cells) == 4 and all(cells), number


def test_every_row_has_its_evidence() -> None:
    assert list(EVIDENCE) == [n for rows in FAILURES.values() for n in rows]


def test_named_tests_exist() -> None:
    for number, cell in EVIDENCE.items():
        named = re.findall(r"`([^`]+)`", cell)
        # What only Spark does has no test of ours.
        assert named or number == "S16", number
        for name in named:
            path, _, function = name.partition("::")
            assert function in find_functions(path), name


@pytest.mark.parametrize("heading", FAILURES)
def test_what_is_seen_is_what_the_code_says(heading: str) -> None:
    seen = " ".join(cells[1] for cells in FAILURES[heading].values())
    shown = [text for text in re.findall(r"`([^`]+)`", seen) if " " in text]
    assert shown
    for text in shown:
        # What is put into a text is often a text of its own.
        for part in filter(None, map(str.strip, text.split("…"))):
            if part.startswith("lance-spark "):
                continue
            assert any(part.strip(", ") in one for one in find_texts()), text
