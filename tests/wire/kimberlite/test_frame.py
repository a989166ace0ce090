"""Frames in whatever pieces they come."""

from __future__ import annotations

from zlib import crc32

import pytest

from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RemoteProtocolError,
)
from lance_spark.wire.kimberlite import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Frame,
    FrameParser,
    decode_header,
    encode_frame,
)
from tests.wire.kimberlite.reference import CHECKSUMS, VECTORS
from tests.wire.rustlog.plain import join


def parse(chunks, **options):
    parser = FrameParser(**options)
    frames = []
    for chunk in chunks:
        parser.receive_data(chunk)
        while parser.error is None and (frame := parser.next_frame()) is not None:
            frames.append(frame)
    return frames, parser


def make_header(*, magic=b"VDB ", version=5, length=0, crc=0):
    numbers = version.to_bytes(2, "big") + length.to_bytes(4, "big")
    return magic + numbers + crc.to_bytes(4, "big")


def test_frames_in_pieces():
    stream = b"".join(vector.data for vector in VECTORS)
    expected = [
        Frame(v.wire.frame_version, memoryview(v.data[HEADER_BYTES:])) for v in VECTORS
    ]
    for size in (1, 7, 4096, len(stream)):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        frames, parser = parse(chunks)
        assert frames == expected
        parser.receive_eof()
        assert parser.error is None
    assert (
        b"".join(join(encode_frame(f.version, [f.payload])) for f in frames) == stream
    )


@pytest.mark.parametrize(("data", "crc"), CHECKSUMS)
def test_checksums(data, crc):
    expected = make_header(length=len(data), crc=crc) + data
    assert join(encode_frame(5, [data[:3], data[3:]])) == expected
    assert parse([expected])[0] == [Frame(5, memoryview(data))]


def test_every_flipped_bit_is_noticed():
    data = join(encode_frame(5, [b"payload"]))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        frames, parser = parse([bytes(damaged)])
        if bit // 8 in (4, 5):
            # The version is in no checksum. Whether it fits is for the messages.
            assert (frames == []) == (damaged[4] > 0 or damaged[5] not in range(1, 6))
        else:
            parser.receive_eof()
            assert frames == [] and isinstance(parser.error, RemoteProtocolError)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (make_header(magic=b"VDB\0"), "magic b'VDB '"),
        (make_header(version=0), "version 0 is unknown"),
        (make_header(version=6), "version 6 is unknown"),
        (make_header(crc=1), "CRC"),
    ],
    ids=["magic", "version-0", "version-6", "crc"],
)
def test_what_is_no_frame_ends_the_stream(header, text):
    good = join(encode_frame(3, [b"x"]))
    parser = FrameParser()
    parser.receive_data(good + header + good)
    assert parser.next_frame() == Frame(3, memoryview(b"x"))
    with pytest.raises(RemoteProtocolError, match=text):
        parser.next_frame()
    if "CRC" not in text:
        with pytest.raises(RemoteProtocolError, match=text):
            decode_header(header)


def test_a_length_over_the_limit_allocates_nothing():
    for length, options in (
        (PAYLOAD_BYTES_MAX + 1, {}),
        (PAYLOAD_BYTES_MAX + 1, {"payload_bytes_max": 2**40}),
        (101, {"payload_bytes_max": 100}),
    ):
        _, parser = parse([make_header(length=length)], **options)
        assert isinstance(parser.error, PayloadOverLimit)
        assert parser.refused is not None and parser.refused.length == length


def test_the_largest_payload():
    payload = bytes(PAYLOAD_BYTES_MAX)
    header, *parts = encode_frame(5, [payload])
    assert join(parts) == payload
    assert decode_header(header) == (5, PAYLOAD_BYTES_MAX, crc32(payload))
    with pytest.raises(LocalProtocolError, match="Kimberlite takes 16777216"):
        encode_frame(5, [payload, b"x"])


def test_small_frames_are_one_buffer_and_large_ones_are_not_copied():
    assert len(encode_frame(5, [b"a", b"b"])) == 1
    large = bytes(20_000)
    assert encode_frame(5, [b"a", large])[2] is large
