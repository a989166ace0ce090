"""Chains from every position: the same as walking them one by one."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX
from lance_spark.wire.lwp.chains import (
    BELIEVED_HOPS,
    BELIEVED_RATIO,
    find_meeting,
    follow_chains,
)
from tests.columnar.strategies import buffers, examples, record
from tests.each import each

# Bytes that often look like a header, which random ones hardly ever do.
_header_like = st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 0x10, 0x12, 0xFF])).map(
    bytes
)
windows = st.one_of(
    buffers(),
    st.binary(max_size=300),
    _header_like,
    st.builds(lambda data, cut: data[cut:], buffers(), st.integers(0, 40)),
    st.builds(lambda *parts: b"".join(parts), buffers(), _header_like, buffers()),
)


# The same, one position at a time and with nothing of `chains` in it.


def read_end(data, at):
    """Say where the record at a position ends, None if it can't be one."""
    kind, length = struct.unpack_from("<BI", data, at)
    if kind == 0 or length > RECORD_VALUE_BYTES_MAX or (kind == 0xFF and length):
        return None
    least = {0x10: 2, 0x11: 8, 0x12: 10}.get(kind, 0)
    if length < least:
        return None
    key_at = at + 5 + least - 2
    if kind in (0x10, 0x12) and key_at + 2 <= len(data):
        (key_length,) = struct.unpack_from("<H", data, key_at)
        if key_length > length - least:
            return None
    return at + 5 + length


def walk(data, at):
    """Give all positions of a chain, the one behind the window last, or None."""
    path = [at]
    while path[-1] + 5 <= len(data):
        end = read_end(data, path[-1])
        if end is None:
            return None
        path.append(end)
    return path


def walk_all(data):
    paths = {at: walk(data, at) for at in range(max(len(data) - 4, 0))}
    return {at: path for at, path in paths.items() if path is not None}


def meet_plainly(paths, window_end, reach, wary):
    early = [at for at in paths if at < reach]
    if not early:
        return None
    best = max(early, key=lambda at: (len(paths[at]), -at))
    landing = paths[best][-1]
    judged = paths if wary else early
    others = [len(paths[at]) - 1 for at in judged if paths[at][-1] != landing]
    if len(paths[best]) - 1 < BELIEVED_RATIO * (max([1, *others]) + 1):
        return None
    ours = [set(paths[at]) for at in early if paths[at][-1] == landing]
    common = [p for p in set.intersection(*ours) if reach <= p < window_end]
    if not common or paths[best].index(min(common)) < BELIEVED_HOPS:
        return None
    return min(common)


@given(windows)
@examples(200)
def test_agrees_with_walking(data):
    chains = follow_chains(data)
    paths = walk_all(data)
    assert chains.end == max(len(data) - 4, 0)
    assert chains.starts.tolist() == list(paths)
    assert chains.nexts.tolist() == [path[1] for path in paths.values()]
    assert chains.landings.tolist() == [path[-1] for path in paths.values()]
    assert chains.hops.tolist() == [len(path) - 1 for path in paths.values()]


@given(windows, st.integers(0, 200), st.booleans())
@examples(200)
def test_meeting_agrees_with_walking(data, reach, wary):
    chains = follow_chains(data)
    expected = meet_plainly(walk_all(data), chains.end, reach, wary)
    assert find_meeting(chains, reach, wary=wary) == expected


@each("seed", range(60))
def test_meeting_agrees_with_walking_where_many_chains_live(seed):
    # Few kinds of bytes, most of them 0: chains cross, merge and run side by side.
    choice = random.Random(seed)
    kinds = [0, 0, 0, *choice.choices(range(1, 24), k=choice.randint(1, 6))]
    data = bytearray()
    while len(data) < 3000:
        inner = choice.choice([bytes, lambda n: bytes(choice.choices(kinds, k=n))])
        data += record(choice.randint(1, 5), inner(choice.randrange(60)))
    data = bytes(data[choice.randrange(50) :])
    chains, paths = follow_chains(data), walk_all(data)
    assert len(paths) > 50
    for reach in (10, 400, 1500, 2900):
        for wary in (True, False):
            expected = meet_plainly(paths, chains.end, reach, wary)
            assert find_meeting(chains, reach, wary=wary) == expected


def test_something_is_found_where_many_chains_live():
    # So that the tests above compare more than None with None.
    choice = random.Random(5)
    values = [struct.pack("<q", choice.randrange(1 << 23)) for _ in range(400)]
    data = b"".join(record(1, value) for value in values)
    paths = walk_all(data)
    early = [path for path in paths.values() if path[0] < 900]
    assert len({path[1] for path in early if path[1] >= 900}) > 3
    chains = follow_chains(data)
    found = find_meeting(chains, 900, wary=False)
    assert found == meet_plainly(paths, chains.end, 900, False)
    assert found is not None
    assert found % 13 == 0


class TestHeaders:
    """What can't be a header, alone in a window that it leads out of."""

    @each(
        ("data", "alive"),
        [
            (struct.pack("<BI", 1, 9), True),
            (struct.pack("<BI", 0, 9), False),
            (struct.pack("<BI", 1, RECORD_VALUE_BYTES_MAX), True),
            (struct.pack("<BI", 1, RECORD_VALUE_BYTES_MAX + 1), False),
            (struct.pack("<BI", 1, 2**32 - 1), False),
            (struct.pack("<BI", 0xFE, 1), True),
            (struct.pack("<BI", 0xFF, 0), True),
            (struct.pack("<BI", 0xFF, 1), False),
            (struct.pack("<BI", 0x10, 1), False),
            (struct.pack("<BI", 0x10, 2), True),
            (struct.pack("<BIH", 0x10, 6, 4), True),
            (struct.pack("<BIH", 0x10, 6, 5), False),
            (struct.pack("<BIH", 0x10, 6, 5)[:-1], True),
            (struct.pack("<BI", 0x11, 7), False),
            (struct.pack("<BI", 0x11, 8), True),
            (struct.pack("<BI", 0x12, 9), False),
            (struct.pack("<BI", 0x12, 10), True),
            (struct.pack("<BIQH", 0x12, 14, 0, 4), True),
            (struct.pack("<BIQH", 0x12, 14, 0, 5), False),
            (struct.pack("<BIQH", 0x12, 14, 0, 5)[:-1], True),
        ],
    )
    def test_first(self, data, alive):
        assert (0 in follow_chains(data).starts.tolist()) is alive

    @pytest.mark.parametrize("size", range(5))
    def test_no_whole_header(self, size):
        chains = follow_chains(b"\x01\x01\0\0\0"[:size])
        assert len(chains.starts) == 0
        assert find_meeting(chains, 1, wary=True) is None

    @each("value", range(256))
    def test_all_bytes_alike(self, value):
        assert len(follow_chains(bytes([value]) * 1000).starts) == 0

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_kinds_of_memory(self, kind):
        assert follow_chains(kind(record(1, b"abc") * 2)).starts[0] == 0


class TestMeeting:
    TEXT = record(1, b"some text that is no header at all")

    def find(self, data, reach, *, wary=False):
        chains = follow_chains(data)
        expected = meet_plainly(walk_all(data), chains.end, reach, wary)
        found = find_meeting(chains, reach, wary=wary)
        assert found == expected
        return found

    def test_first_boundary_behind_the_reach(self):
        size = len(self.TEXT)
        data = (self.TEXT * 20)[3:]
        assert self.find(data, 5 * size) == 5 * size + size - 3
        assert self.find(data, 5 * size - 3) == 5 * size - 3

    def test_nothing_starts_before_the_reach(self):
        assert self.find(self.TEXT * 20, 0) is None
        assert self.find(b"x" * 100 + self.TEXT * 20, 90) is None

    def test_few_records(self):
        assert self.find(self.TEXT * 5, 3 * len(self.TEXT)) is None
        assert self.find(self.TEXT * 7, 3 * len(self.TEXT)) == 3 * len(self.TEXT)

    def test_few_records_before_the_place(self):
        assert self.find(self.TEXT * 20, 2 * len(self.TEXT)) is None

    def test_chains_side_by_side_are_not_told_apart(self):
        # Each value has in its middle what its own header looks like.
        twin = struct.pack("<BI", 1, 50)
        data = record(1, (b"x" * 20 + twin).ljust(50, b"y")) * 40
        chains = follow_chains(data)
        assert len(np.unique(chains.landings[chains.hops > 10])) == 2
        assert self.find(data, 900) is None

    def test_values_that_hold_records(self):
        outer = record(1, record(2, b"inner text") * 20)
        data = (outer * 30)[len(outer) // 2 :]
        # By hops alone it would be the next inner record.
        found = self.find(data, 10 * len(outer))
        assert found == 10 * len(outer) + (len(outer) - len(outer) // 2)

    def test_wary_of_values_that_hold_records(self):
        # From its middle on the value of the first is as good as a whole topic. Only
        # the last record shows that there may be another truth.
        outer = record(1, record(2, b"inner text") * 60)
        data = (outer * 2)[100:] + outer[: len(outer) // 2]
        reach = 200
        assert self.find(data, reach, wary=True) is None
        assert self.find(data, reach, wary=False) is not None

    def test_a_long_length_by_chance_is_outdone(self):
        # The byte before each header and that header make a length 256 times as large.
        # With 93 bytes in each value it leads to such a place again, on and on.
        data = (record(1, b"t" * 93) * 2000)[50:]
        chains = follow_chains(data)
        assert chains.hops[chains.landings != chains.landings[-1]].max() > 1
        found = find_meeting(chains, 5000, wary=True)
        assert found is not None
        assert (found + 50) % 98 == 0


def test_positions_are_wide_enough():
    chains = follow_chains(struct.pack("<BI", 1, RECORD_VALUE_BYTES_MAX))
    assert chains.nexts.dtype == np.int64
    assert chains.landings.tolist() == [RECORD_VALUE_BYTES_MAX + 5]
