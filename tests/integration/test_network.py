"""A network that delays, divides and cuts: clients go on, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import Consumer, LanceClient, Producer, RecordReader
from lance_spark.errors import ConnectionLost
from lance_spark.wire import lwp
from lance_spark.wire.lwp import Checksum
from tests.integration.kit import (
    PATIENCE_S,
    Raw,
    by_producer,
    first_occurrences,
    make_client,
    name_value,
    read_bytes,
    read_values,
    record,
)
from tests.integration.proxy import CLEAR, ByteFilter, Fate, Flow, Proxy

HALF = 0.5
HEADER_BYTES = lwp.HEADER_BYTES
# How many connections end in a test of random ends.
CUTS = 40
Plan = Callable[[int], Fate]

DIRECTIONS = pytest.mark.parametrize("direction", ["up", "down"])
ENDS = pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
NUMBERS = itertools.count(1)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Leave out the thousands of connections that a client says it has lost."""
    caplog.set_level(logging.ERROR, logger="lance_spark.client")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir = tmp_path_factory.mktemp("network")
    with EmbeddedBroker(data_dir=str(data_dir), fsync="none") as running:
        yield running


@pytest.fixture
def direct(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    """A client that the proxy does nothing to."""
    with make_client(broker.address) as client:
        yield client


@pytest.fixture
def topic(direct: LanceClient) -> int:
    return direct.create_topic(f"network-{next(NUMBERS)}").id


def check_delivered(direct: LanceClient, topic: int, producer: str, count: int) -> None:
    """Check that all records are there and in order, some of them perhaps again."""
    found = by_producer(read_values(direct, topic))
    assert first_occurrences(found[producer]) == list(range(count))


# The proxy itself: a fault that it does not make would prove nothing.


def frames(*sizes: int) -> bytes:
    parts = []
    for batch, size in enumerate(sizes, 1):
        parts += lwp.encode_ingest([bytes(size)], batch_id=batch, record_count=1)
    return b"".join(map(bytes, parts))


@pytest.mark.parametrize("step", [1, 7, 44, 1000])
@pytest.mark.parametrize(
    ("flow", "passed", "is_cut"),
    [
        (Flow(), 44 * 3 + 60, False),
        (Flow(cut_at=50), 50, True),
        (Flow(cut_frame=0, cut_share=0), 0, True),
        (Flow(cut_frame=1, cut_share=0), 54, True),
        (Flow(cut_frame=1, cut_share=HALF), 54 + 32, True),
        (Flow(swallow_at=60), 60, False),
        (Flow(swallow_frame=2), 54 + 64, False),
    ],
)
def test_gate(step: int, flow: Flow, passed: int, is_cut: bool) -> None:
    data = frames(10, 20, 30)
    gate = ByteFilter(flow)
    out = b""
    for start in range(0, len(data), step):
        out += gate.take(data[start : start + step])
    assert (out, gate.is_cut) == (data[:passed], is_cut)


def test_gate_cuts_at_the_first_byte() -> None:
    gate = ByteFilter(Flow(cut_at=0))
    assert (gate.is_cut, gate.take(b"abc")) == (True, b"")


# However the bytes come.


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param(Fate(Flow(1), Flow(1)), id="byte at a time"),
        pytest.param(Fate(Flow(43), Flow(45)), id="beside the header's size"),
        pytest.param(Fate(Flow(500, 0.001), Flow(500, 0.001)), id="slowly"),
        pytest.param(CLEAR, id="all at once"),
    ],
)
def test_pieces(
    broker: EmbeddedBroker, direct: LanceClient, topic: int, fate: Fate
) -> None:
    count = 60
    with Proxy(broker.address, lambda _: fate) as proxy:
        with make_client(proxy.address) as client:
            with Producer(client, topic, batch_bytes=300) as producer:
                for sequence in range(count):
                    producer.send(name_value("p", sequence))
            assert producer.acked_records == count
            assert producer.retried_batches == 0
            with Consumer(client, topic, fetch_bytes=400) as consumer:
                values = [found.value for found in consumer]
        assert proxy.cuts == 0
    assert values == [name_value("p", n) for n in range(count)]
    assert read_values(direct, topic) == values


def test_everything_in_one_segment(broker: EmbeddedBroker, topic: int) -> None:
    payload = record(b"x")
    requests = b"".join(
        [
            *lwp.encode_ingest([payload], batch_id=1, record_count=1, topic_id=topic),
            *lwp.encode_message(lwp.Fetch(topic, 0, 100)),
            lwp.encode_keepalive(),
            *lwp.encode_ingest([payload], batch_id=2, record_count=1, topic_id=topic),
            *lwp.encode_message(lwp.Fetch(topic, 0, 100)),
        ]
    )
    with Raw(broker.address) as raw:
        raw.send(requests)
        assert str(raw.frame()) == "ack batch 1"
        first = raw.answer()
        assert isinstance(first, lwp.FetchResponse) and bytes(first.data) == payload
        assert str(raw.frame()) == "keepalive"
        assert str(raw.frame()) == "ack batch 2"
        second = raw.answer()
        assert isinstance(second, lwp.FetchResponse)
        assert bytes(second.data) == 2 * payload


# However the connection ends.


def greeting_bytes(
    address: str, checksum: Checksum = Checksum.CRC32C
) -> dict[str, int]:
    """Tell how many bytes go each way before a client's first own request."""
    with Raw(address, checksum=checksum) as raw:
        raw.send(*lwp.encode_message(lwp.GetClusterStatus(), checksum=checksum))
        frame = raw.frame()
        assert frame is not None
        return {"up": HEADER_BYTES, "down": HEADER_BYTES + len(frame.payload)}


def cut_later_each_time(direction: str, *, start: int, reset: bool = False) -> Plan:
    """Cut the first connection behind so many bytes, the next one byte later, …"""

    def plan(number: int) -> Fate:
        flow = Flow(cut_at=start + number)
        up, down = (flow, Flow()) if direction == "up" else (Flow(), flow)
        return Fate(up, down, reset)

    return plan


@DIRECTIONS
def test_greeting_cut_at_every_byte(broker: EmbeddedBroker, direction: str) -> None:
    size = greeting_bytes(broker.address)[direction]
    cut = cut_later_each_time(direction, start=0)

    def plan(number: int) -> Fate:
        return replace(cut(number), reset=bool(number % 2))

    with Proxy(broker.address, plan) as proxy, make_client(proxy.address) as client:
        assert client.connection().capabilities
        # One was cut at each byte, and the last one had no more to lose.
        assert proxy.connections > size


@ENDS
@DIRECTIONS
def test_producer_cut_at_every_byte(
    broker: EmbeddedBroker,
    direct: LanceClient,
    topic: int,
    direction: str,
    reset: bool,
) -> None:
    """Batches meet a cut at each byte of the frames that carry and answer them."""
    count = 3
    start = greeting_bytes(broker.address)[direction]
    plan = cut_later_each_time(direction, start=start, reset=reset)
    with Proxy(broker.address, plan) as proxy, make_client(proxy.address) as client:
        with Producer(client, topic, batch_bytes=1, max_in_flight=2) as producer:
            for sequence in range(count):
                producer.send(name_value("p", sequence))
            producer.flush(PATIENCE_S)
        assert producer.acked_records == count
        assert proxy.cuts > HEADER_BYTES
    check_delivered(direct, topic, "p", count)


@ENDS
@DIRECTIONS
@pytest.mark.parametrize("dialect", ["lwp", "plain"])
def test_reader_cut_at_every_byte(
    tmp_path: Path, dialect: str, direction: str, reset: bool
) -> None:
    """A plain server cuts inside of records besides, so that some are half read."""
    checksum = Checksum.CRC32 if dialect == "plain" else Checksum.CRC32C
    options = {"checksum": checksum.value}
    settings = {"data_dir": str(tmp_path), "fsync": "none", "dialect": dialect}
    with EmbeddedBroker(**settings) as broker:  # type: ignore[arg-type]
        with make_client(broker.address, **options) as direct:
            topic = direct.create_topic("cut").id
            with Producer(direct, topic) as producer:
                for sequence in range(10):
                    producer.send(name_value("p", sequence))
            expected = read_bytes(direct, topic)
        start = greeting_bytes(broker.address, checksum)[direction]
        plan = cut_later_each_time(direction, start=start, reset=reset)
        with (
            Proxy(broker.address, plan) as proxy,
            make_client(proxy.address, **options) as client,
        ):
            reader = RecordReader(client, topic, 0, end=len(expected), fetch_bytes=11)
            found = b""
            while (chunk := reader.next_chunk(1.0)) is not None:
                assert chunk.start == len(found)
                found += chunk.data
            assert proxy.cuts > HEADER_BYTES
    assert found == expected


@DIRECTIONS
def test_calls_cut_at_every_byte(tmp_path: Path, direction: str) -> None:
    """What is safe to repeat is repeated until it gets through."""
    with EmbeddedBroker(data_dir=str(tmp_path), fsync="none") as broker:
        with make_client(broker.address) as direct:
            topic = direct.create_topic("calls").id
        start = greeting_bytes(broker.address)[direction]
        plan = cut_later_each_time(direction, start=start)
        with Proxy(broker.address, plan) as proxy, make_client(proxy.address) as client:
            assert client.topic(topic).name == "calls"
            assert client.ensure_topic("calls").id == topic
            assert client.bounds("calls").end == 0
            assert client.commit_offset("calls", 7, 0) == 0
            assert client.committed_offset("calls", 7) == 0
            assert proxy.cuts > HEADER_BYTES


@pytest.mark.parametrize("share", [0.0, HALF, 0.99])
@DIRECTIONS
def test_cut_inside_each_frame(
    broker: EmbeddedBroker,
    direct: LanceClient,
    topic: int,
    direction: str,
    share: float,
) -> None:
    """Large frames, where cuts meet payloads that are received in parts."""
    count, size = 6, 200_000
    filler = b"." * size

    def plan(number: int) -> Fate:
        # Counted so that some progress is made before each cut.
        flow = Flow(cut_frame=1 + number % 5, cut_share=share)
        return Fate(up=flow) if direction == "up" else Fate(down=flow)

    with Proxy(broker.address, plan) as proxy, make_client(proxy.address) as client:
        with Producer(client, topic, batch_bytes=1, max_in_flight=3) as producer:
            for sequence in range(count):
                producer.send(filler + name_value(" p", sequence))
        assert producer.acked_records == count
        cuts = proxy.cuts
        assert cuts > 0
        with Consumer(client, topic, fetch_bytes=size) as consumer:
            seen = [found.value for found in consumer]
        assert proxy.cuts > cuts
    assert seen == read_values(direct, topic)
    check_delivered(direct, topic, f"{filler.decode()} p", count)


def test_connections_that_come_twice(
    broker: EmbeddedBroker, direct: LanceClient, topic: int
) -> None:
    """Everything is said twice: at least once is what a producer promises."""
    count = 50
    twice = Fate(is_doubled=True)
    with (
        Proxy(broker.address, lambda _: twice) as proxy,
        make_client(proxy.address) as client,
    ):
        with Producer(client, topic, batch_bytes=100) as producer:
            for sequence in range(count):
                producer.send(name_value("p", sequence))
        assert producer.acked_records == count
        with Consumer(client, topic) as consumer:
            assert sum(1 for _ in consumer) >= count
    check_delivered(direct, topic, "p", count)


# Work that goes on while connections end all the time.


class Feed:
    """A producer with a thread of its own, which says what was acknowledged."""

    def __init__(self, address: str, topic: int, name: str) -> None:
        self.name = name
        self.acked = 0
        self._client = make_client(address)
        self._producer = Producer(self._client, topic, batch_bytes=200, linger_s=0.001)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sequence = 0
        while not self._stop.is_set() or sequence < 100:
            for _ in range(20):
                self._producer.send(name_value(self.name, sequence))
                sequence += 1
            self._producer.flush(PATIENCE_S)
            self.acked = sequence

    def finish(self) -> int:
        """Let it end what it has begun; give how much is acknowledged."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        self._producer.close(timeout_s=PATIENCE_S)
        return self.acked

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._producer.close(abandon=True)
        self._client.close()


@pytest.mark.parametrize("seed", range(2))
def test_random_cuts_under_load(
    broker: EmbeddedBroker, direct: LanceClient, topic: int, seed: int
) -> None:
    """Nothing acknowledged is lost, each producer's order holds, readers miss nothing.

    Each connection ends at a random byte of a random direction.
    """
    rng = random.Random(f"network {seed}")
    lock = threading.Lock()

    def plan(_: int) -> Fate:
        with lock:
            flow = Flow(rng.choice([None, 1, 100]), cut_at=rng.randrange(4000))
            up, down = (flow, Flow()) if rng.random() < HALF else (Flow(), flow)
            return Fate(up, down, reset=rng.random() < HALF)

    with (
        Proxy(broker.address, plan) as proxy,
        make_client(proxy.address) as client,
        contextlib.ExitStack() as stack,
    ):
        feeds = [Feed(proxy.address, topic, f"p{n}") for n in range(3)]
        for feed in feeds:
            stack.enter_context(feed)
        seen: list[bytes | None] = []
        with Consumer(client, topic, fetch_bytes=700) as consumer:
            while proxy.cuts < CUTS:
                seen += [found.value for found in consumer.poll_blocking(1.0)]
            acked = {feed.name: feed.finish() for feed in feeds}
            # The way is clear for the rest: what is there has to be seen.
            proxy.plan = lambda _: CLEAR
            while consumer.lag():
                seen += [found.value for found in consumer.poll_blocking(5.0)]
    found = read_values(direct, topic)
    assert seen == found, f"seed {seed}: the consumer saw something else"
    for name, sequences in by_producer(found).items():
        first = first_occurrences(sequences)
        assert first == list(range(acked[name])), f"seed {seed}: {name}"


def test_broker_restarts_under_clients(tmp_path: Path) -> None:
    broker = EmbeddedBroker(data_dir=str(tmp_path / "data"), fsync="none")
    with broker, make_client(broker.address) as client:
        topic = client.create_topic("restarted").id
        with (
            Feed(broker.address, topic, "p") as feed,
            Consumer(client, topic) as consumer,
        ):
            for _ in range(3):
                while len(consumer.poll_blocking(5.0)) == 0:
                    pass
                broker.stop()
                with pytest.raises(ConnectionLost):
                    Raw(broker.address).close()
                broker.start()
            acked = feed.finish()
            consumer.rewind()
            seen = [found.value for found in consumer]
        assert seen == read_values(client, topic)
    assert first_occurrences(by_producer(seen)["p"]) == list(range(acked))
