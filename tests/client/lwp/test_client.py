"""The client's front: settings, capabilities, lifetime, and real sockets."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

import lance_spark.client
from lance_spark.broker import BrokerConfig
from lance_spark.broker.budget import TokenBucket
from lance_spark.client import ClientConfig, LanceClient
from lance_spark.client.config import Runtime
from lance_spark.client.lwp.client import PING_WINDOW_S, PINGS_MAX, plan_ping_delay_s
from lance_spark.client.lwp.group import GroupedConsumer
from lance_spark.errors import (
    ConnectionLimit,
    ConnectionLost,
    ConsumerNotFound,
    LanceError,
    OffsetOutOfRange,
    OptionError,
    RemoteProtocolError,
    TlsRefused,
    Unsupported,
)
from lance_spark.net.address import Address
from lance_spark.net.listener import Listener
from lance_spark.net.stream import Stream
from lance_spark.net.tls import (
    ServerTls,
    TlsContext,
    handshake,
    make_server_context,
)
from lance_spark.wire.lwp import (
    AssignedTopic,
    AssignmentStrategy,
    Capability,
    Checksum,
    ClusterStatus,
    CommitAck,
    CommitOffset,
    ErrorResponse,
    Fetch,
    FetchFlags,
    GetClusterStatus,
    GetTopic,
    GroupHeartbeat,
    GroupHeartbeatResponse,
    GroupJoined,
    GroupLeft,
    JoinGroup,
    LeaveGroup,
    ListTopics,
    Subscribe,
    SubscribeAck,
    TopicInfo,
    TopicListing,
    Unsubscribe,
)
from tests.client.scripted import (
    EVERYTHING,
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

# Settings.


def test_settings_by_name() -> None:
    client = LanceClient("a:1,b:2", checksum="auto", auth_token="very secret")
    assert client.config == ClientConfig(
        servers="a:1,b:2", checksum="auto", auth_token="very secret"
    )
    assert repr(client) == "<LanceClient a:1,b:2>"
    client.close()
    assert repr(client) == "<LanceClient a:1,b:2 closed>"


def test_settings_by_config_and_by_name() -> None:
    config = ClientConfig(servers="a:1", request_timeout_s=1.0)
    assert LanceClient(config=config).config == config
    changed = LanceClient("b:2", config=config, retry_timeout_s=3.0).config
    assert (changed.servers, changed.request_timeout_s) == ("b:2", 1.0)
    assert changed.retry_timeout_s == 3.0


def test_an_unknown_setting() -> None:
    error = error_of(lambda: LanceClient("a:1", retry_timeout=3))
    assert type(error) is OptionError
    assert "no such setting: retry_timeout; there are servers, tls" in str(error)


def test_a_bad_setting() -> None:
    with pytest.raises(OptionError, match="checksum"):
        LanceClient("a:1", checksum="md5")


# Lifetime.


def test_context_manager(network: Network) -> None:
    network.serve(serving())
    with network.client() as client:
        client.connect()
        connection = client.connection()
    assert client.is_closed
    assert not connection.is_open


def test_connect_returns_the_client(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    assert client.connect() is client
    assert network.dialed == [SERVER]


def test_a_dedicated_client_has_its_own_connection(network: Network) -> None:
    network.serve(serving(), serving())
    client = network.client().connect()
    with client.dedicated() as other:
        assert other.config == client.config
        assert other.connection() is not client.connection()
    assert not client.is_closed
    client.status()


def test_a_borrowed_client_comes_back(network: Network) -> None:
    network.serve(serving(), serving(), serving())
    client = network.client().connect()
    first, second = client.borrow(), client.borrow()
    kept = first.connect().connection()
    second.connect()
    client.give_back(first)
    client.give_back(second)
    assert not first.is_closed
    assert second.is_closed, "one is kept"
    assert client.borrow() is first
    assert first.connection() is kept
    client.give_back(first)
    client.close()
    assert first.is_closed
    late = client.dedicated()
    client.give_back(late)
    assert late.is_closed


def test_a_dedicated_client_knows_what_was_learnt() -> None:
    network = Network(Checksum.CRC32)

    def strict(peer: Peer) -> None:
        try:
            peer.serve()
        except LanceError:
            return

    network.serve(strict, strict, strict)
    client = network.client(checksum="auto").connect()
    with client.dedicated() as other:
        assert other.connection().dialect.checksum is Checksum.CRC32
    assert len(network.dialed) == 3
    network.close()


def test_a_client_that_nobody_holds_goes(network: Network) -> None:
    network.serve(serving())
    client = LanceClient(SERVER, runtime=Runtime(connect=network.connect)).connect()
    keepalive, connection = client.link._keepalive, client.connection()
    assert keepalive is not None
    del client
    gc.collect()
    keepalive._thread.join(PATIENCE_S)
    assert not keepalive._thread.is_alive()
    connection.close()


# The server.


def test_status_is_asked_for_anew(network: Network) -> None:
    terms = iter(range(1, 9))

    def status(request: object) -> ClusterStatus:
        return ClusterStatus(current_term=next(terms))

    network.serve(lambda peer: peer.serve({GetClusterStatus: status}))
    client = network.client()
    assert [client.status().current_term for _ in range(2)] == [2, 3]


def test_capabilities(network: Network) -> None:
    network.serve(serving({}, "locate", "something-new"))
    client = network.client()
    assert client.capabilities == {"locate", "something-new"}
    assert not client.is_plain
    assert client.supports(Capability.LOCATE)
    assert not client.supports(Capability.WAIT)
    client.require(Capability.LOCATE, "this")
    with pytest.raises(Unsupported) as caught:
        client.require(Capability.WAIT, "waiting")
    assert caught.value.server == SERVER
    assert "waiting: the server server:1992 does not offer it" in str(caught.value)


def test_a_plain_server(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    assert client.is_plain
    assert client.capabilities == frozenset()
    assert not any(client.supports(capability) for capability in Capability)


def test_our_server_is_not_plain(network: Network) -> None:
    network.serve(serving({}, *EVERYTHING))
    client = network.client()
    assert all(client.supports(capability) for capability in Capability)


def test_call_takes_any_message(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request(Fetch)
        peer.refuse(0x50, "bad offset")
        peer.serve({GetTopic: TopicInfo(1, "one")})

    network.serve(script)
    client = network.client()
    with pytest.raises(LanceError, match="bad offset"):
        client.call(Fetch(1, 0, 9, FetchFlags.EXTENDED), extended=True)
    assert client.call(GetTopic(1)) == TopicInfo(1, "one")


def test_ping(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    assert [client.ping() >= 0.0 for _ in range(20)] == [True] * 20


def test_exports() -> None:
    exported = lance_spark.client.__all__
    assert list(exported) == sorted(exported)
    assert all(hasattr(lance_spark.client, name) for name in exported)


# Real sockets.


@contextmanager
def listening(
    network: Network, *scripts: Script, tls: TlsContext | None = None
) -> Iterator[str]:
    """Run scripts behind a port, one for each connection; give the address."""
    listener = Listener(Address("127.0.0.1", 0))

    def accept() -> None:
        for script in scripts:
            stream: Stream | None = listener.accept()
            if stream is None:
                return
            network.run(secured(script, tls), stream)

    thread = threading.Thread(target=accept, name="scripted-listener")
    thread.start()
    try:
        yield str(listener.address)
    finally:
        listener.stop()
        thread.join(PATIENCE_S)
        listener.close()


def secured(script: Script, tls: TlsContext | None) -> Script:
    def work(peer: Peer) -> None:
        if tls is not None:
            try:
                peer.stream = handshake(peer.stream, tls, soon())
            except ConnectionLost:
                return
        try:
            script(peer)
        finally:
            peer.stream.close()

    return work


TABLE = {GetTopic: lambda request: TopicInfo(request.topic_id, "t")}


def test_over_a_socket(network: Network) -> None:
    with (
        listening(network, serving(TABLE, "locate")) as address,
        LanceClient(address) as client,
    ):
        assert client.call(GetTopic(7)) == TopicInfo(7, "t")
        assert client.ping() >= 0.0
        assert client.capabilities == {"locate"}


def test_a_server_that_comes_back(network: Network) -> None:
    def once(peer: Peer) -> None:
        peer.greet()
        peer.request(GetTopic)

    with (
        listening(network, once, once, serving(TABLE)) as address,
        LanceClient(address, backoff_base_s=0.001) as client,
    ):
        assert client.call(GetTopic(7)) == TopicInfo(7, "t")


def test_nobody_listens() -> None:
    listener = Listener(Address("127.0.0.1", 0))
    address = str(listener.address)
    listener.close()
    with (
        LanceClient(address) as client,
        pytest.raises(ConnectionLost, match=f"could not connect to {address}"),
    ):
        client.connect()


def test_a_full_server_over_a_socket(network: Network) -> None:
    def full(peer: Peer) -> None:
        peer.refuse(0x32, "no more connections")

    with (
        listening(network, full) as address,
        LanceClient(address) as client,
        pytest.raises(ConnectionLimit, match="no more connections"),
    ):
        client.connect()


# TLS.


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA, tmp_path: Path) -> TlsContext:
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(p.bytes() for p in certificate.cert_chain_pems))
    return make_server_context(ServerTls(str(cert), str(key)))


@pytest.fixture
def secure(network: Network, server_tls: TlsContext) -> Iterator[str]:
    with listening(network, serving(TABLE), tls=server_tls) as address:
        yield address


def test_over_tls(secure: str, authority: trustme.CA) -> None:
    ca = authority.cert_pem.bytes().decode()
    with LanceClient(secure, tls=True, tls_ca=ca) as client:
        assert client.call(GetTopic(7)) == TopicInfo(7, "t")


def test_tls_with_an_unknown_authority(secure: str) -> None:
    ca = trustme.CA().cert_pem.bytes().decode()
    with (
        LanceClient(secure, tls=True, tls_ca=ca) as client,
        pytest.raises(ConnectionLost, match="certificate verify failed"),
    ):
        client.connect()


def test_a_tls_refusal_is_not_retried(
    secure: str, caplog: pytest.LogCaptureFixture
) -> None:
    ca = trustme.CA().cert_pem.bytes().decode()
    with (
        LanceClient(secure, tls=True, tls_ca=ca) as client,
        pytest.raises(TlsRefused, match="certificate verify failed"),
    ):
        client.call(GetTopic(7))
    assert "trying again" not in caplog.text


def test_tls_with_the_wrong_name(secure: str, authority: trustme.CA) -> None:
    ca = authority.cert_pem.bytes().decode()
    with (
        LanceClient(
            secure, tls=True, tls_ca=ca, tls_server_name="other.example"
        ) as client,
        pytest.raises(ConnectionLost, match=r"other\.example"),
    ):
        client.connect()


def test_plain_text_to_a_tls_server(secure: str) -> None:
    with (
        LanceClient(secure) as client,
        pytest.raises((ConnectionLost, RemoteProtocolError)),
    ):
        client.connect()


def test_tls_to_a_plain_text_server(network: Network, authority: trustme.CA) -> None:
    def script(peer: Peer) -> None:
        with pytest.raises(LanceError):
            peer.frame()

    ca = authority.cert_pem.bytes().decode()
    with (
        listening(network, script) as address,
        LanceClient(address, tls=True, tls_ca=ca) as client,
        pytest.raises(ConnectionLost),
    ):
        client.connect()


# Membership of groups: what is asked.


ASSIGNMENT = (AssignedTopic(1, "events"),)


def test_join_beat_leave(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet(*EVERYTHING)
        assert peer.request() == JoinGroup(
            "group", "", ("events", "logs"), AssignmentStrategy.STICKY, 1500
        )
        peer.answer(GroupJoined(1, "member-1", ASSIGNMENT))
        assert peer.request() == GroupHeartbeat("group", "member-1", 1)
        peer.answer(GroupHeartbeatResponse(2, ASSIGNMENT))
        assert peer.request() == GroupHeartbeat("group", "member-1", 2)
        peer.refuse(0x52, "who?")
        assert peer.request() == LeaveGroup("group", "member-1")
        peer.answer(GroupLeft())
        peer.wait_for_end()

    network.serve(script)
    client = network.client()
    joined = client.join_group(
        "group",
        ["events", "logs"],
        strategy=AssignmentStrategy.STICKY,
        session_timeout_s=1.5,
    )
    assert joined == GroupJoined(1, "member-1", ASSIGNMENT)
    answer = client.heartbeat("group", "member-1", 1)
    assert answer == GroupHeartbeatResponse(2, ASSIGNMENT)
    with pytest.raises(ConsumerNotFound):
        client.heartbeat("group", "member-1", 2)
    client.leave_group("group", "member-1")


def test_join_again_as_somebody(network: Network) -> None:
    asked: list[JoinGroup] = []

    def join(request: JoinGroup) -> GroupJoined:
        asked.append(request)
        return GroupJoined(3, request.member)

    network.serve(serving({JoinGroup: join}, *EVERYTHING))
    network.client().join_group("group", ["events"], member="me")
    expected = JoinGroup("group", "me", ("events",), AssignmentStrategy.RANGE, 30_000)
    assert asked == [expected]


def test_a_deadline_for_each_call(network: Network, fake_time: FakeTime) -> None:
    client = network.client(runtime=fake_time.runtime(network))
    for call in (
        lambda: client.join_group("group", [], timeout_s=0.3),
        lambda: client.heartbeat("group", "me", 1, timeout_s=0.3),
        lambda: client.leave_group("group", "me", timeout_s=0.3),
    ):
        with pytest.raises(ConnectionLost):
            call()
    assert fake_time.pauses == [0.2] * 3


def test_a_plain_server_has_no_groups(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    for call in (
        lambda: client.join_group("group", ["events"]),
        lambda: client.heartbeat("group", "me", 1),
        lambda: client.leave_group("group", "me"),
    ):
        with pytest.raises(Unsupported, match="in a group") as caught:
            call()
        assert caught.value.capability == "groups"


def test_a_group_names_the_capability_that_is_missing(network: Network) -> None:
    """A plain server lacks `groups`; one without `wait` alone lacks that."""
    everything_else = (name for name in EVERYTHING if name != "wait")
    for offered, missing in (((), "groups"), (everything_else, "wait")):
        network.serve(serving({}, *offered))
        with pytest.raises(Unsupported, match=f"lists no capability '{missing}'"):
            GroupedConsumer(network.client(), "readers", ["events"])


# Subscriptions and committed offsets.


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


# How fast pings may be sent.


def test_a_few_go_at_once() -> None:
    sent_s: deque[float] = deque(maxlen=PINGS_MAX)
    for _ in range(PINGS_MAX):
        assert plan_ping_delay_s(sent_s, 100.0) == 0.0
        sent_s.append(100.0)
    assert plan_ping_delay_s(sent_s, 100.0) == PING_WINDOW_S
    assert plan_ping_delay_s(sent_s, 104.0) == PING_WINDOW_S - 4.0
    assert plan_ping_delay_s(sent_s, 200.0) == 0.0


def test_the_broker_answers_them_all() -> None:
    now_s = 0.0
    config = BrokerConfig()
    sent_s: deque[float] = deque(maxlen=PINGS_MAX)
    bucket = TokenBucket(
        config.keepalive_rate, config.keepalive_burst, clock=lambda: now_s
    )
    for _ in range(500):
        now_s += plan_ping_delay_s(sent_s, now_s)
        sent_s.append(now_s)
        assert bucket.take() == 0.0
