"""Batches: what is judged of them before they are stored."""

from __future__ import annotations

import gc
import struct
import weakref

import lz4.block
import lz4.frame
import numpy as np
import pytest

from lance_spark.broker.lwp.ingest import (
    Dedup,
    Unpacked,
    check_ingest,
    find_starts,
    read_batch,
)
from lance_spark.errors import (
    InvalidPayload,
    PayloadOverLimit,
    RecordError,
    RecordTooLarge,
    RemoteProtocolError,
)
from lance_spark.wire.lwp import Checksum, Frame, FrameFlags
from tests.broker.kit import record, records

LIMIT = 1024 * 1024


def frame(
    payload: bytes,
    *,
    batch: int = 1,
    count: int = 1,
    flags: int = FrameFlags.BATCH_MODE,
    topic: int = 0,
) -> Frame:
    crc = Checksum.CRC32C.update(payload)
    return Frame(FrameFlags(flags), batch, 0, count, topic, memoryview(payload), crc)


def read(
    payload: bytes,
    *,
    count: int = 1,
    flags: int = FrameFlags.BATCH_MODE,
    strict: bool = True,
    bytes_max: int = LIMIT,
    crc: Checksum = Checksum.CRC32C,
) -> Unpacked:
    sent = frame(payload, count=count, flags=flags)
    return read_batch(sent, strict=strict, bytes_max=bytes_max, crc=crc)


COMPRESSED = FrameFlags.BATCH_MODE | FrameFlags.COMPRESSED


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (frame(b"x", flags=FrameFlags.ENCRYPTED), "encrypted payloads are not"),
        (frame(b"x", batch=0), "needs a batch id, which is never 0"),
        (frame(b""), "needs a payload"),
    ],
)
def test_headers_that_make_no_sense(sent: Frame, text: str) -> None:
    with pytest.raises(InvalidPayload, match=text):
        check_ingest(sent)


def test_a_header_that_makes_sense() -> None:
    check_ingest(frame(b"x"))


def test_a_plain_batch_is_not_copied_and_its_checksum_is_used() -> None:
    payload = records("a", 3)
    sent = frame(payload, count=3)
    batch = read_batch(sent, strict=True, bytes_max=LIMIT, crc=Checksum.CRC32C)
    assert batch.data is sent.payload
    assert batch.starts.tolist() == [0, 25, 50]
    assert batch.crc32c == Checksum.CRC32C.update(payload)


def test_another_checksum_is_of_no_use_to_the_store() -> None:
    assert read(record(b"x"), crc=Checksum.CRC32).crc32c is None


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"Hello, LANCE!", "malformed record at byte 0"),
        (record(b"x") + b"\x01\x05\0\0\0abc", "malformed record at byte 6"),
        (record(b"x", kind=0), "malformed record at byte 0"),
        (record(b"\x09\0key", kind=0x10), "a key of 9 bytes where 3 are left"),
        (record(b"short", kind=0x11), "needs a length of 8 or more"),
        (record(b"x", kind=0xFF), "Null record"),
    ],
)
def test_what_is_not_records(payload: bytes, text: str) -> None:
    with pytest.raises(RecordError, match=text):
        read(payload)


def test_a_record_over_the_limit_is_an_error_of_its_own() -> None:
    large = record(bytes(16 * 1024 * 1024 + 1))
    with pytest.raises(RecordTooLarge, match="at byte 6: length 16777217 is over"):
        read(record(b"x") + large)
    # One that is not even there is no record, as a text is none.
    for payload in (large[:-1], b"\x01" + struct.pack("<I", 2**32 - 1)):
        with pytest.raises(RecordError) as error:
            read(payload)
        assert type(error.value) is RecordError


@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_the_number_of_records_has_to_be_right(count: int) -> None:
    with pytest.raises(InvalidPayload, match=f"says {count} records and holds 2"):
        read(records("a", 2), count=count)


@pytest.mark.parametrize("kind", [0x06, 0x0F, 0x13, 0x7F, 0x80, 0xFE])
def test_unassigned_types_are_records(kind: int) -> None:
    assert read(record(b"x", kind=kind)).starts.tolist() == [0]


FORMS = {
    "raw block": lambda data: lz4.block.compress(data, store_size=False),
    "sized block": lambda data: lz4.block.compress(data, store_size=True),
    "frame": lz4.frame.compress,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strict", [True, False])
def test_compressed_batches(form: str, strict: bool) -> None:
    payload = records("a", 40)
    batch = read(FORMS[form](payload), count=40, flags=COMPRESSED, strict=strict)
    assert batch.data == payload
    assert len(batch.starts) == 40
    # Of what was sent, which is not what is stored.
    assert batch.crc32c is None


def test_bombs_and_noise() -> None:
    bomb = lz4.block.compress(record(bytes(LIMIT)), store_size=False)
    for payload in (bomb, b"\xf0noise that is not LZ4"):
        with pytest.raises(RemoteProtocolError, match="not LZ4, or holds more than"):
            read(payload, flags=COMPRESSED)
    framed = lz4.frame.compress(record(bytes(LIMIT)))
    with pytest.raises(PayloadOverLimit):
        read(framed, flags=COMPRESSED)


def test_compressed_noise_is_no_batch() -> None:
    noise = lz4.block.compress(b"Hello, LANCE!" * 9, store_size=False)
    with pytest.raises(RemoteProtocolError, match="no records"):
        read(noise, flags=COMPRESSED)


def test_without_validation_anything_is_one_record() -> None:
    batch = read(b"Hello, LANCE!", count=77, strict=False)
    assert bytes(batch.data) == b"Hello, LANCE!"
    assert batch.starts.tolist() == [0]
    assert find_starts(records("a", 3)).tolist() == [0, 25, 50]
    assert find_starts(records("a", 3)[:-1]).tolist() == [0]
    assert find_starts(b"x").dtype == np.int64


def test_a_batch_that_comes_again() -> None:
    dedup = Dedup(10)
    first = frame(b"one", batch=7)
    assert not dedup.is_repeated(first)
    dedup.remember(first)
    assert dedup.is_repeated(first)
    assert not dedup.is_repeated(frame(b"one", batch=8))
    for other in (frame(b"two", batch=7), frame(b"one", batch=7, topic=1)):
        with pytest.raises(InvalidPayload, match="batch id 7 was used before"):
            dedup.is_repeated(other)


def test_a_batch_that_was_not_stored_after_all() -> None:
    dedup = Dedup(10)
    dedup.remember(frame(b"one", batch=7))
    dedup.forget(7)
    dedup.forget(8)
    assert not dedup.is_repeated(frame(b"two", batch=7))


def test_only_the_last_ones_are_remembered() -> None:
    dedup = Dedup(2)
    sent = [frame(b"x", batch=n) for n in (1, 2, 3)]
    for one in sent:
        dedup.remember(one)
    assert [dedup.is_repeated(one) for one in sent] == [False, True, True]
    none = Dedup(0)
    none.remember(sent[0])
    assert not none.is_repeated(sent[0])


def test_a_refused_batch_is_held_by_nobody() -> None:
    gc.disable()
    try:
        payload = np.zeros(100, np.uint8)
        payload[0] = 1
        payload[1] = 200  # Cut off.
        gone = weakref.ref(payload)
        frame = Frame(FrameFlags.BATCH_MODE, 1, record_count=1, payload=payload.data)
        try:
            read_batch(frame, strict=True, bytes_max=1000, crc=Checksum.CRC32C)
        except RecordError as error:
            assert error.truncated
        del payload, frame
        assert gone() is None
    finally:
        gc.enable()
