"""The compiled kernel and its twin agree on every input, and neither trusts one."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lance_spark import kernel as chosen
from lance_spark.errors import RecordError
from lance_spark.kernel import twin
from tests.columnar import plain
from tests.columnar.strategies import buffers, examples, record
from tests.each import each

if chosen.COMPILED:
    from lance_spark.kernel import _kernel, compiled

LENGTH_MAX = 16 * 1024 * 1024

needs_build = pytest.mark.skipif(not chosen.COMPILED, reason="the kernel was not built")
BOTH = [pytest.param("compiled", marks=needs_build), "twin"]


def source(name):
    return twin if name == "twin" else compiled


def walk(how, data):
    starts, end = how.walk_tlv(np.frombuffer(data, np.uint8), LENGTH_MAX)
    assert starts.dtype == np.int64
    return starts.tolist(), end


def walk_plainly(data):
    """Follow the chain with the reference, which also looks inside records."""
    starts, at = [], 0
    while at < len(data):
        try:
            end = plain.read_record(data, at).next_offset
        except plain.InnerError as error:
            end = error.end
        except RecordError:
            break
        starts.append(at)
        at = end
    return starts, at


@given(buffers())
@examples(200)
def test_walk_of_the_twin_agrees_with_plain_reading(data):
    assert walk(twin, data) == walk_plainly(data)


@needs_build
@given(st.one_of(buffers(), st.binary(max_size=200)))
@examples(200)
def test_walks_agree(data):
    assert walk(compiled, data) == walk(twin, data)


@needs_build
@each("seed", range(40))
def test_walks_agree_on_long_chains(seed):
    choice = random.Random(seed)
    usual = choice.randrange(40)
    often = choice.choice([0.0, 0.5, 0.99, 1.0])
    sizes = [
        usual if choice.random() < often else choice.randrange(60)
        for _ in range(choice.choice([100, 5_000, 20_000]))
    ]
    data = bytearray(b"".join(record(1, bytes(size)) for size in sizes))
    damage = choice.choice(["none", "zero", "cut", "flip"])
    if damage == "zero":
        at = choice.randrange(len(data))
        data[at : at + 64] = bytes(64)
    elif damage == "cut":
        del data[choice.randrange(len(data)) :]
    elif damage == "flip":
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    found = walk(compiled, data)
    assert found == walk(twin, data)
    if damage == "none":
        assert len(found[0]) == len(sizes)


def walk_lengths_plainly(data, count):
    starts, at = [], 0
    while len(starts) < count and at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        starts.append(at)
        at = end
    return starts, at


def chain_lengths(choice):
    """Make values behind their lengths, mostly of one size, perhaps damaged."""
    usual, often = choice.randrange(40), choice.choice([0.0, 0.5, 0.99, 1.0])
    sizes = [
        usual if choice.random() < often else choice.randrange(60)
        for _ in range(choice.choice([0, 1, 63, 64, 65, 100, 5_000]))
    ]
    data = bytearray(b"".join(n.to_bytes(4, "big") + b"\1" * n for n in sizes))
    damage = choice.choice(["none", "none", "cut", "flip", "tail"])
    if damage == "tail":
        data += choice.randbytes(12)
    elif data and damage == "cut":
        del data[choice.randrange(len(data)) :]
    elif data and damage == "flip":
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    return bytes(data), len(sizes)


@pytest.mark.parametrize("name", BOTH)
class TestLengths:
    @each("seed", range(60))
    def test_agrees_with_plain_walking(self, name, seed):
        data, count = chain_lengths(random.Random(seed))
        array = np.frombuffer(data, np.uint8)
        for most in {0, 1, count // 2, max(count - 1, 0), count, count + 1, 2**32 - 1}:
            starts, end = source(name).walk_be32(array, most)
            assert starts.dtype == np.int64
            assert (starts.tolist(), end) == walk_lengths_plainly(data, most)

    @each("length", [2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4])
    def test_huge_length(self, name, length):
        data = np.frombuffer(length.to_bytes(4, "big") + bytes(100), np.uint8)
        assert source(name).walk_be32(data, 5)[1] == 0

    def test_announced_values_take_no_memory(self, name):
        data = np.zeros(400, np.uint8)
        tracemalloc.start()
        try:
            starts, _ = source(name).walk_be32(data, 2**32 - 1)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()
        assert len(starts) == 100


# A part of a weave as bytes, starts and ends; good ones, and some that are not.
@st.composite
def parts(draw, rows, *, wild=False):
    data = draw(st.binary(max_size=200))
    least, most = (-3, len(data) + 3) if wild else (0, len(data))
    pairs = draw(
        st.lists(
            st.tuples(st.integers(least, most), st.integers(least, most)),
            min_size=rows,
            max_size=rows,
        )
    )
    if not wild:
        pairs = [sorted(pair) for pair in pairs]
    starts, ends = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return data, starts, ends


def lay_plainly(given):
    rows = zip(
        *(
            [data[a:b] for a, b in zip(starts, ends, strict=True)]
            for data, starts, ends in given
        ),
        strict=True,
    )
    return b"".join(part for row in rows for part in row)


@pytest.mark.parametrize("name", BOTH)
class TestWeave:
    @given(st.data())
    @examples(100)
    def test_agrees_with_plain_joining(self, name, data):
        rows, count = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 4))
        given = tuple(data.draw(parts(rows)) for _ in range(count))
        expected = lay_plainly(given)
        out = bytearray(len(expected))
        source(name).weave(out, given)
        assert out == expected

    @each("size", [0, 1, 15, 16, 17, 127, 128, 129, 5000])
    def test_sizes(self, name, size):
        # The last span ends where both buffers do.
        data = random.Random(size).randbytes(5 * size + 3)
        starts = np.array([0, 3, 3 + 4 * size, 0, 3 + 4 * size], np.int64)
        given = ((data, starts, starts + size), (data, starts, starts + size))
        expected = lay_plainly(given)
        out = bytearray(len(expected))
        source(name).weave(out, given)
        assert out == expected

    @given(st.data())
    @examples(150)
    def test_refuses_what_is_out_of_range(self, name, data):
        rows, count = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
        given = tuple(data.draw(parts(rows, wild=True)) for _ in range(count))
        fits = all(
            0 <= a <= b <= len(piece)
            for piece, starts, ends in given
            for a, b in zip(starts, ends, strict=True)
        )
        size = len(lay_plainly(given)) if fits else data.draw(st.integers(0, 300))
        size += data.draw(st.sampled_from([0, 0, -1, 1]))
        out = bytearray(max(size, 0))
        if fits and len(out) == len(lay_plainly(given)):
            source(name).weave(out, given)
            assert out == lay_plainly(given)
        else:
            with pytest.raises(ValueError, match="weave"):
                source(name).weave(out, given)

    @each(
        ("start", "end"),
        [(-1, 1), (1, 0), (0, 4), (4, 4), (-(2**63), 2**63 - 1), (0, 2**63 - 1)],
    )
    def test_refuses_a_span(self, name, start, end):
        span = (b"abc", np.array([start]), np.array([end]))
        for size in (0, 1, 3, 100):
            with pytest.raises(ValueError, match="out of range"):
                source(name).weave(bytearray(size), (span,))

    def test_refuses_an_output_that_overlaps_an_input(self, name):
        memory = np.zeros(10, np.uint8)
        span = (memory[:5], np.array([0]), np.array([5]))
        source(name).weave(memory[5:], (span,))
        with pytest.raises(ValueError, match="overlaps"):
            source(name).weave(memory[4:9], (span,))

    def test_refuses_parts_that_do_not_fit_together(self, name):
        one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
        for wrong in (
            ((b"", one, two),),
            ((b"", one, one), (b"", two, two)),
            (),
            ((b"", one, one),) * 9,
        ):
            with pytest.raises(ValueError, match="weave"):
                source(name).weave(bytearray(), wrong)

    def test_refuses_a_read_only_output(self, name):
        with pytest.raises((TypeError, BufferError)):
            source(name).weave(b"", ((b"", np.zeros(0, "i8"), np.zeros(0, "i8")),))


@pytest.mark.parametrize("name", BOTH)
class TestMeasure:
    def test_offsets(self, name):
        starts, ends = np.array([5, 0, 7], np.int64), np.array([9, 0, 8], np.int64)
        offsets = np.full(4, -1, np.int32)
        assert source(name).measure(starts, ends, offsets) == 5
        assert offsets.tolist() == [0, 4, 4, 5]
        assert source(name).measure(starts[:0], ends[:0], offsets[:1]) == 0

    def test_more_than_arrow_can_count(self, name):
        starts, ends = np.zeros(3, np.int64), np.full(3, 2**31 - 1)
        total = source(name).measure(starts, ends, np.empty(4, np.int32))
        assert total == 3 * (2**31 - 1)

    @each("sizes", [(2, 2, 2), (2, 2, 4), (2, 1, 3), (1, 2, 3)])
    def test_refuses_arrays_that_do_not_fit_together(self, name, sizes):
        starts, ends = np.zeros(sizes[0], np.int64), np.zeros(sizes[1], np.int64)
        with pytest.raises(ValueError, match="measure"):
            source(name).measure(starts, ends, np.empty(sizes[2], np.int32))

    def test_refuses_a_span_that_ends_before_it_starts(self, name):
        starts, ends = np.array([0, 3], np.int64), np.array([0, 2], np.int64)
        with pytest.raises(ValueError, match="measure"):
            source(name).measure(starts, ends, np.empty(3, np.int32))


@pytest.mark.parametrize("name", BOTH)
class TestSumSpans:
    def test_known_sums(self, name):
        # Those of RFC 3720, and of nothing.
        data = bytes(32) + b"\xff" * 32 + bytes(range(32)) + b"123456789"
        starts, ends = np.array([0, 32, 64, 96, 7]), np.array([32, 64, 96, 105, 7])
        found = source(name).sum_spans(data, starts, ends)
        assert found.dtype == np.uint32
        known = [0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0xE3069283, 0]
        assert found.tolist() == known

    def test_agrees_with_the_library(self, name):
        data = random.Random(7).randbytes(300)
        starts, ends = map(np.array, zip(*_all_spans(300), strict=True))
        found = source(name).sum_spans(data, starts, ends)
        expected = [crc32c(data[start:end]) for start, end in _all_spans(300)]
        assert found.tolist() == expected
        assert source(name).sum_spans(b"", starts[:0], ends[:0]).tolist() == []

    @each("span", [(0, 5), (-1, 2), (3, 2), (5, 5), (2**62, -1)])
    def test_refuses_a_span(self, name, span):
        starts, ends = np.array([0, span[0]]), np.array([4, span[1]])
        with pytest.raises(ValueError, match="sum_spans"):
            source(name).sum_spans(b"abcd", starts, ends)
        with pytest.raises(ValueError, match="sum_spans"):
            source(name).sum_spans(b"abcd", starts[:1], ends[:0])


def _all_spans(size):
    return [
        (start, start + length) for start in range(9) for length in range(size // 4)
    ]


@needs_build
class TestArguments:
    """It is C: a mistake in the code that calls it must not be a crash."""

    def test_walk_fills_what_there_is(self):
        starts = np.zeros(2, np.int64)
        data = record(1, b"") * 3
        assert _kernel.follow_tlv(data, 0, starts, 0, 100) == (10, 2)
        assert _kernel.follow_tlv(data, 10, starts, 1, 100) == (15, 2)
        assert starts.tolist() == [0, 10]

    @each(
        ("position", "count", "limit"),
        [(-1, 0, 9), (6, 0, 9), (0, -1, 9), (0, 3, 9), (0, 0, 2**31)],
    )
    def test_walk_refuses_what_is_out_of_range(self, position, count, limit):
        starts = np.zeros(2, np.int64)
        with pytest.raises(ValueError, match="out of range"):
            _kernel.follow_tlv(record(1, b""), position, starts, count, limit)

    def test_unaligned_positions(self):
        unaligned = np.zeros(17, np.uint8)[1:]
        with pytest.raises(ValueError, match="int64"):
            _kernel.follow_be32(b"", unaligned)
        with pytest.raises(ValueError, match="out of range"):
            _kernel.follow_tlv(b"", 0, unaligned, 0, 9)
        with pytest.raises(ValueError, match="int64"):
            _kernel.weave(bytearray(), ((b"", unaligned, unaligned),))
        with pytest.raises(ValueError, match="out of range"):
            _kernel.measure(unaligned, unaligned, np.empty(3, np.int32))
        with pytest.raises(ValueError, match="out of range"):
            _kernel.sum_spans(b"", unaligned, unaligned, np.empty(2, np.uint32))
        with pytest.raises(ValueError, match="int64"):
            _kernel.weave(bytearray(), ((b"", bytes(7), bytes(7)),))

    def test_read_only_output(self):
        with pytest.raises(TypeError):
            _kernel.follow_tlv(b"", 0, bytes(16), 0, 9)
        with pytest.raises(TypeError):
            _kernel.follow_be32(b"", bytes(16))

    @each("part", [None, (), (b"", b""), (b"", b"", 3), [b""] * 3])
    def test_what_is_no_part(self, part):
        with pytest.raises(TypeError):
            _kernel.weave(bytearray(), (part,))
        good = (b"", b"", b"")
        with pytest.raises(TypeError):
            _kernel.weave(bytearray(), (good, part))

    def test_other_threads_run_beside_it(self):
        data = np.frombuffer(record(1, b"") * 1_000_000, np.uint8)
        found = []

        def work():
            starts, end = compiled.walk_tlv(data, LENGTH_MAX)
            out = np.empty(end, np.uint8)
            compiled.weave(out, ((data, starts, starts + 5),))
            found.append(bool((out == data).all()))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [True] * 4


def test_one_place_chooses(kernel):
    data = np.frombuffer(record(1, b"ab") * 3, np.uint8)
    assert chosen.walk_tlv(data, 9)[0].tolist() == [0, 7, 14]
    assert chosen.walk_be32(np.zeros(9, np.uint8), 9)[0].tolist() == [0, 4]
    assert chosen.walk_lengths(np.zeros(9, np.uint8), 9, True)[0].tolist() == [[8]] * 2
    assert chosen._source is source(kernel)


def test_import_without_the_build(monkeypatch):
    name = "lance_spark.kernel"
    monkeypatch.setitem(sys.modules, "lance_spark.kernel.compiled", None)
    monkeypatch.delattr(chosen, "compiled", raising=False)
    module = importlib.util.module_from_spec(importlib.util.find_spec(name))
    module.__spec__.loader.exec_module(module)
    assert module.COMPILED is False
    assert module._source is twin


def encode_varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("how", BOTH)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=40))
@examples(100)
def test_varints_are_put_where_they_belong(how, values):
    encoded = [encode_varint(value) for value in values]
    # A byte between two of them, which has to stay.
    at = np.cumsum([0, *(len(each) + 1 for each in encoded)])
    out = np.full(at[-1], 0xEE, np.uint8)
    source(how).put_varints(out, at[:-1].copy(), np.array(values, np.uint64))
    assert out.tobytes() == b"".join(each + b"\xee" for each in encoded)


@pytest.mark.parametrize("how", BOTH)
@pytest.mark.parametrize(
    ("at", "values"),
    [
        ([8], [0]),
        ([7], [0x80]),
        ([0, 0], [0, 2**64 - 1]),
        ([-1], [0]),
        ([2**62], [0]),
        ([0], [0, 0]),
        ([0, 1], [0]),
    ],
)
def test_varints_outside_of_the_output_are_refused(how, at, values):
    out = np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="put_varints"):
        source(how).put_varints(out, np.array(at), np.array(values, np.uint64))


def walk_values_plainly(data, count, fixed):
    """Follow the chain one value at a time."""
    rows, at = [], 0
    while len(rows) < count:
        start = at + 8 if fixed else at
        while not fixed and start < len(data) and data[start] & 0x80:
            start += 1
        start += not fixed
        head = data[at:start]
        length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(head))
        length = int.from_bytes(head, "little") if fixed else length
        is_whole = start + length <= len(data)
        if not is_whole or length >= 2**64 or len(head) > 10:
            break
        rows.append((start, start + length))
        at = start + length
    return rows, at


def chain_values(choice, fixed):
    """Make values of one size mostly, perhaps damaged; some lengths have idle bytes."""
    encode = (lambda n: n.to_bytes(8, "little")) if fixed else encode_varint
    usual, often = choice.choice([0, 5, 127, 128]), choice.choice([0, 0.5, 0.99, 1])
    out = bytearray()
    count = choice.choice([0, 1, 64, 65, 66, 100, 2_000])
    for _ in range(count):
        size = usual if choice.random() < often else choice.randrange(300)
        head = encode(size)
        if not fixed and choice.random() < 0.005:
            head = head[:-1] + bytes([head[-1] | 0x80, 0x80, 0])
        out += head + choice.randbytes(size)
    damage = choice.choice(["none", "none", "cut", "flip", "tail"])
    if damage == "tail":
        out += choice.randbytes(12)
    elif out and damage == "cut":
        del out[choice.randrange(len(out)) :]
    elif out and damage == "flip":
        out[choice.randrange(len(out))] ^= 1 << choice.randrange(8)
    return bytes(out), count


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", BOTH)
class TestValues:
    def walk(self, name, data, count, fixed):
        view = np.frombuffer(data, np.uint8)
        table, end = source(name).walk_lengths(view, count, fixed)
        assert table.dtype == np.int64
        return [tuple(row) for row in table.T.tolist()], end

    def test_agrees_with_plain_walking(self, name, fixed):
        for seed in range(60):
            data, count = chain_values(random.Random(seed), fixed)
            for most in {0, 1, count // 2, count, count + 1, 2**62}:
                found = self.walk(name, data, most, fixed)
                assert found == walk_values_plainly(data, most, fixed), seed

    def test_agrees_on_noise(self, name, fixed):
        choice = random.Random(7)
        for _ in range(300):
            noise = choice.randbytes(choice.randrange(40))
            noise = bytes(byte | choice.choice([0, 0x80]) for byte in noise)
            found = self.walk(name, noise, 50, fixed)
            assert found == walk_values_plainly(noise, 50, fixed), noise.hex()

    @pytest.mark.parametrize("length", [101, 2**31, 2**32, 2**63 - 1, 2**64 - 1])
    def test_huge_length(self, name, fixed, length):
        head = length.to_bytes(8, "little") if fixed else encode_varint(length)
        data = b"\0" * 8 + head + bytes(100) if fixed else b"\0" + head + bytes(100)
        assert len(self.walk(name, data, 5, fixed)[0]) == 1

    def test_announced_values_take_no_memory(self, name, fixed):
        data = np.zeros(800, np.uint8)
        tracemalloc.start()
        try:
            table, _ = source(name).walk_lengths(data, 2**62, fixed)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()
        assert table.shape == (2, 100 if fixed else 800)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("head", "length"),
    [
        (b"\xff" * 9 + b"\x02", None),
        (b"\x80" * 10 + b"\x00", None),
        (b"\x80" * 9 + b"\x81", None),
        (b"\x83" + b"\x80" * 8 + b"\x00", 3),
        (b"\x80", None),
    ],
)
def test_lengths_of_many_bytes(name, head, length):
    data = np.frombuffer(head + b"abc", np.uint8)
    table, end = source(name).walk_lengths(data[: None if length else len(head)], 1, 0)
    at = len(head)
    expected = [] if length is None else [[at, at + length]]
    assert table.T.tolist() == expected
    assert end == (0 if length is None else at + length)


@needs_build
def test_values_fill_what_there_is():
    table = np.zeros((2, 2), np.int64)
    assert _kernel.follow_lengths(b"\1a\1b\1c", False, table) == (4, 2)
    assert table.tolist() == [[1, 3], [2, 4]]
    with pytest.raises(ValueError, match="int64"):
        _kernel.follow_lengths(b"", False, np.zeros(17, np.uint8)[1:])
    with pytest.raises(TypeError):
        _kernel.follow_lengths(b"", False, bytes(16))


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), max_size=20))
@examples(50)
def test_sizes_of_varints(values):
    sizes = chosen.size_varints(np.array(values, np.int64))
    assert sizes.tolist() == [len(encode_varint(value)) for value in values]
