"""Headers, checksums and frames."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import LocalProtocolError, OptionError, RemoteProtocolError
from lance_spark.wire.lwp import (
    HEADER_BYTES,
    Checksum,
    Frame,
    FrameFlags,
    FrameType,
    Header,
    classify,
    decode_header,
    encode_ack,
    encode_backpressure,
    encode_control,
    encode_frame,
    encode_header,
    encode_ingest,
    encode_keepalive,
    identify_checksum,
    parse_checksum,
)
from tests.each import each
from tests.wire.vectors import (
    CHECKSUMS,
    assert_decodes,
    join,
    named,
    reference_crc,
    reference_frame,
)

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


@each("row", **named("checksums"))
def test_checksum_vectors(row: dict[str, Any]) -> None:
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


def frame_of(row: dict[str, Any]) -> Frame:
    fields = row["fields"]
    return Frame(
        FrameFlags(fields["flags"]),
        fields["batch_id"],
        fields["timestamp_ns"],
        fields["record_count"],
        fields["topic_id"],
        memoryview(bytes.fromhex(fields["payload"])),
    )


def by_name(name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = named("frames")["argvalues"]
    return next(row for row in rows if row["name"] == name)


def test_corrected_appendix_a1() -> None:
    # The appendix prints E3 A5 B4 5C, which is the CRC of nothing under any algorithm.
    expected = bytes.fromhex("4C414E43 01200000 0B8BA2A3") + bytes(32)
    assert encode_keepalive() == expected
    assert bytes.fromhex(by_name("appendix A.1 keepalive")["crc32c"]) == expected
    field = bytes.fromhex("4C414E43 01200000 061E9C53") + bytes(32)
    assert encode_keepalive(checksum=Checksum.CRC32) == field


@each("name", CHECKSUMS)
@each("row", **named("frames"))
def test_vectors(row: dict[str, Any], name: str) -> None:
    data = bytes.fromhex(row[name])
    frame = frame_of(row)
    assert data == reference_frame(row["fields"], name)
    assert_decodes(data, frame, Checksum(name))
    assert_decodes(data, frame, None)
    assert frame.type is FrameType(row["type"])
    parts = encode_frame(
        frame.flags,
        [frame.payload],
        batch_id=frame.batch_id,
        timestamp_ns=frame.timestamp_ns,
        record_count=frame.record_count,
        topic_id=frame.topic_id,
        checksum=Checksum(name),
    )
    assert join(parts) == data


def test_classify_every_flag_byte() -> None:
    for flags in range(128):
        for length in (0, 1):
            if flags & 0x40:
                expected = FrameType.CONTROL
            elif flags & 0x20:
                expected = FrameType.KEEPALIVE
            elif flags & 0x08:
                expected = FrameType.ACK
            elif flags & 0x10:
                expected = FrameType.BACKPRESSURE
            elif flags & 0x04 or length:
                expected = FrameType.INGEST
            else:
                expected = FrameType.EMPTY
            assert classify(flags, length) is expected


def test_decode_header() -> None:
    data = encode_header(
        FrameFlags.BATCH_MODE,
        batch_id=1,
        timestamp_ns=2,
        record_count=3,
        payload_length=4,
        payload_crc=5,
        topic_id=6,
        checksum=Checksum.CRC32,
    )
    header, checksum = decode_header(bytearray(data), None)
    assert header == Header(FrameFlags.BATCH_MODE, 1, 2, 3, 4, 5, 6)
    assert header.type is FrameType.INGEST
    assert checksum is Checksum.CRC32


def test_decode_header_needs_all_bytes() -> None:
    with pytest.raises(RemoteProtocolError, match="44 bytes"):
        decode_header(bytes(HEADER_BYTES - 1))


def test_flipped_bits_of_protected_bytes() -> None:
    data = encode_keepalive()
    for bit in range(12 * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        for checksum in (Checksum.CRC32C, None):
            with pytest.raises(RemoteProtocolError):
                decode_header(damaged, checksum)


@pytest.mark.parametrize("flags", [0x80, 0x100, -1])
def test_encode_reserved_flags(flags: int) -> None:
    with pytest.raises(LocalProtocolError, match="reserved"):
        encode_header(flags)


@pytest.mark.parametrize(
    "fields", [{"batch_id": -1}, {"batch_id": 2**64}, {"topic_id": 2**32}]
)
def test_encode_field_out_of_range(fields: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="out of range"):
        encode_header(0, **fields)


def test_payload_is_not_copied() -> None:
    payload = bytearray(b"0123456789")
    header, *parts = encode_frame(FrameFlags.BATCH_MODE, [payload, b"", payload])
    assert len(header) == HEADER_BYTES
    assert [part.obj for part in parts] == [payload, payload]
    assert all(part.obj is payload for part in parts)


def test_shortcuts() -> None:
    for checksum in Checksum:
        name = checksum.value
        ack = encode_ack(1, checksum=checksum)
        assert ack == bytes.fromhex(by_name("ack")[name])
        slow = encode_backpressure(checksum=checksum)
        assert slow == bytes.fromhex(by_name("backpressure")[name])
        control = encode_control(1, [b"eve", b"nts"], checksum=checksum)
        assert join(control) == bytes.fromhex(by_name("control with payload")[name])


@pytest.mark.parametrize("name", ["ingest of two records", "compressed ingest"])
def test_ingest(name: str) -> None:
    row = by_name(name)
    frame = frame_of(row)
    parts = encode_ingest(
        [frame.payload],
        batch_id=frame.batch_id,
        record_count=frame.record_count,
        topic_id=frame.topic_id,
        timestamp_ns=frame.timestamp_ns,
        compressed=bool(frame.flags & FrameFlags.COMPRESSED),
    )
    assert join(parts) == bytes.fromhex(row["crc32c"])


@pytest.mark.parametrize(
    ("payload", "batch_id", "record_count"),
    [([b"x"], 0, 1), ([b"x"], 1, 0), ([], 1, 1)],
)
def test_impossible_ingest(
    payload: list[bytes], batch_id: int, record_count: int
) -> None:
    with pytest.raises(LocalProtocolError, match="needs"):
        encode_ingest(payload, batch_id=batch_id, record_count=record_count)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "ingest of two records",
            "ingest batch 2 to topic 7, 2 records, 20 bytes",
        ),
        ("ack", "ack batch 1"),
        ("appendix A.1 keepalive", "keepalive"),
        ("control with payload", "control 0x01, 6 bytes"),
    ],
)
def test_text_for_logs(name: str, text: str) -> None:
    assert str(frame_of(by_name(name))) == text
