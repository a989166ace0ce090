"""The frozen vectors of tests/vectors/lwp, an independent encoder, and shared checks.

The vectors are data, not output of the code under test: the reference encoder below
knows nothing of the codec, computes its checksums bit by bit, and has to agree with
every frame in the files. A changed vector is a changed protocol.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from lance_spark.wire.lwp import Checksum, Frame, FrameFlags, FrameParser

VECTORS = Path(__file__).parent.parent / "vectors" / "lwp"
CHECKSUMS = ("crc32c", "crc32")
# Both polynomials in reversed bit order.
_POLYNOMIALS = {"crc32c": 0x82F63B78, "crc32": 0xEDB88320}


@cache
def load(name: str) -> list[dict[str, Any]]:
    """Return the vectors of a file."""
    return list(json.loads((VECTORS / f"{name}.json").read_text()))


def named(name: str) -> dict[str, Any]:
    """Return keyword arguments for parametrize with a file's vectors."""
    rows = load(name)
    return {"argvalues": rows, "ids": [row["name"] for row in rows]}


def reference_crc(data: bytes, algorithm: str) -> int:
    """Compute a CRC bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIALS[algorithm] if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def reference_frame(fields: Mapping[str, Any], algorithm: str) -> bytes:
    """Write a frame without the codec."""
    payload = bytes.fromhex(fields["payload"])
    prefix = b"LANC\x01" + bytes([fields["flags"], 0, 0])
    return (
        prefix
        + struct.pack("<I", reference_crc(prefix, algorithm))
        + struct.pack(
            "<QQIIII",
            fields["batch_id"],
            fields["timestamp_ns"],
            fields["record_count"],
            len(payload),
            reference_crc(payload, algorithm),
            fields["topic_id"],
        )
        + payload
    )


def plain(value: Any) -> Any:
    """Reduce a message to what JSON can say."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def join(parts: Iterable[Any]) -> bytes:
    """Concatenate what an encoder returned."""
    return b"".join(bytes(part) for part in parts)


def control(command: int, payload: bytes) -> Frame:
    """Make the control frame that a parser would."""
    return Frame(FrameFlags.CONTROL, command, payload=memoryview(payload))


def parse(
    chunks: Iterable[bytes], checksum: Checksum | None = Checksum.CRC32C, **options: Any
) -> tuple[list[Frame], FrameParser]:
    """Feed chunks and take all frames out."""
    parser = FrameParser(checksum=checksum, **options)
    frames = []
    for chunk in chunks:
        parser.receive_data(chunk)
        while parser.error is None and (frame := parser.next_frame()) is not None:
            frames.append(frame)
    return frames, parser


def assert_decodes(vector: bytes, expected: Frame, checksum: Checksum | None) -> None:
    """Check a frame whole, byte by byte, and with bytes of the next one behind it."""
    single_bytes = [vector[i : i + 1] for i in range(len(vector))]
    for chunks in ([vector], single_bytes, [vector + vector[:-1]]):
        frames, parser = parse(chunks, checksum)
        assert frames == [expected]
        assert parser.error is None
