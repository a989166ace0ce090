"""README and docs: snippets run, links lead somewhere, tables and bytes are true."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from lance_spark import errors
from lance_spark.columnar.layout import validate
from lance_spark.store import StoreConfig, check_store

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
# tests/wire/test_docs.py runs those of docs/codec.md.
WITH_SNIPPETS = (
    "README.md",
    "docs/columnar.md",
    "docs/store.md",
    "docs/store-format.md",
)

_BLOCK = re.compile(r"^```(\S*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[tuple[str, str]]:
    """Return title and text of the fenced blocks of a kind."""
    return [(t, text) for name, t, text in _BLOCK.findall(read(page)) if name == kind]


def run_snippets(page: str) -> None:
    """Run the Python blocks of a page, in order and in one namespace."""
    names: dict[str, Any] = {}
    for number, (_, source) in enumerate(blocks(page, "python"), 1):
        exec(compile(source, f"{page} snippet {number}", "exec"), names)


def parse_hex(text: str) -> bytes:
    """Read lines of hex, each with a comment behind at least two spaces."""
    return bytes.fromhex("".join(line.split("  ")[0] for line in text.splitlines()))


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the first table below a heading, by their first cell."""
    section = read(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.mark.parametrize("page", WITH_SNIPPETS)
def test_snippets_run_and_leave_a_clean_store(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    run_snippets(page)
    if Path("data").exists():
        assert check_store("data", framing=validate) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        found = page.parent / target if target else page
        assert found.exists(), link
        if anchor:
            headings = _HEADING.findall(found.read_text(encoding="utf-8"))
            assert anchor in map(anchor_of, headings), link


def anchor_of(heading: str) -> str:
    """Make the anchor that Markdown viewers make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_index_lists_every_page() -> None:
    pages = {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"}
    assert pages <= set(_LINK.findall(read("docs/README.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^\$ )make ([a-z]+)\b", text, re.MULTILINE)
    assert set(named) <= set(targets)


def test_readme_lists_every_make_target() -> None:
    targets = re.findall(r"^([a-z]+):.*## ", read("Makefile"), re.MULTILINE)
    listed = {name.removeprefix("make ") for name in rows_of("README.md", "Targets")}
    assert listed == set(targets)


def test_every_setting_is_documented_with_its_default() -> None:
    table = rows_of("docs/store.md", "Settings")
    defaults = {field.name: field.default for field in fields(StoreConfig)}
    assert list(table) == list(defaults)
    for name, default in defaults.items():
        shown = default.value if isinstance(default, Enum) else default
        assert table[name][0] == f"`{shown}`", name


def test_every_store_error_is_documented() -> None:
    table = rows_of("docs/store.md", "Errors")
    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    names = {kind.__name__ for kind in kinds if issubclass(kind, errors.StoreError)}
    others = {"OptionError", "RecordError", "Timeout"}
    assert set(table) == names | others
    assert all(len(row) == 2 and all(row) for row in table.values())


def test_format_shows_the_bytes_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "docs/store-format.md"
    monkeypatch.chdir(tmp_path)
    run_snippets(page)
    shown = dict(blocks(page, "hex"))
    assert len(shown) == 4
    for name, text in shown.items():
        written = (tmp_path / "data" / name).read_bytes()
        if name == "journal.log":
            written = written[:20]  # The entries are shown as JSON.
        assert parse_hex(text).hex(" ") == written.hex(" "), name
    documents = {name: text for name, text in blocks(page, "json") if name}
    journal = documents.pop("journal.log")
    for name, text in documents.items():
        assert text == (tmp_path / "data" / name).read_text(), name
    assert parse_documents(journal) == read_journal(tmp_path / "data" / "journal.log")


def parse_documents(text: str) -> list[Any]:
    """Read JSON documents that stand one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def read_journal(path: Path) -> list[Any]:
    """Read the entries of a journal as the page says that they are written."""
    data, found, at = path.read_bytes(), [], 16
    while at < len(data):
        assert data[at : at + 4] == b"LSJE"
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        found.append(json.loads(data[at + 12 : at + 12 + length]))
        at += 12 + length
    return found
