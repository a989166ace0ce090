"""The producer's thread: windows, resends, refusals, failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import lz4.block
import pytest

from lance_spark.client import delivery as delivery_module
from lance_spark.client.delivery import SHARE_MIN, Delivery, Rate
from lance_spark.client.dialect import Acked, Refused, SlowDown
from lance_spark.client.lwp.writer import ServerRules, WriterOptions
from lance_spark.errors import (
    AccessDenied,
    ConnectionLimit,
    ConnectionLost,
    InvalidPayload,
    LanceError,
    LeaderUnknown,
    NotLeader,
    PayloadTooLarge,
    QuorumNotReached,
    RateLimited,
    RemoteProtocolError,
    StageNotFound,
    Timeout,
    TopicNotFound,
    Undelivered,
    UnknownError,
    Unsupported,
)
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline, Waker
from tests.client.kit_flow import (
    PATIENCE_S,
    QUICK,
    FakeClient,
    FakeConnection,
    Sent,
    ack,
    ignore,
    record,
)

Make = Callable[..., "RuledDelivery"]


class RuledDelivery(Delivery):
    """A delivery as a writer makes it, with its rules at hand."""

    def __init__(self, rules: ServerRules, *args: Any, **settings: Any) -> None:
        self.rules = rules
        super().__init__(
            *args, check=rules.check_connection, prepare=rules.prepare, **settings
        )


@pytest.fixture
def make() -> Iterator[Make]:
    """Make deliveries that are stopped at the end, whatever became of them."""
    made: list[RuledDelivery] = []

    def make_one(client: FakeClient, **settings: Any) -> RuledDelivery:
        options = {"batch_bytes": 100, "linger_s": 0.0, "buffer_bytes": 10_000}
        names = set(WriterOptions.__dataclass_fields__) & set(settings)
        options.update({name: settings.pop(name) for name in names})
        chosen = WriterOptions(**options)  # type: ignore[arg-type]
        any_client: Any = client
        rules = ServerRules(any_client, chosen, settings.pop("check", None))
        made.append(
            RuledDelivery(
                rules,
                any_client,
                "events",
                7,
                options=chosen,
                **settings,
            )
        )
        return made[-1]

    yield make_one
    for delivery in made:
        delivery.stop(abandon=True)
    left = [t.name for t in threading.enumerate() if t.name.startswith("lance-produ")]
    assert left == []


def _add(delivery: Delivery, *values: str) -> None:
    """Add records, each of which becomes a batch of its own."""
    for value in values:
        data = record(value)
        delivery.ledger.add(data, 1, Deadline.after(PATIENCE_S))
        with delivery.ledger.changed:
            delivery.ledger.outbox.seal()


def _flush(delivery: Delivery) -> None:
    delivery.ledger.flush(Deadline.after(PATIENCE_S))


def _ids(connection: FakeConnection) -> list[int]:
    return [sent.batch_id for sent in connection.sent]


# The good case.


def test_delivers_in_order(make: Make) -> None:
    connection = FakeConnection()
    delivery = make(FakeClient(connection))
    _add(delivery, *(f"value {number}" for number in range(50)))
    _flush(delivery)
    assert connection.sent == [
        Sent(number + 1, record(f"value {number}"), 1, 7, False) for number in range(50)
    ]
    assert delivery.ledger.outbox.acked.records == 50


def test_does_not_connect_before_there_is_something_to_send(make: Make) -> None:
    delivery = make(FakeClient(LanceError("never to be asked")))
    _flush(delivery)
    delivery.stop(abandon=False)


def test_linger_gathers_and_then_sends_by_itself(make: Make) -> None:
    connection = FakeConnection()
    delivery = make(FakeClient(connection), linger_s=0.02)
    for value in "abc":
        delivery.ledger.add(record(value), 1, Deadline.after(PATIENCE_S))
    (sent,) = connection.await_sent(1)
    assert sent.data == record("a") + record("b") + record("c")
    assert sent.records == 3


def test_flush_does_not_linger(make: Make) -> None:
    delivery = make(FakeClient(FakeConnection()), linger_s=3600.0)
    delivery.ledger.add(record("a"), 1, Deadline.after(PATIENCE_S))
    _flush(delivery)


def test_lingers_while_something_is_in_flight(make: Make) -> None:
    connection = FakeConnection(ignore)
    delivery = make(FakeClient(connection), linger_s=0.02)
    delivery.ledger.add(record("a"), 1, Deadline.after(PATIENCE_S))
    connection.await_sent(1)
    # The thread waits for the ack and has to be woken for this one.
    delivery.ledger.add(record("b"), 1, Deadline.after(PATIENCE_S))
    connection.await_sent(2)


def test_window(make: Make) -> None:
    connection = FakeConnection(ignore)
    delivery = make(FakeClient(connection), max_in_flight=3)
    _add(delivery, *"abcdefg")
    connection.await_sent(3)
    for number in range(1, 5):
        connection.push(Acked(number))
        connection.await_sent(3 + number)
    connection.push(*(Acked(number) for number in range(5, 8)))
    _flush(delivery)
    assert connection.in_flight_max == 3


def test_acks_out_of_order_are_understood(make: Make) -> None:
    connection = FakeConnection(ignore)
    delivery = make(FakeClient(connection))
    _add(delivery, *"abc")
    connection.await_sent(3)
    connection.push(Acked(3), Acked(1), Acked(99), Acked(2), Acked(2))
    _flush(delivery)
    assert delivery.ledger.outbox.acked.batches == 3


# Slowing down.


def test_slows_down_and_recovers(make: Make) -> None:
    connection = FakeConnection(ignore)
    delivery = make(FakeClient(connection), max_in_flight=4)
    _add(delivery, *"abcdefghijkl")
    connection.await_sent(4)
    connection.push(SlowDown(), Acked(1), Acked(2))
    # Two acks of a window of two: it is four again, with two in flight.
    connection.await_sent(6)
    connection.push(SlowDown(), SlowDown(), *(Acked(n) for n in (3, 4, 5)))
    connection.push(Acked(6))
    for number in range(7, 13):
        connection.await_sent(number)
        connection.push(Acked(number))
    _flush(delivery)
    assert _ids(connection) == [*range(1, 13)]


def test_half_the_window_after_a_slow_down(make: Make) -> None:
    connection = FakeConnection(ignore)
    delivery = make(FakeClient(connection), max_in_flight=4)
    _add(delivery, *"abcdefgh")
    connection.await_sent(4)
    connection.push(SlowDown())
    connection.push(Acked(1))
    # Three are in flight, which is more than two: nothing may follow.
    with pytest.raises(Undelivered):
        delivery.ledger.flush(Deadline.after(0.05))
    assert _ids(connection) == [1, 2, 3, 4]


# Compression.


def test_compresses_what_gets_smaller(make: Make) -> None:
    connection = FakeConnection()
    delivery = make(FakeClient(connection), compression="lz4")
    _add(delivery, "x" * 90, "0123456789abcdef")
    _flush(delivery)
    small, plain = connection.sent
    assert small.compressed
    assert len(small.data) < 95
    assert lz4.block.decompress(small.data, uncompressed_size=95) == record("x" * 90)
    assert plain == Sent(2, record("0123456789abcdef"), 1, 7, False)
    # Uncompressed, which is what the commit of a stage names.
    assert delivery.ledger.outbox.acked.bytes == 95 + 21


def test_a_resend_is_compressed_once(make: Make) -> None:
    first, second = FakeConnection(ignore), FakeConnection()
    delivery = make(FakeClient(first, second), compression="lz4")
    _add(delivery, "x" * 90)
    first.await_sent(1)
    first.fail()
    _flush(delivery)
    assert second.sent == first.sent


def test_every_connection_is_checked(make: Make) -> None:
    first, second = FakeConnection(ignore), FakeConnection(capabilities=())
    seen: list[Any] = []

    def check(connection: Any) -> None:
        seen.append(connection)
        if not connection.capabilities:
            raise LanceError("of another kind")

    delivery = make(FakeClient(first, second), check=check)
    _add(delivery, "a")
    first.await_sent(1)
    assert seen == [first]
    first.fail()
    with pytest.raises(Undelivered, match="of another kind"):
        _flush(delivery)
    assert seen == [first, second]
    assert second.sent == []


def test_a_plain_server_after_a_reconnect_gets_nothing_compressed(make: Make) -> None:
    first, second = FakeConnection(ignore), FakeConnection(capabilities=())
    delivery = make(FakeClient(first, second), compression="lz4")
    _add(delivery, "x" * 90)
    first.await_sent(1)
    first.fail()
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert isinstance(caught.value.cause, Unsupported)
    assert second.sent == []


@pytest.mark.parametrize("allowed", [True, False])
def test_a_plain_server_after_a_reconnect_gets_no_null_record(
    make: Make, allowed: bool
) -> None:
    """They were taken while another kind of server was there."""
    first, second = FakeConnection(ignore), FakeConnection(capabilities=())
    client = FakeClient(first, second)
    delivery = make(client, max_in_flight=2, allow_null_records=allowed)
    _add(delivery, "a")
    first.await_sent(1)
    assert delivery.rules.find_null_fault() is None
    null = bytes((0xFF, 0, 0, 0, 0))
    delivery.ledger.add(null, 1, Deadline.after(PATIENCE_S), has_nulls=True)
    first.await_sent(2)
    first.fail()
    if allowed:
        _flush(delivery)
        assert second.sent == first.sent
        return
    with pytest.raises(Undelivered, match="is a plain server: no value, no key"):
        _flush(delivery)
    assert null not in [sent.data for sent in second.sent]
    assert delivery.rules.find_null_fault() is not None


# A lost connection.


def test_resends_what_has_no_answer_in_order_and_with_its_ids(make: Make) -> None:
    first, second = FakeConnection(ignore), FakeConnection()
    delivery = make(FakeClient(first, second), max_in_flight=4)
    _add(delivery, *"abcdef")
    first.await_sent(4)
    first.push(Acked(2))
    first.await_sent(5)
    first.fail()
    _flush(delivery)
    assert _ids(second) == [1, 3, 4, 5, 6]
    by_id = {sent.batch_id: sent for sent in first.sent}
    assert all(sent == by_id[sent.batch_id] for sent in second.sent[:-1])
    assert delivery.ledger.outbox.acked.records == 6
    assert delivery.ledger.outbox.retried.batches == 4


def test_survives_many_losses(make: Make) -> None:
    def ack_and_fail(connection: FakeConnection, sent: Sent) -> None:
        connection.push(Acked(sent.batch_id))
        connection.fail()

    connections = [FakeConnection(ack_and_fail) for _ in range(5)]
    delivery = make(FakeClient(*connections, FakeConnection()), max_in_flight=1)
    _add(delivery, *"abcdefg")
    _flush(delivery)
    # Answers that came before the end count: nothing was sent twice.
    assert [_ids(connection) for connection in connections] == [[1], [2], [3], [4], [5]]


def test_a_loss_while_idle_is_met_by_the_next_batch(make: Make) -> None:
    first, second = FakeConnection(), FakeConnection()
    delivery = make(FakeClient(first, second))
    _add(delivery, "a")
    _flush(delivery)
    first.fail()
    _add(delivery, "b")
    _flush(delivery)
    assert (_ids(first), _ids(second)) == ([1], [2])


def test_a_connection_that_can_not_be_made_is_tried_again(make: Make) -> None:
    connection = FakeConnection()
    failures = (ConnectionLost("no"), Timeout("no"), ConnectionLimit("full"))
    delivery = make(FakeClient(*failures, connection))
    _add(delivery, "a")
    _flush(delivery)
    assert _ids(connection) == [1]
    # It was sent once, however often there was no server.
    assert delivery.ledger.outbox.retried.batches == 0


def test_last_words_of_a_server_count(make: Make) -> None:
    def refuse_and_close(connection: FakeConnection, sent: Sent) -> None:
        connection.push(Refused(PayloadTooLarge("too much"), sent.batch_id))
        connection.fail()
        # The frame itself could not be sent to its end.
        raise ConnectionLost("broken pipe")

    first, second = FakeConnection(refuse_and_close), FakeConnection()
    delivery = make(FakeClient(first, second))
    _add(delivery, "a", "b")
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert caught.value.batches == (1,)
    assert isinstance(caught.value.cause, PayloadTooLarge)
    _flush(delivery)
    assert _ids(second) == [2]


def test_a_server_that_does_not_answer_costs_the_connection(make: Make) -> None:
    first, second = FakeConnection(ignore), FakeConnection()
    config = replace(QUICK, request_timeout_s=0.05)
    delivery = make(FakeClient(first, second, config=config))
    _add(delivery, "a")
    _flush(delivery)
    assert not first.is_open
    assert (_ids(first), _ids(second)) == ([1], [1])


def test_garbled_answers_cost_the_connection(make: Make) -> None:
    def garble(connection: FakeConnection, sent: Sent) -> None:
        connection.fail(RemoteProtocolError("header CRC mismatch"))

    first, second = FakeConnection(garble), FakeConnection()
    delivery = make(FakeClient(first, second))
    _add(delivery, "a")
    _flush(delivery)
    assert (_ids(first), _ids(second)) == ([1], [1])


def test_gives_up_when_nothing_is_acknowledged_for_too_long(make: Make) -> None:
    def fail(connection: FakeConnection, sent: Sent) -> None:
        connection.fail(ConnectionLost("cut again"))

    connections = [FakeConnection(fail) for _ in range(2000)]
    config = replace(QUICK, retry_timeout_s=0.1)
    delivery = make(FakeClient(*connections, config=config))
    _add(delivery, "a", "bb")
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    error = caught.value
    assert (error.batches, error.records, error.size) == ((1, 2), 2, 13)
    assert isinstance(error.cause, ConnectionLost)
    assert "cut again" in str(error)
    with pytest.raises(Undelivered):
        _add(delivery, "c")
    tried = [connection for connection in connections if connection.sent]
    assert len(tried) > 1


def test_progress_starts_the_time_again(make: Make) -> None:
    # Each batch fails for a good part of the time that all of them have together.
    clock = _Clock()

    def fail_slowly(connection: FakeConnection, sent: Sent) -> None:
        clock.now_s += 0.6
        connection.fail()

    connections = [
        connection
        for _ in range(5)
        for connection in (FakeConnection(fail_slowly), FakeConnection(_ack_and_end))
    ]
    config = replace(QUICK, retry_timeout_s=1.0)
    client = FakeClient(*connections, config=config)
    delivery = make(client, max_in_flight=1, clock=clock)
    for value in "abcde":
        _add(delivery, value)
        _flush(delivery)
    assert clock.now_s > 3


class _Clock:
    """Moves when told, and a little by itself so that waits end."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 0.0001
        return self.now_s


def _ack_and_end(connection: FakeConnection, sent: Sent) -> None:
    connection.push(Acked(sent.batch_id))
    connection.fail()


@pytest.mark.parametrize(
    "error",
    [
        AccessDenied("not you"),
        RemoteProtocolError("garbage"),
        Unsupported("this", "that", "server"),
    ],
)
def test_what_will_not_pass_is_final(make: Make, error: LanceError) -> None:
    delivery = make(FakeClient(error))
    _add(delivery, "a")
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert caught.value.cause is error


def test_a_bug_is_told_and_not_waited_for(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(connection: FakeConnection, sent: Sent) -> None:
        raise ZeroDivisionError("a bug")

    delivery = make(FakeClient(FakeConnection(stumble)))
    _add(delivery, "a")
    with pytest.raises(Undelivered, match="a bug"):
        _flush(delivery)
    assert "the producer failed" in caplog.text


# Refusals.


def _refuse_one(batch_id: int, error: LanceError) -> Callable[..., None]:
    def answer(connection: FakeConnection, sent: Sent) -> None:
        if sent.batch_id == batch_id:
            connection.push(Refused(error, batch_id))  # type: ignore[arg-type]
        else:
            ack(connection, sent)

    return answer


def test_a_refused_batch_is_dropped_and_named_and_the_others_go_on(make: Make) -> None:
    why = InvalidPayload("no records")
    connection = FakeConnection(_refuse_one(2, why))
    delivery = make(FakeClient(connection))
    _add(delivery, "a", "bb", "c")
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    error = caught.value
    assert (error.batches, error.records, error.size) == ((2,), 1, 7)
    assert error.cause is why
    _flush(delivery)
    assert delivery.ledger.outbox.acked.records == 2
    assert delivery.ledger.outbox.refused.records == 1


def test_a_refusal_for_now_is_tried_again_on_a_new_connection(make: Make) -> None:
    error = QuorumNotReached("not enough nodes")
    first, second = FakeConnection(_refuse_one(2, error)), FakeConnection()
    delivery = make(FakeClient(first, second), max_in_flight=2)
    _add(delivery, *"abc")
    _flush(delivery)
    assert _ids(second)[0] == 2
    assert not first.is_open


def test_a_server_says_when_to_come_back(make: Make) -> None:
    error = RateLimited("too fast", details={"retry_after_ms": 10})
    first, second = FakeConnection(_refuse_one(1, error)), FakeConnection()
    # The back-off would be longer than this test may take.
    config = replace(QUICK, backoff_base_s=1000.0, backoff_max_s=1000.0)
    delivery = make(FakeClient(first, second, config=config))
    _add(delivery, "a")
    _flush(delivery)
    assert _ids(second) == [1]


@pytest.mark.parametrize("details", [{}, {"retry_after_ms": "soon"}])
def test_a_server_that_does_not_say_when(make: Make, details: dict[str, Any]) -> None:
    error = RateLimited("too fast", details=details)
    first, second = FakeConnection(_refuse_one(1, error)), FakeConnection()
    delivery = make(FakeClient(first, second))
    _add(delivery, "a")
    _flush(delivery)
    assert _ids(second) == [1]


def test_follows_a_redirect(make: Make) -> None:
    error = NotLeader("go", details={"leader_addr": "leader:1992"})
    first, second = FakeConnection(_refuse_one(2, error)), FakeConnection()
    client = FakeClient(first, second)
    delivery = make(client, max_in_flight=1)
    _add(delivery, *"abc")
    _flush(delivery)
    assert (_ids(first), _ids(second)) == ([1, 2], [2, 3])
    assert client.leaders == [Address("leader", 1992)]


def test_a_redirect_to_nobody_is_tried_again(make: Make) -> None:
    error = NotLeader("go", details={"leader_addr": "nonsense"})
    first, second = FakeConnection(_refuse_one(1, error)), FakeConnection()
    delivery = make(FakeClient(first, second))
    _add(delivery, "a")
    _flush(delivery)
    assert _ids(second) == [1]


@pytest.mark.parametrize("error", [LeaderUnknown("who"), NotLeader("not me")])
def test_a_server_that_knows_no_leader_is_left(make: Make, error: LanceError) -> None:
    first, second = FakeConnection(_refuse_one(1, error)), FakeConnection()
    client = FakeClient(first, second)
    delivery = make(client)
    _add(delivery, "a")
    _flush(delivery)
    assert _ids(second) == [1]
    assert client.avoided == [first.address]


class _OneByOne(FakeConnection):
    """Its events come one at a time."""

    def receive(self, deadline: Deadline, waker: Waker | None = None) -> list[Any]:
        events = super().receive(deadline, waker)
        with self._changed:
            self._events[:0] = events[1:]
        return events[:1]


def test_batches_behind_a_refused_one_are_heard_of_before_it_is_sent_again(
    make: Make,
) -> None:
    first, second = _OneByOne(ignore), FakeConnection()
    delivery = make(FakeClient(first, second), max_in_flight=4)
    _add(delivery, *"abcd")
    first.await_sent(4)
    error = QuorumNotReached("not enough nodes")
    first.push(Refused(error, 2), Acked(1), Refused(error, 3), Acked(4))
    _flush(delivery)
    assert _ids(second) == [2, 3]


def test_refusals_behind_one_that_may_pass_do_not_end_a_stage(make: Make) -> None:
    first, second = _OneByOne(ignore), FakeConnection()
    delivery = make(FakeClient(first, second), max_in_flight=3, strict=True)
    _add(delivery, *"abc")
    first.await_sent(3)
    first.push(Acked(1), Refused(QuorumNotReached("not now"), 2))
    first.push(Refused(InvalidPayload("batch 2 is missing"), 3))
    _flush(delivery)
    assert _ids(second) == [2, 3]


def test_batches_that_are_not_heard_of_are_sent_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "_LAST_WORDS_S", 0.01)
    first, second = FakeConnection(ignore), FakeConnection()
    delivery = make(FakeClient(first, second), max_in_flight=3)
    _add(delivery, *"abc")
    first.await_sent(3)
    first.push(Refused(QuorumNotReached("not now"), 1), Acked(3))
    _flush(delivery)
    assert _ids(second) == [1, 2]


def test_a_refusal_of_the_only_batch_in_flight_is_its_own(make: Make) -> None:
    def refuse(connection: FakeConnection, sent: Sent) -> None:
        connection.push(Refused(UnknownError("something"), None))

    delivery = make(FakeClient(FakeConnection(refuse)))
    _add(delivery, "a")
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert caught.value.batches == (1,)


def test_a_refusal_without_a_name_is_asked_for_again_one_by_one(make: Make) -> None:
    # A plain server says that it did not like something, and not what.
    first = FakeConnection(ignore)

    def answer(connection: FakeConnection, sent: Sent) -> None:
        if sent.batch_id == 2:
            connection.push(Refused(UnknownError("bad"), None))
        else:
            ack(connection, sent)

    second = FakeConnection(answer)
    delivery = make(FakeClient(first, second), max_in_flight=4)
    _add(delivery, *"abc")
    first.await_sent(3)
    first.push(Refused(UnknownError("bad"), None))
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert caught.value.batches == (2,)
    assert _ids(second) == [1, 2, 3]
    assert delivery.ledger.outbox.acked.records == 2
    # From then on several are in flight again.
    second.answer = ignore
    _add(delivery, *"defg")
    second.await_sent(7)


def test_a_refusal_of_a_stage_is_the_end_of_it(make: Make) -> None:
    why = StageNotFound("gone")
    delivery = make(FakeClient(FakeConnection(_refuse_one(1, why))), strict=True)
    _add(delivery, "a", "b")
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert caught.value.cause is why
    with pytest.raises(Undelivered):
        _add(delivery, "c")


# A topic that is gone.


def test_a_topic_that_was_created_anew_is_found_again(make: Make) -> None:
    def answer(connection: FakeConnection, sent: Sent) -> None:
        if sent.topic_id == 7:
            connection.push(Refused(TopicNotFound("Topic 7 not found"), sent.batch_id))
        else:
            ack(connection, sent)

    connections = [FakeConnection(answer) for _ in range(3)]
    delivery = make(FakeClient(*connections), resolve=lambda: 8)
    _add(delivery, "a", "b")
    _flush(delivery)
    assert delivery.ledger.outbox.acked.records == 2
    assert {sent.topic_id for sent in connections[1].sent} == {8}


def test_a_topic_that_stays_away(make: Make) -> None:
    def refuse(connection: FakeConnection, sent: Sent) -> None:
        connection.push(Refused(TopicNotFound("Topic 7 not found"), sent.batch_id))

    looked: list[int] = []

    def resolve() -> int:
        looked.append(1)
        raise TopicNotFound("no topic is named 'events'")

    connections = [FakeConnection(refuse) for _ in range(9)]
    delivery = make(FakeClient(*connections), resolve=resolve, max_in_flight=1)
    _add(delivery, "a", "b")
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert isinstance(caught.value.cause, TopicNotFound)
    assert looked


def test_a_topic_that_is_gone_on_a_plain_server(make: Make) -> None:
    first = FakeConnection(ignore)

    def refuse(connection: FakeConnection, sent: Sent) -> None:
        connection.push(Refused(TopicNotFound("Unknown topic"), None))

    delivery = make(FakeClient(first, FakeConnection(refuse)))
    _add(delivery, "a", "b")
    first.await_sent(2)
    first.push(Refused(TopicNotFound("Unknown topic"), None))
    with pytest.raises(Undelivered) as caught:
        _flush(delivery)
    assert caught.value.batches[0] == 1


def test_a_topic_that_is_a_number_is_not_looked_for(make: Make) -> None:
    def refuse(connection: FakeConnection, sent: Sent) -> None:
        connection.push(Refused(TopicNotFound("Topic 7 not found"), sent.batch_id))

    connection = FakeConnection(refuse)
    delivery = make(FakeClient(connection))
    _add(delivery, "a")
    with pytest.raises(Undelivered):
        _flush(delivery)
    assert connection.is_open


# The end.


def test_stop_delivers_what_is_left(make: Make) -> None:
    connection = FakeConnection()
    client = FakeClient(connection)
    delivery = make(client, linger_s=0.05)
    delivery.ledger.add(record("a"), 1, Deadline.after(PATIENCE_S))
    delivery.stop(abandon=False)
    assert _ids(connection) == [1]
    assert client.is_closed


def test_abandon_ends_every_wait(make: Make) -> None:
    connection = FakeConnection(ignore)
    delivery = make(FakeClient(connection))
    _add(delivery, "a")
    connection.await_sent(1)
    errors: list[Exception] = []

    def flush() -> None:
        try:
            _flush(delivery)
        except LanceError as error:
            errors.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    delivery.stop(abandon=True)
    flushing.join(PATIENCE_S)
    assert [type(error) for error in errors] == [Undelivered]


def test_abandon_does_not_wait_for_a_back_off(make: Make) -> None:
    config = replace(QUICK, backoff_base_s=15.0, backoff_max_s=15.0)
    lost = threading.Event()

    class Client(FakeClient):
        def connection(self) -> FakeConnection:
            lost.set()
            raise ConnectionLost("no")

    delivery = make(Client(config=config))
    _add(delivery, "a")
    assert lost.wait(PATIENCE_S)
    delivery.stop(abandon=True)


def test_a_thread_that_does_not_end_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, released = threading.Event(), threading.Event()

    class Client(FakeClient):
        def connection(self) -> FakeConnection:
            asked.set()
            assert released.wait(PATIENCE_S)
            return super().connection()

    delivery = make(Client())
    _add(delivery, "a")
    assert asked.wait(PATIENCE_S)
    monkeypatch.setattr(delivery_module, "_JOIN_S", 0.01)
    delivery.stop(abandon=True)
    assert "does not end" in caplog.text
    released.set()
    monkeypatch.undo()


# How a producer slows down and recovers.


def test_starts_at_full_speed() -> None:
    rate = Rate(8)
    assert (rate.window, rate.pause_s, rate.is_full) == (8, 0.0, True)


def test_halves_and_recovers() -> None:
    rate = Rate(8)
    windows = []
    for _ in range(3):
        rate.slow_down()
        windows.append(rate.window)
    assert windows == [4, 2, 1]
    assert not rate.is_full
    # A window of acks doubles the window: 1 + 2 + 4 of them, and not one less.
    recovering = []
    for _ in range(7):
        rate.acked(0.01)
        recovering.append(rate.window)
    assert recovering == [2, 2, 4, 4, 4, 4, 8]
    assert rate.is_full


def test_a_window_that_is_not_a_power_of_two() -> None:
    rate = Rate(5)
    rate.slow_down()
    assert rate.window == 2
    for _ in range(2):
        rate.acked(0.01)
    assert (rate.window, rate.is_full) == (5, True)


def test_another_slow_down_starts_the_count_again() -> None:
    rate = Rate(4)
    rate.slow_down()
    rate.acked(0.01)
    rate.slow_down()
    assert rate.window == 1
    rate.acked(0.01)
    assert rate.window == 2


def test_pauses_below_one_batch() -> None:
    rate = Rate(1)
    rate.acked(0.08)
    rate.slow_down()
    # Half a batch per round trip: a batch, and a round trip of nothing.
    assert (rate.window, rate.pause_s) == (1, 0.08)
    rate.slow_down()
    assert rate.pause_s == 0.24
    rate.acked(0.08)
    assert rate.pause_s == 0.08
    rate.acked(0.08)
    assert rate.pause_s == 0.0


def test_never_stops() -> None:
    rate = Rate(8)
    rate.acked(0.01)
    for _ in range(1000):
        rate.slow_down()
    assert rate.window == 1
    assert rate.pause_s == 0.01 * (1 / SHARE_MIN - 1)


def test_round_trip_is_smoothed() -> None:
    rate = Rate(1)
    rate.acked(0.08)
    rate.acked(0.16)
    rate.slow_down()
    assert rate.pause_s == 0.09
