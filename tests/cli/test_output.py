"""Records as lines."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lance_spark.cli.output import OUTPUTS
from lance_spark.columnar.decode import decode
from lance_spark.columnar.encode import encode
from tests.cli.conftest import ROWS


def _print(kind: str, separator: bytes | None = None, rows: pa.Table = ROWS) -> bytes:
    output = OUTPUTS[kind]("events", separator)
    (payload,) = encode(rows)
    decoded = decode(payload.data, base_offset=100, columns=output.COLUMNS)
    return bytes(output.encode(decoded.batch))


def test_raw() -> None:
    assert _print("raw") == (
        b'plain text\n{"a": 1}\nkeyed\ntimed\nboth\n\n\x00\xff\x1b[2J\n'
    )


def test_raw_with_keys() -> None:
    lines = _print("raw", b"\t").split(b"\n")
    assert lines[0] == b"\tplain text"
    assert lines[2] == b"k1\tkeyed"
    assert lines[5] == b"\t"


def test_hex() -> None:
    lines = _print("hex").split(b"\n")
    assert lines[2] == b"keyed".hex().encode()
    assert lines[5:] == [b"", b"00ff1b5b324a", b""]
    assert _print("hex", b":").split(b"\n")[4] == b"6b32:626f7468"


def test_json() -> None:
    documents = [json.loads(line) for line in _print("json").splitlines()]
    assert documents[0] == {
        "topic": "events",
        "offset": 100,
        "type": 1,
        "key": None,
        "value": "plain text",
        "timestamp_ns": None,
    }
    assert documents[4]["key"] == "k2"
    assert documents[4]["timestamp_ns"] == 1_700_000_000_123_456_789
    assert documents[5]["value"] is None
    assert documents[6]["value_base64"] == "AP8bWzJK"
    assert "value" not in documents[6]


def test_json_holds_nothing_that_a_terminal_obeys() -> None:
    rows = pa.table({"value": [b"\x1b[2J\x7f\xc2\x9b\xe2\x80\xae", "é".encode()]})
    first, second = _print("json", rows=rows).decode().splitlines()
    assert first.isprintable()
    assert json.loads(first)["value"] == "\x1b[2J\x7f\x9b\u202e"
    assert '"é"' in second


@pytest.mark.parametrize("kind", OUTPUTS)
def test_no_rows(kind: str) -> None:
    rows = pa.table({"value": pa.array([b"x"], pa.binary())})
    assert _print(kind, rows=rows).count(b"\n") == 1
    output = OUTPUTS[kind]("events", None)
    empty = decode(b"", columns=output.COLUMNS).batch
    assert bytes(output.encode(empty)) == b""
