"""Subscriptions and committed offsets."""

from __future__ import annotations

from typing import Any

import pytest

from lance_spark.client.lwp.client import LanceClient
from lance_spark.errors import ConnectionLost, ConsumerNotFound, OffsetOutOfRange
from lance_spark.wire.lwp import (
    CommitAck,
    CommitOffset,
    ErrorResponse,
    GetTopic,
    ListTopics,
    Subscribe,
    SubscribeAck,
    TopicInfo,
    TopicListing,
    Unsubscribe,
)
from tests.client.scripted import EVERYTHING, FakeTime, Network, Peer, serving

TOPICS = TopicListing((TopicInfo(3, "events"),))


def answering(
    network: Network, table: dict[Any, Any], *capabilities: str
) -> LanceClient:
    network.serve(serving({ListTopics: TOPICS, **table}, *capabilities))
    return network.client()


def test_subscribe(network: Network) -> None:
    asked: list[Subscribe] = []

    def answer(request: Subscribe) -> SubscribeAck:
        asked.append(request)
        return SubscribeAck(request.consumer_id, request.start + 100)

    client = answering(network, {Subscribe: answer})
    assert client.subscribe("events", 7) == 100
    assert client.subscribe(3, 7, start=5, max_batch_bytes=9) == 105
    assert asked == [Subscribe(3, 0, 4 * 1024 * 1024, 7), Subscribe(3, 5, 9, 7)]


def test_unsubscribe(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        assert peer.request() == Unsubscribe(3, 2**64 - 1)
        peer.ack(2**64 - 1)
        peer.request(Unsubscribe)
        peer.refuse(0x52, "no such consumer")
        peer.wait_for_end()

    network.serve(script)
    client = network.client()
    client.unsubscribe(3, 2**64 - 1)
    with pytest.raises(ConsumerNotFound):
        client.unsubscribe(3, 7)


def test_commit(network: Network) -> None:
    client = answering(
        network, {CommitOffset: lambda r: CommitAck(r.consumer_id, r.offset)}
    )
    assert client.commit_offset("events", 7, 4096) == 4096


def test_commit_beyond_the_end(network: Network) -> None:
    client = answering(network, {CommitOffset: ErrorResponse(0x51, "beyond")})
    with pytest.raises(OffsetOutOfRange):
        client.commit_offset(3, 7, 4096)


def described(consumers: Any) -> dict[Any, Any]:
    return {GetTopic: TopicInfo(3, "events", details={"consumers": consumers})}


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [
        ([{"consumer_id": 7, "committed_offset": 4096}], 4096),
        ([{"consumer_id": 7, "committed_offset": 0}], 0),
        ([{"consumer_id": 7, "committed_offset": None}], None),
        ([{"consumer_id": 8, "committed_offset": 1}], None),
        ([], None),
        ([{"consumer_id": 7, "committed_offset": "x"}], None),
        (["nonsense", 9], None),
        ("nonsense", None),
    ],
)
def test_committed_on_our_server(
    network: Network, consumers: Any, expected: int | None
) -> None:
    client = answering(network, described(consumers), *EVERYTHING)
    assert client.committed_offset("events", 7) == expected


@pytest.mark.parametrize(("start", "expected"), [(4096, 4096), (0, None)])
def test_committed_on_a_plain_server(
    network: Network, start: int, expected: int | None
) -> None:
    client = answering(network, {Subscribe: SubscribeAck(7, start)})
    assert client.committed_offset("events", 7) == expected


def test_committed_on_a_server_that_does_not_describe(network: Network) -> None:
    table = {GetTopic: TopicInfo(3, "events"), Subscribe: SubscribeAck(7, 5)}
    assert answering(network, table, "wait").committed_offset(3, 7) == 5


def test_a_deadline_for_a_commit(network: Network, fake_time: FakeTime) -> None:
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(ConnectionLost):
        client.commit_offset(3, 5, 10, timeout_s=0.3)
    assert fake_time.pauses == [0.2]
