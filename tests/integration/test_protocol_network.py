"""A network that delays, divides, cuts and goes silent, for protocols besides LWP.

Appends are at least once: each acknowledged batch is there, in order; what is there a
second time is a whole batch. A sole writer of a protocol that appends conditionally
stores none twice. Readers see what the log has.

No bits are flipped where values are compared: most of these protocols have no checksum,
so that a flipped value is another value. Flips have a test of their own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LogClient
from lance_spark.errors import LanceError
from lance_spark.model import Partition
from lance_spark.testing.relay import CLEAR, Fate, Flow, Relay
from tests.campaign import Tally
from tests.integration.batches import (
    ROWS,
    BatchWriter,
    Follower,
    Reader,
    check_whole,
    make_logs,
    make_rows,
    open_client,
    open_through,
    read_places,
)
from tests.integration.kit import PATIENCE_S, Worker, wait_for, wait_for_steps
from tests.integration.protocol import LISTENERS, PROTOCOLS, Protocol

NUMBERS = itertools.count(1)
# Answers that vanish are missed after this time.
IMPATIENT = {"request_timeout_s": 0.5, "connect_timeout_s": 0.5}
# How many connections end in a round.
CUTS = 10
CUTS_LONG = 400

EACH = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda p: p.name)
DIRECTIONS = pytest.mark.parametrize("direction", ["up", "down"])


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Leave out the thousands of connections that a client says it has lost."""
    caplog.set_level(logging.ERROR, logger="lance_spark.client")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir = tmp_path_factory.mktemp("protocols")
    with EmbeddedBroker(data_dir=str(data_dir), fsync="none", **LISTENERS) as running:
        yield running


def cut_later_each_time(direction: str) -> Callable[[int], Fate]:
    """Cut the first connection before its first byte, the next one byte later, …"""

    def plan(number: int) -> Fate:
        flow = Flow(cut_at=number)
        up, down = (flow, Flow()) if direction == "up" else (Flow(), flow)
        return Fate(up, down, reset=bool(number % 2))

    return plan


@EACH
@DIRECTIONS
def test_cut_at_every_byte(
    broker: EmbeddedBroker, protocol: Protocol, direction: str
) -> None:
    """Appends and reads meet a cut at each byte of the frames that carry them."""
    at = Partition(f"every-byte-{next(NUMBERS)}", 0)
    address, way = broker.address_of(protocol.name), protocol.address_in(broker)
    with open_client(protocol.name, address) as direct:
        direct.append(at.topic, make_rows("before", 0), create=True)
        expected = read_places(direct, at)
        with (
            Relay(way, cut_later_each_time(direction)) as relay,
            open_through(protocol.name, address, relay) as client,
        ):
            # Small answers: each connection gets but one byte further than the last.
            assert read_places(client, at, fetch_bytes=100) == expected
            assert relay.cuts > 15
        for sole in {False, protocol.is_conditional}:
            name = f"w-{sole}"
            with Relay(way, cut_later_each_time(direction)) as relay:
                client = open_through(protocol.name, address, relay)
                writer = BatchWriter(client, at, name, sole=sole)
                with client:
                    writer.append(2)
                assert relay.cuts > 15
            found = check_whole(
                read_places(direct, at), direct.driver.traits.first_position
            )
            writer.check(found[name], is_once=sole)


# At random, for as long as one likes.


def make_plan(rng: Random) -> Callable[[int], Fate]:
    """Plan what happens to connections: most end at a random byte, some otherwise."""
    lock = threading.Lock()

    def plan(_: int) -> Fate:
        with lock:
            flow = Flow(
                rng.choice([None, None, 1, 100]),
                delay_s=rng.choice([0.0, 0.0, 0.0005]),
                cut_at=rng.randrange(3000),
            )
            if rng.random() < 0.04:
                # From here on it is silent, and the client has to notice.
                flow = Flow(swallow_at=rng.randrange(3000))
            up, down = (flow, Flow()) if rng.random() < 0.5 else (Flow(), flow)
            return Fate(up, down, rng.random() < 0.5, is_doubled=rng.random() < 0.1)

    return plan


class Round:
    """A topic whose clients meet a bad network, and then the accounts."""

    def __init__(self, broker: EmbeddedBroker, protocol: Protocol, seed: str) -> None:
        self._protocol = protocol
        self._address = broker.address_of(protocol.name)
        with open_client(protocol.name, self._address) as client:
            shared, alone = make_logs(client, f"network-{next(NUMBERS)}", 2)
        self.relay = Relay(protocol.address_in(broker), make_plan(Random(seed)))
        self.writers = [
            BatchWriter(self._open(), shared, "left"),
            BatchWriter(self._open(), shared, "right"),
            BatchWriter(self._open(), alone, "sole", sole=True),
        ]
        self.followers = [
            Follower(self._open(), shared, "follower"),
            Follower(self._open(), alone, "other follower"),
        ]
        self.reader = Reader(self._open(), shared, "reader")
        # Writers end first, so that the others see all of it.
        self.workers: list[Worker] = [*self.writers, *self.followers, self.reader]

    def _open(self) -> LogClient:
        name = self._protocol.name
        return open_through(name, self._address, self.relay, **IMPATIENT)

    def run(self, cuts: int, tally: Tally) -> None:
        """Have them work until so many connections were cut; settle the accounts."""
        try:
            for worker in self.workers:
                worker.start()
            wait_for(lambda: self._is_done(cuts), "connections are cut", 120.0)
            wait_for_steps(self.workers)
            # The way is clear for the rest: what is there has to be seen.
            self.relay.plan = lambda _: CLEAR
            for writer in self.writers:
                writer.finish()
            # Where no answer is lost, nothing is there twice.
            client = open_client(self._protocol.name, self._address)
            self._calm = BatchWriter(client, self.reader.at, "calm")
            with client:
                self._calm.append(6)
            for worker in self.workers:
                worker.finish()
            self._check(tally)
        finally:
            for worker in self.workers:
                worker.abandon()
            self.relay.close()

    def _is_done(self, cuts: int) -> bool:
        for worker in self.workers:
            worker.check_alive()
        return self.relay.cuts >= cuts

    def _check(self, tally: Tally) -> None:
        protocol = self._protocol
        with open_client(protocol.name, self._address) as client:
            first = client.driver.traits.first_position
            logs = {at: read_places(client, at) for at in {w.at for w in self.writers}}
        found = {
            writer: batches
            for places in logs.values()
            for writer, batches in check_whole(places, first).items()
        }
        assert found.pop("before") == [0]
        self._calm.check(found.pop("calm"), is_once=True)
        assert self.reader.seen.items() <= dict(logs[self.reader.at]).items()
        for follower in self.followers:
            assert follower.seen == logs[follower.at], follower.name
        for writer in self.writers:
            is_once = writer.is_sole and protocol.is_conditional
            twice = writer.check(found.pop(writer.name), is_once=is_once)
            tally.counts["batches there twice"] += twice
            tally.counts["records acknowledged"] += ROWS * writer.acked
        assert not found
        tally.counts["connections"] += self.relay.connections
        tally.counts["cut"] += self.relay.cuts
        tally.counts["records followed"] += sum(len(one.seen) for one in self.followers)
        tally.counts.update(dict.fromkeys(("lost", "torn"), 0))


@pytest.mark.campaign("network")
def test_cut_for_as_long_as_there_is_time(broker: EmbeddedBroker, tally: Tally) -> None:
    names = list(PROTOCOLS)
    while tally.goes_on(len(names)):
        protocol = PROTOCOLS[names[tally.rounds % len(names)]]
        one = Round(broker, protocol, f"{tally.seed} {tally.rounds}")
        one.run(CUTS_LONG if tally.seconds else CUTS, tally)


@EACH
@DIRECTIONS
def test_flipped_bits_hang_and_break_nothing(
    broker: EmbeddedBroker, protocol: Protocol, direction: str
) -> None:
    """A flip in a frame of an append or a read: another value, or an error in time."""
    at = Partition(f"flips-{next(NUMBERS)}", 0)
    address, way = broker.address_of(protocol.name), protocol.address_in(broker)
    rng = Random(f"flips {protocol.name} {direction}")

    def plan(number: int) -> Fate:
        flow = Flow(flip_at=number)
        return Fate(flow, Flow()) if direction == "up" else Fate(Flow(), flow)

    outcomes = Counter[str]()
    with open_client(protocol.name, address) as direct, Relay(way) as relay:
        direct.append(at.topic, make_rows("before", 0), create=True)
        for byte in sorted(rng.sample(range(150), 16)):
            relay.plan = lambda _, byte=byte: plan(byte)  # type: ignore[misc]
            began_s = time.monotonic()
            try:
                with open_through(
                    *(protocol.name, address, relay),
                    **{**IMPATIENT, "retry_timeout_s": 0.4},
                ) as client:
                    client.append(at.topic, make_rows("flipped", byte))
                    read_places(client, at)
                    outcomes["passed"] += 1
            except LanceError:
                outcomes["told"] += 1
            assert time.monotonic() - began_s < PATIENCE_S, f"byte {byte}"
        assert outcomes["told"], outcomes
        assert bool(outcomes["passed"]) != protocol.is_checked, outcomes
        # Whatever was stored is whole, and the broker serves others.
        places = read_places(direct, at)
        direct.append(at.topic, make_rows("after", 0))
        assert read_places(direct, at)[: len(places)] == places
