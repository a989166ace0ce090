"""The fields of binary payloads, each alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pytest

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.wire.lwp.message import (
    ITEMS_MAX,
    REST_TEXT,
    TEXT,
    TEXT_BYTES_MAX,
    TRUTH,
    U8,
    U16,
    U32,
    U64,
    Choice,
    Composite,
    Field,
    Items,
    PayloadReader,
    pack,
)


class Colour(IntEnum):
    RED = 0
    BLUE = 1


@dataclass(frozen=True)
class Point:
    x: int
    y: int


POINT = Composite(Point, U8, U16)

CASES: list[tuple[Field, Any, str]] = [
    (U8, 255, "ff"),
    (U16, 1, "0100"),
    (U32, 2**32 - 1, "ffffffff"),
    (U64, 1, "0100000000000000"),
    (TRUTH, True, "01"),
    (TRUTH, False, "00"),
    (Choice(Colour), Colour.BLUE, "01"),
    (TEXT, "ä", "0200c3a4"),
    (TEXT, "", "0000"),
    (REST_TEXT, "abc", "616263"),
    (POINT, Point(1, 2), "010200"),
    (Items(U16), (1, 2), "0200000001000200"),
    (Items(TEXT), ("a", ""), "020000000100610000"),
    (Items(POINT), (), "00000000"),
]


@pytest.mark.parametrize(("field", "value", "data"), CASES)
def test_both_ways(field: Field, value: Any, data: str) -> None:
    assert field.encode(value).hex() == data
    reader = PayloadReader(bytes.fromhex(data), "test")
    assert field.read(reader) == value
    reader.finish()


@pytest.mark.parametrize(("field", "value", "data"), CASES)
def test_truncated(field: Field, value: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        if field is REST_TEXT:
            continue
        with pytest.raises(RemoteProtocolError, match="Invalid test payload"):
            field.read(PayloadReader(whole[:size], "test"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (U8, 256),
        (U8, -1),
        (U64, 2**64),
        (U32, "1"),
        (TEXT, "a" * (TEXT_BYTES_MAX + 1)),
        (REST_TEXT, "a" * (TEXT_BYTES_MAX + 1)),
        (TEXT, "\ud800"),
        (Items(U8), range(ITEMS_MAX + 1)),
    ],
)
def test_can_not_be_written(field: Field, value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        field.encode(value)


@pytest.mark.parametrize(
    ("field", "data", "reason"),
    [
        (Choice(Colour), b"\x02", "unknown Colour 2"),
        (TEXT, b"\x01\x00\xff", "not UTF-8"),
        (REST_TEXT, b"\xff", "not UTF-8"),
        (REST_TEXT, b"a" * (TEXT_BYTES_MAX + 1), "too long"),
        (Items(U8), b"\xff\xff\xff\xffabc", "4294967295 items announced, 3 bytes"),
        (Items(U8), struct.pack("<I", ITEMS_MAX + 1) + bytes(ITEMS_MAX + 1), "list of"),
    ],
)
def test_can_not_be_read(field: Field, data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        field.read(PayloadReader(data, "test"))


def test_false_count_allocates_nothing() -> None:
    reads = []

    class Counted(type(U8)):  # type: ignore[misc]
        def read(self, reader: PayloadReader) -> int:
            reads.append(1)
            return super().read(reader)  # type: ignore[no-any-return]

    with pytest.raises(RemoteProtocolError):
        Items(Counted("B")).read(PayloadReader(b"\x05\0\0\0\1\2\3\4", "test"))
    assert reads == []


def test_error_says_which_message_and_where() -> None:
    reader = PayloadReader(b"abc", "fetch")
    reader.take(1)
    with pytest.raises(RemoteProtocolError) as caught:
        reader.finish()
    assert str(caught.value) == "Invalid fetch payload: 2 bytes too many at byte 1"


def test_take_is_a_view() -> None:
    data = bytearray(b"abc")
    assert PayloadReader(data, "test").take(2).obj is data


def test_pack_names_the_problem() -> None:
    with pytest.raises(LocalProtocolError, match="field out of range"):
        pack(struct.Struct("<B"), None)
