from __future__ import annotations

import json

import pytest

from lance_spark.broker.console.cell import TEXT_MAX, make_cell, name_type
from lance_spark.model import RecordType
from lance_spark.quantity import RECORD_TYPES


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"", "text", ""),
        (b"hello", "text", "hello"),
        ("grüße\t\r\n".encode(), "text", "grüße\t\r\n"),
        # Marks that change the direction or join emoji are text.
        ("\u202eabc 👩\u200d👧".encode(), "text", "\u202eabc 👩\u200d👧"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b" [1,\n 2]", "json", " [1,\n 2]"),
        (b"123", "text", "123"),
        (b'{"a": ', "text", '{"a": '),
        (b"[" * 5000, "text", "[" * TEXT_MAX),
        (b"\x00\x01\xff", "hex", "0001ff"),
        (b"a\x00b", "hex", "610062"),
        (b"\x1b[31m", "hex", "1b5b33316d"),
        (b"caf\xe9", "hex", "636166e9"),
        (b"half \xc3", "hex", "68616c6620c3"),
    ],
)
def test_what_bytes_are_shown_as(data: bytes, kind: str, text: str) -> None:
    cell = make_cell(data)
    assert cell is not None
    assert (cell["kind"], cell["text"], cell["size"]) == (kind, text, len(data))
    assert cell["truncated"] == (len(data) > TEXT_MAX)


def test_nothing_is_nothing() -> None:
    assert make_cell(None) is None


def test_not_as_text() -> None:
    cell = make_cell(b"abc", may_be_text=False)
    assert cell == {"kind": "hex", "text": "616263", "size": 3, "truncated": False}


def test_long_values_are_cut() -> None:
    # A prefix of so many bytes ends inside a character.
    text = make_cell(b"x" + "ü".encode() * 100_000)
    assert text is not None
    assert text["text"] == "x" + "ü" * (TEXT_MAX - 1)
    assert (text["kind"], text["truncated"], text["size"]) == ("text", True, 200_001)
    binary = make_cell(bytes(1_000_000))
    assert binary is not None
    assert binary["text"] == "00" * (TEXT_MAX // 2) and binary["truncated"]
    assert make_cell(bytes(TEXT_MAX // 2))["truncated"] is False  # type: ignore[index]


def test_long_json_is_json_as_far_as_it_is_looked_at() -> None:
    medium = json.dumps(["x" * 10_000]).encode()
    assert make_cell(medium)["kind"] == "json"  # type: ignore[index]
    large = json.dumps(["x" * 100_000]).encode()
    assert make_cell(large)["kind"] == "text"  # type: ignore[index]


def test_names_of_types() -> None:
    for name, number in RECORD_TYPES.items():
        assert name_type(number) == name
    names = {name_type(int(kind)) for kind in RecordType}
    assert len(names) == len(RecordType) and "null" in names
    assert name_type(0x80) == "0x80"
    assert name_type(0) == "unreadable"
