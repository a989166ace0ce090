"""Splits of topics that go, shrink or shift before tasks read them, or meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.client import TopicInfo
from lance_spark.client.driver import Split
from lance_spark.client.lwp.places import ProbedFinder
from lance_spark.errors import DataLoss
from lance_spark.model import Partition
from lance_spark.spark import scan
from lance_spark.wire.lwp import Record
from tests.spark.reading import (
    DIALECTS,
    EVERY_COLUMN,
    append_bytes,
    drop_old,
    fill,
    log_of,
    make_records,
    to_rows,
)
from tests.spark.scanning import Rows, Server, serve


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Serve with small segments, and take whatever comes as a batch."""
    yield from serve(request.param, segment_bytes=500, payload_validation="off")


@pytest.fixture
def located() -> Iterator[Server]:
    yield from serve("lwp", segment_bytes=500, payload_validation="off")


@pytest.fixture
def probed() -> Iterator[Server]:
    yield from serve("plain", segment_bytes=500)


# Topics that go away.

Change = Callable[[Server], None]


def delete(server: Server) -> None:
    server.client.delete_topic("a")


def recreate(server: Server) -> None:
    delete(server)
    fill(server.broker, "a", make_records(50))


@pytest.mark.parametrize("change", [delete, recreate])
def test_a_topic_that_is_gone_before_a_task_starts(
    server: Server, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server.broker, "a", make_records(20))
    splits = server.plan()
    change(server)
    with pytest.raises(DataLoss) as told:
        server.read(splits)
    assert "is gone: the topic was deleted" in str(told.value)
    assert "set failOnDataLoss=false" in str(told.value)
    assert server.read(splits, failOnDataLoss="false") == []
    assert "is gone: the topic was deleted" in caplog.text


def test_an_id_that_is_of_another_topic_by_now(server: Server) -> None:
    fill(server.broker, "a", make_records(20))
    [split] = server.plan()
    log = split.range.log
    for change in (
        replace(log, partition=Partition("b")),
        replace(log, created_s=log.created_s + 1),
    ):
        other = replace(split, range=replace(split.range, log=change))
        with pytest.raises(DataLoss, match="is another topic by now"):
            server.read([other])
        assert server.read([other], failOnDataLoss="false") == []


def test_another_topic_is_noticed_where_no_row_is_read(server: Server) -> None:
    # No record of the other topic starts in any split but the first, and its bytes
    # may be no records at all: neither may pass for a split without records.
    fill(server.broker, "a", [Record(1, b"\xff" * 5_000)])
    append_bytes(server.broker, "b", b"\x00garbage" * 10)
    [bad] = server.plan(topic="b")
    for split in [*server.plan(4), bad]:
        log = replace(split.range.log, created_s=split.range.log.created_s + 1)
        other = replace(split, range=replace(split.range, log=log))
        with pytest.raises(DataLoss, match="is another topic by now"):
            server.read([other])
        assert server.read([other], failOnDataLoss="false") == []


@pytest.mark.parametrize("change", [delete, recreate])
def test_a_topic_that_goes_while_it_is_read(
    server: Server, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill(server.broker, "a", make_records(200))
    [split] = server.plan()
    failing = server.start(split, fetchBytes="1k")
    going_on = server.start(split, fetchBytes="1k", failOnDataLoss="false")
    found = to_rows([next(failing)], EVERY_COLUMN)
    assert to_rows([next(going_on)], EVERY_COLUMN) == found == rows[: len(found)]
    change(server)
    with pytest.raises(DataLoss, match="is gone: the topic was deleted"):
        list(failing)
    found += to_rows(going_on, EVERY_COLUMN)
    assert found == rows[: len(found)]
    assert len(found) < len(rows)
    assert "is gone: the topic was deleted" in caplog.text


# Data that retention takes, where offsets stay.


def fill_segments(server: Server) -> Rows:
    return fill(server.broker, "a", make_records(400), batch_bytes=250)


def test_what_was_removed_before_a_task_starts(
    located: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill_segments(located)
    splits = located.plan(5)
    drop_old(located.broker, "a", 5_000)
    start, _ = log_of(located.broker, "a")
    assert 0 < start < rows[-1]["offset"]
    with pytest.raises(DataLoss, match="what was before the log start is removed"):
        located.read(splits)
    assert located.read(splits, failOnDataLoss="false") == [
        row for row in rows if row["offset"] >= start
    ]
    assert "what was before the log start is removed" in caplog.text


def test_what_is_removed_while_it_is_read(located: Server) -> None:
    rows = fill_segments(located)
    splits = located.plan()

    def read(**given: str) -> Iterator[Rows]:
        batches = located.start(splits[0], fetchBytes="512", **given)
        yield to_rows([next(batches)], EVERY_COLUMN)
        yield to_rows(batches, EVERY_COLUMN)

    failing, going_on = read(), read(failOnDataLoss="false")
    before = next(failing)
    assert next(going_on) == before == rows[: len(before)]
    drop_old(located.broker, "a", 3_000)
    start, _ = log_of(located.broker, "a")
    with pytest.raises(DataLoss, match="what was before the log start is removed"):
        next(failing)
    found = before + next(going_on)
    # What was on its way already may come; nothing comes twice, nothing is left out.
    passed = [row for row in found if row["offset"] < start]
    assert passed == rows[: len(passed)]
    assert found[len(passed) :] == [row for row in rows if row["offset"] >= start]
    assert len(found) < len(rows)


def test_all_that_a_split_has_is_removed(located: Server) -> None:
    rows = fill_segments(located)
    splits = located.plan(10)
    drop_old(located.broker, "a", 1_000)
    assert log_of(located.broker, "a")[0] > splits[8].start
    assert located.read(splits[:8], failOnDataLoss="false") == []
    assert located.read(splits[8:], failOnDataLoss="false") == [
        row for row in rows if row["offset"] >= log_of(located.broker, "a")[0]
    ]


@pytest.mark.parametrize(
    ("log_start", "rest"),
    [(None, 20), (15, 15), (19, 19), (20, 20), (30, 20), (10, 20), (5, 20)],
)
def test_reading_never_goes_back(log_start: int | None, rest: int) -> None:
    loss = DataLoss("a", 10, log_start, 100, "gone")
    assert scan._find_rest(loss, 10, 20) == rest


@pytest.mark.parametrize("max_bytes", [180_000, 130_000, 60_000, 20_000])
def test_what_was_removed_though_boundaries_are_looked_for(max_bytes: int) -> None:
    """The option says so, on a server that could be asked."""
    for server in serve("lwp", segment_bytes=5000):
        rows = fill(server.broker, "a", make_records(4000, 45), batch_bytes=2500)
        splits = server.plan(4, splitting="probe")
        assert server.read(splits, splitting="probe") == rows
        drop_old(server.broker, "a", max_bytes)
        start, _ = log_of(server.broker, "a")
        with pytest.raises(DataLoss, match="what was before the log start is removed"):
            server.read(splits, splitting="probe")
        given = {"splitting": "probe", "failOnDataLoss": "false"}
        left = [row for row in rows if row["offset"] >= start]
        assert server.read(splits, **given) == left


# And where they shift.


def test_offsets_that_shifted_before_a_task_starts(probed: Server) -> None:
    fill_segments(probed)
    splits = probed.plan(3)
    drop_old(probed.broker, "a", 5_000)
    # Nothing can be read by these offsets: it takes new ones, whatever is allowed.
    for given in ("true", "false"):
        with pytest.raises(DataLoss) as told:
            probed.read(splits, failOnDataLoss=given)
        assert "shifted since the query was planned: run it again" in str(told.value)


@pytest.mark.parametrize("given", [{}, {"failOnDataLoss": "false"}])
@pytest.mark.parametrize("bad", ["fail", "skip"])
def test_offsets_that_shift_while_a_split_is_read(
    probed: Server, given: dict[str, str], bad: str
) -> None:
    rows = fill_segments(probed)
    batches = probed.start(probed.plan()[0], fetchBytes="512", onBadRecord=bad, **given)
    first = to_rows([next(batches)], EVERY_COLUMN)
    assert first == rows[: len(first)]
    drop_old(probed.broker, "a", 5_000)
    # Whatever is met first, bytes that are no record or the end of the log.
    with pytest.raises(DataLoss) as told:
        list(batches)
    if given:
        assert "shifted since the query was planned: run it again" in str(told.value)


def test_offsets_that_shift_before_a_start_is_found(
    probed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(probed.broker, "a", make_records(4000, 45), batch_bytes=250)
    splits = probed.plan(3)
    look = ProbedFinder.find_extent

    def look_late(finder: ProbedFinder, split: Split) -> Any:
        drop_old(probed.broker, "a", 20_000)
        return look(finder, split)

    monkeypatch.setattr(ProbedFinder, "find_extent", look_late)
    for given in ("true", "false"):
        with pytest.raises(DataLoss):
            probed.read(splits[1:2], failOnDataLoss=given)


def test_an_odd_shift_is_no_bad_record(probed: Server) -> None:
    # Records of many lengths: after the shift no offset is that of a record.
    records = [Record(1, b"x" * (30 + number % 17)) for number in range(400)]
    rows = fill(probed.broker, "a", records, batch_bytes=250)
    batches = probed.start(probed.plan()[0], fetchBytes="512")
    next(batches)
    drop_old(probed.broker, "a", rows[-1]["offset"] - 500)
    with pytest.raises(DataLoss, match="shifted since the query was planned"):
        list(batches)


def test_a_shift_that_leaves_nothing_to_be_found(
    probed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(probed.broker, "a", make_records(4000, 45), batch_bytes=250)
    splits = probed.plan(3)

    def find_nothing(finder: ProbedFinder, split: Split) -> None:
        drop_old(probed.broker, "a", 150_000)

    monkeypatch.setattr(ProbedFinder, "find_extent", find_nothing)
    for given in ("true", "false"):
        with pytest.raises(DataLoss, match="shifted since the query was planned"):
            probed.read(splits[1:2], failOnDataLoss=given)


def test_a_log_that_got_shorter_though_it_looks_the_same(
    probed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(probed.broker, "a", [Record(1, b"same")] * 4000, batch_bytes=250)
    splits = probed.plan()
    drop_old(probed.broker, "a", 30_000)
    with pytest.raises(DataLoss, match="shifted since the query was planned"):
        probed.read(splits)
    # Where no mark can tell, the length does.
    monkeypatch.setattr(scan, "check_range", lambda driver, piece: None)
    with pytest.raises(DataLoss, match="the log ends before the range"):
        probed.read(splits)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_turns_into_another_while_it_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    # As if there were another broker at the same address by now, with other data.
    fill(server.broker, "a", make_records(200))
    [split] = server.plan()
    batches = server.start(split, fetchBytes="1k", failOnDataLoss=fails)
    next(batches)
    topic = server.client.topic

    def describe(topic_id: int) -> TopicInfo:
        info = topic(topic_id)
        return replace(info, created_at_s=info.created_at_s + 1)

    monkeypatch.setattr(server.client, "topic", describe)
    with pytest.raises(DataLoss, match="is another topic by now"):
        list(batches)
