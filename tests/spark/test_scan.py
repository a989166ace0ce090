"""Splits as tasks read them, from brokers of both dialects and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan
from pyspark.sql.types import StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, TopicInfo
from lance_spark.errors import DataLoss, RecordError, SplitError, TopicNotFound
from lance_spark.model import RECORD_VALUE_BYTES_MAX
from lance_spark.spark import boundary, scan
from lance_spark.spark.filters import Pushed
from lance_spark.spark.planning import Split, plan_splits
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.scan import ReadTask, SplitReader, read_split
from lance_spark.spark.schema import project
from lance_spark.spark.topics import choose_topics, resolve_ranges
from lance_spark.wire.lwp import Record, encode_record
from tests.spark.reading import (
    DIALECTS,
    EVERY_COLUMN,
    EVERY_TYPE,
    Fetches,
    append_bytes,
    connect,
    drop_old,
    fill,
    log_of,
    make_payload,
    make_records,
    make_rows,
    make_schema,
    parse,
    pick,
    run_broker,
    to_rows,
)

Rows = list[dict[str, Any]]


class Server:
    """A broker, a client of it, and splits of its topics."""

    def __init__(self, broker: EmbeddedBroker, client: LanceClient) -> None:
        self.broker = broker
        self.client = client

    @property
    def is_plain(self) -> bool:
        return self.broker.config.dialect == "plain"

    def plan(self, parts: int = 1, **given: Any) -> list[Split]:
        """Cut the one topic that is read into so many parts."""
        options = parse(self.broker, **{"topic": "a", **given})
        topics = choose_topics(options, self.client.topics())
        [whole] = resolve_ranges(self.client, options, topics)
        return plan_splits([whole], min_partitions=parts)

    def start(
        self, split: Split, schema: StructType = EVERY_COLUMN, **given: Any
    ) -> Iterator[pa.RecordBatch]:
        """Begin to read a split."""
        pushed = given.pop("pushed", Pushed())
        options = parse(self.broker, **{"topic": "a", **given})
        task = ReadTask(options, project(schema), pushed)
        return SplitReader(self.client, task, split).read()

    def read(
        self, splits: list[Split], schema: StructType = EVERY_COLUMN, **given: Any
    ) -> Rows:
        """Read splits, one after the other."""
        rows: Rows = []
        for split in splits:
            rows += to_rows(self.start(split, schema, **given), schema)
        return rows


def serve(dialect: str, **settings: Any) -> Iterator[Server]:
    with run_broker(dialect, **settings) as broker, connect(broker) as client:
        yield Server(broker, client)


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
    for change in ({"topic": "b"}, {"created_s": split.range.created_s + 1}):
        other = replace(split, range=replace(split.range, **change))
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
    look = scan.probe_extent

    def look_late(client: LanceClient, split: Split) -> Any:
        drop_old(probed.broker, "a", 20_000)
        return look(client, split)

    monkeypatch.setattr(scan, "probe_extent", look_late)
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

    def find_nothing(client: LanceClient, split: Split) -> None:
        drop_old(probed.broker, "a", 150_000)

    monkeypatch.setattr(scan, "probe_extent", find_nothing)
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
    monkeypatch.setattr(scan, "check_mark", lambda client, whole: None)
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

    monkeypatch.setattr(boundary, "find_boundary", find)
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
