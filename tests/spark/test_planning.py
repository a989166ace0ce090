"""Planning with literals: nothing here has a server."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.client.driver import Driver, LogRef, Range, Split
from lance_spark.client.lwp.driver import TRAITS
from lance_spark.client.lwp.places import RangeMark
from lance_spark.errors import OptionError
from lance_spark.model import Bounds, Partition
from lance_spark.spark.bound import EARLIEST, LATEST, AtOffsets, AtTime, Bound
from lance_spark.spark.options import parse_read_options
from lance_spark.spark.planning import (
    SPLITS_MAX,
    UNASKED_SPLITS_MAX,
    cut_ranges,
    plan_range,
    plan_splits,
    resolve_bound,
)
from tests.each import each


def make_range(start: int, end: int, topic: str = "a") -> Range:
    return Range(LogRef(Partition(topic), 1, 1_700_000_000), start, end)


def cut(*ranges: tuple[int, int], **limits: int) -> list[tuple[int, int]]:
    """Give the nominal pieces of ranges."""
    pieces = [make_range(*each) for each in ranges]
    splits = plan_splits(pieces, TRAITS, **limits)
    return [(split.start, split.end) for split in splits]


# Splits.


def test_a_range_is_one_split_if_nothing_asks_for_more() -> None:
    assert cut((100, 200)) == [(100, 200)]


def test_nothing_is_no_split() -> None:
    assert cut() == []
    assert cut((7, 7), min_partitions=3, max_partition_size=10) == []


def test_empty_ranges_are_left_out_and_others_keep_their_order() -> None:
    ranges = [make_range(0, 10, "b"), make_range(5, 5, "c"), make_range(0, 10, "a")]
    assert [split.range.topic for split in plan_splits(ranges, TRAITS)] == ["b", "a"]


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (99, [(0, 99)]),
        (100, [(0, 100)]),
        (101, [(0, 50), (50, 101)]),
        (250, [(0, 83), (83, 166), (166, 250)]),
    ],
)
def test_splits_are_no_larger_than_the_limit_and_nearly_equal(
    size: int, pieces: list[tuple[int, int]]
) -> None:
    assert cut((0, size), max_partition_size=100) == pieces


def test_points_count_from_the_start_of_the_range() -> None:
    assert cut((1000, 1200), max_partition_size=100) == [(1000, 1100), (1100, 1200)]


def test_large_ranges_make_up_the_partitions_that_are_wanted() -> None:
    pieces = cut((0, 900), (0, 50), (0, 50), min_partitions=10)
    assert pieces == [*cut((0, 900), max_partition_size=100), (0, 50), (0, 50)]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_where_there_are_enough_partitions_none_is_cut(least: int) -> None:
    ranges = [(0, 900), (0, 50), (0, 50)]
    assert cut(*ranges, min_partitions=least) == ranges
    halves = cut(*ranges, min_partitions=least, max_partition_size=450)
    assert halves == [(0, 450), (450, 900), *ranges[1:]]


def test_the_limit_that_asks_for_more_splits_wins() -> None:
    assert len(cut((0, 1000), min_partitions=4, max_partition_size=100)) == 10
    assert len(cut((0, 1000), min_partitions=20, max_partition_size=100)) == 20


def test_no_more_splits_than_records_fit() -> None:
    # A record has five bytes at least, so that the third may start at byte 10 of 12.
    assert len(cut((0, 12), min_partitions=100)) == 3
    assert len(cut((0, 1), min_partitions=100)) == 1


def test_too_many_splits_are_an_error_that_names_both_options() -> None:
    cut((0, SPLITS_MAX * 10), max_partition_size=10)
    with pytest.raises(OptionError) as told:
        cut((0, SPLITS_MAX * 10), (0, 5), max_partition_size=10)
    assert f"{SPLITS_MAX + 1} partitions" in str(told.value)
    assert "raise maxPartitionBytes, or lower minPartitions" in str(told.value)


def test_a_huge_topic_is_cut_by_arithmetic_alone() -> None:
    size = 2**62
    pieces = cut((0, size), max_partition_size=size // 10_000)
    assert len(pieces) == 10_001
    assert pieces[0][0] == 0 and pieces[-1][1] == size


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=6),
    offset=st.integers(0, 2**60),
    least=st.none() | st.integers(1, 200),
    most=st.none() | st.integers(1, 3000),
)
def test_splits_cover_every_byte_once(
    sizes: list[int], offset: int, least: int | None, most: int | None
) -> None:
    ranges = [
        make_range(offset + number, offset + number + size, f"topic-{number}")
        for number, size in enumerate(sizes)
    ]
    splits = plan_splits(ranges, TRAITS, min_partitions=least, max_partition_size=most)
    for whole in ranges:
        mine = [split for split in splits if split.range == whole]
        points = [split.start for split in mine]
        assert [split.end for split in mine] == [*points[1:], whole.end][: len(mine)]
        assert points[:1] == ([whole.start] if whole.size else [])
        assert all(split.end > split.start for split in mine)
        # Five bytes are a record's least, so that smaller limits can't be kept.
        if most is not None:
            assert all(split.end - split.start <= max(most, 5) for split in mine)
    if least is not None and sum(sizes) >= 5 * least:
        possible = sum(-(-size // 5) for size in sizes)
        assert len(splits) >= min(least, possible)


def test_what_travels_is_the_same_on_the_other_side() -> None:
    whole = Range(
        LogRef(Partition("a"), 3, 99),
        *(5, 50),
        finder="probed",
        ends_log=True,
        mark=RangeMark(64, 12345, 70),
    )
    split = Split(whole, 1, 3)
    copy = pickle.loads(pickle.dumps(split))
    assert copy == split
    assert (copy.start, copy.end, copy.point(0), copy.point(3)) == (20, 35, 5, 50)


# Ranges.

LOG = Bounds(100, 200)


@pytest.mark.parametrize(
    ("start", "end"), [(100, 200), (120, 150), (100, 100), (200, 200), (150, 150)]
)
def test_a_range_that_is_there_is_taken_as_it_is(start: int, end: int) -> None:
    planned = plan_range("a", start, end, LOG)
    assert (planned.start, planned.end, planned.losses) == (start, end, ())


@each(
    ("asked", "left", "lost"),
    [
        # Before the log start, wholly and in part.
        ((50, 150), (100, 150), [50]),
        ((50, 60), (100, 100), [50]),
        ((99, 100), (100, 100), [99]),
        # From the log start to an end that is gone.
        ((100, 60), (100, 100), [60]),
        # Behind the log end.
        ((150, 250), (150, 200), [250]),
        ((250, 300), (200, 200), [250]),
        ((300, 250), (200, 200), [300]),
        # Both.
        ((50, 250), (100, 200), [50, 250]),
    ],
)
def test_what_is_missing_is_told_and_the_rest_is_read(
    asked: tuple[int, int], left: tuple[int, int], lost: list[int]
) -> None:
    planned = plan_range("a", *asked, LOG)
    assert (planned.start, planned.end) == left
    assert [loss.asked for loss in planned.losses] == lost
    for loss in planned.losses:
        assert (loss.topic, loss.log_start, loss.log_end) == ("a", 100, 200)
        expected = "removed" if loss.asked < 100 else "ends before it"
        assert expected in loss.reason


@pytest.mark.parametrize(("start", "end"), [(150, 149), (200, 100), (101, 100)])
def test_a_range_that_ends_before_it_starts_is_an_error(start: int, end: int) -> None:
    with pytest.raises(OptionError) as told:
        plan_range("events", start, end, LOG)
    text = str(told.value)
    assert f"'events': the range starts at offset {start}, after its end at {end}" in (
        text
    )
    assert "lower the start or raise the end (log start 100, log end 200)" in text


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 99), st.integers(0, 99))
def test_what_is_planned_is_in_the_log_and_nothing_is_lost_in_silence(
    start: int, end: int, first: int, size: int
) -> None:
    log = Bounds(first, first + size)
    try:
        planned = plan_range("a", start, end, log)
    except OptionError:
        assert start > end
        return
    assert log.start <= planned.start <= planned.end <= log.end
    if not planned.losses:
        assert (planned.start, planned.end) == (start, end)


# Bounds.


@pytest.mark.parametrize(
    ("bound", "offset"),
    [
        (EARLIEST, 100),
        (LATEST, 200),
        (AtOffsets(((Partition("a"), 150),)), 150),
        (AtOffsets(((Partition("a"), 0),)), 0),
        (AtOffsets(((Partition("a"), -2),)), 100),
        (AtOffsets(((Partition("a"), -1),)), 200),
        (AtTime(5), 5),
    ],
)
def test_a_bound_in_a_topic(bound: Bound, offset: int) -> None:
    class Clock:
        def locate_time(self, log: LogRef, time_ns: int, *, option: str) -> int:
            assert (log.topic, option) == ("a", "startingTimestamp")
            return time_ns

    log, driver = LogRef(Partition("a")), cast("Driver", Clock())
    found = resolve_bound(driver, bound, log, LOG, option="startingTimestamp")
    assert found == offset


@each("unit", ["bytes", "records"])
@each("sizes", [[], [1, 0], [256], [256, 1], [15_000, 370]])
def test_partitions_that_nobody_asked_for_are_few(
    sizes: list[int], unit: Literal["bytes", "records"]
) -> None:
    options = parse_read_options({"topic": "a"})
    usual = {"bytes": 64 * 2**20, "records": 500_000}[unit]
    traits = replace(TRAITS, unit=unit, split_units=usual)
    ranges = [make_range(0, size * usual) for size in sizes]
    splits = cut_ranges(ranges, options, traits)
    # One more for each topic, as no split has records of two.
    assert len(splits) <= UNASKED_SPLITS_MAX + len(ranges)
    largest = max(usual, -(-sum(sizes) * usual // UNASKED_SPLITS_MAX))
    assert all(split.end - split.start <= largest for split in splits)
    whole = cut_ranges(ranges, replace(options, max_partition_size=10**15), traits)
    assert len(whole) == len([size for size in sizes if size])
