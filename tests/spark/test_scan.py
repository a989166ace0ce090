"""Splits as tasks read them, from brokers of both dialects and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan
from pyspark.sql.types import StructType

from lance_spark.client.lwp import places
from lance_spark.errors import DataLoss, RecordError, SplitError, TopicNotFound
from lance_spark.spark import scan
from lance_spark.spark.filters import Pushed
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.scan import ReadTask, read_split
from lance_spark.spark.schema import project
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX, Record, encode_record
from tests.spark.reading import (
    DIALECTS,
    EVERY_COLUMN,
    EVERY_TYPE,
    Fetches,
    append_bytes,
    fill,
    make_payload,
    make_records,
    make_rows,
    make_schema,
    parse,
    pick,
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


# Rows.


def test_every_record_type_in_every_column(server: Server) -> None:
    rows = fill(server.broker, "a", EVERY_TYPE)
    assert server.read(server.plan()) == rows


@pytest.mark.parametrize("parts", [2, 3, 10, 40])
def test_rows_do_not_depend_on_how_a_topic_is_cut(server: Server, parts: int) -> None:
    rows = fill(server.broker, "a", EVERY_TYPE)
    splits = server.plan(parts)
    assert len(splits) == parts
    assert server.read(splits) == rows


def test_small_fetches_give_the_same_rows(server: Server) -> None:
    rows = fill(server.broker, "a", EVERY_TYPE)
    assert server.read(server.plan(), fetchBytes="1") == rows


@pytest.mark.parametrize(
    "text",
    [
        "offset long",
        "value binary",
        "value string, key string",
        "timestamp timestamp, topic string",
        "timestamp_ns long, next_offset long, type short",
    ],
)
def test_columns_that_are_asked_for(server: Server, text: str) -> None:
    rows = fill(server.broker, "a", [r for r in EVERY_TYPE if is_text(r.value)])
    schema = make_schema(text)
    expected = pick(rows, *schema.names)
    if "value string" in text:
        expected = [{n: c and str(c, "utf-8") for n, c in r.items()} for r in expected]
        expected = [{n: "" if c == b"" else c for n, c in r.items()} for r in expected]
    assert server.read(server.plan(), schema) == expected


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_columns_that_can_not_be_null(server: Server) -> None:
    rows = fill(server.broker, "a", EVERY_TYPE)
    schema = StructType()
    for name, kind in [("topic", "string"), ("offset", "long"), ("type", "short")]:
        schema = schema.add(name, kind, nullable=False)
    assert server.read(server.plan(), schema) == pick(rows, "topic", "offset", "type")


def test_the_largest_value(server: Server) -> None:
    large = Record(1, b"x" * (RECORD_VALUE_BYTES_MAX - 1) + b"y")
    keyed = Record(0x10, b"z" * (RECORD_VALUE_BYTES_MAX - 5), b"key")
    rows = fill(server.broker, "a", [large, keyed, Record(1, b"small")])
    schema = make_schema("offset long, key binary, value binary")
    expected = pick(rows, *schema.names)
    # Compared apart: what differs would be printed.
    assert (server.read(server.plan(), schema) == expected) is True
    assert (server.read(server.plan(3), schema, fetchBytes="1m") == expected) is True


def test_batches_have_a_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_ROWS_MAX", 7)
    rows = fill(server.broker, "a", EVERY_TYPE)
    batches = list(server.start(server.plan()[0]))
    assert [batch.num_rows for batch in batches] == [7, 7, 4]
    assert to_rows(batches, EVERY_COLUMN) == rows


def test_rows_that_filters_want(server: Server) -> None:
    rows = fill(server.broker, "a", EVERY_TYPE)
    pushed = Pushed(
        predicates=(EqualTo(("type",), 0x10), GreaterThan(("key",), b"key"))
    )
    schema = make_schema("type short, key binary, offset long")
    keyed = [row for row in pick(rows, *schema.names) if row["type"] == 0x10]
    expected = [row for row in keyed if row["key"] > b"key"]
    assert 0 < len(expected) < len(rows)
    assert server.read(server.plan(3), schema, pushed=pushed) == expected
    nobody = Pushed(predicates=(EqualTo(("type",), 0x77),))
    assert list(server.start(server.plan()[0], pushed=nobody)) == []


# Where ranges start and end.


def at(start: int | None = None, end: int | None = None) -> dict[str, str]:
    """Give the options for a range."""
    given = {"startingOffsets": start, "endingOffsets": end}
    return {k: f'{{"a": {v}}}' for k, v in given.items() if v is not None}


@pytest.mark.parametrize("parts", [1, 4])
def test_a_range_of_records(server: Server, parts: int) -> None:
    rows = fill(server.broker, "a", make_records(20))
    given = at(rows[3]["offset"], rows[9]["offset"])
    assert server.read(server.plan(parts, **given)) == rows[3:9]


def test_a_record_belongs_to_the_range_that_it_starts_in(server: Server) -> None:
    rows = fill(server.broker, "a", make_records(20))
    given = at(rows[3]["offset"], rows[9]["offset"] + 1)
    assert server.read(server.plan(**given)) == rows[3:10]
    given = at(rows[3]["offset"], rows[9]["next_offset"] - 1)
    assert server.read(server.plan(**given)) == rows[3:10]


def test_a_start_inside_of_a_record_means_the_next_one(located: Server) -> None:
    rows = fill(located.broker, "a", make_records(20))
    given = at(rows[3]["offset"] + 1, rows[9]["offset"])
    assert located.read(located.plan(**given)) == rows[4:9]
    assert located.read(located.plan(3, **given)) == rows[4:9]


def test_on_a_plain_server_a_start_has_to_be_a_record(probed: Server) -> None:
    rows = fill(probed.broker, "a", make_records(20))
    start = rows[3]["offset"] + 2
    with pytest.raises(RecordError) as told:
        probed.read(probed.plan(**at(start)))
    assert str(told.value).startswith(f"malformed record at byte {start}: topic 'a': ")


def test_an_empty_extent(located: Server) -> None:
    # Cut so often that most pieces have no record.
    rows = fill(located.broker, "a", [Record(1, b"x" * 1000)] * 2)
    splits = located.plan(20)
    counts = [len(located.read([split])) for split in splits]
    assert counts == [1] + [0] * 9 + [1] + [0] * 9
    assert located.read(splits) == rows


# How much is fetched.


def test_the_first_fetch_is_small(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server.broker, "a", make_records(20_000, 200))
    [split] = server.plan()
    fetches = Fetches(server.broker, monkeypatch)
    batches = server.start(split)
    first = next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert 0 < first.num_rows * 205 <= 64 * 1024
    # The second was under way, of four times the size; a mark is nothing beside it.
    assert fetches.bytes < 6 * 64 * 1024
    assert split.range.size > 4_000_000


def test_a_small_range_fetches_no_more_than_it_has(
    located: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(located.broker, "a", make_records(200))
    splits = located.plan(**at(rows[5]["offset"], rows[7]["offset"]))
    fetches = Fetches(located.broker, monkeypatch)
    assert located.read(splits) == rows[5:7]
    assert (fetches.count, fetches.bytes) == (1, 50)


# Bad records.

GARBAGE = b"\x00 this is no record"
# Framed as a record, with a key that is longer than it.
NO_KEY = encode_record(Record(0x01, b"\xff\xffkey")).replace(b"\x01", b"\x10", 1)


def write_around(server: Server, bad: bytes) -> tuple[Rows, int]:
    """Write good, bad and good records; give the good rows and where the bad is."""
    rows = fill(server.broker, "a", make_records(3))
    append_bytes(server.broker, "a", bad)
    where = rows[-1]["next_offset"]
    return rows + fill(server.broker, "a", make_records(3)), where


def test_bytes_that_are_no_record_fail_with_their_place(server: Server) -> None:
    rows, where = write_around(server, GARBAGE)
    batches = server.start(server.plan()[0])
    # Good ones come first.
    assert to_rows([next(batches)], EVERY_COLUMN) == rows[:3]
    with pytest.raises(RecordError) as told:
        next(batches)
    assert told.value.position == where
    text = str(told.value)
    assert text.startswith(f"malformed record at byte {where}: topic 'a': ")
    assert text.endswith("; set onBadRecord=skip to leave it out")


def test_what_is_located_behind_such_bytes_is_read(
    located: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rows, _ = write_around(located, GARBAGE)
    assert located.read(located.plan(), onBadRecord="skip") == rows
    assert f"'a': 1 bad records ({len(GARBAGE)} bytes) were skipped" in caplog.text


def test_on_a_plain_server_the_rest_of_the_split_is_skipped(
    probed: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rows, where = write_around(probed, GARBAGE)
    size = rows[-1]["next_offset"] - where
    assert probed.read(probed.plan(), onBadRecord="skip") == rows[:3]
    assert f"'a': 1 bad records ({size} bytes) were skipped" in caplog.text


def test_what_is_skipped_must_not_hide_where_the_next_split_starts(
    probed: Server,
) -> None:
    rows = fill(probed.broker, "a", make_records(1000))
    append_bytes(probed.broker, "a", GARBAGE)
    # All of this would pass for records of the topic.
    value = make_payload(make_records(40_000, 45))
    fill(probed.broker, "a", [Record(1, value)])
    fill(probed.broker, "a", make_records(1000))
    with pytest.raises(RecordError, match="skipped only with splitting=none"):
        probed.read(probed.plan(4), onBadRecord="skip")
    assert probed.read(probed.plan(), onBadRecord="skip") == rows


def test_a_record_that_is_bad_inside(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rows, where = write_around(server, NO_KEY)
    with pytest.raises(RecordError) as told:
        server.read(server.plan())
    assert told.value.position == where
    assert "topic 'a': " in told.value.reason
    assert "set onBadRecord=skip" in told.value.reason
    assert server.read(server.plan(), onBadRecord="skip") == rows
    assert f"'a': 1 bad records ({len(NO_KEY)} bytes) were skipped" in caplog.text


def test_a_value_that_is_no_text(server: Server) -> None:
    rows = fill(
        server.broker, "a", [Record(1, b"a"), Record(1, b"\xff"), Record(1, b"b")]
    )
    schema = make_schema("value string")
    with pytest.raises(RecordError) as told:
        server.read(server.plan(), schema)
    assert told.value.position == rows[1]["offset"]
    skipped = server.read(server.plan(), schema, onBadRecord="skip")
    assert skipped == [{"value": "a"}, {"value": "b"}]
    # Nobody minds where it is not asked for as text.
    assert server.read(server.plan()) == rows


# A record that is not there yet.


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 24])
def test_a_log_that_ends_inside_of_a_record(probed: Server, cut: int) -> None:
    rows = fill(probed.broker, "a", make_records(10))
    [late] = make_records(1)
    data = encode_record(late)
    append_bytes(probed.broker, "a", data[:cut])
    splits = probed.plan()
    assert probed.read(splits) == rows
    append_bytes(probed.broker, "a", data[cut:])
    # A task that runs again gives what it gave before.
    assert probed.read(splits) == rows
    whole = rows + make_rows("a", [late], rows[-1]["next_offset"])
    assert probed.read(probed.plan()) == whole


def test_a_log_that_is_no_whole_record(probed: Server) -> None:
    data = encode_record(Record(1, b"x" * 100))
    append_bytes(probed.broker, "a", data[:50])
    splits = probed.plan()
    assert probed.read(splits) == []
    append_bytes(probed.broker, "a", data[50:])
    assert probed.read(splits) == []
    assert len(probed.read(probed.plan())) == 1


# Says that it is 5 MiB long.
LONG = b"\x01\x00\x00\x50\x00" + b"x" * 20


def test_a_length_that_is_wrong_is_no_record_that_is_not_there_yet(
    probed: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill(probed.broker, "a", make_records(1000))
    append_bytes(probed.broker, "a", LONG)
    fill(probed.broker, "a", make_records(1000))
    where = rows[-1]["next_offset"]
    for parts in (1, 3):
        with pytest.raises(RecordError) as told:
            probed.read(probed.plan(parts))
        assert told.value.position == where
        assert "its length leads behind the log's end" in str(told.value)
    assert probed.read(probed.plan(), onBadRecord="skip") == rows
    assert "'a': 1 bad records (25025 bytes) were skipped" in caplog.text


def test_nothing_of_ours_ends_inside_of_a_record(located: Server) -> None:
    rows = fill(located.broker, "a", make_records(10))
    append_bytes(located.broker, "a", LONG)
    with pytest.raises(RecordError, match="leads behind the log's end") as told:
        located.read(located.plan())
    assert told.value.position == rows[-1]["next_offset"]
    assert located.read(located.plan(), onBadRecord="skip") == rows


def test_nor_does_a_range_that_ends_before_the_log(probed: Server) -> None:
    rows = fill(probed.broker, "a", make_records(10))
    append_bytes(probed.broker, "a", LONG + bytes(1000))
    where = rows[-1]["next_offset"]
    with pytest.raises(RecordError, match="leads behind the log's end") as told:
        probed.read(probed.plan(**at(0, where + 10)))
    assert told.value.position == where


def test_a_topic_that_goes_when_its_end_is_looked_at(
    probed: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill(probed.broker, "a", make_records(10))
    append_bytes(probed.broker, "a", LONG)
    splits = probed.plan()

    def say_gone(topic_id: int) -> None:
        raise TopicNotFound(f"Topic {topic_id} not found")

    monkeypatch.setattr(probed.client, "bounds", say_gone)
    with pytest.raises(DataLoss, match="the topic was deleted; set failOnDataLoss"):
        probed.read(splits)
    assert probed.read(splits, failOnDataLoss="false") == rows
    assert "the topic was deleted" in caplog.text


def test_a_start_that_only_looks_like_a_record(probed: Server) -> None:
    # Every five bytes of the values are a header of a record of 2 MiB.
    values = [Record(1, b"\x07\x01\x00\x20\x00" * 8)] * 1000
    rows = fill(probed.broker, "a", values)
    for bad in ("fail", "skip"):
        with pytest.raises(RecordError) as told:
            given = at(rows[10]["offset"] + 5)
            probed.read(probed.plan(**given), onBadRecord=bad, **given)
        assert told.value.position == rows[10]["offset"] + 5
        assert "startingOffsets has to name an offset" in str(told.value)


# Splits in wrong places.


def test_a_split_that_does_not_start_with_a_record(
    probed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(probed.broker, "a", make_records(200))
    splits = probed.plan(2)
    wrong = rows[120]["offset"] + 3

    def find(fetch: Any, at: int, *, before: int, end: int) -> int:
        assert at <= wrong < before <= end
        return wrong

    monkeypatch.setattr(places, "find_boundary", find)
    with pytest.raises(SplitError) as told:
        probed.read(splits[:1])
    error = told.value
    assert (error.topic, error.boundary) == ("a", wrong)
    assert error.position == rows[121]["offset"]
    assert "set splitting=none" in str(error)
    # The other side of the cut may notice first, and says both that can help.
    with pytest.raises(RecordError) as met:
        probed.read(splits[1:])
    assert "set onBadRecord=skip to leave it out; or, if values" in str(met.value)
    assert "set splitting=none" in str(met.value)


@pytest.mark.parametrize("parts", [1, 2, 4, 7])
def test_a_batch_that_the_server_takes_for_one_record(
    located: Server, parts: int
) -> None:
    # It stores whatever comes, and does not know where records start in garbage.
    fill(located.broker, "a", make_records(500))
    append_bytes(located.broker, "a", make_payload(make_records(1500)) + GARBAGE)
    with pytest.raises((RecordError, SplitError)):
        located.read(located.plan(parts))


@pytest.mark.parametrize("parts", [1, 2, 4, 7])
def test_a_record_in_two_batches(located: Server, parts: int) -> None:
    records = make_records(2000)
    data = make_payload(records)
    append_bytes(located.broker, "a", data[:25_007])
    append_bytes(located.broker, "a", data[25_007:])
    try:
        found = located.read(located.plan(parts))
    except (RecordError, SplitError):
        assert parts > 1
    else:
        assert (found == make_rows("a", records)) is True


# Connections.


def test_a_connection_that_is_lost(server: Server) -> None:
    rows = fill(server.broker, "a", make_records(400))
    batches = server.start(server.plan()[0], fetchBytes="1k")
    found = to_rows([next(batches)], EVERY_COLUMN)
    server.client.disconnect()
    found += to_rows([next(batches)], EVERY_COLUMN)
    server.client.disconnect()
    assert found + to_rows(batches, EVERY_COLUMN) == rows


def test_a_broker_that_restarts(server: Server) -> None:
    rows = fill(server.broker, "a", make_records(400))
    batches = server.start(server.plan()[0], fetchBytes="1k")
    found = to_rows([next(batches)], EVERY_COLUMN)
    server.broker.stop()
    server.broker.start()
    found += to_rows(batches, EVERY_COLUMN)
    assert found == rows


def test_a_task_gives_its_client_back(server: Server) -> None:
    rows = fill(server.broker, "a", make_records(400))
    options = parse(server.broker, topic="a", fetchBytes="1k")
    task = ReadTask(options, project(EVERY_COLUMN), Pushed())
    [split] = server.plan()
    opened = server.broker.metrics.snapshot().connections_opened
    try:
        for _ in range(3):
            assert to_rows(read_split(task, split), EVERY_COLUMN) == rows
        assert server.broker.metrics.snapshot().connections_opened == opened + 1
        # One that nobody reads to its end leaves something behind on its connection.
        batches = read_split(task, split)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert to_rows(read_split(task, split), EVERY_COLUMN) == rows
        assert server.broker.metrics.snapshot().connections_opened == opened + 2
    finally:
        clear_pool()


def test_bytes_are_those_of_the_records() -> None:
    # What the tests above take for granted.
    assert make_rows("a", EVERY_TYPE)[-1]["next_offset"] == len(
        make_payload(EVERY_TYPE)
    )
