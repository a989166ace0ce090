"""The page on troubleshooting has every message of the code, and no other.

Messages are found in the source: the texts that error classes are called with. A text
with values in it is known by its longest piece, which has to be on the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from lance_spark import errors
from lance_spark.wire.lwp import ERROR_CODES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lance_spark"
PAGES = [ROOT / "docs" / name for name in ("troubleshooting.md", "errors.md")]
HOLE = "…"

CLASSES = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.LanceError)
} | {"UsageError", "BadParameter", "ClickException"}
# Functions that make an error of a text.
MAKERS = {"_fault", "_error", "error", "lost", "late", "_damaged", "refuse"}
# Functions that say what is wrong, for an error that somebody else makes.
_SAYS = re.compile(r"_?(?:explain|describe)(?:_\w+)?")

# What users do not meet, or not as a text of its own.
INTERNAL = {
    "wire/": "bytes that are not the protocol; one paragraph is for all of them",
    "demo.py": "the demo's own promises; one sentence is for all of them",
    "cli/demo.py": "the same",
    "broker/lwp/plain.py": "what another server says, word for word",
}
# Part of `wire`, but users meet it: rows and records that are malformed.
MET = "wire/lwp/tlv.py"
# Names of places that stand before a message.
PLACES = {"segment file", "stream offset"}
# The shortest piece by which a message can be known.
PIECE_MIN = 9


def texts_of(node: ast.expr, names: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Give the texts that an argument may be, with a hole for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else HOLE
            for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from texts_of(node.body, names)
        yield from texts_of(node.orelse, names)
    elif isinstance(node, ast.BinOp):
        left = next(texts_of(node.left, names), HOLE)
        yield left + next(texts_of(node.right, names), HOLE)
    elif isinstance(node, ast.Name):
        # A name that is made of itself would not end.
        rest = {name: made for name, made in names.items() if name != node.id}
        for made in names.get(node.id, []):
            yield from texts_of(made, rest)


def assigned_in(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Give what the names of a function or module are made of."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def is_error(call: ast.Call) -> bool:
    """Tell whether a call makes an error, as far as its name says."""
    function = call.func
    if isinstance(function, ast.Attribute):
        owner = getattr(function.value, "id", "")
        return owner != "logger" and function.attr in CLASSES | MAKERS
    return isinstance(function, ast.Name) and function.id in CLASSES | MAKERS


def said_in(scope: ast.FunctionDef) -> Iterator[ast.expr]:
    """Give what a function says, or has said, of an error."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and is_error(node):
            yield from node.args
            yield from (keyword.value for keyword in node.keywords)
        elif isinstance(node, ast.Return) and _SAYS.fullmatch(scope.name):
            yield from filter(None, [node.value])
        elif isinstance(node, ast.Lambda) and [a.arg for a in node.args.args] == [
            "row"
        ]:
            yield node.body


@lru_cache
def find_messages() -> dict[str, str]:
    """Give where each message is, by its text."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        where = str(path.relative_to(PACKAGE))
        if where.startswith(tuple(INTERNAL)) and where != MET:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = assigned_in(tree)
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        for scope in functions:
            names = {**constants, **assigned_in(scope)}
            for node in said_in(scope):
                for text in texts_of(node, names):
                    if " " in text:
                        found.setdefault(text, f"{where}:{node.lineno}")
    return found


def longest_piece(text: str) -> str:
    """Return the longest piece of a text that is the same each time."""
    # Backticks can't be quoted on a page.
    pieces = [piece.strip(" ,;:.()'") for piece in re.split(f"[{HOLE}`]", text)]
    return max(pieces, key=len)


@lru_cache
def find_entries() -> tuple[tuple[str, str], ...]:
    """Give every quoted text of the pages, and its longest piece."""
    entries: list[str] = []
    for page in PAGES:
        text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
        entries += re.findall(r"`([^`]+)`", text)
    return tuple((entry, longest_piece(entry)) for entry in entries)


def is_covered(message: str) -> bool:
    """Tell whether an entry of the pages quotes a message, or the most of it."""
    piece = longest_piece(message)
    for entry, quoted in find_entries():
        if piece in entry:
            return True
        if len(quoted) >= 2 * PIECE_MIN and quoted in piece:
            return True
    return False


def test_every_message_is_explained() -> None:
    messages = {
        text: at
        for text, at in find_messages().items()
        if len(longest_piece(text)) >= PIECE_MIN and text not in PLACES
    }
    assert len(messages) > 300
    missing = [f"{at}: {text}" for text, at in messages.items() if not is_covered(text)]
    assert missing == []


def test_every_class_is_explained() -> None:
    said = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    said += (ROOT / "docs" / "store.md").read_text(encoding="utf-8")
    known = {known.exception.__name__ for known in ERROR_CODES.values()}
    for name in CLASSES - known - {"UsageError", "BadParameter", "ClickException"}:
        assert f"`{name}`" in said or name == "ProtocolError", name


@lru_cache
def find_texts() -> str:
    """Give all texts of the package in one."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(next(texts_of(node, {})))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_every_entry_is_a_message() -> None:
    """What Spark says itself is in tables of another kind."""
    said = PAGES[0].read_text(encoding="utf-8")
    tables = re.findall(r"^\| text \|.*\n\|---.*\n((?:\|.*\n)+)", said, re.MULTILINE)
    assert len(tables) >= 20
    for row in "".join(tables).splitlines():
        cell = row.split(" | ")[0]
        quoted = re.findall(r"`([^`]+)`", cell)
        assert quoted, row
        for text in quoted:
            assert longest_piece(text) in find_texts(), text


def test_no_entry_comes_twice_in_a_table() -> None:
    said = PAGES[0].read_text(encoding="utf-8")
    for section in re.split(r"^##+ ", said, flags=re.MULTILINE):
        cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
        assert len(cells) == len(set(cells)), section.splitlines()[0]


@pytest.mark.parametrize("reason", INTERNAL.values())
def test_what_is_left_out_has_a_reason(reason: str) -> None:
    assert " " in reason


def test_messages_are_known_by_their_longest_piece() -> None:
    assert longest_piece("topic …: data at … is lost, …") == "data at"
    assert not is_covered("nobody ever wrote such a sentence")
    assert is_covered("the client of … is closed; make a new one")
