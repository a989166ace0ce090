"""Faults between the plan and the last row: told, whatever is met first."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.lwp.places import ProbedFinder
from lance_spark.errors import DataLoss, LanceError, RecordError, SplitError
from lance_spark.spark.planning import resolve_ranges
from lance_spark.wire.lwp import Record
from tests.spark.reading import (
    EVERY_COLUMN,
    append_bytes,
    connect,
    drop_old,
    fill,
    log_of,
    make_payload,
    make_records,
    make_rows,
    parse,
    run_broker,
    to_rows,
)
from tests.spark.test_scan import Server, serve


@pytest.fixture
def located() -> Iterator[Server]:
    yield from serve("lwp", segment_bytes=64 * 1024, payload_validation="off")


@pytest.fixture
def probed() -> Iterator[Server]:
    yield from serve("plain", segment_bytes=64 * 1024)


# Retention.


def test_probed_splits_notice_what_was_removed(
    located: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill(located.broker, "a", make_records(20_000, 95), batch_bytes=8192)
    splits = located.plan(4, splitting="probe")
    first = located.read(splits[:1])
    assert first == rows[: len(first)]
    drop_old(located.broker, "a", 200_000)
    start, _ = log_of(located.broker, "a")
    assert splits[-1].start < start
    for split in splits[1:]:
        with pytest.raises(DataLoss, match="before the log start is removed"):
            located.read([split])
    left = located.read(splits[1:], failOnDataLoss="false")
    assert left == [row for row in rows if row["offset"] >= start]
    assert caplog.text.count("going on in spite of failOnDataLoss") == 3


@pytest.mark.parametrize("given", ["true", "false"])
def test_a_shift_right_before_a_split_is_looked_for(
    probed: Server, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(probed.broker, "a", make_records(20_000, 95), batch_bytes=8192)
    splits = probed.plan(4)
    find_extent = ProbedFinder.find_extent

    def find_late(*args: Any) -> Any:
        drop_old(probed.broker, "a", 200_000)
        return find_extent(*args)

    monkeypatch.setattr(ProbedFinder, "find_extent", find_late)
    with pytest.raises(DataLoss, match=r"shifted since|ends before the range"):
        probed.read(splits[2:3], failOnDataLoss=given)


def test_a_shift_is_seen_at_the_end_where_all_starts_are_alike() -> None:
    with run_broker("plain", segment_bytes=50_000) as broker, connect(broker) as client:
        server = Server(broker, client)
        for segment in range(30):
            beats = [Record(1, b"heartbeat".ljust(95))] * 60
            values = [Record(1, b"%08d" % (600 * segment + n)) for n in range(600)]
            fill(broker, "a", beats + values)
        splits = server.plan(2)
        _, end = log_of(broker, "a")
        drop_old(broker, "a", end - 50_000)
        # As much comes in as went.
        fill(broker, "a", [Record(1, b"new".ljust(95))] * 3000)
        assert log_of(broker, "a")[1] > end
        with pytest.raises(DataLoss, match="shifted since"):
            server.read(splits)


# Records that are none.

_LONG = b"\x01\x00\x00\x50\x00" + b"x" * 20  # It says that it has 5 MiB.


@pytest.mark.parametrize("parts", [1, 4])
def test_a_length_that_leads_behind_the_end_hides_nothing(
    probed: Server, parts: int, caplog: pytest.LogCaptureFixture
) -> None:
    records = make_records(4000, 95)
    good = make_payload(records)
    for data in (good, _LONG, good):
        append_bytes(probed.broker, "a", data)
    splits = probed.plan(parts)
    with pytest.raises(
        RecordError, match=r"its length leads behind .*onBadRecord=skip"
    ):
        probed.read(splits)
    if parts > 1:
        with pytest.raises(RecordError, match="only with splitting=none"):
            probed.read(splits, onBadRecord="skip")
        return
    rows = probed.read(splits, onBadRecord="skip")
    assert rows == make_rows("a", records)
    skipped = len(good) + len(_LONG)
    assert f"1 bad records ({skipped} bytes) were skipped" in caplog.text


def test_a_record_that_is_not_there_yet_is_told_of(
    probed: Server, caplog: pytest.LogCaptureFixture
) -> None:
    records = make_records(100)
    good = make_payload(records)
    append_bytes(probed.broker, "a", good + _LONG)
    assert probed.read(probed.plan()) == make_rows("a", records)
    said = f"{len(_LONG)} bytes from offset {len(good)} on are left for a later read"
    assert said in caplog.text


def test_a_start_at_a_record_that_is_just_being_written(probed: Server) -> None:
    good = make_payload(make_records(10))
    append_bytes(probed.broker, "a", good)
    append_bytes(probed.broker, "a", good[:30])
    given = {"startingOffsets": f'{{"a": {len(good)}}}'}
    assert len(probed.read(probed.plan(**given), **given)) == 1
    given = {"startingOffsets": f'{{"a": {len(good) + 25}}}'}
    assert probed.read(probed.plan(**given), **given) == []


@pytest.mark.parametrize("bad", ["fail", "skip"])
def test_a_start_of_the_users_has_to_be_a_record(probed: Server, bad: str) -> None:
    # The insides of these values look like the headers of long records.
    fill(probed.broker, "a", [Record(1, b"\x07\x01\x00\x20\x00" * 8)] * 1000)
    given = {"startingOffsets": '{"a": 455}', "onBadRecord": bad}
    splits = probed.plan(**given)
    with pytest.raises(RecordError, match="an offset at which a record starts") as told:
        probed.read(splits, **given)
    assert told.value.position == 455
    # Where a record starts, all is well.
    given["startingOffsets"] = '{"a": 450}'
    assert len(probed.read(probed.plan(**given), **given)) == 990


def test_skipping_vouches_for_no_boundary(probed: Server) -> None:
    inner = make_payload(
        [Record(1, b"inner%06d" % n + b"i" * 40) for n in range(30000)]
    )
    outer = [Record(1, b"%06d" % n + b"v" * 44) for n in range(2000)]
    for data in (
        make_payload(outer[:1000]),
        b"\x00garbage",
        make_payload([Record(1, inner), *outer[1000:]]),
    ):
        append_bytes(probed.broker, "a", data)
    splits = probed.plan(4)
    found = []
    failures: list[LanceError] = []
    for split in splits:
        try:
            found += probed.read([split], onBadRecord="skip")
        except (RecordError, SplitError) as error:
            failures.append(error)
    # Some partition fails, so that the query does, whatever the others have given.
    assert failures and "splitting=none" in str(failures[0])
    [whole] = probed.plan(splitting="none")
    rows = probed.read([whole], onBadRecord="skip")
    assert [row["value"] for row in rows] == [record.value for record in outer[:1000]]


def test_a_batch_that_is_none_hides_nothing(located: Server) -> None:
    # For the server it is one record, wherever a split begins.
    records = make_records(2000, 95)
    append_bytes(located.broker, "a", make_payload(records[:500]))
    append_bytes(located.broker, "a", make_payload(records[500:]) + b"\x00garbage")
    append_bytes(located.broker, "a", make_payload(make_records(1)))
    for parts in (1, 2, 4):
        splits = located.plan(parts)
        with pytest.raises((RecordError, SplitError)):
            located.read(splits)
        rows = located.read(splits, onBadRecord="skip")
        assert rows[:2000] == make_rows("a", records)
        assert len(rows) == 2001


def test_a_record_over_two_batches_is_never_cut(located: Server) -> None:
    records = make_records(2000, 95)
    data = make_payload(records)
    for start in range(0, len(data), 30_030):
        append_bytes(located.broker, "a", data[start : start + 30_030])
    assert located.read(located.plan()) == make_rows("a", records)
    with pytest.raises((RecordError, SplitError)):
        located.read(located.plan(4))


# Topics that are others.


def test_another_broker_at_the_same_address(tmp_path: Path) -> None:
    def run(name: str, listen: str) -> EmbeddedBroker:
        where = tempfile.mkdtemp(dir=tmp_path)
        broker = EmbeddedBroker(data_dir=where, fsync="none", listen=listen).start()
        fill(broker, "a", [Record(1, name.encode() * 95)] * 5000)
        return broker

    broker = run("A", "127.0.0.1:0")
    with connect(broker) as client:
        server = Server(broker, client)
        [split] = server.plan()
        # Topics are told apart by the second in which they were made.
        info = client.topic("a")
        batches = server.start(split, fetchBytes="64k")
        assert to_rows([next(batches)], EVERY_COLUMN)[0]["value"] == b"A" * 95
        broker.stop()
        wait_for_next_second(info.created_at_s)
        other = run("B", broker.address)
        try:
            with pytest.raises(DataLoss, match="is another topic by now"):
                list(batches)
        finally:
            other.stop()


def wait_for_next_second(second: int) -> None:
    """Wait until the clock shows another second than the one that is given."""
    while int(time.time()) <= second:
        time.sleep(0.02)


@pytest.mark.parametrize("change", ["delete", "recreate"])
def test_a_topic_that_goes_while_it_is_planned(
    located: Server, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill(located.broker, "a", make_records(10))
    fill(located.broker, "b", make_records(10))
    driver = located.driver
    # A listing that tells no bounds has them asked for one by one.
    listing = [replace(entry, bounds=None) for entry in driver.topics()]
    located.client.delete_topic("b")
    if change == "recreate":
        located.client.create_topic("b")
    options = parse(located.broker, topicPattern=".")
    with pytest.raises(DataLoss, match=r"'b'.*the topic was deleted; set failOnData"):
        resolve_ranges(driver, options, listing)
    options = parse(located.broker, topicPattern=".", failOnDataLoss="false")
    [whole] = resolve_ranges(driver, options, listing)
    assert (whole.topic, whole.end) == ("a", rows[-1]["next_offset"])
    assert "the topic was deleted" in caplog.text


def test_a_topic_that_goes_while_a_bad_record_is_skipped(
    located: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_bytes(located.broker, "a", make_payload(make_records(10)))
    append_bytes(located.broker, "a", b"\x00garbage")
    [split] = located.plan()
    locate = located.client.locate_offset

    def delete_first(topic: int | str, offset: int) -> Any:
        if offset:
            located.client.delete_topic("a")
        return locate(topic, offset)

    monkeypatch.setattr(located.client, "locate_offset", delete_first)
    with pytest.raises(DataLoss, match="the topic was deleted"):
        located.read([split], onBadRecord="skip")
