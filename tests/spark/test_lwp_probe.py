"""Boundaries found by looking: true ones, the same for everybody, from few bytes."""

from __future__ import annotations

import json
import random
import string
import struct
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.client.lwp.places import WINDOW_BYTES, find_boundary
from tests.columnar.strategies import examples, record
from tests.each import each

MIB = 1024 * 1024
TEXT = (string.ascii_letters + string.digits + " ").encode()


class Log:
    """Records, and a way to fetch from them that notes what it was asked for.

    Args:
        records: those of the range.
        cut: how many bytes the range lacks at its end.
    """

    def __init__(self, records: list[bytes], cut: int = 0) -> None:
        self.data = b"".join(records)
        self.end = len(self.data) - cut
        self.bounds = set(accumulate(map(len, records), initial=0))
        self.asked: list[tuple[int, int]] = []

    def fetch(self, start: int, size: int) -> memoryview:
        assert size > 0
        self.asked.append((start, start + size))
        return memoryview(self.data)[start : start + size]

    def find(self, at: int, before: int | None = None) -> int | None:
        before = self.end if before is None else before
        self.asked.clear()
        found = find_boundary(self.fetch, at, before=before, end=self.end)
        assert found is None or at <= found < before
        # Nothing outside of the range, and no more than is allowed.
        assert all(at <= start < stop <= self.end for start, stop in self.asked)
        assert sum(b - a for a, b in self.asked) <= WINDOW_BYTES[-1]
        return found


def text(choice: random.Random, size: int) -> bytes:
    return bytes(choice.choices(TEXT, k=size))


def make_json(choice: random.Random) -> bytes:
    tags = [text(choice, 8).decode() for _ in range(20)]
    row = {"id": choice.randrange(10**9), "tags": tags, "body": "x" * 700}
    return record(2, json.dumps(row).encode())


def make_mixed(choice: random.Random) -> bytes:
    kind = choice.choice((0x01, 0x02, 0x80, 0x10, 0x11, 0x12, 0xFF))
    if kind == 0xFF:
        return record(kind, b"")
    body = b""
    if kind in (0x11, 0x12):
        body += struct.pack("<Q", 1_706_918_400_000_000_000 + choice.randrange(10**15))
    if kind in (0x10, 0x12):
        key = choice.randbytes(choice.randrange(1, 20))
        body += struct.pack("<H", len(key)) + key
    return record(kind, body + choice.randbytes(choice.randrange(300)))


def make_sparse(choice: random.Random) -> bytes:
    """Make a value of small integers, in which every third byte looks like a header."""
    numbers = [choice.randrange(1 << 24) for _ in range(100)]
    return record(1, struct.pack("<100q", *numbers))


def hold(choice: random.Random, size: int, inner: int) -> bytes:
    """Make a value that holds records itself."""
    return record(1, b"".join(record(2, text(choice, inner)) for _ in range(size)))


# Name, how a record is made, bytes of the log, probes, how many have to find something.
KINDS: list[tuple[str, Callable[[random.Random], bytes], int, int, float]] = [
    ("10 bytes, text", lambda c: record(1, text(c, 5)), MIB, 40, 1.0),
    ("10 bytes, binary", lambda c: record(1, c.randbytes(5)), MIB, 40, 1.0),
    # In these two a chain of chance runs beside the true one for ever.
    ("int64", lambda c: record(1, struct.pack(">q", c.randrange(10**7))), MIB, 40, 1.0),
    ("98 bytes, text", lambda c: record(1, text(c, 93)), MIB, 40, 1.0),
    ("100 bytes, text", lambda c: record(1, text(c, 95)), MIB, 40, 1.0),
    ("100 bytes, binary", lambda c: record(1, c.randbytes(95)), MIB, 40, 1.0),
    ("1 KB, JSON", make_json, 2 * MIB, 40, 1.0),
    ("1 KB, binary", lambda c: record(1, c.randbytes(995)), 2 * MIB, 40, 1.0),
    ("20 KB, binary", lambda c: record(1, c.randbytes(20_000)), 4 * MIB, 20, 1.0),
    ("100 KB, binary", lambda c: record(1, c.randbytes(100_000)), 6 * MIB, 20, 0.9),
    ("keys and timestamps", make_mixed, MIB, 40, 1.0),
    ("empty", lambda c: record(1, b""), MIB, 20, 1.0),
    ("Null", lambda c: record(0xFF, b""), MIB, 20, 1.0),
    ("some empty", lambda c: record(1, text(c, c.choice([0, 40]))), MIB, 40, 1.0),
    (
        "some large",
        lambda c: record(1, c.randbytes(c.choice([*[200] * 50, 40_000]))),
        4 * MIB,
        40,
        1.0,
    ),
    ("integers", make_sparse, 2 * MIB, 20, 1.0),
    ("one record in each", lambda c: hold(c, 1, 100), MIB, 40, 1.0),
    ("1 KB of records in each", lambda c: hold(c, 20, 45), 2 * MIB, 40, 1.0),
    ("5 KB of records in each", lambda c: hold(c, 50, 95), 4 * MIB, 20, 1.0),
]


@pytest.mark.parametrize(
    ("make", "size", "probes", "least"),
    [kind[1:] for kind in KINDS],
    ids=[kind[0] for kind in KINDS],
)
def test_finds_true_boundaries(make, size, probes, least):
    choice = random.Random(1706918400)
    # Some hundreds of records over and over are as good, and made sooner.
    pool = [make(choice) for _ in range(300 if len(make(choice)) < 5000 else 60)]
    records: list[bytes] = []
    total = 0
    while total < size:
        records.append(choice.choice(pool))
        total += len(records[-1])
    log = Log(records)
    last = log.end - min(size // 4, WINDOW_BYTES[-1])
    found = [log.find(choice.randrange(last)) for _ in range(probes)]
    hits = [place for place in found if place is not None]
    assert set(hits) <= log.bounds
    assert len(hits) >= least * probes


# Windows.


def test_one_small_fetch_is_enough_for_small_records():
    choice = random.Random(1)
    log = Log([record(1, text(choice, 95)) for _ in range(4000)])
    assert log.find(12_345) in log.bounds
    assert log.asked == [(12_345, 12_345 + WINDOW_BYTES[0])]


def test_what_was_fetched_is_not_fetched_again():
    choice = random.Random(1)
    log = Log([record(1, choice.randbytes(100_000)) for _ in range(30)])
    assert log.find(12_345) in log.bounds
    ends = [12_345, *(12_345 + size for size in WINDOW_BYTES)]
    assert log.asked == list(pairwise(ends))


def test_gives_up_behind_the_last_window():
    log = Log([record(1, b"x" * 3 * MIB), *[record(1, b"x" * 95)] * 1000])
    assert log.find(10) is None
    assert len(log.asked) == len(WINDOW_BYTES)
    # Its end is in sight from here.
    assert log.find(3 * MIB - 20_000) in log.bounds


def test_one_huge_record_of_random_bytes_over_several_windows():
    choice = random.Random(3)
    log = Log([record(1, choice.randbytes(4 * MIB))])
    for at in range(0, log.end, 300_000):
        assert log.find(at) is None


@pytest.mark.parametrize("cut", [0, 1, 40, 96, 99, 100])
def test_the_range_ends_anywhere(cut):
    choice = random.Random(1)
    log = Log([record(1, text(choice, 95)) for _ in range(50)], cut)
    assert log.find(1234) in log.bounds
    for at in range(log.end - 700, log.end):
        assert log.find(at) in {None, *log.bounds}


def test_a_range_of_one_record():
    log = Log([record(1, b"hello")])
    assert [log.find(at) for at in range(log.end)] == [None] * log.end


@pytest.mark.parametrize("at", [0, 7])
def test_an_empty_range(at):
    log = Log([record(1, b"")] * 2)
    log.end = at
    assert log.find(at) is None
    assert log.asked == []


@each("before", range(1000, 1700, 7))
def test_below_the_next_point(before):
    choice = random.Random(1)
    log = Log([record(1, text(choice, 95)) for _ in range(100)])
    assert log.find(950, before) in {None, *log.bounds}


def test_a_part_need_not_be_as_large_as_a_window():
    choice = random.Random(1)
    log = Log([record(1, text(choice, 95)) for _ in range(1000)])
    for at in range(0, 50_000, 2000):
        assert log.find(at, at + 2000) in log.bounds


def test_a_part_that_is_smaller_than_a_window_is_not_worth_another():
    log = Log([record(1, b"x" * 50_000)] * 100)
    assert log.find(100, 60_000) is None
    assert log.asked == [(100, 100 + WINDOW_BYTES[0])]


# What can't be told.


@each("value", range(256))
def test_all_bytes_alike(value):
    log = Log([bytes([value]) * 3000])
    assert log.find(100) is None


def test_values_larger_than_all_windows_that_hold_records():
    # Nobody can tell an inner record from an outer one here; it must only not fail.
    choice = random.Random(1)
    log = Log([hold(choice, 30_000, 95)])
    assert log.find(12_345) is not None
    assert log.find(12_345) not in log.bounds


def test_records_inside_of_records_inside_of_records():
    inner = record(1, record(2, record(3, b"core") * 10) * 10)
    log = Log([record(4, inner * 10)] * 100)
    for at in range(0, 100_000, 9973):
        assert log.find(at) in {None, *log.bounds}


# For anybody, always the same.


_texts = st.binary(max_size=60).map(lambda b: bytes(0x20 + x % 0x5F for x in b))
_text_records = st.one_of(
    st.builds(record, st.sampled_from([1, 2, 0x80]), _texts),
    st.builds(
        lambda k, v: record(0x10, struct.pack("<H", len(k)) + k + v), _texts, _texts
    ),
    st.builds(
        lambda v: record(0x11, struct.pack("<Q", 1_706_918_400_123_456_789) + v), _texts
    ),
    st.just(record(0xFF, b"")),
)
_any_records = st.one_of(
    _text_records,
    st.builds(record, st.integers(1, 0xFE), st.binary(max_size=40)),
    st.builds(lambda parts: record(1, b"".join(parts)), st.lists(_text_records)),
)


@st.composite
def logs(draw: st.DrawFn, records: st.SearchStrategy[bytes]) -> tuple[Log, int, int]:
    some = draw(st.lists(records, min_size=1, max_size=30))
    some = some * draw(st.integers(1, 12))
    size = sum(map(len, some))
    log = Log(some, draw(st.integers(0, min(size, 50))))
    at = draw(st.integers(0, log.end))
    return log, at, draw(st.integers(at, log.end))


@given(logs(_any_records))
@examples(150)
def test_none_or_in_the_part(drawn):
    log, at, before = drawn
    found = log.find(at, before)
    # A second task knows nothing of the first, and nothing of what is before `at`.
    other = Log([bytes(at) + log.data[at : log.end]])
    assert other.find(at, before) == found


@given(logs(_text_records))
@examples(150)
def test_true_where_values_are_text(drawn):
    log, at, before = drawn
    assert log.find(at, before) in {None, *log.bounds}
