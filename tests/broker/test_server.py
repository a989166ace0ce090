"""The server: who is let in, who is turned away, and that it stops at once."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import trustme

from lance_spark.broker import EmbeddedBroker, server, session
from lance_spark.errors import AccessDenied, ConnectionLost, LanceError, Timeout
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.net.tls import ClientTls, make_client_context
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import Checksum, FetchFlags
from tests.broker.kit import (
    Client,
    Dial,
    StartBroker,
    clients,
    eventually,
    patience,
    record,
    records,
)

MIB = 1024 * 1024


def connections(broker: EmbeddedBroker) -> int:
    return broker.metrics.snapshot().connections


# Limits.


def test_more_clients_than_are_served(start: StartBroker, dial: Dial) -> None:
    broker = start(connections_max=2)
    first, second = dial(broker), dial(broker)
    first.alive()
    second.alive()
    third = dial(broker)
    error = third.refused(wire.ListTopics())
    assert error.code == 0x32
    assert error.message == "Connection limit reached: 2 connections"
    assert third.ended()
    # Those that are served are served, and a place is free when one of them goes.
    first.write(0, record(b"x"), count=1)
    assert second.read(0) == record(b"x")
    first.close()
    assert eventually(lambda: connections(broker) == 1)
    dial(broker).alive()
    assert broker.metrics.snapshot().connections_refused == 1


def test_clients_without_a_token_make_room(start: StartBroker, dial: Dial) -> None:
    """Half of the places are for them; the one that waits for longest goes."""
    broker = start(connections_max=8, tokens=("good",), handshake_timeout_s=600)
    known = [dial(broker) for _ in range(3)]
    for client in known:
        assert client.ask(wire.Authenticate("good")).ok
    strangers = []
    for _ in range(4):
        strangers.append(dial(broker))
        strangers[-1].alive()
    late = dial(broker)
    assert late.ask(wire.Authenticate("good")).ok
    # The oldest is gone, and the last one is not a stranger any more.
    assert strangers[0].ended()
    # It is told of its end before its place is free.
    assert eventually(lambda: connections(broker) == 7)
    strangers.append(dial(broker))
    for client in (*known, *strangers[1:], late):
        client.alive()
    assert connections(broker) == 8


@pytest.mark.parametrize(("allowed", "lines"), [(3 * 100 + 2 * 8 + 64, 0), (379, 1)])
def test_more_clients_than_there_can_be_descriptors(
    start: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowed: int,
    lines: int,
) -> None:
    monkeypatch.setattr(server, "raise_file_limit", lambda wanted: min(wanted, allowed))
    with caplog.at_level(logging.WARNING):
        start(connections_max=100, open_segments_max=8)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == lines
    assert all(
        "379 open files are allowed, up to 380 may be needed" in text
        and "raise ulimit -n" in text
        for text in texts
    )


def test_who_is_turned_away_is_answered_in_kind(start: StartBroker, dial: Dial) -> None:
    broker = start(connections_max=1, checksum="auto")
    dial(broker).alive()
    for checksum in Checksum:
        client = dial(broker, checksum=checksum)
        client.send(client.ingest(record(b"x")))
        assert client.error().code == 0x32


def test_who_is_turned_away_and_says_nothing(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REFUSAL_S", 0.02)
    broker = start(connections_max=1)
    dial(broker).alive()
    assert dial(broker).ended()


def test_so_many_are_told_and_the_others_are_closed(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REFUSALS_MAX", 2)
    broker = start(connections_max=1)
    working = dial(broker)
    working.alive()
    with clients(broker, 2) as told:
        assert eventually(lambda: broker.metrics.snapshot().connections_refused == 2)
        with clients(broker, 3) as others:
            assert all(other.ended() for other in others)
        for client in told:
            assert client.refused(wire.ListTopics()).code == 0x32
    working.alive()


def test_no_thread_for_a_client(
    broker: EmbeddedBroker,
    client: Client,
    dial: Dial,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.alive()
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("lance-session"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert dial(broker).ended()
    assert "no thread for it: can't start new thread" in caplog.text
    client.alive()
    dial(broker).alive()


# Stopping.


def stop(broker: EmbeddedBroker) -> None:
    """Stop a broker; fail if a session had to be left behind."""
    assert broker._server is not None
    threads = [*broker._server._streams, *broker._server._threads]
    broker.stop()
    assert not any(thread.is_alive() for thread in threads)


def test_stopping_while_clients_are_silent(start: StartBroker, dial: Dial) -> None:
    broker = start()
    several = [dial(broker) for _ in range(5)]
    for client in several:
        client.alive()
    stop(broker)
    assert all(client.ended() for client in several)
    with pytest.raises(ConnectionLost, match="could not connect"):
        connect(parse_address(broker.address), deadline=patience())
    broker.stop()


def test_stopping_while_clients_wait(start: StartBroker, dial: Dial) -> None:
    broker = start()
    client, other = dial(broker), dial(broker)
    client.send(client.message(wire.Fetch(0, 0, 100, FetchFlags.WAIT, 30_000)))
    version = other.ask(wire.GetClusterStatus()).details["topics_version"]
    other.send(other.message(wire.Wait(version, (), 30_000)))
    watchers = broker.service.store.topic(0).log.watchers
    catalog = broker.service.store._catalog.watchers
    assert eventually(lambda: bool(watchers._wakes and catalog._wakes))
    stop(broker)
    assert client.ended() and other.ended()


def test_stopping_while_clients_do_not_read(start: StartBroker, dial: Dial) -> None:
    broker = start()
    client = dial(broker)
    client.write(0, record(bytes(8 * MIB)), count=1)
    client.send(client.message(wire.Fetch(0, 0, 16 * MIB)) * 4)
    assert eventually(lambda: broker.metrics.snapshot().sent_bytes > MIB)
    stop(broker)


def test_stopping_while_clients_write(start: StartBroker, dial: Dial) -> None:
    broker = start(fsync="batch")
    writers = [dial(broker) for _ in range(3)]
    batch = records("a", 10)
    acked: list[int] = []

    def write(client: Client) -> None:
        for n in range(1, 100_000):
            try:
                client.send(client.ingest(batch, n, count=10))
                client.acked(n)
            except (LanceError, AssertionError):
                return
            acked.append(n)

    threads = [threading.Thread(target=write, args=(w,)) for w in writers]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(acked) > 30)
    stop(broker)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_stopping_while_clients_wait_for_memory_and_disk(
    start: StartBroker, dial: Dial
) -> None:
    broker = start(memory_bytes_max=MIB, write_queue_bytes_max=1, backpressure=False)
    assert broker._server is not None
    shared = broker._server._shared
    assert shared.memory.try_take(MIB) and shared.queue.try_take(1)
    large, small = dial(broker), dial(broker)
    large.send(large.ingest(record(bytes(MIB)))[: 200 * 1024])
    small.send(small.ingest(record(b"x")))
    assert eventually(lambda: shared.memory.is_short and shared.queue.is_short)
    stop(broker)
    assert large.ended() and small.ended()


def test_stopping_while_a_client_waits_for_room_for_its_answer(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PIECE_BYTES", 0)
    broker = start()
    assert broker._server is not None
    waiting = broker._server._shared.waiting
    client = dial(broker)
    client.create("a")
    assert waiting.try_take(waiting._limit)
    client.send(client.message(wire.ListTopics()))
    assert eventually(lambda: waiting.is_short)
    stop(broker)
    assert client.ended()


def test_a_session_that_does_not_end(
    start: StartBroker,
    dial: Dial,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server, "_STOP_TIMEOUT_S", 0.05)
    broker = start()
    client = dial(broker)
    stuck, go_on = threading.Event(), threading.Event()

    def hang(session: Any) -> None:
        stuck.set()
        assert go_on.wait(20)

    monkeypatch.setattr("lance_spark.broker.lwp.session.FrameSession._keepalive", hang)
    client.send(client.keepalive())
    assert stuck.wait(20)
    [thread] = broker._server._streams  # type: ignore[union-attr]
    broker.stop()
    assert "sessions did not end in time: lance-session-127.0.0.1" in caplog.text
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()


def test_a_client_that_comes_while_it_stops(
    broker: EmbeddedBroker, client: Client
) -> None:
    client.alive()
    assert broker._server is not None
    broker._server._stopping.set()
    with Client(broker.address) as late:
        assert late.ended()
    assert connections(broker) == 1


# Housekeeping.


def test_maintenance_goes_on(
    start: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def maintain(service: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError("oops")

    monkeypatch.setattr("lance_spark.broker.service.Service.maintain", maintain)
    with caplog.at_level(logging.ERROR):
        start(maintenance_interval_s=0.01)
        assert eventually(lambda: len(calls) >= 3)
    assert "maintenance failed" in caplog.text and "oops" in caplog.text


def test_retention_is_applied_by_itself(start: StartBroker, dial: Dial) -> None:
    broker = start(
        maintenance_interval_s=0.01,
        segment_bytes=100,
        topics={"a": {"retention": {"max_bytes": 100}}},
    )
    client = dial(broker)
    for n in range(1, 6):
        client.write(1, records("a", 4), n, count=4)
    assert eventually(lambda: client.ask(wire.GetTopic(1)).details["log_start"] == 400)


# TLS.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files of a server, of clients of two authorities, and of the authorities."""
    directory = tmp_path_factory.mktemp("tls")
    ours, theirs = trustme.CA(), trustme.CA()
    issued = {
        "server": ours.issue_cert("127.0.0.1"),
        "spark": ours.issue_cert("spark.example.com", common_name="spark"),
        "flink": ours.issue_cert("flink.example.com", common_name="flink"),
        "guest": theirs.issue_cert("guest.example.com", common_name="guest"),
    }
    paths = {}
    for name, certificate in issued.items():
        path = directory / f"{name}.pem"
        certificate.private_key_and_cert_chain_pem.write_to_path(str(path))
        paths[name] = str(path)
    for name, authority in (("ca", ours), ("guests", theirs)):
        path = directory / f"{name}.crt"
        authority.cert_pem.write_to_path(str(path))
        paths[name] = str(path)
    return paths


def tls_of(certificates: dict[str, str], client: str | None = None) -> Any:
    cert = None if client is None else certificates[client]
    return make_client_context(ClientTls(certificates["ca"], cert))


def tls_settings(certificates: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "tls_enabled": True,
        "tls_cert_path": certificates["server"],
        "tls_key_path": certificates["server"],
        **more,
    }


def test_tls(start: StartBroker, dial: Dial, certificates: dict[str, str]) -> None:
    broker = start(**tls_settings(certificates))
    client = dial(broker, tls=tls_of(certificates))
    payload = record(bytes(range(256)) * 8192)
    client.write(0, payload, count=1)
    assert client.read(0, 0, 4 * MIB) == payload
    client.send(client.message(wire.Fetch(0, len(payload), 9, FetchFlags.WAIT, 30_000)))
    dial(broker, tls=tls_of(certificates)).write(0, record(b"x"), count=1)
    answer = client.answer()
    assert isinstance(answer, wire.FetchResponse)
    assert bytes(answer.data) == record(b"x")


def test_no_plain_text_where_tls_is_spoken(
    start: StartBroker, dial: Dial, certificates: dict[str, str]
) -> None:
    broker = start(**tls_settings(certificates))
    client = dial(broker)
    client.send(client.keepalive())
    # An alert of TLS may come; it is no frame.
    room = memoryview(bytearray(100))
    try:
        while size := client.stream.recv_into(room, patience()):
            assert bytes(room[:size])[:4] != b"LANC"
    except ConnectionLost:
        pass
    client.close()
    dial(broker, tls=tls_of(certificates)).alive()
    assert eventually(lambda: broker.metrics.snapshot().connections == 1)
    # One that says nothing at all is not waited for.
    assert dial(start(**tls_settings(certificates, handshake_timeout_s=0.05))).ended()


def test_client_certificates(
    start: StartBroker, dial: Dial, certificates: dict[str, str]
) -> None:
    own = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    guests = {"mtls_enabled": True, "client_ca_path": certificates["guests"]}
    broker = start(
        **tls_settings(certificates, tls_client_ca_path=certificates["ca"]),
        topics={"own": {"auth": own}, "guests": {"auth": guests}, "open": {}},
    )
    seen = {
        "spark": ["own", "open"],
        "flink": ["open"],
        "guest": ["guests", "open"],
        None: ["open"],
    }
    for name, topics in seen.items():
        client = dial(broker, tls=tls_of(certificates, name))
        assert [t.name for t in client.ask(wire.ListTopics()).topics] == topics
        if "own" not in topics:
            error = client.refused(wire.Fetch(1, 0, 10))
            assert isinstance(error, AccessDenied)
            who = name or "anonymous"
            text = f"Access denied: client '{who}' not authorized for topic 1"
            assert error.message == text


def test_client_certificates_that_are_required(
    start: StartBroker, dial: Dial, certificates: dict[str, str]
) -> None:
    settings = tls_settings(
        certificates,
        tls_client_ca_path=certificates["ca"],
        tls_require_client_cert=True,
    )
    broker = start(**settings)
    dial(broker, tls=tls_of(certificates, "flink")).alive()
    for name in (None, "guest"):
        # With TLS 1.3 a client learns of it when it first reads.
        with (
            pytest.raises((ConnectionLost, Timeout, AssertionError)),
            Client(broker.address, tls=tls_of(certificates, name)) as client,
        ):
            client.alive()
    dial(broker, tls=tls_of(certificates, "spark")).alive()


def test_stopping_in_the_middle_of_a_handshake(
    start: StartBroker, dial: Dial, certificates: dict[str, str]
) -> None:
    broker = start(**tls_settings(certificates))
    silent = dial(broker)
    assert eventually(lambda: connections(broker) == 1)
    secure = dial(broker, tls=tls_of(certificates))
    secure.alive()
    stop(broker)
    assert silent.ended()


def test_turned_away_over_tls(
    start: StartBroker, dial: Dial, certificates: dict[str, str]
) -> None:
    broker = start(**tls_settings(certificates), connections_max=1)
    dial(broker, tls=tls_of(certificates)).alive()
    other = dial(broker, tls=tls_of(certificates))
    other.send(other.keepalive())
    assert other.error().code == 0x32


def test_a_client_that_resets(broker: EmbeddedBroker, client: Client) -> None:
    client.write(0, record(bytes(8 * MIB)), count=1)
    with Client(broker.address) as rude:
        rude.send(rude.message(wire.Fetch(0, 0, 16 * MIB)))
        assert rude.stream.wait_readable(patience())
    # Closed with unread bytes, which resets the connection under the session.
    assert eventually(lambda: connections(broker) == 1)
    client.alive()
