"""Fluvio's driver, with this library's broker and with a cluster as in the field."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import LogRef, Range, WriterSettings
from lance_spark.client.fluvio.driver import Config, FluvioDriver, open_driver
from lance_spark.columnar import make_schema, write_records
from lance_spark.errors import (
    AccessDenied,
    ConnectionLost,
    DataLoss,
    InvalidPayload,
    LanceError,
    LeaderUnknown,
    OptionError,
    RecordError,
    RecordTooLarge,
    RemoteProtocolError,
    RowError,
    TopicAlreadyExists,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Bounds, Partition
from lance_spark.records import Records
from lance_spark.wire import fluvio as wire
from tests.broker.kit import eventually, running
from tests.broker.tank.kit import cut
from tests.client.fluvio.field import FieldCluster, Log, Stored, batch
from tests.each import each
from tests.patience import try_patiently

MIB = 1024 * 1024
FAST = {"backoff_base_s": 0.005, "retry_timeout_s": 10.0, "request_timeout_s": 5.0}
SETTINGS = WriterSettings(
    batch_bytes=MIB,
    linger_s=0.0,
    max_in_flight=4,
    buffer_bytes=16 * MIB,
    compression="none",
    record_type=1,
    allow_null_records=False,
)
ORDERS = LogRef(Partition("orders"))
CODECS = list(FluvioDriver.traits.compressions)


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"value %d" % n for n in range(first, first + count)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def field(stack: ExitStack) -> FieldCluster:
    return stack.enter_context(FieldCluster())


@pytest.fixture
def broker(stack: ExitStack, tmp_path: Path) -> EmbeddedBroker:
    return stack.enter_context(
        EmbeddedBroker(
            data_dir=str(tmp_path / "data"),
            fsync="none",
            fluvio="127.0.0.1:0",
            segment_bytes=4096,
        )
    )


class Opener:
    """Opens drivers, which are closed at the end of the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, address: str, **settings: Any) -> FluvioDriver:
        driver = open_driver(Config(servers=address, **{**FAST, **settings}))
        self._stack.callback(driver.close)
        return driver


@pytest.fixture
def open_one(stack: ExitStack) -> Opener:
    return Opener(stack)


@pytest.fixture(params=["broker", "field"])
def server(request: pytest.FixtureRequest) -> str:
    """The address of our broker's SC, and of one as in the field."""
    if request.param == "broker":
        broker: EmbeddedBroker = request.getfixturevalue("broker")
        return broker.address_of("fluvio")
    field: FieldCluster = request.getfixturevalue("field")
    return field.address


def write(
    driver: FluvioDriver,
    rows: list[bytes] | pa.Table,
    to: Partition = ORDERS.partition,
    settings: WriterSettings = SETTINGS,
    *,
    create: bool = True,
) -> None:
    if isinstance(rows, list):
        rows = pa.table({"value": pa.array(rows, pa.binary())})
    writer = driver.open_writer(
        to, options=settings, create_topic=create, check=lambda _: None
    )
    try:
        writer.write(rows)
        writer.finish()
    except BaseException:
        writer.close(abandon=True)
        raise


def read_records(
    driver: FluvioDriver,
    log: LogRef = ORDERS,
    start: int = 0,
    end: int | None = None,
    fetch_bytes: int = MIB,
) -> list[Records]:
    reader = driver.open_reader(log, start, end=end, fetch_bytes=fetch_bytes)
    found = []
    while not reader.is_finished and (records := reader.next_records()) is not None:
        found.append(records)
    reader.close()
    return found


def read(driver: FluvioDriver, *rest: Any, **more: Any) -> list[tuple[int, bytes]]:
    return [
        (records.position(row), value)
        for records in read_records(driver, *rest, **more)
        for row, value in enumerate(cut(records.values))
    ]


def numbered(rows: list[bytes], first: int = 0) -> list[tuple[int, bytes]]:
    return list(enumerate(rows, first))


# Both servers.


def test_topics_and_bounds(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    assert driver.topics() == []
    driver.create_topic("orders", 3)
    with pytest.raises(TopicAlreadyExists):
        driver.create_topic("orders", 3)
    [entry] = driver.topics()
    assert (entry.name, list(entry.partitions)) == ("orders", [0, 1, 2])
    to = Partition("orders", 1)
    write(driver, values(5), to)
    found = driver.bounds(
        [*entry.logs, LogRef(Partition("orders", 7)), LogRef(Partition("nosuch"))]
    )
    assert found == {
        Partition("orders", 0): Bounds(0, 0),
        to: Bounds(0, 5),
        Partition("orders", 2): Bounds(0, 0),
    }
    assert driver.count_unread(LogRef(to), 2).records == 3
    with pytest.raises(TopicNotFound):
        driver.describe(LogRef(Partition("orders", 3)))
    with pytest.raises(TopicNotFound):
        read(driver, LogRef(Partition("nosuch")))
    with pytest.raises(TopicNotFound):
        write(driver, values(1), Partition("orders", 9))


def test_many_batches(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    for codec in CODECS:
        rows = [b"value %d" % n * 3 for n in range(2000)]
        log = LogRef(Partition(codec))
        settings = replace(SETTINGS, batch_bytes=5000, compression=codec)
        write(driver, rows, log.partition, settings)
        assert read(driver, log) == numbered(rows)
        assert read(driver, log, start=100, end=200, fetch_bytes=2000) == numbered(
            rows[100:200], 100
        )
        assert driver.bounds([log]) == {log.partition: Bounds(0, 2000)}


def test_keys_and_times(server: str, open_one: Opener) -> None:
    """A key that is empty is not the same as none, and no time stays none."""
    driver = open_one(server)
    times = [1_700_000_000_123_000, 1_700_000_000_123_999, None, None]
    keys = [b"k", b"", None, b"x" * 1000]
    rows = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b"a", b"", b"c", b"d"], pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    write(driver, rows)
    schema = make_schema(driver.traits.columns)
    found = pa.Table.from_batches(
        write_records(records, schema, topic="orders", partition=0)
        for records in read_records(driver)
    )
    assert found.column("offset").to_pylist() == [0, 1, 2, 3]
    assert found.column("key").to_pylist() == keys
    assert found.column("value").to_pylist() == [b"a", b"", b"c", b"d"]
    stamps = found.column("timestamp").cast(pa.int64()).to_pylist()
    assert stamps[:2] == [1_700_000_000_123_000] * 2
    # Our broker gives them the time of the append.
    assert len(set(stamps[2:])) == 1
    assert stamps[2] is None or stamps[2] > 1_700_000_000_124_000


def test_rows_that_can_not_be_carried(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    nulls = pa.table({"value": pa.array([b"a", None], pa.binary())})
    with pytest.raises(RowError, match="null"):
        write(driver, nulls)
    huge = pa.table({"value": pa.array([b"a" * 16 * MIB], pa.binary())})
    with pytest.raises(RowError, match="split the value"):
        write(driver, huge)


def test_a_log_is_followed(server: str, open_one: Opener) -> None:
    driver, writer = open_one(server), open_one(server)
    write(driver, values(3))
    reader = driver.open_reader(ORDERS, 3, end=None, fetch_bytes=MIB)
    assert reader.next_records() is None
    assert reader.next_records(0.02) is None
    thread = threading.Thread(target=write, args=(writer, values(2, 3)))
    thread.start()
    records = reader.next_records(20.0)
    thread.join(60)
    assert records is not None
    assert (records.position(0), cut(records.values)[0]) == (3, b"value 3")
    reader.close()


def test_marks(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    write(driver, values(10))
    mark = driver.mark_position(ORDERS, 8, 10)
    assert driver.is_mark_right(ORDERS, 8, mark)
    assert not driver.is_mark_right(ORDERS, 9, mark)
    piece = driver.mark_range(Range(ORDERS, 2, 7), 10)
    assert driver.is_range_right(piece)
    assert not driver.is_range_right(replace(piece, mark=(piece.mark or 0) ^ 1))


@each("shared", [False, True])
def test_writers_that_create_a_topic_at_once(
    server: str, open_one: Opener, shared: bool
) -> None:
    """No row is there twice: nothing has failed, so nothing is sent again."""
    writers, rounds, rows = 4, 12, 250
    drivers = [open_one(server)] * writers
    if not shared:
        drivers = [drivers[0], *(open_one(server) for _ in range(writers - 1))]
    for number in range(rounds):
        to = Partition(f"{'shared' if shared else 'own'}-{number}")
        together = threading.Barrier(writers)
        settings = replace(SETTINGS, batch_bytes=2000)
        failures: list[BaseException] = []

        def work(
            writer: int,
            to: Partition = to,
            together: threading.Barrier = together,
            settings: WriterSettings = settings,
            failures: list[BaseException] = failures,
        ) -> None:
            try:
                together.wait(20)
                some = [b"%d %d" % (writer, n) for n in range(rows)]
                write(drivers[writer], some, to, settings)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        found = [value for _, value in read(drivers[0], LogRef(to))]
        expected = [b"%d %d" % (w, n) for w in range(writers) for n in range(rows)]
        assert sorted(found) == sorted(expected)


# As in the field: leaders.


def test_each_spu_has_one_connection(field: FieldCluster, open_one: Opener) -> None:
    driver = open_one(field.address)
    driver.create_topic("orders", 4)
    logs = [LogRef(Partition("orders", number)) for number in range(4)]
    for log in logs:
        write(driver, values(10), log.partition)
    assert [log.leader for log in field.topics["orders"]] == [0, 1, 0, 1]
    assert driver.bounds(logs) == {log.partition: Bounds(0, 10) for log in logs}
    for log in logs:
        assert read(driver, log) == numbered(values(10))
    assert [spu.connections for spu in field.spus] == [1, 1]
    # One look at the cluster serves them all, and one request each SPU.
    assert field.asked["FetchOffsets"] == 2
    assert field.asked["List"] <= 5 + 3
    driver.close()
    with pytest.raises(LanceError, match="is closed"):
        read(driver, logs[1])


def move(field: FieldCluster, log: Log) -> None:
    log.leader = 1 - log.leader


def move_and_stop(field: FieldCluster, log: Log) -> None:
    log.leader = 1 - log.leader
    field.spus[1 - log.leader].stop()


def read_it(driver: FluvioDriver) -> None:
    assert read(driver)[:5] == numbered(values(5))


def write_it(driver: FluvioDriver) -> None:
    write(driver, values(5, 5))
    assert read(driver) == numbered(values(10))


def ask_it(driver: FluvioDriver) -> None:
    log = LogRef(Partition("orders", 1))
    found = driver.bounds([ORDERS, log])
    assert found == {ORDERS.partition: Bounds(0, 5), log.partition: Bounds(0, 0)}


@pytest.mark.parametrize("change", [move, move_and_stop])
@pytest.mark.parametrize("work", [read_it, write_it, ask_it])
def test_a_leader_that_moves(
    field: FieldCluster,
    open_one: Opener,
    change: Callable[[FieldCluster, Log], None],
    work: Callable[[FluvioDriver], None],
) -> None:
    driver = open_one(field.address)
    driver.create_topic("orders", 2)
    write(driver, values(5))
    # The second is led by the SPU that stays.
    ask_it(driver)
    change(field, field.topics["orders"][0])
    work(driver)


@each("change", [move, lambda field, log: field.drop()], ids=["moves", "is lost"])
def test_a_way_that_is_lost_during_a_write(
    field: FieldCluster,
    open_one: Opener,
    change: Callable[[FieldCluster, Log], None],
) -> None:
    """What was under way is sent again, and all that follows goes the new way."""
    driver = open_one(field.address)
    topic = f"orders-{len(field.topics)}"
    field.create(topic, 2)
    settings = replace(SETTINGS, batch_bytes=500)
    writer = driver.open_writer(
        Partition(topic), options=settings, create_topic=False, check=lambda _: None
    )
    rows = pa.table({"value": pa.array(values(1000), pa.binary())})
    writer.write(rows.slice(0, 500))
    change(field, field.topics[topic][0])
    field.requests.clear()
    writer.write(rows.slice(500))
    assert all(one.pending is not None for one in writer._sent)
    writer.finish()
    found = [int(value.split()[1]) for value in field.topics[topic][0].values()]
    assert list(dict.fromkeys(found)) == list(range(1000))
    produces = sum(isinstance(one, wire.Produce) for one in field.requests)
    batches = len(field.topics[topic][0].batches)
    assert produces <= batches // 2 + 2 + 2 * settings.max_in_flight


def test_a_leader_that_moves_costs_others_nothing(
    field: FieldCluster, open_one: Opener
) -> None:
    """The connection stays, with what others have under way there."""
    driver = open_one(field.address)
    driver.create_topic("orders", 3)
    write(driver, values(5))
    field.topics["orders"][0].leader = 1
    before = driver.connect_to(Partition("orders", 2))
    assert read(driver) == numbered(values(5))
    assert driver.connect_to(Partition("orders", 2)) is before
    assert before.is_open


def test_a_controller_that_is_gone(field: FieldCluster, open_one: Opener) -> None:
    """Known leaders are read and written on; all else fails in time, and says why."""
    field.fill("orders", values(3))
    driver = open_one(field.address, retry_timeout_s=0.2)
    assert read(driver) == numbered(values(3))
    field.sc.stop()
    write(driver, values(2, 3), create=False)
    assert read(driver) == numbered(values(5))
    assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(0, 5)}
    refused = rf"could not connect to {field.address}"
    with pytest.raises(ConnectionLost, match=refused):
        driver.topics()
    # An SPU that is lost as well can't be looked for.
    field.spus[0].stop()
    for work in (read, lambda driver: write(driver, values(1), create=False)):
        with pytest.raises(ConnectionLost, match=refused):
            work(driver)


def test_a_partition_that_is_gone(field: FieldCluster, open_one: Opener) -> None:
    """It is left out of the bounds, and those that its SPU leads as well are not."""
    driver = open_one(field.address)
    driver.create_topic("orders", 5)
    logs = [LogRef(Partition("orders", number)) for number in range(5)]
    expected = {log.partition: Bounds(0, 0) for log in logs}
    assert driver.bounds(logs) == expected
    gone = wire.PartitionOffsets(wire.ErrorCode(2001), 2)

    def lie(request: Any, answer: Any) -> Any:
        if not isinstance(request, wire.FetchOffsets):
            return None
        [topic] = answer.topics
        parts = tuple(gone if one.partition == 2 else one for one in topic.partitions)
        topics = (replace(topic, partitions=parts),)
        return wire.encode_message(replace(answer, topics=topics))

    field.lie = lie
    del expected[Partition("orders", 2)]
    assert driver.bounds(logs) == expected
    with pytest.raises(TopicNotFound, match="orders/2"):
        driver.find_end(Partition("orders", 2))
    # A topic that comes again with fewer.
    field.lie = None
    field.topics["orders"] = field.topics["orders"][:2]
    found = driver.bounds(logs)
    assert list(found) == [log.partition for log in logs[:2]]
    del field.topics["orders"]
    with pytest.raises(TopicNotFound):
        driver.find_bounds("orders", [0, 1])


def test_a_partition_without_a_leader(field: FieldCluster, open_one: Opener) -> None:
    driver = open_one(field.address, retry_timeout_s=0.2)
    field.create("orders")
    field.unready = 2
    assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(0, 0)}
    field.topics["orders"][0].leader = 7
    driver = open_one(field.address, retry_timeout_s=0.2)
    with pytest.raises(LeaderUnknown, match="orders/0: no SPU leads it"):
        read(driver)


def test_addresses_that_are_wrong(field: FieldCluster, open_one: Opener) -> None:
    """The SC names an SPU that no client can reach, or that is none."""
    field.fill("orders", values(3))
    driver = open_one(field.address, retry_timeout_s=0.1)
    host, _, port = field.address.rpartition(":")
    no_spu = r"orders/0: no SPU leads it that clients could reach"
    ways: list[tuple[int, list[str], type[LanceError], str]] = [
        (9010, [], LeaderUnknown, no_spu),
        (0, [host], LeaderUnknown, no_spu),
        (9010, ["no host"], LeaderUnknown, no_spu),
        (1, [host], ConnectionLost, r"orders/0: the SPU .* as the SC says: .* refused"),
        (int(port), [host], LeaderUnknown, f"{port} is no SPU, but the controller"),
    ]
    for number, hosts, kind, text in ways:
        ingress = tuple(wire.Ingress(one) for one in hosts)
        public = wire.PublicEndpoint(number, ingress)

        def lie(request: Any, answer: Any, public: Any = public) -> Any:
            if getattr(request, "kind", None) != "SPU":
                return None
            spus = (wire.Spu("spu", wire.SpuSpec(5001, 0, public)),)
            return wire.encode_message(replace(answer, objects=spus))

        field.lie = lie
        driver._forget()
        with pytest.raises(kind, match=text):
            read(driver)
        # The SC is asked again each time.
        field.lie = None
        assert try_patiently(lambda: read(driver)) == numbered(values(3))


def test_links_to_spus_that_are_gone(
    field: FieldCluster, open_one: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_spark.client.fluvio.driver._LINKS_MAX", 0)
    field.fill("orders", values(3))
    driver = open_one(field.address)
    assert read(driver) == numbered(values(3))
    [old] = driver._links.values()
    node = field.spus.pop(0)
    field.spus[0].spu = 0
    driver._forget()
    assert read(driver) == numbered(values(3))
    assert old.is_closed
    assert len(driver._links) == 1
    with node:
        pass


# As in the field: versions.


@each("most", [5, 9, 11, 17, 22, 23, 24, 25, 99])
def test_versions(field: FieldCluster, open_one: Opener, most: int) -> None:
    """The newest that both know."""
    field.versions = dict.fromkeys(field.versions, most)
    driver = open_one(field.address)
    name = f"orders-{most}"
    log = LogRef(Partition(name))
    write(driver, values(10), log.partition)
    assert driver.bounds([log]) == {log.partition: Bounds(0, 10)}
    assert read(driver, log) == numbered(values(10))
    kinds = (wire.Produce, wire.Fetch, wire.FetchOffsets)
    used = {one.api_version for one in field.requests if isinstance(one, kinds)}
    assert used == {min(most, 25)}
    field.requests.clear()


def test_a_server_that_knows_too_little(field: FieldCluster, open_one: Opener) -> None:
    field.fill("orders", values(3))
    del field.versions[wire.Fetch.KEY]
    with pytest.raises(Unsupported, match=r"Fetch: .*not know this request"):
        read(open_one(field.address))

    def lie(request: Any, answer: Any) -> Any:
        if not isinstance(request, wire.ApiVersions):
            return None
        keys = (wire.ApiKey(wire.List.KEY, 0, 10), wire.ApiKey(1001, 0, 10))
        return wire.encode_message(replace(answer, keys=keys))

    field.lie = lie
    with pytest.raises(Unsupported, match="too old and knows version 10"):
        open_one(field.address).topics()


def test_a_broker_that_asks_for_a_token() -> None:
    settings = {"fsync": "none", "fluvio": "127.0.0.1:0", "tokens": ("secret",)}
    with EmbeddedBroker(**settings) as broker:
        address = broker.address_of("fluvio")
        text = f"{address} does not let this client in: .*client certificate"
        with pytest.raises(AccessDenied, match=text):
            open_driver(Config(servers=address))


def test_the_address_of_an_spu(field: FieldCluster) -> None:
    with pytest.raises(OptionError, match=r"is an SPU of a cluster .*port is 9003"):
        open_driver(Config(servers=field.spus[0].address))


def test_requests_are_as_servers_want_them(
    field: FieldCluster, open_one: Opener
) -> None:
    write(open_one(field.address), values(1))
    greeting = next(r for r in field.requests if isinstance(r, wire.ApiVersions))
    assert [part.isdecimal() for part in greeting.client_version.split(".")] == [1] * 3
    produce = next(r for r in field.requests if isinstance(r, wire.Produce))
    assert produce.client_id == "lance-spark"
    assert (produce.isolation, produce.timeout_ms) == (wire.READ_UNCOMMITTED, 5000)


# As in the field: records.


def test_slices_are_cut(field: FieldCluster, open_one: Opener) -> None:
    """The first batch starts before the offset, and the last one is cut."""
    rows = [b"value %d" % n * 20 for n in range(300)]
    field.fill("orders", *(rows[n : n + 30] for n in range(0, 300, 30)))
    driver = open_one(field.address)
    for start, fetch_bytes in [(0, 1), (0, 11), (47, 100), (299, 5000), (100, 10_000)]:
        found = read(driver, start=start, fetch_bytes=fetch_bytes)
        assert found == numbered(rows[start:], start)


def test_a_batch_over_all_limits(field: FieldCluster, open_one: Opener) -> None:
    field.fill("orders", values(1), [b"x" * 3000])
    driver = open_one(field.address, response_bytes_max=4096)
    with pytest.raises(RecordTooLarge, match="raise response_bytes_max"):
        read(driver, fetch_bytes=100)
    # A server that sends less than was asked for.
    log = field.topics["orders"][0]
    log.batches = [log.batches[0]._replace(data=log.batches[0].data[:-1])]
    with pytest.raises(RecordTooLarge, match=r"cuts record 0 off, .* 75 would do"):
        read(driver, fetch_bytes=100)


@each("codec", CODECS)
def test_a_topic_of_one_codec(
    field: FieldCluster, open_one: Opener, codec: str
) -> None:
    """It refuses all others, also for a batch that does not get smaller by it."""
    driver, to = open_one(field.address), Partition(codec)
    field.codecs[codec] = wire.Codec[codec.upper()]
    write(driver, [b"x"], to, replace(SETTINGS, compression=codec))
    assert read(driver, LogRef(to)) == [(0, b"x")]
    other = CODECS[CODECS.index(codec) - 1]
    with pytest.raises(InvalidPayload, match="compression"):
        write(driver, [b"x"], to, replace(SETTINGS, compression=other))


def test_bombs(field: FieldCluster, open_one: Opener) -> None:
    log = field.fill("orders", values(1))
    driver = open_one(field.address, response_bytes_max=10_000)
    for codec in wire.Codec:
        if codec is not wire.Codec.NONE:
            log.batches = [Stored(0, 1, batch([bytes(100_000)], codec))]
            with pytest.raises(RecordError, match="over the limit of 80000"):
                read(driver)


def test_what_is_lost(field: FieldCluster, open_one: Opener) -> None:
    log = field.fill("orders", values(5), values(5, 5), values(5, 10))
    driver = open_one(field.address)
    log.drop(1)
    with pytest.raises(DataLoss, match="removed") as lost:
        read(driver)
    assert (lost.value.asked, lost.value.log_start) == (0, 5)
    # An SPU has no number for it.
    with pytest.raises(DataLoss, match="behind the end 15"):
        read(driver, start=16)
    del log.batches[0]
    with pytest.raises(DataLoss) as lost:
        read(driver, start=5)
    assert lost.value.asked == 5
    log.batches[0:0] = [Stored(5, 6, batch_at(5, values(1)))]
    reader = driver.open_reader(ORDERS, 5, end=15, fetch_bytes=MIB)
    first = reader.next_records()
    assert first is not None
    assert (first.position(0), len(first)) == (5, 1)
    with pytest.raises(DataLoss):
        reader.next_records()
    reader.close()


def batch_at(first: int, rows: list[bytes]) -> bytes:
    return struct.pack(">q", first) + batch(rows)[8:]


def test_damaged_batches(field: FieldCluster, open_one: Opener) -> None:
    log = field.fill("orders", values(5), values(5, 5))
    good = log.batches[1].data
    log.batches[1] = log.batches[1]._replace(data=good[:-1] + b"\7")
    driver = open_one(field.address)
    reader = driver.open_reader(ORDERS, 0, end=10, fetch_bytes=MIB)
    first = reader.next_records()
    assert first is not None
    assert len(first) == 5
    with pytest.raises(RecordError, match=r"orders/0: batch behind 4: .*checksum"):
        reader.next_records()
    reader.close()


def test_a_server_that_does_not_wait(field: FieldCluster, open_one: Opener) -> None:
    """Fluvio's SPUs answer a Fetch at once, whatever they were asked."""
    field.fill("orders", values(1))
    driver = open_one(field.address)
    reader = driver.open_reader(ORDERS, 1, end=None, fetch_bytes=MIB)
    before = field.asked["Fetch"]
    assert reader.next_records(0.2) is None
    # Pauses double: 5, 10, 20 ... ms. The log is looked at as well.
    assert field.asked["Fetch"] - before < 12
    reader.close()


def test_isolation(field: FieldCluster, open_one: Opener) -> None:
    log = field.fill("orders", values(5), values(5, 5))
    log.behind = 5
    driver = open_one(field.address, isolation="read_committed")
    assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(0, 5)}
    assert read(driver) == numbered(values(5))
    assert read(open_one(field.address)) == numbered(values(10))
    write(driver, values(1))
    produce = next(r for r in field.requests if isinstance(r, wire.Produce))
    assert produce.isolation == wire.READ_COMMITTED


# Answers that are lost.


def test_lost_answers(field: FieldCluster, open_one: Opener) -> None:
    """Each row is there at least once."""
    driver = open_one(field.address)
    field.create("orders")
    field.appends_to_lose = 2
    settings = replace(SETTINGS, batch_bytes=500)
    write(driver, values(200), settings=settings)
    assert field.topics["orders"][0].values() == values(200)
    field.answers_to_lose = 1
    write(driver, values(10, 200))
    found = field.topics["orders"][0].values()
    assert found == values(210) + values(10, 200)


def test_an_answer_about_something_else(field: FieldCluster, open_one: Opener) -> None:
    field.fill("orders", values(3))
    driver = open_one(field.address, retry_timeout_s=0.2)
    part = wire.Fetched(3)
    lies: list[tuple[type[Any], dict[str, Any]]] = [
        (wire.Fetch, {"topics": ()}),
        (wire.Fetch, {"topics": (wire.FetchedTopic("other", (part,)),)}),
        (wire.Fetch, {"topics": (wire.FetchedTopic("orders", (part,)),)}),
        (wire.List, {"kind": "SmartModule", "objects": ()}),
    ]
    for kind, change in lies:

        def lie(
            request: Any, answer: Any, kind: Any = kind, change: Any = change
        ) -> Any:
            if not isinstance(request, kind):
                return None
            return wire.encode_message(replace(answer, **change))

        field.lie = lie
        driver._forget()
        with pytest.raises(RemoteProtocolError, match="is not about"):
            read(driver)
    field.lie = None
    assert read(driver) == numbered(values(3))


def test_a_broker_that_restarts(tmp_path: Path, open_one: Opener) -> None:
    """It comes back at another port of the SPU, which the SC tells."""
    settings: dict[str, Any] = {"data_dir": str(tmp_path), "fsync": "none"}
    with EmbeddedBroker(fluvio="127.0.0.1:0", **settings) as broker:
        address = broker.address_of("fluvio")
        driver = open_one(address)
        write(driver, values(5))
    with EmbeddedBroker(fluvio=address, **settings):
        write(driver, values(5, 5))
        assert read(driver) == numbered(values(10))


def test_a_broker_without_memory(tmp_path: Path, open_one: Opener) -> None:
    """What it can't send now is asked for again, and is no end of the log."""
    settings: dict[str, Any] = {"data_dir": str(tmp_path), "fsync": "none"}
    with EmbeddedBroker(
        fluvio="127.0.0.1:0", wait_timeout_s=0.02, **settings
    ) as broker:
        driver, rows = open_one(broker.address_of("fluvio")), [b"x" * MIB] * 3
        write(driver, rows)
        assert broker._server is not None
        waiting = broker._server._shared.waiting
        refused = broker.metrics.snapshot().protocols["fluvio_spu"].requests_refused
        waiting.try_take(waiting._limit)
        with running(lambda: read(driver, start=0, end=3)) as result:

            def is_refused() -> bool:
                counts = broker.metrics.snapshot().protocols["fluvio_spu"]
                return counts.requests_refused > refused

            assert eventually(is_refused)
            waiting.give_back(waiting._limit)
            assert result() == numbered(rows)


# Settings.


def test_settings() -> None:
    assert str(Config().addresses[0]) == "127.0.0.1:9003"
    with pytest.raises(OptionError, match="Fluvio can't carry a token"):
        Config(auth_token="secret")
    with pytest.raises(OptionError, match="isolation 'none' is unknown: give read_unc"):
        Config(isolation="none")


def test_no_server(open_one: Opener) -> None:
    with pytest.raises(ConnectionLost):
        open_one("127.0.0.1:1", retry_timeout_s=0.05)
