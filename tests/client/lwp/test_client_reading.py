"""Reading bytes, bounds and record boundaries."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lance_spark.client.lwp.answer import Fetched, KnownBounds
from lance_spark.client.lwp.client import LanceClient
from lance_spark.errors import (
    ConnectionLost,
    InvalidOffset,
    OptionError,
    RemoteProtocolError,
    Timeout,
    Unsupported,
)
from lance_spark.model import Location
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import (
    LIST_LIMITS,
    OFFSET_MAX,
    WAIT_POSITIONS_MAX,
    CatchingUp,
    ClusterStatus,
    ErrorResponse,
    ExtendedFetchResponse,
    Fetch,
    FetchFlags,
    FetchResponse,
    GetClusterStatus,
    ListTopics,
    Locate,
    LocateKind,
    LocateResponse,
    Message,
    TopicInfo,
    TopicListing,
    TopicPosition,
    Wait,
    WaitResponse,
)
from tests.client.scripted import EVERYTHING, FakeTime, Network, Peer, serving, soon

DATA = b"0123456789"


class Log:
    """One topic of ten bytes, as our server and a plain one would serve it."""

    def __init__(self) -> None:
        self.asked: list[Message] = []

    def fetch(self, request: Fetch) -> Message:
        self.asked.append(request)
        start = min(request.start, len(DATA))
        data = DATA[start : start + request.max_bytes]
        if request.flags & FetchFlags.EXTENDED:
            return ExtendedFetchResponse(start, start + len(data), len(DATA), data)
        return FetchResponse(start + len(data), 1, data)

    def locate(self, request: Locate) -> Message:
        self.asked.append(request)
        offset = {LocateKind.START: 2, LocateKind.END: len(DATA)}.get(request.kind)
        return LocateResponse(request.value if offset is None else offset, 5, 6)


TOPICS = TopicListing((TopicInfo(3, "events"),))


@pytest.fixture
def log() -> Log:
    return Log()


def start(network: Network, log: Log, *capabilities: str) -> LanceClient:
    table = {Fetch: log.fetch, Locate: log.locate, ListTopics: TOPICS}
    network.serve(serving(table, *capabilities))
    return network.client()


@pytest.fixture
def client(network: Network, log: Log) -> LanceClient:
    return start(network, log, *EVERYTHING)


@pytest.fixture
def plain_client(network: Network, log: Log) -> LanceClient:
    return start(network, log)


# Fetching.


@pytest.mark.parametrize("topic", [3, "events"])
def test_fetch(client: LanceClient, log: Log, topic: int | str) -> None:
    fetched = client.fetch(topic, 4, 3)
    assert fetched == Fetched(4, 7, memoryview(b"456"), 10)
    assert fetched.data.readonly
    assert log.asked == [Fetch(3, 4, 3, FetchFlags.EXTENDED)]


def test_fetch_from_a_plain_server(plain_client: LanceClient, log: Log) -> None:
    assert plain_client.fetch("events", 4, 3) == Fetched(4, 7, memoryview(b"456"))
    assert log.asked == [Fetch(3, 4, 3)]


def test_fetch_with_options(client: LanceClient, log: Log) -> None:
    client.fetch(3, 0, 1, snap=True, wait_s=1.5)
    flags = FetchFlags.EXTENDED | FetchFlags.SNAP | FetchFlags.WAIT
    assert log.asked == [Fetch(3, 0, 1, flags, 1500)]


def test_a_plain_server_does_not_wait(plain_client: LanceClient, log: Log) -> None:
    plain_client.fetch(3, 0, 1, wait_s=10.0)
    assert log.asked == [Fetch(3, 0, 1)]


def test_a_plain_server_does_not_snap(plain_client: LanceClient) -> None:
    with pytest.raises(Unsupported, match="fetch-flags"):
        plain_client.fetch(3, 0, 1, snap=True)


def test_fetch_behind_the_end(client: LanceClient) -> None:
    assert client.fetch(3, 99, 5) == Fetched(10, 10, memoryview(b""), 10)


def test_fetch_behind_the_end_of_a_plain_server(plain_client: LanceClient) -> None:
    assert plain_client.fetch(3, 99, 5) == Fetched(10, 10, memoryview(b""))


def test_fetch_behind_the_end_in_the_field(network: Network) -> None:
    network.serve(serving({Fetch: CatchingUp(10)}))
    assert network.client().fetch(3, 99, 5) == Fetched(10, 10, memoryview(b""))


def test_fetch_of_what_retention_took(network: Network) -> None:
    network.serve(serving({Fetch: FetchResponse(110, 1, DATA)}))
    assert network.client().fetch(3, 5, 99).start == 100


def test_an_answer_that_ends_before_it_starts(network: Network) -> None:
    network.serve(serving({Fetch: FetchResponse(5, 1, DATA)}))
    with pytest.raises(
        RemoteProtocolError, match="10 bytes were fetched that end at 5"
    ):
        network.client().fetch(3, 0, 99)


def test_no_more_is_asked_for_than_is_accepted(client: LanceClient, log: Log) -> None:
    client.fetch(3, 0, 2**40)
    (asked,) = log.asked
    assert isinstance(asked, Fetch)
    assert asked.max_bytes == client.config.response_bytes_max - 24


@pytest.mark.parametrize("wait_s", [-1.0, float("nan"), 1e9])
def test_a_wait_that_makes_no_sense(client: LanceClient, wait_s: float) -> None:
    with pytest.raises(OptionError, match="a wait of"):
        client.fetch(3, 0, 1, wait_s=wait_s)


def test_a_wait_is_not_a_timeout(network: Network) -> None:
    waits_ms = []

    def slow(request: Fetch) -> Message:
        waits_ms.append(request.max_wait_ms)
        # Longer than a request may take, but not than that and the wait.
        threading.Event().wait(0.1)
        return ExtendedFetchResponse(0, 0, 0)

    network.serve(serving({Fetch: slow}, *EVERYTHING))
    client = network.client(request_timeout_s=0.05)
    assert client.fetch(3, 0, 1, wait_s=10.0).end == 0
    assert waits_ms == [10_000]


def test_the_form_suits_the_server_that_gets_it(
    network: Network, log: Log, fake_time: FakeTime
) -> None:
    def losing(peer: Peer) -> None:
        peer.greet(*EVERYTHING)
        assert peer.request() == Fetch(3, 4, 3, FetchFlags.EXTENDED)

    network.serve(losing, serving({Fetch: log.fetch}))
    client = network.client(runtime=fake_time.runtime(network))
    assert client.fetch(3, 4, 3) == Fetched(4, 7, memoryview(b"456"))
    assert log.asked == [Fetch(3, 4, 3)]


def test_a_refused_fetch(network: Network) -> None:
    network.serve(serving({Fetch: ErrorResponse(0x50, "bad offset")}))
    with pytest.raises(InvalidOffset):
        network.client().fetch(3, 0, 1)


# Pipelining.


def test_fetches_in_flight(client: LanceClient, log: Log) -> None:
    pending = [client.submit_fetch(3, start, 2) for start in range(0, 10, 2)]
    results = [each.result(soon()) for each in reversed(pending)]
    assert [bytes(r.data) for r in results] == [b"89", b"67", b"45", b"23", b"01"]
    assert results[0].high_water_mark == 10


def test_a_fetch_in_flight_to_a_plain_server(
    plain_client: LanceClient, log: Log
) -> None:
    fetched = plain_client.submit_fetch(3, 0, 4, wait_s=1.0).result(soon())
    assert fetched == Fetched(0, 4, memoryview(b"0123"))


def test_a_fetch_in_flight_that_waits(client: LanceClient, log: Log) -> None:
    client.submit_fetch(3, 0, 4, wait_s=0.25).result(soon())
    flags = FetchFlags.EXTENDED | FetchFlags.WAIT
    assert log.asked == [Fetch(3, 0, 4, flags, 250)]


def test_a_fetch_in_flight_is_not_repeated(network: Network, log: Log) -> None:
    def losing(peer: Peer) -> None:
        peer.greet()
        peer.request(Fetch)

    network.serve(losing, serving({Fetch: log.fetch}))
    client = network.client()
    pending = client.submit_fetch(3, 0, 4)
    with pytest.raises(ConnectionLost):
        pending.result(soon())
    # The next one finds a new connection.
    assert client.submit_fetch(3, 0, 4).result(soon()).end == 4
    assert len(network.dialed) == 2


def test_a_fetch_in_flight_may_need_a_connection_that_is_there(
    network: Network, log: Log
) -> None:
    network.serve(serving({Fetch: log.fetch}), serving({Fetch: log.fetch}))
    client = network.client()
    with pytest.raises(ConnectionLost, match="last fetch"):
        client.submit_fetch(3, 0, 4, dial=False)
    assert len(network.dialed) == 0
    client.fetch(3, 0, 4)
    assert client.submit_fetch(3, 4, 4, dial=False).result(soon()).end == 8
    client.disconnect()
    with pytest.raises(ConnectionLost, match="last fetch"):
        client.submit_fetch(3, 4, 4, dial=False)
    assert len(network.dialed) == 1
    client.fetch(3, 0, 4)
    assert client.submit_fetch(3, 4, 4, dial=False).result(soon()).end == 8
    assert len(network.dialed) == 2


def test_a_fetch_in_flight_that_is_given_up(network: Network) -> None:
    def stuck(peer: Peer) -> None:
        peer.greet()
        peer.wait_for_end()

    network.serve(stuck)
    client = network.client()
    pending = client.submit_fetch(3, 0, 4)
    connection = client.connection()
    with pytest.raises(Timeout):
        pending.result(Deadline.after(0.0))
    assert connection.is_open
    pending.give_up()
    assert not connection.is_open


def test_two_threads_fetch(client: LanceClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        starts = [number % 10 for number in range(100)]
        fetched = list(pool.map(lambda start: client.fetch(3, start, 1), starts))
    assert [bytes(f.data) for f in fetched] == [DATA[s : s + 1] for s in starts]


# Bounds and boundaries.


def test_bounds(client: LanceClient, log: Log) -> None:
    assert client.bounds("events") == KnownBounds(2, 10)
    assert log.asked == [Locate(3, LocateKind.START), Locate(3, LocateKind.END)]


def test_bounds_of_a_plain_server(plain_client: LanceClient, log: Log) -> None:
    assert plain_client.bounds(3) == KnownBounds(None, 10)
    assert log.asked == [Fetch(3, OFFSET_MAX, 1)]


def test_locate(client: LanceClient, log: Log) -> None:
    assert client.locate_offset("events", 7) == Location(7, 5, 6)
    assert client.locate_record(3, 8) == Location(8, 5, 6)
    assert client.locate_time(3, 9) == Location(9, 5, 6)
    assert client.locate_start(3) == Location(2, 5, 6)
    assert client.locate_end(3) == Location(10, 5, 6)
    assert log.asked == [
        Locate(3, LocateKind.OFFSET, 7),
        Locate(3, LocateKind.RECORD, 8),
        Locate(3, LocateKind.TIME, 9),
        Locate(3, LocateKind.START),
        Locate(3, LocateKind.END),
    ]


# Waiting.


def test_wait(network: Network) -> None:
    asked: list[Wait] = []

    def wait(request: Wait) -> Message:
        asked.append(request)
        return WaitResponse(8, (TopicPosition(3, 11),))

    network.serve(serving({Wait: wait}, *EVERYTHING))
    answer = network.client().wait(7, {3: 10, 4: 0}, 0.5)
    assert answer == WaitResponse(8, (TopicPosition(3, 11),))
    positions = (TopicPosition(3, 10), TopicPosition(4, 0))
    assert asked == [Wait(7, positions, 500)]


@pytest.mark.parametrize("told", [{}, {WAIT_POSITIONS_MAX: 2}], ids=["old", "told"])
def test_wait_for_more_topics_than_one_wait_may_have(
    network: Network, told: dict[str, int]
) -> None:
    """A server of 0.5 tells no limit: the one of this version holds then."""
    most = told.get(WAIT_POSITIONS_MAX, LIST_LIMITS["Wait.positions"])
    positions = {topic: 100 + topic for topic in range(2 * most + 1)}
    asked: list[tuple[int, int]] = []
    # How far topics have grown, and the version, once a wait is really held.
    grown = {most: 10**9}

    def wait(request: Wait) -> Message:
        asked.append((len(request.positions), request.max_wait_ms))
        held = any(ms for _, ms in asked)
        ends = {p.topic_id: p.offset for p in request.positions}
        if held:
            ends.update({t: end for t, end in grown.items() if t in ends})
        return WaitResponse(7, tuple(TopicPosition(*end) for end in ends.items()))

    status = ClusterStatus(capabilities=EVERYTHING, details={"limits": told})
    network.serve(lambda server: server.serve({GetClusterStatus: status, Wait: wait}))
    client = network.client()
    answer = client.wait(7, positions, 3.0)
    ends = {end.topic_id: end.offset for end in answer.ends}
    assert ends == positions | grown
    assert answer.version == 7
    # All parts are looked at, then each is waited for until there is something.
    looked = [(most, 0), (most, 0), (1, 0)]
    assert asked == [*looked, (most, 1000), (most, 1000)]
    # What is there already is not waited for.
    asked.clear()
    grown[0] = 10**9
    asked.append((0, 1))
    assert client.wait(7, positions, 3.0).ends
    assert asked[1:] == looked


def test_what_a_plain_server_can_not_do(plain_client: LanceClient, log: Log) -> None:
    calls = [
        lambda: plain_client.locate_offset(3, 0),
        lambda: plain_client.locate_record(3, 0),
        lambda: plain_client.locate_time(3, 0),
        lambda: plain_client.locate_start(3),
        lambda: plain_client.locate_end(3),
        lambda: plain_client.wait(0, {}, 0.0),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="server:1992 does not offer it"):
            call()
    assert log.asked == []
