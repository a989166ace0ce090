"""Which answer belongs to which question."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

from lance_spark.client.connection import Connection
from lance_spark.client.dialect import Acked, Refused, SlowDown
from lance_spark.client.inbox import Inbox, Pending
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.dialect import ANSWERS, Keepalive, LwpDialect
from lance_spark.client.outbox import OutgoingBatch
from lance_spark.errors import (
    ConnectionLost,
    InvalidPayload,
    RemoteProtocolError,
    TopicNotFound,
)
from lance_spark.wire.lwp import (
    REQUESTS,
    RESPONSES,
    Checksum,
    ClusterStatus,
    CommitAck,
    ErrorResponse,
    Frame,
    FrameFlags,
    FrameParser,
    GetClusterStatus,
    GetTopic,
    Message,
    TopicInfo,
    Unsubscribe,
    encode_ack,
    encode_backpressure,
    encode_control,
    encode_keepalive,
    encode_message,
)


class FakeConnection:
    """What a pending request asks of its connection, without one."""

    address = "server:1992"
    dialect = LwpDialect(ClientConfig(), Checksum.CRC32C)

    def wait_for(self, pending: Pending, deadline: object) -> None:
        """Everything that will come has come."""

    def fail(self, error: Exception) -> None:
        self.failure = error


def make_inbox() -> Inbox:
    return Inbox(LwpDialect(ClientConfig(), Checksum.CRC32C))


NUMBERS = itertools.count(1)


def ask(inbox: Inbox, request: Message | Keepalive) -> Pending:
    connection = cast(Connection, FakeConnection())
    pending = Pending(connection, request, next(NUMBERS))
    inbox.expect(pending)
    return pending


def result(pending: Pending) -> Message:
    return pending.result(None)


def frames(*encoded: bytes) -> list[Frame]:
    parser = FrameParser()
    parser.receive_data(b"".join(encoded))
    return list(parser.frames())


def answer(message: Message) -> Frame:
    return frames(*encode_message(message))[0]


def error(code: int, text: str = "no", **details: object) -> Frame:
    return answer(ErrorResponse(code, text, details))


def test_answers_come_in_order() -> None:
    inbox = make_inbox()
    first, second = ask(inbox, GetTopic(1)), ask(inbox, GetTopic(2))
    inbox.deliver(answer(TopicInfo(1, "one")))
    assert first.is_done
    assert not second.is_done
    inbox.deliver(answer(TopicInfo(2, "two")))
    assert [result(first), result(second)] == [TopicInfo(1, "one"), TopicInfo(2, "two")]


def test_a_refusal_is_an_answer() -> None:
    inbox = make_inbox()
    first, second = ask(inbox, GetTopic(1)), ask(inbox, GetTopic(2))
    inbox.deliver(error(0x10))
    inbox.deliver(answer(TopicInfo(2, "two")))
    with pytest.raises(TopicNotFound):
        result(first)
    assert result(second) == TopicInfo(2, "two")


def test_an_ack_answers_an_unsubscribe() -> None:
    inbox = make_inbox()
    pending = ask(inbox, Unsubscribe(1, 77))
    inbox.deliver(frames(encode_ack(77))[0])
    assert result(pending) == Unsubscribe(1, 77)


def test_keepalives_do_not_answer_requests() -> None:
    inbox = make_inbox()
    pending, keepalive = (ask(inbox, each) for each in (GetTopic(1), Keepalive()))
    inbox.deliver(frames(encode_keepalive())[0])
    assert keepalive.is_done
    assert not pending.is_done


def test_each_keepalive_has_its_own_answer() -> None:
    inbox = make_inbox()
    older, newer = (ask(inbox, Keepalive()) for _ in range(2))
    (frame,) = frames(encode_keepalive())
    inbox.deliver(frame)
    assert (older.is_done, newer.is_done) == (True, False)
    inbox.deliver(frame)
    inbox.deliver(frame)  # One too many, which is dropped.
    assert newer.is_done


def test_events_of_ingests() -> None:
    inbox = make_inbox()
    inbox._dialect.encode_batch(OutgoingBatch(1, b"x", 1, 1), 7, 1)
    for frame in frames(encode_ack(1), encode_backpressure(), encode_ack(2)):
        inbox.deliver(frame)
    inbox.deliver(error(0x04, "bad", batch_id=3))
    inbox.deliver(error(0x04, "bad", batch_id="3"))
    events = inbox.pushes
    assert events[:3] == [Acked(1), SlowDown(), Acked(2)]
    refusals = [event for event in events[3:] if isinstance(event, Refused)]
    assert [refusal.batch_id for refusal in refusals] == [3, None]
    assert all(type(refusal.error) is InvalidPayload for refusal in refusals)


def test_requests_between_ingests() -> None:
    inbox = make_inbox()
    inbox._dialect.encode_batch(OutgoingBatch(1, b"x", 1, 1), 7, 1)
    pending = ask(inbox, GetTopic(1))
    inbox.deliver(error(0x04, batch_id=3))
    inbox.deliver(frames(encode_ack(4))[0])
    assert not pending.is_done
    inbox.deliver(error(0x10))
    assert pending.is_done
    assert len(inbox.pushes) == 2


def test_without_ingests_a_slow_down_is_dropped() -> None:
    inbox = make_inbox()
    inbox.deliver(frames(encode_backpressure())[0])
    assert not inbox.pushes


@pytest.mark.parametrize(
    "frame",
    [
        answer(CommitAck(1, 2)),
        frames(encode_ack(1))[0],
        Frame(FrameFlags.BATCH_MODE, payload=memoryview(b"data")),
        Frame(FrameFlags(0)),
    ],
    ids=str,
)
def test_nobody_asked(frame: Frame) -> None:
    with pytest.raises(RemoteProtocolError):
        make_inbox().deliver(frame)


def test_the_last_word_of_a_server() -> None:
    with pytest.raises(ConnectionLost, match="gave up: too many"):
        make_inbox().deliver(error(0x32, "too many"))


@pytest.mark.parametrize(
    "frame", [answer(CommitAck(1, 2)), frames(*encode_control(0x1234))[0]], ids=str
)
def test_an_answer_that_does_not_fit(frame: Frame) -> None:
    inbox = make_inbox()
    pending = ask(inbox, GetTopic(1))
    with pytest.raises(RemoteProtocolError, match="came in answer to 'get topic'"):
        inbox.deliver(frame)
    # It still waits: the connection will tell it of the failure.
    assert list(inbox.waiting.values()) == [pending]


def test_an_unsubscribe_is_not_answered_by_a_message_or_a_foreign_ack() -> None:
    inbox = make_inbox()
    ask(inbox, Unsubscribe(1, 77))
    for frame in (answer(CommitAck(77, 0)), frames(encode_ack(78))[0]):
        with pytest.raises(RemoteProtocolError):
            inbox.deliver(frame)


def test_an_answer_with_the_right_command_and_the_wrong_content() -> None:
    inbox = make_inbox()
    pending = ask(inbox, GetTopic(1))
    inbox.deliver(frames(*encode_control(0x80, [b'{"deleted": 1}']))[0])
    with pytest.raises(RemoteProtocolError, match="TopicDeletion came in answer"):
        result(pending)


def test_a_failure_reaches_everybody() -> None:
    inbox = make_inbox()
    pending = [ask(inbox, GetTopic(1)), ask(inbox, GetClusterStatus())]
    inbox.fail(ConnectionLost("gone"))
    for each in pending:
        with pytest.raises(ConnectionLost, match="gone"):
            result(each)
    assert not inbox.waiting


def test_every_request_has_a_row_in_the_table() -> None:
    assert set(ANSWERS) == set(REQUESTS.values())


def test_every_response_answers_something() -> None:
    commands = {kind.COMMAND for kinds in ANSWERS.values() for kind in kinds}
    commands.add(ErrorResponse.COMMAND)
    assert commands == set(RESPONSES)
    assert ClusterStatus.COMMAND in commands
