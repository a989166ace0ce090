"""Fields, JSON documents and messages: what is written is read, and nothing else."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import pytest

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.wire.lwp import (
    REQUESTS,
    RESPONSES,
    Command,
    GetTopic,
    ListTopics,
    Message,
)
from lance_spark.wire.lwp.message import (
    DOCUMENT_BYTES_MAX,
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
    DocumentReader,
    Field,
    Items,
    LayoutMessage,
    PayloadReader,
    decode_document,
    encode_document,
    pack,
)
from tests.each import each


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


@each(("field", "value", "data"), CASES)
def test_both_ways(field: Field, value: Any, data: str) -> None:
    assert field.encode(value).hex() == data
    reader = PayloadReader(bytes.fromhex(data), "test")
    assert field.read(reader) == value
    reader.finish()


@each(("field", "value", "data"), CASES)
def test_truncated(field: Field, value: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        if field is REST_TEXT:
            continue
        with pytest.raises(RemoteProtocolError, match="Invalid test payload"):
            field.read(PayloadReader(whole[:size], "test"))


@each(
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


def deep_list() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def test_compact_utf8() -> None:
    assert encode_document({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()


@pytest.mark.parametrize(
    "body", [{"a": float("nan")}, {"a": object()}, {"a": "\ud800"}, {"a": deep_list()}]
)
def test_document_can_not_be_written(body: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="not a JSON document"):
        encode_document(body)


@each(
    "payload",
    [
        b"",
        b"{",
        b"\xef\xbb\xbf{}",
        b"\xff",
        '{"a":1}'.encode("utf-16"),
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"1" * 21 + b"}",
        b'{"a":"\\ud800"}',
        b'{"\\uDFFF":1}',
        b'{"a":' + b"[" * 100_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(13),
)
def test_document_can_not_be_read(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="answer is not JSON"):
        decode_document(payload, "answer")


def test_surrogate_pairs_are_fine() -> None:
    assert decode_document(b'{"a":"\\ud83d\\ude00"}', "x") == {"a": "\U0001f600"}


def test_longest_integers_are_fine() -> None:
    body = decode_document(b'{"a":18446744073709551615,"b":-9223372036854775808}', "x")
    assert body == {"a": 2**64 - 1, "b": -(2**63)}


def test_floats_are_fine() -> None:
    assert decode_document(b'{"a":1.5e3}', "x") == {"a": 1500.0}


def test_not_an_object() -> None:
    with pytest.raises(RemoteProtocolError, match="x is not a JSON object"):
        decode_document(b"[]", "x")


def test_too_large() -> None:
    with pytest.raises(RemoteProtocolError, match="too long"):
        decode_document(b" " * (DOCUMENT_BYTES_MAX + 1), "x")


def test_take() -> None:
    reader = DocumentReader({"a": 1, "b": "x", "c": None, "d": True}, "doc")
    assert "a" in reader
    assert reader.take("a", int) == 1
    assert "a" not in reader
    assert reader.take("c", str, "default") == "default"
    assert reader.take("missing", list, []) == []
    assert reader.take("d", bool) is True
    assert reader.rest == {"b": "x"}


@pytest.mark.parametrize("value", ["1", 1.0, True, None, [], {}])
def test_take_another_type(value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match=r"doc: 'a' is .*, not int"):
        DocumentReader({"a": value}, "doc").take("a", int)


def test_take_what_is_missing() -> None:
    with pytest.raises(RemoteProtocolError, match="'a' is NoneType, not str"):
        DocumentReader({}, "doc").take("a", str)


@pytest.mark.parametrize("value", [-1, 256])
def test_take_uint_out_of_range(value: int) -> None:
    with pytest.raises(RemoteProtocolError, match="not u8"):
        DocumentReader({"a": value}, "doc").take_uint("a", 8)


def test_reader_leaves_the_document_alone() -> None:
    body = {"a": 1}
    DocumentReader(body, "doc").take("a", int)
    assert body == {"a": 1}


TYPES = sorted({*REQUESTS.values(), *RESPONSES.values()}, key=lambda t: t.__name__)


@each("message_type", TYPES, ids=lambda t: t.__name__)
def test_declarations(message_type: type[Message]) -> None:
    assert message_type.COMMAND in Command
    assert message_type.NAME.lower() == message_type.NAME
    if issubclass(message_type, LayoutMessage):
        names = fields(message_type)  # type: ignore[arg-type]
        assert len(message_type.LAYOUT) == len(names)


def test_no_fields_no_buffer() -> None:
    assert ListTopics().encode_payload() == []


def test_field_that_does_not_fit() -> None:
    with pytest.raises(LocalProtocolError):
        GetTopic(-1).encode_payload()
