"""The walk over Fluvio's batches: compiled, twin and reference agree on every input."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from lance_spark import kernel as chosen
from lance_spark.kernel import twin
from tests.wire.fluvio.reference import PARTS, Row, batch, make_rows, record, zigzag

if chosen.COMPILED:
    from lance_spark.kernel import _kernel, compiled

needs_build = pytest.mark.skipif(not chosen.COMPILED, reason="the kernel was not built")


def walk(data):
    """Walk in both ways, which have to agree."""
    view = np.frombuffer(data, np.uint8)
    table, batches, position = twin.walk_fluvio(view)
    assert table.dtype == batches.dtype == np.int64
    assert (table.shape[0], batches.shape[0]) == (5, 2)
    if chosen.COMPILED:
        others = compiled.walk_fluvio(view)
        assert np.array_equal(others[0], table)
        assert np.array_equal(others[1], batches)
        assert others[2] == position
    return table, batches, position


def unpack(data, table):
    rows = []
    for number, (start, end, key, key_end, time) in enumerate(table.T.tolist()):
        text = None if key < 0 else data[key:key_end]
        rows.append(Row(number, None if time < 0 else time, text, data[start:end]))
    return rows


def make_set(chance, sizes):
    data, rows, places = b"", [], []
    for _ in range(chance.randrange(1, 5)):
        some = make_rows(chance, chance.choice(sizes), start=len(rows))
        places.append([len(data), len(rows)])
        data += batch(some)
        rows += some
    return data, rows, places


@pytest.mark.parametrize("seed", range(30))
def test_walks_agree_with_the_reference(seed):
    chance = random.Random(seed)
    data, rows, places = make_set(chance, [0, 1, 2, 63, 64, 65, 200, 1500])
    table, batches, position = walk(data)
    assert unpack(data, table) == rows
    assert batches.T.tolist() == places
    assert position == len(data)


@pytest.mark.parametrize("seed", range(15))
def test_walks_agree_on_damage(seed):
    chance = random.Random(seed)
    data, _, _ = make_set(chance, [0, 1, 2, 64, 200])
    for _ in range(40):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 3)):
            # Heads are at the front.
            reach = chance.choice([80, len(damaged)])
            at = chance.randrange(min(reach, len(damaged)))
            damaged[at] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        walk(bytes(damaged))
        noise = chance.randbytes(chance.randrange(40))
        walk(batch([Row(0, 5, None, b"")] * 3, body=struct.pack(">i", 3) + noise))


def test_every_truncation():
    data = batch([Row(0, 5, b"key", b"one"), Row(1, 6, None, b"two")])
    for size in range(len(data)):
        table, batches, position = walk(data + data[:size])
        assert (table.shape[1], batches.shape[1], position) == (2, 1, len(data))


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("size", [0, 100, 9000])
@pytest.mark.parametrize("step", [0, 1, 70])
def test_runs_that_end_anywhere(key, size, step):
    rows = [Row(i, 10**12 + i * step, key, b"x" * size) for i in range(200)]
    for odd in (0, 64, 65, 66, 199):
        changed = list(rows)
        changed[odd] = rows[odd]._replace(value=b"y" * (size + 1))
        data = batch(changed)
        table, _, position = walk(data)
        assert unpack(data, table) == changed
        assert position == len(data)


def one_of(body, count=1, time=5):
    """Write a batch of some bytes that are to be records."""
    rows = [Row(0, time, None, b"")]
    return batch(rows, body=struct.pack(">i", count) + body)


@pytest.mark.parametrize(
    ("delta", "time", "expected"),
    [
        *((0, 5, 5), (-3, 5, 2), (-5, 5, 0), (-9, 5, -4), (2**31, 5, 2**31 + 5)),
        *((0, 0, -1), (7, 0, -1), (7, -1, -1), (7, -(2**63), -1)),
        *((2**63 - 1, 1, 2**63 - 1), (-(2**63), 1, 1 - 2**63)),
        (2**63 - 6, 5, 2**63 - 1),
    ],
)
def test_times(delta, time, expected):
    rows = [record(Row(0, None, None, b""), delta=delta, number=i) for i in range(130)]
    table, _, _ = walk(one_of(b"".join(rows), len(rows), time))
    assert table[4].tolist() == [expected] * 130


def test_deltas_of_a_run_differ():
    for deltas in ([2**40 + i for i in range(300)], [(-1) ** i * i for i in range(64)]):
        row = Row(0, None, None, b"abc")
        made = [record(row, delta=delta, number=5) for delta in deltas]
        table, _, _ = walk(one_of(b"".join(made), len(made), 10**6))
        assert table[4].tolist() == [10**6 + delta for delta in deltas]
    # Ten bytes each, the last of which may be 0 or 1 and nothing else.
    largest = [zigzag(-(2**63) + i) for i in range(200)]
    made = [record(Row(0, None, None, b""), delta=0, number=0)[1:]] * 200
    bodies = [m[:1] + big + m[2:] for m, big in zip(made, largest, strict=True)]
    good = b"".join(zigzag(len(body)) + body for body in bodies)
    assert walk(one_of(good, 200))[0].shape[1] == 200
    at = good.index(largest[150])
    bad = good[: at + 9] + b"\x02" + good[at + 10 :]
    assert walk(one_of(bad, 200))[0].shape[1] == 0


def test_the_varints_of_the_field():
    for name, data in PARTS.items():
        if name.startswith("varint_"):
            delta = int(name.removeprefix("varint_"))
            assert zigzag(delta) == data
            made = record(Row(0, None, None, b""), delta=delta, number=delta)
            table, _, _ = walk(one_of(made, time=10**12))
            assert table[4].tolist() == [10**12 + delta]


def test_the_record_of_the_field():
    row = Row(0, 5, None, b"dog")
    assert record(row, delta=0, number=1) == PARTS["record_dog"]
    data = one_of(PARTS["record_dog"])
    assert unpack(data, walk(data)[0]) == [row]


@pytest.mark.parametrize("name", ["batch_basic", "batch_schema_id_42"])
def test_the_batches_of_the_field(name):
    data = PARTS[name]
    table, batches, position = walk(data * 2)
    assert unpack(data * 2, table)[0] == Row(0, 1555478494747, None, b"test")
    assert batches.tolist() == [[0, len(data)], [0, 1]]
    assert position == 2 * len(data)


def test_headers_are_skipped():
    rows = [Row(0, 5, b"k", b"one"), Row(1, 5, None, b"two")]
    for tail in (b"\x02", b"\x02abc", b"\x01", b"\x80\x01xyz"):
        made = [record(r, delta=0, number=0, tail=tail) for r in rows]
        data = one_of(b"".join(made), 2)
        table, _, position = walk(data)
        assert [row.value for row in unpack(data, table)] == [b"one", b"two"]
        assert position == len(data)
        assert all(data[end] for end in table[1])


def test_runs_with_headers():
    row = Row(0, None, None, b"abc")
    for tail in (b"\x02ab", b"\x04ab", b"\x02cd", b"\x00"):
        made = [record(row, delta=0, number=0, tail=b"\x02ab")] * 300
        made[200] = record(row, delta=0, number=0, tail=tail)
        assert walk(one_of(b"".join(made), 300))[0].shape[1] == 300
    made[200] = record(row, delta=0, number=0, tail=b"\x00ab")
    assert walk(one_of(b"".join(made), 300))[0].shape[1] == 0


def test_what_stops_a_walk():
    good = batch([Row(0, 5, None, b"a")])
    plain = record(Row(0, 5, None, b"a"), delta=0, number=0)
    assert walk(b"")[2] == 0
    for bad in (
        good[:16] + b"\x01" + good[17:],  # Another version.
        *(good[:22] + bytes([codec]) + good[23:] for codec in range(1, 8)),
        good[:8] + struct.pack(">i", -1) + good[12:],
        good[:8] + struct.pack(">i", 48) + good[12:],
        good[:8] + struct.pack(">i", 2**31 - 1) + good[12:],
        one_of(plain, 2),
        one_of(plain, 0),
        one_of(plain, -1),
        one_of(plain, 2**31 - 1),
        one_of(plain + b"\0"),
        one_of(b"\x0c" + plain[1:]),  # Its length is one less, and one more.
        one_of(b"\x10" + plain[1:] + b"\0"),
        one_of(b"\x00" * 8),
        one_of(b"\x01" + plain[1:]),
        one_of(b"\x0e\0\0\0\x02\x02a\0"),  # Neither a key nor none.
        one_of(b"\x10\0\0\0\x01\x01\x02a\0"),  # Lengths below 0, and beyond the end.
        one_of(b"\x10\0\0\0\x01\x08\x02a\0"),
        one_of(b"\x10\0\0\0\x00\x01a\0\0"),
        one_of(b"\x10\0\0\0\x00\x06a\0\0"),
        one_of(b"\x0e\0\xff\xff\xff\xff\xff\xff"),
        one_of(b"\x1e\0" + b"\xff" * 9 + b"\x02" + b"\0\0\0\0"),
        one_of(b"\x1e\0" + b"\xff" * 10 + b"\0\0\0\0"),
    ):
        table, batches, position = walk(good + bad + good)
        assert (table.shape[1], batches.shape[1], position) == (1, 1, len(good))


@needs_build
class TestArguments:
    """It is C: a mistake in the code that calls it must not be a crash."""

    DATA = batch([Row(0, 5, None, b"a"), Row(1, 5, None, b"b")]) * 3

    def test_empty_batches_count(self):
        none = np.empty((2, 0), np.int64)
        found = _kernel.follow_fluvio(self.DATA, np.empty((5, 0), np.int64), none)
        assert found == (len(self.DATA), 6, 3)

    def test_it_fills_what_there_is(self):
        third = len(self.DATA) // 3
        for rows, room, expected in ((6, 2, 2), (5, 3, 2), (0, 3, 0), (9, 9, 3)):
            table, batches = (
                np.zeros((5, rows), np.int64),
                np.zeros((2, room), np.int64),
            )
            found = _kernel.follow_fluvio(self.DATA, table, batches)
            assert found == (expected * third, 2 * expected, expected)

    def test_refuses_what_is_out_of_range(self):
        table, batches = np.zeros((5, 1), np.int64), np.zeros((2, 1), np.int64)
        odd = np.zeros(41, np.uint8)[1:]
        for given in ((b"", odd, batches), (b"", table, odd), (b"", table, table)):
            with pytest.raises(ValueError, match="out of range"):
                _kernel.follow_fluvio(*given)
        for given in ((table, table, batches), (batches, table, batches)):
            with pytest.raises(ValueError, match="out of range"):
                _kernel.follow_fluvio(*given)
        with pytest.raises(TypeError):
            _kernel.follow_fluvio(b"", bytes(40), batches)


def test_one_place_chooses(kernel):
    data = batch([Row(0, 7, b"k", b"abc")])
    table, batches, position = chosen.walk_fluvio(np.frombuffer(data, np.uint8))
    assert table.T.tolist() == [[69, 72, 67, 68, 7]]
    assert (batches.T.tolist(), position) == ([[0, 0]], len(data))


def test_the_sizes_of_varints():
    values = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**62, 2**63 - 1]
    for some in (values, values[:1], []):
        found = chosen.size_varints(np.array(some, np.int64))
        assert found.tolist() == [max(1, -(-v.bit_length() // 7)) for v in some]
    largest = np.array([2**63, 2**64 - 1], np.uint64)
    assert chosen.size_varints(largest).tolist() == [10, 10]
