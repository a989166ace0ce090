"""The small client that every protocol has."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import lance_spark.client
from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LogClient, connect
from lance_spark.client.dialect import ConnectionEnded
from lance_spark.client.driver import protocols
from lance_spark.errors import (
    ConnectionLost,
    DataLoss,
    LanceError,
    OptionError,
    RemoteProtocolError,
    RowError,
    Timeout,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Bounds, Retention
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import Stream
from tests.client.rustlog.field import FieldServer

FAST = {"backoff_base_s": 0.01, "retry_timeout_s": 5.0}
OTHERS = [name for name in protocols() if name != "lance"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    others = dict.fromkeys(OTHERS, "127.0.0.1:0")
    with EmbeddedBroker(fsync="none", segment_bytes=4096, **others) as broker:
        yield broker


@pytest.fixture(params=["lance", "rustlog", "rustlog json", "fluvio"])
def client(
    broker: EmbeddedBroker, request: pytest.FixtureRequest
) -> Iterator[LogClient]:
    protocol, _, dialect = request.param.partition(" ")
    settings = {"dialect": dialect} if dialect else {}
    url = f"{protocol}://{broker.address_of(protocol)}"
    with connect(url, **FAST, **settings) as client:
        yield client


@pytest.fixture
def rustlog(broker: EmbeddedBroker) -> Iterator[LogClient]:
    with connect(f"rustlog://{broker.address_of('rustlog')}", **FAST) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name: str = request.node.name
    return name.replace("[", "-").rstrip("]")


def read_values(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


# Both protocols.


def test_there_and_back(client: LogClient, topic: str) -> None:
    client.append(topic, [b"one", b"two"], create=True)
    client.append(topic, pa.table({"value": [b"three"]}))
    client.append(topic, pa.RecordBatch.from_pydict({"value": [b"four", b""]}))
    client.append(topic, [])
    expected = [b"one", b"two", b"three", b"four", b""]
    assert read_values(client.read(topic)) == expected
    assert topic in [entry.name for entry in client.topics()]
    bounds = client.bounds(topic)[0]
    assert bounds.start == 0
    assert read_values(client.read(topic, 0, 0, bounds.end)) == expected
    assert read_values(client.read(topic, start=bounds.end)) == []
    assert read_values(client.read(topic, start=bounds.end + 100)) == []
    rows = pa.Table.from_batches(client.read(topic))
    offsets = rows.column("offset").to_pylist()
    assert rows.column_names == list(client.driver.traits.columns)
    assert set(rows.column("topic").to_pylist()) == {topic}
    assert read_values(client.read(topic, start=offsets[2])) == expected[2:]
    assert read_values(client.read(topic, end=offsets[2])) == expected[:2]
    [batch] = client.read(topic, columns=["value"], start=offsets[4])
    assert batch.schema.names == ["value"]


def test_many_rows(client: LogClient, topic: str) -> None:
    expected = [b"%06d" % n * 5 for n in range(60_000)]
    client.append(topic, expected, create=True)
    assert read_values(client.read(topic, fetch_bytes=100_000)) == expected


def test_topics_that_are_not_there(client: LogClient) -> None:
    for call in (
        lambda: client.bounds("no"),
        lambda: client.read("no"),
        lambda: client.follow("no"),
    ):
        with pytest.raises(TopicNotFound, match="there is no topic 'no'"):
            call()
    if client.driver.traits.protocol == "lance":
        with pytest.raises(LanceError, match="no"):
            client.append("no", [b"x"])
        return
    for number in (None, 0):
        with pytest.raises(TopicNotFound, match="'no': create it with create=True"):
            client.append("no", [b"x"], number)


def test_partitions_that_are_not_there(client: LogClient, topic: str) -> None:
    client.append(topic, [b"x"], create=True)
    with pytest.raises(TopicNotFound, match="has no partition 1, only 0 "):
        client.read(topic, 1)
    kind = OptionError if client.driver.traits.protocol == "lance" else TopicNotFound
    with pytest.raises(kind, match=r"has no partition 1(, only 0|: topics of LWP)"):
        client.append(topic, [b"x"], 1)


def test_positions_that_can_not_be(client: LogClient, topic: str) -> None:
    client.append(topic, [b"x"], create=True)
    text = rf"start -1: positions of {client.driver.traits.protocol} begin at 0"
    for call in (client.read, client.follow):
        with pytest.raises(OptionError, match=text):
            call(topic, start=-1)
    with pytest.raises(OptionError, match="end -1: positions of"):
        client.read(topic, end=-1)


def test_positions_of_tank_begin_at_1(broker: EmbeddedBroker, topic: str) -> None:
    with connect(f"tank://{broker.address_of('tank')}", **FAST) as client:
        client.append(topic, [b"x"], create=True)
        for call in (
            lambda: client.read(topic, start=0),
            lambda: client.read(topic, end=0),
            lambda: client.follow(topic, start=0),
        ):
            with pytest.raises(OptionError, match="0: positions of tank begin at 1"):
                call()
        assert read_values(client.read(topic, start=1, end=2)) == [b"x"]


def test_following(client: LogClient, topic: str) -> None:
    client.append(topic, [b"old"], create=True)
    following = client.follow(topic, timeout_s=10)
    all_of_it = client.follow(topic, start=0, timeout_s=0.05)
    assert read_values(all_of_it) == [b"old"]
    written: list[bytes] = []

    def write() -> None:
        for n in range(5):
            client.append(topic, [b"%d" % n])
            written.append(b"%d" % n)

    thread = threading.Thread(target=write)
    thread.start()
    found: list[bytes] = []
    for batch in following:
        found += batch.column("value").to_pylist()
        if len(found) == 5:
            break
    thread.join(20)
    following.close()  # type: ignore[attr-defined]
    assert found == written
    assert read_values(client.follow(topic, timeout_s=0)) == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([1, 2], "rows are not values of bytes"),
        (b"abc", "rows are not values of bytes"),
        (7, "rows are not values of bytes"),
        (pa.table({"other": [b"x"]}), "can't write other"),
        (pa.table({"key": pa.array([b"x"])}), "a write needs a column value"),
        (pa.table({"value": [1.5]}), "column value must be binary or string"),
        (
            pa.table({"value": [b"x"], "partition": ["a"]}),
            "column partition has to be a number",
        ),
        (
            pa.table({"value": [b"x"], "partition": pa.array([None], pa.int32())}),
            "column partition has to be a number",
        ),
    ],
)
def test_rows_that_are_none(client: LogClient, rows: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        client.append("never", rows, create=True)
    assert "never" not in [entry.name for entry in client.topics()]


def test_compressions(client: LogClient, topic: str) -> None:
    with pytest.raises(OptionError, match="compression 'zip'"):
        client.append(topic, [b"x"], create=True, compression="zip")
    for name in client.driver.traits.compressions:
        client.append(topic, [b"x" * 1000], create=True, compression=name)
    found = read_values(client.read(topic))
    assert found == [b"x" * 1000] * len(client.driver.traits.compressions)


# RustLog.


def test_partitions(rustlog: LogClient, topic: str) -> None:
    rustlog.append(topic, [b"first"], create=True, partitions=3)
    rustlog.append(topic, [b"second"])
    rustlog.append(topic, [b"third", b"more"])
    rustlog.append(topic, [b"chosen"], 1)
    ends = {number: bounds.end for number, bounds in rustlog.bounds(topic).items()}
    assert ends == {0: 1, 1: 2, 2: 2}
    assert read_values(rustlog.read(topic, 1)) == [b"second", b"chosen"]
    [batch] = rustlog.read(topic, 2)
    assert batch.column("partition").to_pylist() == [2, 2]


def test_what_was_read_is_written_again(rustlog: LogClient, topic: str) -> None:
    """Rows go to the partition that their column names."""
    numbers = pa.array([2, 0, 2, 1, 0], pa.int32())
    rows = pa.table({"partition": numbers, "value": [b"a", b"b", b"c", b"d", b"e"]})
    rustlog.append(topic, rows, create=True, partitions=3)
    parts = [read_values(rustlog.read(topic, number)) for number in range(3)]
    assert parts == [[b"b", b"e"], [b"d"], [b"a", b"c"]]
    for number in range(3):
        copied = pa.Table.from_batches(rustlog.read(topic, number))
        rustlog.append(f"{topic}-2", copied, create=True, partitions=3)
    again = [read_values(rustlog.read(f"{topic}-2", number)) for number in range(3)]
    assert again == parts
    # A partition that is given counts more.
    rustlog.append(topic, rows, 1)
    assert rustlog.bounds(topic)[1] == Bounds(0, 6)


def test_rows_that_rustlog_can_not_carry(rustlog: LogClient, topic: str) -> None:
    rows = pa.table({"value": [b"a", b"b"], "key": pa.array([None, b"k"])})
    with pytest.raises(RowError, match=r"row 1: it has a key, .* drop the column key"):
        rustlog.append(topic, rows, create=True)
    with pytest.raises(RowError, match="row 0: its value is null"):
        rustlog.append(topic, pa.table({"value": pa.array([None], pa.binary())}))


def test_records_that_are_gone(
    broker: EmbeddedBroker, rustlog: LogClient, topic: str
) -> None:
    for n in range(20):
        rustlog.append(topic, [b"%d" % n * 300], create=True)
    store = broker.service.store
    found = store.find_topic(topic)
    assert found is not None
    store.set_retention(found.metadata.id, Retention(0, 4096))
    store.maintain()
    start = rustlog.bounds(topic)[0].start
    assert start > 0
    assert len(read_values(rustlog.read(topic))) == 20 - start
    with pytest.raises(DataLoss, match="before the log start is removed"):
        read_values(rustlog.read(topic, start=0))
    with pytest.raises(DataLoss, match="the log ends before the range"):
        read_values(rustlog.read(topic, start=start, end=99))


def test_a_server_of_the_field() -> None:
    with FieldServer() as field, connect(f"rustlog://{field.address}", **FAST) as one:
        one.append("a/b", [b"x", b"y"], create=True)
        one.append("", [b"z"], create=True)
        assert [entry.name for entry in one.topics()] == ["", "a/b"]
        assert one.bounds("a/b") == {0: Bounds(0, 2)}
        assert read_values(one.read("")) == [b"z"]
        field.restart()
        with pytest.raises(TopicNotFound):
            one.read("a/b")


def test_a_log_that_is_lost_while_it_is_followed() -> None:
    with FieldServer() as field, connect(f"rustlog://{field.address}", **FAST) as one:
        one.append("orders", [b"x"] * 10, create=True)
        following = one.follow("orders", start=0, timeout_s=5)
        assert next(following).num_rows == 10
        field.restart()
        with pytest.raises(TopicNotFound):
            next(following)


@pytest.mark.parametrize(
    "found",
    [[], [b"y"] * 3, [b"x"] * 9, [b"y"] * 10, [b"y"] * 50],
    ids=["empty", "shorter", "cut", "as long", "longer"],
)
def test_a_server_that_forgets_while_it_is_followed(found: list[bytes]) -> None:
    """RustLog's own broker does so at each restart: its numbers begin again."""
    text = "is not the one that was read there"
    with FieldServer() as field, connect(f"rustlog://{field.address}", **FAST) as one:
        one.append("orders", [b"x"] * 10, create=True)
        following = one.follow("orders", start=0, timeout_s=60)
        assert next(following).num_rows == 10
        lose(field, found)
        with pytest.raises(DataLoss, match=text) as told:
            next(following)
        assert (told.value.asked, told.value.log_end) == (10, len(found))
        # One that has read nothing yet, and waits.
        lose(field, [b"x"] * 10)
        driver: Any = one.driver
        pausing, pause = threading.Event(), driver.link.pause
        driver.link.pause = lambda delay_s: (pausing.set(), pause(delay_s))
        with ThreadPoolExecutor(1) as pool:
            found_one = pool.submit(next, one.follow("orders", timeout_s=60))
            assert pausing.wait(20)
            lose(field, found)
            with pytest.raises(DataLoss, match=text):
                found_one.result(20)


def lose(field: FieldServer, found: list[bytes]) -> None:
    """Restart with other records, and let no client see the moment in between."""
    with field.lock:
        field.topics["orders"] = [list(found)]
    field.drop()


def test_tank_waits_on_the_server(broker: EmbeddedBroker, topic: str) -> None:
    """There are no pauses in which a record that comes would lie about."""
    url = f"tank://{broker.address_of('tank')}"
    with connect(url, **FAST) as reading, connect(url, **FAST) as writing:
        writing.append(topic, [b"old"], create=True)
        driver: Any = reading.driver
        pauses: list[float] = []
        driver.link.pause = pauses.append
        following = reading.follow(topic, start=1, timeout_s=30)
        assert next(following).column("value").to_pylist() == [b"old"]
        asked = threading.Event()
        make = driver.make_fetch

        def note(*arguments: Any) -> Any:
            if arguments[3:] and arguments[3] > 0:
                asked.set()
            return make(*arguments)

        driver.make_fetch = note
        with ThreadPoolExecutor(1) as pool:
            for n in range(3):
                asked.clear()
                found = pool.submit(next, following)
                assert asked.wait(20)
                writing.append(topic, [b"%d" % n])
                values = found.result(20).column("value").to_pylist()
                assert values == [b"%d" % n]
        following.close()  # type: ignore[attr-defined]
        assert pauses == []


@pytest.mark.parametrize("protocol", ["lance", "rustlog", "tank"])
def test_a_client_that_is_closed_follows_no_longer(
    broker: EmbeddedBroker, topic: str, protocol: str
) -> None:
    with connect(f"{protocol}://{broker.address_of(protocol)}", **FAST) as client:
        client.append(topic, [b"x"], create=True)
        following = client.follow(topic, start=client.bounds(topic)[0].start)
        assert next(following).num_rows == 1
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(next, following)
            client.close()
            with pytest.raises(LanceError, match="is closed"):
                found.result(20)


def test_a_follower_of_lance_does_not_hold_up_its_client(
    broker: EmbeddedBroker, topic: str
) -> None:
    """LWP's answers are in order, so that a fetch which waits has its own way."""
    with connect(f"lance://{broker.address}", **FAST) as client:
        client.append(topic, [b"x"], create=True)
        driver: Any = client.driver
        used = driver.client.link.live()
        following = client.follow(topic, start=0, timeout_s=0.01)
        assert read_values(following) == [b"x"]
        assert driver.client.link.live() is used
        assert used._inbox.waiting == {}


# Connecting.


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (
            "127.0.0.1:9092",
            r"names no protocol: begin with one of fluvio://, kimberlite://",
        ),
        ("", "names no protocol"),
        ("kafka://host", "protocol 'kafka' is unknown: give fluvio, kimberlite"),
        ("rustlog://", "no server address: give host:port"),
        ("rustlog://host:99999", "99999"),
    ],
)
def test_addresses_that_can_not_be(url: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        connect(url)


def test_settings_that_can_not_be() -> None:
    with pytest.raises(OptionError, match="rustlog has no setting colour, size: there"):
        connect("rustlog://host", colour=1, size=2)
    with pytest.raises(OptionError, match="rustlog has no setting servers"):
        connect("rustlog://host", servers="other")
    with pytest.raises(OptionError, match="request_timeout_s"):
        connect("rustlog://host", request_timeout_s="soon")


def test_the_end(broker: EmbeddedBroker) -> None:
    url = f"rustlog://{broker.address_of('rustlog')}/"
    with connect(url) as client:
        client.topics()
    with pytest.raises(LanceError, match="is closed"):
        client.topics()
    with pytest.raises(ConnectionLost):
        connect("rustlog://127.0.0.1:1", retry_timeout_s=0.1)


# Another protocol than that of the server.


@pytest.mark.timeout(60)
@pytest.mark.parametrize("served", [*protocols(), "fluvio_spu"])
@pytest.mark.parametrize("spoken", [*protocols(), "rustlog json"])
def test_a_port_of_another_protocol(
    broker: EmbeddedBroker, spoken: str, served: str
) -> None:
    """The answer shows it at once, and a longer wait would not help."""
    protocol, _, dialect = spoken.partition(" ")
    settings: dict[str, Any] = {"dialect": dialect} if dialect else {}
    address = broker.address_of(served)
    url = f"{protocol}://{address}"
    if protocol == served:
        connect(url, **settings).close()
        return
    if served == "fluvio_spu" and protocol == "fluvio":
        with pytest.raises(OptionError, match="is an SPU of a cluster"):
            connect(url, retry_timeout_s=3600.0)
        return
    if served in ("lance", "kimberlite", "fluvio", "fluvio_spu"):
        # They have no word for that (LWP §11): the broker closes. So does one that is
        # stopped, or a proxy whose broker is being started, which is worth another
        # try. Here the pause before it is longer than the patience.
        settings |= {"backoff_base_s": 3600.0, "backoff_max_s": 3600.0}
        text = f"{address}: .* closed .* before its first answer; "
        text += f".* speaks ({protocol}|LWP)"
        kind: Any = ConnectionEnded
    else:
        settings |= {"retry_timeout_s": 3600.0}
        text = f"{address}: the answer is not {protocol} .*another protocol may be"
        kind = RemoteProtocolError
    with pytest.raises(kind, match=f"(?i){text}"):
        connect(url, **settings)


@pytest.mark.parametrize("protocol", protocols())
@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x15\x03\x03\x00\x02",
    ],
)
@pytest.mark.timeout(60)
def test_a_server_of_something_else(protocol: str, said: bytes) -> None:
    """It says a few bytes, and neither closes nor goes on."""
    listener = Listener(Address("127.0.0.1", 0))
    streams: list[Stream] = []

    def serve() -> None:
        while (stream := listener.accept()) is not None:
            streams.append(stream)
            stream.send([said], Deadline.after(20))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(RemoteProtocolError, match="another protocol may be spoken"):
            connect(f"{protocol}://{listener.address}", connect_timeout_s=3600.0)
    finally:
        listener.stop()
        thread.join(20)
        for stream in streams:
            stream.close()
        listener.close()


def test_a_server_that_says_nothing() -> None:
    listener = Listener(Address("127.0.0.1", 0))
    try:
        with pytest.raises(Timeout, match="if it is up, check that it speaks tank"):
            connect(f"tank://{listener.address}", retry_timeout_s=0.05)
    finally:
        listener.close()


def test_names_of_the_package() -> None:
    assert lance_spark.client.LogClient is LogClient
    assert {"LogClient", "connect"} <= set(lance_spark.client.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lance_spark.client.nothing
    # What is not asked for is not imported.
    text = (
        "import sys, lance_spark.client; "
        "print([n for n in sys.modules if 'rustlog' in n or n.endswith('client.log')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def test_streams_of_kimberlite(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They have one partition, and are found by their names only."""
    url = f"kimberlite://{broker.address_of('kimberlite')}"
    with connect(url, **FAST) as client:
        with pytest.raises(Unsupported, match=r"listing streams .*kimberlite has no"):
            client.topics()
        # What was misspelt is empty, and says so.
        for call in (
            lambda: client.bounds(topic),
            lambda: list(client.read(topic)),
            lambda: client.append(topic, [b"one", b"two"]),
        ):
            caplog.clear()
            call()
            assert f"stream {topic!r} is empty, and may be new" in caplog.text
        caplog.clear()
        assert read_values(client.read(topic)) == [b"one", b"two"]
        assert client.bounds(topic) == {0: Bounds(0, 2)}
        client.append(f"{topic}-new", [b"one"], create=True)
        assert caplog.text == ""
        assert read_values(client.follow(topic, start=1, timeout_s=0.0)) == [b"two"]
        with pytest.raises(TopicNotFound, match="has no partition 1, only 0 "):
            client.read(topic, 1)
        with pytest.raises(TopicNotFound, match="streams have one"):
            client.append(topic, [b"x"], 1)
        with pytest.raises(Unsupported, match="a stream of 3 partitions"):
            client.append("other", [b"x"], create=True, partitions=3)
        with pytest.raises(RowError, match="it has a key"):
            client.append(topic, pa.table({"value": [b"x"], "key": [b"k"]}))
