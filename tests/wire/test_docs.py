"""The pages of the documentation: snippets run, bytes are those of the vectors."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lance_spark.errors import RemoteProtocolError
from lance_spark.wire import lwp
from lance_spark.wire.lwp.message import Field, Items, LayoutMessage, PayloadReader
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


def test_every_list_of_a_request_has_a_limit_that_the_page_shows() -> None:
    page = (DOCS / "wire-extensions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (\d+) \|$", page, re.MULTILINE)
    assert {name: int(limit) for name, limit in rows} == lwp.LIST_LIMITS
    found = {}
    for message in set(lwp.REQUESTS.values()):
        for name, field in layout_of(message):
            if isinstance(field, Items):
                found[f"{message.__name__}.{name}"] = field.items_max
    assert found == lwp.LIST_LIMITS


def layout_of(message: type[lwp.Message]) -> list[tuple[str, Field]]:
    if not issubclass(message, LayoutMessage):
        assert message is lwp.Fetch, "a request whose lists this test can't see"
        return []
    names = [field.name for field in fields(message)]  # type: ignore[arg-type]
    return list(zip(names, message.LAYOUT.values(), strict=True))


@pytest.mark.parametrize("name", lwp.LIST_LIMITS)
def test_a_list_over_its_limit_builds_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a count that the bytes can't hold, nor one that they can."""
    kind, field_name = name.split(".")
    message = next(m for m in lwp.REQUESTS.values() if m.__name__ == kind)
    (items,) = [field for n, field in layout_of(message) if n == field_name]
    assert isinstance(items, Items)

    def build(*_: object) -> None:
        raise AssertionError("something was built")

    for name in ("read", "read_many"):
        monkeypatch.setattr(items._item, name, build)
    for count, room in ((items.items_max + 1, 300), (items.items_max, 0)):
        payload = count.to_bytes(4, "little") + bytes(count * room)
        with pytest.raises(RemoteProtocolError, match="items"):
            items.read(PayloadReader(payload, "test"))
