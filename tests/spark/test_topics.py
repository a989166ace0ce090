"""Which topics and ranges are read, as servers of both dialects have them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.driver import Range, TopicEntry
from lance_spark.client.lwp.driver import make_driver
from lance_spark.client.lwp.places import RangeMark, fetch_exactly
from lance_spark.errors import DataLoss, OptionError, TopicNotFound, Unsupported
from lance_spark.model import Location
from lance_spark.spark.options import parse_read_options
from lance_spark.spark.planning import (
    check_range,
    choose_topics,
    report_loss,
    resolve_ranges,
)
from lance_spark.wire.lwp import Record
from tests.spark.reading import (
    DIALECTS,
    connect,
    drop_old,
    fill,
    log_at,
    log_of,
    make_payload,
    make_records,
    parse,
    run_broker,
)

LISTING = [
    TopicEntry("b", 3),
    TopicEntry("c", 1),
    TopicEntry("a", 2),
    TopicEntry("ab", 4),
]


def choose(**given: str) -> list[str]:
    options = parse_read_options(given)
    return [info.name for info in choose_topics(options, LISTING)]


# Topics.


def test_topics_that_are_named_come_in_the_order_of_their_names() -> None:
    assert choose(topic="c, a") == ["a", "c"]
    assert choose(topic="a,b,a") == ["a", "b"]


def test_a_pattern_matches_whole_names(caplog: pytest.LogCaptureFixture) -> None:
    assert choose(topicPattern="a") == ["a"]
    assert choose(topicPattern="a.*|c") == ["a", "ab", "c"]
    assert caplog.text == ""
    assert choose(topicPattern="nothing.*") == []
    assert "no topic matches topicPattern 'nothing.*'" in caplog.text


def test_all_topics_where_none_has_to_be_named() -> None:
    assert choose(metadata="topics") == ["a", "ab", "b", "c"]


def test_every_topic_that_is_not_there_is_named() -> None:
    with pytest.raises(TopicNotFound) as told:
        choose(topic="a,x,y")
    assert "no topic is named 'x', 'y'" in str(told.value)
    assert "create it, or correct the option topic" in str(told.value)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_for_a_topic_that_a_pattern_does_not_find(option: str) -> None:
    # It matches, so that only the server can tell that there is none.
    with pytest.raises(OptionError) as told:
        choose(topicPattern="a.*", **{option: '{"ax": 1, "a": 2}'})
    assert str(told.value) == (
        "offsets are given for 'ax', which is not read; the topics are 'a', 'ab'"
    )
    with pytest.raises(OptionError, match=r"the topics are none$"):
        choose(topicPattern="x.*", **{option: '{"xa": 1}'})


# How.


@pytest.mark.parametrize(
    ("dialect", "splitting", "expected"),
    [
        ("lwp", "auto", "located"),
        ("lwp", "locate", "located"),
        ("lwp", "none", "located"),
        ("lwp", "probe", "probed"),
        ("plain", "auto", "probed"),
        ("plain", "none", "probed"),
        ("plain", "probe", "probed"),
    ],
)
def test_records_are_located_where_they_can_be(
    dialect: str, splitting: str, expected: str
) -> None:
    with run_broker(dialect) as broker, connect(broker) as client:
        driver = make_driver(client)
        assert driver.choose_finder(splitting) == expected
        assert driver.find_with(driver.choose_finder(splitting)).is_told is (
            expected == "located"
        )


def test_a_plain_server_can_not_be_asked(plain_broker: EmbeddedBroker) -> None:
    with connect(plain_broker) as client, pytest.raises(Unsupported) as told:
        make_driver(client).choose_finder("locate")
    text = str(told.value)
    assert "splitting=locate (use auto, probe or none)" in text
    assert plain_broker.address in text


# Ranges.


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param, segment_bytes=1000) as broker:
        yield broker


@pytest.fixture
def client(server: EmbeddedBroker) -> Iterator[LanceClient]:
    with connect(server) as client:
        yield client


def resolve(client: LanceClient, server: EmbeddedBroker, **given: Any) -> list[Range]:
    options, driver = parse(server, **given), make_driver(client)
    return resolve_ranges(driver, options, choose_topics(options, driver.topics()))


def check(client: LanceClient, piece: Range) -> None:
    check_range(make_driver(client), piece)


def spans(ranges: list[Range]) -> list[tuple[str, int, int]]:
    return [(whole.topic, whole.start, whole.end) for whole in ranges]


def test_whole_topics(server: EmbeddedBroker, client: LanceClient) -> None:
    end = fill(server, "a", make_records(10))[-1]["next_offset"]
    fill(server, "b")
    ranges = resolve(client, server, topic="a,b")
    assert spans(ranges) == [("a", 0, end), ("b", 0, 0)]
    plain = server.config.dialect == "plain"
    for whole in ranges:
        assert whole.log == log_at(client, whole.topic)
        assert (whole.finder == "located") is not plain
        assert whole.is_aligned
        assert whole.ends_log
        assert (whole.mark is not None) is plain


def test_offsets_by_topic(server: EmbeddedBroker, client: LanceClient) -> None:
    offsets = [row["offset"] for row in fill(server, "a", make_records(10))]
    end = fill(server, "b", make_records(10))[-1]["next_offset"]
    some = resolve(
        *(client, server),
        topic="a,b",
        startingOffsets=f'{{"a": {offsets[2]}, "b": -2}}',
        endingOffsets=f'{{"a": {offsets[5]}, "b": -1}}',
    )
    assert spans(some) == [("a", offsets[2], offsets[5]), ("b", 0, end)]
    assert [whole.ends_log for whole in some] == [False, True]
    others = resolve(
        *(client, server),
        topicPattern=".",
        startingOffsets=f'{{"a": {offsets[2]}, "b": -2}}',
        endingOffsets=f'{{"a": {offsets[5]}, "b": -1}}',
    )
    assert others == some
    latest = resolve(client, server, topic="a", startingOffsets="latest")
    assert spans(latest) == [("a", end, end)]
    earliest = resolve(client, server, topic="a", endingOffsets="earliest")
    assert spans(earliest) == [("a", 0, 0)]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_topic_that_a_pattern_matches_and_that_has_no_offset(
    server: EmbeddedBroker, client: LanceClient, option: str
) -> None:
    for name in ("a", "b", "c"):
        fill(server, name, make_records(2))
    with pytest.raises(OptionError) as told:
        resolve(client, server, topicPattern="[abc]", **{option: '{"b": 25}'})
    assert str(told.value) == (
        f"option {option} has no offset for topics 'a', 'c': add one for each, as in "
        '{"a": -2, "c": -2}, where -2 is earliest and -1 is latest'
    )


def test_what_came_after_the_end_was_asked_for_is_no_part(
    server: EmbeddedBroker, client: LanceClient
) -> None:
    end = fill(server, "a", make_records(3))[-1]["next_offset"]
    [whole] = resolve(client, server, topic="a")
    fill(server, "a", make_records(3))
    assert whole.end == end
    check(client, whole)


def test_an_end_behind_the_log(server: EmbeddedBroker, client: LanceClient) -> None:
    end = fill(server, "a", make_records(3))[-1]["next_offset"]
    given = {"topic": "a", "endingOffsets": f'{{"a": {end + 1}}}'}
    with pytest.raises(DataLoss) as told:
        resolve(client, server, **given)
    text = str(told.value)
    assert f"topic 'a': data at offset {end + 1} is lost" in text
    assert "set failOnDataLoss=false to go on with what is left" in text
    left = resolve(client, server, failOnDataLoss=False, **given)
    assert spans(left) == [("a", 0, end)]
    assert left[0].ends_log


def test_a_start_behind_the_end(server: EmbeddedBroker, client: LanceClient) -> None:
    offsets = [row["offset"] for row in fill(server, "a", make_records(10))]
    with pytest.raises(OptionError, match="after its end"):
        resolve(
            *(client, server),
            topic="a",
            startingOffsets="latest",
            endingOffsets=f'{{"a": {offsets[5]}}}',
        )


def test_a_start_that_retention_has_passed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with run_broker(segment_bytes=500) as broker, connect(broker) as client:
        end = fill(broker, "a", make_records(200), batch_bytes=250)[-1]["next_offset"]
        drop_old(broker, "a", 1000)
        start, _ = log_of(broker, "a")
        assert spans(resolve(client, broker, topic="a")) == [("a", start, end)]
        given = {"topic": "a", "startingOffsets": '{"a": 0}'}
        with pytest.raises(DataLoss, match=f"{start} bytes gone"):
            resolve(client, broker, **given)
        with caplog.at_level(logging.WARNING, "lance_spark.spark"):
            ranges = resolve(client, broker, failOnDataLoss="false", **given)
    assert spans(ranges) == [("a", start, end)]
    assert "data at offset 0 is lost" in caplog.text


def test_a_topic_that_goes_while_ranges_are_planned(
    server: EmbeddedBroker, client: LanceClient, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        fill(server, name, make_records(3))
    driver = make_driver(client)
    listing = driver.topics()
    client.delete_topic("b")
    if listing[0].bounds is not None:
        # The listing tells where logs end, and the task that reads misses the topic.
        listing = [replace(entry, bounds=None) for entry in listing]

    def resolve_listed(**given: str) -> list[str]:
        options = parse(server, topicPattern=".", **given)
        ranges = resolve_ranges(driver, options, choose_topics(options, listing))
        return [whole.topic for whole in ranges]

    with pytest.raises(DataLoss, match=r"'b'.*the topic was deleted; set failOnData"):
        resolve_listed()
    assert resolve_listed(failOnDataLoss="false") == ["a", "c"]
    assert "topic 'b'" in caplog.text


# Times.


def test_times_are_those_of_the_broker(broker: EmbeddedBroker, topic: str) -> None:
    before_ns = time.time_ns()
    middle = fill(broker, topic, make_records(5))[-1]["next_offset"]
    with connect(broker) as client:
        between_ns = wait_past(time.time_ns())
        end = fill(broker, topic, make_records(5))[-1]["next_offset"]

        def read(**given: str) -> tuple[int, int]:
            [whole] = resolve(client, broker, topic=topic, **given)
            return whole.start, whole.end

        between, before = (str(ns // 10**6) for ns in (between_ns, before_ns))
        later = str(time.time_ns() // 10**6 + 3_600_000)
        assert read(startingTimestamp=between) == (middle, end)
        assert read(endingTimestamp=between) == (0, middle)
        assert read(startingTimestamp=before, endingTimestamp=later) == (0, end)
        assert read(startingTimestamp=later) == (end, end)
        assert read(endingTimestamp="1970-01-02") == (0, 0)


def test_what_comes_while_a_time_is_looked_up_is_no_part(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = fill(broker, topic, make_records(5))[-1]["next_offset"]
    with connect(broker) as client:
        locate = client.locate_time

        def grow(*asked: int) -> Location:
            fill(broker, topic, make_records(5))
            return locate(*asked)

        monkeypatch.setattr(client, "locate_time", grow)
        [whole] = resolve(client, broker, topic=topic, startingTimestamp="2200-01-01")
    assert (whole.start, whole.end) == (end, end)


def wait_past(time_ns: int) -> int:
    """Wait until the clock shows a later millisecond; return it."""
    deadline_s = time.monotonic() + 30
    while (now_ns := time.time_ns()) // 10**6 <= time_ns // 10**6:
        assert time.monotonic() < deadline_s
    return now_ns


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_a_plain_server_has_no_times(
    plain_broker: EmbeddedBroker, topic: str, option: str
) -> None:
    fill(plain_broker, topic, make_records(1))
    with connect(plain_broker) as client, pytest.raises(Unsupported) as told:
        resolve(client, plain_broker, topic=topic, **{option: "2024-05-01"})
    expected = f"{option} (a plain server has no index of times; use offsets)"
    assert expected in str(told.value)


# Marks.


def test_offsets_that_have_shifted_are_noticed() -> None:
    # All records start and end alike, over more than a few bytes.
    records = [Record(1, b"%06d".center(200, b"=") % number) for number in range(200)]
    with run_broker("plain", segment_bytes=500) as broker, connect(broker) as client:
        fill(broker, "a", records, batch_bytes=250)
        [whole] = resolve(client, broker, topic="a")
        assert whole.mark is not None
        check(client, whole)
        fill(broker, "a", records)
        check(client, whole)
        drop_old(broker, "a", 60_000)
        assert log_of(broker, "a")[0] > 0
        with pytest.raises(DataLoss) as told:
            check(client, whole)
    assert "its offsets have shifted since the query was planned: run it again" in (
        str(told.value)
    )


def test_a_shift_that_shows_at_the_end_alone() -> None:
    # Each segment starts with more equal records than a mark looks at.
    alike = [Record(1, b"heartbeat".ljust(95))] * 60
    with run_broker("plain", segment_bytes=1000) as broker, connect(broker) as client:
        for number in range(6):
            fill(broker, "a", [*alike, Record(1, b"%095d" % number)])
        [whole] = resolve(client, broker, topic="a")
        size = log_of(broker, "a")[1]
        drop_old(broker, "a", size - 5000)
        gone, _ = log_of(broker, "a")
        assert gone > 0
        fill(broker, "a", [Record(1, b"new".ljust(95))] * 100)
        head = fetch_exactly(client, whole, 0, 4096)
        assert bytes(head) == make_payload(alike)[:4096]
        with pytest.raises(DataLoss, match="its offsets have shifted"):
            check(client, whole)


def test_a_shift_that_shows_at_the_start_alone() -> None:
    alike = [Record(1, b"heartbeat".ljust(95))] * 60
    with run_broker("plain", segment_bytes=1000) as broker, connect(broker) as client:
        for number in range(3):
            fill(broker, "a", [Record(1, b"%095d" % number)] * 20)
        fill(broker, "a", alike * 2)
        [whole] = resolve(client, broker, topic="a")
        drop_old(broker, "a", log_of(broker, "a")[1] - 1000)
        assert log_of(broker, "a")[0] > 0
        fill(broker, "a", alike)
        tail = fetch_exactly(client, whole, whole.end - 4000, 4000)
        assert bytes(tail) == make_payload(alike)[:4000]
        with pytest.raises(DataLoss, match="its offsets have shifted"):
            check(client, whole)


def test_a_mark_is_also_of_the_head_of_the_log() -> None:
    """The records of the range are all alike, and the log is no shorter."""
    alike = [Record(1, bytes(95))] * 500
    with run_broker("plain", segment_bytes=1000) as broker, connect(broker) as client:
        fill(broker, "a", [Record(1, b"%095d" % n) for n in range(100)])
        fill(broker, "a", alike, batch_bytes=1000)
        start = '{"a": 30000}'
        [whole] = resolve(client, broker, topic="a", startingOffsets=start)
        drop_old(broker, "a", log_of(broker, "a")[1] - 11_000)
        assert log_of(broker, "a")[0] > 0
        fill(broker, "a", alike)
        with pytest.raises(DataLoss, match="its offsets have shifted"):
            check(client, whole)


def test_a_mark_is_also_of_the_end_of_the_log() -> None:
    """All records are alike, and none came."""
    with run_broker("plain", segment_bytes=1000) as broker, connect(broker) as client:
        fill(broker, "a", [Record(1, bytes(95))] * 500, batch_bytes=1000)
        end = '{"a": 20000}'
        [whole] = resolve(client, broker, topic="a", endingOffsets=end)
        check(client, whole)
        drop_old(broker, "a", 40_000)
        with pytest.raises(DataLoss, match="its offsets have shifted"):
            check(client, whole)


def test_a_mark_is_of_the_range_alone(plain_broker: EmbeddedBroker) -> None:
    rows = fill(plain_broker, "a", make_records(10))
    first, last = rows[3]["offset"], rows[4]["offset"]
    with connect(plain_broker) as client:
        [whole] = resolve(
            *(client, plain_broker),
            topic="a",
            startingOffsets=f'{{"a": {first}}}',
            endingOffsets=f'{{"a": {last}}}',
        )
        assert whole.mark is not None
        assert whole.mark.size == last - first
        check(client, whole)
        assert whole.mark.log_end == rows[-1]["next_offset"]
        wrong = replace(whole.mark, crc=whole.mark.crc ^ 1)
        with pytest.raises(DataLoss):
            check(client, replace(whole, mark=wrong))


def test_an_empty_range_has_nothing_to_check(plain_broker: EmbeddedBroker) -> None:
    fill(plain_broker, "a")
    with connect(plain_broker) as client:
        [whole] = resolve(client, plain_broker, topic="a")
        assert whole.mark == RangeMark(0, 0, 0)
        fill(plain_broker, "a", make_records(1))
        check(client, whole)


# Losses.

LOSS = DataLoss("a", 5, 10, 20, "it is gone")


def test_a_loss_is_an_error_with_its_remedy() -> None:
    with pytest.raises(DataLoss) as told:
        report_loss(LOSS, is_error=True)
    found = told.value
    assert (found.topic, found.asked, found.log_start, found.log_end) == (
        "a",
        5,
        10,
        20,
    )
    assert found.reason == (
        "it is gone; set failOnDataLoss=false to go on with what is left"
    )


def test_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lance_spark.spark"):
        report_loss(LOSS, is_error=False)
    assert (
        "topic 'a': data at offset 5 is lost, 5 bytes gone: it is gone" in caplog.text
    )
