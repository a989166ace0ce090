"""The pages of the documentation: snippets run, bytes are those of the vectors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lance_spark.wire import lwp
from tests.wire.vectors import load

DOCS = Path(__file__).parent.parent.parent / "docs"
_BLOCK = re.compile(r"^```(\S+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, kind: str) -> list[tuple[str, str]]:
    """Return title and text of the fenced blocks of a kind."""
    found = _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    return [(title, text) for name, title, text in found if name == kind]


def parse_hex(text: str) -> bytes:
    """Read lines of hex, each with a comment behind at least two spaces."""
    return bytes.fromhex("".join(line.split("  ")[0] for line in text.splitlines()))


def test_snippets_run() -> None:
    snippets = blocks("codec.md", "python")
    assert len(snippets) > 5
    names: dict[str, Any] = {}
    for number, (_, source) in enumerate(snippets, 1):
        exec(compile(source, f"codec.md snippet {number}", "exec"), names)


@pytest.mark.parametrize(
    ("kind", "column"), [("hex", "payload"), ("hex-frame", "crc32c")]
)
def test_extension_bytes_are_the_vectors(kind: str, column: str) -> None:
    vectors = {row["name"]: row[column] for row in load("extensions")}
    shown = dict(blocks("wire-extensions.md", kind))
    assert shown
    for name, text in shown.items():
        assert parse_hex(text).hex() == vectors[name], name


def test_every_extension_vector_is_shown() -> None:
    shown = [name for name, _ in blocks("wire-extensions.md", "hex")]
    assert sorted(shown) == sorted(row["name"] for row in load("extensions"))


def test_every_extension_command_and_capability_has_its_place() -> None:
    page = (DOCS / "wire-extensions.md").read_text(encoding="utf-8")
    for command in lwp.Command:
        if 0x40 <= command < 0x80:
            table = lwp.REQUESTS if command in lwp.REQUESTS else lwp.RESPONSES
            assert f"### 0x{command:02X} {table[command].__name__}\n" in page
    for capability in lwp.Capability:
        assert f"## `{capability.value}`\n" in page
