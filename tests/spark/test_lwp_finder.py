"""Where splits really start: decisions with a made-up server, then with real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.driver import Extent, LogRef, Range, Split
from lance_spark.client.lwp.places import (
    LocatedFinder,
    ProbedFinder,
    fetch_exactly,
)
from lance_spark.errors import DataLoss
from lance_spark.model import Location, Partition
from tests.spark.reading import (
    DIALECTS,
    append_bytes,
    connect,
    drop_old,
    fill,
    log_of,
    make_payload,
    make_records,
    run_broker,
)


def make_splits(start: int, end: int, parts: int, **fields: Any) -> list[Split]:
    log = LogRef(Partition("a"), fields.pop("topic_id", 1))
    whole = Range(log, start, end, **fields)
    return [Split(whole, index, parts) for index in range(parts)]


# Deciding.


class KnowingFinder(ProbedFinder):
    """Knows what to find from which point on."""

    def __init__(self, found: Mapping[int, int | None]) -> None:
        self.found, self.asked = found, list[int]()

    def probe(self, piece: Range, at: int, before: int) -> int | None:
        self.asked.append(at)
        position = self.found[at]
        assert position is None or at <= position < before
        return position


def extents(start: int, end: int, found: Mapping[int, int | None]) -> list[Any]:
    """Give (start, end, last) of every split; None for those without rows."""
    splits = make_splits(start, end, len(found) + 1)
    results = [KnowingFinder(found).find_extent(split) for split in splits]
    return [each and (each.start, each.end, each.is_last) for each in results]


def test_one_split_looks_for_nothing() -> None:
    assert extents(10, 50, {}) == [(10, 50, True)]


def test_splits_meet_where_records_were_found() -> None:
    assert extents(0, 300, {100: 104, 200: 200}) == [
        (0, 104, False),
        (104, 200, False),
        (200, 300, True),
    ]


def test_records_of_a_split_without_a_start_belong_to_the_one_before() -> None:
    assert extents(0, 400, {100: None, 200: None, 300: 333}) == [
        (0, 333, False),
        None,
        None,
        (333, 400, True),
    ]


def test_the_last_of_the_splits_may_have_no_start() -> None:
    assert extents(0, 300, {100: 100, 200: None}) == [
        (0, 100, False),
        (100, 300, True),
        None,
    ]
    assert extents(0, 300, {100: None, 200: None}) == [
        (0, 300, True),
        None,
        None,
    ]


def test_a_split_without_a_start_looks_no_further() -> None:
    finder = KnowingFinder({100: None})
    assert finder.find_extent(make_splits(0, 400, 4)[1]) is None
    assert finder.asked == [100]


# Asking.


@pytest.fixture
def client(broker: EmbeddedBroker) -> Any:
    with connect(broker) as client:
        yield client


@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_located_splits_have_every_record_once(
    broker: EmbeddedBroker, client: LanceClient, topic: str, parts: int
) -> None:
    rows = fill(broker, topic, make_records(20))
    starts = [row["offset"] for row in rows]
    end = rows[-1]["next_offset"]
    topic_id = client.topic_id(topic)
    found: list[int] = []
    for split in make_splits(0, end, parts, topic_id=topic_id):
        extent = LocatedFinder(client).find_extent(split)
        assert extent.is_last == (split.index == parts - 1)
        assert extent.start in [*starts, end]
        # The reader goes up to the first record that starts behind the end.
        assert extent.end == split.end
        found += [start for start in starts if extent.start <= start < extent.end]
    assert found == starts


def test_a_located_split_whose_start_is_gone() -> None:
    with run_broker(segment_bytes=500) as broker, connect(broker) as client:
        rows = fill(broker, "a", make_records(200), batch_bytes=250)
        end = rows[-1]["next_offset"]
        splits = make_splits(0, end, 10, topic_id=client.topic_id("a"))
        drop_old(broker, "a", end // 2)
        start, _ = log_of(broker, "a")
        assert 0 < start < end
        for split in splits:
            if split.start >= start:
                assert LocatedFinder(client).find_extent(split).start >= start
                continue
            with pytest.raises(DataLoss) as told:
                LocatedFinder(client).find_extent(split)
            loss = told.value
            assert (loss.topic, loss.asked) == ("a", split.start)
            assert (loss.log_start, loss.log_end) == (start, end)


def test_a_split_is_complete_if_what_follows_is_removed_meanwhile() -> None:
    class Shrinking:
        """Loses records between two requests."""

        def locate_offset(self, topic_id: int, offset: int) -> Location:
            return Location(60, 6, 0)

        def locate_start(self, topic_id: int) -> Location:
            return Location(80, 8, 0)

    client: Any = Shrinking()
    split = make_splits(0, 100, 2)[0]
    extent = Extent(0, 50, is_last=False)
    assert LocatedFinder(client).find_next(split, extent) is None


# Looking.


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_probed_splits_have_every_record_once(
    plain_broker: EmbeddedBroker, topic: str, parts: int
) -> None:
    rows = fill(plain_broker, topic, make_records(3000, 40))
    starts = [row["offset"] for row in rows]
    end = rows[-1]["next_offset"]
    with connect(plain_broker) as client:
        splits = make_splits(0, end, parts, topic_id=client.topic_id(topic))
        found = [ProbedFinder(client).find_extent(split) for split in splits]
    # Nothing here is hard to tell: every split has its part.
    known = [extent for extent in found if extent is not None]
    assert len(known) == parts
    assert all(extent.start in starts for extent in known)
    assert [extent.start for extent in known][1:] == [e.end for e in known][:-1]
    assert (known[0].start, known[-1].end) == (0, end)


def test_probing_looks_at_nothing_behind_the_range(
    plain_broker: EmbeddedBroker, topic: str
) -> None:
    records = make_records(2000, 40)
    size = len(make_payload(records))
    fill(plain_broker, topic, records)
    with connect(plain_broker) as client:
        splits = make_splits(0, size, 4, topic_id=client.topic_id(topic))
        before = [ProbedFinder(client).find_extent(split) for split in splits]
        # Nothing of this is a record, and no chain survives it.
        append_bytes(plain_broker, topic, bytes(70_000))
        assert [ProbedFinder(client).find_extent(split) for split in splits] == before
    assert all(isinstance(extent, Extent) for extent in before)


# Fetching.


def make_whole(client: LanceClient, end: int) -> Range:
    return Range(LogRef(Partition("a"), client.topic_id("a")), 0, end)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_so_many_bytes_are_fetched_in_as_many_answers_as_it_takes(dialect: str) -> None:
    records = make_records(300)
    data = make_payload(records)
    with run_broker(dialect, fetch_bytes_max=1024) as broker, connect(broker) as client:
        fill(broker, "a", records)
        whole = make_whole(client, len(data))

        def fetch(start: int, size: int) -> bytes:
            return bytes(fetch_exactly(client, whole, start, size))

        # From inside of a record into another one, and over several answers.
        for start, size in [(0, 1), (7, 10), (3, 5000), (0, len(data)), (50, 0)]:
            assert fetch(start, size) == data[start : start + size]
        # What is not there is no answer, and neither is a part of it.
        for start, size in [(len(data) - 10, 11), (len(data), 1), (len(data) + 5, 1)]:
            with pytest.raises(DataLoss, match="the log ends before the range") as told:
                fetch(start, size)
            assert (told.value.topic, told.value.log_end) == ("a", len(data))


def test_bytes_that_are_gone_are_not_made_up_by_others() -> None:
    with run_broker(segment_bytes=500) as broker, connect(broker) as client:
        fill(broker, "a", make_records(200), batch_bytes=250)
        drop_old(broker, "a", 1000)
        start, end = log_of(broker, "a")
        # The server answers with what it has, from its log start on.
        assert client.fetch("a", 0, 10).start == start
        with pytest.raises(DataLoss, match="before the log start is removed") as told:
            fetch_exactly(client, make_whole(client, end), 5, 10)
        loss = told.value
        assert (loss.asked, loss.log_start, loss.log_end) == (5, start, end)
