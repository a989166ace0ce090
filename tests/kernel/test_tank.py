"""The walk over TANK's bundles: compiled, twin and reference agree on every input."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lance_spark import kernel as chosen
from lance_spark.kernel import twin
from tests.each import each
from tests.wire.tank.reference import Row, bundle, frame_bundle, make_rows, spread

if chosen.COMPILED:
    from lance_spark.kernel import _kernel, compiled

needs_build = pytest.mark.skipif(not chosen.COMPILED, reason="the kernel was not built")
SEQ_MAX = (2**63 - 1) // 2


def walk(data, seq=1, single=False):
    """Walk in both ways, which have to agree."""
    view = np.frombuffer(data, np.uint8)
    table, position, seq_next = twin.walk_tank(view, seq, single)
    assert table.dtype == np.int64 and table.shape[0] == 5
    if chosen.COMPILED:
        other, *rest = compiled.walk_tank(view, seq, single)
        assert rest == [position, seq_next]
        assert np.array_equal(other, table)
    return table, position, seq_next


def unpack(data, table):
    rows = []
    for start, end, key, time, seq in table.T.tolist():
        length = data[key - 1] if key >= 0 else 0
        text = None if key < 0 else data[key : key + length]
        rows.append(Row(seq, time % 2**64, text, data[start:end]))
    return rows


def make_chunk(chance, sizes):
    chunk, rows, seq = b"", [], 1
    for _ in range(chance.randrange(1, 5)):
        some = make_rows(chance, chance.choice(sizes), start=seq)
        sparse = bool(some) and chance.random() < 0.4
        some = spread(some, chance) if sparse else some
        chunk += frame_bundle(bundle(some, sparse=sparse))
        rows += some
        seq = some[-1].seq + 1 if some else seq
    return chunk, rows, seq


@each("seed", range(80))
def test_walks_agree_with_the_reference(seed):
    chance = random.Random(seed)
    chunk, rows, seq = make_chunk(chance, [0, 1, 2, 15, 16, 70, 200, 1500])
    table, position, seq_next = walk(chunk)
    assert unpack(chunk, table) == rows
    assert (position, seq_next) == (len(chunk), seq)


@each("seed", range(80))
def test_walks_agree_on_damage(seed):
    chance = random.Random(seed)
    chunk, _, _ = make_chunk(chance, [0, 1, 2, 15, 16, 200])
    for _ in range(40):
        damaged = bytearray(chunk)
        for _ in range(chance.randrange(1, 3)):
            # Heads are at the front.
            reach = chance.choice([30, len(damaged)])
            at = chance.randrange(min(reach, len(damaged)))
            damaged[at] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        seq = chance.choice([0, 1, 90_000, SEQ_MAX, SEQ_MAX + 1])
        walk(bytes(damaged), seq, chance.random() < 0.3)
        walk(chance.randbytes(chance.randrange(30)), seq, chance.random() < 0.5)


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("size", [0, 100, 200, 20_000])
@pytest.mark.parametrize("step", [0, 1])
def test_runs_that_end_anywhere(key, size, step):
    rows = [Row(i + 1, i * step, key, b"x" * size) for i in range(700)]
    for odd in (0, 64, 65, 66, 300, 699):
        changed = list(rows)
        changed[odd] = rows[odd]._replace(value=b"y" * (size + 1))
        data = bundle(changed)
        table, position, _ = walk(data, single=True)
        assert unpack(data, table) == changed
        assert position == len(data)


def test_runs_of_a_sparse_bundle():
    rows = [Row(i + (i > 400) * 7, 5, None, b"abc") for i in range(1, 1000)]
    data = bundle(rows, sparse=True)
    table, _, seq = walk(data, single=True)
    assert unpack(data, table) == rows
    assert seq == 1007
    # It ends one message early, behind a run.
    for last in (b"\x01", b"\xff\xff\x01"):
        wrong = data.replace(bytes([data[11], *data[12:14]]), last, 1)
        assert walk(wrong, single=True)[0].shape == (5, 0)


def test_what_stops_a_walk():
    good = frame_bundle(bundle([Row(1, 1, None, b"a")]))
    assert walk(b"")[1:] == (0, 1)
    for bad in (
        *(b"\x80", b"\x05\x04", b"\xff\xff\xff\xff\xff\x01", b"\x02\x05\x00"),
        *(b"\x02\x84\x00", b"\x01\x00", b"\x02\x00\x01", b"\x03\x00\x00\x00"),
        *(b"\x03\x44\x00\x00", b"\x04\x04\x0a\x01x", b"\x04\x04\x0a\x00"),
        *(b"\x02\x04\x00", b"\x04\x04\x03\x02x", b"\x03\x04\x03\x09"),
    ):
        table, position, seq = walk(good + bad)
        assert (table.shape[1], position, seq) == (1, len(good), 2)


@needs_build
class TestArguments:
    """It is C: a mistake in the code that calls it must not be a crash."""

    DATA = frame_bundle(bundle([Row(1, 1, None, b"a")])) * 3

    def test_an_empty_table_counts(self):
        empty = np.empty((5, 0), np.int64)
        assert _kernel.follow_tank(self.DATA, 1, False, empty) == (39, 3, 4)

    def test_it_fills_what_there_is(self):
        table = np.zeros((5, 2), np.int64)
        assert _kernel.follow_tank(self.DATA, 1, False, table) == (26, 2, 3)
        assert table[4].tolist() == [1, 2]

    def test_refuses_what_is_out_of_range(self):
        with pytest.raises(ValueError, match="out of range"):
            _kernel.follow_tank(b"", -1, False, np.empty((5, 1), np.int64))
        with pytest.raises(ValueError, match="out of range"):
            _kernel.follow_tank(b"", 1, False, np.zeros(41, np.uint8)[1:])
        with pytest.raises(TypeError):
            _kernel.follow_tank(b"", 1, False, bytes(40))
        with pytest.raises(OverflowError):
            _kernel.follow_tank(b"", 2**63, False, np.empty((5, 1), np.int64))


def test_one_place_chooses(kernel):
    data = np.frombuffer(bundle([Row(1, 2, b"k", b"abc")]), np.uint8)
    table, position, seq = chosen.walk_tank(data, 7, True)
    assert table.T.tolist() == [[13, 16, 11, 2, 7]]
    assert (position, seq) == (16, 8)
