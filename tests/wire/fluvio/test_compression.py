"""Codecs: there and back, damage, and outputs that would be too large."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress

import pyarrow as pa
import pytest
from crc32c import crc32c

from lance_spark.errors import PayloadOverLimit, RemoteProtocolError
from lance_spark.wire.fluvio.compression import Codec, compress, expand, measure

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
NAME = b"\xff\x06\x00\x00sNaPpY"


def there(codec, data):
    return bytes(compress(codec, data))


def back(codec, data, bytes_max=2**24):
    return b"".join(map(bytes, expand(codec, data, bytes_max)))


@pytest.mark.parametrize("codec", CODECS)
def test_there_and_back(codec):
    chance = random.Random(15)
    for size in (0, 1, 3, 4, 100, 2**16, 2**16 + 1, 300_000):
        for data in (bytes(size), chance.randbytes(size)):
            packed = there(codec, data)
            assert back(codec, packed) == data
            assert measure(codec, packed, size) == (size, data[:4])


def test_none_is_as_it_is():
    data = b"abc"
    assert compress(Codec.NONE, data) is data


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_a_clean_error_or_other_bytes(codec):
    chance = random.Random(codec)
    packed = there(codec, b"abcdefgh" * 40 + chance.randbytes(20))
    for size in range(len(packed)):
        # Blocks of snappy are whole by themselves.
        with suppress(RemoteProtocolError):
            assert back(codec, packed[:size]) == b""
    for bit in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with suppress(RemoteProtocolError):
            back(codec, damaged)


def test_truncations_are_found():
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        packed = there(codec, b"abcdefgh" * 40)
        for size in range(1, len(packed)):
            with pytest.raises(RemoteProtocolError, match=f"not {codec.name.lower()}"):
                back(codec, packed[:size])


@pytest.mark.parametrize("codec", CODECS)
def test_a_limit(codec):
    packed = there(codec, bytes(300_000))
    assert len(back(codec, packed, 300_000)) == 300_000
    for limit in (0, 1, 299_999):
        for call in (expand, measure):
            with pytest.raises(PayloadOverLimit, match="expanded batch"):
                call(codec, packed, limit)


def test_several_members():
    # As `cat` makes them of files.
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY):
        assert back(codec, there(codec, b"one ") + there(codec, b"two")) == b"one two"


def mask(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def chunk(kind, data):
    return bytes([kind]) + struct.pack("<I", len(data))[:3] + data


class TestSnappy:
    def test_the_bytes_of_the_format(self):
        # CRC-32C of "123456789" is E3069283, which the format rotates and adds to.
        rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF
        expected = struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)
        plain = chunk(1, expected + b"123456789")
        assert there(Codec.SNAPPY, b"123456789") == NAME + plain

    def test_blocks_have_64_kib(self):
        packed = there(Codec.SNAPPY, bytes(2**16 + 1))
        block = pa.Codec("snappy").compress(bytes(2**16), asbytes=True)
        first = chunk(0, mask(bytes(2**16)) + block)
        assert packed == NAME + first + chunk(1, mask(b"\0") + b"\0")

    def test_chunks_to_be_skipped(self):
        skipped = [chunk(kind, b"xyz") for kind in (0x80, 0xFD, 0xFE)]
        plain = chunk(1, mask(b"abc") + b"abc")
        block = pa.Codec("snappy").compress(b"def", asbytes=True)
        packed = chunk(0, mask(b"def") + block)
        data = NAME + b"".join(skipped) + plain + NAME + packed
        assert back(Codec.SNAPPY, data) == b"abcdef"

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (b"\x01\x04\0\0\0\0\0\0", "its name"),
            (b"\xff\x06\0\0snappy", "its name"),
            (NAME + b"\xff\x06\0\0snappy", "its name"),
            (NAME + b"\x02\0\0\0", "0x02 is unknown"),
            (NAME + b"\x7f\0\0\0", "0x7F is unknown"),
            (NAME + b"\x01\x07\0\0\0\0\0\0abc", "checksum"),
            (NAME + b"\x00\x07\0\0\0\0\0\0\x01\0a", "checksum"),
            (NAME + b"\x00\x07\0\0\0\0\0\0\x7f\0a", "not snappy"),
            (NAME + b"\x01\xff\xff\xff", "needed"),
            (NAME + b"\x01\x03\0\0abc", "needed"),
            (NAME + b"\x00\x04\0\0abcd", "needed"),
            (NAME + b"\x00\x08\0\0\0\0\0\0\xff\xff\xff\x0f", "block of 33554431"),
        ],
    )
    def test_malformed(self, data, text):
        with pytest.raises(RemoteProtocolError, match=text):
            back(Codec.SNAPPY, data)

    def test_a_plain_block_that_is_too_large(self):
        data = NAME + chunk(1, mask(bytes(2**16 + 1)) + bytes(2**16 + 1))
        with pytest.raises(RemoteProtocolError, match="a block of 65537"):
            back(Codec.SNAPPY, data)

    def test_chunks_of_nothing_cost_time(self):
        empty = b"\x80\0\0\0"
        assert back(Codec.SNAPPY, NAME + empty * (2**16 - 1)) == b""
        with pytest.raises(RemoteProtocolError, match="more than 65536"):
            back(Codec.SNAPPY, NAME + empty * 2**16)


@pytest.mark.parametrize("codec", CODECS)
def test_bombs(codec):
    """Few bytes that become 256 MiB, which no size in front announces."""
    bomb = there(codec, bytes(8 * 2**20)) * 32
    limit = 4 * 2**20
    tracemalloc.start()
    for call in (measure, expand):
        with pytest.raises(PayloadOverLimit):
            call(codec, bomb, limit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit + 3 * 2**20
    assert pa.total_allocated_bytes() < limit
