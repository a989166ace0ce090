"""Clients that cost: connections, memory and patience are bounded, others go on.

The broker is a process of its own here, so that what it costs can be measured.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lance_spark.client import Consumer, Producer, SeekPosition
from lance_spark.errors import (
    ConnectionLimit,
    InvalidPayload,
    LanceError,
    PayloadTooLarge,
)
from lance_spark.wire import lwp
from tests.integration.batches import open_client
from tests.integration.crowd import find_kinds
from tests.integration.kit import (
    Raw,
    crowd,
    crowded,
    make_client,
    many_files,
    push,
    read_values,
    record,
    wait_for,
)
from tests.integration.process import HAS_PROC, BrokerProcess, count_files
from tests.integration.protocol import LISTENERS, PROTOCOLS

pytestmark = pytest.mark.skipif(not HAS_PROC, reason="/proc says what it costs")

KIB, MIB = 1024, 1024 * 1024
RECORD = record(b"hello")

# `make soak` asks for many, with the default limit.
IS_SOAK = "LANCE_SOAK_SECONDS" in os.environ
SILENT, LIMIT = (10_000, 1024) if IS_SOAK else (1_000, 600)
IDLE_S = 2.0
MEMORY = 64 * MIB
# What a session may cost that does nothing, one that sends a large answer from a file
# besides, and everything else.
SESSION_BYTES = 96 * KIB
PIECE_BYTES = 256 * KIB
SLACK_BYTES = 24 * MIB


SETTINGS = {
    "connections_max": LIMIT,
    "idle_timeout_s": IDLE_S,
    "memory_bytes_max": MEMORY,
    "fsync": "none",
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("hostile-process") / "data"
    with BrokerProcess(data_dir, **SETTINGS) as running:
        yield running


class Bystander:
    """A client that was there before, with all that it does."""

    def __init__(self, address: str, topic: str) -> None:
        self._client = make_client(address, keepalive_interval_s=0.5)
        self._producer = Producer(self._client, topic, create_topic=True)
        self._consumer = Consumer(self._client, topic, start=SeekPosition.END)
        self._sent = 0
        self.work()

    def work(self) -> None:
        """Produce and consume, and check that it works."""
        value = f"{self._sent}".encode()
        self._producer.send(value)
        self._producer.flush(30)
        self._sent += 1
        (found,) = self._consumer.poll_blocking(30)
        assert found.value == value
        self._client.ping()

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()
        self._client.close()

    def __enter__(self) -> Bystander:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.mark.soak
def test_connections_that_say_nothing(tmp_path: Path) -> None:
    # A fresh one, that has no memory left over from other tests.
    settings = {"connections_max": LIMIT, "idle_timeout_s": 600.0, "fsync": "none"}
    with (
        many_files(SILENT),
        BrokerProcess(tmp_path / "data", **settings) as process,
        Bystander(process.address, "crowd") as bystander,
    ):
        files, threads = count_files(process.pid), process.threads
        rss = process.rss_bytes
        with crowd(process.address, LIMIT):
            wait_for(lambda: process.threads >= LIMIT, "the limit is reached")
            wait_for(lambda: is_told_of_the_limit(process.address), "0x32")
            with crowd(process.address, SILENT - LIMIT):
                for _ in range(10):
                    bystander.work()
                # Some are served, a few are told, the others are closed.
                assert process.threads <= LIMIT + 16 + threads
                assert count_files(process.pid) <= files + LIMIT + 20
                assert process.rss_bytes - rss <= LIMIT * SESSION_BYTES
        wait_for(lambda: process.threads <= threads, "their places are free")
        wait_for(lambda: count_files(process.pid) <= files, "their files are closed")
        with make_client(process.address) as late:
            assert late.connect().status().capabilities


def test_silence_ends(process: BrokerProcess) -> None:
    """The silent do not keep their places for ever, and those that ping do."""
    with Bystander(process.address, "silence") as bystander:
        threads = process.threads
        with crowd(process.address, 50) as socks:
            for sock in socks:
                # The broker ends it, and says nothing.
                assert sock.recv(1) == b""
            wait_for(lambda: process.threads <= threads, "their threads have ended")
            bystander.work()


def is_told_of_the_limit(address: str) -> bool:
    with make_client(address) as client:
        try:
            client.connect()
        except ConnectionLimit:
            return True
        except LanceError:
            return False  # Too many of them to tell each one.
        raise AssertionError("one more was let in")


@pytest.fixture(scope="module")
def large(process: BrokerProcess) -> bytes:
    """A topic with one record of the largest size; give its value."""
    value = random.Random(1).randbytes(MIB) * 16
    with (
        make_client(process.address) as client,
        Producer(client, "large", create_topic=True) as producer,
    ):
        producer.send(value)
    return value


def test_readers_that_do_not_read(process: BrokerProcess, large: bytes) -> None:
    """They ask for gigabytes and take none of it; others get theirs."""
    readers, fetches = 60, 8
    with Bystander(process.address, "readers") as bystander:
        with make_client(process.address) as client:
            topic = client.topic_id("large")
        threads, rss = process.threads, process.rss_bytes
        process.reset_peak()
        request = b"".join(
            map(bytes, lwp.encode_message(lwp.Fetch(topic, 0, 16 * MIB)))
        )
        with crowd(process.address, readers) as socks:
            for sock in socks:
                sock.sendall(request * fetches)
            for _ in range(10):
                bystander.work()
            limit = readers * (SESSION_BYTES + PIECE_BYTES) + SLACK_BYTES
            assert process.peak_bytes - rss < limit
            with make_client(process.address) as client:
                assert read_values(client, "large") == [large]
            assert process.peak_bytes - rss < limit
            wait_for(lambda: process.threads <= threads, "they are closed")
            bystander.work()


def announce(size: int) -> bytes:
    """Make the header of a batch that never comes."""
    flags = lwp.FrameFlags.BATCH_MODE
    return lwp.encode_header(flags, batch_id=1, record_count=1, payload_length=size)


def test_writers_that_only_announce(process: BrokerProcess) -> None:
    """A header that promises 16 MiB costs what is sent, and not what is promised."""
    writers = 100
    frame = announce(16 * MIB)
    with Bystander(process.address, "announced") as bystander:
        rss = process.rss_bytes
        with crowd(process.address, writers) as socks:
            for sock in socks:
                sock.sendall(frame)
            for _ in range(5):
                bystander.work()
            assert process.rss_bytes - rss < writers * SESSION_BYTES + SLACK_BYTES


def test_writers_that_stall_share_a_budget(process: BrokerProcess) -> None:
    """Each sends almost all of a large payload; there is memory for some of them."""
    writers, waves = 10, 4
    frame = announce(16 * MIB) + bytes(15 * MIB)
    with Bystander(process.address, "stalled") as bystander:
        rss, threads = process.rss_bytes, process.threads
        process.reset_peak()
        for _ in range(waves):
            with crowd(process.address, writers) as socks:
                push(socks, frame)
            wait_for(lambda: process.threads <= threads, "they are gone")
        with crowd(process.address, writers) as socks:
            push(socks, frame)
            # The stalled ones have to go when somebody else needs the memory.
            bystander.work()
            with (
                make_client(process.address) as client,
                Producer(client, "stalled-too", create_topic=True) as producer,
            ):
                producer.send(bytes(8 * MIB))
        # What was given back is used again, by whichever connection. Buffers that grow
        # are there twice for a moment.
        assert process.peak_bytes - rss < MEMORY + 2 * SLACK_BYTES


# A crowd that does the worst it may, each request at its limits.

# So many times its quiet latency an append of another client may take.
SLOWER_MAX = 10
ROUNDS = 5
# What is computed at the same time, and what groups and stages hold, comes on top.
COMPUTING_BYTES = 2 * SLACK_BYTES


def time_appends(append: Callable[[], object], seconds: float) -> float:
    """Append one record after the other for a while; give the median time of one."""
    times: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s or len(times) < 5:
        began_s = time.perf_counter()
        append()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


@contextlib.contextmanager
def appending(process: BrokerProcess, protocol: str) -> Iterator[Callable[[], object]]:
    """Give what appends a record by a protocol, to a topic of its own."""
    if protocol in PROTOCOLS:
        with open_client(protocol, process.address_of(protocol)) as client:
            client.append("quiet", [b"x"], 0, create=True)
            yield lambda: client.append("quiet", [b"x"], 0)
        return
    with (
        make_client(process.address) as lance,
        Producer(lance, "quiet", create_topic=True) as producer,
    ):
        yield lambda: (producer.send(b"x"), producer.flush(60))


def list_crowds() -> list[tuple[str, str]]:
    """List protocols and what the crowd does; by default each does all of it."""
    return [
        (protocol, kind)
        for protocol in ("lance", *PROTOCOLS)
        for kind in ("all", *(find_kinds(protocol) if IS_SOAK else ()))
    ]


@pytest.mark.soak
@pytest.mark.parametrize(("protocol", "kind"), list_crowds())
def test_a_crowd_at_its_limits(tmp_path: Path, protocol: str, kind: str) -> None:
    """An append of another client stays quick, and memory bounded.

    What is quiet is measured in the same minute, round by round, until one round is
    good: a machine that is busy with other things must not fail this. Without turns
    no round is.
    """
    count = 100 if IS_SOAK else 2 * len(find_kinds(protocol))
    settings = {"memory_bytes_max": MEMORY, **LISTENERS}
    with (
        BrokerProcess(tmp_path / "data", **settings) as process,
        make_client(process.address) as client,
        appending(process, protocol) as append,
    ):
        number = client.ensure_topic("crowd").id
        with Producer(client, "crowd") as filler:
            for _ in range(20):
                filler.send(bytes(MIB))
        entry = PROTOCOLS.get(protocol)
        topic = number if entry is None else entry.find(process, "crowd")
        address = process.address if entry is None else entry.address_in(process)
        # The others are many, and have the same turns: a shorter look is enough.
        seconds = 1.0 if protocol == "lance" or IS_SOAK else 0.4
        time_appends(append, seconds / 2)
        threads = process.threads
        ratios: list[float] = []
        while not ratios or (ratios[-1] >= SLOWER_MAX and len(ratios) < ROUNDS):
            wait_for(lambda: process.threads <= threads, "the crowd is gone")
            quiet = time_appends(append, seconds / 2)
            process.reset_peak()
            rss = process.rss_bytes
            with crowded(address, protocol, kind, count, topic):
                time_appends(append, 0.2)
                ratios.append(time_appends(append, seconds) / quiet)
            grown = process.peak_bytes - rss
            assert grown < MEMORY + count * SESSION_BYTES + COMPUTING_BYTES
        assert ratios[-1] < SLOWER_MAX, ratios


def lz4_bomb(size: int) -> bytes:
    """Make a raw block that grows to so many zeros, from a 255th of that."""
    # One literal, and a match at distance 1 whose length goes on and on.
    match = b"\x1f\x00\x01\x00" + b"\xff" * (size // 255) + b"\x00"
    return match + b"\x50\x00\x00\x00\x00\x00"


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(lz4_bomb(1024 * MIB), id="block"),
        pytest.param(struct.pack("<I", 2**32 - 1) + lz4_bomb(256 * MIB), id="sized"),
        pytest.param(
            bytes.fromhex("04224d18684000000040000000ee") + lz4_bomb(256 * MIB),
            id="frame",
        ),
    ],
)
def test_lz4_bomb(process: BrokerProcess, bomb: bytes) -> None:
    with Bystander(process.address, "bombs") as bystander:
        process.reset_peak()
        rss = process.rss_bytes
        with make_client(process.address) as client, Raw(process.address) as raw:
            topic = client.ensure_topic("bombs-target").id
            before = client.bounds(topic).end
            for batch in range(1, 4):
                raw.ingest(bomb, batch, topic_id=topic, compressed=True)
                answer = raw.answer()
                assert isinstance(answer, lwp.ErrorResponse)
                assert answer.code in (
                    lwp.code_of(PayloadTooLarge),
                    lwp.code_of(InvalidPayload),
                )
            raw.ingest(RECORD, 9, topic_id=topic)
            assert str(raw.frame()) == "ack batch 9"
            assert client.bounds(topic).end == before + len(RECORD)
        assert process.peak_bytes - rss < SLACK_BYTES + 2 * lwp.PAYLOAD_BYTES_MAX
        bystander.work()


def test_bomb_is_one() -> None:
    """The block above is good LZ4, or the test before would prove nothing."""
    assert lwp.decompress(lz4_bomb(2550)).count(0) > 2550
