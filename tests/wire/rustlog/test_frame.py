"""Frames and their limits."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from lance_spark.errors import PayloadOverLimit, RemoteProtocolError
from lance_spark.wire.rustlog import FRAME_BYTES_MAX, FrameParser, is_json
from tests.wire.rustlog.plain import parse


def test_frames_in_pieces() -> None:
    payloads = [b"\xff", b"x" * 200_000, b"{}", b"\x01" * 70]
    stream = b"".join(struct.pack(">I", len(p)) + p for p in payloads)
    for step in (1, 3, 1000, None):
        assert parse(stream, step) == payloads


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_over_the_limit(length: int) -> None:
    parser = FrameParser(payload_bytes_max=2**40)
    tracemalloc.start()
    try:
        parser.receive_data(struct.pack(">I", length))
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    with pytest.raises(PayloadOverLimit) as caught:
        parser.next_frame()
    assert (caught.value.size, caught.value.limit) == (length, FRAME_BYTES_MAX)


def test_a_smaller_limit() -> None:
    parser = FrameParser(payload_bytes_max=10)
    parser.receive_data(struct.pack(">I", 11))
    with pytest.raises(PayloadOverLimit):
        parser.next_frame()


def test_announced_bytes_are_not_allocated() -> None:
    parser = FrameParser()
    tracemalloc.start()
    try:
        parser.receive_data(struct.pack(">I", FRAME_BYTES_MAX) + b"x")
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert parser.payload_missing == FRAME_BYTES_MAX - 1


def test_empty_frame() -> None:
    parser = FrameParser()
    parser.receive_data(b"\0\0\0\1\xff" + bytes(4))
    assert parser.next_frame() == b"\xff"
    with pytest.raises(RemoteProtocolError, match="a frame of 0 bytes at byte 5"):
        parser.next_frame()


def test_dialect() -> None:
    starts = {byte for byte in range(256) if is_json(bytes([byte]))}
    assert starts == set(b'{" \n\r')
    assert not is_json(b"")
