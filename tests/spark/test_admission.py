"""Shares of a batch: literals with known records, then laws for any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lance_spark.errors import RecordError
from lance_spark.spark.admission import Backlog, BatchLimit, admit, apportion
from tests.each import each


class FakeRuler:
    """Knows the sizes of a topic's records; a partial one may follow them."""

    def __init__(self, sizes: Sequence[int], *, base: int = 0) -> None:
        self.bounds = list(accumulate(sizes, initial=base))
        self.calls = 0

    def fit(
        self, start: int, end: int, *, max_bytes: int | None, max_records: int | None
    ) -> int:
        self.calls += 1
        first = self.bounds.index(start)
        fitting = [
            bound
            for number, bound in enumerate(self.bounds[first:])
            if bound <= end
            and (max_bytes is None or bound - start <= max_bytes)
            and (max_records is None or number <= max_records)
        ]
        return fitting[-1]

    def step(self, start: int, end: int) -> int | None:
        self.calls += 1
        following = self.bounds[self.bounds.index(start) + 1 :][:1]
        return following[0] if following and following[0] <= end else None

    def count(self, start: int, end: int) -> int:
        self.calls += 1
        return self.bounds.index(end) - self.bounds.index(start)


class Topics:
    """Topics of known records that are read batch by batch."""

    def __init__(
        self,
        sizes: Mapping[str, Sequence[int]],
        partial: Mapping[str, int] | None = None,
    ) -> None:
        self.rulers = {topic: FakeRuler(each) for topic, each in sizes.items()}
        self.places = dict.fromkeys(sizes, 0)
        self.ends = {
            topic: ruler.bounds[-1] + (partial or {}).get(topic, 0)
            for topic, ruler in self.rulers.items()
        }

    def backlogs(self) -> list[Backlog]:
        return [
            Backlog(topic, place, self.ends[topic], self.rulers[topic])
            for topic, place in self.places.items()
        ]

    def has_record(self, topic: str) -> bool:
        return self.places[topic] < self.rulers[topic].bounds[-1]

    @property
    def is_drained(self) -> bool:
        return not any(map(self.has_record, self.places))

    def advance(self, budget: BatchLimit, turn: int) -> dict[str, tuple[int, int]]:
        """Read a batch; give its bytes and records by topic."""
        ends = admit(self.backlogs(), budget, turn=turn)
        assert list(ends) == list(self.places)
        taken = {}
        for topic, end in ends.items():
            bounds, place = self.rulers[topic].bounds, self.places[topic]
            assert end in bounds, "not a boundary"
            assert end >= place, "a batch went back"
            taken[topic] = (end - place, bounds.index(end) - bounds.index(place))
        self.places = ends
        return taken

    def calls(self) -> int:
        return sum(ruler.calls for ruler in self.rulers.values())


def sizes_of(taken: Mapping[str, tuple[int, int]]) -> list[int]:
    return [size for size, _ in taken.values()]


def records_of(taken: Mapping[str, tuple[int, int]]) -> list[int]:
    return [records for _, records in taken.values()]


# Without limits, and with enough room.


def test_no_topics() -> None:
    assert admit([], BatchLimit(10, 10), turn=3) == {}


def test_without_limits_everything_whole_is_taken() -> None:
    topics = Topics({"a": [10, 20], "b": [], "c": [7]}, {"a": 3, "b": 9})
    assert sizes_of(topics.advance(BatchLimit(), 0)) == [30, 0, 7]


@pytest.mark.parametrize("turn", range(4))
def test_a_backlog_within_the_limit_costs_one_question_each(turn: int) -> None:
    topics = Topics({"a": [10, 20], "b": [5], "idle": []})
    assert sizes_of(topics.advance(BatchLimit(max_bytes=35), turn)) == [30, 5, 0]
    assert topics.calls() == 2


def test_a_start_at_or_behind_the_end_is_kept_and_nobody_is_asked() -> None:
    ruler = FakeRuler([10])
    backlogs = [Backlog("a", 10, 10, ruler), Backlog("b", 50, 10, ruler)]
    assert admit(backlogs, BatchLimit(5, 5), turn=1) == {"a": 10, "b": 50}
    assert ruler.calls == 0


# One topic.


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (BatchLimit(29), 10),
        (BatchLimit(30), 30),
        (BatchLimit(31), 30),
        (BatchLimit(None, 2), 30),
        (BatchLimit(29, 2), 10),
        (BatchLimit(59, 1), 10),
        (BatchLimit(60, 3), 60),
    ],
)
def test_one_topic_is_cut_at_the_last_record_that_fits(
    budget: BatchLimit, expected: int
) -> None:
    topics = Topics({"a": [10, 20, 30, 40]})
    assert sizes_of(topics.advance(budget, 5)) == [expected]


def test_one_topic_whose_first_record_is_over_the_limit_gets_that_record() -> None:
    topics = Topics({"a": [100, 1]})
    assert sizes_of(topics.advance(BatchLimit(99), 0)) == [100]


def test_one_topic_is_asked_about_once() -> None:
    topics = Topics({"a": [10, 20, 30, 40], "idle": []})
    topics.advance(BatchLimit(30), 1)
    assert topics.calls() == 1


def test_one_topic_with_a_partial_record_only_stays() -> None:
    assert sizes_of(Topics({"a": []}, {"a": 50}).advance(BatchLimit(10), 0)) == [0]
    assert sizes_of(Topics({"a": []}, {"a": 50}).advance(BatchLimit(None, 1), 0)) == [0]


# Shares.


@pytest.mark.parametrize("turn", range(2))
def test_shares_are_in_proportion_to_the_backlog(turn: int) -> None:
    topics = Topics({"large": [10] * 90, "small": [10] * 10})
    assert sizes_of(topics.advance(BatchLimit(100), turn)) == [90, 10]
    assert sizes_of(topics.advance(BatchLimit(200), turn)) == [180, 20]


@pytest.mark.parametrize("turn", range(2))
def test_records_are_shared_in_proportion_to_the_bytes_that_wait(turn: int) -> None:
    topics = Topics({"large": [10] * 90, "small": [10] * 10})
    assert records_of(topics.advance(BatchLimit(None, 10), turn)) == [9, 1]


@each("turn", range(3))
@each("names", ["lms", "sml", "msl"])
def test_as_kafka_shares_ten_of_a_hundred_and_thirteen(names: str, turn: int) -> None:
    # KafkaMicroBatchSourceSuite, maxOffsetsPerTrigger: 8, 1, 1, then 9 and 1.
    counts = {"l": 101, "m": 11, "s": 1}
    topics = Topics({name: [8] * counts[name] for name in names})
    budget = BatchLimit(None, 10)
    taken = topics.advance(budget, turn)
    assert {name: records for name, (_, records) in taken.items()} == {
        "l": 8,
        "m": 1,
        "s": 1,
    }
    taken = topics.advance(budget, turn + 1)
    assert {name: records for name, (_, records) in taken.items()} == {
        "l": 9,
        "m": 1,
        "s": 0,
    }


@pytest.mark.parametrize("turn", range(2))
def test_a_small_topic_gets_a_record_above_its_share(turn: int) -> None:
    topics = Topics({"large": [10] * 198, "small": [20]})
    assert sizes_of(topics.advance(BatchLimit(100), turn)) == [80, 20]


def test_what_alignment_leaves_goes_to_the_one_whose_turn_it_is() -> None:
    for turn, expected in enumerate([[40, 30, 30], [30, 40, 30], [30, 30, 40]]):
        topics = Topics({name: [10] * 10 for name in "abc"})
        assert sizes_of(topics.advance(BatchLimit(100), turn)) == expected


def test_what_alignment_leaves_goes_to_one_that_can_use_it() -> None:
    topics = Topics({"a": [40] * 10, "b": [40] * 10, "c": [5] * 80})
    assert sizes_of(topics.advance(BatchLimit(150), 0)) == [40, 40, 70]


def test_topics_with_few_large_records_leave_theirs_to_others_in_proportion() -> None:
    topics = Topics({"few": [1000] * 2, "a": [1] * 1000, "b": [1] * 1000})
    taken = records_of(topics.advance(BatchLimit(None, 400), 0))
    assert taken == [2, 199, 199]


def test_a_partial_record_leaves_its_share_to_others() -> None:
    topics = Topics({"cut": [], "a": [10] * 50}, {"cut": 500})
    assert sizes_of(topics.advance(BatchLimit(100), 0)) == [0, 100]


def test_both_limits_hold() -> None:
    topics = Topics({"wide": [50] * 20, "narrow": [1] * 1000})
    taken = topics.advance(BatchLimit(200, 20), 0)
    assert sum(sizes_of(taken)) <= 200
    assert sum(records_of(taken)) == 20
    assert min(records_of(taken)) >= 1


# Turns.


def test_topics_take_turns_where_the_limit_has_room_for_one_record() -> None:
    topics = Topics({name: [10] * 4 for name in "abc"})
    taken = [sizes_of(topics.advance(BatchLimit(10), turn)) for turn in range(3)]
    assert taken == [[10, 0, 0], [0, 10, 0], [0, 0, 10]]


def test_turns_of_idle_topics_go_to_the_next_one() -> None:
    topics = Topics({"a": [10], "idle": [], "b": [10, 10]})
    assert sizes_of(topics.advance(BatchLimit(10), 1)) == [0, 0, 10]


def test_small_topics_leave_half_to_a_large_one_where_not_all_have_room() -> None:
    small = {f"small-{number}": [10] * 2 for number in range(20)}
    topics = Topics({**small, "large": [10] * 10_000})
    taken = records_of(topics.advance(BatchLimit(100), 0))
    assert taken[:6] == [1, 1, 1, 1, 1, 0]
    assert sum(taken[:-1]) == 5
    assert taken[-1] == 5


def test_a_record_over_the_limit_goes_alone_when_it_is_its_turn() -> None:
    topics = Topics({"a": [10] * 9, "b": [500, 10]})
    budget = BatchLimit(50)
    assert sizes_of(topics.advance(budget, 0)) == [50, 0]
    assert sizes_of(topics.advance(budget, 1)) == [0, 500]
    assert sizes_of(topics.advance(budget, 2)) == [40, 10]


def test_errors_of_a_ruler_go_through() -> None:
    class Broken(FakeRuler):
        def step(self, start: int, end: int) -> int | None:
            raise RecordError("topic 'b': type 0 is reserved", start)

    backlogs = [
        Backlog("a", 0, 100, FakeRuler([10] * 10)),
        Backlog("b", 0, 100, Broken([10] * 10)),
    ]
    with pytest.raises(RecordError, match="topic 'b'"):
        admit(backlogs, BatchLimit(50), turn=0)


# Cost and size.


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        (BatchLimit(max_bytes=50_000), 5),
        (BatchLimit(max_bytes=7), 5),
        (BatchLimit(max_records=1500), 9),
        (BatchLimit(max_bytes=50_000, max_records=1500), 9),
        (BatchLimit(), 1),
    ],
)
def test_a_thousand_topics_stay_cheap(budget: BatchLimit, most: int) -> None:
    sizes = {f"t{n:03}": [5 + n % 90] * (1 + n % 7) for n in range(1000)}
    topics = Topics(sizes)
    topics.advance(budget, 123)
    assert topics.calls() <= most * len(sizes)


def test_a_rest_that_nobody_can_use_is_not_offered_to_everybody() -> None:
    topics = Topics({f"t{n:03}": [60, 60] for n in range(1000)})
    taken = topics.advance(BatchLimit(max_bytes=60_030), 0)
    assert sum(sizes_of(taken)) == 60_000
    # The first record and the share of each, and a few tries.
    assert topics.calls() <= 2 * 1000 + 8


def test_huge_numbers() -> None:
    huge = 2**63
    topics = Topics({"a": [huge, huge], "b": [huge // 2] * 4, "c": [1]})
    taken = topics.advance(BatchLimit(2 * huge, huge), 0)
    assert sizes_of(taken) == [huge, huge // 2, 1]
    assert sizes_of(topics.advance(BatchLimit(10 * huge), 1)) == [
        huge,
        huge // 2 * 3,
        0,
    ]


# Apportionment.


@each(
    ("pot", "weights", "floors", "expected"),
    [
        (100, [9, 1], [0, 0], [90, 10]),
        (10, [101, 11, 1], [1, 1, 1], [8, 1, 1]),
        (10, [1, 11, 101], [1, 1, 1], [1, 1, 8]),
        (5, [1, 1, 1], [0, 0, 0], [1, 2, 2]),
        (100, [98, 1, 1], [0, 60, 0], [39, 60, 1]),
        (30, [1, 1, 1], [10, 10, 10], [10, 10, 10]),
        (0, [3, 4], [0, 0], [0, 0]),
        (7, [5], [7], [7]),
    ],
)
def test_apportion(
    pot: int, weights: list[int], floors: list[int], expected: list[int]
) -> None:
    assert apportion(pot, weights, floors) == expected


pairs = st.lists(
    st.tuples(st.integers(1, 2**63), st.integers(0, 1000)), min_size=1, max_size=12
)


@given(pairs, st.integers(0, 2**63))
def test_apportionment_is_exact_and_never_below_floors(
    pairs: list[tuple[int, int]], more: int
) -> None:
    weights, floors = [w for w, _ in pairs], [f for _, f in pairs]
    pot = sum(floors) + more
    shares = apportion(pot, weights, floors)
    assert sum(shares) <= pot
    if more:
        assert sum(shares) == pot
    for share, floor, weight in zip(shares, floors, weights, strict=True):
        assert share >= floor
        # Nobody is above its floor and above its share of the whole.
        assert share <= max(floor, pot * weight // sum(weights) + 1)


# Laws.

record_sizes = st.one_of(st.integers(1, 30), st.sampled_from([1, 5, 64, 500]))
topic_sets = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.lists(record_sizes, max_size=12),
    min_size=1,
    max_size=6,
)
limits = st.one_of(st.none(), st.integers(1, 40), st.integers(41, 2000))


@settings(deadline=None, max_examples=300)
@given(
    topic_sets,
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 100)),
    st.builds(BatchLimit, limits, limits),
    st.integers(0, 100),
)
def test_laws(
    sizes: dict[str, list[int]], partial: dict[str, int], budget: BatchLimit, turn: int
) -> None:
    topics = Topics(sizes, partial)
    waited = dict.fromkeys(sizes, 0)
    batches = 0
    while not topics.is_drained:
        before = {topic for topic in sizes if topics.has_record(topic)}
        taken = topics.advance(budget, turn)
        turn, batches = turn + 1, batches + 1
        size, records = sum(sizes_of(taken)), sum(records_of(taken))
        assert records >= 1, "no progress"
        if budget.max_records is not None:
            assert records <= budget.max_records
        if budget.max_bytes is not None:
            assert size <= budget.max_bytes or records == 1
        if budget == BatchLimit():
            assert topics.is_drained
        for topic in before:
            waited[topic] = 0 if taken[topic][1] else waited[topic] + 1
            assert waited[topic] < len(sizes), f"{topic} starves"
    assert topics.calls() <= 9 * len(sizes) * batches
    assert topics.places == {t: sum(each) for t, each in sizes.items()}


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=5),
    st.integers(1, 20),
    st.integers(0, 10),
)
def test_equal_records_are_shared_in_about_the_proportion(
    counts: list[int], size: int, turn: int
) -> None:
    topics = Topics({f"t{n}": [size] * count for n, count in enumerate(counts)})
    limit = sum(counts) // 2
    assume(limit >= len(counts))
    taken = records_of(topics.advance(BatchLimit(limit * size), turn))
    assert sum(taken) == limit
    for records, count in zip(taken, counts, strict=True):
        assert records >= min(1, count)
        # Every other topic's first record, and rounding, may cost or give one.
        assert abs(records - limit * count / sum(counts)) <= len(counts)
