"""The streaming writer as Spark uses it, in three processes that share nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.driver import ServerKind
from lance_spark.client.lwp import driver as lwp_driver
from lance_spark.errors import (
    CommitUnknownError,
    LanceError,
    OptionError,
    RowError,
    StageExpiredError,
    StageNotFound,
    StoreWriteFailed,
    TopicNotFound,
    Unsupported,
)
from lance_spark.spark import job as job_module
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.source import LanceDataSource
from lance_spark.spark.writer import (
    LanceCommit,
    LanceStreamWriter,
    find_batch,
)
from lance_spark.store.stage import Stage
from tests.integration.kit import wait_for
from tests.spark.writing import (
    count_stages,
    create_topics,
    hurry,
    leaving_nothing,
    list_topics,
    make_config,
    make_options,
    read_records,
    read_values,
    rows,
    travel,
    values,
)

VALUE = StructType([StructField("value", BinaryType())])
ROUTED = StructType([StructField("topic", StringType()), *VALUE])

QUERY = "5a1c4e0e-6f4b-4f6e-9d1c-0a8f1f0f7b11"

Messages = list[WriterCommitMessage | None]
Task = Iterable[pa.RecordBatch]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    job_module._memories.clear()
    with leaving_nothing():
        yield


@pytest.fixture(params=["broker", "plain_broker"])
def server(request: pytest.FixtureRequest) -> EmbeddedBroker:
    """Give a broker of each dialect."""
    found: EmbeddedBroker = request.getfixturevalue(request.param)
    return found


class Query:
    """A streaming query, as far as a sink can tell.

    Args:
        broker: where its rows go.
        patch: says to tasks which they are.
        schema: its columns.
        complete: its output mode.
        query_id: who it is.
        changes: options of the write.
    """

    def __init__(
        self,
        broker: EmbeddedBroker,
        patch: pytest.MonkeyPatch,
        *,
        schema: StructType = VALUE,
        complete: bool = False,
        query_id: str = QUERY,
        **changes: Any,
    ) -> None:
        self.options = make_options(broker, **{"topic": "a", **changes})
        self._patch = patch
        self._schema = schema
        self._complete = complete
        self._query_id = query_id

    def writer(self) -> LanceStreamWriter:
        """Make a writer, as each of the driver's processes does."""
        return LanceStreamWriter(travel(self.options), self._schema, self._complete)

    def run_tasks(self, batch_id: int, *tasks: Task) -> Messages:
        """Write a batch, each of these as a task; they are partitions in this order."""
        sent = travel(self.writer())
        messages: Messages = []
        for partition, task in enumerate(tasks):
            with self._patch.context() as patch:
                be_in_task(patch, self._query_id, str(batch_id), partition)
                messages.append(travel(sent.write(iter(task))))
        return messages

    def run(self, batch_id: int, *tasks: Task) -> None:
        """Write a batch and commit it."""
        self.writer().commit(self.run_tasks(batch_id, *tasks), batch_id)


def be_in_task(
    patch: pytest.MonkeyPatch,
    query_id: str | None,
    batch_id: str | None,
    partition: int = 0,
) -> None:
    """Have Spark say that this is a task."""
    told = {"sql.streaming.queryId": query_id, "streaming.sql.batchId": batch_id}
    context = SimpleNamespace(
        partitionId=lambda: partition, getLocalProperty=lambda name: told.get(name)
    )
    patch.setattr(TaskContext, "get", lambda: context)


def _delete(broker: EmbeddedBroker, topic: str) -> None:
    with LanceClient(config=make_config(broker)) as client:
        client.delete_topic(client.topic(topic).id)


def _routed(**values_by_topic: bytes) -> pa.RecordBatch:
    return rows(topic=values_by_topic.keys(), value=values_by_topic.values())


# Batches.


def test_the_source_makes_it(broker: EmbeddedBroker) -> None:
    # Spark gives arguments by name, and adds options of its own.
    given = {"servers": broker.address, "topic": "a", "createtopic": "false"}
    create_topics(broker, "a")
    source = LanceDataSource({**given, "checkpointlocation": "x", "queryname": "y"})
    writer = source.streamWriter(schema=VALUE, overwrite=True)
    assert isinstance(writer, LanceStreamWriter)
    assert writer.plan.overwrite and not writer.plan.options.create_topic
    assert travel(writer).plan == writer.plan


def test_batches_are_written(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(server, monkeypatch)
    assert isinstance(query.writer(), DataSourceStreamArrowWriter)
    query.run(0, [values(b"1"), values(b"2")], [], [values(b"3")])
    query.run(1, [])
    query.run(2, [values(b"4")])
    assert read_values(server, "a") == [b"1", b"2", b"3", b"4"]
    if server.config.dialect != "plain":
        assert count_stages(server) == 0


def test_nothing_is_seen_before_the_commit(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    messages = query.run_tasks(0, *([values(b"%d" % n)] for n in range(12)))
    assert (list_topics(broker), count_stages(broker)) == ([], 12)
    # Spark gives no order; rows have that of their partitions.
    query.writer().commit(messages[::-1], 0)
    assert read_values(broker, "a") == [b"%d" % n for n in range(12)]


def test_the_messages_say_which_batch_it_is(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (message,) = Query(broker, monkeypatch).run_tasks(7, [values(b"1")])
    assert isinstance(message, LanceCommit)
    assert message.job.writer_id == f'spark-stream:["{QUERY}", "a"]'
    assert (message.job.sequence, message.job.delivery) == (7, "exactly-once")
    assert (message.result.partition_id, message.result.records) == (0, 1)
    routed = Query(broker, monkeypatch, topic=None, schema=ROUTED)
    (message,) = routed.run_tasks(7, [])
    assert isinstance(message, LanceCommit)
    assert message.job.writer_id == f'spark-stream:["{QUERY}"]'


def test_messages_show_no_secrets(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(broker, auth_token="sesame")
    query = Query(broker, monkeypatch, client=config)
    assert query.options.client.auth_token == "sesame"
    messages = query.run_tasks(0, [values(b"1")])
    assert "sesame" not in f"{messages} {query.writer().plan}"


def test_rows_are_routed_in_one_commit(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch, topic=None, schema=ROUTED)
    messages = query.run_tasks(0, [_routed(a=b"1", b=b"2")], [_routed(b=b"3", c=b"4")])
    assert list_topics(broker) == []
    query.writer().commit(messages, 0)
    found = {topic: read_values(broker, topic) for topic in list_topics(broker)}
    assert found == {"a": [b"1"], "b": [b"2", b"3"], "c": [b"4"]}


def test_a_batch_without_rows_makes_no_topic(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(server, monkeypatch)
    query.run(0, [], [values()])
    query.writer().commit([], 1)
    assert list_topics(server) == []


# Replays.


def test_a_replayed_batch_is_written_once(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(broker, monkeypatch)
    query.run(0, [values(b"1")])
    # Rows may come in another order, and in other partitions.
    query.run(1, [values(b"2", b"3")])
    caplog.set_level(logging.INFO, logger="lance_spark.spark.sink")
    query.run(1, [values(b"3")], [values(b"2")])
    (said,) = [record for record in caplog.records if record.name.endswith("sink")]
    assert said.levelno == logging.INFO
    assert "1: was committed before, to 'a' [6, 18); nothing changed" in said.message
    query.run(2, [values(b"4")])
    assert read_values(broker, "a") == [b"1", b"2", b"3", b"4"]
    assert count_stages(broker) == 0


def test_a_commit_is_repeated_with_the_same_messages(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    messages = query.run_tasks(0, [values(b"1")])
    for _ in range(3):
        query.writer().commit(messages, 0)
    assert read_values(broker, "a") == [b"1"]


def test_a_replay_with_other_rows_is_told(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(broker, monkeypatch)
    query.run(0, [values(b"1")])
    query.run(0, [values(b"1", b"2")])
    (said,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "has 12 bytes now and had 6 when it was committed" in said.message
    assert read_values(broker, "a") == [b"1"]


def test_a_batch_before_the_last_is_an_error(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    for batch_id in (3, 4):
        query.run(batch_id, [values(b"%d" % batch_id)])
    with pytest.raises(LanceError) as told:
        query.run(3, [values(b"other")])
    assert "micro-batch 3 is not written to topic 'a'" in str(told.value)
    assert "its checkpoint is older than its output" in str(told.value)
    assert (read_values(broker, "a"), count_stages(broker)) == ([b"3", b"4"], 0)


@pytest.mark.parametrize("again", [{"b": b"1"}, {"a": b"1", "b": b"2"}, {"c": b"1"}])
def test_a_replay_with_other_topics_is_passed_over(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    again: dict[str, bytes],
) -> None:
    query = Query(broker, monkeypatch, topic=None, schema=ROUTED)
    query.run(0, [_routed(a=b"1", d=b"1")])
    query.run(0, [_routed(**again)])
    (said,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "was committed before it was replayed, and is not written again" in (
        said.message
    )
    assert f"with topics ['a', 'd']; it can't be committed again with {[*again]}" in (
        said.message
    )
    assert (list_topics(broker), count_stages(broker)) == (["a", "d"], 0)
    # It is not stuck.
    query.run(1, [_routed(a=b"2")])
    assert read_values(broker, "a") == [b"1", b"2"]


def test_a_replay_in_another_output_mode_is_passed_over(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    append = Query(broker, monkeypatch)
    complete = Query(broker, monkeypatch, complete=True)
    append.run(0, [values(b"1")])
    append.run(1, [values(b"2")])
    complete.run(1, [values(b"all")])
    assert "a changed output mode" in caplog.messages[-1]
    assert read_values(broker, "a") == [b"1", b"2"]
    complete.run(2, [values(b"all")])
    assert _read_left(broker) == [b"all"]
    append.run(2, [values(b"3")])
    assert _read_left(broker) == [b"all"]
    assert count_stages(broker) == 0


def test_a_replay_whose_topic_is_gone(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    query.run(0, [values(b"1")])
    _delete(broker, "a")
    query.run(0, [values(b"1")])
    assert list_topics(broker) == []
    query.run(1, [values(b"2")])
    assert read_values(broker, "a") == [b"2"]


def test_queries_and_targets_do_not_mix(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for query_id in (QUERY, "other"):
        for topic in ("a", "b"):
            query = Query(broker, monkeypatch, topic=topic, query_id=query_id)
            for _ in range(2):
                query.run(0, [values(query_id[:5].encode())])
    expected = [QUERY[:5].encode(), b"other"]
    assert read_values(broker, "a") == read_values(broker, "b") == expected


def test_a_crash_before_the_commit_leaves_nothing_behind(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    query.run_tasks(0, [values(b"lost")], [values(b"lost")])
    broker.stop()
    broker.start()
    assert count_stages(broker) == 2
    query = Query(broker, monkeypatch)
    query.run(0, [values(b"1")])
    assert (read_values(broker, "a"), count_stages(broker)) == ([b"1"], 0)


def test_retried_tasks_are_written_once(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    query.run_tasks(0, [values(b"of an attempt that failed")])
    query.run(0, [values(b"1")])
    assert (read_values(broker, "a"), count_stages(broker)) == ([b"1"], 0)


def test_at_least_once_writes_a_replay_again(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(plain_broker, monkeypatch)
    for _ in range(2):
        query.run(0, [values(b"1")])
    assert read_values(plain_broker, "a") == [b"1", b"1"]


def test_at_least_once_is_said_once(
    server: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(server, monkeypatch, delivery="at-least-once")
    for batch_id in range(3):
        query.run(batch_id, [values(b"1")])
    (said,) = caplog.messages
    assert (
        "a replayed micro-batch writes rows twice: the option delivery asks for it"
        in said
    )
    auto = Query(server, monkeypatch)
    for batch_id in range(3):
        auto.run(batch_id, [])
    if server.config.dialect == "plain":
        assert f"the server {server.address} has no stages" in caplog.messages[-1]
        assert len(caplog.messages) == 2
    else:
        assert len(caplog.messages) == 1


def test_auto_does_not_become_less_meanwhile(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody puts a plain server in the place of the broker."""
    query = Query(broker, monkeypatch)
    query.run(0, [values(b"1")])
    with monkeypatch.context() as patch:
        plain = ServerKind(broker.address, has_stages=False)
        patch.setattr(lwp_driver, "_describe_server", lambda *_: plain)
        said = r"has no stages.*were written exactly once.*delivery=at-least-once"
        for _ in range(2):
            with pytest.raises(LanceError, match=said):
                query.writer()
        accepted = Query(broker, monkeypatch, delivery="at-least-once")
        assert accepted.writer().plan.delivery == "at-least-once"
    query.run(1, [values(b"2")])
    assert read_values(broker, "a") == [b"1", b"2"]


# Complete mode.


def _read_left(broker: EmbeddedBroker, topic: str = "a") -> list[bytes]:
    with LanceClient(config=make_config(broker)) as client:
        start = client.bounds(client.topic(topic).id).start
    return [bytes(record.value) for record in read_records(broker, topic, start)]


def test_complete_mode_replaces(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch, complete=True)
    query.run(0, [])
    assert _read_left(broker) == []
    query.run(1, [values(b"1")], [values(b"2")])
    query.run(1, [values(b"2")], [values(b"1")])
    assert _read_left(broker) == [b"1", b"2"]
    query.run(2, [values(b"3")])
    assert _read_left(broker) == [b"3"]
    query.run(3, [])
    assert (_read_left(broker), count_stages(broker)) == ([], 0)
    with pytest.raises(LanceError, match=r"^micro-batch 4 had no tasks: nothing is co"):
        query.writer().commit([], 4)


def test_complete_mode_needs_stages(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(plain_broker, monkeypatch, complete=True)
    said = r'outputMode\("complete"\) \(use outputMode\("append"\) here.*staged-commit'
    with pytest.raises(Unsupported, match=said):
        query.writer()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"topic": None, "schema": ROUTED},
            r'outputMode\("complete"\) needs option topic: it replaces one topic',
        ),
        (
            {"delivery": "at-least-once"},
            r'outputMode\("complete"\) is not possible with delivery=at-least-once: .*'
            r'or use outputMode\("append"\)$',
        ),
    ],
)
def test_complete_mode_that_can_not_be(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(OptionError, match=said):
        Query(broker, monkeypatch, complete=True, **changes).writer()


# What the driver refuses.


def test_exactly_once_is_refused_by_a_plain_server(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(plain_broker, monkeypatch, delivery="exactly-once")
    with pytest.raises(Unsupported, match=r"exactly-once \(use auto or at-least-once"):
        query.writer()
    lz4 = Query(plain_broker, monkeypatch, compression="lz4")
    with pytest.raises(Unsupported, match=r"compression=lz4 \(use compression=none"):
        lz4.writer()


def test_columns_are_checked_on_the_driver(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StructType([*VALUE, StructField("other", LongType())])
    with pytest.raises(OptionError, match="other"):
        Query(broker, monkeypatch, schema=other).writer()
    with pytest.raises(OptionError, match="topic"):
        Query(broker, monkeypatch, topic=None).writer()
    with pytest.raises(OptionError, match="option topic: the name"):
        Query(broker, monkeypatch, topic="a/b").writer()


def test_a_bad_row_fails_its_task(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    with pytest.raises(RowError, match="a key but no value"):
        query.run_tasks(0, [rows(value=[None], key=[b"k"])])


def test_topics_that_may_not_be_created(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(server, monkeypatch, create_topic=False)
    with pytest.raises(TopicNotFound, match=r"no topic 'a'.*createTopic=true"):
        query.writer()
    create_topics(server, "a")
    query.run(0, [values(b"1")])
    assert read_values(server, "a") == [b"1"]
    _delete(server, "a")
    with pytest.raises(TopicNotFound):
        query.run(1, [values(b"2")])
    create_topics(server, "a")
    query.run(1, [values(b"2")])
    assert read_values(server, "a") == [b"2"]


def test_a_topic_deleted_between_batches_is_made_again(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(server, monkeypatch)
    query.run(0, [values(b"1")])
    _delete(server, "a")
    query.run(1, [values(b"2")])
    assert read_values(server, "a") == [b"2"]


# Outside of a query.


@pytest.mark.parametrize(
    ("query_id", "batch_id"),
    [(None, None), (QUERY, None), (None, "1"), ("", "1"), (QUERY, "x"), (QUERY, "-1")],
)
def test_a_task_of_no_query(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    query_id: str | None,
    batch_id: str | None,
) -> None:
    writer = Query(broker, monkeypatch).writer()
    be_in_task(monkeypatch, query_id, batch_id)
    with pytest.raises(LanceError, match=r"^Spark does not tell which micro-batch th"):
        writer.write(iter([values(b"1")]))
    assert count_stages(broker) == 0


def test_no_task(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LanceError, match="use writeStream"):
        Query(broker, monkeypatch).writer().write(iter([]))
    be_in_task(monkeypatch, QUERY, "12")
    assert find_batch() == (QUERY, 12)


# Messages.


def test_a_task_that_said_nothing_fails_the_commit(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(server, monkeypatch)
    messages = query.run_tasks(0, [values(b"1")])
    for other in (None, WriterCommitMessage()):
        with pytest.raises(LanceError, match=r"^1 of 2 tasks .* restart the query$"):
            query.writer().commit([*messages, other], 0)
    if server.config.dialect != "plain":
        assert list_topics(server) == []
        query.writer().commit(messages, 0)
    assert read_values(server, "a") == [b"1"]


def test_messages_have_to_be_of_one_job(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    others = [
        Query(broker, monkeypatch, query_id="other").run_tasks(5, [values(b"2")]),
        Query(broker, monkeypatch, topic="b").run_tasks(5, [values(b"2")]),
        Query(broker, monkeypatch, delivery="at-least-once").run_tasks(5, []),
        query.run_tasks(6, [values(b"2")]),
    ]
    messages = query.run_tasks(5, [values(b"1")])
    for other in others:
        said = r"^the tasks of micro-batch 5 have written for 2 different jobs \(spark-"
        with pytest.raises(LanceError, match=said):
            query.writer().commit([*messages, *other], 5)
    assert list_topics(broker) == []
    query.writer().commit(messages, 5)
    assert read_values(broker, "a") == [b"1"]


def test_messages_have_to_be_of_the_batch(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(server, monkeypatch)
    messages = query.run_tasks(5, [values(b"1")])
    said = (
        r"^micro-batch 6 is to be committed, but its tasks have written micro-batch 5"
    )
    with pytest.raises(LanceError, match=said):
        query.writer().commit(messages, 6)
    if server.config.dialect != "plain":
        assert list_topics(server) == []


def test_abort_drops_what_messages_name(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    messages = query.run_tasks(0, [values(b"1")], [values(b"2")])
    kept = Query(broker, monkeypatch, query_id="other").run_tasks(0, [values(b"3")])
    query.writer().abort([None, None], 0)
    query.writer().abort([], 0)
    assert count_stages(broker) == 3
    # One message is enough for all tasks.
    query.writer().abort([None, messages[1], WriterCommitMessage()], 0)
    assert count_stages(broker) == 1
    with pytest.raises(StageNotFound, match="written once"):
        query.writer().commit(messages, 0)
    query.writer().commit(kept, 0)
    assert read_values(broker, "a") == [b"3"]


def test_abort_after_the_commit_takes_nothing_back(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    messages = query.run_tasks(0, [values(b"1")])
    query.writer().commit(messages, 0)
    query.writer().abort(messages, 0)
    assert read_values(broker, "a") == [b"1"]


def test_abort_needs_no_server(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    (message,) = query.run_tasks(0, [values(b"1")])
    assert isinstance(message, LanceCommit)
    writer = query.writer()
    message.job = hurry(message.job)
    broker.stop()
    writer.abort([message], 0)


# Commits that fail.


def test_another_run_has_ended_the_batch(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, zombie = Query(broker, monkeypatch), Query(broker, monkeypatch)
    messages = query.run_tasks(0, [values(b"1")])
    zombie.writer().abort(zombie.run_tasks(0, [values(b"1")]), 0)
    said = r"is not open.*another run of this query.*restart the query"
    with pytest.raises(StageNotFound, match=said):
        query.writer().commit(messages, 0)
    query.run(0, [values(b"1")])
    assert read_values(broker, "a") == [b"1"]


def test_an_expired_stage_says_what_to_do(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    messages = query.run_tasks(0, [values(b"1")])
    store = broker.service.store
    now_ns = store._clock_ns() + (store.config.stage_ttl_s + 1) * 1_000_000_000
    store._staging.expire(now_ns)
    with pytest.raises(StageExpiredError, match="restart the query: it is replayed"):
        query.writer().commit(messages, 0)


def test_nobody_knows_what_became_of_a_commit(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    messages = query.run_tasks(0, [values(b"1")])
    writer = query.writer()
    for message in messages:
        assert isinstance(message, LanceCommit)
        message.job = hurry(message.job)
    with monkeypatch.context() as patch:
        patch.setattr(
            LanceClient,
            "commit_stages",
            lambda *_, **__: (_ for _ in ()).throw(CommitUnknownError("no answer")),
        )
        said = r"not known whether.*Restart the query: the micro-batch is replayed, and"
        with pytest.raises(CommitUnknownError, match=said) as told:
            writer.commit(messages, 0)
    assert "txnAppId" not in str(told.value)


def _fail(query: Query, *tasks: Task) -> str:
    """Have a batch fail as Spark does, which tells the driver of no task."""
    with pytest.raises(LanceError) as told:
        query.run_tasks(0, *tasks)
    query.writer().abort([None] * len(tasks), 0)
    return str(told.value)


def test_a_batch_that_fails_again_and_again_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody can name what its attempts leave, and each keeps the others alive."""
    with EmbeddedBroker(fsync="none", stages_max=3) as broker:
        query = Query(broker, monkeypatch)
        other = Query(broker, monkeypatch, query_id="other", topic="b")
        for _ in range(3):
            said = _fail(query, [values(b"1")], [rows(value=[None], key=[b"k"])])
            if "stages_max" in said:
                break
            assert "a key but no value" in said
        assert "stages_max" in said
        assert "earlier attempts of the micro-batch have left are dropped now" in said
        assert count_stages(broker) == 0
        other.run(0, [values(b"1")])
        query.run(0, [values(b"1")])
        assert read_values(broker, "a") == read_values(broker, "b") == [b"1"]


def test_a_full_disk_is_not_kept_full_by_stages(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, monkeypatch)
    _fail(query, [values(b"1")], [rows(value=[None], key=[b"k"])])
    assert count_stages(broker) > 0
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "append", _refuse_to_write)
        assert "no space left" in _fail(query, [values(b"1")])
    assert count_stages(broker) == 0
    query.run(0, [values(b"1")])
    assert read_values(broker, "a") == [b"1"]


def _refuse_to_write(*_: Any, **__: Any) -> None:
    raise StoreWriteFailed("no space left on device")


# The price of a batch.


def _count(broker: EmbeddedBroker) -> tuple[dict[str, int], int]:
    seen = broker.metrics.snapshot()
    requests = {name: taken.count for name, taken in seen.requests.items()}
    return requests, seen.connections_opened


@pytest.mark.parametrize(
    ("changes", "tasks", "expected"),
    [
        ({}, 1, {"OpenStage": 1, "Ingest": 1, "CommitStages": 1}),
        ({}, 4, {"OpenStage": 4, "Ingest": 4, "CommitStages": 1}),
        ({}, 0, {}),
        (
            {"create_topic": False},
            1,
            {"OpenStage": 1, "Ingest": 1, "CommitStages": 1, "ListTopics": 2},
        ),
    ],
)
def test_requests_of_a_batch(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    tasks: int,
    expected: dict[str, int],
) -> None:
    create_topics(broker, "a")
    query = Query(broker, monkeypatch, **changes)
    # The first one finds out what there is; Spark keeps its processes for the others.
    query.run(0, [values(b"1")])
    batches = 3
    requests, opened = _settle(broker)
    for batch_id in range(1, batches + 1):
        query.run(batch_id, *([values(b"1")] for _ in range(tasks)), [])
    wanted = {name: batches * count for name, count in expected.items()}

    def taken() -> dict[str, int]:
        more = {n: c - requests.get(n, 0) for n, c in _count(broker)[0].items()}
        return {name: count for name, count in more.items() if count}

    wait_for(lambda: sum(taken().values()) >= sum(wanted.values()), "the requests")
    assert taken() == wanted
    # Connections stay, and so does what is known of the server behind them.
    assert _count(broker)[1] == opened


def _settle(broker: EmbeddedBroker) -> tuple[dict[str, int], int]:
    """Count what was asked, when the last answer is counted too."""
    wait_for(lambda: _count(broker)[0].get("CommitStages") == 1, "the commit")
    return _count(broker)


def test_a_process_without_clients(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark ends idle processes; the next one begins with nothing.
    query = Query(broker, monkeypatch)
    for batch_id in range(2):
        query.run(batch_id, [values(b"%d" % batch_id)])
        clear_pool()
    assert read_values(broker, "a") == [b"0", b"1"]
