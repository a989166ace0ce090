"""JSON within limits."""

from __future__ import annotations

from typing import Any

import pytest

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.wire.lwp.message import (
    DOCUMENT_BYTES_MAX,
    DocumentReader,
    decode_document,
    encode_document,
)


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
def test_can_not_be_written(body: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="not a JSON document"):
        encode_document(body)


@pytest.mark.parametrize(
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
def test_can_not_be_read(payload: bytes) -> None:
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
