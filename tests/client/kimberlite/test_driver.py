"""Kimberlite's driver, with this library's broker and with a server as in the field."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import LogRef, Range, WriterSettings
from lance_spark.client.kimberlite.driver import (
    WIRES,
    Config,
    KimberliteDriver,
    open_driver,
)
from lance_spark.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DataLoss,
    LanceError,
    NotLeader,
    OptionError,
    RemoteProtocolError,
    RowError,
    Timeout,
    TopicAlreadyExists,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Bounds, Partition
from lance_spark.records import Records
from lance_spark.testing.relay import Relay
from lance_spark.wire import kimberlite as wire
from tests.broker.rustlog.kit import values_of
from tests.client.kimberlite.field import FieldServer
from tests.each import each

MIB = 1024 * 1024
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
def broker(stack: ExitStack, tmp_path: Path) -> EmbeddedBroker:
    return stack.enter_context(
        EmbeddedBroker(
            data_dir=str(tmp_path / "data"),
            fsync="none",
            kimberlite="127.0.0.1:0",
            segment_bytes=4096,
        )
    )


class Opener:
    """Opens drivers, which are closed at the end of the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, address: str, **settings: Any) -> KimberliteDriver:
        driver = open_driver(Config(servers=address, **{**FAST, **settings}))
        self._stack.callback(driver.close)
        return driver


@pytest.fixture
def open_one(stack: ExitStack) -> Opener:
    return Opener(stack)


@pytest.fixture(params=["broker", "field"])
def server(request: pytest.FixtureRequest) -> str:
    """The address of our broker, and of a server as in the field."""
    if request.param == "broker":
        broker: EmbeddedBroker = request.getfixturevalue("broker")
        return broker.address_of("kimberlite")
    field: FieldServer = request.getfixturevalue("field")
    return field.address


def open_writer(driver: KimberliteDriver, settings: WriterSettings = SETTINGS) -> Any:
    return driver.open_writer(
        ORDERS.partition, options=settings, create_topic=True, check=lambda server: None
    )


def write(
    driver: KimberliteDriver,
    rows: list[bytes] | pa.Table,
    settings: WriterSettings = SETTINGS,
) -> None:
    writer = open_writer(driver, settings)
    writer.write(rows if isinstance(rows, pa.Table) else table(rows))
    writer.finish()
    assert writer.pending_bytes == 0


def read_records(
    driver: KimberliteDriver,
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


def read(driver: KimberliteDriver, *rest: Any, **more: Any) -> list[tuple[int, bytes]]:
    return [
        (records.position(row), value)
        for records in read_records(driver, *rest, **more)
        for row, value in enumerate(values_of(records))
    ]


def numbered(rows: list[bytes], first: int = 0) -> list[tuple[int, bytes]]:
    return list(enumerate(rows, first))


# Both servers.


@pytest.mark.parametrize("form", WIRES)
def test_every_form(
    request: pytest.FixtureRequest, stack: ExitStack, open_one: Opener, form: str
) -> None:
    broker: EmbeddedBroker = request.getfixturevalue("broker")
    field = stack.enter_context(FieldServer(form))
    for address in (broker.address_of("kimberlite"), field.address):
        driver = open_one(address, wire=form)
        assert driver.is_conditional == (form != "v1-bincode")
        rows = values(500)
        write(driver, rows, replace(SETTINGS, batch_bytes=1000))
        assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(0, 500)}
        write(driver, [b""])
        assert driver.bounds([ORDERS]) == {ORDERS.partition: Bounds(0, 501)}
        assert read(driver, fetch_bytes=2000) == numbered([*rows, b""])
        # Nothing tells the end of a log before 0.8 but what is there.
        known = {} if form in ("v5", "v3") else {"stream_id": driver._ids["orders"]}
        write(open_one(address, wire=form, **known), values(500, 501))
        assert driver.find_end(ORDERS.partition) == 1001
    asks = field.asked["StreamInfo"] > 0
    assert asks == (form == "v5")


def test_streams_and_bounds(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    with pytest.raises(Unsupported, match=r"listing streams .*kimberlite has no"):
        driver.topics()
    entries = driver.topics(["orders", "clicks", "orders"])
    assert [(entry.name, list(entry.partitions)) for entry in entries] == [
        ("clicks", [0]),
        ("orders", [0]),
    ]
    # Nothing tells whether it was there.
    driver.create_topic("orders")
    with pytest.raises(Unsupported, match="a stream of 3 partitions"):
        driver.create_topic("orders", 3)
    write(driver, values(5))
    others = [LogRef(Partition("orders", 7)), LogRef(Partition("clicks"))]
    assert driver.bounds([ORDERS, *others]) == {
        ORDERS.partition: Bounds(0, 5),
        Partition("clicks"): Bounds(0, 0),
    }
    assert driver.count_unread(ORDERS, 2).records == 3
    with pytest.raises(TopicNotFound):
        driver.describe(LogRef(Partition("orders", 3)))
    with pytest.raises(TopicNotFound, match="orders/9: streams have one"):
        read(driver, LogRef(Partition("orders", 9)))


def test_tenants(server: str, open_one: Opener) -> None:
    ours, theirs = open_one(server), open_one(server, tenant=42)
    write(ours, values(3))
    assert read(theirs) == []
    write(theirs, values(2, 7))
    assert read(ours) == numbered(values(3))
    assert read(theirs) == numbered(values(2, 7))


def test_one_stream_by_its_id(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    write(driver, values(3))
    number = driver._ids["orders"]
    known = open_one(server, stream_id=number)
    assert [entry.name for entry in known.topics()] == [str(number)]
    assert [entry.name for entry in known.topics(["any"])] == ["any"]
    assert read(known, LogRef(Partition("any"))) == numbered(values(3))
    assert read(known, LogRef(Partition(str(number)))) == numbered(values(3))
    write(known, values(2, 3))
    assert read(driver) == numbered(values(5))
    with pytest.raises(OptionError, match="is one stream, and so it can't be a, b"):
        known.topics(["a", "b"])
    assert known._ids == {}


@pytest.mark.parametrize("settings", [SETTINGS, ALONE])
def test_many_batches(server: str, open_one: Opener, settings: WriterSettings) -> None:
    driver = open_one(server)
    rows = [b"value %d" % n * 3 for n in range(5000)]
    write(driver, rows, replace(settings, batch_bytes=5000))
    assert read(driver) == numbered(rows)
    assert read(driver, start=100, end=200, fetch_bytes=2000) == numbered(
        rows[100:200], 100
    )


def test_events_in_an_append(field: FieldServer, open_one: Opener) -> None:
    """10 000 events and 4 MiB, as the specification has it."""
    driver = open_one(field.address)
    write(driver, [b""] * 25_000, replace(SETTINGS, batch_bytes=16 * MIB))
    large = [b"x" * MIB] * 6
    write(driver, large, replace(SETTINGS, batch_bytes=16 * MIB))
    appends = [
        request.body.events
        for request in field.requests
        if isinstance(request.body, wire.AppendEvents)
    ]
    assert [len(events) for events in appends] == [10_000, 10_000, 5000, 3, 3]
    assert len(read(driver)) == 25_006
    # A batch that earlier rows have begun is not passed either.
    writer = open_writer(driver, replace(SETTINGS, batch_bytes=16 * MIB))
    for _ in range(3):
        writer.write(table([b""] * 4000))
    writer.finish()
    sizes = [len(request.body.events) for request in field.requests[-2:]]
    assert sizes == [10_000, 2000]


def test_rows_that_can_not_be_carried(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    for column, kind, some in (
        ("key", pa.binary(), b"k"),
        ("timestamp", pa.timestamp("us", "UTC"), 5),
    ):
        rows = table([b"a", b"b"]).append_column(column, pa.array([None, some], kind))
        with pytest.raises(RowError, match=f"row 1: it has a {column}, which kimber"):
            write(driver, rows)
    nulls = pa.table({"value": pa.array([b"a", None], pa.binary())})
    with pytest.raises(RowError, match="its value is null"):
        write(driver, nulls)
    with pytest.raises(RowError, match=f"kimberlite carries {4 * MIB}: split"):
        write(driver, [b"x" * (4 * MIB + 1)])


def test_the_largest_row(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    rows = [b"a", b"x" * driver.record_bytes_max, b"b"]
    write(driver, rows)
    assert read(driver, fetch_bytes=1) == numbered(rows)
    assert read(driver, fetch_bytes=64 * MIB) == numbered(rows)


def test_waiting_for_records(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    write(driver, values(1))
    reader = driver.open_reader(ORDERS, 1, end=None, fetch_bytes=MIB)
    assert reader.next_records(0.05) is None
    write(driver, values(1, 1))
    records = reader.next_records(5.0)
    assert records is not None and records.position(0) == 1
    reader.close()


def test_marks(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    write(driver, values(20))
    mark = driver.mark_position(ORDERS, 11, 20)
    assert driver.is_mark_right(ORDERS, 11, mark)
    assert not driver.is_mark_right(ORDERS, 12, mark)
    piece = driver.mark_range(Range(ORDERS, 5, 9), 20)
    assert driver.is_range_right(piece)


def test_what_kimberlite_has_not(server: str, open_one: Opener) -> None:
    driver = open_one(server)
    with pytest.raises(Unsupported):
        driver.locate_time(ORDERS, 0, option="startingTimestamp")
    with pytest.raises(Unsupported):
        driver.wait({}, 0, 1.0)


def test_four_writers(server: str, open_one: Opener) -> None:
    """Writers of one stream take turns: each row is there once, each one's in order."""
    drivers = [open_one(server) for _ in range(4)]
    settings = replace(SETTINGS, batch_bytes=500)

    def run(number: int) -> None:
        rows = [b"%d %d" % (number, n) for n in range(300)]
        write(drivers[number], rows, settings)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    found = [value for _, value in read(drivers[0])]
    assert len(found) == 1200
    for number in range(4):
        mine = [value for value in found if value.startswith(b"%d " % number)]
        assert mine == [b"%d %d" % (number, n) for n in range(300)]


# Settings.


@each(
    ("settings", "text"),
    [
        ({"tenant": -1}, "tenant"),
        ({"tenant": 2**64}, "tenant"),
        ({"tenant": "x"}, "tenant"),
        ({"stream_id": -1}, "stream_id"),
        ({"stream_id": 2**64}, "stream_id"),
        ({"stream_id": True}, "stream_id"),
        ({"wire": "v6"}, "wire 'v6' is unknown: give one of v5, v3, v1-postcard"),
        ({"auth_token": ""}, "auth_token"),
        ({"servers": "host:x"}, "host:x"),
    ],
)
def test_settings_that_can_not_be(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Config(**settings)


def test_the_default_port() -> None:
    assert [str(address) for address in Config().addresses] == ["127.0.0.1:5432"]
    assert "secret" not in repr(Config(auth_token="secret"))


def test_tokens(stack: ExitStack, open_one: Opener) -> None:
    broker = stack.enter_context(
        EmbeddedBroker(fsync="none", kimberlite="127.0.0.1:0", tokens=("secret",))
    )
    field = stack.enter_context(FieldServer(token="secret"))
    for address in (broker.address_of("kimberlite"), field.address):
        driver = open_one(address, auth_token="secret")
        write(driver, values(3))
        assert read(driver) == numbered(values(3))
        for token in ("wrong", None):
            text = f"{address}: .*: the server asks for a token"
            with pytest.raises(AuthenticationFailed, match=text):
                driver = open_one(address, auth_token=token, retry_timeout_s=0.5)
                write(driver, values(1))


def test_a_token_that_is_not_taken(field: FieldServer, open_one: Opener) -> None:
    def lie(request: Any, answer: Any) -> list[bytes]:
        return [field.encode(replace(answer, body=replace(answer.body, **changed)))]

    field.lie = lie
    changed: dict[str, Any] = {"authenticated": False}
    open_one(field.address)
    with pytest.raises(AuthenticationFailed, match="does not accept the token"):
        open_one(field.address, auth_token="secret")
    changed = {"server_version": 4}
    with pytest.raises(OptionError, match=r"wire v5: .* does not take it \(it has ver"):
        open_one(field.address)


@each(
    ("served", "spoken", "kind"),
    [
        ("v3", "v5", ConnectionLost),
        ("v5", "v1-postcard", ConnectionLost),
        ("v1-bincode", "v1-postcard", LanceError),
        ("v1-postcard", "v1-bincode", LanceError),
    ],
)
def test_another_form(served: str, spoken: str, kind: type[LanceError]) -> None:
    with FieldServer(served) as field:
        times = {**FAST, "retry_timeout_s": 0.05, "request_timeout_s": 0.2}
        config = Config(servers=field.address, wire=spoken, **times)  # type: ignore[arg-type]
        with pytest.raises(kind, match=rf"{spoken} \(wire\)"):
            open_driver(config).close()


def test_a_server_of_another_protocol(broker: EmbeddedBroker, open_one: Opener) -> None:
    with pytest.raises(LanceError):
        open_one(broker.address, retry_timeout_s=0.5)


# Ours alone.


def test_loss_by_retention(stack: ExitStack, open_one: Opener) -> None:
    topics = {"orders": {"retention": {"max_bytes": 400}}}
    broker = stack.enter_context(
        EmbeddedBroker(
            fsync="none", kimberlite="127.0.0.1:0", segment_bytes=100, topics=topics
        )
    )
    for form in WIRES:
        driver = open_one(broker.address_of("kimberlite"), wire=form)
        for n in range(10):
            write(driver, [b"%d" % n * 60])
        broker.service.maintain()
        start, end = _ends(driver)
        assert start > 0
        with pytest.raises(DataLoss) as loss:
            read(driver, start=0)
        assert (loss.value.log_start, loss.value.log_end) == (start, end)
        assert len(read(driver, start=start)) == end - start


def _ends(driver: KimberliteDriver) -> tuple[int, int]:
    bounds = driver.bounds([ORDERS])[ORDERS.partition]
    return bounds.start, bounds.end


def test_a_restart(broker: EmbeddedBroker, open_one: Opener) -> None:
    driver = open_one(broker.address_of("kimberlite"))
    write(driver, values(10))
    broker.stop()
    broker.start()
    write(driver, values(10, 10))
    assert read(driver) == numbered(values(20))


def test_a_stream_that_is_deleted(broker: EmbeddedBroker, open_one: Opener) -> None:
    """Its id is unknown; a look at the name creates another one."""
    driver = open_one(broker.address_of("kimberlite"))
    write(driver, values(10))
    store = broker.service.store
    [topic] = store.topics()
    store.delete_topic(topic.metadata.id)
    assert driver.bounds([ORDERS]) == {}
    with pytest.raises(TopicNotFound):
        read(driver)
    driver.topics(["orders"])
    assert _ends(driver) == (0, 0)


def test_lost_connections(broker: EmbeddedBroker, open_one: Opener) -> None:
    """Whatever is lost on the way, a sole writer's rows are there once."""
    with Relay(broker.address_of("kimberlite")) as relay:
        driver = open_one(relay.address)
        writer = open_writer(driver, replace(ALONE, batch_bytes=300))
        for n in range(10):
            writer.write(table(values(50, 50 * n)))
            if n % 3 == 0:
                relay.drop()
        writer.finish()
        assert read(driver) == numbered(values(500))


# Field: reading.


def test_a_release_before_0_8(stack: ExitStack, open_one: Opener) -> None:
    """It has frames of version 5, too, and no StreamInfo: the end is searched for."""
    field = stack.enter_context(FieldServer("v5-0.6"))
    field.fill("orders", values(1000))
    driver = open_one(field.address)
    assert _ends(driver) == (0, 1000)
    write(driver, values(5, 1000))
    assert read(driver) == numbered(values(1005))
    # It is asked once.
    assert driver._tells_length is False


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 100, 1001])
def test_ends_that_are_searched(
    stack: ExitStack, open_one: Opener, length: int
) -> None:
    field = stack.enter_context(FieldServer("v3"))
    log = field.fill("orders", values(length))
    driver = open_one(field.address, wire="v3")
    assert _ends(driver) == (0, length)
    log += values(50)
    assert _ends(driver) == (0, length + 50)
    del log[10:]
    assert _ends(driver) == (0, len(log))


def test_retention_in_the_field(field: FieldServer, open_one: Opener) -> None:
    field.fill("orders", values(10))
    driver = open_one(field.address)
    mark = driver.mark_position(ORDERS, 8, 10)
    field.dropped[field.names[1, "orders"]] = 6
    assert _ends(driver) == (6, 10)
    with pytest.raises(DataLoss) as loss:
        read(driver, start=3)
    assert (loss.value.log_start, loss.value.log_end) == (6, 10)
    assert driver.is_mark_right(ORDERS, 8, mark)


def test_pushes_are_dropped(field: FieldServer, open_one: Opener) -> None:
    field.pushes = True
    driver = open_one(field.address)
    write(driver, values(20), replace(SETTINGS, batch_bytes=50))
    assert read(driver, fetch_bytes=20) == numbered(values(20))


def test_redirects(field: FieldServer, stack: ExitStack, open_one: Opener) -> None:
    other = stack.enter_context(FieldServer())
    other.fill("orders", values(5))
    field.leader = other.address
    driver = open_one(field.address)
    assert read(driver) == numbered(values(5))
    driver = open_one(field.address)
    write(driver, values(1, 5))
    assert other.values("orders") == values(6)


# Field: writing.


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("form", ["v5", "v3"])
def test_a_lost_answer_of_a_sole_writer(
    stack: ExitStack, open_one: Opener, lost: int, form: str
) -> None:
    """The same append follows, is refused, and is found to be there."""
    field = stack.enter_context(FieldServer(form))
    driver = open_one(field.address, wire=form)
    write(driver, values(3), ALONE)
    field.answers_to_lose = lost
    write(driver, values(100, 3), replace(ALONE, batch_bytes=200))
    assert field.values("orders") == values(103)


def test_an_append_that_never_came(field: FieldServer, open_one: Opener) -> None:
    driver = open_one(field.address)
    field.fill("orders", values(3))
    for settings in (ALONE, SETTINGS):
        field.appends_to_lose = 2
        before = len(field.values("orders"))
        write(driver, values(3, before), settings)
    assert field.values("orders") == values(9)


def test_a_lost_answer_with_others(field: FieldServer, open_one: Opener) -> None:
    """Rows may be there twice, and never not at all."""
    driver = open_one(field.address)
    field.fill("orders", values(3))
    field.answers_to_lose = 1
    write(driver, values(3, 3))
    assert field.values("orders") == values(6) + values(3, 3)
    # The same append came first, with the same place: it is not sent blindly.
    places = [
        request.body.expected_offset
        for request in field.requests
        if isinstance(request.body, wire.AppendEvents)
    ]
    assert places == [3, 3, 6]


@pytest.mark.parametrize("settings", [SETTINGS, ALONE])
def test_another_writer(
    field: FieldServer, open_one: Opener, settings: WriterSettings
) -> None:
    """Batches behind the one that is refused go behind it, in their order."""
    driver = open_one(field.address)
    writer = open_writer(driver, replace(settings, batch_bytes=100))
    writer.write(table(values(10)))
    writer.flush()
    field.fill("orders", [b"theirs"] * 3)
    writer.write(table(values(90, 10)))
    writer.finish()
    found = field.values("orders")
    assert [value for value in found if value != b"theirs"] == values(100)
    assert found.count(b"theirs") == 3


def test_a_writer_that_is_never_quick_enough(
    field: FieldServer, open_one: Opener
) -> None:
    def refuse(request: Any, answer: Any) -> list[bytes] | None:
        if not isinstance(request, wire.AppendEvents):
            return None
        error = wire.ErrorResponse(16, "offset mismatch: expected 0, actual 0")
        return [field.encode(replace(answer, body=error))]

    field.lie = refuse
    driver = open_one(field.address, retry_timeout_s=0.2)
    with pytest.raises(Timeout, match="orders/0: other writers were quicker until"):
        write(driver, values(1))


def test_a_strict_server(field: FieldServer, open_one: Opener) -> None:
    field.is_strict = True
    known = open_one(field.address, stream_id=5)
    assert known.bounds([ORDERS]) == {}
    with pytest.raises(TopicNotFound):
        write(known, values(1))


def test_a_lost_answer_of_release_0_1(stack: ExitStack, open_one: Opener) -> None:
    """Its appends expect nothing: a batch may be there twice, and never not at all."""
    field = stack.enter_context(FieldServer("v1-bincode"))
    driver = open_one(field.address, wire="v1-bincode")
    field.answers_to_lose = 1
    write(driver, values(5), ALONE)
    assert field.values("orders") == values(5) * 2
    field.appends_to_lose = 2
    write(driver, values(5, 5), ALONE)
    assert field.values("orders")[10:] == values(5, 5)


# Field: ids, lengths and leaders.


def close_once(kind: type[wire.Message]) -> Any:
    """Make a lie that ends the connection in place of the first such answer."""
    done: list[Any] = []

    def lie(request: Any, answer: Any) -> None:
        if isinstance(request, kind) and not done:
            done.append(request)
            raise ConnectionLost("closed by the test")

    return lie


def test_a_length_that_is_lost_by_chance(field: FieldServer, open_one: Opener) -> None:
    """The end is searched for this once; a server that has told it is asked again."""
    field.fill("orders", values(100))
    driver = open_one(field.address)
    field.lie = close_once(wire.StreamInfo)
    assert _ends(driver) == (0, 100)
    assert driver._tells_length is None
    assert _ends(driver) == (0, 100)
    assert driver._tells_length is True
    field.lie = close_once(wire.StreamInfo)
    before = field.asked["StreamInfo"]
    assert _ends(driver) == (0, 100)
    assert field.asked["StreamInfo"] == before + 2


def test_a_length_that_is_not_told_at_once(
    field: FieldServer, open_one: Opener
) -> None:
    answers = [wire.ErrorResponse(14, "server busy, try again later")]

    def lie(request: Any, answer: Any) -> list[bytes] | None:
        if isinstance(request, wire.StreamInfo) and answers:
            return [field.encode(replace(answer, body=answers.pop()))]
        return None

    field.lie = lie
    field.fill("orders", values(7))
    driver = open_one(field.address)
    assert _ends(driver) == (0, 7)
    answers.append(wire.ErrorResponse(0, "no"))
    with pytest.raises(LanceError, match="no"):
        _ends(driver)


@pytest.mark.parametrize("told", [None, True])
def test_a_server_that_is_gone_when_it_is_asked(
    open_one: Opener, told: bool | None
) -> None:
    """It is not taken for one that does not tell lengths."""
    with FieldServer() as field:
        driver = open_one(field.address, retry_timeout_s=0.2)
        driver.topics(["orders"])
        if told:
            driver.find_end(ORDERS.partition)
    with pytest.raises((ConnectionLost, Timeout)):
        driver.find_end(ORDERS.partition)
    assert (driver._tells_length, driver._closings) == (told, 0)


@pytest.mark.parametrize("told", [None, True])
def test_a_server_that_refuses_to_tell_lengths(
    field: FieldServer, open_one: Opener, told: bool | None
) -> None:
    field.fill("orders", values(30))
    driver = open_one(field.address)
    if told:
        assert _ends(driver) == (0, 30)
    field.lie = lambda request, answer: (
        [field.encode(replace(answer, body=wire.ErrorResponse(2, "what?")))]
        if isinstance(request, wire.StreamInfo)
        else None
    )
    assert _ends(driver) == (0, 30)
    assert driver._tells_length is False


def test_a_connection_that_is_lost_for_good(
    field: FieldServer, open_one: Opener
) -> None:
    """A server that has told a length is asked until the deadline."""
    driver = open_one(field.address, retry_timeout_s=0.2)
    assert _ends(driver) == (0, 0)

    def lie(request: Any, answer: Any) -> None:
        if isinstance(request, wire.StreamInfo):
            raise ConnectionLost("closed by the test")

    field.lie = lie
    with pytest.raises((ConnectionLost, Timeout)):
        driver.find_end(ORDERS.partition)


def test_how_much_is_asked_for(field: FieldServer, open_one: Opener) -> None:
    """Nothing to learn the bounds; never so much that an answer fits into no frame."""
    field.fill("orders", [b"x" * MIB] * 6)
    driver = open_one(field.address)
    assert _ends(driver) == (0, 6)
    assert len(read(driver, end=6, fetch_bytes=64 * MIB)) == 6
    sizes = [
        request.body.max_bytes
        for request in field.requests
        if isinstance(request.body, wire.ReadEvents)
    ]
    assert sizes == [0, 4 * MIB, 4 * MIB]


def forget(field: FieldServer, *names: str) -> None:
    """Restart a server that keeps nothing; others create their streams first."""
    with field.lock:
        field.streams.clear()
        field.names.clear()
    for name in names:
        field.fill(name, [b"of %s" % name.encode()] * 20)
    field.drop()


def test_a_server_that_forgets_its_streams(
    field: FieldServer, open_one: Opener
) -> None:
    """Rows of another stream, which has got the id, are neither read nor written."""
    driver = open_one(field.address)
    write(driver, values(20))
    reader = driver.open_reader(ORDERS, 0, end=20, fetch_bytes=50)
    first = reader.next_records()
    assert first is not None and values_of(first) == values(len(first))
    writer = open_writer(driver)
    writer.write(table([b"late"]))
    forget(field, "clicks", "orders")
    with pytest.raises(TopicNotFound, match="'orders' has the id 4294967298 now, and"):
        while reader.next_records() is not None:
            pass
    with pytest.raises(TopicNotFound, match="created anew, or this is another server"):
        writer.finish()
    assert driver.bounds([ORDERS]) == {}
    assert field.values("clicks") == [b"of clicks"] * 20
    # A look at the name takes what is there now.
    driver.topics(["orders"])
    assert _ends(driver) == (0, 20)
    writer.finish()
    assert field.values("orders") == [b"of orders"] * 20 + [b"late"]


def test_a_server_that_is_restarted(field: FieldServer, open_one: Opener) -> None:
    """The id is asked for once on each connection, not with each request."""
    driver = open_one(field.address)
    write(driver, values(10))
    for _ in range(3):
        field.drop()
        before = field.asked["CreateStream"]
        assert read(driver, fetch_bytes=20) == numbered(values(10))
        assert field.asked["CreateStream"] == before + 1


@pytest.mark.parametrize("form", ["v1-postcard", "v1-bincode"])
def test_releases_that_tell_an_id_once(
    stack: ExitStack, open_one: Opener, form: str
) -> None:
    """Those before 0.4.2: it is kept, and other drivers have to be given it."""
    field = stack.enter_context(FieldServer(form))
    driver = open_one(field.address, wire=form)
    write(driver, values(3))
    field.drop()
    write(driver, values(3, 3))
    assert read(driver) == numbered(values(6))
    other = open_one(field.address, wire=form)
    with pytest.raises(TopicAlreadyExists, match=r"do not tell the id .* streamId"):
        write(other, values(1))
    known = open_one(field.address, wire=form, stream_id=driver._ids["orders"])
    write(known, values(3, 6))
    assert read(known) == numbered(values(9))


def test_an_id_that_is_unknown(broker: EmbeddedBroker, open_one: Opener) -> None:
    for number in (5, 1 << 32 | 99, 2**64 - 1):
        driver = open_one(broker.address_of("kimberlite"), stream_id=number)
        assert driver.topics(["orders"]) == []
        assert driver.bounds([ORDERS]) == {}
        with pytest.raises(TopicNotFound):
            write(driver, values(1))
        with pytest.raises(TopicNotFound):
            read(driver)


def test_servers_that_know_no_leader(
    field: FieldServer, stack: ExitStack, open_one: Opener
) -> None:
    """The others are asked; if each names the other one, there is an end to it."""
    other = stack.enter_context(FieldServer())
    other.fill("orders", values(5))
    field.leader = "unknown"
    driver = open_one(f"{field.address},{other.address}")
    assert read(driver) == numbered(values(5))
    field.leader, other.leader = other.address, field.address
    driver = open_one(field.address, retry_timeout_s=0.3)
    with pytest.raises(NotLeader, match="leader hint"):
        read(driver)


def test_a_handshake_that_is_not_answered(field: FieldServer, open_one: Opener) -> None:
    field.lie = lambda request, answer: ()
    with pytest.raises(LanceError):
        open_one(field.address, connect_timeout_s=0.2, retry_timeout_s=0.3)
    field.lie = lambda request, answer: [
        field.encode(replace(answer, body=wire.SyncResponse()))
    ]
    with pytest.raises(RemoteProtocolError, match=r"the form v5 \(wire\)"):
        open_one(field.address, retry_timeout_s=0.3)
    field.lie = lambda request, answer: [
        field.encode(replace(answer, body=wire.ErrorResponse(2, "server is 6")))
    ]
    with pytest.raises(OptionError, match=r"does not take it \(server is 6 "):
        open_one(field.address)
