"""Routing: every row to its topic, in order, and it knows where it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import OptionError, RowError
from lance_spark.model import Partition
from lance_spark.spark.task_writer import Placement, Routed, merge_rows, route_rows
from tests.spark.writing import rows


def _route(batch: pa.RecordBatch, **options: Any) -> list[Routed]:
    return list(route_rows(batch, None, **options))


def _values(routed: Routed) -> list[Any]:
    found: list[Any] = routed.rows.column("value").to_pylist()
    return found


def test_option_wins_over_the_column() -> None:
    batch = rows(value=[b"1", b"2"], topic=["a", None])
    (routed,) = route_rows(batch, "c", first_row=10)
    assert (routed.to.topic, _values(routed)) == ("c", [b"1", b"2"])
    assert routed.find_row(1) == 11
    assert routed.rows is batch


def test_option_needs_no_column() -> None:
    (routed,) = route_rows(rows(value=[b"1"]), "c")
    assert routed.to.topic == "c"


@pytest.mark.parametrize("option", ["c", None])
def test_names_of_columns_in_any_case(option: str | None) -> None:
    given = {"VALUE": [b"1"], "Topic": ["c"], "kEy": [b"k"], "OFFSET": [7]}
    (routed,) = route_rows(pa.RecordBatch.from_pydict(given), option)
    assert (routed.to.topic, _values(routed)) == ("c", [b"1"])
    kept = {"value", "key"} if option is None else {"value", "topic", "key", "offset"}
    assert set(routed.rows.schema.names) == kept


def test_splits_in_order() -> None:
    batch = rows(value=[b"1", b"2", b"3", b"4", b"5"], topic=list("babcb"))
    found = [(routed.to.topic, _values(routed)) for routed in _route(batch)]
    assert found == [("b", [b"1", b"3", b"5"]), ("a", [b"2"]), ("c", [b"4"])]


def test_one_topic_is_not_copied() -> None:
    batch = rows(value=[b"1", b"2"], topic=["a", "a"])
    (routed,) = _route(batch)
    assert routed.rows.column("value").buffers()[2].address == (
        batch.column("value").buffers()[2].address
    )


def test_topics_that_lie_together_are_not_copied() -> None:
    batch = rows(value=[b"1", b"2", b"3"], topic=["b", "b", "a"])
    first, second = _route(batch)
    assert (_values(first), _values(second)) == ([b"1", b"2"], [b"3"])
    assert second.find_row(0) == 2
    assert second.rows.column("value").buffers()[2].address == (
        batch.column("value").buffers()[2].address
    )


def test_rows_know_where_they_were() -> None:
    batch = rows(value=[b"1", b"2", b"3", b"4"], topic=list("abab"))
    first, second = _route(batch, first_row=100)
    assert [first.find_row(i) for i in range(2)] == [100, 102]
    assert [second.find_row(i) for i in range(2)] == [101, 103]


def test_columns_of_no_record_are_left_out() -> None:
    batch = rows(topic=["a"], offset=[1], next_offset=[2], value=[b"1"], key=[b"k"])
    (routed,) = _route(batch)
    assert routed.rows.schema.names == ["value", "key"]


@pytest.mark.parametrize("topics", ["aba", "aab"])
def test_detached_rows_keep_no_others_alive(topics: str) -> None:
    data = [b"2" if topic == "b" else bytes(1000) for topic in topics]
    first, second = _route(rows(value=data, topic=list(topics)))
    alone = second.detach()
    assert alone.rows.get_total_buffer_size() < 1000
    assert (_values(alone), alone.find_row(0)) == ([b"2"], topics.index("b"))
    assert alone.origin is not None and alone.origin.base is None
    assert _values(first.detach()) == [bytes(1000)] * 2
    assert alone.detach() is alone


def test_merged_pieces_know_where_they_were() -> None:
    first = rows(value=[b"1", b"2", b"3"], topic=list("aba"))
    second = rows(value=[b"4", b"5"], topic=list("aa"))
    pieces = [*_route(first), *_route(second, first_row=3)]
    merged = merge_rows([piece for piece in pieces if piece.to.topic == "a"])
    assert (merged.to.topic, _values(merged)) == ("a", [b"1", b"3", b"4", b"5"])
    assert [merged.find_row(i) for i in range(4)] == [0, 2, 3, 4]
    # Once more, as pieces that wait are.
    third = Routed("a", rows(value=[b"6"]), first_row=2**40)
    again = merge_rows([merged, third])
    assert [again.find_row(i) for i in range(5)] == [0, 2, 3, 4, 2**40]
    assert again.nbytes >= again.rows.nbytes + 5 * 8


def test_rows_of_a_whole_batch_are_detached_already() -> None:
    (routed,) = _route(rows(value=[b"1"], topic=["a"]))
    assert routed.detach() is routed


def test_no_rows() -> None:
    empty = rows(value=[], topic=[])
    assert _route(empty) == []
    assert list(route_rows(empty, "a")) == []


def test_null_topic_names_the_row() -> None:
    batch = rows(value=[b"1", b"2", b"3"], topic=["a", None, None])
    with pytest.raises(RowError, match=r"row 21: no topic: .*option topic") as told:
        _route(batch, first_row=20)
    assert told.value.row == 21


def test_nothing_but_null_topics() -> None:
    with pytest.raises(RowError, match="row 0: no topic"):
        _route(rows(value=[b"1"], topic=[None]))


@pytest.mark.parametrize("bad", ["", "a/b", "..", "t" * 300, "a\nb"])
def test_a_name_that_can_not_be_names_the_row(bad: str) -> None:
    batch = rows(value=[b"1"] * 5, topic=["a", "b", bad, "a", bad])
    with pytest.raises(RowError, match=r"row 22: its topic '.{,100} .*: ") as told:
        _route(batch, first_row=20)
    assert told.value.row == 22


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_a_name_of_bytes_that_are_no_text(kind: pa.DataType) -> None:
    # Spark's cast of binary to string does not look.
    raw = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
    topics = pa.array([b"a", b"a\xff"], raw).view(kind)
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": topics})
    with pytest.raises(RowError, match=r"row 1: its topic .* has half a character"):
        _route(batch)


def test_names_do_not_matter_if_the_option_wins() -> None:
    (routed,) = route_rows(rows(value=[b"1"], topic=["a/b"]), "c")
    assert routed.to.topic == "c"


def test_no_topic_at_all() -> None:
    with pytest.raises(OptionError, match="set option topic, or add a column topic"):
        _route(rows(value=[b"1"]))


def test_topic_of_a_wrong_type() -> None:
    with pytest.raises(OptionError, match="column topic must be string, not int64"):
        _route(pa.RecordBatch.from_pydict({"value": [b"1"], "topic": [1]}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_kinds_of_text(kind: pa.DataType) -> None:
    topics = pa.array(["ä", "b", "ä"]).cast(kind)
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3"], "topic": topics})
    found = [(routed.to.topic, _values(routed)) for routed in _route(batch)]
    assert found == [("ä", [b"1", b"3"]), ("b", [b"2"])]


def test_more_topics_than_16_bits_count() -> None:
    count = 2**16 + 10
    names = [f"t{n}" for n in range(count)]
    # The last ones first, then all, so that nothing lies together.
    topics = [*names[-10:], *names]
    batch = rows(topic=topics)
    found = {routed.to.topic: routed for routed in _route(batch)}
    assert len(found) == count
    assert [found[names[-1]].find_row(i) for i in range(2)] == [9, count + 9]


@given(
    topics=st.lists(st.sampled_from(["a", "b", "c", "d"])),
    start=st.integers(0, 3),
)
def test_nothing_is_lost_or_moved(topics: list[str], start: int) -> None:
    whole = rows(value=[b"%d" % n for n in range(len(topics))], topic=topics)
    batch = whole.slice(start)
    seen = np.zeros(batch.num_rows, bool)
    for routed in _route(batch):
        numbers = [routed.find_row(i) for i in range(routed.rows.num_rows)]
        assert numbers == sorted(numbers)
        assert not seen[numbers].any()
        seen[numbers] = True
        assert {topics[start + n] for n in numbers} == {routed.to.topic}
        assert _values(routed) == [b"%d" % (start + n) for n in numbers]
        assert _values(routed.detach()) == _values(routed)
    assert seen.all()


# Partitions.


def _place(batch: pa.RecordBatch, topic: str | None = "t", **how: Any) -> list[int]:
    """Give each row's partition, in the order of the rows."""
    placed = dict[int, int]()
    counts = {"t": 3, "u": 5, "one": 1}
    placement = Placement(counts.__getitem__, **how)
    for routed in route_rows(batch, topic, placement=placement):
        assert "partition" not in routed.rows.schema.names
        placed |= {
            routed.find_row(i): routed.to.number for i in range(len(routed.rows))
        }
    return [placed[row] for row in range(batch.num_rows)]


def test_rows_without_a_place_go_by_the_task() -> None:
    batch = rows(value=[b"1", b"2"])
    assert [_place(batch, task=task) for task in (0, 2, 4)] == [[0, 0], [2, 2], [1, 1]]
    assert _place(batch, task=2, number=1) == [1, 1]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_string()], ids=str)
def test_rows_go_by_their_keys(kind: pa.DataType) -> None:
    keys = ["a", "", None, "key", "a", "longer than eight bytes"]
    encoded = pa.array(keys).cast(kind)
    batch = pa.record_batch({"value": [b"x"] * 6, "key": encoded})
    by_key = [2 if key is None else crc32c(key.encode()) % 3 for key in keys]
    assert len({*by_key}) == 3
    assert _place(batch, task=2) == by_key
    assert _place(batch.slice(1), task=2) == by_key[1:]
    topics = ["u", "t", "one", "u", "u", "t"]
    batch = batch.append_column("topic", pa.array(topics))
    counts = [5, 3, 1, 5, 5, 3]
    by_topic = [
        crc32c((key or "").encode()) % count if key is not None else 0
        for key, count in zip(keys, counts, strict=True)
    ]
    assert _place(batch, None, task=3) == by_topic


def test_a_column_wins_over_the_key_and_the_option_over_both() -> None:
    given = pa.array([1, None, 0], pa.int16())
    batch = pa.record_batch({"value": [b"x"] * 3, "key": ["a"] * 3, "partition": given})
    by_key = crc32c(b"a") % 3
    assert _place(batch) == [1, by_key, 0]
    assert _place(batch, number=2) == [2, 2, 2]
    nothing = batch.set_column(2, "partition", pa.nulls(3))
    assert _place(nothing) == [by_key] * 3


@pytest.mark.parametrize("given", [3, -1])
def test_a_partition_that_is_not_there(given: int) -> None:
    batch = rows(value=[b"1", b"2"]).append_column("partition", pa.array([0, given]))
    with pytest.raises(RowError, match=f"topic 't' has no partition {given}") as told:
        _place(batch)
    assert told.value.row == 1
    with pytest.raises(RowError, match="no partition 7, only 0 to 2"):
        _place(rows(value=[b"1"]), number=7)


def test_without_partitions_the_column_is_passed_over() -> None:
    batch = rows(value=[b"1"], topic=["a"]).append_column("partition", pa.array([7]))
    (routed,) = _route(batch)
    assert (routed.to, routed.rows.schema.names) == (Partition("a"), ["value"])
