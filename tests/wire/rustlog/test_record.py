"""Records in bulk, and how they are cut into frames."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from lance_spark.errors import LanceError, RemoteProtocolError, RowError
from lance_spark.records import Records
from lance_spark.wire.rustlog import (
    FRAME_BYTES_MAX,
    PIECE_BYTES_MAX,
    FetchResponse,
    Produce,
    decode_request,
    decode_response,
    encode_message,
    read_records,
    split_records,
    write_records,
)
from tests.each import each
from tests.wire.rustlog.plain import join, list_values, make_records

pytestmark = pytest.mark.usefixtures("kernel")


def write_plainly(values: list[bytes]) -> bytes:
    return b"".join(len(value).to_bytes(4, "big") + value for value in values)


@each("seed", range(40))
def test_there_and_back(seed: int) -> None:
    choice = random.Random(seed)
    size = choice.choice([1, 2, 100, 6000])
    count = choice.choice([0, 1, 63, 64, 65, 1000])
    values = [choice.randbytes(choice.randrange(size)) for _ in range(count)]
    if choice.random() < 0.3:
        values = [b"same" for _ in values]
    data = write_plainly(values)
    assert write_records(make_records(values)).tobytes() == data
    records = read_records(data + b"tail", count, base=7)
    assert list_values(records) == values
    assert records.find_positions().tolist() == list(range(7, 7 + count))
    assert write_records(records).tobytes() == data
    half = count // 2
    assert list_values(read_records(data, half)) == values[:half]
    for wrong in (data[:-1], data[: len(data) // 2]):
        if wrong != data:
            with pytest.raises(RemoteProtocolError, match="are announced"):
                read_records(wrong, count)
    with pytest.raises(RemoteProtocolError, match=f"{count} of them are there"):
        read_records(data, 2**32 - 1)


def test_what_is_not_carried() -> None:
    values = make_records([b"one", b"", b"three"])
    records = Records(
        values.values,
        base=100,
        positions=np.array([0, 5, 9]),
        types=np.array([1, 255, 16]),
        nulls=np.array([False, True, False]),
        keyed=np.array([2]),
        keys=make_records([b"key"]).values,
        stamped=np.array([0]),
        stamps_ns=np.array([5], np.uint64),
    )
    assert list_values(read_records(write_records(records), 3)) == [
        b"one",
        b"",
        b"three",
    ]


def test_fault() -> None:
    records = dataclasses.replace(make_records([b"x"]), fault=LanceError("broken"))
    with pytest.raises(LanceError, match="broken"):
        write_records(records)


class TestSplit:
    # As RustLog's broker has answered: see the vectors.
    @each(("bytes_max", "count"), [(2**32 - 1, 3), (33, 2), (32, 1), (1, 1), (0, 0)])
    def test_fetch(self, bytes_max: int, count: int) -> None:
        records = make_records([b"bytes", b"more", b"third"])
        pieces = [len(piece) for piece in split_records(records, bytes_max)]
        assert pieces[:1] == ([count] if count else [])
        assert sum(pieces) == (3 if count else 0)

    @each("as_json", [False, True])
    @each("bytes_max", [1, 13, 500, 2**40])
    def test_all(self, as_json: bool, bytes_max: int) -> None:
        choice = random.Random(bytes_max)
        values = [choice.randbytes(choice.randrange(60)) for _ in range(500)]
        records = make_records(values, base=50)
        pieces = list(split_records(records, bytes_max, as_json=as_json))
        assert [v for piece in pieces for v in list_values(piece)] == values
        assert [p for piece in pieces for p in piece.find_positions()] == list(
            range(50, 550)
        )
        for piece in pieces:
            cost = int((piece.values.lengths + 12).sum())
            assert len(piece) == 1 or cost <= bytes_max

    def test_nothing(self) -> None:
        assert list(split_records(make_records([]), 100)) == []

    @pytest.mark.parametrize("size", [0, 1, 1000])
    @pytest.mark.parametrize("as_json", [False, True])
    def test_pieces_fit_into_frames(self, size: int, as_json: bool) -> None:
        total = (PIECE_BYTES_MAX + PIECE_BYTES_MAX // 8) // (4 if as_json else 1)
        count = total // (size + 12)
        data = np.full(max(size, 1), 255, np.uint8)
        starts = np.zeros(count, np.int64)
        spans = dataclasses.replace(
            make_records([]).values, data=data, starts=starts, ends=starts + size
        )
        records, topic = Records(spans, base=2**62), "\0" * 255
        pieces = list(split_records(records, 2**40, topic=topic, as_json=as_json))
        assert len(pieces) == 2
        for message in (
            FetchResponse(pieces[0], 2**62 + count),
            Produce(topic, 2**32 - 1, pieces[0]),
        ):
            frame = join(encode_message(message, as_json=as_json))[4:]
            is_answer = isinstance(message, FetchResponse)
            found = decode_response(frame) if is_answer else decode_request(frame)
            assert len(found.records) == len(pieces[0])  # type: ignore[attr-defined]

    @pytest.mark.parametrize("as_json", [False, True])
    def test_largest_value(self, as_json: bool) -> None:
        for size in (FRAME_BYTES_MAX // 4 - 100, FRAME_BYTES_MAX - 17):
            if as_json and size > FRAME_BYTES_MAX // 4:
                continue
            value = b"\xff" * size
            values = [b"small", value, b"small"]
            pieces = list(split_records(make_records(values), 2**40, as_json=as_json))
            assert [v for piece in pieces for v in list_values(piece)] == values
            for piece in pieces:
                encode_message(FetchResponse(piece, 2**62), as_json=as_json)

    @pytest.mark.parametrize("as_json", [False, True])
    def test_too_large(self, as_json: bool) -> None:
        size = (FRAME_BYTES_MAX // 4) if as_json else FRAME_BYTES_MAX - 16
        records = make_records([b"small", bytes(size), b"small"], base=40)
        pieces = split_records(records, 2**40, as_json=as_json)
        assert list_values(next(pieces)) == [b"small"]
        with pytest.raises(RowError, match="fits into no frame") as caught:
            next(pieces)
        assert caught.value.row == 41

    def test_room_for_the_topic(self) -> None:
        topic = "t" * 200
        for size, fits in (
            (FRAME_BYTES_MAX - 217, True),
            (FRAME_BYTES_MAX - 216, False),
        ):
            pieces = split_records(make_records([bytes(size)]), 2**40, topic=topic)
            if fits:
                join(encode_message(Produce(topic, 0, next(pieces))))
            else:
                with pytest.raises(RowError):
                    next(pieces)
