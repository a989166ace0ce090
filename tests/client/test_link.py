"""Calls that get through: reconnecting, redirects, retries, deadlines, closing."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lance_spark.client.config import Runtime
from lance_spark.client.connection import Attempt
from lance_spark.client.link import Dialer, Repeater, _repeat
from lance_spark.client.lwp.client import PING_WINDOW_S, PINGS_MAX, LanceClient
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.dialect import make_candidates
from lance_spark.errors import (
    AuthenticationFailed,
    AuthenticationRequired,
    ConnectionLimit,
    ConnectionLost,
    InternalError,
    LanceError,
    LocalProtocolError,
    NotLeader,
    OperationTimeout,
    OptionError,
    RateLimited,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.wire.lwp import (
    Authenticate,
    AuthenticateResponse,
    Checksum,
    ClusterStatus,
    CreateTopic,
    GetClusterStatus,
    GetTopic,
    Message,
    TopicInfo,
)
from tests.client.scripted import (
    PATIENCE_S,
    SERVER,
    FakeTime,
    Network,
    Peer,
    Script,
    error_of,
    serving,
    soon,
)

ANSWER = TopicInfo(1, "events")
TABLE = {GetTopic: ANSWER, CreateTopic: ANSWER}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def closing_after(kind: type = GetTopic) -> Script:
    """Make a server that takes a request and closes without an answer."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.request(kind)

    return script


def refusing(code: int, text: str = "no", times: int = 1, **details: object) -> Script:
    """Make a server that refuses so many requests, then serves."""

    def script(peer: Peer) -> None:
        peer.greet()
        for _ in range(times):
            peer.request()
            peer.refuse(code, text, **details)
        peer.serve(TABLE)

    return script


def redirecting(leader: str) -> Script:
    return refusing(0x20, "not leader", leader_addr=leader)


def ask(
    client: LanceClient, *, retry: bool = True, timeout_s: float | None = None
) -> Message:
    return client.call(GetTopic(1), retry=retry, timeout_s=timeout_s)


# The connection.


def test_nothing_is_dialed_before_the_first_call(network: Network) -> None:
    network.client()
    assert network.dialed == []


def test_one_connection_serves_all_calls(network: Network) -> None:
    network.serve(serving(TABLE))
    client = network.client()
    assert [ask(client) for _ in range(3)] == [ANSWER] * 3
    assert network.dialed == [SERVER]


def test_many_threads_share_one_connection(
    network: Network, pool: ThreadPoolExecutor
) -> None:
    network.serve(serving({GetTopic: lambda r: TopicInfo(r.topic_id, "t")}))
    client = network.client()

    def work(number: int) -> bool:
        return client.call(GetTopic(number)) == TopicInfo(number, "t")

    assert all(pool.map(work, range(100)))
    assert network.dialed == [SERVER]


def test_connect_fails_early(network: Network, fake_time: FakeTime) -> None:
    client = network.client("a:1,b:2", runtime=fake_time.runtime(network))
    with pytest.raises(ConnectionLost, match=r"a:1: .*; b:2: "):
        client.connect()
    assert network.dialed == ["a:1", "b:2"]
    assert fake_time.pauses == []


def test_a_connection_is_waited_for(network: Network, fake_time: FakeTime) -> None:
    network.at("a:1", lambda peer: None, serving(TABLE))
    client = network.client("a:1", runtime=fake_time.runtime(network))
    assert str(client.connection().address) == "a:1"
    assert fake_time.pauses == [0.2]


def test_a_connection_that_the_server_closed_is_replaced_before_use(
    network: Network,
) -> None:
    network.serve(lambda peer: peer.greet(), serving(TABLE))
    client = network.client().connect()
    for thread in network._threads:
        thread.join(PATIENCE_S)
    # Not even a request that must not be sent twice is lost this way.
    assert ask(client, retry=False) == ANSWER
    assert len(network.dialed) == 2


def test_disconnect(network: Network) -> None:
    network.serve(serving(TABLE), serving(TABLE))
    client = network.client()
    client.disconnect()
    first = client.connection()
    client.disconnect()
    assert not first.is_open
    assert ask(client) == ANSWER
    assert len(network.dialed) == 2


def test_several_servers_with_the_first_ones_dead(network: Network) -> None:
    network.at("c:3", serving(TABLE))
    client = network.client("a:1,b:2,c:3")
    assert ask(client) == ANSWER
    assert network.dialed == ["a:1", "b:2", "c:3"]


# Retries.


def test_a_lost_answer_is_asked_for_again(
    network: Network, fake_time: FakeTime
) -> None:
    network.serve(closing_after(), closing_after(), serving(TABLE))
    client = network.client(runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    assert fake_time.pauses == [0.2, 0.4]


def test_a_lost_answer_is_not_asked_for_again_without_retry(
    network: Network, fake_time: FakeTime
) -> None:
    network.serve(closing_after(CreateTopic), serving(TABLE))
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(ConnectionLost):
        client.call(CreateTopic("x"), retry=False)
    assert network.dialed == [SERVER]
    assert fake_time.pauses == []
    # The next call is another matter.
    assert ask(client) == ANSWER


def test_connecting_is_retried_even_without_retry(
    network: Network, fake_time: FakeTime
) -> None:
    def pause(event: threading.Event, seconds: float) -> bool:
        if len(fake_time.pauses) == 2:
            network.serve(serving(TABLE))
        return fake_time.pause(event, seconds)

    runtime = Runtime(network.connect, fake_time.clock, pause, lambda: 0.0)
    client = network.client(runtime=runtime)
    assert ask(client, retry=False) == ANSWER
    assert fake_time.pauses == [0.2, 0.4, 0.8]


def test_the_total_deadline(network: Network, fake_time: FakeTime) -> None:
    client = network.client(runtime=fake_time.runtime(network), retry_timeout_s=5.0)
    error = error_of(lambda: ask(client))
    assert type(error) is ConnectionLost
    assert str(error) == (
        "could not connect to server:1992: refused (gave up after 5 tries)"
    )
    assert fake_time.pauses == pytest.approx([0.2, 0.4, 0.8, 1.6])


def test_a_deadline_of_the_call(network: Network, fake_time: FakeTime) -> None:
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(ConnectionLost):
        ask(client, timeout_s=1.0)
    assert fake_time.pauses == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("code", [0x21, 0x23, 0x31, 0x62])
def test_what_may_pass_is_tried_again(
    network: Network, fake_time: FakeTime, code: int
) -> None:
    network.serve(refusing(code, times=2))
    client = network.client(runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    assert fake_time.pauses == [0.2, 0.4]


def test_what_may_pass_is_raised_without_retry(network: Network) -> None:
    network.serve(refusing(0x62))
    with pytest.raises(OperationTimeout):
        ask(network.client(), retry=False)


def test_what_will_not_pass_is_raised(network: Network, fake_time: FakeTime) -> None:
    network.serve(refusing(0x60, "broken"))
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(InternalError, match="broken"):
        ask(client)
    assert ask(client) == ANSWER
    assert network.dialed == [SERVER]
    assert fake_time.pauses == []


def test_a_rate_limit_is_honoured(network: Network, fake_time: FakeTime) -> None:
    network.serve(refusing(0x30, times=2, retry_after_ms=700))
    client = network.client(runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    assert fake_time.pauses == [0.7, 0.7]


def test_a_rate_limit_beyond_the_deadline(
    network: Network, fake_time: FakeTime
) -> None:
    network.serve(refusing(0x30, retry_after_ms=700_000))
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(RateLimited):
        ask(client)
    assert fake_time.pauses == []


def full(peer: Peer) -> None:
    peer.request()
    peer.refuse(0x32, "full")
    peer.wait_for_end()


def test_a_full_server_is_tried_again(network: Network, fake_time: FakeTime) -> None:
    network.serve(full, full, serving(TABLE))
    client = network.client(runtime=fake_time.runtime(network))
    assert ask(client, retry=False) == ANSWER
    assert fake_time.pauses == [0.2, 0.4]


def test_a_server_that_stays_full(network: Network, fake_time: FakeTime) -> None:
    network.serve(*[full] * 9)
    client = network.client(runtime=fake_time.runtime(network), retry_timeout_s=1.0)
    with pytest.raises(ConnectionLimit, match="full"):
        ask(client)
    assert fake_time.pauses == [0.2, 0.4]


def test_a_limit_that_is_told_to_a_request_is_final(
    network: Network, fake_time: FakeTime
) -> None:
    network.serve(refusing(0x32, "full"))
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(ConnectionLimit):
        ask(client)
    assert fake_time.pauses == []


def test_retries_are_logged(
    network: Network, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    network.serve(refusing(0x23, "still starting"))
    client = network.client(runtime=fake_time.runtime(network))
    with caplog.at_level(logging.WARNING):
        ask(client)
    assert "still starting" in caplog.text
    assert "trying again in 0.2 s" in caplog.text


def test_a_wrong_token_is_not_retried(network: Network, fake_time: FakeTime) -> None:
    def script(peer: Peer) -> None:
        peer.request(Authenticate)
        peer.answer(AuthenticateResponse(False, "unknown token"))
        peer.wait_for_end()

    network.serve(script)
    runtime = fake_time.runtime(network)
    client = network.client(runtime=runtime, auth_token="very secret")
    with pytest.raises(AuthenticationFailed, match="unknown token"):
        ask(client)
    assert network.dialed == [SERVER]
    assert fake_time.pauses == []


def test_our_own_mistakes_cost_nothing(network: Network) -> None:
    network.serve(serving(TABLE))
    client = network.client()
    with pytest.raises(LocalProtocolError):
        client.call(GetTopic(-1))
    assert ask(client) == ANSWER
    assert network.dialed == [SERVER]


# Garbage.


def test_garbage_drops_the_connection(network: Network, fake_time: FakeTime) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request()
        peer.send(b"\xff" * 64)
        peer.wait_for_end()

    network.serve(script, serving(TABLE))
    client = network.client(runtime=fake_time.runtime(network))
    with pytest.raises(RemoteProtocolError, match="bad magic"):
        ask(client)
    assert ask(client) == ANSWER
    assert len(network.dialed) == 2
    assert fake_time.pauses == []


# Redirects.


def test_redirects_are_followed_at_once(network: Network, fake_time: FakeTime) -> None:
    network.at("a:1", redirecting("b:2"))
    network.at("b:2", redirecting("c:3"))
    network.at("c:3", serving(TABLE), serving(TABLE))
    client = network.client("a:1", runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    assert network.dialed == ["a:1", "b:2", "c:3"]
    assert fake_time.pauses == []
    # The leader is remembered.
    client.disconnect()
    assert ask(client) == ANSWER
    assert network.dialed[3:] == ["c:3"]


def test_a_redirect_in_the_words_of_the_field(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request()
        peer.refuse_with_text("NOT_LEADER: redirect to b:2")
        peer.wait_for_end()

    network.at("a:1", script)
    network.at("b:2", serving(TABLE))
    assert ask(network.client("a:1")) == ANSWER


def test_redirects_are_followed_without_retry(network: Network) -> None:
    network.at("a:1", redirecting("b:2"))
    network.at("b:2", serving(TABLE))
    assert ask(network.client("a:1"), retry=False) == ANSWER


def test_a_circle_of_redirects_is_walked_slowly(
    network: Network, fake_time: FakeTime
) -> None:
    network.at("a:1", redirecting("b:2"), redirecting("b:2"))
    network.at("b:2", redirecting("a:1"), serving(TABLE))
    client = network.client("a:1,b:2", runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    # b did not know, so that a is asked again, which sends us to b once more.
    assert network.dialed == ["a:1", "b:2", "a:1", "b:2"]
    assert fake_time.pauses == [0.2]


def test_a_circle_of_redirects_has_an_end(
    network: Network, fake_time: FakeTime
) -> None:
    network.at("a:1", *[redirecting("b:2")] * 9)
    network.at("b:2", *[redirecting("a:1")] * 9)
    runtime = fake_time.runtime(network)
    client = network.client("a:1,b:2", runtime=runtime, retry_timeout_s=2.0)
    with pytest.raises(NotLeader):
        ask(client)
    assert fake_time.pauses == pytest.approx([0.2, 0.4, 0.8])


def test_a_leader_that_is_gone(network: Network, fake_time: FakeTime) -> None:
    network.at("a:1", redirecting("x:9"), serving(TABLE))
    client = network.client("a:1", runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    assert network.dialed == ["a:1", "x:9", "a:1"]


def test_the_only_server_does_not_know_the_leader(
    network: Network, fake_time: FakeTime
) -> None:
    network.serve(refusing(0x22), refusing(0x22), serving(TABLE))
    client = network.client(runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    assert fake_time.pauses == [0.2, 0.4]


def test_an_unknown_leader_is_looked_for_elsewhere(
    network: Network, fake_time: FakeTime
) -> None:
    network.at("a:1", refusing(0x22, "leader unknown"))
    network.at("b:2", serving(TABLE))
    client = network.client("a:1,b:2", runtime=fake_time.runtime(network))
    assert ask(client) == ANSWER
    assert network.dialed == ["a:1", "b:2"]
    assert fake_time.pauses == [0.2]


# Timeouts.


def test_a_server_that_does_not_answer(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.wait_for_end()

    network.serve(script, serving(TABLE))
    client = network.client(request_timeout_s=0.05, backoff_base_s=0.001)
    # The stuck connection is dropped and the next one is asked.
    assert ask(client) == ANSWER
    assert len(network.dialed) == 2


def test_a_timeout_without_retry(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.wait_for_end()

    network.serve(script, serving(TABLE))
    client = network.client(request_timeout_s=0.05)
    with pytest.raises(Timeout, match="no answer in time to 'get topic'"):
        ask(client, retry=False)
    assert ask(client) == ANSWER
    assert len(network.dialed) == 2


def test_a_hasty_call_leaves_the_connection_to_others(
    network: Network, pool: ThreadPoolExecutor
) -> None:
    go, asked = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        peer.request()
        asked.set()
        assert go.wait(PATIENCE_S)
        peer.answer(ANSWER)
        peer.request()
        peer.answer(TopicInfo(2, "dropped"))
        peer.serve(TABLE)

    network.serve(script)
    client = network.client()
    patient = pool.submit(ask, client)
    assert asked.wait(PATIENCE_S)
    with pytest.raises(Timeout):
        ask(client, timeout_s=0.05)
    go.set()
    assert patient.result(60) == ANSWER
    assert ask(client) == ANSWER
    assert network.dialed == [SERVER]


def test_a_ping_without_an_answer_drops_the_connection(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.wait_for_end()

    network.serve(script, serving(TABLE))
    client = network.client(request_timeout_s=0.05, backoff_base_s=0.001)
    assert client.ping() >= 0.0
    assert len(network.dialed) == 2


def test_pings_that_are_held_back_do_not_cost_the_connection(
    network: Network, fake_time: FakeTime
) -> None:
    network.serve(serving(TABLE), serving(TABLE))
    runtime = fake_time.runtime(network)
    client = network.client(runtime=runtime, request_timeout_s=PING_WINDOW_S / 2)
    for _ in range(PINGS_MAX):
        client.ping()
    assert fake_time.pauses == []
    client.ping()
    assert sum(fake_time.pauses) >= PING_WINDOW_S / 2
    assert network.dialed == [SERVER]


def test_closing_ends_the_wait_to_ping(
    network: Network, pool: ThreadPoolExecutor
) -> None:
    network.serve(serving(TABLE))
    client = network.client().connect()
    client._pings_s.extend([time.monotonic()] * PINGS_MAX)
    pinging = pool.submit(client.ping)
    threading.Event().wait(0.01)
    client.close()
    with pytest.raises(LanceError, match="is closed"):
        pinging.result(60)


def test_too_many_pings(network: Network) -> None:
    client = network.client(retry_timeout_s=0.5)
    client._pings_s.extend([time.monotonic()] * PINGS_MAX)
    with pytest.raises(Timeout, match="too many pings"):
        client.ping()


def test_pings_that_can_not_be_sent(network: Network, fake_time: FakeTime) -> None:
    runtime = fake_time.runtime(network)
    client = network.client(runtime=runtime, retry_timeout_s=0.5)
    with pytest.raises(ConnectionLost):
        client.ping()
    assert fake_time.pauses == [0.2]


def test_only_one_thread_dials(network: Network, pool: ThreadPoolExecutor) -> None:
    entered, leave = threading.Event(), threading.Event()

    def connect(*args: Any, **options: Any) -> Stream:
        entered.set()
        assert leave.wait(PATIENCE_S)
        return network.connect(*args, **options)

    network.serve(serving(TABLE))
    client = network.client(runtime=Runtime(connect=connect))
    first = pool.submit(ask, client)
    assert entered.wait(PATIENCE_S)
    with pytest.raises(Timeout, match="no connection to server:1992 in time"):
        ask(client, timeout_s=0.05)
    others = [pool.submit(ask, client) for _ in range(3)]
    leave.set()
    assert [each.result(60) for each in (first, *others)] == [ANSWER] * 4
    assert network.dialed == [SERVER]


# Closing.


def test_use_after_close(network: Network) -> None:
    network.serve(serving(TABLE))
    client = network.client().connect()
    client.close()
    client.close()
    assert client.is_closed
    for call in (lambda: ask(client), client.connect, client.connection, client.ping):
        with pytest.raises(LanceError, match="client of server:1992 is closed"):
            call()
    assert network.dialed == [SERVER]


def test_close_ends_calls_under_way(network: Network, pool: ThreadPoolExecutor) -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        peer.request()
        asked.set()
        peer.wait_for_end()

    network.serve(script)
    client = network.client()
    waiting = pool.submit(ask, client)
    assert asked.wait(PATIENCE_S)
    client.close()
    with pytest.raises(LanceError, match="is closed") as caught:
        waiting.result(PATIENCE_S)
    assert type(caught.value) is LanceError
    assert isinstance(caught.value.__cause__, ConnectionLost)


def test_close_ends_a_connection_that_is_being_set_up(
    network: Network, pool: ThreadPoolExecutor
) -> None:
    asked = threading.Event()

    def silent(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.wait_for_end()

    network.at("a:1", silent)
    network.at("b:2", silent)
    client = network.client("a:1,b:2", connect_timeout_s=3 * PATIENCE_S)
    waiting = pool.submit(ask, client)
    assert asked.wait(PATIENCE_S)
    client.close()
    with pytest.raises(LanceError, match="is closed"):
        waiting.result(PATIENCE_S)
    assert network.dialed == ["a:1"]


def test_close_ends_a_pause(network: Network, pool: ThreadPoolExecutor) -> None:
    pausing = threading.Event()

    def pause(event: threading.Event, seconds: float) -> bool:
        pausing.set()
        return event.wait(PATIENCE_S)

    runtime = Runtime(connect=network.connect, pause=pause)
    client = network.client(runtime=runtime)
    waiting = pool.submit(ask, client)
    assert pausing.wait(PATIENCE_S)
    client.close()
    with pytest.raises(LanceError, match="is closed"):
        waiting.result(PATIENCE_S)


def test_a_connection_that_comes_after_close_is_closed(
    network: Network, pool: ThreadPoolExecutor
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def connect(*args: Any, **options: Any) -> Stream:
        entered.set()
        assert leave.wait(PATIENCE_S)
        return network.connect(*args, **options)

    network.serve(serving(TABLE))
    client = network.client(runtime=Runtime(connect=connect))
    waiting = pool.submit(client.connect)
    assert entered.wait(PATIENCE_S)
    client.close()
    leave.set()
    with pytest.raises(LanceError, match="is closed"):
        waiting.result(PATIENCE_S)
    # The server notices, or the network's end would tell of a script that hangs.
    deadline = soon()
    while any(thread.is_alive() for thread in network._threads):
        assert not deadline.expired
        threading.Event().wait(0.001)


# Which server is tried, with which checksum, and what is told when none answers.


def make_dialer(
    network: Network, servers: str = "a:1,b:2,c:3", **options: Any
) -> Dialer:
    config = ClientConfig(servers=servers, **options)
    runtime = Runtime(connect=network.connect)
    return Dialer(config, runtime, make_candidates(config))


def dialer_refusing(code: int, text: str = "no") -> Script:
    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.refuse(code, text)
        peer.wait_for_end()

    return script


def garbling(peer: Peer) -> None:
    peer.send(b"\x15" * 100)
    peer.wait_for_end()


def order(dialer: Dialer) -> str:
    return "".join(address.host for address in dialer.plan())


def test_servers_are_tried_in_order(network: Network) -> None:
    network.at("c:3", serving())
    connection = make_dialer(network).dial(soon())
    assert network.dialed == ["a:1", "b:2", "c:3"]
    assert str(connection.address) == "c:3"
    connection.close()


def test_the_first_that_answers_is_taken(network: Network) -> None:
    network.at("a:1", serving())
    make_dialer(network).dial(soon()).close()
    assert network.dialed == ["a:1"]


def test_none_answers(network: Network) -> None:
    error = error_of(lambda: make_dialer(network, "a:1,b:2").dial(soon()))
    assert type(error) is ConnectionLost
    assert str(error) == (
        "no server can be reached: a:1: could not connect to a:1: refused; "
        "b:2: could not connect to b:2: refused"
    )


def test_the_only_one_does_not_answer(network: Network) -> None:
    error = error_of(lambda: make_dialer(network, "a:1").dial(soon()))
    assert str(error) == "could not connect to a:1: refused"


def test_one_that_refuses_is_passed_over(network: Network) -> None:
    network.at("a:1", dialer_refusing(0x32))
    network.at("b:2", garbling)
    network.at("c:3", serving())
    make_dialer(network).dial(soon()).close()
    assert len(network.dialed) == 3


def test_all_refuse(network: Network) -> None:
    network.at("a:1", garbling)
    network.at("b:2", dialer_refusing(0x32, "full"))
    with pytest.raises(ConnectionLimit, match="full"):
        make_dialer(network, "a:1,b:2").dial(soon())


def test_a_full_server_is_what_may_pass(network: Network) -> None:
    network.at("a:1", dialer_refusing(0x32, "full"))
    network.at("b:2", garbling)
    with pytest.raises(ConnectionLimit, match="full"):
        make_dialer(network, "a:1,b:2").dial(soon())


def test_one_that_may_come_back_makes_it_worth_a_retry(network: Network) -> None:
    network.at("b:2", garbling)
    error = error_of(lambda: make_dialer(network, "a:1,b:2").dial(soon()))
    assert error.retriable
    assert "refused" in str(error)
    assert "bad magic" in str(error)


def test_wrong_settings_are_wrong_everywhere(network: Network) -> None:
    network.at("a:1", dialer_refusing(0x40))
    with pytest.raises(AuthenticationRequired):
        make_dialer(network).dial(soon())
    assert network.dialed == ["a:1"]


def test_a_bad_certificate_is_no_matter_of_servers(network: Network) -> None:
    dialer = make_dialer(network, tls=True, tls_ca="/nowhere/ca.pem")
    with pytest.raises(OptionError, match=r"ca\.pem"):
        dialer.dial(soon())
    assert network.dialed == []


def test_no_more_servers_after_the_deadline(network: Network) -> None:
    network.at("a:1", Peer.wait_for_end)
    with pytest.raises(Timeout):
        make_dialer(network).dial(Deadline.after(0.05))
    assert network.dialed == ["a:1"]


def test_a_server_that_hangs_leaves_time_for_the_next(network: Network) -> None:
    network.at("a:1", Peer.wait_for_end)
    network.at("b:2", serving())
    dialer = make_dialer(network, "a:1,b:2", connect_timeout_s=0.2)
    dialer.dial(soon()).close()
    assert network.dialed == ["a:1", "b:2"]


# Leaders.


def test_the_leader_is_first() -> None:
    dialer = make_dialer(Network())
    assert order(dialer) == "abc"
    dialer.prefer(Address("b", 2))
    assert order(dialer) == "bac"
    dialer.prefer(Address("x", 9))
    assert order(dialer) == "xabc"


def test_a_leader_that_is_gone_is_forgotten(network: Network) -> None:
    network.at("a:1", serving())
    dialer = make_dialer(network)
    dialer.prefer(Address("x", 9))
    dialer.dial(soon()).close()
    assert network.dialed == ["x:9", "a:1"]
    assert order(dialer) == "abc"


def test_a_server_that_knows_no_leader_comes_last(network: Network) -> None:
    dialer = make_dialer(network)
    dialer.avoid(Address("a", 1))
    assert order(dialer) == "bca"
    dialer.avoid(Address("c", 3))
    assert order(dialer) == "abc"
    dialer.prefer(Address("b", 2))
    dialer.avoid(Address("b", 2))
    assert order(dialer) == "cab"
    dialer.avoid(Address("x", 9))
    assert order(dialer) == "cab"
    network.at("c:3", serving())
    dialer.dial(soon()).close()
    assert order(dialer) == "abc"


# Checksums.


@pytest.fixture
def field() -> Iterator[Network]:
    """A network whose servers compute CRC-32 and close on anything else."""
    network = Network(Checksum.CRC32)
    yield network
    network.close()


def strict(peer: Peer) -> None:
    """Serve, but close without a word on a wrong checksum (LWP §11.3)."""
    try:
        peer.serve()
    except RemoteProtocolError:
        return


def test_auto_finds_crc32(field: Network) -> None:
    field.at("a:1", strict, strict, strict)
    dialer = make_dialer(field, "a:1", checksum="auto")
    connection = dialer.dial(soon())
    assert connection.dialect.checksum is Checksum.CRC32
    assert len(field.dialed) == 2
    connection.close()
    # What worked is kept.
    dialer.dial(soon()).close()
    assert len(field.dialed) == 3


def test_auto_prefers_crc32c(network: Network) -> None:
    network.at("a:1", strict, strict)
    dialer = make_dialer(network, "a:1", checksum="auto")
    connection = dialer.dial(soon())
    assert connection.dialect.checksum is Checksum.CRC32C
    connection.close()
    dialer.dial(soon()).close()
    assert len(network.dialed) == 2


def test_auto_with_a_server_that_answers_in_the_other_kind(network: Network) -> None:
    def mixed(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.parser._checksum = Checksum.CRC32
        peer.answer(ClusterStatus())
        peer.wait_for_end()

    def honest(peer: Peer) -> None:
        peer.parser._checksum = Checksum.CRC32
        peer.serve()

    network.at("a:1", mixed, honest)
    dialer = make_dialer(network, "a:1", checksum="auto")
    connection = dialer.dial(soon())
    assert connection.dialect.checksum is Checksum.CRC32
    connection.close()


def test_auto_does_not_try_twice_where_nobody_answers(network: Network) -> None:
    with pytest.raises(ConnectionLost):
        make_dialer(network, "a:1", checksum="auto").dial(soon())
    assert network.dialed == ["a:1"]


def test_auto_learns_each_server(field: Network) -> None:
    field.at("a:1", strict, strict)
    field.at("b:2", strict, strict)
    dialer = make_dialer(field, "a:1,b:2", checksum="auto")
    dialer.dial(soon()).close()
    dialer.prefer(Address("b", 2))
    dialer.dial(soon()).close()
    assert field.dialed == ["a:1", "a:1", "b:2", "b:2"]


def test_a_fixed_checksum_is_not_changed(field: Network) -> None:
    field.at("a:1", strict, strict)
    with pytest.raises(ConnectionLost, match=r"checksum \(crc32c\)"):
        make_dialer(field, "a:1").dial(soon())
    assert len(field.dialed) == 1
    make_dialer(field, "a:1", checksum="crc32").dial(soon()).close()


def test_auto_with_a_server_that_was_replaced_by_one_of_the_other_kind(
    network: Network,
) -> None:
    def strict_crc32(peer: Peer) -> None:
        peer.parser._checksum = Checksum.CRC32
        strict(peer)

    network.at("a:1", strict, strict_crc32, strict_crc32, strict_crc32, strict, strict)
    dialer = make_dialer(network, "a:1", checksum="auto")
    found = []
    for _ in range(4):
        connection = dialer.dial(soon())
        found.append((connection.dialect.checksum.value, len(network.dialed)))
        connection.close()
    assert found == [("crc32c", 1), ("crc32", 3), ("crc32", 4), ("crc32c", 6)]


# Giving up.


def test_no_more_is_tried_once_nobody_wants_a_connection(network: Network) -> None:
    attempt = Attempt()

    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        attempt.cancel()
        peer.wait_for_end()

    network.at("a:1", script)
    dialer = make_dialer(network, checksum="auto", connect_timeout_s=60.0)
    with pytest.raises(ConnectionLost):
        dialer.dial(soon(), attempt)
    assert network.dialed == ["a:1"]


# The thread that keeps a connection alive.


class Living:
    """Something that counts how often it was kept alive."""

    def __init__(self, delay_s: float) -> None:
        self.calls = threading.Semaphore(0)
        self._delay_s = delay_s

    def keep_alive(self) -> float:
        self.calls.release()
        return self._delay_s


def repeat(living: Living, first_s: float) -> Repeater:
    return Repeater(living.keep_alive, first_s, name="lance-test")


def test_it_comes_again_and_again() -> None:
    living = Living(0.001)
    keepalive = repeat(living, 0.001)
    for _ in range(3):
        assert living.calls.acquire(timeout=PATIENCE_S)
    keepalive.stop(PATIENCE_S)
    assert not keepalive._thread.is_alive()


def test_stop_does_not_wait_for_the_next_time() -> None:
    living = Living(3600)
    keepalive = repeat(living, 3600)
    assert keepalive._thread.is_alive()
    keepalive.stop(PATIENCE_S)
    assert not keepalive._thread.is_alive()
    keepalive.stop(PATIENCE_S)


def test_it_can_be_stopped_from_within() -> None:
    class Suicidal(Living):
        def keep_alive(self) -> float:
            assert made.wait(PATIENCE_S)
            keepalive.stop(PATIENCE_S)
            return super().keep_alive()

    made = threading.Event()
    living = Suicidal(3600)
    keepalive = repeat(living, 0.0)
    made.set()
    assert living.calls.acquire(timeout=PATIENCE_S)
    keepalive._thread.join(PATIENCE_S)
    assert not keepalive._thread.is_alive()


def test_it_ends_with_what_it_serves() -> None:
    living = Living(3600)
    reference = weakref.ref(living)
    keepalive = repeat(living, 3600)
    del living
    gc.collect()
    assert reference() is None
    keepalive._thread.join(PATIENCE_S)
    assert not keepalive._thread.is_alive()


def test_it_ends_when_it_comes_too_late() -> None:
    reference = weakref.WeakMethod(Living(0.0).keep_alive)
    gc.collect()
    _repeat(threading.Event(), reference, 0.0)  # Returns, or the test would not end.


def test_a_keepalive_that_fails_is_the_next_calls_affair(network: Network) -> None:
    network.serve(serving(), serving())
    client = network.client(keepalive_interval_s=5.0)
    connection = client.connection()
    connection._clock = lambda: 1e12

    def send(buffers: object, deadline: object) -> None:
        raise Timeout("stuck")

    connection._stream.send = send
    assert client.link.keep_alive() == 5.0
    assert not connection.is_open
    client.status()
    assert len(network.dialed) == 2


def test_an_idle_client_sends_keepalives(network: Network) -> None:
    seen = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        peer.greet()
        while peer.frame() is not None:
            seen.release()
            peer.keepalive()

    network.serve(script)
    client = network.client(keepalive_interval_s=0.01).connect()
    connection = client.connection()
    for _ in range(3):
        assert seen.acquire(timeout=PATIENCE_S)
    # The same connection all the time, and a ping of ours is not confused.
    assert client.ping() >= 0.0
    assert client.connection() is connection


def test_a_busy_client_sends_none(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        assert peer.frame() is None

    network.serve(script)
    client = network.client(keepalive_interval_s=3600.0).connect()
    assert client.link.keep_alive() > 3000.0


def test_a_client_without_a_connection_sends_none(network: Network) -> None:
    client = network.client(keepalive_interval_s=5.0)
    assert client.link.keep_alive() == 5.0


def test_the_thread_notices_that_the_server_has_gone(network: Network) -> None:
    go = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        assert go.wait(PATIENCE_S)

    network.serve(script, serving())
    client = network.client(keepalive_interval_s=0.01)
    connection = client.connection()
    go.set()
    deadline = soon()
    while connection.is_open:
        assert not deadline.expired
        threading.Event().wait(0.001)
    client.status()
    assert len(network.dialed) == 2


def test_the_thread_ends_with_the_client(network: Network) -> None:
    network.serve(serving())
    client = network.client().connect()
    keepalive = client.link._keepalive
    assert keepalive is not None
    client.close()
    assert not keepalive._thread.is_alive()


def test_one_thread_for_all_connections(network: Network) -> None:
    network.serve(serving(), serving())
    client = network.client().connect()
    first = client.link._keepalive
    client.disconnect()
    client.connect()
    assert client.link._keepalive is first
