"""Frames in whatever pieces they come."""

from __future__ import annotations

import pytest

from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RemoteProtocolError,
)
from lance_spark.wire.tank import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Frame,
    FrameParser,
    Kind,
    decode_header,
    encode_frame,
)
from tests.wire.tank.reference import FRAMES, join


def parse(chunks, **options):
    parser = FrameParser(**options)
    frames = []
    for chunk in chunks:
        parser.receive_data(chunk)
        while parser.error is None and (frame := parser.next_frame()) is not None:
            frames.append(frame)
    return frames, parser


def test_frames_in_pieces():
    stream = b"".join(data for _, _, data in FRAMES)
    expected = [
        Frame(Kind(data[0]), memoryview(data[HEADER_BYTES:])) for _, _, data in FRAMES
    ]
    for size in (1, 7, 4096, len(stream)):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        frames, parser = parse(chunks)
        assert frames == expected
        parser.receive_eof()
        assert parser.error is None
    assert b"".join(join(encode_frame(f.kind, [f.payload])) for f in frames) == stream


@pytest.mark.parametrize("number", [0, 4, 9, 0x0D, 0x7B, 0xFF])
def test_an_unknown_kind_ends_the_stream(number):
    header = bytes([number]) + b"\xff\xff\xff\x0f"
    _, parser = parse([b"\x03\0\0\0\0" + header])
    assert "unknown message" in str(parser.error)
    with pytest.raises(RemoteProtocolError, match=f"0x{number:02X}"):
        decode_header(header)


def test_a_size_over_the_limit_allocates_nothing():
    for size, options in (
        (PAYLOAD_BYTES_MAX + 1, {}),
        (101, {"payload_bytes_max": 100}),
    ):
        header = b"\x01" + size.to_bytes(4, "little")
        _, parser = parse([header], **options)
        assert isinstance(parser.error, PayloadOverLimit)
        assert parser.refused is Kind.PRODUCE
        assert decode_header(header) == (Kind.PRODUCE, size)


def test_a_stream_that_ends_in_a_frame():
    for size in range(1, 9):
        _, parser = parse([b"\x0a\x04\0\0\0\1\0\0\0"[:size]])
        parser.receive_eof()
        assert "ended in a frame" in str(parser.error)


def test_a_payload_that_is_too_large_is_not_sent():
    half = memoryview(bytes(PAYLOAD_BYTES_MAX // 2 + 1))
    with pytest.raises(LocalProtocolError, match="TANK takes"):
        encode_frame(Kind.PRODUCE, [half, half])
