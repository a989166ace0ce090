"""The other messages, connections, refusals, and sessions that were captured."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import pytest

import lance_spark.broker.tank.session as module
from lance_spark.broker import EmbeddedBroker
from lance_spark.model import Retention
from lance_spark.net.deadline import Deadline
from lance_spark.wire import tank as wire
from tests.broker.kit import Dial, StartBroker, eventually, record
from tests.broker.tank.conftest import DialTank
from tests.broker.tank.kit import (
    HERE,
    MIB,
    TankClient,
    bundle,
    rows_in,
    rows_of,
    stands,
    values,
)
from tests.broker.test_server import certificates as certificates
from tests.broker.test_server import tls_of, tls_settings

VECTORS = Path(__file__).parents[2] / "wire" / "tank" / "vectors"

# Topics.


def test_topics_and_bounds(
    broker: EmbeddedBroker, tank: TankClient, dial: Dial
) -> None:
    assert tank.ask(wire.DiscoverTopics(9)) == wire.Topics(9, ())
    assert tank.create("orders", 3) == 0
    dial(broker).create("plain")
    assert tank.ask(wire.DiscoverTopics(9)).topics == (
        wire.TopicEntry("orders", 1, 3),
        wire.TopicEntry("plain", 1, 1),
    )
    assert tank.bounds("orders") == [(1, 0)] * 3
    tank.write("orders", b"a", b"b", partition=1)
    assert tank.bounds("orders") == [(1, 0), (1, 2), (1, 0)]
    assert tank.bounds("plain") == [(1, 0)]
    for name in ("nosuch", "orders/1", ""):
        assert tank.bounds(name) == []


def test_bounds_of_an_emptied_log(start: StartBroker, dial_tank: DialTank) -> None:
    topics = {"orders": {"retention": {"max_bytes": 100}}}
    broker = start(tank=HERE, segment_bytes=100, topics=topics)
    tank = dial_tank(broker)
    for _ in range(5):
        tank.write("orders", b"x" * 90)
    broker.service.maintain()
    assert tank.bounds("orders") == [(6, 5)]
    assert rows_in(tank.consume("orders", 6)) == []
    tank.write("orders", b"y")
    assert [row.seq for row in tank.read("orders")] == [6]


def test_a_damaged_partition(
    directory: Path, dial_tank: DialTank, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {
        "data_dir": str(directory / "data"),
        "fsync": "none",
        "tank": HERE,
    }
    with EmbeddedBroker(**settings) as broker:
        tank = dial_tank(broker)
        tank.create("orders", 3)
        tank.write("orders", b"a", partition=2)
        topic = broker.service.store.find_topic("orders/1")
        assert topic is not None
    where = directory / "data" / "segments" / str(topic.metadata.id)
    [metadata] = where.glob("*.json")
    metadata.write_bytes(b"garbage")
    with EmbeddedBroker(**settings) as broker:
        tank = dial_tank(broker)
        answer = tank.ask(wire.DiscoverPartitions(4, "orders"))
        assert [one.reason.code for one in answer.partitions] == [0, 0xFB, 0]
        assert "orders/1: its metadata is damaged" in caplog.text
        fetches = [(1, 1, 100), (2, 1, 100)]
        [found] = tank.ask(tank.make_consume(("orders", fetches))).topics
        assert found.partitions[0].flag == 0xFB
        assert values(rows_in(found.partitions[1])) == [b"a"]
        writes = [(1, bundle(b"x")), (2, bundle(b"b"))]
        codes = tank.produce(("orders", writes))
        assert codes == [2, 0]
        assert tank.read("orders") == []


def test_a_damaged_topic(directory: Path, dial_tank: DialTank) -> None:
    settings: dict[str, Any] = {
        "data_dir": str(directory / "data"),
        "fsync": "none",
        "tank": HERE,
    }
    with EmbeddedBroker(**settings) as broker:
        tank = dial_tank(broker)
        tank.create("orders")
        where = directory / "data" / "segments" / str(tank_topic(broker, "orders"))
    (where / "metadata.json").write_bytes(b"garbage")
    with EmbeddedBroker(**settings) as broker:
        tank = dial_tank(broker)
        answer = tank.ask(wire.DiscoverPartitions(4, "orders"))
        assert [one.reason.code for one in answer.partitions] == [0xFB]
        assert tank.consume("orders", 1, wait_ms=60_000).flag == 0xFB
        assert tank.produce(("orders", [(0, bundle(b"x"))])) == [2]
        assert tank.create("orders") == 2


def test_creating(
    broker: EmbeddedBroker, tank: TankClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert tank.create("orders", 2, "log.retention.secs=60\nunknown=1\n") == 0
    for number in range(2):
        topic = broker.service.store.find_topic(f"orders/{number}")
        assert topic is not None
        assert topic.metadata.retention == Retention(max_age_s=60)
    assert tank.create("plain", 1, "log.retention.secs = 0") == 0
    assert tank.create("orders", 2) == 1
    assert tank.create("orders", 3) == 1
    for name in ("a/b", "..", "", "x" * 255, "orders/0"):
        assert tank.create(name, 2) == 10, name
    for partitions in (0, 257, 65535):
        assert tank.create("many", partitions) == 10
    for value in ("-1", "x", "", "1.5", "9" * 30):
        assert tank.create("bad", 1, f"log.retention.secs={value}") == 4, value
    assert "log.retention.secs" in caplog.text
    answer = tank.ask(wire.DiscoverTopics(1))
    assert [topic.name for topic in answer.topics] == ["orders", "plain"]


def test_the_rest(broker: EmbeddedBroker, tank: TankClient) -> None:
    tank.create("orders", 3)
    tank.create("other")
    reload = wire.ReloadConf(5, "orders", 2)
    assert tank.ask(reload) == wire.Reloaded(5, "orders", 2)
    for topic, partition in (("orders", 3), ("nosuch", 0)):
        answer = tank.ask(wire.ReloadConf(5, topic, partition))
        assert (answer.topic, answer.partition) == (topic, partition)
        assert answer.code == 2
    status = tank.ask(wire.GetStatus(6))
    assert (status.topics, status.partitions, status.version) == (2, 4, 400)
    assert abs(status.start_time_s - broker.service.started_s) < 2
    assert tank.ask(wire.DiscoverTopology(8)) == wire.Topology(8)
    tank.submit(wire.Ping())
    assert tank.is_silent(0.05)
    tank.alive()


# Connections.


def test_bytes_behind_a_message_are_ignored(tank: TankClient) -> None:
    tank.create("orders")
    for message in (
        wire.DiscoverTopics(1),
        wire.DiscoverPartitions(1, "orders"),
        wire.GetStatus(1),
        tank.make_consume(("orders", [(0, 0, 10)])),
        tank.make_produce(("orders", [(0, bundle(b"a"))])),
    ):
        head, *parts = wire.encode_message(message)
        payload = b"".join(bytes(part) for part in parts)
        tank.send_payload(bytes(head)[0], payload + b"and more")
        assert isinstance(tank.next(), wire.Message)
    assert tank.bounds("orders") == [(1, 1)]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<BI", 4, 0),
        struct.pack("<BI", 9, 0),
        struct.pack("<BI", 0x0D, 0),
        struct.pack("<BI", 0, 0),
        struct.pack("<BI", 1, 2**32 - 1),
        struct.pack("<BI", 2, 3) + b"abc",
        struct.pack("<BI", 6, 5) + bytes(4) + b"\xff",
        struct.pack("<BI", 6, 6) + bytes(4) + b"\1\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_makes_no_sense_ends_the_connection(
    broker: EmbeddedBroker,
    dial_tank: DialTank,
    data: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = dial_tank(broker)
    with caplog.at_level(logging.INFO, "lance_spark"):
        client.send(data)
        assert client.ended()
    assert "closed" in caplog.text
    dial_tank(broker).alive()


def test_no_topics_to_consume(broker: EmbeddedBroker, tank: TankClient) -> None:
    tank.submit(tank.make_consume())
    assert tank.ended()


def test_the_answers_before_come_first(
    broker: EmbeddedBroker, tank: TankClient
) -> None:
    tank.create("orders")
    parts = wire.encode_message(tank.make_produce(("orders", [(0, bundle(b"a"))])))
    tank.send(*parts, struct.pack("<BI", 4, 0))
    assert isinstance(tank.next(), wire.Produced)
    assert tank.ended()


def test_a_client_that_goes_while_it_waits(
    broker: EmbeddedBroker, tank: TankClient, dial_tank: DialTank
) -> None:
    tank.create("orders")
    other = dial_tank(broker)
    other.submit(other.make_consume(("orders", [(0, 1, 10)]), wait_ms=60_000))
    assert broker._server is not None
    waiting = broker._server._shared.waiting
    assert eventually(lambda: waiting.taken > 0)
    other.stream.close()
    assert eventually(lambda: waiting.taken == 0)


def test_idle_connections(start: StartBroker, dial_tank: DialTank) -> None:
    """A request that stands is no idleness."""
    broker = start(tank=HERE, idle_timeout_other_s=0.2, idle_timeout_s=0.2)
    tank, idle = dial_tank(broker), dial_tank(broker)
    tank.create("orders")
    poll = tank.make_consume(("orders", [(0, 1, 10)]), wait_ms=600)
    tank.submit(poll)
    assert idle.ended()
    assert isinstance(tank.next(), wire.Consumed)
    assert tank.ended()


# Refusals.


def test_a_token_can_not_be_carried(
    start: StartBroker, dial_tank: DialTank, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(tank=HERE, tokens=("secret",))
    client = dial_tank(broker)
    client.submit(wire.DiscoverTopics(1))
    assert client.ended()
    assert "asks for a token, which TANK can't carry" in caplog.text
    # Nothing large is taken from strangers.
    client = dial_tank(broker)
    client.send(struct.pack("<BI", 1, 65 * 1024))
    assert client.ended()
    counts = broker.metrics.snapshot().protocols["tank"]
    assert counts.requests_refused >= 1


def test_a_certificate_stands_for_a_token(
    start: StartBroker,
    dial_tank: DialTank,
    certificates: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rule = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    broker = start(
        **tls_settings(certificates, tls_client_ca_path=certificates["ca"]),
        tank=HERE,
        tokens=("secret",),
        topics={"own": {"auth": rule, "partitions": 2}},
    )
    stranger = dial_tank(broker, tls=tls_of(certificates))
    stranger.submit(wire.GetStatus(1))
    assert stranger.ended()
    spark = dial_tank(broker, tls=tls_of(certificates, "spark"))
    assert spark.ask(wire.DiscoverTopics(1)).topics == (wire.TopicEntry("own", 1, 2),)
    spark.write("own", b"a", partition=1)
    flink = dial_tank(broker, tls=tls_of(certificates, "flink"))
    assert flink.ask(wire.DiscoverTopics(1)).topics == ()
    assert flink.ask(wire.GetStatus(1)).topics == 0
    for message in (
        flink.make_produce(("own", [(1, bundle(b"x"))])),
        flink.make_produce(("own", [(1, bundle(b"x"), 2)])),
        flink.make_consume(("own", [(1, 1, 100)])),
        flink.make_consume(("own", [(1, 2, 100)]), wait_ms=60_000),
        wire.DiscoverPartitions(1, "own"),
        wire.CreateTopic(1, "own", 2),
        wire.ReloadConf(1, "own", 1),
    ):
        caplog.clear()
        denied = dial_tank(broker, tls=tls_of(certificates, "flink"))
        denied.submit(message)
        assert denied.ended(), message
        assert "access denied" in caplog.text.lower()
    assert values(spark.read("own", partition=1)) == [b"a"]


def test_a_refusal_ends_what_stands(
    start: StartBroker, dial_tank: DialTank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that fails closes, also while other requests stand."""
    broker = start(tank=HERE)
    tank, writer = dial_tank(broker), dial_tank(broker)
    tank.create("orders", 2)
    for number in range(2):
        tank.submit(tank.make_consume(("orders", [(number, 1, 10)]), wait_ms=60_000))
    assert stands(broker, 2)

    def fail(self: Any, *rest: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(module.TankSession, "_poll", fail)
    writer.write("orders", b"a")
    assert tank.ended()


def test_too_many_connections(start: StartBroker, dial_tank: DialTank) -> None:
    broker = start(tank=HERE, connections_max=2)
    for _ in range(2):
        dial_tank(broker).alive()
    third = dial_tank(broker, greeted=False)
    third.submit(wire.GetStatus(1))
    assert third.ended()


# Memory.


def test_announced_sizes_and_silence_cost_little(
    start: StartBroker, dial_tank: DialTank
) -> None:
    broker = start(tank=HERE, memory_bytes_max=8 * MIB)
    assert broker._server is not None
    memory = broker._server._shared.memory
    for _ in range(12):
        dial_tank(broker).send(struct.pack("<BI", 1, 15 * MIB) + b"\x01")
    honest = dial_tank(broker)
    honest.create("orders")
    assert memory.taken <= 12 * MIB
    honest.write("orders", b"x" * MIB)
    assert memory.taken <= 12 * MIB


def test_an_answer_that_is_cut_off_is_followed_by_none(
    broker: EmbeddedBroker, tank: TankClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tank.create("orders")
    tank.write("orders", b"x" * (15 * MIB))
    sent: list[int] = []
    original = module.TankSession._transmit

    def count(self: Any, size: int, *rest: Any) -> None:
        sent.append(size)
        original(self, size, *rest)

    monkeypatch.setattr(module.TankSession, "_transmit", count)
    monkeypatch.setattr(
        module.TankSession, "_sending_deadline", lambda self: Deadline.after(0.05)
    )
    tank.submit(tank.make_consume(("orders", [(0, 1, 2**32 - 1)])))
    assert eventually(lambda: broker.metrics.snapshot().connections == 0)
    assert len(sent) == 1


# Restarts and figures.


def test_a_restart_keeps_everything(start: StartBroker, dial_tank: DialTank) -> None:
    broker = start(tank=HERE)
    tank = dial_tank(broker)
    tank.create("orders", 3)
    tank.write("orders", b"a", b"b", partition=2)
    address = broker.address_of("tank")
    broker.stop()
    broker.start()
    assert broker.address_of("tank") == address
    tank = dial_tank(broker)
    assert tank.bounds("orders") == [(1, 0), (1, 0), (1, 2)]
    assert tank.produce(("orders", [(2, bundle(b"x"), 2)])) == [0x0A]
    assert tank.produce(("orders", [(2, bundle(b"c"), 3)])) == [0]
    assert values(tank.read("orders", partition=2)) == [b"a", b"b", b"c"]


def test_metrics(broker: EmbeddedBroker, tank: TankClient, dial: Dial) -> None:
    tank.create("orders")
    tank.write("orders", b"a")
    tank.read("orders")
    poll = tank.make_consume(("orders", [(0, 2, 10)]), wait_ms=60_000)
    tank.submit(poll)
    assert stands(broker)
    dial(broker).write(tank_topic(broker, "orders"), record(b"b"), count=1)
    tank.next()
    tank.produce(("nosuch", [(0, bundle(b"x"))]))
    snapshot = broker.metrics.snapshot()
    counts = snapshot.protocols["tank"]
    assert counts.connections == 1 and counts.requests_refused == 1
    assert counts.received_bytes > 100 and counts.sent_bytes > 100
    found = {
        name: sum(latencies.counts)
        for name, latencies in snapshot.requests.items()
        if name.startswith("tank.")
    }
    assert found == {"tank.CreateTopic": 1, "tank.Produce": 2, "tank.Consume": 2}


def tank_topic(broker: EmbeddedBroker, name: str) -> int:
    topic = broker.service.store.find_topic(name)
    assert topic is not None
    return topic.metadata.id


# What was captured between TANK's client and its broker.

SESSIONS = {path.stem: path.read_text() for path in VECTORS.glob("*.hex")}
# In the order in which they were captured, on one broker. The answers of those that
# are not here differ, as said.
REPLAYED = (
    "create_topic",
    "create_dup",
    "discover_topics",
    "discover_unknown",
    "topology",
    "produce_1",
    "produce_3_bundle",
    "produce_keyed",
    "produce_20",
    "produce_compressed_16",
    "produce_unknown_topic",
    "produce_unknown_partition",
    "consume_unknown_topic",
    "consume_unknown_partition",
)
DIFFERENT = {
    "status": "the time of the start",
    "discover_partitions_empty": "an empty partition says 1 and 0, not 0 and 0",
    "discover_partitions2": "partitions that have other messages by then",
    "consume_from_0": "an answer is one bundle",
    "consume_from_6": "it begins at the asked message",
    "consume_prefer_local": "it begins at the asked message",
    "consume_empty_partition": "the base of nothing",
    "consume_past_end": "the base of nothing",
    "consume_eof": "the base of nothing",
    "consume_sparse": "numbers are never left out",
    "produce_sparse": "numbers are never left out",
    "produce_ts_step": "it is in another partition by then",
    "long_poll_wakeup": "it is woken by another connection",
    "reload": "there is nothing to reload",
}


def split(name: str, mark: str) -> list[bytes]:
    """Give the frames of one direction."""
    lines = SESSIONS[name].splitlines()
    return [bytes.fromhex(line[2:]) for line in lines if line.startswith(mark)]


def test_every_session_is_accounted_for() -> None:
    assert set(REPLAYED) | set(DIFFERENT) == set(SESSIONS)


def test_captured_sessions(broker: EmbeddedBroker, dial_tank: DialTank) -> None:
    for name in REPLAYED:
        client = dial_tank(broker, greeted=False)
        client.send(*split(name, ">"))
        for expected in split(name, "<"):
            found = client.next_frame()
            assert found is not None, name
            head = struct.pack("<BI", found.kind, len(found.payload))
            assert head + bytes(found.payload) == expected, name
    tank = dial_tank(broker)
    theirs = next(data for data in split("consume_from_0", "<") if data[0] == 2)
    frame = wire.Frame(wire.Kind.CONSUME, memoryview(theirs)[wire.HEADER_BYTES :])
    answer = wire.decode_response(frame)
    assert isinstance(answer, wire.Consumed)
    fetched = answer.topics[0].partitions[0]
    rows = rows_of(wire.read_chunk(fetched.chunk, fetched.base_seq))
    # The same messages, keys and times, if not in the same bundles.
    assert tank.read_all("orders") == rows
    assert tank.bounds("orders")[0] == (1, fetched.hwm)
