"""Both checksums against published values, and telling them apart."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import OptionError
from lance_spark.wire.lwp import Checksum, identify_checksum, parse_checksum
from tests.wire.vectors import CHECKSUMS, named, reference_crc

# Appendix A.3 of the specification, and what both algorithms' own descriptions give
# for the digits 1 to 9. Written here by hand: they do not come from the vectors.
PUBLISHED = [
    ("crc32c", b"", 0x00000000),
    ("crc32c", b"a", 0xC1D04330),
    ("crc32c", b"hello", 0x9A71BB4C),
    ("crc32c", b"123456789", 0xE3069283),
    ("crc32", b"a", 0xE8B7BE43),
    ("crc32", b"hello", 0x3610A686),
    ("crc32", b"123456789", 0xCBF43926),
]

# Flags of a header, and the CRC of its first eight bytes under both algorithms, as
# computed independently when the servers in the field were examined.
HEADERS = [
    (0x04, 0xDC38D405, 0x6CD8F03A),
    (0x05, 0x7979467B, 0x6D1A9A0D),
    (0x08, 0x7AB74EDA, 0x65C2095E),
    (0x10, 0x32440D95, 0x77F7FB96),
    (0x20, 0xA3A28B0B, 0x539C1E06),
    (0x40, 0x8583F0C6, 0x1B4BD526),
]


@pytest.mark.parametrize(("name", "data", "expected"), PUBLISHED)
def test_published_values(name: str, data: bytes, expected: int) -> None:
    assert Checksum(name).update(data) == expected
    assert reference_crc(data, name) == expected


@pytest.mark.parametrize(("flags", "crc32c", "crc32"), HEADERS)
def test_header_constants(flags: int, crc32c: int, crc32: int) -> None:
    prefix = b"LANC\x01" + bytes([flags, 0, 0])
    assert Checksum.CRC32C.update(prefix) == crc32c
    assert Checksum.CRC32.update(prefix) == crc32


@pytest.mark.parametrize("row", **named("checksums"))
def test_vectors(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["input"])
    for name in CHECKSUMS:
        assert Checksum(name).update(data) == int(row[name], 16)


@given(st.binary(), st.binary(), st.sampled_from(Checksum))
def test_update_continues(head: bytes, tail: bytes, checksum: Checksum) -> None:
    whole = checksum.update(head + tail)
    assert checksum.update(memoryview(tail), checksum.update(bytearray(head))) == whole


def test_identify_every_header() -> None:
    for flags in range(128):
        prefix = b"LANC\x01" + bytes([flags, 0, 0])
        crcs = {checksum: checksum.update(prefix) for checksum in Checksum}
        assert len(set(crcs.values())) == len(Checksum)
        for checksum, crc in crcs.items():
            assert identify_checksum(prefix + struct.pack("<I", crc)) is checksum


def test_identify_neither() -> None:
    assert identify_checksum(b"LANC\x01\x20\x00\x00\xe3\xa5\xb4\x5c") is None


def test_parse_setting() -> None:
    assert parse_checksum("crc32c") is Checksum.CRC32C
    assert parse_checksum("crc32") is Checksum.CRC32
    assert parse_checksum("auto") is None
    with pytest.raises(OptionError, match="'md5' is unknown; use crc32c"):
        parse_checksum("md5")
