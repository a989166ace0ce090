"""The parser: chunking, limits, views, and the end after an error."""

from __future__ import annotations

import itertools
import pickle
import struct
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RemoteProtocolError,
)
from lance_spark.wire.assembler import BLOCK_BYTES, EMPTY, Assembler
from lance_spark.wire.lwp import (
    PAYLOAD_BYTES_MAX,
    Checksum,
    Frame,
    FrameFlags,
    FrameParser,
    FrameType,
    encode_ack,
    encode_header,
    encode_ingest,
    encode_keepalive,
)
from tests.each import each
from tests.wire.vectors import join, load, named, parse

ALL_FRAMES = [bytes.fromhex(row["crc32c"]) for row in load("frames")]


def ingest(payload: bytes, batch_id: int = 1) -> bytes:
    return join(encode_ingest([payload], batch_id=batch_id, record_count=1))


def read_into(parser: FrameParser, data: bytes, step: int) -> list[Frame]:
    """Feed as a socket would: at most `step` bytes for each buffer."""
    frames: list[Frame] = []
    while data:
        room = parser.buffer_for_read()
        assert len(room) > 0
        size = min(step, len(room), len(data))
        room[:size] = data[:size]
        parser.bytes_written(size)
        data = data[size:]
        frames.extend(parser.frames())
    return frames


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_chunking_gives_the_same_frames(data: st.DataObject) -> None:
    small = st.binary(min_size=1, max_size=300)
    large = st.integers(1, 3 * BLOCK_BYTES).map(lambda size: b"\xa5" * size)
    payloads = data.draw(st.lists(st.one_of(small, large), max_size=6))
    stream = b"".join(ingest(payload, i + 1) for i, payload in enumerate(payloads))
    stream = encode_keepalive() + stream + encode_ack(9)
    expected, _ = parse([stream])
    assert [frame.payload for frame in expected[1:-1]] == payloads
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    bounds = [0, *cuts, len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(bounds)]
    assert parse(chunks)[0] == expected
    step = data.draw(st.integers(40, 100_000))
    assert read_into(FrameParser(), stream, step) == expected


def test_byte_by_byte_stream_of_all_kinds() -> None:
    stream = b"".join(ALL_FRAMES)
    whole, _ = parse([stream])
    single, parser = parse([stream[i : i + 1] for i in range(len(stream))])
    assert whole == single
    assert len(whole) == len(ALL_FRAMES)
    parser.receive_eof()
    assert parser.error is None


@pytest.mark.parametrize("size", [BLOCK_BYTES, 256 * 1024 + 1, 5 * 1024 * 1024])
def test_large_payloads(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + b"\x01" * (size % 256)
    stream = ingest(payload, 1) + ingest(b"small", 2) + ingest(payload, 3)
    for frames in (
        parse([stream])[0],
        read_into(FrameParser(), stream, 200_000),
    ):
        assert [frame.payload for frame in frames] == [payload, b"small", payload]


def test_views_stay_valid_and_are_read_only() -> None:
    parser = FrameParser()
    expected = []
    frames: list[Frame] = []
    for i in range(3000):
        payload = struct.pack("<I", i) * (1 + i % 40)
        chunk = bytearray(ingest(payload, i + 1))
        parser.receive_data(chunk)
        chunk[:] = bytes(len(chunk))
        frames.extend(parser.frames())
        expected.append(payload)
    assert [frame.payload for frame in frames] == expected
    assert all(frame.payload.readonly for frame in frames)


def test_payload_in_a_block_is_a_view() -> None:
    parser = FrameParser()
    room = parser.buffer_for_read()
    data = ingest(b"a") + ingest(b"b")
    room[: len(data)] = data
    parser.bytes_written(len(data))
    first, second = parser.frames()
    assert first.payload.obj is second.payload.obj is room.obj


def test_large_payload_is_received_in_place() -> None:
    parser = FrameParser()
    payload = b"x" * 200_000
    parser.receive_data(ingest(payload)[:100])
    assert parser.payload_missing == 200_000 - (100 - 44)
    room = parser.buffer_for_read()
    # Never beyond the frame, so that the next one is not cut out of this buffer.
    assert len(room) == parser.payload_missing
    room[:] = payload[56:]
    parser.bytes_written(len(room))
    frame = parser.next_frame()
    assert frame is not None
    assert frame.payload == payload
    assert frame.payload.obj is room.obj
    assert parser.payload_missing == 0


def find_memory(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).ctypes.data
    return address


class TestReusedBuffers:
    """A client's large answers go into buffers that stay."""

    LARGE = 512 * 1024

    def make_parser(self) -> FrameParser:
        parser = FrameParser()
        parser.reuse_buffers()
        return parser

    def read(self, parser: FrameParser, fill: bytes, size: int = LARGE) -> memoryview:
        (frame,) = read_into(parser, ingest(fill * size), 100_000)
        assert frame.payload == fill * size
        return frame.payload

    def test_memory_is_written_again_once_its_views_are_gone(self) -> None:
        parser = self.make_parser()
        first = find_memory(self.read(parser, b"a"))
        # Answers differ a little in their sizes.
        assert find_memory(self.read(parser, b"b", self.LARGE + 5)) == first
        assert find_memory(self.read(parser, b"c", self.LARGE - 5)) == first

    def test_two_take_turns_while_one_is_looked_at(self) -> None:
        parser, seen, last = self.make_parser(), set(), EMPTY
        for number in range(6):
            last = self.read(parser, bytes([number]))
            seen.add(find_memory(last))
        assert len(seen) == 2

    def test_any_view_keeps_its_bytes(self) -> None:
        parser = self.make_parser()
        views = [
            # What reading does with payloads: parts, arrays, Arrow's buffers.
            lambda payload: payload[-5:],
            lambda payload: np.frombuffer(payload, np.uint8)[7:],
            lambda payload: pa.py_buffer(payload).slice(3),
        ]
        kept = []
        for number, view in enumerate(views * 2):
            kept.append((number, view(self.read(parser, bytes([number])))))
        for number in range(6, 12):
            self.read(parser, bytes([number]))
        for number, view in kept:
            assert set(bytes(view)) == {number}

    def test_a_larger_payload_takes_the_place_of_a_smaller_one(self) -> None:
        parser, size = self.make_parser(), 3 * self.LARGE
        first, second = self.read(parser, b"a"), self.read(parser, b"b")
        del first, second
        large = find_memory(self.read(parser, b"c", size))
        assert find_memory(self.read(parser, b"d", size)) == large

    def test_memory_is_only_kept_where_it_is_wanted(self) -> None:
        parser = self.make_parser()
        tracemalloc.start()
        try:
            for number in range(8):
                self.read(parser, bytes([number]))
            kept, _ = tracemalloc.get_traced_memory()
            del parser
            dropped, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # No more than two, and none once the connection is gone.
        assert kept - dropped < 3 * 2 * self.LARGE
        assert dropped < self.LARGE

    def test_parsers_without_it_hold_nothing(self) -> None:
        parser = FrameParser()
        tracemalloc.start()
        try:
            self.read(parser, b"a")
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < self.LARGE


def test_acks_reuse_their_block() -> None:
    parser = FrameParser()
    first = parser.buffer_for_read().obj
    for batch_id in range(1, 4000):
        parser.receive_data(encode_ack(batch_id))
        assert parser.next_frame() == Frame(FrameFlags.ACK, batch_id)
    assert parser.buffer_for_read().obj is first


def test_partial_header_moves_to_the_front() -> None:
    # Acks in odd pieces: the block gets full without ever being empty or shared.
    stream = encode_ack(7) * 5000
    chunks = [stream[i : i + 1999] for i in range(0, len(stream), 1999)]
    frames, _ = parse(chunks)
    assert frames == [Frame(FrameFlags.ACK, 7)] * 5000


@each("row", **named("malformed_frames"))
def test_malformed(row: dict[str, Any]) -> None:
    good = encode_keepalive()
    bad = bytes.fromhex(row["hex"])
    stream = good + bad + good
    for chunks in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        parser = FrameParser()
        for chunk in chunks:
            parser.receive_data(chunk)
        # The frame before the error is handed out, nothing behind it ever is.
        frame = parser.next_frame()
        assert frame is not None
        assert frame.type is FrameType.KEEPALIVE
        for _ in range(3):
            with pytest.raises(RemoteProtocolError, match=row["reason"]) as caught:
                parser.next_frame()
            assert repr(caught.value) == repr(parser.error)
            # What is raised leads back to nobody who holds the parser.
            assert caught.value is not parser.error
        parser.receive_data(good)
        parser.receive_eof()
        with pytest.raises(RemoteProtocolError, match=row["reason"]):
            parser.buffer_for_read()
        with pytest.raises(RemoteProtocolError, match=row["reason"]):
            list(parser.frames())


def test_error_position() -> None:
    parser = FrameParser()
    parser.receive_data(ingest(b"12345") + b"x" * 44)
    assert parser.error is not None
    assert parser.error.position == 49


def test_payload_over_the_limit_can_be_told_and_answered() -> None:
    header = encode_header(
        FrameFlags.BATCH_MODE, batch_id=5, topic_id=3, payload_length=101
    )
    parser = FrameParser(payload_bytes_max=100)
    assert parser.refused is None
    parser.receive_data(header)
    error = parser.error
    assert isinstance(error, PayloadOverLimit)
    assert (error.size, error.limit) == (101, 100)
    assert str(error) == "payload of 101 bytes is over the limit of 100"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert parser.refused is not None
    assert (parser.refused.batch_id, parser.refused.topic_id) == (5, 3)
    assert parser.refused.type is FrameType.INGEST


def test_payload_at_the_limit() -> None:
    frames, _ = parse([ingest(b"x" * 100)], payload_bytes_max=100)
    assert len(frames) == 1


def traced_peak(parser_input: list[bytes]) -> int:
    parser = FrameParser(payload_bytes_first=256 * 1024)
    tracemalloc.start()
    try:
        for chunk in parser_input:
            parser.receive_data(chunk)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_announced_bytes_are_not_allocated() -> None:
    header = encode_header(0x04, batch_id=1, payload_length=PAYLOAD_BYTES_MAX)
    assert traced_peak([header]) < 300_000
    # A dribbling peer holds no more than a few times of what it sent.
    assert traced_peak([header, b"x" * 300_000]) < 5 * 300_000
    refused = encode_header(0x04, batch_id=1, payload_length=PAYLOAD_BYTES_MAX + 1)
    assert traced_peak([refused]) < 10_000


def test_auto_locks_to_the_first_algorithm() -> None:
    parser = FrameParser(checksum=None)
    assert parser.checksum is None
    parser.receive_data(encode_keepalive(checksum=Checksum.CRC32))
    assert parser.checksum is Checksum.CRC32
    parser.receive_data(encode_keepalive(checksum=Checksum.CRC32C))
    assert parser.next_frame() is not None
    with pytest.raises(RemoteProtocolError, match=r"CRC mismatch \(not crc32\)"):
        parser.next_frame()


def test_auto_knows_neither() -> None:
    _, parser = parse([b"LANC\x01\x20\0\0\xe3\xa5\xb4\x5c" + bytes(32)], None)
    with pytest.raises(RemoteProtocolError, match="not crc32c or crc32"):
        parser.next_frame()


def test_auto_uses_the_algorithm_for_payloads() -> None:
    data = join(
        encode_ingest([b"x"], batch_id=1, record_count=1, checksum=Checksum.CRC32)
    )
    assert len(parse([data], None)[0]) == 1
    wrong = data[:36] + struct.pack("<I", Checksum.CRC32C.update(b"x")) + data[40:]
    _, parser = parse([wrong], None)
    assert "payload CRC mismatch (crc32)" in str(parser.error)


@pytest.mark.parametrize("size", [1, 43, 44, 47])
def test_eof_inside_a_frame(size: int) -> None:
    parser = FrameParser()
    parser.receive_data(ingest(b"1234")[:size])
    assert parser.next_frame() is None
    parser.receive_eof()
    with pytest.raises(RemoteProtocolError, match="ended in a frame"):
        parser.next_frame()


@pytest.mark.parametrize("size", [-1, BLOCK_BYTES + 1])
def test_more_written_than_there_was_room(size: int) -> None:
    parser = FrameParser()
    parser.buffer_for_read()
    with pytest.raises(LocalProtocolError, match="bytes written"):
        parser.bytes_written(size)


def test_write_needs_a_buffer_each_time() -> None:
    parser = FrameParser()
    parser.buffer_for_read()
    parser.bytes_written(3)
    with pytest.raises(LocalProtocolError):
        parser.bytes_written(1)


def test_any_buffer_can_be_fed() -> None:
    parser = FrameParser()
    words = memoryview(encode_keepalive()).cast("I")
    parser.receive_data(words)
    parser.receive_data(b"")
    assert parser.next_frame() == Frame(FrameFlags.KEEPALIVE)


def test_how_much_memory_the_next_bytes_take() -> None:
    kib = 1024
    parser = FrameParser(payload_bytes_first=256 * kib)
    assert parser.payload_bytes_next == 0
    stream = ingest(bytes(3000 * kib))
    parser.receive_data(stream[:20])
    assert parser.payload_bytes_next == 0
    parser.receive_data(stream[20:44])
    assert parser.payload_bytes_next == 256 * kib
    # It is said before it is taken, and the same after.
    done = 44
    for size in (256 * kib, 1024 * kib, 3000 * kib):
        assert parser.payload_bytes_next == size
        room = parser.buffer_for_read()
        assert parser.payload_bytes_next == size
        while done < 44 + size:
            part = stream[done : done + len(room)]
            room[: len(part)] = part
            parser.bytes_written(len(part))
            done += len(part)
            if done < 44 + size:
                room = parser.buffer_for_read()
    assert parser.payload_bytes_next == 0
    frame = parser.next_frame()
    assert frame is not None
    assert len(frame.payload) == 3000 * kib


def test_a_small_payload_takes_what_it_needs() -> None:
    parser = FrameParser()
    parser.receive_data(ingest(b"x" * 1000)[:100])
    assert parser.payload_bytes_next == 1000


@pytest.mark.parametrize("checksum", list(Checksum))
def test_frames_know_the_checksum_of_their_payload(checksum: Checksum) -> None:
    for payload in (b"small", bytes(300_000)):
        parts = encode_ingest([payload], batch_id=1, record_count=1, checksum=checksum)
        [frame] = parse([join(parts)], checksum)[0]
        assert frame.payload_crc == checksum.update(payload)
    [frame] = parse([encode_ack(1)])[0]
    assert frame.payload_crc == 0
    # Two frames with the same content are the same, however they came about.
    assert frame == Frame(FrameFlags.ACK, 1, payload_crc=7)


def test_large_pages_are_not_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    parser = FrameParser(payload_bytes_first=1024)
    parser.receive_data(ingest(bytes(5000)))
    frame = parser.next_frame()
    assert frame is not None
    assert frame.payload == bytes(5000)


class Lines(Assembler[int, bytes]):
    """The smallest protocol: a big-endian length, and that many bytes without a 0."""

    def __init__(self, **options: int) -> None:
        super().__init__(header_bytes=4, **options)

    def _read_header(self, view: memoryview) -> tuple[int, int]:
        length = int.from_bytes(view[:4], "big", signed=True)
        if length < 0:
            raise RemoteProtocolError(f"a length of {length}")
        return length, length

    def _finish_frame(self, header: int, payload: memoryview) -> bytes:
        assert len(payload) == header and payload.readonly
        if 0 in payload:
            raise RemoteProtocolError("a zero")
        return bytes(payload)


class TestAnotherProtocol:
    FRAMES = (b"", b"a", b"x" * 200_000, b"b" * 70, b"")
    STREAM = b"".join(len(frame).to_bytes(4, "big") + frame for frame in FRAMES)

    @pytest.mark.parametrize("size", [3, 4, 5, 1000, 10**6])
    def test_frames(self, size: int) -> None:
        assembler = Lines(payload_bytes_max=10**6, payload_bytes_first=100)
        found = []
        for at in range(0, len(self.STREAM), size):
            assembler.receive_data(self.STREAM[at : at + size])
            found += assembler.frames()
        assert found == list(self.FRAMES)

    @pytest.mark.parametrize(
        ("tail", "reason"),
        [
            (b"\xff\xff\xff\xff", "a length of -1 at byte 5"),
            (b"\0\0\0\2a\0", "a zero at byte 5"),
        ],
    )
    def test_errors_say_where(self, tail: bytes, reason: str) -> None:
        assembler = Lines(payload_bytes_max=100)
        assembler.receive_data(b"\0\0\0\1a" + tail + b"more")
        assert assembler.next_frame() == b"a"
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match=reason):
                assembler.next_frame()

    def test_limit(self) -> None:
        assembler = Lines(payload_bytes_max=100)
        assembler.receive_data(b"\0\0\0\x65")
        with pytest.raises(PayloadOverLimit):
            assembler.next_frame()
        assert assembler.refused == 101


class Kinds(Assembler[int, bytes]):
    """A kind and a length, of one byte each; the header is the kind alone."""

    def _read_header(self, view: memoryview) -> tuple[int, int]:
        return view[0], view[1]

    def _finish_frame(self, header: int, payload: memoryview) -> bytes:
        return bytes(payload)


@pytest.mark.parametrize("kind", [0, 1])
def test_eof_inside_a_payload_whatever_its_header(kind: int) -> None:
    parser = Kinds(header_bytes=2, payload_bytes_max=100)
    parser.receive_data(bytes((kind, 4)) + b"ab")
    parser.receive_eof()
    with pytest.raises(RemoteProtocolError, match="ended in a frame"):
        parser.next_frame()


def test_a_payload_takes_no_memory_before_its_reader_asks_for_room() -> None:
    """A server asks its budget between the header and `buffer_for_read`."""
    kib = 1024
    data = ingest(b"\xa5" * 900 * kib)
    parser = FrameParser()
    tracemalloc.start()
    try:
        room = parser.buffer_for_read()
        room[:1000] = data[:1000]
        parser.bytes_written(1000)
        del room
        assert parser.payload_bytes_next >= 900 * kib
        assert tracemalloc.get_traced_memory()[0] < 100 * kib
        parser.buffer_for_read()
        assert tracemalloc.get_traced_memory()[0] > 800 * kib
    finally:
        tracemalloc.stop()
    (frame,) = read_into(parser, data[1000:], 10**6)
    assert bytes(frame.payload) == b"\xa5" * 900 * kib
