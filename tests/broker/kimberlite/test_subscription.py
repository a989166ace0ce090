"""Subscriptions: credits, groups, and how they end."""

from __future__ import annotations

from typing import Any

import pytest

import lance_spark.broker.kimberlite.session as module
from lance_spark.broker import EmbeddedBroker, server
from lance_spark.broker.access import Principal
from lance_spark.broker.session import STANDING_MAX, WAIT_POSITION_BYTES
from lance_spark.errors import ConnectionLost, Timeout
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline
from lance_spark.wire import kimberlite as wire
from lance_spark.wire.kimberlite import CloseReason
from lance_spark.wire.kimberlite import record as wire_record
from tests.broker.kimberlite.conftest import DialKimberlite
from tests.broker.kimberlite.kit import (
    HERE,
    HOME,
    KimberliteClient,
    events_of,
    values_of,
)
from tests.broker.kit import StartBroker, eventually, patience, running
from tests.each import each

FORMS = ("v5", "v5-0.6", "v4", "v3", "v2")


def subscribe(
    client: KimberliteClient,
    stream: int,
    start: int = 0,
    credits: int = 100,
    group: str | None = None,
) -> int:
    """Subscribe from an offset on; give the number of the subscription."""
    answer = client.ask(wire.Subscribe(stream, start, credits, group))
    assert isinstance(answer, wire.SubscribeResponse), answer
    assert (answer.start_offset, answer.credits) == (start, credits)
    return answer.subscription_id


def receive(
    client: KimberliteClient, number: int, *events: bytes, start: int, credits: int
) -> None:
    """Read a push for each event: where it is, and how many may still come."""
    for n, event in enumerate(events):
        push = client.next_push()
        assert isinstance(push, wire.SubscriptionEvents), push
        assert values_of(push.events) == [event]
        assert push == wire.SubscriptionEvents(
            number, start + n, push.events, credits - n - 1
        )


def closed(client: KimberliteClient) -> tuple[int, int]:
    """Read the push that ends a subscription: its number and why."""
    push = client.next_push()
    assert isinstance(push, wire.SubscriptionClosed), push
    return push.subscription_id, push.reason


def give(client: KimberliteClient, number: int, credits: int, total: int) -> None:
    """Let more events come."""
    answer = client.ask(wire.SubscribeCredit(number, credits))
    assert answer == wire.SubscriptionAck(number, total)


def lend(broker: EmbeddedBroker) -> Any:
    """Give the budget of what waits."""
    assert broker._server is not None
    return broker._server._shared.waiting


# Events.


@each("form", FORMS)
def test_credits(shared: EmbeddedBroker, form: str) -> None:
    with KimberliteClient(shared, form=form) as client:
        stream = client.create(f"credits in {form}")
        events = [b"%d" % n for n in range(8)]
        client.append(stream, *events)
        number = subscribe(client, stream, credits=3)
        receive(client, number, *events[:3], start=0, credits=3)
        assert client.is_silent(0.02)
        give(client, number, 2, 2)
        receive(client, number, *events[3:5], start=3, credits=2)
        # More than there are: the rest is for those that come.
        give(client, number, 9, 9)
        receive(client, number, *events[5:], start=5, credits=9)
        client.append(stream, b"new", expected=8)
        receive(client, number, b"new", start=8, credits=6)
        assert client.ask(wire.Unsubscribe(number)) == wire.SubscriptionAck(number, 5)


def test_no_credits_at_first(client: KimberliteClient, stream: int) -> None:
    client.append(stream, b"a")
    number = subscribe(client, stream, credits=0)
    assert client.is_silent(0.02)
    give(client, number, 0, 0)
    give(client, number, 1, 1)
    receive(client, number, b"a", start=0, credits=1)


def test_credits_have_a_limit(client: KimberliteClient, stream: int) -> None:
    most = 2**32 - 1
    number = subscribe(client, stream, credits=most)
    give(client, number, most, most)


def test_what_comes_is_pushed(
    shared: EmbeddedBroker,
    client: KimberliteClient,
    dial_kimberlite: DialKimberlite,
    stream: int,
) -> None:
    other = dial_kimberlite(shared)
    client.append(stream, b"before")
    number = subscribe(client, stream, 1)
    for n in range(20):
        other.append(stream, b"%d" % n, expected=n + 1)
        receive(client, number, b"%d" % n, start=n + 1, credits=100 - n)


def test_pushes_come_between_answers(client: KimberliteClient, stream: int) -> None:
    """Each in its order, and requests are answered while there is more to push."""
    events = [b"%04d" % n for n in range(3000)]
    client.append(stream, *events)
    frames: list[Buffer] = []
    requests = [wire.Subscribe(stream, 0, 2**32 - 1), *[wire.StreamInfo(stream)] * 5]
    for number, request in enumerate(requests, 100):
        frames += wire.encode_message(wire.Request(number, HOME, request), wire.V5)
    client.send(b"".join(map(bytes, frames)))
    number = client.answer(100).subscription_id
    for asked in range(101, 106):
        assert client.answer(asked) == wire.StreamInfoResponse(3000)
    # All were asked for at once, and each answer came between pushes.
    assert 0 < len(client.pushes) < 3000
    while len(client.pushes) < 3000:
        client.pushes.append(client.next().body)
    assert events_of(client.pushes) == events
    assert [push.start_offset for push in client.pushes] == list(range(3000))
    assert {push.subscription_id for push in client.pushes} == {number}


def test_a_push_fits_the_client_of_pypi(client: KimberliteClient, stream: int) -> None:
    """It hands out one event of a push, and takes frames of 128 KiB."""
    events = [b"x" * size for size in (0, 1, 60_000, 130_000, 60_000, 5)] * 3
    client.append(stream, *events)
    subscribe(client, stream)
    for event in events:
        frame = client.next_frame()
        assert frame is not None
        size = wire.HEADER_BYTES + len(frame.payload)
        assert size <= wire.SMALL_FRAME_BYTES_MAX
        body = wire.decode_response(frame).body
        assert isinstance(body, wire.SubscriptionEvents)
        assert values_of(body.events) == [event]


def test_several_on_one_connection(client: KimberliteClient, name: str) -> None:
    streams = [client.create(f"{name} {n}") for n in range(3)]
    numbers = [subscribe(client, stream) for stream in (*streams, streams[0])]
    assert len(set(numbers)) == 4
    for stream in streams:
        client.append(stream, b"of %d" % stream)
    pushed = [*client.pushes]
    while len(pushed) < 4:
        pushed.append(client.next().body)
    found = {push.subscription_id: values_of(push.events) for push in pushed}
    expected = zip(numbers, (*streams, streams[0]), strict=True)
    assert found == {number: [b"of %d" % stream] for number, stream in expected}


def test_offsets_that_are_not_there(client: KimberliteClient, stream: int) -> None:
    client.append(stream, b"a")
    for offset in (2, 2**64 - 1):
        text = client.refused(wire.Subscribe(stream, offset, 1), 11)
        assert text == f"offset {offset} is behind the end, 1"


@each("form", ["v1-postcard", "v1-literal"])
def test_version_1_has_no_pushes(shared: EmbeddedBroker, form: str) -> None:
    with KimberliteClient(shared, form=form) as client:
        client.shake()
        stream = client.create(f"no pushes in {form}")
        text = client.refused(wire.Subscribe(stream, 0, 1), 2)
        assert "use ReadEvents" in text


def test_a_subscriber_is_never_idle(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    broker = start(kimberlite=HERE, idle_timeout_other_s=0.05)
    client, idle = dial_kimberlite(broker), dial_kimberlite(broker)
    stream = client.create("events")
    number = subscribe(client, stream)
    idle.shake()
    assert idle.ended()
    dial_kimberlite(broker).append(stream, b"a")
    receive(client, number, b"a", start=0, credits=100)


# Groups.


def test_a_group_goes_on_at_its_commit(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    """What was not asked for again comes again, also after a restart."""
    broker = start(kimberlite=HERE)
    client = dial_kimberlite(broker)
    stream = client.create("events")
    events = [b"%d" % n for n in range(10)]
    client.append(stream, *events)
    number = subscribe(client, stream, 1, credits=5, group="readers")
    receive(client, number, *events[1:6], start=1, credits=5)
    give(client, number, 2, 2)
    receive(client, number, *events[6:8], start=6, credits=2)
    client.stream.close()

    def resume(group: str, start: int, asked: int = 0) -> None:
        with KimberliteClient(broker) as member:
            answer = member.ask(wire.Subscribe(stream, asked, 1, group))
            assert answer.start_offset == start
            number = answer.subscription_id
            receive(member, number, events[start], start=start, credits=1)

    resume("readers", 3)
    resume("others", 0)
    resume("others", 4, asked=4)
    broker.stop()
    broker.start()
    resume("readers", 3)


def test_a_commit_is_never_ahead_of_what_was_pushed(
    client: KimberliteClient, stream: int, shared: EmbeddedBroker
) -> None:
    client.append(stream, b"a", b"b")
    number = subscribe(client, stream, credits=0, group="g")

    def commit() -> int | None:
        return shared.service.store.committed_offset("g", stream & 0xFFFF)

    give(client, number, 1, 1)
    receive(client, number, b"a", start=0, credits=1)
    assert commit() is None
    give(client, number, 50, 50)
    assert commit() == 1
    receive(client, number, b"b", start=1, credits=50)
    give(client, number, 1, 50)
    assert commit() == 2


def test_each_member_gets_every_event(
    shared: EmbeddedBroker, dial_kimberlite: DialKimberlite, name: str
) -> None:
    members = [dial_kimberlite(shared) for _ in range(3)]
    stream = members[0].create(name)
    numbers = [subscribe(member, stream, group="readers") for member in members]
    members[0].append(stream, b"a", b"b")
    for member, number in zip(members, numbers, strict=True):
        receive(member, number, b"a", b"b", start=0, credits=100)
    give(members[1], numbers[1], 2, 100)
    late = dial_kimberlite(shared)
    assert late.ask(wire.Subscribe(stream, 0, 1, "readers")).start_offset == 2


def test_names_of_groups(client: KimberliteClient, stream: int) -> None:
    client.append(stream, b"a")
    # Without a name there is no group, and nothing is kept.
    number = subscribe(client, stream, credits=1, group="")
    receive(client, number, b"a", start=0, credits=1)
    give(client, number, 1, 1)
    assert subscribe(client, stream, credits=0, group="")
    # One that can't be kept is told when it is to be.
    number = subscribe(client, stream, credits=1, group="x" * 1000)
    receive(client, number, b"a", start=0, credits=1)
    text = client.refused(wire.SubscribeCredit(number, 1), 2)
    assert "the name of a group has 1000 bytes" in text


def forgetful(start: StartBroker) -> EmbeddedBroker:
    topics = {"events": {"retention": {"max_bytes": 300}}}
    return start(kimberlite=HERE, segment_bytes=100, topics=topics)


def fill(client: KimberliteClient, stream: int, start: int = 0) -> None:
    for n in range(start, start + 8):
        client.append(stream, b"%d" % (n % 10) * 60, expected=n)


def test_a_group_whose_place_is_gone(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    broker = forgetful(start)
    client = dial_kimberlite(broker)
    stream = client.create("events")
    client.append(stream, b"a")
    number = subscribe(client, stream, credits=1, group="readers")
    receive(client, number, b"a", start=0, credits=1)
    give(client, number, 1, 1)
    client.ask(wire.Unsubscribe(number))
    fill(client, stream, 1)
    broker.service.maintain()
    text = client.refused(wire.Subscribe(stream, 0, 1, "readers"), 11)
    first = int(text.rpartition(" ")[2])
    assert first > 1
    answer = client.ask(wire.Subscribe(stream, first, 1, "readers"))
    assert answer.start_offset == first


# The end.


def test_unsubscribe(client: KimberliteClient, stream: int) -> None:
    number = subscribe(client, stream, credits=5)
    assert client.ask(wire.Unsubscribe(number)) == wire.SubscriptionAck(number, 5)
    client.append(stream, b"a")
    assert client.is_silent(0.02)
    for message in (
        wire.Unsubscribe(number),
        wire.SubscribeCredit(number, 1),
        wire.SubscribeCredit(2**64 - 1, 1),
    ):
        text = client.refused(message, 17)
        assert str(message.subscription_id) in text
    # Numbers are not given out again.
    assert subscribe(client, stream, credits=0) > number


def test_subscriptions_are_their_connection_s(
    shared: EmbeddedBroker,
    client: KimberliteClient,
    dial_kimberlite: DialKimberlite,
    stream: int,
) -> None:
    number = subscribe(client, stream)
    other = dial_kimberlite(shared)
    other.refused(wire.SubscribeCredit(number, 1), 17)
    other.refused(wire.Unsubscribe(number), 17)


def test_a_stream_is_deleted_under_it(
    broker: EmbeddedBroker, kimberlite: KimberliteClient
) -> None:
    client = kimberlite
    stream, kept = client.create("events"), client.create("kept")
    numbers = [
        subscribe(client, stream),
        subscribe(client, stream, credits=0),
        subscribe(client, stream, group="readers"),
    ]
    other = subscribe(client, kept)
    broker.service.delete_topic(Principal(), stream & 0xFFFF)
    ended = [closed(client) for _ in numbers]
    assert sorted(ended) == [(number, CloseReason.STREAM_DELETED) for number in numbers]
    for number in numbers:
        client.refused(wire.SubscribeCredit(number, 1), 17)
    client.append(kept, b"a")
    receive(client, other, b"a", start=0, credits=100)
    assert client.create("events") != stream


def test_a_subscriber_that_retention_overtakes(
    start: StartBroker,
    dial_kimberlite: DialKimberlite,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = forgetful(start)
    client = dial_kimberlite(broker)
    stream = client.create("events")
    number = subscribe(client, stream, credits=1)
    fill(client, stream)
    receive(client, number, b"0" * 60, start=0, credits=1)
    broker.service.maintain()
    give(client, number, 5, 5)
    assert closed(client) == (number, CloseReason.BACKPRESSURE_TIMEOUT)
    assert "a subscription ends" in caplog.text and "offset 1" in caplog.text
    assert client.length(stream) == 8


def test_no_memory_for_a_push(
    client: KimberliteClient, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, other = subscribe(client, stream), subscribe(client, stream, credits=0)
    failures = [Timeout("no memory for the answer")]
    original = module.KimberliteSession._load_records

    def fail_once(self: Any, *rest: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(self, *rest, **more)

    monkeypatch.setattr(module.KimberliteSession, "_load_records", fail_once)
    client.append(stream, b"a")
    assert closed(client) == (number, CloseReason.BACKPRESSURE_TIMEOUT)
    give(client, other, 1, 1)
    receive(client, other, b"a", start=0, credits=1)


def test_a_connection_that_is_lost_in_a_push(
    shared: EmbeddedBroker,
    client: KimberliteClient,
    stream: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was cut off can't be followed by the reason."""

    def lose(self: Any, *rest: Any, **more: Any) -> Any:
        raise ConnectionLost("gone")

    subscribe(client, stream)
    monkeypatch.setattr(module.KimberliteSession, "_load_records", lose)
    with KimberliteClient(shared) as other:
        other.append(stream, b"a")
    assert client.ended()


def test_an_event_that_can_not_be_pushed(
    client: KimberliteClient, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before it come, then the end: it is not left out."""
    large = b"x" * (wire.APPEND_BYTES_MAX + 1)
    client.append(stream, b"a", large, b"b")
    monkeypatch.setattr(wire_record, "EVENT_BYTES_MAX", wire.APPEND_BYTES_MAX)
    number = subscribe(client, stream)
    receive(client, number, b"a", start=0, credits=100)
    assert closed(client) == (number, CloseReason.PROTOCOL_ERROR)
    assert client.length(stream) == 3


def test_the_broker_stops(
    start: StartBroker,
    dial_kimberlite: DialKimberlite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each subscriber is told, and none has to be waited for."""
    monkeypatch.setattr(server, "_LEAVE_TIMEOUT_S", 600.0)
    broker = start(kimberlite=HERE)
    client, other, plain = (dial_kimberlite(broker) for _ in range(3))
    stream = client.create("events")
    numbers = [subscribe(client, stream, credits=n) for n in range(3)]
    single = subscribe(other, stream)
    plain.shake()
    with running(broker.stop) as wait:
        ended = [closed(client) for _ in numbers]
        assert ended == [(number, CloseReason.SERVER_SHUTDOWN) for number in numbers]
        assert closed(other) == (single, CloseReason.SERVER_SHUTDOWN)
        assert client.ended() and other.ended() and plain.ended()
        wait()


# Bounds.


def test_a_thousand_on_one_connection(
    broker: EmbeddedBroker, kimberlite: KimberliteClient
) -> None:
    client, waiting = kimberlite, lend(broker)
    stream = client.create("events")
    asked = [client.submit(wire.Subscribe(stream, 0, 1)) for _ in range(1000)]
    answers = [client.answer(number) for number in asked]
    assert all(isinstance(a, wire.SubscribeResponse) for a in answers[:STANDING_MAX])
    for answer in answers[STANDING_MAX:]:
        assert (answer.code, "is the most" in answer.message) == (2, True)
    assert waiting.taken == STANDING_MAX * WAIT_POSITION_BYTES
    # Ending one makes room for another.
    client.ask(wire.Unsubscribe(answers[0].subscription_id))
    assert subscribe(client, stream, credits=1)
    client.append(stream, b"a")
    while len(client.pushes) < STANDING_MAX:
        client.pushes.append(client.next().body)
    assert events_of(client.pushes) == [b"a"] * STANDING_MAX
    client.stream.close()
    assert eventually(lambda: waiting.taken == 0)


def test_no_memory_for_a_subscription(
    broker: EmbeddedBroker, kimberlite: KimberliteClient
) -> None:
    waiting = lend(broker)
    stream = kimberlite.create("events")
    room = waiting._limit - waiting.taken
    assert waiting.take(room, Deadline.after(0))
    try:
        text = kimberlite.refused(wire.Subscribe(stream, 0, 1), 14)
        assert "try again" in text
    finally:
        waiting.give_back(room)
    assert subscribe(kimberlite, stream)


def test_a_subscriber_that_does_not_read(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    """It keeps neither memory nor other clients waiting, and is disconnected."""
    broker = start(kimberlite=HERE, idle_timeout_s=0.3)
    client, other = dial_kimberlite(broker), dial_kimberlite(broker)
    stream = client.create("events")
    for n in range(5):
        client.append(stream, b"x" * 4_000_000, expected=n)
    client.submit(wire.Subscribe(stream, 0, 2**32 - 1))
    assert other.length(stream) == 5
    assert eventually(lambda: broker.metrics.snapshot().connections == 1)
    assert lend(broker).taken == 0
    assert other.length(stream) == 5


def test_a_client_goes_while_it_is_pushed_to(
    shared: EmbeddedBroker, dial_kimberlite: DialKimberlite, name: str
) -> None:
    client, other = dial_kimberlite(shared), dial_kimberlite(shared)
    stream = client.create(name)
    client.append(stream, *[b"x" * 1000] * 4000)
    client.submit(wire.Subscribe(stream, 0, 2**32 - 1))
    assert client.stream.wait_readable(patience())
    client.stream.close()
    assert other.length(stream) == 4000
    assert other.ask(wire.Sync()) == wire.SyncResponse(True)
