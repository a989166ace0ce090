"""TANK's driver, with this library's broker and with one as in the field."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import LogRef, Range, WriterSettings
from lance_spark.client.tank.driver import Config, TankDriver, open_driver
from lance_spark.columnar import make_schema, write_records
from lance_spark.errors import (
    ConnectionLost,
    DataLoss,
    LanceError,
    OptionError,
    RecordError,
    RowError,
    StorageError,
    TopicAlreadyExists,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Bounds, Partition
from lance_spark.records import Records
from lance_spark.testing.relay import Relay
from lance_spark.wire import tank as wire
from lance_spark.wire.lwp import write_records as write_tlv
from tests.broker.kit import clients
from tests.broker.tank.kit import MIB, Row, TankClient, bundle, cut, make
from tests.broker.tank.kit import values as values_of
from tests.client.tank.field import FieldServer

FAST = {"backoff_base_s": 0.01, "retry_timeout_s": 10.0, "request_timeout_s": 5.0}
SETTINGS = WriterSettings(
    batch_bytes=MIB,
    linger_s=0.0,
    max_in_flight=4,
    buffer_bytes=16 * MIB,
    compression="none",
    record_type=1,
    allow_null_records=False,
)
ALONE = replace(SETTINGS, sole_writer=True)
ORDERS = LogRef(Partition("orders"))


def values(count: int, first: int = 1) -> list[bytes]:
    return [b"value %d" % n for n in range(first, first + count)]


def table(rows: list[bytes]) -> pa.Table:
    return pa.table({"value": pa.array(rows, pa.binary())})


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def field(stack: ExitStack) -> FieldServer:
    return stack.enter_context(FieldServer())


@pytest.fixture
def broker(stack: ExitStack, tmp_path: Path) -> EmbeddedBroker:
    return stack.enter_context(
        EmbeddedBroker(
            data_dir=str(tmp_path / "data"),
            fsync="none",
            tank="127.0.0.1:0",
            segment_bytes=4096,
        )
    )


class Opener:
    """Opens drivers, which are closed at the end of the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, address: str, **settings: Any) -> TankDriver:
        driver = open_driver(Config(servers=address, **{**FAST, **settings}))
        self._stack.callback(driver.close)
        return driver


@pytest.fixture
def open_one(stack: ExitStack) -> Opener:
    return Opener(stack)


@pytest.fixture(params=["broker", "field"])
def server(request: pytest.FixtureRequest) -> str:
    """The address of our broker, and of one as in the field."""
    if request.param == "broker":
        broker: EmbeddedBroker = request.getfixturevalue("broker")
        return broker.address_of("tank")
    field: FieldServer = request.getfixturevalue("field")
    return field.address


def write(
    driver: TankDriver,
    rows: list[bytes] | pa.Table,
    to: Partition = ORDERS.partition,
    settings: WriterSettings = SETTINGS,
    **more: Any,
) -> None:
    writer = driver.open_writer(
        to, options=settings, create_topic=True, check=lambda server: None, **more
    )
    writer.write(rows if isinstance(rows, pa.Table) else table(rows))
    writer.finish()


def read_records(
    driver: TankDriver,
    log: LogRef = ORDERS,
    start: int = 1,
    end: int | None = None,
    fetch_bytes: int = MIB,
) -> list[Records]:
    reader = driver.open_reader(log, start, end=end, fetch_bytes=fetch_bytes)
    found = []
    while not reader.is_finished and (records := reader.next_records()) is not None:
        found.append(records)
    reader.close()
    return found


def read(driver: TankDriver, *rest: Any, **more: Any) -> list[tuple[int, bytes]]:
    return [
        (records.position(row), value)
        for records in read_records(driver, *rest, **more)
        for row, value in enumerate(cut(records.values))
    ]


def numbered(rows: list[bytes], first: int = 1) -> list[tuple[int, bytes]]:
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
        Partition("orders", 0): Bounds(1, 1),
        to: Bounds(1, 6),
        Partition("orders", 2): Bounds(1, 1),
    }
    assert driver.count_unread(LogRef(to), 2).records == 4
    with pytest.raises(TopicNotFound):
        driver.describe(LogRef(Partition("orders", 3)))
    with pytest.raises(TopicNotFound):
        read(driver, LogRef(Partition("nosuch")))
    with pytest.raises(TopicNotFound):
        write(driver, values(1), Partition("orders", 9))


@pytest.mark.parametrize("settings", [SETTINGS, ALONE])
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_many_batches(
    server: str, open_one: Opener, settings: WriterSettings, compression: str
) -> None:
    driver = open_one(server)
    rows = [b"value %d" % n * 3 for n in range(5000)]
    settings = replace(settings, batch_bytes=5000, compression=compression)
    write(driver, rows, settings=settings)
    assert read(driver) == numbered(rows)
    assert read(driver, start=100, end=200, fetch_bytes=2000) == numbered(
        rows[99:199], 100
    )
    assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(1, 5001)}


def test_keys_and_times(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    times = [1_700_000_000_123_000, 1_700_000_000_123_999, 0, None]
    rows = pa.table(
        {
            "key": pa.array([b"k", b"", None, b"x" * 255], pa.binary()),
            "value": pa.array([b"a", b"", b"c", b"d"], pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    write(driver, rows)
    [records] = read_records(driver)
    schema = make_schema(driver.traits.columns)
    found = write_records(records, schema, topic="orders", partition=0)
    assert found.column("offset").to_pylist() == [1, 2, 3, 4]
    assert found.column("key").to_pylist() == [b"k", b"", None, b"x" * 255]
    assert found.column("value").to_pylist() == [b"a", b"", b"c", b"d"]
    stamps = found.column("timestamp").cast(pa.int64()).to_pylist()
    # Whole milliseconds; a row without a time has that of the append.
    assert stamps[:3] == [1_700_000_000_123_000, 1_700_000_000_123_000, 0]
    assert stamps[3] > 1_700_000_000_123_000


def test_rows_that_can_not_be_carried(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    keys = pa.array([b"k", b"k" * 256], pa.binary())
    rows = pa.table({"key": keys, "value": pa.array([b"a", b"b"], pa.binary())})
    with pytest.raises(RowError, match="its key has 256 bytes, and tank carries 255"):
        write(driver, rows)
    nulls = pa.table({"value": pa.array([b"a", None], pa.binary())})
    with pytest.raises(RowError, match="null"):
        write(driver, nulls)
    large = table([b"x" * (17 * MIB)])
    with pytest.raises(RowError, match="tank carries"):
        write(driver, large)


def test_the_largest_row(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    rows = [b"a", b"x" * driver.record_bytes_max, b"b"]
    write(driver, rows)
    assert read(driver, fetch_bytes=1) == numbered(rows)


def test_waiting_for_records(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    write(driver, values(1))
    reader = driver.open_reader(ORDERS, 2, end=None, fetch_bytes=MIB)
    assert reader.next_records(0.4) is None
    write(driver, values(1, 2))
    records = reader.next_records(5.0)
    assert records is not None and records.position(0) == 2


def test_marks(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    write(driver, values(20))
    mark = driver.mark_position(ORDERS, 11, 21)
    assert driver.is_mark_right(ORDERS, 11, mark)
    assert not driver.is_mark_right(ORDERS, 12, mark)
    piece = driver.mark_range(Range(ORDERS, 5, 9), 21)
    assert driver.is_range_right(piece)
    first = driver.mark_position(ORDERS, 1, 21)
    assert driver.is_mark_right(ORDERS, 1, first)


def test_what_tank_has_not(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    with pytest.raises(Unsupported):
        driver.locate_time(ORDERS, 0, option="startingTimestamp")
    with pytest.raises(Unsupported):
        driver.wait({}, 0, 1.0)
    with pytest.raises(OptionError, match="can't carry a token"):
        Config(servers="x", auth_token="secret")


# Ours alone.


def test_loss_by_retention(stack: ExitStack, open_one: Opener) -> None:
    topics = {"orders": {"retention": {"max_bytes": 400}}}
    broker = stack.enter_context(
        EmbeddedBroker(
            fsync="none", tank="127.0.0.1:0", segment_bytes=100, topics=topics
        )
    )
    driver = open_one(broker.address_of("tank"))
    for n in range(10):
        write(driver, [b"%d" % n * 60])
    broker.service.maintain()
    start = driver.bounds([ORDERS])[ORDERS.partition].start
    assert start > 1
    with pytest.raises(DataLoss) as loss:
        read(driver, start=1)
    assert (loss.value.log_start, loss.value.log_end) == (start, 11)
    assert len(read(driver, start=start)) == 11 - start


def test_a_key_of_lwp(broker: EmbeddedBroker, open_one: Opener) -> None:
    with clients(broker, 1) as [lwp]:
        topic = lwp.create("orders")
        rows = [Row(b"a", b"k"), Row(b"b", b"k" * 300), Row(b"c")]
        lwp.write(topic, bytes(write_tlv(make(*rows))), count=3)
    driver = open_one(broker.address_of("tank"))
    reader = driver.open_reader(ORDERS, 1, end=None, fetch_bytes=MIB)
    records = reader.next_records()
    assert records is not None and cut(records.values) == [b"a"]
    with pytest.raises(StorageError, match="orders/0"):
        reader.next_records()
    assert read(driver, start=3) == [(3, b"c")]


def test_a_broker_that_asks_for_a_token(stack: ExitStack, open_one: Opener) -> None:
    broker = stack.enter_context(
        EmbeddedBroker(fsync="none", tank="127.0.0.1:0", tokens=("secret",))
    )
    with pytest.raises(ConnectionLost, match="lets clients in without a token"):
        open_one(broker.address_of("tank"), retry_timeout_s=0.5)


def test_a_server_of_another_protocol(broker: EmbeddedBroker, open_one: Opener) -> None:
    with pytest.raises(LanceError):
        open_one(broker.address, retry_timeout_s=0.5)


def test_a_restart(broker: EmbeddedBroker, open_one: Opener) -> None:
    driver = open_one(broker.address_of("tank"))
    write(driver, values(10))
    broker.stop()
    broker.start()
    write(driver, values(10, 11))
    assert read(driver) == numbered(values(20))


# Field: reading.


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("fetch_bytes", [1, 40, 300, MIB])
def test_bundles_whole_and_cut(
    field: FieldServer, open_one: Opener, cuts: bool, before: int, fetch_bytes: int
) -> None:
    field.cuts, field.bundles_before = cuts, before
    field.pings = field.reorders = True
    rows = values(60)
    field.fill("orders", *[rows[n : n + 7] for n in range(0, 60, 7)])
    driver = open_one(field.address)
    assert read(driver, fetch_bytes=fetch_bytes) == numbered(rows)
    for start, end in ((1, 3), (5, 30), (60, 61), (33, None)):
        assert read(driver, start=start, end=end, fetch_bytes=fetch_bytes) == [
            (n, rows[n - 1]) for n in range(start, end or 61)
        ]


def test_messages_above_the_high_water_mark(
    field: FieldServer, open_one: Opener
) -> None:
    """They are not read before they are committed, and not left out then."""
    field.hwm_behind = 5
    field.fill("orders", values(10), values(10, 11))
    driver = open_one(field.address)
    reader = driver.open_reader(ORDERS, 1, end=None, fetch_bytes=MIB)
    records = reader.next_records()
    assert records is not None and cut(records.values) == values(15)
    assert reader.next_records() is None
    field.hwm_behind = 0
    records = reader.next_records()
    assert records is not None
    assert (records.position(0), cut(records.values)) == (16, values(5, 16))


def test_numbers_that_sparse_bundles_leave_out(
    field: FieldServer, open_one: Opener
) -> None:
    field.fill("orders", values(3))
    field.fill_sparse("orders", [4, 7, 9])
    field.fill("orders", [b"ten"])
    field.fill_sparse("orders", [100, 105, 110, 115])
    field.fill("orders", [b"116"])
    driver = open_one(field.address)
    seqs = [1, 2, 3, 4, 7, 9, 10, 100, 105, 110, 115, 116]
    for fetch_bytes in (1, 60, MIB):
        for start in (1, 5, 8, 9, 10, 11, 99, 100, 106, 115, 116):
            found = [
                position
                for position, _ in read(driver, start=start, fetch_bytes=fetch_bytes)
            ]
            assert found == [n for n in seqs if n >= start], (start, fetch_bytes)
    # A range whose end no message has is read to its end.
    reader = driver.open_reader(ORDERS, 7, end=9, fetch_bytes=MIB)
    records = reader.next_records()
    assert records is not None and len(records) == 1 and reader.is_finished
    assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(1, 117)}


def test_a_jump_that_no_bundle_announces(field: FieldServer, open_one: Opener) -> None:
    log = field.fill("orders", values(5), values(5, 6), values(5, 11))
    del log.bundles[1]
    driver = open_one(field.address)
    reader = driver.open_reader(ORDERS, 1, end=16, fetch_bytes=1)
    assert reader.next_records() is not None
    with pytest.raises(DataLoss) as loss:
        reader.next_records()
    assert (loss.value.asked, loss.value.log_start) == (6, 11)


def test_retention_in_the_field(field: FieldServer, open_one: Opener) -> None:
    log = field.fill("orders", values(5), values(5, 6))
    driver = open_one(field.address)
    mark = driver.mark_position(ORDERS, 8, 11)
    log.drop(1)
    with pytest.raises(DataLoss) as loss:
        read(driver, start=3)
    assert (loss.value.log_start, loss.value.log_end) == (6, 11)
    assert driver.is_mark_right(ORDERS, 8, mark)
    log.drop(1)
    assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(11, 11)}
    assert read(driver, start=11) == []


def test_a_bundle_larger_than_an_answer(field: FieldServer, open_one: Opener) -> None:
    size = 64 * 1024
    field.fill("orders", [b"a"], [b"x" * size], [b"b"])
    for cuts in (True, False):
        field.cuts = cuts
        driver = open_one(field.address, response_bytes_max=size)
        reader = driver.open_reader(ORDERS, 1, end=None, fetch_bytes=100)
        records = reader.next_records()
        assert records is not None and cut(records.values) == [b"a"]
        with pytest.raises(LanceError, match=r"response_bytes_max|over the limit"):
            reader.next_records()
        assert read(driver, start=3) == [(3, b"b")]


def test_what_is_malformed(field: FieldServer, open_one: Opener) -> None:
    log = field.fill("orders", values(3), [b"bad"], values(2, 5))
    one = log.bundles[1]
    log.bundles[1] = one._replace(framed=one.framed[:1] + b"\x84" + one.framed[2:])
    driver = open_one(field.address)
    # What is before it is handed out; a range that ends before it is whole.
    assert read(driver, start=1, end=4) == numbered(values(3))
    reader = driver.open_reader(ORDERS, 2, end=None, fetch_bytes=MIB)
    records = reader.next_records()
    assert records is not None and cut(records.values) == values(2, 2)
    assert records.fault is None
    text = r"malformed record at offset 4: orders/0: bundle behind 3"
    with pytest.raises(RecordError, match=text):
        reader.next_records()
    assert reader.position == 4
    assert read(driver, start=5) == numbered(values(2, 5), 5)


def test_a_time_that_is_too_late(field: FieldServer, open_one: Opener) -> None:
    field.fill("orders", [b"a"])
    data = bytearray(bundle(b"b", Row(b"c", None, 7)))
    late = struct.pack("<Q", 7)
    at = data.index(late)
    data[at : at + 8] = struct.pack("<Q", 2**63)
    log = field.topics["orders"][0]
    log.bundles.append(
        log.bundles[0]._replace(first=2, last=3, framed=bytes([len(data)]) + data)
    )
    driver = open_one(field.address)
    reader = driver.open_reader(ORDERS, 1, end=None, fetch_bytes=MIB)
    records = reader.next_records()
    assert records is not None and cut(records.values) == [b"a", b"b"]
    with pytest.raises(RecordError, match="too late"):
        reader.next_records()


def test_redirects(field: FieldServer, stack: ExitStack, open_one: Opener) -> None:
    other = stack.enter_context(FieldServer())
    field.fill("orders", values(1))
    other.fill("orders", values(5))
    field.leader = other.address
    driver = open_one(field.address)
    assert read(driver) == numbered(values(5))
    driver = open_one(field.address)
    write(driver, values(1, 6))
    assert values_of(other.topics["orders"][0].rows()) == values(6)


# Field: writing.


def test_message_1_unless_alone(field: FieldServer, open_one: Opener) -> None:
    driver = open_one(field.address)
    write(driver, values(3))
    assert field.asked["ProduceAt"] == 0 and field.asked["Produce"] == 1
    write(driver, values(3, 4), settings=ALONE)
    assert field.asked["ProduceAt"] == 1 and field.asked["Produce"] == 1
    [request] = [one for one in field.requests if isinstance(one, wire.ProduceAt)]
    assert request.topics[0].writes[0].first_seq == 4


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_answer_of_a_sole_writer(
    field: FieldServer, open_one: Opener, lost: int
) -> None:
    """The same append follows, is refused, and is found to be there."""
    driver = open_one(field.address)
    write(driver, values(3), settings=ALONE)
    field.answers_to_lose = lost
    settings = replace(ALONE, batch_bytes=200)
    write(driver, values(100, 4), settings=settings)
    assert values_of(field.topics["orders"][0].rows()) == values(103)


def test_an_append_that_never_came(field: FieldServer, open_one: Opener) -> None:
    driver = open_one(field.address)
    field.fill("orders", values(3))
    field.appends_to_lose = 2
    for settings in (ALONE, SETTINGS):
        before = len(field.topics["orders"][0].rows())
        write(driver, values(3, before + 1), settings=settings)
    assert values_of(field.topics["orders"][0].rows()) == values(9)


def test_a_lost_answer_with_others(field: FieldServer, open_one: Opener) -> None:
    """Rows may be there twice, and never not at all."""
    driver = open_one(field.address)
    field.fill("orders", values(3))
    field.answers_to_lose = 1
    write(driver, values(3, 4))
    found = values_of(field.topics["orders"][0].rows())
    assert found == values(6) + values(3, 4)


@pytest.mark.parametrize("others", [1, 10, 40])
def test_another_writer_though_alone_was_said(
    broker: EmbeddedBroker, open_one: Opener, stack: ExitStack, others: int
) -> None:
    """Batches behind the one that is refused are gaps, and go behind it."""
    driver = open_one(broker.address_of("tank"))
    driver.create_topic("orders")
    settings = replace(ALONE, batch_bytes=200)
    writer = driver.open_writer(
        ORDERS.partition,
        options=settings,
        create_topic=False,
        check=lambda server: None,
    )
    writer.write(table(values(10)))
    writer.flush()
    other = stack.enter_context(TankClient(broker))
    other.write("orders", *[b"other"] * others)
    writer.write(table(values(90, 11)))
    writer.finish()
    found = [value for _, value in read(driver)]
    assert found.count(b"other") == others
    # In some order: a batch behind may fit where others have ended.
    assert sorted(set(found) - {b"other"}) == sorted(values(100))
    if others == 1:
        assert [value for value in found if value != b"other"] == values(100)


def test_what_others_wrote_is_not_taken_for_it(
    field: FieldServer, open_one: Opener
) -> None:
    driver = open_one(field.address)
    field.fill("orders", values(3))
    writer = driver.open_writer(
        ORDERS.partition, options=ALONE, create_topic=False, check=lambda server: None
    )
    writer.write(table(values(1, 4)))
    writer.flush()
    field.fill("orders", [b"theirs"])
    writer.write(table(values(1, 5)))
    writer.finish()
    found = values_of(field.topics["orders"][0].rows())
    assert found == [*values(4), b"theirs", *values(1, 5)]


def test_lost_connections(broker: EmbeddedBroker, open_one: Opener) -> None:
    """Whatever is lost on the way, a sole writer's rows are there once."""
    with Relay(broker.address_of("tank")) as relay:
        driver = open_one(relay.address)
        driver.create_topic("orders")
        settings = replace(ALONE, batch_bytes=300)
        writer = driver.open_writer(
            ORDERS.partition,
            options=settings,
            create_topic=False,
            check=lambda server: None,
        )
        for n in range(10):
            writer.write(table(values(50, 50 * n + 1)))
            if n % 3 == 0:
                relay.drop()
        writer.finish()
        assert read(driver) == numbered(values(500))
