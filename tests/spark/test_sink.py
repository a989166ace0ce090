"""Tasks and commits: nothing is seen before its time, and every row once."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, StageContent
from lance_spark.client.outbox import Ledger
from lance_spark.errors import (
    CommitConflictError,
    CommitUnknownError,
    LanceError,
    OptionError,
    RowError,
    StageExpiredError,
    StageMismatchError,
    StageNotFound,
    StorageError,
    Timeout,
    TopicNotFound,
    Undelivered,
)
from lance_spark.spark import task_writer
from lance_spark.spark.job import WriteJob
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.sink import (
    NO_PARTITION,
    TaskResult,
    abort_job,
    commit_job,
    write_task,
)
from lance_spark.store.staging import Staging
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX, Record, compress
from tests.integration.kit import PATIENCE_S
from tests.integration.proxy import Fate, Flow, Proxy
from tests.spark.writing import (
    count_stages,
    create_topics,
    hurry,
    leaving_nothing,
    list_topics,
    make_config,
    make_job,
    read_records,
    read_values,
    rows,
    run_job,
    run_tasks,
    travel,
    values,
)
from tests.store.seam import SeamFiles

TXN: dict[str, Any] = {"txn_app_id": "app", "txn_version": 1}
# Every row is a batch, so that there are many.
SMALL: dict[str, Any] = {"batch_bytes": 1, "max_in_flight": 4}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with leaving_nothing():
        yield


@pytest.fixture(params=["broker", "plain_broker"])
def server(request: pytest.FixtureRequest) -> EmbeddedBroker:
    """Give a broker of each dialect."""
    found: EmbeddedBroker = request.getfixturevalue(request.param)
    return found


class UpstreamError(Exception):
    """What somebody else's code raises."""


def _breaking(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise UpstreamError


def _in_partition(monkeypatch: pytest.MonkeyPatch, partition: int) -> None:
    context = SimpleNamespace(partitionId=lambda: partition)
    monkeypatch.setattr(TaskContext, "get", lambda: context)


# Rows.


def test_every_kind_of_row(server: EmbeddedBroker) -> None:
    batch = rows(
        value=[b"v", b"", None, b"k", b"t", b"kt", b"j"],
        key=[None, None, None, b"key", None, b"", None],
        timestamp_ns=[None, None, None, None, 5, 6, None],
        type=[None, None, None, 0x10, None, 0x12, 0x02],
        offset=range(7),
        next_offset=range(7),
    )
    job = make_job(server, topic="a", record_type=0x80, allow_null_records=True)
    run_job(job, [batch])
    assert read_records(server, "a") == [
        Record(0x80, b"v"),
        Record(0x80, b""),
        Record(0xFF, b""),
        Record(0x10, b"k", b"key"),
        Record(0x11, b"t", None, 5),
        Record(0x12, b"kt", b"", 6),
        Record(0x02, b"j"),
    ]


def test_text_is_as_good_as_bytes(server: EmbeddedBroker) -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["ä", "b"], "key": [None, "k"]})
    run_job(make_job(server, topic="a"), [batch])
    assert read_records(server, "a") == [
        Record(1, "ä".encode()),
        Record(0x10, b"b", b"k"),
    ]


def test_names_of_columns_in_any_case(server: EmbeddedBroker) -> None:
    batch = rows(
        value=[b"1", b"2"],
        key=[b"k", None],
        timestamp=[None, 5],
        topic=["a", "a"],
    ).rename_columns(["Value", "KEY", "TimeStamp", "toPic"])
    run_job(make_job(server), [batch])
    [first, second] = read_records(server, "a")
    assert (first.type, first.key, first.value) == (0x10, b"k", b"1")
    assert (second.type, second.timestamp_ns) == (0x11, 5000)


def test_option_wins_over_the_column(server: EmbeddedBroker) -> None:
    run_job(make_job(server, topic="a"), [rows(value=[b"1", b"2"], topic=["b", None])])
    assert read_values(server, "a") == [b"1", b"2"]
    assert list_topics(server) == ["a"]


def test_rows_are_routed(server: EmbeddedBroker) -> None:
    first = rows(value=[b"1", b"2", b"3"], topic=["a", "b", "a"])
    second = rows(value=[b"4", b"5"], topic=["b", "c"])
    run_job(make_job(server), [first, second], [second])
    assert read_values(server, "a") == [b"1", b"3"]
    assert read_values(server, "b") == [b"2", b"4", b"4"]
    assert read_values(server, "c") == [b"5", b"5"]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_compressed_rows_are_stored_plain(
    broker: EmbeddedBroker, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[bytes] = []

    def note(data: Any) -> bytes:
        blocks.append(compress(data))
        return blocks[-1]

    monkeypatch.setattr("lance_spark.wire.lwp.compress", note)
    job = make_job(broker, topic="a", compression="lz4", delivery=delivery)
    run_job(job, [values(bytes(10_000))])
    assert [len(block) < 1000 for block in blocks] == [True]
    assert read_values(broker, "a") == [bytes(10_000)]


def test_the_largest_row(server: EmbeddedBroker) -> None:
    whole = bytes(RECORD_VALUE_BYTES_MAX)
    run_job(make_job(server, topic="a"), [values(b"1", whole, b"3")])
    found = read_values(server, "a")
    assert [len(value) for value in found] == [1, RECORD_VALUE_BYTES_MAX, 1]


def test_many_batches_of_many_rows(server: EmbeddedBroker) -> None:
    expected = [b"%d" % n for n in range(50_000)]
    batches = [values(*expected[n : n + 1000]) for n in range(0, 50_000, 1000)]
    job = make_job(server, topic="a", batch_bytes=4096)
    run_job(job, batches[:30], [], batches[30:])
    assert read_values(server, "a") == expected


# Rows that can't be written.

BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "too large": (
        {"value": [b"2", bytes(RECORD_VALUE_BYTES_MAX + 1)]},
        r"16777216 are the most: split",
    ),
    "key without value": (
        {"value": [b"2", None], "key": [None, b"k"]},
        "a key but no value: .*write an empty value",
    ),
    "type of a key": (
        {"value": [b"2", b"3"], "type": [1, 0x10]},
        "can't be that of a plain value",
    ),
    "contradiction": (
        {"value": [b"2", b"3"], "key": [None, b"k"], "type": [None, 1]},
        "type 1 contradicts its key.*make the type null",
    ),
    "time without value": (
        {"value": [b"2", None], "timestamp_ns": [None, 1]},
        "a timestamp but no value: .*write an empty value",
    ),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize("routed", [False, True])
def test_a_bad_row_is_named_and_nothing_is_seen(
    broker: EmbeddedBroker, bad: str, routed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, said = BAD_ROWS[bad]
    good: dict[str, Any] = {**{name: [None] for name in columns}, "value": [b"1"]}
    if routed:
        columns = {**columns, "topic": ["b", "a"]}
        good = {**good, "topic": ["a"]}
    job = make_job(broker, topic=None if routed else "a")
    _in_partition(monkeypatch, 3)
    with pytest.raises(RowError, match=f"^row 2: .*{said}.*partition 3") as told:
        write_task(job, iter([rows(**good), rows(**columns)]))
    assert told.value.row == 2
    assert travel(told.value).row == 2
    abort_job(job)
    assert (list_topics(broker), count_stages(broker)) == ([], 0)


def test_a_row_without_topic(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(server)
    _in_partition(monkeypatch, 0)
    good, bad = rows(value=[b"1"], topic=["a"]), rows(value=[b"2"], topic=[None])
    with pytest.raises(RowError, match=r"row 1: no topic: .*in Spark's partition 0"):
        write_task(job, iter([good, bad]))


def test_a_topic_that_can_not_be(server: EmbeddedBroker) -> None:
    job = make_job(server)
    good, bad = rows(value=[b"1"], topic=["a"]), rows(value=[b"2"], topic=["b/c"])
    with pytest.raises(RowError, match=r"row 1: its topic 'b/c' has a slash.*partiti"):
        write_task(job, iter([good, bad]))
    assert list_topics(server) == []


def test_columns_that_can_not_be(server: EmbeddedBroker) -> None:
    job = make_job(server, topic="a")
    with pytest.raises(OptionError, match="can't write other"):
        write_task(job, iter([rows(value=[b"1"], other=[1])]))
    with pytest.raises(OptionError, match="needs a column value"):
        write_task(job, iter([rows(key=[b"1"])]))


# What a task says.


def test_a_task_says_what_it_has_written(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_partition(monkeypatch, 7)
    batch = rows(value=[b"1", b"22", b"3"], topic=["a", "b", "a"])
    result = write_task(make_job(broker, **SMALL), iter([batch]))
    assert (result.partition_id, result.records) == (7, 3)
    found = {
        stage.topic: (stage.content.batch_count, stage.content.byte_count)
        for stage in result.stages
    }
    assert found == {"a": (2, 12), "b": (1, 7)}


def test_a_task_without_stages(plain_broker: EmbeddedBroker) -> None:
    result = write_task(make_job(plain_broker, topic="a"), iter([values(b"1", b"2")]))
    assert result == TaskResult(NO_PARTITION, 2, ())


def test_a_task_of_no_rows_asks_for_nothing(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    empty = values().slice(0, 0)
    assert run_tasks(job, [], [empty, empty]) == 2 * [TaskResult(NO_PARTITION, 0, ())]
    assert count_stages(broker) == 0


# Exactly once: DESIGN.md 4.3, sentence by sentence.


def test_nothing_is_seen_before_the_commit(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    results = run_tasks(job, [values(b"1")], [values(b"2")])
    # Not even the topic: the commit creates it.
    assert list_topics(broker) == []
    commit_job(job, results)
    assert read_values(broker, "a") == [b"1", b"2"]


def test_partitions_are_in_order(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    results = run_tasks(job, [values(b"3")], [values(b"1")], [values(b"2")])
    order = [2, 0, 1]
    commit_job(
        job, [replace(r, partition_id=p) for r, p in zip(results, order, strict=True)]
    )
    assert read_values(broker, "a") == [b"1", b"2", b"3"]


def test_losers_are_dropped_by_the_commit(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    run_tasks(job, [values(b"speculative")])
    with pytest.raises(UpstreamError):
        write_task(job, _breaking(values(bytes(5_000_000))))
    winner = run_tasks(job, [values(b"1")])
    assert count_stages(broker) == 3
    commit_job(job, winner)
    assert read_values(broker, "a") == [b"1"]
    assert count_stages(broker) == 0


def test_losers_of_a_job_without_rows_are_dropped(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    run_tasks(job, [values(b"loser")])
    run_job(job, [])
    assert (list_topics(broker), count_stages(broker)) == ([], 0)


def test_an_aborted_job_leaves_nothing(broker: EmbeddedBroker) -> None:
    job, other = make_job(broker, topic="a"), make_job(broker, topic="a")
    run_tasks(job, [values(b"1")], [values(b"2")])
    kept = run_tasks(other, [values(b"3")])
    abort_job(job)
    assert (list_topics(broker), count_stages(broker)) == ([], 1)
    commit_job(other, kept)
    assert read_values(broker, "a") == [b"3"]


def test_a_lost_ack_doubles_nothing(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [b"%d" % n for n in range(40)]

    def cut(number: int) -> Fate:
        # The first frame down is the answer to the greeting; the others are acks.
        late = Flow(cut_frame=1 + number % 5, cut_share=0)
        return Fate(down=late) if 0 < number < 20 else Fate()

    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    with Proxy(broker.address, cut) as proxy:
        config = make_config(broker, servers=proxy.address)
        job = make_job(broker, topic="a", client=config, **SMALL)
        results = run_tasks(job, [values(*expected)])
        assert proxy.cuts >= 5
        commit_job(job, results)
    assert read_values(broker, "a") == expected


def test_a_restart_doubles_nothing(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [b"%d" % n for n in range(30)]

    def restarting() -> Iterator[pa.RecordBatch]:
        for number in range(0, 30, 10):
            # Large enough not to wait for more.
            padded = [
                value + bytes(500_000) for value in expected[number : number + 10]
            ]
            yield values(*padded)
            broker.stop()
            broker.start()

    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    job = make_job(broker, topic="a")
    results = run_tasks(job, restarting())
    broker.stop()
    broker.start()
    commit_job(job, results)
    assert [v.rstrip(b"\0") for v in read_values(broker, "a")] == expected


def test_a_commit_whose_answer_is_lost(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(broker.address) as proxy:
        config = make_config(broker, servers=proxy.address)
        job = make_job(broker, topic="a", client=config)
        results = run_tasks(job, [values(b"1")])
        clear_pool()
        # The next connection ends in front of the answer behind that to the greeting.
        late, number = Fate(down=Flow(cut_frame=1, cut_share=0)), proxy.connections
        proxy.plan = lambda n: late if n == number else Fate()
        caplog.set_level(logging.INFO, logger="lance_spark.spark.sink")
        commit_job(job, results)
        assert proxy.cuts == 1
    assert read_values(broker, "a") == [b"1"]
    assert "was committed before, to 'a' [0, 6)" in caplog.messages[-1]


@pytest.fixture
def slow_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have the broker carry out no commit before this is set."""
    go, whole = threading.Event(), Staging._carry_out

    def carry_out(staging: Staging, plan: Any) -> Any:
        assert go.wait(PATIENCE_S)
        return whole(staging, plan)

    monkeypatch.setattr(Staging, "_carry_out", carry_out)
    yield go
    go.set()


@pytest.mark.parametrize(
    ("txn", "remedy"),
    [
        ({}, "Do not just run the job again.* With txnAppId and txnVersion"),
        (TXN, "Run it again with the same txnAppId and txnVersion, which is safe"),
    ],
    ids=["plain", "txn"],
)
def test_a_commit_that_takes_too_long(
    broker: EmbeddedBroker,
    slow_commits: threading.Event,
    caplog: pytest.LogCaptureFixture,
    txn: dict[str, Any],
    remedy: str,
) -> None:
    job = make_job(broker, topic="a", **txn)
    results = run_tasks(job, [values(b"1", b"2")])
    config = make_config(broker, request_timeout_s=1.0, retry_timeout_s=2.0)
    impatient = replace(job, options=replace(job.options, client=config))
    said = f"not known whether the commit to topic 'a' was carried out.*{remedy}"
    with pytest.raises(CommitUnknownError, match=said) as told:
        commit_job(impatient, results)
    assert told.value.__cause__ is not None
    assert isinstance(told.value.__cause__.__cause__, Timeout)
    # What Spark does next. Nothing can be told of the stages: they get committed.
    caplog.clear()
    abort_job(hurry(job))
    (line,) = [r.message for r in caplog.records if r.name == "lance_spark.spark.sink"]
    assert "those that are not committed expire" in line
    slow_commits.set()
    # Waits for the first one, and finds that there is nothing to do.
    commit_job(job, results)
    assert read_values(broker, "a") == [b"1", b"2"]
    if txn:
        run_job(make_job(broker, topic="a", **txn), [values(b"1", b"2")])
        assert read_values(broker, "a") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "Do not just run the job again, which may write its rows twice"),
        (TXN, "Run it again with the same txnAppId and txnVersion, which is safe"),
        ({"is_stream": True}, "Restart the query: the micro-batch is replayed"),
    ],
    ids=["plain", "txn", "stream"],
)
def test_a_commit_that_the_broker_does_not_know(
    tmp_path: Path, changes: dict[str, Any], remedy: str
) -> None:
    """Its journal can't be synced: only the next start finds out what counts."""
    files = SeamFiles()

    def broken(operation: str, name: str) -> None:
        if operation == "sync" and "journal" in name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with EmbeddedBroker(data_dir=str(tmp_path), files=files) as broker:
        is_stream = changes.get("is_stream", False)
        job = make_job(broker, topic="a", **({} if is_stream else changes))
        job = replace(job, is_stream=is_stream)
        results = run_tasks(job, [values(b"1", b"2")])
        files.before = broken
        said = f"not known whether the commit to topic 'a' was carried out.*{remedy}"
        with pytest.raises(CommitUnknownError, match=said) as told:
            commit_job(hurry(job), results)
        assert told.value.code == 0x74
        # What Spark does next: it must not take away what the commit needs.
        abort_job(hurry(job))
        files.before = lambda operation, name: None
        broker.stop()
        broker.start()
        commit_job(job, results)
        assert read_values(broker, "a") == [b"1", b"2"]
        clear_pool()


def test_a_refused_commit_is_known_to_have_failed(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    results = run_tasks(job, [values(b"1")])
    abort_job(job)
    with pytest.raises(StageNotFound, match=r"^stage \d+ is not open \(0x70 "):
        commit_job(job, results)


@pytest.mark.parametrize("field", ["batch_count", "byte_count"])
def test_a_commit_of_something_else_is_refused(
    broker: EmbeddedBroker, field: str
) -> None:
    job = make_job(broker, topic="a")
    good, bad = run_tasks(job, [values(b"1")], [values(b"2")])
    content: StageContent = bad.stages[0].content
    wrong = replace(content, **{field: getattr(content, field) + 1})
    bad = replace(bad, stages=(replace(bad.stages[0], content=wrong),))
    with pytest.raises(StageMismatchError):
        commit_job(job, [good, bad])
    assert list_topics(broker) == []
    abort_job(job)
    assert count_stages(broker) == 0


def test_an_expired_stage_has_its_own_error(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    results = run_tasks(job, [values(b"1")])
    store = broker.service.store
    store._staging.expire(time.time_ns() + 2 * store.config.stage_ttl_s * 10**9)
    with pytest.raises(StageExpiredError):
        commit_job(job, results)
    assert list_topics(broker) == []


def test_a_repeated_commit_changes_nothing(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lance_spark.spark.sink")
    job = make_job(broker, topic="a")
    results = run_tasks(job, [values(b"1")])
    commit_job(job, results)
    # Also by a broker that has slept over it.
    broker.stop()
    broker.start()
    commit_job(job, results)
    assert read_values(broker, "a") == [b"1"]
    first, second = caplog.messages
    assert "1 records committed to 'a' [0, 6)" in first
    assert "was committed before, to 'a' [0, 6)" in second


def test_two_writes_are_two_writes(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever query they are a part of.
    properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "1"}
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=properties.get)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    for _ in range(2):
        run_job(make_job(broker, topic="a"), [values(b"1")])
    assert read_values(broker, "a") == [b"1", b"1"]


# Transactions of the user's.


def test_a_version_is_written_once(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lance_spark.spark.sink")
    for value in (b"first", b"again"):
        run_job(make_job(broker, topic="a", **TXN), [values(value)])
    assert read_values(broker, "a") == [b"first"]
    assert count_stages(broker) == 0
    assert [record.levelno for record in caplog.records] == 2 * [logging.INFO]


def test_a_lower_version_changes_nothing_and_says_so(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    run_job(make_job(broker, topic="a", **{**TXN, "txn_version": 5}), [values(b"5")])
    caplog.set_level(logging.WARNING, logger="lance_spark.spark.sink")
    run_job(make_job(broker, topic="a", **{**TXN, "txn_version": 4}), [values(b"4")])
    (said,) = caplog.messages
    assert "nothing was written to topic 'a'" in said
    assert "a higher version" in said
    run_job(make_job(broker, topic="a", **{**TXN, "txn_version": 6}), [values(b"6")])
    assert read_values(broker, "a") == [b"5", b"6"]
    assert count_stages(broker) == 0


def test_a_version_counts_per_target(broker: EmbeddedBroker) -> None:
    for topic in ("a", "b"):
        run_job(make_job(broker, topic=topic, **TXN), [values(b"1")])
    routed = [rows(value=[b"2", b"3"], topic=["a", "b"])]
    for _ in range(2):
        run_job(make_job(broker, **TXN), routed)
    assert read_values(broker, "a") == [b"1", b"2"]
    assert read_values(broker, "b") == [b"1", b"3"]


def test_a_version_with_other_topics_is_an_error(broker: EmbeddedBroker) -> None:
    run_job(make_job(broker, **TXN), [rows(value=[b"1"], topic=["a"])])
    with pytest.raises(CommitConflictError, match=r"sequence 1 .*\['a'\].*\['b'\]"):
        run_job(make_job(broker, **TXN), [rows(value=[b"1"], topic=["b"])])
    assert list_topics(broker) == ["a"]


def test_a_version_can_not_append_and_overwrite(broker: EmbeddedBroker) -> None:
    run_job(make_job(broker, topic="a", **TXN), [values(b"1")])
    job = make_job(broker, topic="a", overwrite=True, **TXN)
    with pytest.raises(CommitConflictError, match="can't both append and overwrite"):
        run_job(job, [values(b"2")])
    assert read_values(broker, "a") == [b"1"]


@pytest.mark.parametrize("end", ["empty", "aborted"])
def test_another_run_of_the_same_version_ends(broker: EmbeddedBroker, end: str) -> None:
    job, twin = (make_job(broker, topic="a", **TXN) for _ in range(2))
    results = run_tasks(job, [values(b"1")])
    if end == "empty":
        run_job(twin, [])
    else:
        abort_job(twin)
    said = "another run with this txnAppId and txnVersion has ended meanwhile"
    with pytest.raises(StageNotFound, match=said) as told:
        commit_job(job, results)
    assert travel(told.value).code == 0x70
    assert list_topics(broker) == []


def test_a_version_without_rows_is_not_remembered(broker: EmbeddedBroker) -> None:
    run_job(make_job(broker, topic="a", **TXN), [])
    run_job(make_job(broker, topic="a", **TXN), [values(b"1")])
    assert read_values(broker, "a") == [b"1"]


def test_a_version_that_failed_can_be_written_again(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a", **TXN)
    run_tasks(job, [values(b"1")])
    abort_job(job)
    run_job(make_job(broker, topic="a", **TXN), [values(b"2")])
    assert read_values(broker, "a") == [b"2"]


# Overwriting.


def _log_range(broker: EmbeddedBroker, topic: str) -> tuple[int | None, int]:
    with LanceClient(config=make_config(broker)) as client:
        bounds = client.bounds(topic)
        return bounds.start, bounds.end


def test_overwrite_replaces_at_the_commit(broker: EmbeddedBroker) -> None:
    run_job(make_job(broker, topic="a"), [values(b"old", b"old")])
    job = make_job(broker, topic="a", overwrite=True)
    results = run_tasks(job, [values(b"new")], [values(b"new")])
    assert read_values(broker, "a") == [b"old", b"old"]
    commit_job(job, results)
    # Offsets go on rising.
    assert _log_range(broker, "a") == (16, 32)
    found = [bytes(record.value) for record in read_records(broker, "a", 16)]
    assert found == [b"new", b"new"]
    commit_job(job, results)
    assert _log_range(broker, "a") == (16, 32)


def test_overwrite_with_no_rows(broker: EmbeddedBroker) -> None:
    run_job(make_job(broker, topic="a"), [values(b"old")])
    run_job(make_job(broker, topic="a", overwrite=True), [])
    assert _log_range(broker, "a") == (8, 8)
    run_job(make_job(broker, topic="new", overwrite=True), [])
    assert read_values(broker, "new") == []


def test_overwrite_leaves_others_alone(broker: EmbeddedBroker) -> None:
    run_job(make_job(broker, topic="b"), [values(b"other")])
    job = make_job(broker, topic="a", overwrite=True)
    run_job(job, [rows(value=[b"1"], topic=["b"])])
    assert read_values(broker, "a") == [b"1"]
    assert read_values(broker, "b") == [b"other"]


def test_append_with_no_rows_does_nothing(server: EmbeddedBroker) -> None:
    run_job(make_job(server, topic="a"), [], [])
    assert list_topics(server) == []


# Topics that may not be created.


def test_topics_have_to_be_there_for_the_task(server: EmbeddedBroker) -> None:
    create_topics(server, "a")
    job = make_job(server, create_topic=False)
    batch = rows(value=[b"1", b"2"], topic=["a", "b"])
    with pytest.raises(TopicNotFound, match=r"no topic 'b'.*createTopic=true"):
        write_task(job, iter([batch]))
    assert list_topics(server) == ["a"]


@pytest.mark.parametrize("topic", ["a", None])
def test_topics_have_to_be_there_for_the_commit(
    broker: EmbeddedBroker, topic: str | None
) -> None:
    create_topics(broker, "a", "b")
    job = make_job(broker, topic=topic, create_topic=False)
    results = run_tasks(job, [rows(value=[b"1"], topic=["a"])])
    with LanceClient(config=make_config(broker)) as client:
        client.delete_topic("a")
    with pytest.raises(TopicNotFound, match=r"no topic 'a'.*createTopic=true"):
        commit_job(job, results)
    assert list_topics(broker) == ["b"]


def test_a_topic_to_replace_has_to_be_there(broker: EmbeddedBroker) -> None:
    create_topics(broker, "a")
    job = make_job(broker, topic="a", create_topic=False, overwrite=True)
    with LanceClient(config=make_config(broker)) as client:
        client.delete_topic("a")
    with pytest.raises(TopicNotFound, match="no topic 'a'"):
        run_job(job, [])
    assert list_topics(broker) == []


def test_topics_that_are_there_will_do(server: EmbeddedBroker) -> None:
    create_topics(server, "a", "b")
    run_job(make_job(server, topic="a", create_topic=False), [values(b"1")])
    batch = rows(value=[b"2", b"3"], topic=["a", "b"])
    run_job(make_job(server, create_topic=False), [batch])
    assert read_values(server, "a") == [b"1", b"2"]
    assert read_values(server, "b") == [b"3"]


# At least once.


@pytest.fixture(params=["plain", "asked for"])
def at_least_once(request: pytest.FixtureRequest) -> tuple[EmbeddedBroker, WriteJob]:
    """Give a job without stages, and its broker."""
    if request.param == "plain":
        broker: EmbeddedBroker = request.getfixturevalue("plain_broker")
        return broker, make_job(broker, topic="a")
    broker = request.getfixturevalue("broker")
    return broker, make_job(broker, topic="a", delivery="at-least-once")


def test_rows_are_acknowledged_when_the_task_ends(
    at_least_once: tuple[EmbeddedBroker, WriteJob],
) -> None:
    server, job = at_least_once
    results = run_tasks(job, [values(b"1", b"2")])
    assert read_values(server, "a") == [b"1", b"2"]
    commit_job(job, results)
    abort_job(job)
    assert read_values(server, "a") == [b"1", b"2"]


def test_commit_and_abort_need_no_server(
    at_least_once: tuple[EmbeddedBroker, WriteJob],
) -> None:
    server, job = at_least_once
    results = run_tasks(job, [values(b"1")])
    server.stop()
    commit_job(job, results)
    abort_job(job)


def test_a_task_that_is_not_acknowledged_fails(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleting() -> Iterator[pa.RecordBatch]:
        yield values(b"1")
        with LanceClient(config=job.options.client) as client:
            client.delete_topic("a")

    # The row is with the writer, which has not sent it.
    monkeypatch.setattr(task_writer, "_WORTH_BYTES", 1)
    monkeypatch.setattr(task_writer, "_LINGER_S", 3600.0)
    create_topics(plain_broker, "a")
    job = make_job(plain_broker, topic="a", create_topic=False)
    with pytest.raises(Undelivered, match=r"topic 'a': 1 records"):
        write_task(job, deleting())


def test_a_stage_that_is_not_acknowledged_fails(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def aborting() -> Iterator[pa.RecordBatch]:
        yield values(bytes(5_000_000))
        abort_job(job)
        yield values(bytes(5_000_000))

    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    job = make_job(broker, topic="a")
    with pytest.raises(Undelivered, match="topic 'a'"):
        write_task(job, aborting())


# Other servers than the one that the job was made for.


def _elsewhere(job: WriteJob, broker: EmbeddedBroker) -> WriteJob:
    return replace(job, options=replace(job.options, client=make_config(broker)))


def test_another_kind_of_server(
    broker: EmbeddedBroker, plain_broker: EmbeddedBroker
) -> None:
    exactly = make_job(broker, topic="a")
    results = run_tasks(exactly, [values(b"1")])
    moved = _elsewhere(exactly, plain_broker)
    with pytest.raises(LanceError, match="it has no stages"):
        write_task(moved, iter([values(b"1")]))
    with pytest.raises(LanceError, match="it has no stages"):
        commit_job(moved, results)
    moved = _elsewhere(make_job(plain_broker, topic="a"), broker)
    with pytest.raises(LanceError, match="it could write exactly once"):
        write_task(moved, iter([values(b"1")]))
    assert list_topics(broker) == list_topics(plain_broker) == []


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("broker", "plain_broker", "it has no stages"),
        ("plain_broker", "broker", "it could write exactly once"),
    ],
)
@pytest.mark.parametrize("routed", [False, True])
def test_another_kind_of_server_in_the_middle_of_a_task(
    first: str,
    second: str,
    said: str,
    routed: bool,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    going, other = request.getfixturevalue(first), request.getfixturevalue(second)
    servers = f"{going.address},{other.address}"
    config = make_config(going, servers=servers, checksum="auto")
    job = make_job(going, topic=None if routed else "a", client=config)

    def moving() -> Iterator[pa.RecordBatch]:
        # Large enough not to wait for more.
        yield rows(value=[bytes(5_000_000)], topic=["a"])
        going.stop()
        yield rows(value=[bytes(5_000_000)], topic=["b"])

    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    text = f"{other.address} is not of the kind that the job was made for.*{said}"
    with pytest.raises(LanceError, match=text):
        write_task(job, moving())
    assert list_topics(other) == []


def test_another_server_of_the_same_kind(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    results = run_tasks(job, [values(b"1")])
    with EmbeddedBroker(fsync="none") as other:
        with pytest.raises(LanceError):
            commit_job(_elsewhere(job, other), results)
        assert list_topics(other) == []
    assert list_topics(broker) == []


# Failures leave nothing behind, of which `clean` looks for threads.


@pytest.mark.parametrize("routed", [False, True])
def test_an_error_upstream_goes_through(server: EmbeddedBroker, routed: bool) -> None:
    job = make_job(server, topic=None if routed else "a")
    batch = rows(value=[bytes(3_000_000)] * 4, topic=["a", "b", "a", "b"])
    with pytest.raises(UpstreamError):
        write_task(job, _breaking(batch, batch))
    if job.is_staged:
        assert list_topics(server) == []


def test_a_task_that_is_stopped(broker: EmbeddedBroker) -> None:
    def interrupted() -> Iterator[pa.RecordBatch]:
        yield values(bytes(5_000_000))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_task(make_job(broker, topic="a"), interrupted())


def test_abort_never_fails(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(broker, topic="a")
    run_tasks(job, [values(b"1")])
    broker.stop()
    caplog.set_level(logging.WARNING, logger="lance_spark.spark.sink")
    abort_job(hurry(job))
    said = [r for r in caplog.records if r.name == "lance_spark.spark.sink"]
    assert len(said) == 1
    assert f"stages of {job.writer_id} can't be dropped now" in said[0].message


def test_abort_tells_what_it_drops(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(broker, topic="a")
    run_tasks(job, [values(b"1")], [values(b"2")])
    caplog.set_level(logging.INFO, logger="lance_spark.spark.sink")
    abort_job(job)
    assert caplog.messages == [f"2 stages of {job.writer_id} dropped"]


# What else goes wrong in a task.


def test_too_many_stages() -> None:
    batch = rows(value=[b"1"] * 3, topic=list("abc"))
    with EmbeddedBroker(fsync="none", stages_max=2) as broker:
        job = make_job(broker)
        said = r"stages_max.*fewer tasks per topic, by repartition\(\"topic\"\)"
        with pytest.raises(StorageError, match=said) as told:
            write_task(job, iter([batch]))
        assert told.value.code == 0x61
        # Its other tasks have theirs, and Spark may yet run this one again.
        assert count_stages(broker) == 2
        abort_job(job)


def test_batches_that_the_server_does_not_take() -> None:
    with EmbeddedBroker(fsync="none", payload_bytes_max=100_000) as broker:
        job = make_job(broker, topic="a", batch_bytes=300_000)
        said = "lower batchBytes, which is 300000 bytes"
        with pytest.raises(Undelivered, match=said) as told:
            write_task(job, iter([values(*[bytes(1000)] * 250)]))
        assert said in str(travel(told.value))
        assert "0x03 PayloadTooLarge" in str(told.value)


def test_a_server_that_takes_no_more(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "_has_room", lambda ledger, size: False)
    config = make_config(server, retry_timeout_s=2.0)
    job = make_job(server, topic="a", client=config)
    said = r"in time \(retryTimeout, 2 s\): look .* raise retryTimeout"
    with pytest.raises(Timeout, match=said):
        write_task(job, iter([values(b"1")]))


@pytest.mark.parametrize("columns", ["value", "value and key"])
def test_rows_of_nothing_are_rows(server: EmbeddedBroker, columns: str) -> None:
    # Columns of this type take no memory at all.
    names = columns.split(" and ")
    batch = pa.RecordBatch.from_pydict({name: pa.nulls(3) for name in names})
    run_job(make_job(server, topic="a", allow_null_records=True), [batch])
    assert read_records(server, "a") == [Record(0xFF, b"")] * 3


def test_null_records(server: EmbeddedBroker) -> None:
    """A plain server loses what is behind them when it recovers from a crash."""
    batches = [values(b"1", b"2"), rows(value=[b"3", None, b"4"])]
    job = make_job(server, topic="a")
    if server.config.dialect == "lwp":
        run_job(job, batches)
        assert len(read_records(server, "a")) == 5
        return
    with pytest.raises(RowError) as told:
        write_task(job, iter(batches))
    assert told.value.row == 3
    for said in ("no value, no key", "a plain server", "allowNullRecords=true"):
        assert said in told.value.reason
    assert "(in Spark's partition" in told.value.reason
    assert read_records(server, "a") == [], "few rows wait for more, and none was sent"
