"""RustLog's driver, with this library's broker and with one as in the field."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import LogRef, Range, WriterSettings
from lance_spark.client.rustlog.driver import Config, RustlogDriver, open_driver
from lance_spark.errors import (
    AuthenticationRequired,
    ConnectionLost,
    DataLoss,
    LanceError,
    OptionError,
    RemoteProtocolError,
    RowError,
    TopicAlreadyExists,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Bounds, Partition, Retention
from lance_spark.records import Records
from lance_spark.testing.relay import Fate, Flow, Relay
from lance_spark.wire import rustlog as wire
from tests.broker.rustlog.kit import MIB, RustlogClient, values_of
from tests.client.rustlog.field import FieldServer

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
ORDERS = LogRef(Partition("orders"))


def values(count: int, first: int = 0) -> list[bytes]:
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
def broker(stack: ExitStack) -> EmbeddedBroker:
    return stack.enter_context(
        EmbeddedBroker(fsync="none", rustlog="127.0.0.1:0", segment_bytes=4096)
    )


class Opener:
    """Opens drivers, which are closed at the end of the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, address: str, **settings: Any) -> RustlogDriver:
        driver = open_driver(Config(servers=address, **{**FAST, **settings}))
        self._stack.callback(driver.close)
        return driver


@pytest.fixture
def open_one(stack: ExitStack) -> Opener:
    return Opener(stack)


@pytest.fixture(params=["field", "ours", "ours json"])
def driver(
    request: pytest.FixtureRequest, open_one: Opener
) -> tuple[RustlogDriver, str]:
    """A driver of each kind of server and dialect, and where the server is."""
    if request.param == "field":
        address = request.getfixturevalue("field").address
    else:
        address = request.getfixturevalue("broker").address_of("rustlog")
    dialect = "json" if request.param == "ours json" else "binary"
    return open_one(address, dialect=dialect), address


def read(
    driver: RustlogDriver,
    start: int = 0,
    end: int | None = None,
    *,
    log: LogRef = ORDERS,
    fetch_bytes: int = MIB,
) -> list[bytes]:
    reader = driver.open_reader(log, start, end=end, fetch_bytes=fetch_bytes)
    found: list[bytes] = []
    while not reader.is_finished and (records := reader.next_records()) is not None:
        assert records.position(0) == start + len(found)
        found += values_of(records)
    reader.close()
    return found


def write(
    driver: RustlogDriver, rows: list[bytes], partition: int = 0, **options: Any
) -> None:
    writer = driver.open_writer(
        Partition("orders", partition),
        options=replace(SETTINGS, **options),
        create_topic=True,
        check=lambda server: None,
    )
    writer.write(table(rows))
    writer.finish()


# Both kinds of servers.


def test_there_and_back(driver: tuple[RustlogDriver, str]) -> None:
    one, address = driver
    assert one.topics() == []
    write(one, values(10), partitions=3)
    write(one, [b"", b"\x00" * 300], partition=2)
    assert [(t.name, t.partitions) for t in one.topics()] == [("orders", (0, 1, 2))]
    assert one.topics(["no"]) == []
    assert one.describe(ORDERS).name == "orders"
    logs = one.topics()[0].logs
    assert one.bounds(logs) == {
        Partition("orders", 0): Bounds(0, 10),
        Partition("orders", 1): Bounds(0, 0),
        Partition("orders", 2): Bounds(0, 2),
    }
    assert read(one) == values(10)
    assert read(one, log=logs[2]) == [b"", b"\x00" * 300]
    assert read(one, 3, 7) == values(10)[3:7]
    assert read(one, 3, 7, fetch_bytes=1) == values(10)[3:7]
    assert read(one, 10) == read(one, 99) == read(one, 5, 5) == []
    assert one.server.address == address and not one.server.has_stages
    assert one.count_unread(ORDERS, 4).records == 6
    with pytest.raises(TopicAlreadyExists):
        one.create_topic("orders", 3)


def test_what_is_not_there(driver: tuple[RustlogDriver, str]) -> None:
    one, _ = driver
    assert one.bounds([ORDERS]) == {}
    for call in (
        lambda: one.describe(ORDERS),
        lambda: one.find_bounds_of(ORDERS),
        lambda: one.mark_position(ORDERS, 0, 0),
        lambda: read(one),
    ):
        with pytest.raises(TopicNotFound, match="orders"):
            call()
    one.create_topic("orders", 2)
    with pytest.raises(TopicNotFound, match="orders/2"):
        one.describe(LogRef(Partition("orders", 2)))
    with pytest.raises(TopicNotFound):
        write(one, [b"x"], partition=2)


def test_what_rustlog_can_not_do(driver: tuple[RustlogDriver, str]) -> None:
    one, address = driver
    for call in (
        lambda: one.wait({}, 0, 0.0),
        lambda: one.locate_time(ORDERS, 0, option="startingTimestamp"),
        lambda: one.commit_position(ORDERS, "g", 0),
    ):
        with pytest.raises(Unsupported, match="rustlog has no such thing") as error:
            call()
        assert address in str(error.value)
    assert one.stages() is None
    assert one.refresh() is one
    assert one.align(ORDERS, 7) == 7


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1000, 4097, 100_000])
def test_the_end_is_found_with_few_requests(
    field: FieldServer, open_one: Opener, size: int
) -> None:
    field.fill("orders", [b""] * size)
    driver = open_one(field.address)
    assert driver.find_bounds_of(ORDERS) == Bounds(0, size)
    assert field.asked["Fetch"] <= 2 * math.log2(size + 2) + 2
    # The second time it starts from what it knows.
    for grown in (0, 0, 1, 700):
        field.fill("orders", [b""] * grown)
        before = field.asked["Fetch"]
        end = driver.find_bounds_of(ORDERS).end
        assert end == len(field.topics["orders"][0])
        assert field.asked["Fetch"] - before <= 2 * math.log2(grown + 2) + 2


def test_the_end_of_large_records(field: FieldServer, open_one: Opener) -> None:
    field.fill("orders", [b"x" * 5000] * 77)
    assert open_one(field.address).find_bounds_of(ORDERS) == Bounds(0, 77)


def test_one_request_at_a_time(field: FieldServer, open_one: Opener) -> None:
    driver = open_one(field.address)
    write(driver, [b"x" * 1000] * 2000, batch_bytes=20_000)
    assert len(read(driver, fetch_bytes=10_000)) == 2000
    assert field.pipelined == 1


# Marks.


def test_marks_notice_a_restart(field: FieldServer, open_one: Opener) -> None:
    driver = open_one(field.address)
    field.fill("orders", values(100))
    mark = driver.mark_position(ORDERS, 50, 100)
    assert driver.is_mark_right(ORDERS, 50, mark)
    piece = driver.mark_range(Range(ORDERS, 10, 50, "counted"), 100)
    assert driver.is_range_right(piece)
    for again in ([], values(20), values(100, first=1), [b"x"] * 200):
        field.restart()
        field.fill("orders", again)
        assert not driver.is_mark_right(ORDERS, 50, mark)
        assert not driver.is_range_right(piece)
    field.restart()
    field.fill("orders", values(120))
    assert driver.is_mark_right(ORDERS, 50, mark)
    assert driver.is_range_right(piece)
    field.restart()
    for call in (
        lambda: driver.is_mark_right(ORDERS, 50, mark),
        lambda: driver.is_range_right(piece),
    ):
        with pytest.raises(TopicNotFound):
            call()


def test_marks_of_records_that_are_alike(field: FieldServer, open_one: Opener) -> None:
    """The same records once more, but fewer: only the tail is gone.

    The mark is right as long as the log reaches the position, and its end, which it
    holds, tells that the log was longer.
    """
    driver = open_one(field.address)
    field.fill("orders", [b"same"] * 100)
    mark = driver.mark_position(ORDERS, 50, 100)
    assert mark.end == 100
    for left in (60, 50):
        field.restart()
        field.fill("orders", [b"same"] * left)
        assert driver.is_mark_right(ORDERS, 50, mark)
    field.restart()
    field.fill("orders", [b"same"] * 49)
    assert not driver.is_mark_right(ORDERS, 50, mark)


@pytest.mark.parametrize("position", [0, 1, 3, 4, 5, 8, 20])
def test_marks_at_the_head(field: FieldServer, open_one: Opener, position: int) -> None:
    driver = open_one(field.address)
    field.fill("orders", values(20))
    mark = driver.mark_position(ORDERS, position, 20)
    assert driver.is_mark_right(ORDERS, position, mark)
    field.restart()
    field.fill("orders", [b"other", *values(30)])
    assert driver.is_mark_right(ORDERS, position, mark) == (position == 0)
    with pytest.raises(DataLoss, match="the log ends before it"):
        driver.mark_position(ORDERS, 99, 99)


def test_marks_while_retention_goes_on(
    broker: EmbeddedBroker, open_one: Opener
) -> None:
    driver = open_one(broker.address_of("rustlog"))
    write(driver, values(400), batch_bytes=2000)
    marks = {at: driver.mark_position(ORDERS, at, 400) for at in (2, 100, 398)}
    piece = driver.mark_range(Range(ORDERS, 0, 50, "counted"), 400)
    store = broker.service.store
    [topic] = store.topics()
    store.set_retention(topic.metadata.id, Retention(0, 4096))
    store.maintain()
    start = driver.find_bounds_of(ORDERS).start
    assert 50 < start < 398
    for at, mark in marks.items():
        assert driver.is_mark_right(ORDERS, at, mark)
    # It is the reader's to tell that records are gone.
    assert driver.is_range_right(piece)
    with pytest.raises(DataLoss, match="before the log start is removed") as error:
        read(driver, 10)
    assert (error.value.asked, error.value.log_start) == (10, start)
    # A mark of a position that retention has passed.
    mark = driver.mark_position(ORDERS, 10, 400)
    assert (mark.size, mark.head_size) == (0, None)
    assert driver.is_mark_right(ORDERS, 10, mark)
    assert read(driver, start) == values(400)[start:]


def test_the_end_while_retention_passes_what_was_known(
    broker: EmbeddedBroker, open_one: Opener
) -> None:
    driver = open_one(broker.address_of("rustlog"))
    write(driver, values(400), batch_bytes=2000)
    driver._ends[ORDERS.partition] = 20
    store = broker.service.store
    [topic] = store.topics()
    store.set_retention(topic.metadata.id, Retention(0, 4096))
    store.maintain()
    # As if retention were quicker than the look for the end.
    assert driver.search_end(ORDERS.partition, 0) == 400


# Reading.


def test_a_connection_that_is_lost_in_the_middle(
    broker: EmbeddedBroker, open_one: Opener
) -> None:
    direct = open_one(broker.address_of("rustlog"))
    expected = [b"%04d" % n * 100 for n in range(2000)]
    write(direct, expected)
    cuts = [5, 3000, 20_000, 20_001, 50_000]

    def plan(number: int) -> Fate:
        return Fate(down=Flow(cut_at=cuts[number] if number < len(cuts) else None))

    with Relay(broker.address_of("rustlog"), plan) as relay:
        driver = open_one(relay.address)
        assert read(driver, fetch_bytes=10_000) == expected
        assert relay.cuts == len(cuts)


def test_the_next_fetch_is_under_way(field: FieldServer, open_one: Opener) -> None:
    field.fill("orders", values(100))
    driver = open_one(field.address)
    reader = driver.open_reader(ORDERS, 0, end=100, fetch_bytes=200)
    first = reader.next_records()
    assert isinstance(first, Records) and field.asked["Fetch"] >= 1
    assert reader._pending is not None
    # Other requests go between.
    assert driver.find_bounds_of(ORDERS).end == 100
    second = reader.next_records()
    assert second is not None and second.position(0) == len(first)
    reader.seek(90)
    last = reader.next_records()
    assert last is not None and values_of(last)[0] == b"value 90"
    reader.close()
    reader.close()
    assert driver.find_bounds_of(ORDERS).end == 100


def test_before_the_start_in_the_field(field: FieldServer, open_one: Opener) -> None:
    """RustLog's own broker answers with nothing there: the log seems to end."""
    field.fill("orders", values(10))
    field.dropped["orders"] = 5
    driver = open_one(field.address)
    assert read(driver) == []
    assert read(driver, 5) == values(10)[5:]


# Writing.


def test_batches_are_cut_at_their_size(field: FieldServer, open_one: Opener) -> None:
    driver = open_one(field.address)
    rows = [b"x" * 84] * 100 + [b"y" * 5000] + [b"z"]
    write(driver, rows, batch_bytes=1000)
    assert field.asked["Produce"] == 10 + 1 + 1
    assert field.topics["orders"][0] == rows


@pytest.mark.parametrize("stored", [False, True])
def test_a_lost_answer(field: FieldServer, open_one: Opener, stored: bool) -> None:
    """Each row arrives at least once, and batches in their order."""
    driver = open_one(field.address)
    driver.create_topic("orders")
    setattr(field, "answers_to_lose" if stored else "appends_to_lose", 2)
    expected = values(50)
    write(driver, expected, batch_bytes=100)
    found = field.topics["orders"][0]
    if not stored:
        assert found == expected
    else:
        assert len(found) > 50
        firsts = [found.index(value) for value in expected]
        assert firsts == sorted(firsts)


def test_order_while_connections_are_lost(
    broker: EmbeddedBroker, open_one: Opener
) -> None:
    def plan(number: int) -> Fate:
        cut = 700 + 150 * number if number < 8 else None
        flow = Flow(cut_at=cut)
        return Fate(up=flow) if number % 2 else Fate(down=Flow(cut_at=number * 9 + 5))

    expected = values(400)
    with Relay(broker.address_of("rustlog"), plan) as relay:
        driver = open_one(relay.address)
        relay.plan = lambda number: plan(number) if number < 8 else Fate()
        write(driver, expected, batch_bytes=200)
    found = read(open_one(broker.address_of("rustlog")))
    assert set(found) == set(expected)
    firsts = [found.index(value) for value in expected]
    assert firsts == sorted(firsts)


def test_a_topic_whose_creation_is_not_answered(
    broker: EmbeddedBroker, open_one: Opener
) -> None:
    # Ping and list are answered, the creation is carried out and its answer is lost.
    with Relay(
        broker.address_of("rustlog"),
        lambda n: Fate(down=Flow(cut_at=5 + 9)) if n == 0 else Fate(),
    ) as relay:
        driver = open_one(relay.address)
        write(driver, [b"x"], partitions=3)
        assert driver.topics()[0].partitions == (0, 1, 2)
        assert relay.cuts == 1


@pytest.mark.parametrize("dialect", ["binary", "json"])
def test_the_largest_values(
    broker: EmbeddedBroker, open_one: Opener, dialect: str
) -> None:
    """Batches and values fit into frames in both dialects, whatever the bytes are."""
    driver = open_one(broker.address_of("rustlog"), dialect=dialect)
    most = driver.record_bytes_max
    rows = [b"\xff" * most, b"small", b"\xfe" * (most - 1)]
    write(driver, rows, batch_bytes=32 * MIB)
    assert [len(value) for value in read(driver)] == [most, 5, most - 1]
    with pytest.raises(RowError, match=f"row 1: it has .* carries {most}") as error:
        write(driver, [b"first", b"x" * (most + 1), b"last"])
    assert error.value.row == 1


def test_many_small_rows(broker: EmbeddedBroker, open_one: Opener) -> None:
    driver = open_one(broker.address_of("rustlog"), dialect="json")
    write(driver, [b""] * 200_000, batch_bytes=32 * MIB)
    assert driver.find_bounds_of(ORDERS).end == 200_000


# Settings and servers that do not fit.


def test_settings() -> None:
    assert Config(servers="host").addresses[0].port == 9092
    with pytest.raises(OptionError, match="dialect 'xml' is unknown: give binary or"):
        Config(servers="host", dialect="xml")
    with pytest.raises(OptionError, match="auth_token: RustLog can't carry a token"):
        Config(servers="host", auth_token="secret")


def test_json_and_a_server_that_knows_it_not(
    field: FieldServer, open_one: Opener
) -> None:
    with pytest.raises(OptionError, match=r"dialect json: .* does not speak it"):
        open_one(field.address, dialect="json")


def test_no_server(field: FieldServer, open_one: Opener) -> None:
    with (
        Relay(field.address, lambda _: Fate(down=Flow(cut_at=0))) as relay,
        pytest.raises(ConnectionLost, match="check that it speaks RustLog"),
    ):
        open_one(relay.address, retry_timeout_s=0.2)


def test_a_server_of_another_kind(broker: EmbeddedBroker, open_one: Opener) -> None:
    with pytest.raises(LanceError):
        open_one(broker.address, retry_timeout_s=0.2, request_timeout_s=0.5)


def test_a_broker_that_asks_for_a_token(stack: ExitStack, open_one: Opener) -> None:
    broker = stack.enter_context(
        EmbeddedBroker(fsync="none", rustlog="127.0.0.1:0", tokens=("secret",))
    )
    for dialect in ("binary", "json"):
        with pytest.raises(AuthenticationRequired, match="client certificate"):
            open_one(broker.address_of("rustlog"), dialect=dialect)


def test_answers_to_something_else(field: FieldServer, open_one: Opener) -> None:
    driver = open_one(field.address)
    field._handle = lambda request: wire.PingResponse()  # type: ignore[method-assign,assignment]
    with pytest.raises(LanceError, match="'Ping' came in answer to 'ListTopics'"):
        driver.list_topics()


def test_a_second_client_sees_it(broker: EmbeddedBroker, open_one: Opener) -> None:
    driver = open_one(broker.address_of("rustlog"))
    write(driver, [b"a", b"b"])
    with RustlogClient(broker) as other:
        assert other.read("orders") == [b"a", b"b"]
    assert not driver.is_closed
    driver.close()
    assert driver.is_closed
    with pytest.raises(LanceError, match="is closed"):
        driver.list_topics()


def test_fewer_records_than_were_sent() -> None:
    """RustLog's broker stores them one by one; a part of them is no success."""
    config = Config(servers="127.0.0.1:1")
    driver = RustlogDriver(config)
    to = Partition("t", 3)
    driver.check_appended(wire.ProduceResponse(0, 5), to, 5)
    with pytest.raises(RemoteProtocolError, match="t/3: 5 records were sent, 2 were"):
        driver.check_appended(wire.ProduceResponse(0, 2), to, 5)
    driver.close()
