"""The SC: lists, Watches and new topics; who is told what, and where the SPU is."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.fluvio import sc as module
from lance_spark.broker.session import STANDING_MAX
from lance_spark.errors import OptionError
from lance_spark.model import Retention
from lance_spark.wire import fluvio as wire
from lance_spark.wire.fluvio import Role
from tests.broker.fluvio.conftest import DialFluvio
from tests.broker.fluvio.kit import HERE, FluvioClient, batch, make_fetch
from tests.broker.kit import Dial, StartBroker
from tests.broker.test_server import certificates as certificates
from tests.broker.test_server import tls_of, tls_settings
from tests.each import each

KINDS = ("Topic", "Partition")
OK = wire.NO_ERROR


def told(kind: str, answer: Any) -> list[tuple[int, str]]:
    """Give the changes of an answer to a Watch."""
    assert isinstance(answer, wire.Watched) and answer.kind == kind
    assert not answer.everything
    return [(change.is_deleted, change.object.name) for change in answer.changes]


def delete(broker: EmbeddedBroker, topic: str) -> None:
    """Delete a topic, whoever may."""
    store = broker.service.store
    logs = [one.metadata for one in store.topics()]
    store.delete_topics([log.id for log in logs if log.partition.topic == topic])


# Versions.


@each("role", list(Role))
def test_versions(broker: EmbeddedBroker, dial_fluvio: DialFluvio, role: Role) -> None:
    for version in (0, 2, 99, -1):
        answer = dial_fluvio(broker, role).ask(wire.ApiVersions(api_version=version))
        assert answer.error == OK
        assert answer.keys == wire.API_KEYS[role]
        assert all(part.isdecimal() for part in answer.platform_version.split("."))


def test_any_version_is_read(sc: FluvioClient) -> None:
    for version in (11, 12, 13, 14, 16, 19, 25, 99):
        spec = wire.TopicSpec()
        name = f"v{version}"
        made = sc.ask(
            wire.Create("Topic", name, False, None, spec, api_version=version)
        )
        assert made.error == OK
        for kind, expected in (("Topic", name), ("Partition", f"{name}-0")):
            found = sc.ask(wire.List(kind, (name,), api_version=version)).objects
            assert [one.name for one in found] == [expected]
    # Objects were written in another way before.
    old = sc.ask(replace(wire.Other(1003, b""), api_version=10))
    assert isinstance(old, wire.Failed | wire.Status)


# Lists.


def test_topics_and_partitions(
    broker: EmbeddedBroker, sc: FluvioClient, dial: Dial, dial_fluvio: DialFluvio
) -> None:
    assert sc.list() == sc.list("Partition") == []
    assert sc.create("orders", 3) == OK
    dial(broker).create("plain")
    assert sc.list() == ["orders", "plain"]
    assert sc.list("Partition") == ["orders-0", "orders-1", "orders-2", "plain-0"]
    assert sc.list("Topic", "plain", "nosuch") == ["plain"]
    assert sc.list("Partition", "orders-1", "plain") == ["orders-1", "plain-0"]
    spu = dial_fluvio(broker)
    spu.write("orders", b"a", b"b", partition=1)
    [topic] = sc.ask(wire.List("Topic", ("orders",))).objects
    assert topic.spec.partitions == 3
    assert topic.status.replicas == tuple(wire.Replicas(n, (5001,)) for n in range(3))
    found = sc.ask(wire.List("Partition", ("orders",))).objects
    assert [one.spec.leader for one in found] == [5001] * 3
    ends = [(one.status.leader.high_watermark, one.status.leader.end) for one in found]
    assert ends == [(0, 0), (2, 2), (0, 0)]


def test_other_objects(sc: FluvioClient) -> None:
    assert sc.list("SmartModule") == []
    answer = sc.ask(wire.Watch("TableFormat"))
    assert (answer.kind, answer.changes, answer.everything) == ("TableFormat", (), ())
    made = sc.ask(wire.Create("SmartModule", "m", False, None, b""))
    assert made.error.code == 2 and "SmartModule" in made.error.fields[0]


def test_requests_that_are_not_known(sc: FluvioClient, spu: FluvioClient) -> None:
    for client, key in ((sc, 1002), (sc, 1007), (sc, 0), (spu, 1006), (spu, 9999)):
        request = wire.Other(key, b"\0\5Topic\0\0\0\0")
        number = client.submit(request)
        frame = client.next_frame()
        assert frame is not None and wire.number_of(frame) == number
        said = b"`lance-spark topics delete`" if key == 1002 else str(key).encode()
        assert said in bytes(frame.payload)
        body = bytes(frame.payload[4:])
        # An SC answers with a name first, which is empty.
        assert body.startswith(b"\0\0\0\2" if client is sc else b"\0\2")
        client.alive()
    assert sc.list() == ["orders"]


# New topics.


def test_retention(broker: EmbeddedBroker, sc: FluvioClient) -> None:
    for name, spec, kept in (
        ("a", {"cleanup": (0, 3600)}, Retention(3600)),
        ("b", {"storage": wire.Storage(None, 10**6)}, Retention(0, 10**6)),
        ("c", {"storage": wire.Storage(1000, None)}, Retention()),
        ("d", {"cleanup": (0, 9), "storage": wire.Storage(1, 8)}, Retention(9, 8)),
    ):
        assert sc.create(name, 2, **spec) == OK
        topic = broker.service.store.find_topic(f"{name}/1")
        assert topic is not None and topic.metadata.retention == kept
    [told] = sc.ask(wire.List("Topic", ("d",))).objects
    assert (told.spec.cleanup, told.spec.storage) == ((0, 9), wire.Storage(None, 8))


def test_partitions_that_are_assigned(sc: FluvioClient) -> None:
    lists = tuple(wire.Replicas(n, (7, 8)) for n in range(2))
    spec = wire.TopicSpec((wire.ASSIGNED, lists))
    assert sc.ask(wire.Create("Topic", "own", False, None, spec)).error == OK
    assert sc.list("Partition") == ["own-0", "own-1"]


REFUSALS = {
    "there": ("orders", 1, 2002),
    "slash": ("a/b", 1, 2006),
    "empty": ("", 1, 2006),
    "none": ("p0", 0, 2004),
    "many": ("p9", 257, 2004),
    "vast": ("vast", 2**32 - 1, 2004),
}


@each(("name", "count", "code"), list(REFUSALS.values()), ids=REFUSALS)
def test_topics_that_are_refused(
    sc: FluvioClient, spu: FluvioClient, name: str, count: int, code: int
) -> None:
    for dry_run in (True, False):
        spec = wire.TopicSpec((wire.COMPUTED, count, 1, False))
        answer = sc.ask(wire.Create("Topic", name, dry_run, 100, spec))
        assert (answer.name, answer.error.code) == (name, code)
        assert answer.text
    assert sc.list() == ["orders"]


def test_a_dry_run(start: StartBroker, dial_fluvio: DialFluvio) -> None:
    sc = dial_fluvio(start(fluvio=HERE, topics_max=3), Role.SC)
    for count, code in ((3, 0), (4, 2)):
        spec = wire.TopicSpec((wire.COMPUTED, count, 1, False))
        answer = sc.ask(wire.Create("Topic", "orders", True, None, spec))
        assert answer.error.code == code
        assert ("topics_max" in (answer.text or "")) == (code > 0)
    assert sc.list() == []


# Watches.


def test_watches(broker: EmbeddedBroker, sc: FluvioClient, dial: Dial) -> None:
    """Each client has the three of them twice."""
    sc.create("orders", 2)
    for _ in range(2):
        spu = sc.ask(wire.Watch("SPU"))
        assert [one.name for one in spu.everything] == ["custom-spu-5001"]
        found = sc.ask(wire.Watch("Partition"))
        assert [one.name for one in found.everything] == ["orders-0", "orders-1"]
        found = sc.ask(wire.Watch("Topic"))
        assert [one.name for one in found.everything] == ["orders"]
    sc.alive()
    dial(broker).create("late")
    for number in range(4):
        kind = KINDS[1 - number % 2]
        name = "late" if kind == "Topic" else "late-0"
        assert told(kind, sc.next()) == [(0, name)]
    delete(broker, "orders")
    for number in range(4):
        kind = KINDS[1 - number % 2]
        names = ["orders"] if kind == "Topic" else ["orders-0", "orders-1"]
        assert told(kind, sc.next()) == [(1, name) for name in names]
    assert sc.is_silent()
    assert sc.list() == ["late"]


def test_a_topic_that_comes_again(broker: EmbeddedBroker, sc: FluvioClient) -> None:
    """It is another one, of which the client learns in order."""
    sc.create("orders", 2)
    epochs = [sc.ask(wire.Watch("Partition")).epoch]
    delete(broker, "orders")
    answer = sc.next()
    assert told("Partition", answer) == [(1, "orders-0"), (1, "orders-1")]
    epochs.append(answer.epoch)
    broker.service.create_topic(Principal(), "orders")
    answer = sc.next()
    assert told("Partition", answer) == [(0, "orders-0")]
    epochs.append(answer.epoch)
    assert epochs == sorted(set(epochs))


def test_changes(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHANGES_MAX", 3)
    changes = module.Changes(broker.service)
    client, service = Principal(), broker.service
    service.create_topic(client, "before")
    start = changes.next_number()
    assert changes.since(start) == []
    service.create_topics(client, "orders", 2)
    [(topic, is_deleted)] = changes.since(start)
    assert (topic.name, topic.partitions, is_deleted) == ("orders", 2, False)
    # Gone and there again between two looks.
    delete(broker, "orders")
    service.create_topic(client, "orders")
    found = changes.since(start + 1)
    assert [(c.topic.partitions, c.is_deleted) for c in found] == [
        (2, True),
        (1, False),
    ]
    assert changes.since(start + 2) == found[1:]
    service.create_topic(client, "more")
    assert len(changes.since(start + 1)) == 3
    with pytest.raises(module.LimitReached, match="4 topics have come or gone"):
        changes.since(start)


def test_a_client_that_has_missed_too_much(
    start: StartBroker,
    dial_fluvio: DialFluvio,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not told a part for the whole."""
    broker = start(fluvio=HERE)
    sc = dial_fluvio(broker, Role.SC)
    sc.ask(wire.Watch("Topic"))

    def fail(self: Any, number: int) -> Any:
        raise module.LimitReached("too many have come or gone")

    monkeypatch.setattr(module.Changes, "since", fail)
    broker.service.create_topic(Principal(), "orders")
    assert sc.ended()
    assert "too many have come or gone" in caplog.text


def test_too_many_watches(sc: FluvioClient, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(STANDING_MAX):
        assert sc.ask(wire.Watch("Topic")).everything == ()
    sc.submit(wire.Watch("Topic"))
    assert sc.ended()
    assert f"may have {STANDING_MAX}" in caplog.text


# Who is told.


def test_identity(
    start: StartBroker, dial_fluvio: DialFluvio, certificates: dict[str, str]
) -> None:
    """A certificate is one; rules hide topics, in lists and in Watches."""
    rule = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    broker = start(
        **tls_settings(certificates, tls_client_ca_path=certificates["ca"]),
        fluvio=HERE,
        tokens=("secret",),
        topics={"own": {"auth": rule, "partitions": 2}, "late": {"auth": rule}},
    )
    delete(broker, "late")

    def dial(role: Role, name: str | None = None) -> FluvioClient:
        return dial_fluvio(broker, role, tls=tls_of(certificates, name))

    for role in Role:
        assert dial(role).ask(wire.ApiVersions()).error == wire.ErrorCode(13)
    stranger = dial(Role.SC)
    assert stranger.create("x") == wire.ErrorCode(13)
    stranger.submit(wire.List("Topic"))
    assert stranger.ended()
    assert dial(Role.SPU).produce("own", (0, batch(b"x")))[0].error.code == 13

    spark, flink = dial(Role.SC, "spark"), dial(Role.SC, "flink")
    assert spark.list() == ["own"] and flink.list() == flink.list("Partition") == []
    for kind in KINDS:
        assert spark.ask(wire.Watch(kind)).everything
        assert not flink.ask(wire.Watch(kind)).everything
    assert spark.create("late") == wire.NO_ERROR
    for kind in KINDS:
        assert len(told(kind, spark.next())) == 1
    delete(broker, "late")
    for kind in KINDS:
        assert [gone for gone, _ in told(kind, spark.next())] == [1]
    assert flink.create("seen") == wire.NO_ERROR
    for kind in KINDS:
        assert told(kind, flink.next())[0][0] == 0, "it is the first that it is told of"
    for name in ("own", "late"):
        assert flink.create(name).code == 13

    spu = dial(Role.SPU, "flink")
    assert spu.produce("own", (1, batch(b"x")))[0].error.code == 13
    answer = spu.ask(make_fetch("own", (1, 0), max_wait_ms=60_000))
    assert answer.topics[0].partitions[0].error.code == 13
    assert spu.ask(wire.StreamFetch("own", 1)).partition.error.code == 13
    asked = wire.FetchOffsets((wire.OffsetsTopic("own", (1,)),))
    assert spu.ask(asked).topics[0].partitions[0].error.code == 13
    assert dial(Role.SPU, "spark").write("own", b"x", partition=1) == 0


# Where the SPU is.


def advertised(sc: FluvioClient) -> tuple[str | None, int, int]:
    [spu] = sc.ask(wire.List("SPU")).objects
    return spu.spec.public.host, spu.spec.public.port, spu.spec.public.encryption


def test_the_spus_address(start: StartBroker, dial_fluvio: DialFluvio) -> None:
    broker = start(fluvio="0.0.0.0:0")
    port = int(broker.address_of("fluvio_spu").rpartition(":")[2])
    assert broker.address_of("fluvio_spu") == f"0.0.0.0:{port}"
    # The SPU of a wildcard is where the client has come to.
    assert advertised(dial_fluvio(broker, Role.SC)) == ("127.0.0.1", port, 0)
    told = start(fluvio=HERE, fluvio_advertise="logs.example.com:9010")
    assert advertised(dial_fluvio(told, Role.SC)) == ("logs.example.com", 9010, 0)
    here = start(fluvio=HERE, fluvio_spu="localhost:0")
    host, _, port_text = here.address_of("fluvio_spu").rpartition(":")
    found = advertised(dial_fluvio(here, Role.SC))
    assert found == (host.strip("[]"), int(port_text), 0)


def test_the_spus_address_with_tls(
    start: StartBroker, dial_fluvio: DialFluvio, certificates: dict[str, str]
) -> None:
    broker = start(**tls_settings(certificates), fluvio="0.0.0.0:0")
    sc = dial_fluvio(broker, Role.SC, tls=tls_of(certificates))
    assert advertised(sc)[::2] == ("127.0.0.1", 1)


def test_a_restart_keeps_both_addresses(
    broker: EmbeddedBroker, dial_fluvio: DialFluvio
) -> None:
    before = broker.addresses
    assert list(before) == ["lance", "fluvio", "fluvio_spu"]
    broker.stop()
    broker.start()
    assert broker.addresses == before
    dial_fluvio(broker, Role.SC).alive()


@each(
    ("settings", "text"),
    [
        ({"fluvio_spu": HERE}, "set fluvio too"),
        ({"fluvio_advertise": "a:1"}, "set fluvio too"),
        ({"fluvio": HERE, "fluvio_advertise": "a:0"}, "clients can connect to"),
        ({"fluvio": "nothing"}, "the port is missing"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        EmbeddedBroker(**settings)


# What is not Fluvio.


@each(
    "payload",
    [b"", b"\0", b"\3\xeb\0\x13\0\0\0\1\0\1x\0\5To", b"\3\xec\0\x13\0\0\0\1\0\0"],
)
def test_malformed_requests(
    broker: EmbeddedBroker,
    dial_fluvio: DialFluvio,
    caplog: pytest.LogCaptureFixture,
    payload: bytes,
) -> None:
    caplog.set_level(logging.INFO)
    for role in Role:
        client = dial_fluvio(broker, role)
        client.send_payload(payload)
        is_other = role is Role.SPU and payload[:2] == b"\3\xec"
        if not is_other:
            assert client.ended(), (role, payload)
    assert "closed" in caplog.text


def test_lists_in_lists_are_bounded(spu: FluvioClient) -> None:
    """Each item of some bytes would be an object of a hundred."""
    topics = (wire.WriteTopic("orders", (wire.Write(0, b""),) * 63),) * 64
    spu.submit(wire.Produce(topics=topics[:63]))
    assert len(spu.next().topics) == 63
    spu.submit(wire.Produce(topics=(*topics, topics[0])))
    assert spu.ended()


def test_more_clients_than_are_served(
    start: StartBroker, dial_fluvio: DialFluvio
) -> None:
    broker = start(fluvio=HERE, connections_max=1)
    dial_fluvio(broker, Role.SC).alive()
    second = dial_fluvio(broker)
    [outcome] = second.produce("orders", (0, batch(b"x")))
    assert outcome.error.code == 2
    assert "1 connections" in outcome.error.fields[0]
    assert second.ended()
