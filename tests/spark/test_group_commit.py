"""Telling the server how far a query is, which never troubles the query."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, consumer_id
from lance_spark.model import Partition
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark import stream_reader
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.stream_reader import GroupCommit
from tests.integration.kit import PATIENCE_S, wait_for
from tests.spark.reading import DIALECTS, connect, fill, make_records, run_broker
from tests.spark.streaming import Engine, Requests, expect, parse_stream

SIZE = 25


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param) as broker:
        yield broker


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the end of a query wait as long as a loaded machine may need."""
    monkeypatch.setattr(stream_reader, "_CLOSE_S_MAX", PATIENCE_S)


def make_group(broker: EmbeddedBroker, **given: Any) -> GroupCommit:
    options = parse_stream(broker, topic="a", **given)
    return GroupCommit(options.client, "readers")


def at(broker: EmbeddedBroker, **offsets: int) -> StreamOffset:
    with connect(broker) as client:
        infos = {info.name: info for info in client.topics()}
    return StreamOffset.of(
        {
            topic: TopicPlace.at(infos[topic].id, infos[topic].created_at_s, offset)
            for topic, offset in offsets.items()
        }
    )


def committed(broker: EmbeddedBroker, topic: str, group: str = "readers") -> int | None:
    with connect(broker) as client:
        return client.committed_offset(topic, consumer_id(group))


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name == stream_reader.__name__]


@pytest.mark.usefixtures("patience")
def test_a_query_commits_how_far_it_is(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(4))
    fill(server, "b", make_records(2))
    engine = Engine(
        server, topic="a,b", startingOffsets="earliest", consumerGroup="readers"
    )
    engine.drain()
    engine.reader.stop()
    assert committed(server, "a") == 4 * SIZE
    assert committed(server, "b") == 2 * SIZE
    assert committed(server, "a", "others") is None
    # What is not done is not committed.
    fill(server, "a", make_records(1))
    engine.restart().step(crash=True)
    engine.reader.stop()
    assert committed(server, "a") == 4 * SIZE


def test_no_group_no_commit(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(4))
    requests = Requests(monkeypatch)
    Engine(broker, topic="a", startingOffsets="earliest").drain()
    assert "CommitOffset" not in requests.names
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("lance-group") for name in names)


@pytest.mark.usefixtures("patience")
def test_only_what_has_moved_is_committed(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(4))
    fill(broker, "b", make_records(4))
    requests = Requests(monkeypatch)
    engine = Engine(
        broker, topic="a,b", startingOffsets="earliest", consumerGroup="readers"
    )
    engine.drain()
    group = engine.reader._group
    assert group is not None
    wait_for(lambda: requests.names.count("CommitOffset") >= 2, "commits")
    wait_for(lambda: group._next is None, "all is told")
    for _ in range(3):
        engine.step()
    engine.reader.stop()
    # At the start, perhaps, and at the end.
    assert requests.names.count("CommitOffset") <= 4
    assert committed(broker, "b") == 4 * SIZE


@pytest.mark.usefixtures("patience")
def test_what_is_refused_is_said_once_and_not_tried_again(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(broker, "a", make_records(4))
    fill(broker, "b", make_records(4))
    requests = Requests(monkeypatch)
    group = make_group(broker)
    # The first one is behind its log's end.
    for a, b in ((500, 25), (500, 50), (500, 50), (525, 50)):
        group.commit(at(broker, a=a, b=b))
        wait_for(lambda: group._next is None, "it was taken")
    group.close()
    assert committed(broker, "b") == 50
    assert committed(broker, "a") is None
    assert requests.names.count("CommitOffset") <= 4
    [warning] = warnings(caplog)
    assert "group 'readers'" in warning.message
    assert "the query itself goes on" in warning.message


@pytest.mark.usefixtures("patience")
def test_a_topic_that_is_gone(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "b", make_records(4))
    offset = at(server, b=50)
    gone = TopicPlace.at(777, 1, 5)
    group = make_group(server)
    group.commit(StreamOffset.of({"a": gone, **dict(offset.topics)}))
    group.close()
    assert committed(server, "b") == 50
    assert len(warnings(caplog)) <= 1


@pytest.mark.usefixtures("patience")
def test_a_topic_that_is_gone_does_not_hide_what_is_refused_later(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "b", make_records(4))
    group = make_group(broker)
    offset = at(broker, b=50)
    group.commit(
        StreamOffset.of({"a": TopicPlace.at(777, 1, 5), **dict(offset.topics)})
    )
    wait_for(lambda: len(warnings(caplog)) == 1, "the first is said")
    group.commit(offset)
    wait_for(lambda: group._next is None, "it was taken")
    # Behind its log's end.
    group.commit(at(broker, b=500))
    group.close()
    assert len(warnings(caplog)) == 2
    assert set(group._committed) == {Partition("b")}


@pytest.mark.usefixtures("patience")
def test_a_broker_that_is_away_and_comes_back(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "a", make_records(4))
    offset = at(broker, a=100)
    group = make_group(broker, retryTimeout="50ms")
    broker.stop()
    for _ in range(2):
        group.commit(offset)
        wait_for(lambda: group._next is None and group._failing, "it fails")
    broker.start()

    def is_told() -> bool:
        group.commit(offset)
        return committed(broker, "a") == 100

    wait_for(is_told, "it is committed")
    group.close()
    assert len(warnings(caplog)) == 1
    assert not group._failing


def test_a_broker_that_does_not_answer_holds_up_nobody(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(broker, "a", make_records(4))
    go_on, asked = threading.Event(), threading.Event()
    timeouts_s = []

    def hang(client: LanceClient, *given: Any) -> int:
        timeouts_s.append(client.config.retry_timeout_s)
        asked.set()
        assert go_on.wait(PATIENCE_S)
        return 0

    monkeypatch.setattr(LanceClient, "commit_offset", hang)
    monkeypatch.setattr(stream_reader, "_CLOSE_S_MAX", 0.01)
    engine = Engine(
        broker, topic="a", startingOffsets="earliest", consumerGroup="readers"
    )
    engine.step()
    assert asked.wait(PATIENCE_S)
    more = fill(broker, "a", make_records(4))
    engine.drain()
    assert engine.rows == expect(rows, more)
    group = engine.reader._group
    assert group is not None
    engine.reader.stop()
    assert group._thread.is_alive()
    go_on.set()
    group._thread.join(PATIENCE_S)
    assert not group._thread.is_alive()
    # The next offset is as good, so that none is tried for long.
    assert timeouts_s[0] == 10.0


@pytest.mark.usefixtures("patience")
def test_the_newest_offset_is_told_in_place_of_older_ones(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(4))
    go_on, asked = threading.Event(), threading.Event()
    commit, offsets = LanceClient.commit_offset, []

    def wait_first(
        client: LanceClient, topic: int, consumer: int, offset: int, **given: Any
    ) -> int:
        offsets.append(offset)
        asked.set()
        assert go_on.wait(PATIENCE_S)
        return commit(client, topic, consumer, offset, **given)

    monkeypatch.setattr(LanceClient, "commit_offset", wait_first)
    group = make_group(broker)
    group.commit(at(broker, a=25))
    assert asked.wait(PATIENCE_S)
    for offset in (50, 75, 100):
        group.commit(at(broker, a=offset))
    go_on.set()
    group.close()
    assert offsets == [25, 100]
    assert committed(broker, "a") == 100
