"""One connection: order, threads, deadlines, and every way in which it can end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lance_spark.client import connection as module
from lance_spark.client.config import Runtime
from lance_spark.client.connection import Attempt, Connection
from lance_spark.client.dialect import Acked, Refused, SlowDown
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.dialect import LwpDialect
from lance_spark.client.outbox import OutgoingBatch
from lance_spark.errors import (
    ConnectionLost,
    LanceError,
    LocalProtocolError,
    PayloadOverLimit,
    RemoteProtocolError,
    Timeout,
    TopicNotFound,
)
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline, Waker
from lance_spark.net.stream import Stream
from lance_spark.wire.lwp import (
    Checksum,
    CommitAck,
    CreateTopic,
    Fetch,
    FetchResponse,
    GetTopic,
    TopicInfo,
    encode_keepalive,
    encode_message,
)
from tests.client.scripted import FakeTime, Network, Peer, error_of, soon
from tests.streams import make_pair

ADDRESS = Address("server", 1992)


class Ends:
    """Both ends of a connection in memory."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        stream, server = make_pair()
        self.stream = stream
        self.peer = Peer(server, Checksum.CRC32C)
        self.connection = Connection(
            stream,
            address=ADDRESS,
            dialect=LwpDialect(ClientConfig(), Checksum.CRC32C),
            config=ClientConfig(),
            runtime=Runtime(clock=clock or FakeTime().clock),
        )

    def close(self) -> None:
        self.connection.close()
        self.peer.stream.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


@pytest.fixture
def connection(ends: Ends) -> Connection:
    return ends.connection


@pytest.fixture
def peer(ends: Ends) -> Peer:
    return ends.peer


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


KEEPALIVE = LwpDialect.keepalive


def keep_alive(connection: Connection) -> None:
    connection.submit(KEEPALIVE, deadline=soon()).is_given_up = True


def now() -> Deadline:
    return Deadline.after(0.0)


def wait_for_followers(connection: Connection, count: int) -> None:
    """Wait until a leader reads and so many other threads wait for it."""
    condition = connection._changed

    def is_there() -> bool:
        return connection._has_reader and len(condition._waiters) >= count

    deadline = soon()
    while True:
        with condition:
            if is_there():
                return
        assert not deadline.expired
        threading.Event().wait(0.001)


# Requests.


def test_pipelined_requests_are_answered_in_order(
    connection: Connection, peer: Peer
) -> None:
    pending = [connection.submit(GetTopic(n), deadline=soon()) for n in range(100)]
    for number in range(100):
        assert peer.request() == GetTopic(number)
        peer.answer(TopicInfo(number, f"topic-{number}"))
    # The last is asked for first: its waiter reads for all.
    answers = [each.result(soon()) for each in reversed(pending)]
    assert answers == [TopicInfo(n, f"topic-{n}") for n in reversed(range(100))]


def test_a_result_can_be_asked_for_again(connection: Connection, peer: Peer) -> None:
    pending = connection.submit(GetTopic(1), deadline=soon())
    with pytest.raises(Timeout, match="server:1992: no answer in time to 'get topic'"):
        pending.result(now())
    peer.answer(TopicInfo(1, "late"))
    assert pending.result(soon()) == TopicInfo(1, "late")
    assert pending.result(soon()) == TopicInfo(1, "late")


def test_a_late_answer_is_not_taken_for_the_next(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    slow = connection.submit(GetTopic(1), deadline=soon())
    other = connection.submit(GetTopic(2), deadline=soon())
    with pytest.raises(Timeout):
        slow.conclude(now())
    peer.answer(TopicInfo(1, "one"), TopicInfo(2, "two"))
    assert other.result(soon()) == TopicInfo(2, "two")


def test_answers_in_pieces_of_one_byte(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    pending = connection.submit(GetTopic(1), deadline=soon())
    waiting = pool.submit(pending.result, soon())
    for byte in b"".join(encode_message(TopicInfo(1, "x"))):
        peer.send(bytes([byte]))
    assert waiting.result(60) == TopicInfo(1, "x")


def test_a_large_answer(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    data = bytes(range(256)) * 16384
    request = connection.submit(Fetch(1, 0, len(data)), deadline=soon())
    sending = pool.submit(peer.answer, FetchResponse(len(data), 1, data))
    answer = request.result(soon())
    sending.result(60)
    assert isinstance(answer, FetchResponse)
    assert answer.data == data


def test_a_request_that_does_not_fit_costs_nothing(
    connection: Connection, peer: Peer
) -> None:
    with pytest.raises(LocalProtocolError):
        connection.submit(GetTopic(2**32), deadline=soon())
    peer_answers(peer, connection)


def peer_answers(peer: Peer, connection: Connection) -> None:
    pending = connection.submit(GetTopic(7), deadline=soon())
    peer.request(GetTopic)
    peer.answer(TopicInfo(7, "seven"))
    assert pending.result(soon()) == TopicInfo(7, "seven")


def test_errors_in_json_and_text(connection: Connection, peer: Peer) -> None:
    first = connection.submit(GetTopic(1), deadline=soon())
    second = connection.submit(GetTopic(2), deadline=soon())
    peer.refuse(0x10, "Topic 1 not found", hint="x")
    peer.refuse_with_text("Topic 2 not found")
    errors = [error_of(lambda p=p: p.result(soon())) for p in (first, second)]
    assert [type(error) for error in errors] == [TopicNotFound, TopicNotFound]
    assert [str(error) for error in errors] == [
        "Topic 1 not found (0x10 TopicNotFound)",
        "Topic 2 not found (0x10 TopicNotFound)",
    ]
    assert connection.is_open


# Leader and followers.


def test_many_threads_at_once(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    def ask(number: int) -> bool:
        message = GetTopic(number)
        return connection.request(message, deadline=soon()) == TopicInfo(number, "t")

    def serve() -> None:
        for _ in range(200):
            request = peer.request()
            assert isinstance(request, GetTopic)
            peer.answer(TopicInfo(request.topic_id, "t"))

    serving = pool.submit(serve)
    assert all(pool.map(ask, range(200)))
    serving.result(60)


def test_the_leader_reads_for_its_followers(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    first, second = (connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2))
    # The leader waits for the second answer and gets the first for another thread.
    leading = pool.submit(second.result, soon())
    wait_for_followers(connection, 0)
    following = pool.submit(first.result, soon())
    wait_for_followers(connection, 1)
    peer.answer(TopicInfo(1, "one"))
    assert following.result(60) == TopicInfo(1, "one")
    assert not leading.done()
    peer.answer(TopicInfo(2, "two"))
    assert leading.result(60) == TopicInfo(2, "two")


def test_a_follower_takes_over_when_the_leader_has_its_answer(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    first, second = (connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2))
    leading = pool.submit(first.result, soon())
    wait_for_followers(connection, 0)
    following = pool.submit(second.result, soon())
    wait_for_followers(connection, 1)
    peer.answer(TopicInfo(1, "one"))
    assert leading.result(60) == TopicInfo(1, "one")
    wait_for_followers(connection, 0)
    peer.answer(TopicInfo(2, "two"))
    assert following.result(60) == TopicInfo(2, "two")


def test_a_follower_takes_over_when_the_leader_has_no_time_left(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    first, second = (connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2))
    frame = b"".join(encode_message(TopicInfo(1, "one")))
    peer.send(frame[:20])
    leading = pool.submit(first.result, Deadline.after(0.2))
    wait_for_followers(connection, 0)
    following = pool.submit(second.result, soon())
    with pytest.raises(Timeout):
        leading.result(60)
    # What the first leader had read of the frame is not lost.
    peer.send(frame[20:])
    peer.answer(TopicInfo(2, "two"))
    assert following.result(60) == TopicInfo(2, "two")
    assert first.result(now()) == TopicInfo(1, "one")


def test_a_follower_has_a_deadline_of_its_own(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    first, second = (connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2))
    leading = pool.submit(first.result, soon())
    wait_for_followers(connection, 0)
    with pytest.raises(Timeout):
        second.result(Deadline.after(0.01))
    with pytest.raises(Timeout):
        second.result(now())
    peer.answer(TopicInfo(1, "one"))
    assert leading.result(60) == TopicInfo(1, "one")


def test_a_wait_without_end_fits_a_lock(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    forever = Deadline.after(1e15)
    first, second = (connection.submit(GetTopic(n), deadline=forever) for n in (1, 2))
    leading = pool.submit(first.result, forever)
    wait_for_followers(connection, 0)
    following = pool.submit(second.result, forever)
    wait_for_followers(connection, 1)
    peer.answer(TopicInfo(1, "one"), TopicInfo(2, "two"))
    assert (leading.result(60), following.result(60)) == (
        TopicInfo(1, "one"),
        TopicInfo(2, "two"),
    )


# The end.


def test_the_server_goes(connection: Connection, peer: Peer) -> None:
    pending = [connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2)]
    assert peer.request(GetTopic) and peer.request(GetTopic)
    peer.stream.close()
    for each in pending:
        with pytest.raises(ConnectionLost, match=r"the server closed the connection$"):
            each.result(soon())
    assert not connection.is_open
    with pytest.raises(ConnectionLost):
        connection.submit(GetTopic(3), deadline=soon())
    with pytest.raises(ConnectionLost):
        connection.request(KEEPALIVE, deadline=soon())


def test_the_server_goes_inside_a_frame(connection: Connection, peer: Peer) -> None:
    pending = connection.submit(GetTopic(1), deadline=soon())
    peer.request(GetTopic)
    peer.send(b"".join(encode_message(TopicInfo(1, "one")))[:-1])
    peer.stream.close()
    with pytest.raises(ConnectionLost, match="in the middle of a frame"):
        pending.result(soon())


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n\r\n",
        b"".join(encode_message(TopicInfo(1, "x"), checksum=Checksum.CRC32)),
        b"".join(encode_message(CommitAck(1, 2))),
        b"".join(encode_message(TopicInfo(1, "x")))[:-1] + b"!",
    ],
    ids=["http", "checksum", "other answer", "payload"],
)
def test_garbage(connection: Connection, peer: Peer, garbage: bytes) -> None:
    pending = [connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2)]
    peer.send(garbage)
    for each in pending:
        with pytest.raises(RemoteProtocolError):
            each.result(soon())
    assert not connection.is_open


def test_an_answer_that_makes_no_sense_ends_the_connection(
    connection: Connection, peer: Peer
) -> None:
    first, second = (connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2))
    peer.answer(FetchLike())
    with pytest.raises(RemoteProtocolError, match="not JSON"):
        first.result(soon())
    assert not connection.is_open
    with pytest.raises(RemoteProtocolError, match="not JSON"):
        second.result(soon())


class FetchLike(TopicInfo):
    """A topic response that is not JSON."""

    def __init__(self) -> None:
        pass

    def encode_payload(self) -> list[bytes]:
        return [b"{nonsense"]


def test_an_answer_over_the_limit(connection: Connection, peer: Peer) -> None:
    pending = connection.submit(Fetch(1, 0, 1), deadline=soon())
    limit = ClientConfig().response_bytes_max
    header = bytearray(encode_message(FetchResponse(0, 0))[0])
    header[32:36] = (limit + 1).to_bytes(4, "little")
    peer.send(bytes(header))
    with pytest.raises(PayloadOverLimit):
        pending.result(soon())


def test_an_error_that_nobody_asked_for_is_the_end(
    connection: Connection, peer: Peer
) -> None:
    peer.refuse(0x62, "idle for 30 s")
    connection.drain()
    assert not connection.is_open
    with pytest.raises(ConnectionLost, match="idle for 30 s"):
        connection.submit(GetTopic(1), deadline=soon())


def test_abort_wakes_everybody(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    pending = [connection.submit(GetTopic(n), deadline=soon()) for n in range(4)]
    waiting = [pool.submit(each.result, soon()) for each in pending]
    wait_for_followers(connection, 3)
    connection.abort()
    for each in waiting:
        with pytest.raises(ConnectionLost, match="closed here"):
            each.result(60)


def test_the_last_user_closes_the_stream(pool: ThreadPoolExecutor) -> None:
    class Slow(FakeStream):
        """A stream whose reader needs a while to notice an abort."""

        def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
            entered.set()
            assert leave.wait(20)
            assert not self.is_closed
            raise ConnectionLost("aborted")

    entered, leave, stream = threading.Event(), threading.Event(), Slow()
    connection = make_connection(stream)
    waiting = pool.submit(connection.receive, soon())
    assert entered.wait(20)
    connection.close()
    assert stream.is_aborted
    assert not stream.is_closed
    leave.set()
    with pytest.raises(ConnectionLost):
        waiting.result(60)
    assert stream.is_closed
    connection.close()


def test_close_is_idempotent(ends: Ends) -> None:
    ends.connection.close()
    ends.connection.close()
    assert not ends.connection.is_open


class FakeStream(Stream):
    """A stream that takes everything and gives nothing."""

    peer = "fake"

    def __init__(self) -> None:
        self.is_aborted = False
        self.is_closed = False
        self.sent: list[bytes] = []

    def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
        raise Timeout("nothing")

    def send(self, buffers: object, deadline: Deadline) -> None:
        self.sent.append(b"".join(buffers))

    def wait_readable(self, deadline: Deadline, waker: Waker | None = None) -> bool:
        return False

    def shutdown_write(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True


def make_connection(
    stream: Stream, clock: Callable[[], float] | None = None
) -> Connection:
    return Connection(
        stream,
        address=ADDRESS,
        dialect=LwpDialect(ClientConfig(), Checksum.CRC32C),
        config=ClientConfig(),
        runtime=Runtime(clock=clock or FakeTime().clock),
    )


@pytest.mark.parametrize("kind", [Timeout, KeyboardInterrupt])
def test_a_frame_that_is_cut_off_ends_the_connection(kind: type[BaseException]) -> None:
    class Stuck(FakeStream):
        def send(self, buffers: object, deadline: Deadline) -> None:
            raise kind("stuck")

    connection = make_connection(Stuck())
    with pytest.raises(kind):
        connection.submit(GetTopic(1), deadline=soon())
    with pytest.raises(ConnectionLost, match="a frame was cut off"):
        connection.submit(GetTopic(2), deadline=soon())


def test_a_read_that_is_interrupted_ends_the_connection() -> None:
    class Interrupted(FakeStream):
        def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
            raise KeyboardInterrupt

    connection = make_connection(Interrupted())
    pending = connection.submit(GetTopic(1), deadline=soon())
    with pytest.raises(KeyboardInterrupt):
        pending.result(soon())
    with pytest.raises(ConnectionLost, match="interrupted"):
        pending.result(soon())


def test_nothing_is_sent_too_late() -> None:
    stream = FakeStream()
    connection = make_connection(stream)
    with pytest.raises(Timeout, match="too late"):
        connection.submit(GetTopic(1), deadline=now())
    assert stream.sent == []
    assert connection.is_open
    connection.submit(GetTopic(2), deadline=soon())
    assert len(stream.sent) == 1


def test_a_sender_waits_for_another_until_its_deadline(
    pool: ThreadPoolExecutor,
) -> None:
    class Slow(FakeStream):
        def send(self, buffers: object, deadline: Deadline) -> None:
            entered.set()
            assert leave.wait(20)

    entered, leave = threading.Event(), threading.Event()
    connection = make_connection(Slow())
    sending: Future[None] = pool.submit(keep_alive, connection)
    assert entered.wait(20)
    try:
        with pytest.raises(Timeout, match="others were sending"):
            connection.submit(GetTopic(1), deadline=Deadline.after(0.01))
    finally:
        leave.set()
    sending.result(60)
    assert connection.is_open


# A server's last words.


def test_a_refusal_is_heard_after_sending_has_failed(ends: Ends) -> None:
    ends.peer.refuse(0x32, "too many connections")
    ends.peer.stream.close()
    pending = ends.connection.submit(GetTopic(1), deadline=soon())
    with pytest.raises(LanceError, match="too many connections"):
        pending.result(soon())
    assert not ends.connection.is_open


def test_without_last_words_the_failure_of_the_send_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(FakeStream):
        def send(self, buffers: object, deadline: Deadline) -> None:
            raise ConnectionLost("broken pipe")

    monkeypatch.setattr(module, "LAST_WORDS_S", 0.0)
    connection = make_connection(Broken())
    pending = connection.submit(GetTopic(1), deadline=soon())
    assert not connection.is_open
    with pytest.raises(ConnectionLost, match="broken pipe"):
        pending.result(soon())


def test_acks_are_heard_after_an_ingest_has_failed(ends: Ends) -> None:
    ingest(ends.connection, 1)
    ends.peer.ingest()
    ends.peer.ack(1)
    ends.peer.refuse(0x03, "too large", batch_id=2)
    ends.peer.stream.close()
    with pytest.raises(ConnectionLost):
        ingest(ends.connection, 2)
    events = ends.connection.receive(soon())
    assert events[0] == Acked(1)
    assert isinstance(events[1], Refused)
    with pytest.raises(ConnectionLost):
        ends.connection.receive(soon())


def test_a_silent_end_of_an_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(FakeStream):
        def send(self, buffers: object, deadline: Deadline) -> None:
            raise ConnectionLost("broken pipe")

    monkeypatch.setattr(module, "LAST_WORDS_S", 0.0)
    connection = make_connection(Broken())
    with pytest.raises(ConnectionLost, match="broken pipe"):
        ingest(connection, 1)
    with pytest.raises(ConnectionLost, match="broken pipe"):
        connection.receive(soon())


def test_nothing_more_is_sent_after_a_send_has_failed() -> None:
    class Broken(FakeStream):
        def send(self, buffers: object, deadline: Deadline) -> None:
            raise ConnectionLost("broken pipe")

    connection = make_connection(Broken())
    connection.submit(GetTopic(1), deadline=soon())
    with pytest.raises(ConnectionLost, match="broken pipe"):
        connection.submit(GetTopic(2), deadline=soon())


# Losing patience.


def test_a_connection_that_nobody_waits_on_is_given_up(ends: Ends) -> None:
    pending = ends.connection.submit(GetTopic(1), deadline=soon())
    with pytest.raises(Timeout):
        pending.conclude(now())
    assert not ends.connection.is_open
    with pytest.raises(ConnectionLost, match="did not answer in time"):
        ends.connection.submit(GetTopic(2), deadline=soon())


def test_others_keep_a_connection_that_is_only_slow() -> None:
    time = FakeTime()
    ends = Ends(clock=time.clock)
    hasty, patient = (
        ends.connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2)
    )
    time.now_s += 29.0
    with pytest.raises(Timeout):
        hasty.conclude(now())
    assert ends.connection.is_open
    ends.peer.answer(TopicInfo(1, "one"), TopicInfo(2, "two"))
    assert patient.result(soon()) == TopicInfo(2, "two")
    hasty.give_up()
    patient.give_up()
    assert ends.connection.is_open
    ends.close()


def test_there_is_nothing_to_give_up(connection: Connection) -> None:
    connection.give_up()
    assert connection.is_open


def test_nobody_keeps_a_connection_that_is_stuck() -> None:
    time = FakeTime()
    ends = Ends(clock=time.clock)
    hasty, patient = (
        ends.connection.submit(GetTopic(n), deadline=soon()) for n in (1, 2)
    )
    time.now_s += 30.0
    with pytest.raises(Timeout):
        hasty.conclude(now())
    with pytest.raises(ConnectionLost, match="did not answer in time"):
        patient.result(soon())
    ends.close()


def test_a_server_that_still_talks_is_not_stuck() -> None:
    time = FakeTime()
    ends = Ends(clock=time.clock)
    pending = [ends.connection.submit(GetTopic(n), deadline=soon()) for n in range(3)]
    time.now_s += 29.0
    ends.peer.answer(TopicInfo(0, "zero"))
    pending[0].result(soon())
    time.now_s += 29.0
    with pytest.raises(Timeout):
        pending[1].conclude(now())
    assert ends.connection.is_open
    ends.close()


# Keepalives.


def test_ping(connection: Connection, peer: Peer, pool: ThreadPoolExecutor) -> None:
    pinging = pool.submit(connection.request, KEEPALIVE, deadline=soon())
    assert str(peer.frame()) == "keepalive"
    peer.keepalive()
    assert pinging.result(60) is KEEPALIVE


def test_ping_takes_its_own_answer(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    keep_alive(connection)
    peer.keepalive()
    peer.keepalive()  # Unasked for, or too late to be of use.
    connection.drain()
    pinging = pool.submit(connection.request, KEEPALIVE, deadline=soon())
    peer.frame()
    peer.frame()
    wait_for_followers(connection, 0)
    assert not pinging.done()
    peer.keepalive()
    pinging.result(60)


def test_ping_does_not_take_a_stale_answer(connection: Connection, peer: Peer) -> None:
    keep_alive(connection)
    peer.keepalive()
    with pytest.raises(Timeout, match="keepalive"):
        connection.request(KEEPALIVE, deadline=Deadline.after(0.05))


def test_keepalives_are_never_answered(connection: Connection, peer: Peer) -> None:
    for _ in range(3):
        peer.keepalive()
    connection.drain()
    peer_answers(peer, connection)  # It reads what came: the request alone.


def test_keepalives_between_request_and_answer(
    connection: Connection, peer: Peer
) -> None:
    pending = connection.submit(GetTopic(1), deadline=soon())
    keep_alive(connection)
    peer.keepalive()
    peer.slow_down()
    peer.answer(TopicInfo(1, "one"))
    assert pending.result(soon()) == TopicInfo(1, "one")


def test_idle_time() -> None:
    time = FakeTime()
    connection = make_connection(FakeStream(), time.clock)
    time.now_s += 3.0
    assert connection.idle_s() == 3.0
    keep_alive(connection)
    assert connection.idle_s() == 0.0


# Ingests.


def ingest(connection: Connection, batch_id: int) -> None:
    batch = OutgoingBatch(batch_id, b"\x01\x01\x00\x00\x00x", 1, 6)
    connection.send_batch(batch, 5, deadline=soon())


def test_an_ingest_and_its_ack(connection: Connection, peer: Peer) -> None:
    ingest(connection, 41)
    frame = peer.ingest()
    assert (frame.batch_id, frame.record_count, frame.topic_id) == (41, 1, 5)
    assert frame.timestamp_ns > 0
    assert bytes(frame.payload) == b"\x01\x01\x00\x00\x00x"
    assert not frame.flags & 1
    peer.ack(41)
    assert connection.receive(soon()) == [Acked(41)]


def test_a_compressed_ingest(connection: Connection, peer: Peer) -> None:
    batch = OutgoingBatch(1, b"lz4", 1, 3, compressed=True)
    connection.send_batch(batch, 1, deadline=soon())
    assert peer.ingest().flags & 1


def test_all_that_came_is_received_at_once(connection: Connection, peer: Peer) -> None:
    for batch_id in (1, 2, 3):
        ingest(connection, batch_id)
    peer.ack(1)
    peer.slow_down()
    peer.refuse(0x04, "bad", batch_id=2)
    peer.ack(3)
    events = connection.receive(soon())
    assert events[:2] == [Acked(1), SlowDown()]
    assert events[3] == Acked(3)
    assert connection.receive(now()) == []


def test_a_look_takes_what_is_there(connection: Connection, peer: Peer) -> None:
    ingest(connection, 1)
    assert connection.receive(now()) == []
    peer.ack(1)
    assert connection.receive(now()) == [Acked(1)]


def test_what_others_read_is_received(connection: Connection, peer: Peer) -> None:
    ingest(connection, 1)
    peer.ack(1)
    connection.drain()
    assert connection.receive(now()) == [Acked(1)]


def test_a_waker_ends_the_wait(
    connection: Connection, pool: ThreadPoolExecutor
) -> None:
    waker = Waker()
    waiting = pool.submit(connection.receive, soon(), waker)
    wait_for_followers(connection, 0)
    waker.set()
    assert waiting.result(60) == []
    waker.close()


def test_received_with_a_waker(connection: Connection, peer: Peer) -> None:
    waker = Waker()
    ingest(connection, 1)
    peer.ack(1)
    assert connection.receive(soon(), waker) == [Acked(1)]
    waker.close()


def test_receive_after_the_end(connection: Connection, peer: Peer) -> None:
    ingest(connection, 1)
    peer.ack(1)
    peer.stream.close()
    assert connection.receive(soon()) == [Acked(1)]
    with pytest.raises(ConnectionLost):
        connection.receive(soon())


def test_an_ingest_that_does_not_fit_costs_nothing(
    connection: Connection, peer: Peer
) -> None:
    with pytest.raises(LocalProtocolError):
        ingest(connection, 0)
    ingest(connection, 1)
    assert peer.ingest().batch_id == 1


# Draining.


def test_drain_notices_the_end(connection: Connection, peer: Peer) -> None:
    connection.drain()
    assert connection.is_open
    peer.stream.close()
    connection.drain()
    assert not connection.is_open
    connection.drain()


def test_drain_keeps_answers(connection: Connection, peer: Peer) -> None:
    pending = connection.submit(GetTopic(1), deadline=soon())
    peer.answer(TopicInfo(1, "one"))
    connection.drain()
    assert pending.is_done
    assert pending.result(now()) == TopicInfo(1, "one")


def test_drain_leaves_a_reader_alone(
    connection: Connection, peer: Peer, pool: ThreadPoolExecutor
) -> None:
    pending = connection.submit(GetTopic(1), deadline=soon())
    waiting = pool.submit(pending.result, soon())
    wait_for_followers(connection, 0)
    connection.drain()
    peer.answer(TopicInfo(1, "one"))
    assert waiting.result(60) == TopicInfo(1, "one")


def test_drain_ends_however_much_comes() -> None:
    class Flood(FakeStream):
        """A stream of keepalives without end."""

        def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
            frame = encode_keepalive()
            buffer[: len(frame)] = frame
            return len(frame)

    connection = make_connection(Flood())
    connection.drain()
    assert connection.is_open


# Setting up is in test_greeting.


def test_open_over_a_network(network: Network) -> None:
    network.serve(lambda peer: (peer.greet("locate"), peer.wait_for_end())[0])
    connection = Connection.open(
        ClientConfig(),
        ADDRESS,
        LwpDialect(ClientConfig(), Checksum.CRC32C),
        deadline=soon(),
        runtime=Runtime(connect=network.connect),
    )
    assert connection.capabilities == {"locate"}
    assert connection.dialect.status.is_leader
    assert connection.address == ADDRESS
    connection.close()


def test_create_topic_is_encoded_once(connection: Connection, peer: Peer) -> None:
    connection.submit(CreateTopic("näme"), deadline=soon())
    assert peer.request() == CreateTopic("näme")


# Ending a connection that is being set up.


class Fake:
    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


def test_cancel_ends_what_is_under_way_and_what_would_follow() -> None:
    attempt, connection = Attempt(), Fake()
    attempt.enter()
    attempt.enter(connection)
    assert not attempt.cancelled.is_set()
    attempt.cancel()
    assert connection.aborted == 1
    assert attempt.cancelled.is_set()
    for call in (attempt.enter, lambda: attempt.enter(Fake())):
        with pytest.raises(ConnectionLost, match="given up"):
            call()


def test_what_was_set_up_is_not_kept() -> None:
    attempt, connection = Attempt(), Fake()
    attempt.enter(connection)
    del connection
    attempt.cancel()
