"""Handshakes, tenants, streams, all forms, connections and refusals."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import BrokerConfig, EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.exchange import Exchange
from lance_spark.errors import OptionError, UnknownTopic
from lance_spark.wire import kimberlite as wire
from tests.broker.kimberlite.conftest import DialKimberlite
from tests.broker.kimberlite.kit import HERE, HOME, KimberliteClient, values_of
from tests.broker.kit import Dial, StartBroker
from tests.broker.test_server import certificates as certificates
from tests.broker.test_server import tls_of, tls_settings
from tests.each import each

VECTORS = Path(__file__).parents[2] / "wire" / "kimberlite" / "vectors"
# Those that clients in the field write.
FORMS = ("v5", "v5-0.6", "v4", "v3", "v2", "v1-postcard", "v1-bincode", "v1-literal")


# Forms.


@each("form", FORMS)
def test_every_form_is_answered_in_kind(shared: EmbeddedBroker, form: str) -> None:
    with KimberliteClient(shared, form=form) as client:
        shaken = client.shake()
        assert shaken.server_version == client.wire.frame_version
        assert shaken.authenticated
        assert set(shaken.capabilities) >= {"query", "append", "subscribe"}
        stream = client.create(f"in {form}")
        assert client.create(f"in {form}") == stream
        assert client.append(stream, b"one", b"", b"three") == 0
        assert client.read(stream) == ([b"one", b"", b"three"], 3)
        assert client.read(stream, 3) == ([], None)
        assert client.ask(wire.Sync()) == wire.SyncResponse(True)
        if form != "v1-bincode" and form != "v1-literal":
            again = client.make_append(stream, b"x", expected=2)
            assert client.refused(again, 16).endswith("actual 3")
        else:
            assert client.append(stream, b"four") == 3
        text = client.refused(wire.ReadEvents(99, 0, 1), 5)
        assert "stream 99" in text


def test_a_session_that_was_captured(
    broker: EmbeddedBroker, dial_kimberlite: DialKimberlite
) -> None:
    """What the client on PyPI sent is answered as the server of that session did.

    That was a server of few lines: here other texts, and the ids of other streams.
    """
    client = dial_kimberlite(broker, tenant=42)
    text = (VECTORS / "vectors.json").read_text(encoding="utf-8")
    sent = [one for one in json.loads(text) if one["name"].startswith("pypi")]
    assert len(sent) > 10
    answers: list[Any] = []
    for one in sent[:10]:
        client.send(bytes.fromhex(one["hex"]))
        answer = client.next()
        assert isinstance(answer, wire.Response)
        answers.append(answer.body)
    shaken, first, second, third, begun, more, conflict, unknown, read, end = answers
    assert isinstance(shaken, wire.HandshakeResponse)
    assert first.stream_id >> 32 == 42
    assert len({one.stream_id for one in (first, second, third)}) == 3
    assert begun == wire.AppendEventsResponse(0, 2)
    assert more == wire.AppendEventsResponse(2, 1)
    assert (conflict.code, unknown.code) == (16, 5)
    assert (values_of(read.events), read.next_offset) == (
        [b"\1\2\3", b"\4\5", b"event1"],
        3,
    )
    assert (values_of(end.events), end.next_offset) == ([], None)


# Handshakes.


def test_the_version_of_a_handshake(kimberlite: KimberliteClient) -> None:
    text = kimberlite.refused(wire.Handshake(4), 2)
    assert "version 4" in text and "5" in text
    assert kimberlite.shake().server_version == 5


def test_tokens(start: StartBroker, dial_kimberlite: DialKimberlite) -> None:
    broker = start(kimberlite=HERE, tokens=("secret",))
    client = dial_kimberlite(broker)
    assert "token" in client.refused(wire.CreateStream("events"), 3)
    for token in (None, "wrong"):
        client.refused(wire.Handshake(5, token), 3)
    assert client.shake("secret").authenticated
    stream = client.create("events")
    # It may send large frames only now.
    assert client.append(stream, b"x" * 200_000) == 0


def test_guesses_end(start: StartBroker, dial_kimberlite: DialKimberlite) -> None:
    """By their number, long before the time for a handshake is up."""
    patient = {"tokens": ("secret",), "handshake_timeout_s": 600}
    client = dial_kimberlite(start(kimberlite=HERE, **patient))
    for guess in ("a", "b", "c"):
        client.refused(wire.Handshake(5, guess), 3)
    assert client.ended()


def test_a_stranger_sends_little(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    client = dial_kimberlite(start(kimberlite=HERE, tokens=("secret",)))
    client.submit(wire.Handshake(5, "x" * 70_000))
    assert client.ended()


def test_a_token_where_none_is_needed(kimberlite: KimberliteClient) -> None:
    assert kimberlite.shake("any").authenticated


def test_rules_hold(
    start: StartBroker, dial_kimberlite: DialKimberlite, certificates: dict[str, str]
) -> None:
    rule = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    broker = start(
        **tls_settings(certificates, tls_client_ca_path=certificates["ca"]),
        kimberlite=HERE,
        topics={"42:mine": {"auth": rule}},
    )
    plain = dial_kimberlite(broker, tls=tls_of(certificates), tenant=42)
    assert plain.create("other")
    plain.refused(wire.CreateStream("mine"), 3)
    spark = tls_of(certificates, "spark")
    with_name = dial_kimberlite(broker, tls=spark, tenant=42)
    mine = with_name.create("mine")
    assert with_name.append(mine, b"x") == 0
    for message in (
        wire.ReadEvents(mine, 0, 10),
        wire.StreamInfo(mine),
        wire.Subscribe(mine, 0, 1),
        plain.make_append(mine, b"y"),
        wire.Query("SELECT * FROM mine"),
    ):
        plain.refused(message, 3)


# Streams and tenants.


def test_names(
    broker: EmbeddedBroker, kimberlite: KimberliteClient, dial: Dial
) -> None:
    store = broker.service.store
    home = kimberlite.create("events")
    other = kimberlite.create("events", tenant=42)
    for name, stream, tenant in (("events", home, HOME), ("42:events", other, 42)):
        topic = store.find_topic(name)
        assert topic is not None
        assert stream == tenant << 32 | topic.metadata.id
    kimberlite.append(home, b"home")
    assert kimberlite.ask(
        kimberlite.make_append(other, b"a", b"b"), tenant=42
    ) == wire.AppendEventsResponse(0, 2)
    assert kimberlite.length(home) == 1
    plain = dial(broker).create("plain")
    assert kimberlite.create("plain") == HOME << 32 | plain


def test_another_home(start: StartBroker, dial_kimberlite: DialKimberlite) -> None:
    client = dial_kimberlite(start(kimberlite=HERE, kimberlite_tenant=7), tenant=7)
    stream = client.create("events")
    assert stream >> 32 == 7
    assert client.create("events", tenant=1) & 0xFFFF != stream & 0xFFFF
    assert client.create("events", tenant=0) >> 32 == 0


@each("tenant", [-1, 2**32, 1.5, True, "1"])
def test_a_bad_home(tenant: Any) -> None:
    with pytest.raises(OptionError, match="kimberlite_tenant"):
        BrokerConfig(kimberlite_tenant=tenant)


@each("name", ["", "a:b", "42:events", "a/b", "orders/0", "..", "x" * 256, "a\0b"])
def test_bad_names(shared: EmbeddedBroker, name: str) -> None:
    with KimberliteClient(shared) as client:
        client.refused(wire.CreateStream(name), 2)


def test_tenants_have_limits(shared: EmbeddedBroker) -> None:
    with KimberliteClient(shared) as client:
        assert client.create("last", tenant=2**32 - 1) >> 32 == 2**32 - 1
        text = client.refused(wire.CreateStream("events"), 2, tenant=2**32)
        assert "below 2^32" in text
        client.refused(wire.StreamInfo(2**64 - 1), 5, tenant=2**64 - 1)


def test_foreign_ids(broker: EmbeddedBroker, kimberlite: KimberliteClient) -> None:
    home = kimberlite.create("events")
    other = kimberlite.create("events", tenant=42)
    broker.service.create_topics(Principal(), "orders", 3)
    broker.service.create_topic(Principal(), "a:b:c")
    parts = [topic.metadata.id for topic in broker.service.store.topics()]
    known = {home & 0xFFFF}
    for stream, tenant in [
        (home, 42),
        (other, HOME),
        (home & 0xFFFF | 42 << 32, 42),
        (other & 0xFFFF | HOME << 32, HOME),
        (HOME << 32, HOME),
        (0, HOME),
        (99 | HOME << 32, HOME),
        (other & 0xFFFF | 7 << 32, 42),
        (other & 0xFFFF, 42),
        *((part | HOME << 32, HOME) for part in parts if part not in known),
    ]:
        for message in (
            wire.StreamInfo(stream),
            wire.ReadEvents(stream, 0, 100),
            wire.Subscribe(stream, 0, 1),
            kimberlite.make_append(stream, b"x"),
        ):
            assert kimberlite.refused(message, 5, tenant=tenant)


def test_a_partitioned_topic_is_no_stream(
    broker: EmbeddedBroker, kimberlite: KimberliteClient
) -> None:
    broker.service.create_topics(Principal(), "orders", 3)
    text = kimberlite.refused(wire.CreateStream("orders"), 2)
    assert "3 partitions" in text


def test_another_client_is_quicker(
    shared: EmbeddedBroker,
    client: KimberliteClient,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that was not there, and is when it is created, is found."""
    original, missed = Exchange.find, [name]

    def find(self: Exchange, who: Any, topic: str, *rest: Any) -> int:
        if topic in missed:
            missed.remove(topic)
            shared.service.create_topic(Principal(), topic)
            raise UnknownTopic(topic)
        return original(self, who, topic, *rest)

    monkeypatch.setattr(Exchange, "find", find)
    stream = client.create(name)
    assert missed == []
    assert client.create(name) == stream


def test_a_deleted_stream(broker: EmbeddedBroker, kimberlite: KimberliteClient) -> None:
    stream = kimberlite.create("events")
    broker.service.delete_topic(Principal(), stream & 0xFFFF)
    kimberlite.refused(wire.StreamInfo(stream), 5)
    assert kimberlite.create("events") != stream


# The rest.


def test_what_is_not_served(kimberlite: KimberliteClient) -> None:
    text = kimberlite.refused(wire.Unknown(23, b"\1\2"), 2)
    assert "23" in text
    assert kimberlite.create("events")


def test_a_malformed_request(kimberlite: KimberliteClient) -> None:
    kimberlite.shake()
    # A ReadEvents without its fields, which has the number 7.
    kimberlite.send_payload(bytes([0, 7, 1, 0, 5]))
    answer = kimberlite.next()
    assert isinstance(answer, wire.Response)
    assert isinstance(answer.body, wire.ErrorResponse)
    assert (answer.request_id, answer.body.code) == (7, 2)
    assert kimberlite.create("events")


@each("payload", [b"", b"\1", b"\0\7\1\0\5", b"\xff" * 30])
def test_nonsense_at_first_closes(shared: EmbeddedBroker, payload: bytes) -> None:
    with KimberliteClient(shared) as client:
        client.send_payload(payload)
        assert client.ended()


def test_a_connection_too_many(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    broker = start(kimberlite=HERE, connections_max=1)
    dial_kimberlite(broker).shake()
    late = dial_kimberlite(broker)
    text = late.refused(wire.Handshake(5), 14)
    assert "1 connections" in text


def test_idle_clients_go(start: StartBroker, dial_kimberlite: DialKimberlite) -> None:
    client = dial_kimberlite(start(kimberlite=HERE, idle_timeout_other_s=0.05))
    client.shake()
    assert client.ended()


def test_metrics(broker: EmbeddedBroker, kimberlite: KimberliteClient) -> None:
    stream = kimberlite.create("events")
    kimberlite.append(stream, b"x")
    kimberlite.refused(wire.StreamInfo(5), 5)
    seen = broker.metrics.snapshot()
    names = {"CreateStream", "AppendEvents", "StreamInfo"}
    assert {f"kimberlite.{name}" for name in names} <= set(seen.requests)
    assert seen.protocols["kimberlite"].requests_refused == 1


def test_the_log_has_no_secrets(
    start: StartBroker,
    dial_kimberlite: DialKimberlite,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    client = dial_kimberlite(start(kimberlite=HERE, tokens=("hidden-token",)))
    client.refused(wire.Handshake(5, "wrong-token"), 3)
    client.shake("hidden-token")
    assert "-token" not in caplog.text
