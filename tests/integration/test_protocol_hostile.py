"""Clients of protocols besides LWP that say what they should not, cost or stall.

Nothing of it is stored, the broker's memory is bounded, and others go on. The broker is
a process of its own, so that what it costs can be measured.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lance_spark.broker.session import STANDING_MAX
from lance_spark.client import LogClient
from lance_spark.net.address import parse_address
from tests.campaign import Tally
from tests.integration.batches import open_client
from tests.integration.kit import crowd, make_client, many_files, push, wait_for
from tests.integration.process import HAS_PROC, BrokerProcess, count_files
from tests.integration.protocol import LISTENERS, MIB, PROTOCOLS, Protocol
from tests.integration.test_hostile import mutate
from tests.store.kit import check_clean

pytestmark = pytest.mark.skipif(not HAS_PROC, reason="/proc says what it costs")

# `make soak` asks for a thousand. Each has a thread and a descriptor in the broker, and
# a standing request two more; `many_files` raises the soft limit for that.
IS_SOAK = "LANCE_SOAK_SECONDS" in os.environ
COUNT = 1000 if IS_SOAK else 50
FILES = 4 * COUNT
MEMORY = 64 * MIB
# What a session may cost that does nothing, a standing request or an answer of the size
# that costs no part of the budget, and everything else.
SESSION_BYTES = 96 * 1024
PIECE_BYTES = 256 * 1024
SLACK_BYTES = 24 * MIB
# So many times its quiet time an append and a read of another client may take.
SLOWER_MAX = 10
ROUNDS = 5
SETTINGS = {
    "connections_max": COUNT + 50,
    "memory_bytes_max": MEMORY,
    "fsync": "none",
    **LISTENERS,
}

EACH = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda p: p.name)
PATIENCE_S = 30.0
# A topic to which nothing comes.
EMPTY = "empty"
# How many requests wait at once on one connection of those that do.
POLLS = 1000


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("protocol-hostile") / "data"
    with many_files(FILES), BrokerProcess(data_dir, **SETTINGS) as running:
        with make_client(running.address) as client:
            client.create_topic(EMPTY)
        yield running
        assert "Traceback" not in running.said
    check_clean(data_dir)


class Bystander:
    """A client that was there before, with a topic of its own."""

    def __init__(self, process: BrokerProcess, protocol: Protocol) -> None:
        self._client = open_client(protocol.name, process.address_of(protocol.name))
        self._sent = 0
        self._client.append("bystander", [b"first"], create=True)
        self._next = self._client.bounds("bystander")[0].end

    def work(self) -> None:
        """Append, and read it back."""
        value = f"{self._sent}".encode()
        self._client.append("bystander", [value], 0)
        [batch] = self._client.read("bystander", 0, self._next)
        assert batch.column("value").to_pylist() == [value]
        self._sent += 1
        self._next += 1

    def time_work(self, times: int = 15) -> float:
        """Work so often; give how long that takes, the slowest included."""
        began_s = time.perf_counter()
        for _ in range(times):
            self.work()
        return time.perf_counter() - began_s

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def bystander(process: BrokerProcess, protocol: Protocol) -> Iterator[Bystander]:
    """Somebody to whom nothing happens."""
    with contextlib.closing(Bystander(process, protocol)) as one:
        one.work()
        yield one
        one.work()


def list_names(process: BrokerProcess) -> set[str]:
    """List the topics; not every protocol can."""
    with open_client("lance", process.address) as client:
        return {topic.name for topic in client.topics()}


@pytest.fixture
def target(process: BrokerProcess, protocol: Protocol) -> Iterator[LogClient]:
    """A client that looks at the topic `target`, to which nothing may be added."""
    address = process.address_of(protocol.name)
    with open_client(protocol.name, address) as client:
        client.append("target", [b"kept"], 0, create=True)
        before = client.bounds("target")
        yield client
        assert client.bounds("target") == before
        assert not {"vast", "../evil"} & list_names(process)


def dial(process: BrokerProcess, protocol: Protocol) -> socket.socket:
    at = parse_address(protocol.address_in(process))
    return socket.create_connection((at.host, at.port), PATIENCE_S)


def drain(sock: socket.socket) -> int:
    """Read to the end; give how many bytes came."""
    size = 0
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            size += len(data)
    return size


def say(process: BrokerProcess, protocol: Protocol, data: bytes) -> None:
    """Say something, and wait until the broker has ended the connection."""
    with dial(process, protocol) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        drain(sock)


def pairs(find: Callable[[Protocol], object]) -> list[object]:
    """List protocols, each with all that it has of something."""
    return [
        pytest.param(one, name, id=f"{one.name}-{name}")
        for one in PROTOCOLS.values()
        for name in find(one)  # type: ignore[attr-defined]
    ]


# What makes no sense.


@pytest.mark.parametrize(("protocol", "name"), pairs(lambda one: one.noise))
def test_noise(
    process: BrokerProcess,
    protocol: Protocol,
    name: str,
    bystander: Bystander,
    target: LogClient,
) -> None:
    process.reset_peak()
    rss = process.rss_bytes
    say(process, protocol, protocol.noise[name])
    # Behind a good request, which is answered.
    with dial(process, protocol) as sock:
        fetch = protocol.fetch(protocol.find(process, "target"))
        sock.sendall(fetch + protocol.noise[name])
        sock.shutdown(socket.SHUT_WR)
        assert drain(sock) > len(b"kept")
    assert process.peak_bytes - rss < SLACK_BYTES


@EACH
@pytest.mark.parametrize("size", ["the limit", "more", 2**31, 2**32 - 1])
def test_announced_sizes(
    process: BrokerProcess,
    protocol: Protocol,
    size: int | str,
    bystander: Bystander,
    target: LogClient,
) -> None:
    """They cost what is sent, and too large ones are refused at once."""
    most = protocol.payload_bytes_max
    announced = {"the limit": most, "more": most + 1}.get(str(size), size)
    assert isinstance(announced, int)
    count = 20
    with contextlib.ExitStack() as stack:
        process.reset_peak()
        rss, threads = process.rss_bytes, process.threads
        for _ in range(count):
            sock = stack.enter_context(dial(process, protocol))
            sock.sendall(protocol.announce(announced))
            if announced > most:
                drain(sock)
        bystander.work()
        assert process.peak_bytes - rss < count * SESSION_BYTES + SLACK_BYTES
    wait_for(lambda: process.threads <= threads, "they are gone")


@EACH
def test_frames_cut_at_every_byte(
    process: BrokerProcess, protocol: Protocol, bystander: Bystander, target: LogClient
) -> None:
    frame = protocol.append(protocol.find(process, "target"), [b"torn", b"rows"])
    for size in range(len(frame)):
        with dial(process, protocol) as sock:
            sock.sendall(frame[:size])
            if size % 3:
                # The others just go.
                sock.shutdown(socket.SHUT_WR)
                drain(sock)


@pytest.mark.parametrize(("protocol", "name"), pairs(lambda one: one.bombs))
def test_bombs(
    process: BrokerProcess,
    protocol: Protocol,
    name: str,
    bystander: Bystander,
    target: LogClient,
) -> None:
    bomb = protocol.bombs[name](protocol.find(process, "target"))
    process.reset_peak()
    rss = process.rss_bytes
    for _ in range(2):
        say(process, protocol, bomb)
    # What has come, and what is kept of it while it is looked at.
    assert process.peak_bytes - rss < 2 * len(bomb) + SLACK_BYTES


@EACH
def test_many_small_records_at_once(
    process: BrokerProcess, protocol: Protocol, bystander: Bystander
) -> None:
    """They take many times their bytes; four keep to the budget and what one takes."""
    rows = 400_000
    frame = protocol.append(protocol.find(process, "small"), [b""] * rows)
    with open_client(protocol.name, process.address_of(protocol.name)) as client:
        client.append("small", [b""], create=True)
        before = client.bounds("small")[0].end
        grown = []
        for count in (1, 4):
            process.reset_peak()
            rss = process.rss_bytes
            with crowd(protocol.address_in(process), count) as socks:
                push(socks, frame)
                for sock in socks:
                    sock.setblocking(True)
                    sock.shutdown(socket.SHUT_WR)
                    drain(sock)
            grown.append(process.peak_bytes - rss)
        assert client.bounds("small")[0].end == before + 5 * rows
    assert grown[1] < MEMORY + grown[0] + SLACK_BYTES, grown


def list_pollers() -> list[object]:
    return [pytest.param(one, id=one.name) for one in PROTOCOLS.values() if one.poll]


@pytest.mark.parametrize("protocol", list_pollers())
def test_a_thousand_that_wait_on_one_connection(
    process: BrokerProcess, protocol: Protocol, bystander: Bystander
) -> None:
    """Some wait, and the others are refused; the connection goes on."""
    assert protocol.poll is not None and protocol.count_refused is not None
    process.reset_peak()
    rss, threads = process.rss_bytes, process.threads
    data = b""
    with dial(process, protocol) as sock:
        sock.sendall(protocol.poll(protocol.find(process, EMPTY)) * POLLS)
        while protocol.count_refused(data) < POLLS - STANDING_MAX:
            received = sock.recv(65536)
            assert received, "it has ended the connection"
            data += received
        assert protocol.count_refused(data) == POLLS - STANDING_MAX
        bystander.work()
        assert process.peak_bytes - rss < SLACK_BYTES
        assert process.threads <= threads + 2
        # Others are answered beside those that wait.
        sock.sendall(protocol.fetch(protocol.find(process, "bystander")))
        assert sock.recv(65536)
    wait_for(lambda: process.threads <= threads, "it is gone")


# Noise that is almost the protocol, for as long as one likes.

SESSIONS = 30
SESSIONS_LONG = 2000
GROWTH_BYTES_MAX = 64 * MIB


@pytest.mark.fuzz
@pytest.mark.campaign("sessions")
def test_damaged_conversations(tmp_path: Path, tally: Tally) -> None:
    while tally.goes_on():
        path = tmp_path / f"{tally.rounds}" / "data"
        path.parent.mkdir()
        with BrokerProcess(path, **SETTINGS, topics_max=200) as broker:
            for protocol in PROTOCOLS.values():
                visit(broker, protocol, tally)
            assert "Traceback" not in broker.said, tally.seed
        check_clean(path)
        shutil.rmtree(path.parent)


def visit(broker: BrokerProcess, protocol: Protocol, tally: Tally) -> None:
    """Have many damaged conversations beside a good client; see what they leave."""
    rng = tally.rng
    with contextlib.closing(Bystander(broker, protocol)) as bystander:
        topic = protocol.find(broker, "mutated")
        # Bombs and the like are as large when they are damaged.
        parts = [
            frame
            for make in protocol.requests.values()
            if len(frame := make(topic)) < 20_000
        ]
        parts += [protocol.append(topic, [b"row"] * 3)] * 3
        before = (broker.rss_bytes, broker.threads, count_files(broker.pid))
        for number in range(SESSIONS_LONG if tally.seconds else SESSIONS):
            some = rng.choices(parts, k=rng.randrange(1, 6))
            say(broker, protocol, mutate(b"".join(some), rng))
            tally.counts["conversations"] += 1
            tally.counts["requests"] += len(some)
            if number % 8 == 0:
                bystander.work()
            if tally.seconds and tally.is_over and number > SESSIONS:
                break
        bystander.work()
        memory, threads, files = before
        wait_for(lambda: broker.threads <= threads + 2, "its threads end")
        wait_for(lambda: count_files(broker.pid) <= files + 128, "files are closed")
        assert broker.rss_bytes - memory <= GROWTH_BYTES_MAX, tally.seed
    tally.counts["failures"] = 0


# A crowd that stalls.


def stall_in_payload(
    protocol: Protocol, socks: list[socket.socket], find: Callable[[str], str]
) -> None:
    # Together they want twice the memory that there is.
    size = max(PIECE_BYTES, 2 * MEMORY // COUNT)
    push(socks, protocol.announce(8 * MIB) + bytes(size))


def send_all(socks: list[socket.socket], data: bytes) -> None:
    for sock in socks:
        sock.sendall(data)


# What a crowd does, given what finds the names that requests give topics.
Stall = Callable[[Protocol, list[socket.socket], Callable[[str], str]], object]
STALLS: dict[str, Stall] = {
    "silent": lambda protocol, socks, find: None,
    "in a header": lambda protocol, socks, find: send_all(
        socks, protocol.announce(100)[:2]
    ),
    "in a payload": stall_in_payload,
    "answers not read": lambda protocol, socks, find: send_all(
        socks, protocol.fetch(find("large")) * 8
    ),
    "polling": lambda protocol, socks, find: send_all(
        socks, protocol.poll(find(EMPTY)) if protocol.poll else b""
    ),
}
# These hold memory of the budget.
HOLDING = {"in a payload", "answers not read"}


def wait_gone(process: BrokerProcess, threads: int) -> None:
    """Wait until the crowd's sessions are over.

    Those that wait for memory learn of it when they have made an answer.
    """
    wait_for(lambda: process.threads <= threads, "the crowd is gone", 120.0)


def list_stalls() -> list[object]:
    return [
        pytest.param(one, stall, id=f"{one.name}-{stall}")
        for one in PROTOCOLS.values()
        for stall in STALLS
        if stall != "polling" or one.poll is not None
    ]


@pytest.mark.soak
@pytest.mark.parametrize(("protocol", "stall"), list_stalls())
def test_a_crowd_that_stalls(
    process: BrokerProcess,
    protocol: Protocol,
    stall: str,
    bystander: Bystander,
    target: LogClient,
) -> None:
    """Another client's append and read stay quick, and memory bounded.

    What is quiet is measured in the same minute, round by round until one is good, as
    other work of the machine must not fail this.
    """
    if "large" not in list_names(process):
        for _ in range(4):
            target.append("large", [bytes(1000)] * 1000, 0, create=True)
    address, threads = protocol.address_in(process), process.threads
    find = functools.partial(protocol.find, process)
    ratios: list[float] = []
    while not ratios or (ratios[-1] >= SLOWER_MAX and len(ratios) < ROUNDS):
        wait_gone(process, threads)
        quiet = bystander.time_work()
        process.reset_peak()
        rss = process.rss_bytes
        with crowd(address, COUNT) as socks:
            wait_for(lambda: process.threads >= COUNT, "all of them are served")
            STALLS[stall](protocol, socks, find)
            ratios.append(bystander.time_work() / quiet)
            grown = process.peak_bytes - rss
        most = COUNT * SESSION_BYTES + SLACK_BYTES
        if stall in HOLDING:
            # A large answer that does not cost the budget, and buffers that grow.
            most += MEMORY + COUNT * PIECE_BYTES // 4 + SLACK_BYTES
        assert grown < most, (grown, most)
    told = ", ".join(f"{ratio:.1f}" for ratio in ratios)
    sys.stdout.write(f"{COUNT} {stall}: {told} times, {grown / MIB:.0f} MiB\n")
    assert ratios[-1] < SLOWER_MAX, ratios
    wait_gone(process, threads)
