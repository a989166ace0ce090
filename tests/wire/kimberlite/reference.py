"""The vectors, and a second codec that knows nothing of the first.

The codec writes values as postcard and bincode do, told by type: `Num` for the number
of a choice, int for u64, tuples one behind the other, lists with their length, `Some`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from lance_spark.records import Records
from lance_spark.wire import kimberlite
from lance_spark.wire.kimberlite import Frame, FrameParser
from tests.wire.rustlog.plain import list_values

_FOLDER = Path(__file__).parent / "vectors"
_WIRES = {
    "v1_bincode": "v1-bincode",
    "v1_postcard": "v1-postcard",
    "v5_pre_0_8": "v5-0.6",
}


class Vector(NamedTuple):
    """A frame, the form that it is in and its direction."""

    name: str
    wire: kimberlite.Wire
    is_request: bool
    data: bytes


def _load(file: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads((_FOLDER / file).read_text())
    return rows


def _list_vectors() -> list[Vector]:
    vectors = []
    for row in (*_load("vectors.json"), *_load("pypi.json")):
        name = row["name"]
        if not name.startswith("crc32"):
            form = next(
                (_WIRES[start] for start in _WIRES if name.startswith(start)), "v5"
            )
            is_request = "_req_" in name or "client" in name
            data = bytes.fromhex(row["hex"])
            vectors.append(Vector(name, kimberlite.WIRES[form], is_request, data))
    return vectors


CHECKSUMS = [
    (bytes.fromhex(row["hex"]), int(row["meaning"].split()[3], 16))
    for row in _load("vectors.json")
    if row["name"].startswith("crc32")
]
VECTORS = _list_vectors()
# Those that differ: many releases write a message in the same way.
DISTINCT = list({vector.data: vector for vector in VECTORS}.values())


def find(name: str) -> Frame:
    """Return the frame of a vector."""
    return parse(next(v.data for v in VECTORS if v.name == name))


def parse(data: bytes) -> Frame:
    """Read one frame."""
    parser = FrameParser()
    parser.receive_data(data)
    frame = parser.next_frame()
    assert frame is not None
    return frame


def frame_of(payload: Any, version: int = 5) -> Frame:
    """Make a frame."""
    return Frame(version, memoryview(bytes(payload)))


def simplify(value: Any) -> Any:
    """Make a message comparable: records by their values."""
    if isinstance(value, Records):
        return list_values(value)
    if isinstance(value, memoryview):
        return bytes(value)
    if dataclasses.is_dataclass(value):
        parts = [simplify(getattr(value, f.name)) for f in dataclasses.fields(value)]
        return type(value), *parts
    return value


class Num(int):
    """The number of a choice."""


class Some(NamedTuple):
    """An optional field that is there; one that is not is None."""

    value: Any


class Raw(bytes):
    """Bytes that are written as they are."""


def leb(number: int) -> bytes:
    """Write LEB128."""
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + leb(high) if high else bytes([low])


def write(value: Any, *, fixed: bool, flag: bytes = b"\0") -> bytes:
    """Write a value in postcard, or in bincode if lengths are fixed."""

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "little") if fixed else leb(value)

    def inner(value: Any) -> bytes:
        match value:
            case Raw():
                return bytes(value)
            case None:
                return flag
            case Some():
                return b"\1" + flag[1:] + inner(value.value)
            case bool():
                return bytes([value])
            case Num():
                return number(value, 4)
            case int():
                return number(value, 8)
            case str():
                return inner(value.encode())
            case bytes():
                return number(len(value), 8) + value
            case list():
                return number(len(value), 8) + b"".join(map(inner, value))
        return b"".join(map(inner, value))

    return inner(value)
