"""Record boundaries as servers tell them, and how many requests that takes.

Both kinds of ruler are held to the same questions here, which makes the file long.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.driver import Ruler
from lance_spark.client.lwp.places import LocatedRuler, WalkedRuler
from lance_spark.errors import (
    ConnectionLost,
    DataLoss,
    RecordError,
    StorageError,
    Unsupported,
)
from lance_spark.model import Location
from lance_spark.spark.admission import Backlog, BatchLimit, admit
from tests.client.kit_flow import FakeLog, record
from tests.each import each
from tests.spark.reading import (
    append_bytes,
    connect,
    drop_old,
    fill,
    log_of,
    make_payload,
    make_records,
    run_broker,
)

# 10, 11, 12 … bytes long.
RECORDS = [record("x" * (5 + number)) for number in range(40)]
DATA = b"".join(RECORDS)
BOUNDS = list(accumulate(map(len, RECORDS), initial=0))
END = len(DATA)


def expect(
    bounds: list[int],
    start: int,
    end: int,
    max_bytes: int | None,
    max_records: int | None,
) -> int:
    """Say what `fit` has to answer."""
    limit = end if max_bytes is None else min(end, start + max_bytes)
    last = bisect_right(bounds, limit) - 1
    first = bounds.index(start)
    if max_records is not None:
        last = min(last, first + max_records)
    return bounds[max(first, last)]


# A server that is asked, made up.


class FakeIndex:
    """A client that knows the records of a topic, numbered from anywhere on."""

    def __init__(self, bounds: list[int], first: int = 0) -> None:
        self.bounds = bounds
        self.first = first
        # How many records retention has removed.
        self.removed = 0
        self.asked: list[tuple[str, int]] = []
        # Called before each request is answered.
        self.before: Callable[[], None] = lambda: None

    def locate_offset(self, topic: int, offset: int) -> Location:
        self._ask("offset", topic, offset)
        numbers = range(self.removed, len(self.bounds))
        found = [n for n in numbers if self.bounds[n] >= offset]
        return self._locate(found[0] if found else len(self.bounds) - 1)

    def locate_record(self, topic: int, number: int) -> Location:
        self._ask("record", topic, number)
        last = len(self.bounds) - 1
        return self._locate(min(max(number - self.first, self.removed), last))

    def _ask(self, kind: str, topic: int, value: int) -> None:
        assert topic == 7
        assert 0 <= value < 2**64, "this can't be sent"
        self.asked.append((kind, value))
        self.before()

    def _locate(self, number: int) -> Location:
        return Location(self.bounds[number], self.first + number, 1)


def located(index: FakeIndex) -> LocatedRuler:
    client: Any = index
    return LocatedRuler(client, 7)


def fit(
    ruler: Ruler,
    start: int = 0,
    end: int = END,
    *,
    size: int | None = None,
    records: int | None = None,
) -> int:
    return ruler.fit(start, end, max_bytes=size, max_records=records)


def test_without_limits_a_server_is_asked_nothing() -> None:
    index = FakeIndex(BOUNDS)
    assert fit(located(index)) == END
    assert fit(located(index), size=END) == END
    assert fit(located(index), size=2**63) == END
    assert fit(located(index), size=0) == 0
    assert fit(located(index), records=0) == 0
    assert fit(located(index), 50, 50, size=5, records=5) == 50
    assert fit(located(index), 60, 50, size=5, records=5) == 60
    assert located(index).step(50, 50) is None
    assert located(index).count(50, 50) == 0
    assert index.asked == []


@each("first", [0, 1, 1000])
@each("number", [0, 7, 39])
def test_bytes_take_two_requests_at_most(number: int, first: int) -> None:
    start = BOUNDS[number]
    for size in range(1, 130):
        index = FakeIndex(BOUNDS, first)
        found = fit(located(index), start, size=size)
        assert found == expect(BOUNDS, start, END, size, None)
        assert len(index.asked) <= (0 if start + size >= END else 2)


def test_a_limit_on_a_boundary_takes_one_request() -> None:
    index = FakeIndex(BOUNDS)
    assert fit(located(index), size=BOUNDS[5]) == BOUNDS[5]
    assert index.asked == [("offset", BOUNDS[5])]


def test_records_take_two_requests() -> None:
    for first in (0, 1000):
        for records in (1, 2, 39, 40, 41, 2**63 - 1, 2**64):
            index = FakeIndex(BOUNDS, first)
            found = fit(located(index), BOUNDS[1], records=records)
            assert found == expect(BOUNDS, BOUNDS[1], END, None, records)
            assert len(index.asked) == 2


@pytest.mark.parametrize("first", [0, 1000])
def test_both_limits_take_four_requests_at_most(first: int) -> None:
    for size in (1, 10, 33, 100, 400, END, 2**63):
        for records in (1, 2, 5, 20, 100):
            index = FakeIndex(BOUNDS, first)
            ruler = located(index)
            found = fit(ruler, BOUNDS[2], size=size, records=records)
            assert found == expect(BOUNDS, BOUNDS[2], END, size, records)
            assert len(index.asked) <= 4
            index.asked.clear()
            assert ruler.count(BOUNDS[2], found) == BOUNDS.index(found) - 2
            assert len(index.asked) <= 1


def test_an_end_before_the_log_end_is_kept() -> None:
    for end in BOUNDS[4:30]:
        for records in (1, 2, 3, 50):
            found = fit(located(FakeIndex(BOUNDS)), BOUNDS[3], end, records=records)
            assert found == expect(BOUNDS, BOUNDS[3], end, None, records)


def test_step_takes_one_request() -> None:
    index = FakeIndex(BOUNDS)
    ruler = located(index)
    assert ruler.step(BOUNDS[3], END) == BOUNDS[4]
    assert ruler.step(BOUNDS[3], BOUNDS[4]) == BOUNDS[4]
    assert ruler.step(BOUNDS[3], BOUNDS[4] - 1) is None
    assert len(index.asked) == 3


def test_counting_takes_two_requests_and_remembers() -> None:
    index = FakeIndex(BOUNDS, 1000)
    ruler = located(index)
    assert ruler.count(BOUNDS[3], BOUNDS[30]) == 27
    assert ruler.count(BOUNDS[3], BOUNDS[30]) == 27
    assert len(index.asked) == 2


@each("removed", [1, 5, 12, 20, 39, 40])
@each("when", [1, 2, 3, 4])
def test_retention_never_leads_out_of_the_range(removed: int, when: int) -> None:
    start, end = BOUNDS[3], BOUNDS[20]
    for size in (None, 1, 15, 60, 200):
        for records in (None, 1, 4, 50):
            index = FakeIndex(BOUNDS, 1000)

            def cut(index: FakeIndex = index) -> None:
                if len(index.asked) == when:
                    index.removed = removed

            index.before = cut
            ruler = located(index)
            found = fit(ruler, start, end, size=size, records=records)
            assert start <= found <= end
            assert found in BOUNDS
            assert size is None or found - start <= size
            following = ruler.step(start, end)
            assert following is None or start < following <= end
            assert 0 <= ruler.count(start, end) <= 17


def test_a_log_that_was_cut_short_never_leads_out_of_the_range() -> None:
    for size in (None, 5, 100):
        for records in (None, 1, 50):
            ruler = located(FakeIndex(BOUNDS[:3]))
            found = fit(ruler, BOUNDS[10], BOUNDS[30], size=size, records=records)
            assert BOUNDS[10] <= found <= BOUNDS[30]
            assert ruler.step(BOUNDS[10], BOUNDS[30]) is None


def test_there_is_no_record_before_number_0() -> None:
    index = FakeIndex([100, 110, 120])
    assert fit(located(index), 0, 120, size=50) == 0
    assert index.asked == [("offset", 50)]


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        (BatchLimit(), 0),
        (BatchLimit(max_bytes=100 * END), 0),
        (BatchLimit(max_bytes=50 * END), 4),
        (BatchLimit(max_bytes=100), 4),
        (BatchLimit(max_records=400), 8),
        (BatchLimit(max_bytes=50 * END, max_records=1500), 10),
    ],
)
def test_a_batch_takes_few_requests_per_topic(budget: BatchLimit, most: int) -> None:
    indexes = [FakeIndex(BOUNDS, 1000) for _ in range(100)]
    backlogs = [
        Backlog(f"t{number}", 0, END, located(index))
        for number, index in enumerate(indexes)
    ]
    ends = admit(backlogs, budget, turn=5)
    assert sum(ends.values()) <= (budget.max_bytes or 100 * END)
    assert sum(len(index.asked) for index in indexes) <= most * len(indexes)


# Servers that are asked, real ones.


@contextmanager
def small_segments() -> Iterator[EmbeddedBroker]:
    with run_broker(segment_bytes=4096) as broker:
        yield broker


def bounds_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows] + [rows[-1]["next_offset"]]


def check_ruler(ruler: Ruler, bounds: list[int], chance: random.Random) -> None:
    """Compare a ruler with what is known, for random questions."""
    end = bounds[-1]
    for _ in range(60):
        number = chance.randrange(len(bounds) - 1)
        start = bounds[number]
        size = chance.choice([None, chance.randint(0, 60), chance.randint(0, end)])
        records = chance.choice([None, chance.randint(0, 3), chance.randint(0, 200)])
        found = fit(ruler, start, end, size=size, records=records)
        assert found == expect(bounds, start, end, size, records)
        assert ruler.step(start, end) == bounds[number + 1]
        assert ruler.count(start, found) == bounds.index(found) - number


def test_a_real_broker_is_asked(topic: str) -> None:
    with small_segments() as broker:
        rows = fill(broker, topic, make_records(400), batch_bytes=700)
        with connect(broker) as client:
            ruler = LocatedRuler(client, client.topic_id(topic))
            check_ruler(ruler, bounds_of(rows), random.Random(1))


def test_a_real_broker_is_asked_after_retention(topic: str) -> None:
    with small_segments() as broker:
        rows = fill(broker, topic, make_records(1000), batch_bytes=700)
        drop_old(broker, topic, 10_000)
        log_start, _ = log_of(broker, topic)
        assert log_start > 0
        kept = [bound for bound in bounds_of(rows) if bound >= log_start]
        with connect(broker) as client:
            ruler = LocatedRuler(client, client.topic_id(topic))
            check_ruler(ruler, kept, random.Random(2))
            # What is gone has no boundaries; the answer stays in the range.
            assert 0 <= fit(ruler, 0, kept[-1], size=log_start - 1) < log_start
            assert ruler.step(0, kept[-1]) == log_start
            assert ruler.step(0, log_start - 1) is None
            assert ruler.count(0, kept[3]) == 3


def test_bytes_that_are_no_records_count_as_one(broker: Any, topic: str) -> None:
    rows = fill(broker, topic, make_records(3))
    append_bytes(broker, topic, b"\0" * 100)
    at = rows[-1]["next_offset"]
    with connect(broker) as client:
        ruler = LocatedRuler(client, client.topic_id(topic))
        assert fit(ruler, 0, at + 100, size=at + 99) == at
        assert ruler.step(at, at + 100) == at + 100
        assert ruler.count(0, at + 100) == 4


def test_a_plain_server_can_t_be_asked(plain_broker: Any, topic: str) -> None:
    fill(plain_broker, topic, make_records(3))
    with connect(plain_broker) as client:
        ruler = LocatedRuler(client, client.topic_id(topic))
        with pytest.raises(Unsupported):
            fit(ruler, 0, 60, size=30)


# Servers that are read, made up.


def walked(log: FakeLog, fetch_bytes: int = 4 * 1024 * 1024) -> WalkedRuler:
    client: Any = log
    return WalkedRuler(client, "events", 7, fetch_bytes)


def asked_bytes(log: FakeLog) -> int:
    return sum(size for _, size, _ in log.asked)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("fetch_bytes", [1, 7, 64, 100_000])
def test_a_walk_finds_every_boundary(fetch_bytes: int, whole: bool) -> None:
    for size in (None, 0, 1, 9, 10, 11, 33, 500, END - 1, END, 2**63):
        for records in (None, 0, 1, 2, 17, 40, 41, 2**63):
            for number in (0, 5, 39):
                ruler = walked(FakeLog(DATA, whole=whole), fetch_bytes)
                start = BOUNDS[number]
                found = fit(ruler, start, size=size, records=records)
                assert found == expect(BOUNDS, start, END, size, records)
                assert ruler.count(start, found) == BOUNDS.index(found) - number
                assert ruler.step(start, END) == BOUNDS[number + 1]


def test_any_order_of_questions_gets_the_same_answers() -> None:
    for seed in range(20):
        ruler = walked(FakeLog(DATA), 64)
        check_ruler(ruler, BOUNDS, random.Random(seed))


def test_a_walk_ends_at_the_end_it_is_given() -> None:
    for end in (BOUNDS[10] - 1, BOUNDS[10], BOUNDS[10] + 1):
        ruler = walked(FakeLog(DATA))
        assert fit(ruler, 0, end) == BOUNDS[bisect_right(BOUNDS, end) - 1]
        assert ruler.step(BOUNDS[9], end) == (None if end < BOUNDS[10] else BOUNDS[10])


def test_a_small_quota_of_bytes_is_a_small_fetch() -> None:
    log = FakeLog(record("x" * 95) * 10_000, whole=True)
    assert fit(walked(log), 0, 1_000_000, size=1050) == 1000
    assert asked_bytes(log) <= 1050 + 100
    # A plain server is asked for the same bytes, and again for those it gave last.
    log = FakeLog(record("x" * 95) * 10_000)
    assert fit(walked(log), 0, 1_000_000, size=1050) == 1000
    assert max(start + size for start, size, _ in log.asked) <= 1050 + 100
    assert len(log.asked) <= 3


def test_a_small_quota_of_records_is_a_small_fetch() -> None:
    log = FakeLog(record("x" * 95) * 10_000)
    assert fit(walked(log), 0, 1_000_000, records=5) == 500
    assert log.asked == [(0, 16 * 1024, "fetch")]


def test_a_quota_below_a_header_is_not_fetched_for() -> None:
    log = FakeLog(DATA)
    assert fit(walked(log), size=4) == 0
    assert log.asked == []


def test_no_byte_is_fetched_twice_by_quotas_that_grow() -> None:
    log = FakeLog(record("x" * 95) * 10_000, whole=True)
    ruler = walked(log, 8192)
    end = 1_000_000
    assert ruler.step(0, end) == 100
    for size in (2_000, 50_000, 50_050, 400_000):
        found = fit(ruler, 0, end, size=size)
        assert found == size // 100 * 100
        assert ruler.count(0, found) == found // 100
    assert ruler.step(0, end) == 100
    starts = [start for start, _, _ in log.asked]
    assert starts == sorted(set(starts))
    assert asked_bytes(log) < 450_000


def test_a_walk_holds_one_chunk() -> None:
    log = FakeLog(record("x" * 95) * 10_000)
    ruler = walked(log, 8192)
    assert fit(ruler, 0, 1_000_000) == 1_000_000
    assert len(ruler._ends) <= 8192 // 100 + 1


def test_a_partial_record_at_the_end_is_not_there_yet() -> None:
    log = FakeLog(DATA[:-3])
    ruler = walked(log)
    assert fit(ruler, 0, END - 3) == BOUNDS[-2]
    assert ruler.step(BOUNDS[-2], END - 3) is None
    assert fit(ruler, BOUNDS[-2], END - 3) == BOUNDS[-2]


def test_a_partial_record_is_looked_at_once() -> None:
    log = FakeLog(DATA[:-3])
    ruler = walked(log)
    fit(ruler, 0, END - 3)
    asked = len(log.asked)
    assert fit(ruler, 0, END - 3) == BOUNDS[-2]
    assert ruler.count(0, BOUNDS[-2]) == 39
    assert len(log.asked) == asked


def test_a_record_that_was_completed_meanwhile_is_behind_the_end() -> None:
    log = FakeLog(DATA)
    assert fit(walked(log), 0, END - 3) == BOUNDS[-2]
    assert walked(log).step(BOUNDS[-2], END - 3) is None


BAD = b"\x00\x01\x00\x00\x00x"


@pytest.mark.parametrize("fetch_bytes", [16, 100_000])
def test_good_records_before_a_bad_one_come_first(fetch_bytes: int) -> None:
    log = FakeLog(DATA + BAD + DATA)
    ruler = walked(log, fetch_bytes)
    end = 2 * END + len(BAD)
    for size in (None, END + 3, END + 100):
        assert fit(ruler, 0, end, size=size) == END
    assert ruler.step(0, end) == BOUNDS[1]
    assert ruler.count(0, END) == 40


def test_a_bad_record_at_the_start_is_an_error_with_its_place() -> None:
    log = FakeLog(DATA + BAD + DATA)
    end = 2 * END + len(BAD)
    for ask in (
        lambda ruler: fit(ruler, END, end),
        lambda ruler: ruler.step(END, end),
        lambda ruler: ruler.count(END, end),
    ):
        with pytest.raises(RecordError, match="'events'") as told:
            ask(walked(log))
        assert told.value.position == END


def test_lost_data_is_an_error() -> None:
    log = FakeLog(DATA)
    log.start = BOUNDS[5]
    with pytest.raises(DataLoss) as told:
        fit(walked(log), BOUNDS[2])
    assert (told.value.topic, told.value.asked) == ("events", BOUNDS[2])
    with pytest.raises(DataLoss):
        walked(log).step(END + 10, END + 100)


@pytest.mark.parametrize("error", [ConnectionLost("gone"), StorageError("damaged")])
def test_errors_of_the_client_go_through(error: Exception) -> None:
    log = FakeLog(DATA)
    log.errors = [error]
    with pytest.raises(type(error)):
        fit(walked(log))
    log.errors = [None, error]
    ruler = walked(log, 64)
    with pytest.raises(type(error)):
        fit(ruler, records=30)
    # What was read before is not forgotten, and nothing is counted twice.
    assert fit(ruler, records=30) == BOUNDS[30]


def test_a_fetch_under_way_is_given_up() -> None:
    log = FakeLog(record("x" * 95) * 20)
    # The last three bytes are on their way when it shows that nothing ends in them.
    assert fit(walked(log, 100), 0, 2000, size=1003) == 1000
    assert log.asked[-1] == (0, 1000 + 5, "ahead")
    assert log.given_up == 1


# Servers that are read, real ones.


@pytest.mark.parametrize("dialect", ["plain", "lwp"])
def test_a_real_server_is_walked(dialect: str, topic: str) -> None:
    with run_broker(dialect) as broker:
        rows = fill(broker, topic, make_records(400), batch_bytes=700)
        with connect(broker) as client:
            ruler = WalkedRuler(client, topic, client.topic_id(topic), 1024)
            check_ruler(ruler, bounds_of(rows), random.Random(3))


def test_a_log_of_a_plain_server_that_ends_inside_a_record(
    plain_broker: EmbeddedBroker, topic: str
) -> None:
    payload = make_payload(make_records(10))
    append_bytes(plain_broker, topic, payload[:-4])
    with connect(plain_broker) as client:
        ruler = WalkedRuler(client, topic, client.topic_id(topic), 1024)
        size = len(payload) // 10
        assert fit(ruler, 0, len(payload) - 4) == 9 * size
        append_bytes(plain_broker, topic, payload[-4:])
        again = WalkedRuler(client, topic, client.topic_id(topic), 1024)
        assert fit(again, 0, len(payload)) == len(payload)


# Both, under one budget.


def make_backlogs(
    client: LanceClient, ends: dict[str, int], places: dict[str, int], *, walk: bool
) -> list[Backlog]:
    backlogs = []
    for topic, end in ends.items():
        topic_id = client.topic_id(topic)
        ruler: Ruler = LocatedRuler(client, topic_id)
        if walk:
            ruler = WalkedRuler(client, topic, topic_id, 2048)
        backlogs.append(Backlog(topic, places[topic], end, ruler))
    return backlogs


@pytest.mark.parametrize(
    "budget", [BatchLimit(1000), BatchLimit(None, 40), BatchLimit(1000, 30)]
)
def test_both_kinds_admit_the_same(broker: EmbeddedBroker, budget: BatchLimit) -> None:
    sizes = {"large": (200, 20), "small": (3, 90), "wide": (10, 300)}
    rows = {
        name: fill(broker, name, make_records(count, size))
        for name, (count, size) in sizes.items()
    }
    bounds = {name: bounds_of(each) for name, each in rows.items()}
    ends = {name: each[-1] for name, each in bounds.items()}
    places = dict.fromkeys(ends, 0)
    with connect(broker) as client:
        for turn in range(1000):
            if places == ends:
                break
            told = [
                admit(make_backlogs(client, ends, places, walk=walk), budget, turn=turn)
                for walk in (True, False)
            ]
            assert told[0] == told[1]
            taken = sum(told[0].values()) - sum(places.values())
            counts = {t: bounds[t].index(told[0][t]) for t in ends}
            records = sum(counts.values())
            records -= sum(bounds[t].index(places[t]) for t in ends)
            assert 0 < taken <= (budget.max_bytes or taken)
            assert 0 < records <= (budget.max_records or records)
            places = told[0]
    assert places == ends
