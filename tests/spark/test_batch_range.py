"""Which bytes a batch reads, given where it starts and ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.driver import LogRef, Range
from lance_spark.client.lwp import places
from lance_spark.client.lwp.driver import make_driver
from lance_spark.errors import DataLoss
from lance_spark.model import Bounds, Partition
from lance_spark.offset import OffsetMark, StreamOffset, TopicPlace
from lance_spark.spark.planning import make_recreated, resolve_batch
from lance_spark.spark.pool import clear_pool
from tests.spark.reading import DIALECTS, connect, fill, make_records, run_broker
from tests.spark.streaming import Engine, Requests, delete, parse_stream, recreate

SIZE = 25


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param) as broker:
        fill(broker, "a", make_records(10))
        fill(broker, "b", make_records(10))
        yield broker


@pytest.fixture
def client(server: EmbeddedBroker) -> Iterator[LanceClient]:
    with connect(server) as made:
        yield made


def place(client: LanceClient, topic: str, offset: int) -> TopicPlace:
    info = client.topic(topic)
    return TopicPlace.at(info.id, info.created_at_s, offset)


def at(client: LanceClient, **offsets: int) -> StreamOffset:
    return StreamOffset.of(
        {topic: place(client, topic, offset) for topic, offset in offsets.items()}
    )


def resolve(
    server: EmbeddedBroker,
    client: LanceClient,
    start: StreamOffset,
    end: StreamOffset,
) -> tuple[list[Range], list[DataLoss]]:
    options = parse_stream(server, topicPattern=".*")
    return resolve_batch(make_driver(client), options, start=start, end=end)


def brief(ranges: list[Range]) -> list[tuple[str, int, int]]:
    return [(whole.topic, whole.start, whole.end) for whole in ranges]


def test_what_is_between_two_offsets(
    server: EmbeddedBroker, client: LanceClient
) -> None:
    ranges, losses = resolve(
        server, client, at(client, a=50, b=25), at(client, a=100, b=250)
    )
    assert brief(ranges) == [("a", 50, 100), ("b", 25, 250)]
    assert losses == []
    is_plain = server.config.dialect == "plain"
    assert all((whole.finder == "located") is not is_plain for whole in ranges)
    assert all((whole.mark is not None) is is_plain for whole in ranges)
    # More may follow, so that the last record has to be whole.
    assert not any(whole.ends_log for whole in ranges)


def test_a_topic_that_the_start_does_not_have(
    server: EmbeddedBroker, client: LanceClient
) -> None:
    ranges, _ = resolve(server, client, at(client, a=250), at(client, a=250, b=100))
    assert brief(ranges) == [("b", 0, 100)]


def test_a_topic_that_the_end_does_not_have(
    server: EmbeddedBroker, client: LanceClient
) -> None:
    ranges, losses = resolve(server, client, at(client, a=0, b=0), at(client, a=50))
    assert brief(ranges) == [("a", 0, 50)]
    assert losses == []


def test_a_start_at_or_behind_the_end_is_nothing_and_asks_nobody(
    server: EmbeddedBroker, client: LanceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = at(client, a=100, b=2**63 - 1), at(client, a=100, b=75)
    requests = Requests(monkeypatch)
    assert resolve(server, client, start, end) == ([], [])
    assert requests.count == 0


def test_a_topic_that_is_gone(server: EmbeddedBroker, client: LanceClient) -> None:
    start, end = at(client, a=50, b=0), at(client, a=100, b=50)
    delete(server, "a")
    ranges, [loss] = resolve(server, client, start, end)
    assert brief(ranges) == [("b", 0, 50)]
    assert (loss.topic, loss.asked) == ("a", 50)
    assert "the topic was deleted" in loss.reason


def test_an_end_in_another_topic_of_the_same_name(
    server: EmbeddedBroker, client: LanceClient
) -> None:
    """The loss was told of when the batch was planned; the new one is all there."""
    start = at(client, a=50)
    recreate(server, "a", make_records(20))
    client.forget("a")
    ranges, losses = resolve(server, client, start, at(client, a=75))
    assert brief(ranges) == [("a", 0, 75)]
    assert losses == []


def test_a_topic_that_has_the_id_of_another(
    server: EmbeddedBroker, client: LanceClient
) -> None:
    info = client.topic("a")
    end = StreamOffset.of({"a": TopicPlace.at(info.id, info.created_at_s - 1, 50)})
    ranges, [loss] = resolve(server, client, StreamOffset.of({}), end)
    assert ranges == []
    assert "the topic was created anew" in loss.reason


def test_a_log_that_ends_before(server: EmbeddedBroker, client: LanceClient) -> None:
    _, [loss] = resolve(server, client, at(client, a=200), at(client, a=300))
    assert (loss.asked, loss.log_start, loss.log_end) == (300, 0, 250)


def test_a_mark_that_is_wrong(server: EmbeddedBroker, client: LanceClient) -> None:
    info = client.topic("a")
    marked = TopicPlace.at(info.id, info.created_at_s, 100, OffsetMark(64, 5))
    wrong = StreamOffset.of({"a": marked})
    for start, end, asked in (
        (at(client, a=50), wrong, 100),
        (wrong, at(client, a=200), 100),
    ):
        ranges, [loss] = resolve(server, client, start, end)
        assert ranges == []
        assert (loss.asked, loss.log_end) == (asked, 250)
        assert "shifted" in loss.reason


def test_a_plain_server_that_deletes_just_now(
    server: EmbeddedBroker, client: LanceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = DataLoss("a", 50, None, 20, "as the test wants it")
    mark_range = places.mark_range

    def mark(client: LanceClient, piece: Range, log_end: int) -> places.RangeMark:
        if piece.topic == "a":
            raise lost
        return mark_range(client, piece, log_end)

    monkeypatch.setattr(places, "mark_range", mark)
    start, end = at(client, a=50, b=0), at(client, a=100, b=50)
    ranges, losses = resolve(server, client, start, end)
    if server.config.dialect == "plain":
        assert brief(ranges) == [("b", 0, 50)]
        assert losses == [lost]
    else:
        # Its offsets do not shift, and nobody looks.
        assert brief(ranges) == [("a", 50, 100), ("b", 0, 50)]
        assert losses == []


def test_what_is_said_of_a_topic_created_anew() -> None:
    old, log = TopicPlace.at(3, 1000, 500), LogRef(Partition("a"))
    text = str(make_recreated(log, old, 8, Bounds(0, 75)))
    assert "its id was 3, created at 1000, and is 8 now" in text
    assert "(log start 0, log end 75)" in text
    # What the new one has lost is not what the old one has.
    assert make_recreated(log, old, 8, Bounds(600, 700)).missing_bytes is None
    assert make_recreated(log, old, 8).log_end is None


def test_a_large_batch_is_many_tasks(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(200))
    engine = Engine(
        server, topic="a", startingOffsets="earliest", maxPartitionBytes=1000
    )
    reader = engine.reader
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert len(reader.partitions(start, end)) == 6
    engine.drain()
    assert [row["offset"] for row in engine.rows] == list(range(0, 5250, SIZE))
