"""The writer of a task: few open writers, much waiting, and every topic in order."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer, StageWriter
from lance_spark.client.driver import Driver, open_driver
from lance_spark.client.lwp.driver import LwpDriver
from lance_spark.client.lwp.writer import Writer
from lance_spark.errors import LanceError, RowError, TopicNotFound
from lance_spark.model import Partition
from lance_spark.spark import task_writer as module
from lance_spark.spark.job import WriteJob
from lance_spark.spark.sink import TaskResult, commit_job, write_task
from lance_spark.spark.task_writer import Routed, TaskWriter, TopicStage, route_rows
from tests.spark.writing import (
    count_stages,
    create_topics,
    leaving_nothing,
    list_topics,
    make_job,
    read_values,
    rows,
)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with leaving_nothing():
        yield


@pytest.fixture(params=["broker", "plain_broker"])
def server(request: pytest.FixtureRequest) -> EmbeddedBroker:
    """Give a broker of each dialect."""
    found: EmbeddedBroker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note for which topics writers are opened, and check that they are few."""
    topics: list[str] = []
    whole = TaskWriter._open_writer

    def note(outlet: TaskWriter, to: Partition) -> None:
        topics.append(to.topic)
        whole(outlet, to)
        assert len(outlet._open) <= outlet._open_max

    monkeypatch.setattr(TaskWriter, "_open_writer", note)
    return topics


def _driver(job: WriteJob) -> AbstractContextManager[Driver]:
    return closing(open_driver(job.options.client))


def _feed(outlet: TaskWriter, *batches: pa.RecordBatch) -> None:
    row = 0
    for batch in batches:
        for routed in route_rows(batch, None, first_row=row):
            outlet.write(routed)
        row += batch.num_rows


def _write(
    job: WriteJob, *batches: pa.RecordBatch, **limits: Any
) -> tuple[TopicStage, ...]:
    with _driver(job) as driver, closing(TaskWriter(job, driver, **limits)) as outlet:
        _feed(outlet, *batches)
        return outlet.finish()


def _scatter(
    topics: int, count: int, *, size: int = 20
) -> tuple[list[pa.RecordBatch], dict[str, list[bytes]]]:
    """Make rows of many topics in no order; also what each topic has to hold."""
    random.seed(topics)
    expected: dict[str, list[bytes]] = {}
    batches = []
    for number in range(count):
        names = [f"t{random.randrange(topics)}" for _ in range(200)]
        data = [b"%d %d " % (number, n) + bytes(size) for n in range(200)]
        for name, value in zip(names, data, strict=True):
            expected.setdefault(name, []).append(value)
        batches.append(rows(value=data, topic=names))
    return batches, expected


def test_topics_keep_their_order_through_few_writers(
    server: EmbeddedBroker, opened: list[str]
) -> None:
    batches, expected = _scatter(9, 10)
    job = make_job(server)
    stages = _write(job, *batches, open_max=3, waiting_bytes_max=10_000)
    # There was not room for all, so that some were opened again.
    assert max(Counter(opened).values()) > 1
    if job.is_staged:
        assert [stage.topic for stage in stages].count("t0") == opened.count("t0")
        assert list_topics(server) == []
        commit_job(job, [TaskResult(0, 2000, stages)])
        assert count_stages(server) == 0
    else:
        assert stages == ()
    assert {name: read_values(server, name) for name in expected} == expected


def test_a_staged_job_is_never_written_without_stages(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another of the servers answered one of the questions.
    monkeypatch.setattr(LwpDriver, "stages", lambda driver: None)
    job = make_job(broker)
    assert job.is_staged
    with pytest.raises(LanceError, match="it had no stages when asked"):
        _write(job, rows(value=[b"x"], topic=["t"]))
    assert list_topics(broker) == []


def test_one_writer_is_enough(server: EmbeddedBroker, opened: list[str]) -> None:
    batches, expected = _scatter(4, 3)
    job = make_job(server)
    stages = _write(job, *batches, open_max=1, waiting_bytes_max=0)
    commit_job(job, [TaskResult(0, 600, stages)])
    assert {name: read_values(server, name) for name in expected} == expected
    assert len(opened) >= 3 * 4


def test_a_topic_has_one_stage_if_there_is_room(
    broker: EmbeddedBroker, opened: list[str]
) -> None:
    batches, expected = _scatter(module.OPEN_MAX + 8, 10)
    job = make_job(broker)
    stages = _write(job, *batches)
    assert sorted(opened) == sorted(expected)
    assert len(stages) == len(expected)
    commit_job(job, [TaskResult(0, 2000, stages)])
    assert {name: read_values(broker, name) for name in expected} == expected


def test_the_writer_that_was_used_longest_ago_goes(
    broker: EmbeddedBroker, opened: list[str]
) -> None:
    job = make_job(broker)
    batches = [rows(value=[b"1"], topic=[topic]) for topic in "abacab"]
    _write(job, *batches, open_max=2, waiting_bytes_max=0)
    assert opened == ["a", "b", "c", "b"]


def test_what_waits_keeps_nothing_else_in_memory(broker: EmbeddedBroker) -> None:
    job = make_job(broker)
    batch = rows(value=[bytes(10_000), bytes(10_000), b"3"], topic=list("aab"))
    with _driver(job) as driver, closing(TaskWriter(job, driver)) as outlet:
        _feed(outlet, batch)
        (waiting,) = outlet._queues[Partition("b")].pieces
        assert waiting.rows.get_total_buffer_size() < 1000


def test_many_topics_of_few_rows_need_no_turns(
    broker: EmbeddedBroker, opened: list[str]
) -> None:
    job = make_job(broker)
    with (
        _driver(job) as driver,
        closing(TaskWriter(job, driver, waiting_bytes_max=2000)) as outlet,
    ):
        for number in range(100):
            outlet.write(Routed(Partition(f"t{number}"), rows(value=[b"1"])))
        assert outlet._waiting_bytes < 2000
        assert not opened
        # A second piece of a topic has a price beside its row, until there is no other.
        outlet.write(Routed(Partition("t0"), rows(value=[b"2"])))
        assert len(outlet._queues[Partition("t0")].pieces) == 1
        assert not opened


def test_small_pieces_are_put_together_before_anything_is_opened(
    broker: EmbeddedBroker, opened: list[str]
) -> None:
    job = make_job(broker)
    most = 50 * module._PIECE_BYTES
    expected: dict[str, list[bytes]] = {}
    held = []
    with (
        _driver(job) as driver,
        closing(TaskWriter(job, driver, waiting_bytes_max=most)) as outlet,
    ):
        for number in range(500):
            topic, value = f"t{number % 10}", b"%d" % number
            expected.setdefault(topic, []).append(value)
            outlet.write(
                Routed(Partition(topic), rows(value=[value]), first_row=number)
            )
            held.append(sum(len(queue.pieces) for queue in outlet._queues.values()))
        # What is in excess of one for each topic counts.
        assert 50 < max(held) <= 10 + 50
        assert not opened
        assert outlet._waiting_bytes == sum(q.bytes for q in outlet._queues.values())
        stages = outlet.finish()
        assert outlet._waiting_bytes == 0
    assert len(stages) == 10
    commit_job(job, [TaskResult(0, 500, stages)])
    assert {name: read_values(broker, name) for name in expected} == expected


def test_a_row_is_found_in_pieces_that_were_put_together(
    broker: EmbeddedBroker,
) -> None:
    job = make_job(broker)
    most = 4 * module._PIECE_BYTES
    with (
        _driver(job) as driver,
        closing(TaskWriter(job, driver, waiting_bytes_max=most)) as outlet,
    ):
        for number in range(20):
            key = b"k" if number == 13 else None
            batch = rows(value=[None], key=[key])
            outlet.write(Routed(Partition("a"), batch, first_row=number))
        with pytest.raises(RowError, match="row 13: a key but no value"):
            outlet.finish()


def test_few_rows_wait_for_more(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    whole = Writer.write

    def note(writer: Writer, columns: Any, **options: Any) -> None:
        taken.append(columns.num_rows)
        whole(writer, columns, **options)

    monkeypatch.setattr(Writer, "write", note)
    monkeypatch.setattr(module, "_WORTH_BYTES", 1000)
    monkeypatch.setattr(module, "_PIECE_BYTES", 0)
    job = make_job(broker)
    with _driver(job) as driver, closing(TaskWriter(job, driver)) as outlet:
        small, large = rows(value=[bytes(300)]), rows(value=[bytes(1000)] * 3)
        for batch in (small, small, small, small, large, small):
            outlet.write(Routed(Partition("a"), batch))
        assert taken == [4, 3]
        outlet.finish()
    assert taken == [4, 3, 1]


def test_all_writers_together_hold_little(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    held: list[int] = []
    whole = Writer.flush

    def note(writer: Writer, timeout_s: float | None = None) -> None:
        assert isinstance(writer, (Producer, StageWriter))
        flushed.append(str(writer.topic))
        whole(writer, timeout_s)

    monkeypatch.setattr(Writer, "flush", note)
    # Nothing is sent before somebody waits for it.
    monkeypatch.setattr(module, "_LINGER_S", 3600.0)
    monkeypatch.setattr(module, "_WORTH_BYTES", 1)
    job = make_job(server, batch_bytes=10_000, max_in_flight=1)
    with _driver(job) as driver, closing(TaskWriter(job, driver)) as outlet:
        for number in range(30):
            batch = rows(value=[bytes(3000 + number)])
            outlet.write(Routed(Partition(f"t{number}"), batch))
            held.append(sum(w.pending_bytes for w in outlet._open.values()))
        assert max(held) <= 2 * outlet._buffer_bytes == 40_000
        # Each time the one that has most.
        assert flushed[0] == "t13"
        outlet.finish()


def test_a_row_is_found_among_those_that_waited(broker: EmbeddedBroker) -> None:
    good = rows(value=[b"1", b"2", b"3"], key=[None] * 3, topic=list("aba"))
    bad = rows(value=[b"4", None], key=[None, b"k"], topic=list("bb"))
    job = make_job(broker)
    with _driver(job) as driver, closing(TaskWriter(job, driver)) as outlet:
        _feed(outlet, good, bad)
        with pytest.raises(RowError, match="row 4: a key but no value"):
            outlet.finish()


def test_a_row_is_found_when_it_is_let_in(broker: EmbeddedBroker) -> None:
    good = rows(value=[b"1"], key=[None], topic=["a"])
    bad = rows(value=[b"2", None], key=[None, b"k"], topic=["c", "b"])
    job = make_job(broker)
    with (
        _driver(job) as driver,
        closing(TaskWriter(job, driver, open_max=1, waiting_bytes_max=0)) as outlet,
        pytest.raises(RowError, match="row 2: a key but no value"),
    ):
        _feed(outlet, good, bad)


def test_topics_that_are_not_there(server: EmbeddedBroker) -> None:
    create_topics(server, "a", "b")
    job = make_job(server, create_topic=False)
    with _driver(job) as driver, closing(TaskWriter(job, driver)) as outlet:
        _feed(outlet, rows(value=[b"1", b"2"], topic=["a", "b"]))
        # One that turns up meanwhile is as good.
        create_topics(server, "c")
        _feed(outlet, rows(value=[b"3"], topic=["c"]))
        with pytest.raises(TopicNotFound, match="no topic 'd'"):
            _feed(outlet, rows(value=[b"4"], topic=["d"]))
    assert list_topics(server) == ["a", "b", "c"]


def test_topics_are_looked_for_once(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topics(broker, "a", "b")
    job = make_job(broker, create_topic=False)
    asked: list[LanceClient] = []
    whole = LanceClient.topics

    def note(client: LanceClient) -> Any:
        asked.append(client)
        return whole(client)

    monkeypatch.setattr(LanceClient, "topics", note)
    with _driver(job) as driver, closing(TaskWriter(job, driver)) as outlet:
        for _ in range(3):
            _feed(outlet, rows(value=[b"1", b"2"], topic=["a", "b"]))
        outlet.finish()
    assert len(asked) == 1


def test_leaving_ends_the_writers(server: EmbeddedBroker) -> None:
    job = make_job(server)
    with _driver(job) as driver:
        with closing(TaskWriter(job, driver, waiting_bytes_max=0)) as outlet:
            _feed(outlet, rows(value=[b"1", b"2"], topic=["a", "b"]))
            names = [thread.name for thread in threading.enumerate()]
            assert {"lance-producer-a", "lance-producer-b"} <= set(names)
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("lance-producer")]
        outlet.close()


def test_one_that_can_not_be_closed_does_not_keep_the_others(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = Writer.close

    def fail(writer: StageWriter, **options: Any) -> None:
        whole(writer, **options)
        if writer.topic == "b":
            raise LanceError("a bug")

    monkeypatch.setattr(Writer, "close", fail)
    job = make_job(broker)
    with (
        _driver(job) as driver,
        closing(TaskWriter(job, driver, waiting_bytes_max=0)) as outlet,
    ):
        _feed(outlet, rows(value=[b"1", b"2", b"3"], topic=["a", "b", "c"]))
    assert "for 'b'> can't be closed: a bug" in caplog.text


def test_nothing_is_asked_of_the_server_for_no_rows(broker: EmbeddedBroker) -> None:
    job = make_job(broker, topic="a")
    broker.stop()
    assert write_task(job, iter(())).stages == ()
