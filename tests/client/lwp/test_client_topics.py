"""Topics: names and ids, creating, describing, deleting, retention."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.log import connect
from lance_spark.client.lwp.client import LanceClient
from lance_spark.errors import (
    ConnectionLost,
    InvalidTopicName,
    TopicAlreadyExists,
    TopicDeleted,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Retention
from lance_spark.wire.lwp import (
    CreateTopic,
    CreateTopicWithRetention,
    DeleteTopic,
    ErrorResponse,
    GetTopic,
    ListTopics,
    Message,
    SetRetention,
    TopicDeletion,
    TopicInfo,
    TopicListing,
    TopicRetention,
)
from tests.client.scripted import EVERYTHING, SERVER, FakeTime, Network, Peer, serving

EVENTS = TopicInfo(3, "events", 1706918400, 1, Retention(60, 0))
LOGS = TopicInfo(1, "logs")


class Topics:
    """The topics of a scripted server, which remembers what it was asked."""

    def __init__(self, *topics: TopicInfo) -> None:
        self.by_id = {topic.id: topic for topic in topics}
        self.asked: list[Message] = []
        self.next_id = 10

    def serve(self, *capabilities: str) -> Callable[[Peer], None]:
        table = {
            ListTopics: self._noting(self._list),
            GetTopic: self._noting(self._get),
            CreateTopic: self._noting(self._create),
            CreateTopicWithRetention: self._noting(self._create),
            DeleteTopic: self._noting(self._delete),
            SetRetention: self._noting(self._set),
        }
        return serving(table, *capabilities)

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.asked)

    def _noting(self, answer: Callable[..., Message]) -> Callable[[Message], Message]:
        def note(request: Message) -> Message:
            self.asked.append(request)
            return answer(request)

        return note

    def _list(self, request: ListTopics) -> Message:
        return TopicListing(tuple(self.by_id.values()))

    def _get(self, request: GetTopic) -> Message:
        if request.topic_id not in self.by_id:
            return ErrorResponse(0x10, f"Topic {request.topic_id} not found")
        return self.by_id[request.topic_id]

    def _create(self, request: CreateTopic | CreateTopicWithRetention) -> Message:
        if any(topic.name == request.name for topic in self.by_id.values()):
            return ErrorResponse(0x11, f"Topic '{request.name}' already exists")
        retention = getattr(request, "retention", None)
        topic = TopicInfo(self.next_id, request.name, retention=retention)
        self.by_id[topic.id] = topic
        self.next_id += 1
        return topic

    def _delete(self, request: DeleteTopic) -> Message:
        if self.by_id.pop(request.topic_id, None) is None:
            return ErrorResponse(0x13, "deleted")
        return TopicDeletion(request.topic_id)

    def _set(self, request: SetRetention) -> Message:
        if request.topic_id not in self.by_id:
            return ErrorResponse(0x10, "Topic not found")
        return TopicRetention(request.topic_id, request.retention)


@pytest.fixture
def topics() -> Topics:
    return Topics(EVENTS, LOGS)


@pytest.fixture
def client(network: Network, topics: Topics) -> LanceClient:
    network.serve(topics.serve(*EVERYTHING))
    return network.client()


@pytest.fixture
def plain_client(network: Network, topics: Topics) -> LanceClient:
    network.serve(topics.serve())
    return network.client()


# Names and ids.


def test_an_id_is_an_id(client: LanceClient, topics: Topics) -> None:
    assert client.topic_id(42) == 42
    assert client.topic_id(0) == 0
    assert topics.asked == []


def test_names_are_looked_up_once(client: LanceClient, topics: Topics) -> None:
    assert [client.topic_id(name) for name in ("events", "logs", "events")] == [3, 1, 3]
    assert topics.count(ListTopics) == 1


def test_an_unknown_name_is_looked_up_each_time(
    client: LanceClient, topics: Topics
) -> None:
    for _ in range(2):
        with pytest.raises(TopicNotFound, match="no topic is named 'nope'"):
            client.topic_id("nope")
    assert topics.count(ListTopics) == 2
    topics.by_id[9] = TopicInfo(9, "nope")
    assert client.topic_id("nope") == 9


@pytest.mark.parametrize("topic", ["events", 3])
def test_forget(client: LanceClient, topics: Topics, topic: int | str) -> None:
    client.topic_id("events")
    client.forget(topic)
    client.forget("never heard of")
    topics.by_id[8] = TopicInfo(8, "events")
    del topics.by_id[3]
    assert client.topic_id("events") == 8


def test_a_name_whose_id_is_gone_is_looked_up_again(
    client: LanceClient, topics: Topics
) -> None:
    assert client.topic("events") == EVENTS
    topics.by_id[8] = TopicInfo(8, "events")
    del topics.by_id[3]
    assert client.topic("events").id == 8
    assert client.topic_id("events") == 8
    assert topics.count(ListTopics) == 2


def test_an_id_that_is_gone_is_not_looked_up(
    client: LanceClient, topics: Topics
) -> None:
    with pytest.raises(TopicNotFound, match="Topic 99 not found"):
        client.topic(99)
    assert topics.count(ListTopics) == 0


def test_a_name_that_is_gone(client: LanceClient, topics: Topics) -> None:
    client.topic("events")
    del topics.by_id[3]
    with pytest.raises(TopicNotFound, match="no topic is named 'events'"):
        client.topic("events")


# Listing and describing.


def test_topics_are_listed_by_id(client: LanceClient) -> None:
    assert client.topics() == [LOGS, EVENTS]
    assert client.list_topics() == [LOGS, EVENTS]


def test_describe(client: LanceClient) -> None:
    assert client.topic(3) == EVENTS
    assert client.topic("events") == EVENTS
    assert client.get_topic("logs") == LOGS


# Creating.


def test_create(client: LanceClient, topics: Topics) -> None:
    info = client.create_topic("new")
    assert (info.id, info.name) == (10, "new")
    assert topics.asked == [CreateTopic("new")]
    # Its id is known from now on.
    assert client.topic_id("new") == 10
    assert topics.count(ListTopics) == 0


def test_create_with_retention(client: LanceClient, topics: Topics) -> None:
    info = client.create_topic("new", retention=Retention(0, 1024))
    assert info.retention == Retention(0, 1024)
    assert topics.asked == [CreateTopicWithRetention("new", Retention(0, 1024))]


def test_create_again(client: LanceClient) -> None:
    with pytest.raises(TopicAlreadyExists):
        client.create_topic("events")


def test_create_is_sent_once(network: Network, fake_time: FakeTime) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request(CreateTopic)

    network.serve(script, serving())
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(ConnectionLost):
        client.create_topic("new")
    assert network.dialed == [SERVER]


def test_a_bad_name_is_the_servers_to_refuse(network: Network) -> None:
    answer = ErrorResponse(0x12, "Topic name 'a/b' contains invalid characters")
    network.serve(serving({CreateTopic: answer}))
    with pytest.raises(InvalidTopicName):
        network.client().create_topic("a/b")


@pytest.mark.parametrize(
    ("name", "warns"),
    [("good-Name-1", False), ("under_score", True), ("ümlaut", True), ("nl\n", True)],
)
def test_a_name_that_some_servers_refuse_is_warned_of(
    client: LanceClient, caplog: pytest.LogCaptureFixture, name: str, warns: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        client.create_topic(name)
    assert ("only take letters" in caplog.text) is warns


def test_ensure(client: LanceClient, topics: Topics) -> None:
    assert client.ensure_topic("events") == EVENTS
    assert client.ensure_topic("new").id == 10
    assert client.ensure_topic("new").id == 10


def test_ensure_is_repeated_when_its_answer_is_lost(
    network: Network, topics: Topics, fake_time: FakeTime
) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        topics._create(peer.request(CreateTopic))

    network.serve(script, topics.serve())
    client = network.client(runtime=fake_time.runtime(network))
    assert client.ensure_topic("new").id == 10
    assert len(network.dialed) == 2


# Deleting.


@pytest.mark.parametrize("topic", ["events", 3])
def test_delete(client: LanceClient, topics: Topics, topic: int | str) -> None:
    client.topic_id("events")
    client.delete_topic(topic)
    assert 3 not in topics.by_id
    with pytest.raises(TopicNotFound):
        client.topic_id("events")


def test_delete_what_is_gone(client: LanceClient) -> None:
    with pytest.raises(TopicDeleted):
        client.delete_topic(99)
    with pytest.raises(TopicNotFound):
        client.delete_topic("nope")


def test_delete_a_topic_with_partitions() -> None:
    with (
        EmbeddedBroker(fsync="none", tank="127.0.0.1:0") as broker,
        LanceClient(broker.address) as client,
    ):
        with connect(f"tank://{broker.address_of('tank')}") as log:
            log.append("o", [b"1"], create=True, partitions=11)
        names = [info.name for info in client.partitions("o")]
        assert names == [f"o/{n}" for n in range(11)]
        client.create_topic("alone")
        assert client.partitions("alone") == []
        client.delete_topic("o")
        assert [info.name for info in client.topics()] == ["alone"]
        with pytest.raises(TopicNotFound):
            client.delete_topic("o")


def test_a_server_that_knows_no_partitions(plain_client: LanceClient) -> None:
    with pytest.raises(Unsupported, match="deleting a topic with several partitions"):
        plain_client.delete_topic(3, partitions=2)


def test_delete_is_sent_once(network: Network, fake_time: FakeTime) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request(DeleteTopic)

    network.serve(script, serving())
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(ConnectionLost):
        client.delete_topic(3)
    assert network.dialed == [SERVER]


# Retention.


def test_retention(client: LanceClient, topics: Topics) -> None:
    assert client.set_retention("events", Retention(0, 7)) == Retention(0, 7)
    assert topics.asked[-1] == SetRetention(3, Retention(0, 7))
    assert client.set_retention(3, Retention()) == Retention()
    assert topics.asked[-1] == SetRetention(3, Retention())


NO_AGE, NO_SIZE = 9_000_000_000, 2**63 - 1


@pytest.mark.parametrize(
    ("meant", "sent"),
    [
        (Retention(), Retention(NO_AGE, NO_SIZE)),
        (Retention(60, 0), Retention(60, NO_SIZE)),
        (Retention(0, 70), Retention(NO_AGE, 70)),
        (Retention(60, 70), Retention(60, 70)),
    ],
)
def test_no_limit_towards_a_plain_server(
    plain_client: LanceClient, topics: Topics, meant: Retention, sent: Retention
) -> None:
    assert plain_client.set_retention(3, meant) == meant
    assert topics.asked == [SetRetention(3, sent)]
    assert plain_client.create_topic("new", retention=meant).retention == meant
    assert topics.asked[-1] == CreateTopicWithRetention("new", sent)
    # What the server then tells of the topic means the same.
    assert plain_client.topic("new").retention == meant
    assert plain_client.topics()[-1].retention == meant


def test_the_limit_suits_the_server_that_gets_it(
    network: Network, topics: Topics, fake_time: FakeTime
) -> None:
    def losing(peer: Peer) -> None:
        peer.greet(*EVERYTHING)
        assert peer.request() == SetRetention(3, Retention())

    network.serve(losing, topics.serve())
    client = network.client(runtime=fake_time.runtime(network))
    client.set_retention(3, Retention())
    assert topics.asked == [SetRetention(3, Retention(NO_AGE, NO_SIZE))]
