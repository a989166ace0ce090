"""Frames in whatever pieces they come."""

from __future__ import annotations

import pytest

from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RemoteProtocolError,
)
from lance_spark.wire.fluvio import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Frame,
    FrameParser,
    encode_frame,
)
from tests.wire.fluvio.reference import FRAMES, join


def parse(chunks, **options):
    parser = FrameParser(**options)
    frames = []
    for chunk in chunks:
        parser.receive_data(chunk)
        while parser.error is None and (frame := parser.next_frame()) is not None:
            frames.append(frame)
    return frames, parser


def test_frames_in_pieces():
    stream = b"".join(row["data"] for row in FRAMES)
    expected = [Frame(memoryview(row["data"][HEADER_BYTES:])) for row in FRAMES]
    for size in (1, 7, 4096, len(stream)):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        frames, parser = parse(chunks)
        assert frames == expected
        parser.receive_eof()
        assert parser.error is None
    assert b"".join(join(encode_frame([frame.payload])) for frame in frames) == stream


@pytest.mark.parametrize("size", [-1, -(2**31)])
def test_a_size_below_0_ends_the_stream(size):
    _, parser = parse([bytes(4), size.to_bytes(4, "big", signed=True)])
    assert f"a frame of {size} bytes at byte 4" in str(parser.error)
    with pytest.raises(RemoteProtocolError):
        parser.next_frame()


def test_a_size_over_the_limit_allocates_nothing():
    _, parser = parse([(101).to_bytes(4, "big")], payload_bytes_max=100)
    assert isinstance(parser.error, PayloadOverLimit)
    # Without another limit the largest is not too large, and nothing is made for it.
    _, parser = parse([PAYLOAD_BYTES_MAX.to_bytes(4, "big")])
    assert parser.error is None
    assert parser.payload_missing == PAYLOAD_BYTES_MAX
    assert parser.payload_bytes_next < 2**21


def test_a_stream_that_ends_in_a_frame():
    for size in range(1, 8):
        _, parser = parse([b"\0\0\0\x04\1\2\3\4"[:size]])
        parser.receive_eof()
        assert "ended in a frame" in str(parser.error)


def test_a_payload_that_is_too_large_is_not_sent():
    # A view of many bytes over few.
    piece = memoryview(bytes(2**20))
    with pytest.raises(LocalProtocolError, match="Fluvio takes"):
        encode_frame([piece] * 2**11)
