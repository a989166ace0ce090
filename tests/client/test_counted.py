"""What drivers of all protocols share that count records, with a server in memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.client import counted
from lance_spark.client.config import ConnectionConfig
from lance_spark.client.counted import CountedDriver, Fetched, digest
from lance_spark.client.driver import LogRef, Traits, WriterSettings
from lance_spark.client.log import LogClient
from lance_spark.errors import (
    AppendConflictError,
    BrokerError,
    ConnectionLost,
    DataLoss,
    LanceError,
    OffsetOutOfRange,
    OperationTimeout,
    RemoteProtocolError,
    RowError,
    StorageError,
    Timeout,
    TopicNotFound,
)
from lance_spark.model import Bounds, Partition
from lance_spark.records import Records
from tests.broker.rustlog.kit import make, values_of

AT = Partition("orders")
LOG = LogRef(AT)
SETTINGS = WriterSettings(
    batch_bytes=100,
    linger_s=0.0,
    max_in_flight=4,
    buffer_bytes=10_000,
    compression="none",
    record_type=1,
    allow_null_records=False,
)


class Config(ConnectionConfig):
    protocol = "memory"
    default_port = 1


@dataclass
class Append:
    values: list[bytes]
    expected: int | None


@dataclass
class Fetch:
    start: int
    max_bytes: int


@dataclass
class Server:
    """One log. Each append takes the next of `plan`: what happens to it.

    stored   it is stored and answered, as it is without a plan
    unheard  it is stored, the answer is lost, and so is the connection
    lost     the connection is lost before it arrives
    busy     it is refused, and may be sent again
    refused  it is refused for good
    foreign  another writer is quicker
    """

    log: list[bytes] = field(default_factory=list)
    start: int = 0
    first: int = 0
    plan: list[str] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    foreign: list[bytes] = field(default_factory=lambda: [b"foreign"])
    connections: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    # What happens while a client pauses.
    meanwhile: Callable[[], None] = lambda: None

    def answer(self, request: Any) -> Any:
        if isinstance(request, Fetch):
            self.fetches.append(request)
            if request.start < self.start:
                raise OffsetOutOfRange(f"{request.start} is not there")
            found = self.log[request.start : request.start + request.max_bytes]
            return replace(make(found), base=request.start)
        self.appends.append(request)
        fate = self.plan.pop(0) if self.plan else "stored"
        if fate == "lost":
            raise ConnectionLost("the connection is gone")
        if fate == "busy":
            raise OperationTimeout("not now")
        if fate == "refused":
            raise StorageError("never")
        if fate == "foreign":
            self.log += self.foreign
        if request.expected is not None and request.expected != len(self.log):
            raise AppendConflictError(f"the next record is number {len(self.log)}")
        self.log += request.values
        if fate == "unheard":
            raise ConnectionLost("the connection is gone")
        return len(self.log)


class Connection:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.failure: LanceError | None = None
        server.connections += 1

    def submit(self, request: Any, *, deadline: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        server = self.server
        pending = SimpleNamespace(connection=self, is_given_up=False)
        outcome: Callable[[], Any]
        try:
            answer = server.answer(request)
        except ConnectionLost as error:
            self.failure = lost = error
            outcome = lambda: _throw(lost)  # noqa: E731
        except LanceError as error:
            refusal = error
            outcome = lambda: _throw(refusal)  # noqa: E731
        else:
            outcome = lambda: answer  # noqa: E731
        server.in_flight += 1
        server.in_flight_max = max(server.in_flight_max, server.in_flight)

        def conclude(deadline: Any) -> Any:
            server.in_flight -= 1
            return outcome()

        def give_up() -> None:
            # The answer is there, as of every request here.
            pending.is_given_up = True

        pending.conclude, pending.give_up = conclude, give_up
        return pending


def _throw(error: LanceError) -> Any:
    raise error


class Link:
    """A link without a network."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connection: Connection | None = None
        self.pauses: list[float] = []

    def pause(self, delay_s: float) -> None:
        self.pauses.append(delay_s)
        self.server.meanwhile()

    def connect_once(self) -> Connection:
        if self.connection is None or self.connection.failure is not None:
            self.connection = Connection(self.server)
        return self.connection

    def ask(self, build: Any, *, timeout_s: float | None = None, **options: Any) -> Any:
        for _ in range(10):
            if timeout_s is not None and timeout_s <= 0:
                raise Timeout("too late")
            try:
                return (
                    self.connect_once().submit(build(None), deadline=None).conclude(0)
                )
            except BrokerError as error:
                if not error.retriable:
                    raise
            except ConnectionLost:
                continue
        raise Timeout("too late")


class Driver(CountedDriver):
    traits = Traits("memory", "records", "counted", columns=("topic", "value"))
    append_bytes_max = 1000
    record_bytes_max = 2000

    def __init__(self, server: Server, *, conditional: bool = False) -> None:
        super().__init__(Config(servers="here"), None)  # type: ignore[arg-type]
        self.server_ = server
        self.link: Any = Link(server)
        self.is_conditional = conditional

    def list_topics(self) -> dict[str, int]:
        return {"orders": 1}

    def create_topic(
        self, name: str, partitions: int = 1, *, retry: bool = False
    ) -> None:
        raise AssertionError("it is there")

    def find_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        return {0: Bounds(self.server_.start, len(self.server_.log))}

    def make_fetch(
        self, at: Partition, position: int, max_bytes: int, wait_s: float = 0.0
    ) -> Fetch:
        return Fetch(position, max_bytes)

    def read_fetched(self, answer: Records, at: Partition, position: int) -> Fetched:
        if not len(answer):
            return Fetched(answer, position, position)
        return Fetched(answer, answer.base, answer.base + len(answer))

    def make_append(
        self, to: Partition, records: Records, *, expected: int | None, compression: str
    ) -> Append:
        return Append(values_of(records), expected)

    def check_appended(self, answer: Any, to: Partition, count: int) -> None:
        assert isinstance(answer, int)


@pytest.fixture
def server() -> Server:
    return Server()


def open_writer(driver: Driver, **options: Any) -> Any:
    return driver.open_writer(
        AT,
        options=replace(SETTINGS, **options),
        create_topic=True,
        check=lambda server: None,
    )


def write(driver: Driver, rows: list[bytes], **options: Any) -> None:
    writer = open_writer(driver, **options)
    writer.write(table(rows))
    writer.finish()
    assert writer.pending_bytes == 0


def table(rows: list[Any]) -> pa.Table:
    return pa.table({"value": pa.array(rows, pa.binary())})


ROWS = [b"%02d" % n * 10 for n in range(40)]


# Writing.


def test_batches(server: Server) -> None:
    writer = open_writer(Driver(server))
    for first in range(0, 40, 7):
        writer.write(table(ROWS[first : first + 7]))
    assert writer.pending_bytes > 0
    writer.flush()
    assert writer.pending_bytes == 0
    writer.write(table([]))
    writer.close()
    assert server.log == ROWS
    # 36 bytes per row, so that two fit.
    assert [len(append.values) for append in server.appends] == [2] * 20
    assert {append.expected for append in server.appends} == {None}


@pytest.mark.parametrize("most", [1, 2, 4, 0])
def test_so_many_are_under_way(server: Server, most: int) -> None:
    write(Driver(server), ROWS, max_in_flight=most)
    assert server.log == ROWS
    assert server.in_flight_max == max(1, most)


def test_a_server_that_takes_one_at_a_time(server: Server) -> None:
    driver = Driver(server)
    driver.appends_max = 1
    write(driver, ROWS, max_in_flight=4)
    assert (server.log, server.in_flight_max) == (ROWS, 1)


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("fate", ["lost", "unheard", "busy"])
def test_what_is_lost_is_sent_again(
    server: Server, conditional: bool, at: int, fate: str
) -> None:
    """Every row at least once; doubles only where an answer was lost, and in order."""
    server.plan = ["stored"] * at + [fate]
    driver = Driver(server, conditional=conditional)
    if fate == "busy":
        driver.appends_max = None if conditional else 1
    write(driver, ROWS)
    firsts = [server.log.index(row) for row in ROWS]
    assert firsts == sorted(firsts)
    doubles = len(server.log) - len(ROWS)
    assert doubles == (2 if fate == "unheard" else 0)


def test_no_batch_overtakes_one_that_was_lost(server: Server) -> None:
    """The connection ends with the first; those behind it wait until it is stored."""
    server.plan = ["lost"]
    write(Driver(server), ROWS[:8])
    assert server.log == ROWS[:8]


def test_a_refusal_is_final(server: Server) -> None:
    server.plan = ["stored", "refused"]
    writer = open_writer(Driver(server), max_in_flight=1)
    with pytest.raises(StorageError, match="never"):
        writer.write(table(ROWS))
    assert server.log == ROWS[:2]
    writer.close(abandon=True)
    assert writer.pending_bytes == 0


def fail_at_first(driver: Driver, call: str, times: int) -> list[LanceError]:
    """Have a call of a driver fail so often; give the failures that are left."""
    original = getattr(driver, call)
    failures: list[LanceError] = [TopicNotFound("gone for now")] * times

    def fail(*rest: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*rest, **more)

    setattr(driver, call, fail)
    return failures


@pytest.mark.parametrize("call", ["find_end", "make_append"])
def test_a_flush_that_fails_keeps_the_rows(server: Server, call: str) -> None:
    """It may be called again, and says that all is stored only when it is."""
    driver = Driver(server, conditional=True)
    writer = open_writer(driver)
    writer.write(table(ROWS[:2]))
    failures, tries = fail_at_first(driver, call, 3), 1
    while failures:
        with pytest.raises(TopicNotFound):
            writer.flush()
        assert writer.pending_bytes > 0
        tries += 1
    writer.flush()
    assert tries > 2
    assert (server.log, writer.pending_bytes) == (ROWS[:2], 0)


def test_abandoned(server: Server) -> None:
    writer = open_writer(Driver(server))
    writer.write(table(ROWS[:5]))
    before = len(server.log)
    writer.close(abandon=True)
    assert len(server.log) == before < 5
    assert writer.pending_bytes == 0


# Rows that can't be carried.


@pytest.mark.parametrize(
    ("columns", "row", "text"),
    [
        ({"value": [b"a", b"b", None]}, 2, "its value is null, which memory"),
        ({"value": [b"a", b"x" * 2001]}, 1, "has 2001 bytes, and memory carries 2000"),
        ({"value": [b"a", b"b"], "key": [None, b"k"]}, 1, "drop the column key"),
        (
            {
                "value": [b"a"],
                "timestamp": pa.array([1], pa.timestamp("us")),
            },
            0,
            "it has a timestamp, which memory can't carry",
        ),
        (
            {"value": [b"a", b"b"], "timestamp": pa.array([None, -1], "timestamp[us]")},
            1,
            "timestamp",
        ),
    ],
)
def test_rows_that_can_not_be_carried(
    server: Server, columns: dict[str, Any], row: int, text: str
) -> None:
    columns["value"] = pa.array(columns["value"], pa.binary())
    if "key" in columns:
        columns["key"] = pa.array(columns["key"], pa.binary())
    writer = open_writer(Driver(server))
    with pytest.raises(RowError, match=text) as error:
        writer.write(pa.table(columns))
    assert error.value.row == row
    writer.flush()
    assert server.log == columns["value"].to_pylist()[:row]


def test_columns_of_nulls_may_be_there(server: Server) -> None:
    rows = table([b"a"]).append_column("key", pa.nulls(1, pa.binary()))
    rows = rows.append_column("timestamp", pa.nulls(1, pa.timestamp("us")))
    writer = open_writer(Driver(server))
    writer.write(rows.append_column("type", pa.array([7], pa.int16())))
    writer.finish()
    assert server.log == [b"a"]


# Conditional appends.


def test_numbers_are_expected(server: Server) -> None:
    server.log = [b"before"] * 3
    write(Driver(server, conditional=True), ROWS[:6])
    assert [append.expected for append in server.appends] == [3, 5, 7]
    assert server.log[3:] == ROWS[:6]


@pytest.mark.parametrize("at", range(4))
def test_a_sole_writer_doubles_nothing(server: Server, at: int) -> None:
    """Equal bytes where its own were expected are its own."""
    server.plan = ["stored"] * at + ["unheard"]
    write(Driver(server, conditional=True), ROWS, sole_writer=True)
    assert server.log == ROWS


def test_one_of_several_writers_doubles(server: Server) -> None:
    """The equal bytes may be another's: rather twice than missing."""
    server.plan = ["unheard"]
    write(Driver(server, conditional=True), ROWS[:2])
    assert server.log == ROWS[:2] * 2


@pytest.mark.parametrize("sole", [False, True])
def test_other_bytes_are_another_writers(server: Server, sole: bool) -> None:
    server.foreign = [b"foreign 1", b"foreign 2"]
    server.plan = ["foreign", "stored", "foreign"]
    driver = Driver(server, conditional=True)
    write(driver, ROWS[:8], sole_writer=sole, max_in_flight=1)
    own = [row for row in server.log if not row.startswith(b"foreign")]
    assert own == ROWS[:8]
    assert len(server.log) == 12


def test_a_conflict_with_a_log_that_is_shorter(server: Server) -> None:
    """Fewer records than expected: what is there can't be the batch."""
    driver = Driver(server, conditional=True)
    writer = open_writer(driver, sole_writer=True)
    server.log = [b"a"] * 5
    writer.write(table(ROWS[:3]))
    server.log[:] = [b"a"]
    writer.flush()
    assert server.log[-1:] == ROWS[2:3]


def test_others_are_always_quicker(server: Server) -> None:
    driver = Driver(server, conditional=True)
    driver.config = replace(driver.config, retry_timeout_s=1e-9)
    server.plan = ["foreign"] * 1000
    writer = open_writer(driver)
    writer.write(table(ROWS[:2]))
    with pytest.raises(Timeout, match="orders/0: other writers were quicker"):
        writer.flush()


def test_a_writer_waits_until_the_log_stands_still(server: Server) -> None:
    """Its rows are not sent in vain while another one appends."""
    driver = Driver(server, conditional=True)
    left = iter(range(12))

    def append_another() -> None:
        if next(left, None) is not None:
            server.log.append(b"foreign")

    server.plan, server.meanwhile = ["foreign"], append_another
    write(driver, ROWS[:2])
    assert server.log == [b"foreign"] * 13 + ROWS[:2]
    assert len(server.appends) == 2
    still, looks = driver.link.pauses[::2], driver.link.pauses[1::2]
    assert set(still) == {counted._STILL_S}
    # The longer it waits, the more often it looks.
    assert looks == sorted(looks, reverse=True) and looks[-1] < looks[0]


@pytest.mark.parametrize("sole", [False, True])
def test_a_writer_lets_others_in(
    server: Server, monkeypatch: pytest.MonkeyPatch, sole: bool
) -> None:
    """After a turn it pauses, so long that another one notices, unless it is alone."""
    monkeypatch.setattr(counted, "_TURN_S", 0.0)
    driver = Driver(server, conditional=True)
    server.meanwhile = lambda: server.log.append(b"foreign")
    write(driver, ROWS[:8], sole_writer=sole)
    assert [row for row in server.log if row != b"foreign"] == ROWS[:8]
    # Where they are known to be there, no append was in vain.
    assert len(server.appends) == 4
    assert driver.link.pauses == ([] if sole else [counted._GAP_S] * 3)
    assert counted._GAP_S > 2 * (counted._STILL_S + counted._LOOK_S_MIN)


def test_writers_that_take_turns_keep_their_order(server: Server) -> None:
    """A second batch under way might fit behind what others append."""
    server.foreign = [b"foreign 1", b"foreign 2"]
    server.plan = ["foreign"]
    write(Driver(server, conditional=True), ROWS[:8])
    assert server.in_flight_max == 1
    assert [row for row in server.log if row in ROWS] == ROWS[:8]


def test_so_many_records_in_an_append(server: Server) -> None:
    driver = Driver(server)
    driver.append_records_max = 3
    writer = open_writer(driver, batch_bytes=1000)
    for first in (0, 2, 9):
        writer.write(table(ROWS[first : first + 7]))
    writer.finish()
    assert [len(append.values) for append in server.appends] == [3] * 7
    assert server.log == ROWS[:7] + ROWS[2:9] + ROWS[9:16]


# Reading.


def read(driver: Driver, start: int, end: int | None, size: int) -> list[bytes]:
    reader = driver.open_reader(LOG, start, end=end, fetch_bytes=size)
    found = []
    while not reader.is_finished and (records := reader.next_records()) is not None:
        assert records.position(0) == start + len(found)
        found += values_of(records)
    return found


@pytest.mark.parametrize("size", [1, 3, 40, 100])
def test_reading(server: Server, size: int) -> None:
    server.log = list(ROWS)
    driver = Driver(server)
    assert read(driver, 0, None, size) == ROWS
    assert read(driver, 5, 9, size) == ROWS[5:9]
    assert read(driver, 40, None, size) == read(driver, 41, None, size) == []
    assert read(driver, 9, 9, size) == []


def test_records_before_and_behind_are_left_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may give whole bundles: more than was asked for, on both sides."""
    server.log = list(ROWS)
    driver = Driver(server)

    def fetch(at: Partition, position: int, size: int, wait_s: float = 0) -> Fetch:
        return Fetch(position // 8 * 8, 8)

    monkeypatch.setattr(driver, "make_fetch", fetch)
    assert read(driver, 3, 30, 1) == ROWS[3:30]
    assert read(driver, 8, 16, 1) == ROWS[8:16]
    assert read(driver, 39, 40, 1) == ROWS[39:]


def test_positions_without_a_record(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the protocol says that there are none, the reader goes on behind them."""
    server.log = list(ROWS)
    driver = Driver(server)

    def read_fetched(answer: Records, at: Partition, position: int) -> Fetched:
        empty = answer.cut(0, 0)
        if position < 12:
            return Fetched(empty, position, 12)
        return Fetched(answer, position, position + len(answer))

    monkeypatch.setattr(driver, "read_fetched", read_fetched)
    reader = driver.open_reader(LOG, 4, end=20, fetch_bytes=100)
    records = reader.next_records()
    assert records is not None and records.position(0) == 12
    assert values_of(records) == ROWS[12:20] and reader.is_finished
    reader = driver.open_reader(LOG, 4, end=10, fetch_bytes=100)
    assert reader.next_records() is None and reader.is_finished


def test_records_that_are_gone(server: Server) -> None:
    server.log, server.start = list(ROWS), 10
    driver = Driver(server)
    with pytest.raises(DataLoss, match=r"orders/0.*before the log start is") as error:
        read(driver, 3, 20, 5)
    assert (error.value.asked, error.value.log_start) == (3, 10)
    assert "7 records gone" in str(error.value)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    assert read(driver, 10, 20, 5) == ROWS[10:20]


def test_an_answer_that_begins_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.log = list(ROWS)
    driver = Driver(server)
    monkeypatch.setattr(
        driver,
        "make_fetch",
        lambda at, position, size, wait_s=0: Fetch(position + 2, 5),
    )
    with pytest.raises(DataLoss) as error:
        read(driver, 0, 20, 5)
    assert (error.value.asked, error.value.log_start) == (0, 2)


def test_the_fetch_ahead_is_asked_once(server: Server) -> None:
    server.log = list(ROWS)
    assert read(Driver(server), 0, 40, 10) == ROWS
    assert [fetch.start for fetch in server.fetches] == [0, 10, 20, 30]


def test_a_fetch_ahead_that_can_not_be_made(server: Server) -> None:
    """What was read before it is handed out all the same."""
    server.log += ROWS
    driver = Driver(server)
    reader = driver.open_reader(LOG, 0, end=40, fetch_bytes=5)
    original, calls = driver.make_fetch, []

    def make_fetch(*rest: Any, **more: Any) -> Any:
        calls.append(rest)
        if len(calls) in (2, 3):
            raise TopicNotFound("gone for now")
        return original(*rest, **more)

    driver.make_fetch = make_fetch  # type: ignore[method-assign]
    found: list[bytes] = []
    while not reader.is_finished:
        try:
            records = reader.next_records()
        except TopicNotFound:
            continue
        assert records is not None
        found += values_of(records)
    assert found == ROWS


def test_a_fetch_ahead_that_is_lost(server: Server) -> None:
    server.log = list(ROWS)
    driver = Driver(server)
    reader = driver.open_reader(LOG, 0, end=40, fetch_bytes=10)
    assert reader.next_records() is not None
    pending = reader._pending
    assert pending is not None
    pending.conclude = lambda deadline: _throw(ConnectionLost("gone"))  # type: ignore[method-assign]
    records = reader.next_records()
    assert records is not None and values_of(records) == ROWS[10:20]


# Following.


def follow(driver: Driver, start: int) -> Any:
    return driver.open_reader(LOG, start, end=None, fetch_bytes=100)


def test_pauses_grow_where_the_server_can_not_wait(server: Server) -> None:
    driver = Driver(server)
    server.log = ROWS[:2]

    def come() -> None:
        if len(driver.link.pauses) == 9:
            server.log.append(b"new")

    server.meanwhile = come
    reader = follow(driver, 2)
    assert values_of(reader.next_records(60.0)) == [b"new"]
    pauses = driver.link.pauses
    assert pauses == sorted(pauses) and pauses[0] < pauses[-1] == 0.25
    assert reader.next_records() is None
    reader.close()


LOSSES = {
    "empty": [],
    "shorter": ROWS[:9],
    "as long": [b"other"] * 10,
    "longer": [b"other"] * 30,
    "the last": [*ROWS[:9], b"other", b"more"],
}


@pytest.mark.parametrize("found", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("start", [0, 10])
@pytest.mark.parametrize("end", [None, 99])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_followed_log_becomes_another_one(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    found: list[bytes],
    start: int,
    end: int | None,
    is_dropped: bool,
) -> None:
    """No record of the other one is handed out, and no wait goes on for ever."""
    monkeypatch.setattr(counted, "_CHECK_S", 0.02)
    server.log = ROWS[:10]
    driver = Driver(server)
    reader = driver.open_reader(LOG, start, end=end, fetch_bytes=100)
    read = reader.next_records(1e-9)
    assert (read is None) == (start == 10)
    assert reader.next_records() is None

    def lose() -> None:
        server.log[:] = found
        if is_dropped:
            driver.link.connection = None

    server.meanwhile = lose
    with pytest.raises(DataLoss, match="is not the one that was read there") as told:
        reader.next_records(60.0)
    assert (told.value.asked, told.value.log_end) == (10, len(found))
    assert told.value.unit == "records"
    reader.close()


def test_a_followed_log_is_looked_at_on_a_new_connection(server: Server) -> None:
    """In the middle of records that were not waited for, too."""
    server.log = ROWS[:]
    driver = Driver(server)
    reader = driver.open_reader(LOG, 0, end=None, fetch_bytes=10)
    assert len(reader.next_records()) == 10
    server.log[:] = [b"other"] * 40
    driver.link.connection = None
    reader._pending = None
    with pytest.raises(DataLoss, match="is not the one that was read there"):
        reader.next_records()


def test_a_followed_log_that_comes_back(server: Server) -> None:
    server.log = ROWS[:10]
    driver = Driver(server)
    reader = follow(driver, 0)
    assert len(reader.next_records()) == 10
    assert reader.next_records() is None
    driver.link.connection = None
    server.log = ROWS[:20]
    assert values_of(reader.next_records(9.0)) == ROWS[10:20]
    # Retention has passed the last one that was read, and nothing behind it.
    server.log.append(b"new")
    server.start = 20
    assert values_of(reader.next_records(9.0)) == [b"new"]
    reader.close()


def test_following_ahead_of_a_log(server: Server) -> None:
    """There is nothing to compare yet."""
    server.log = ROWS[:2]
    reader = follow(Driver(server), 5)
    assert reader.next_records() is None
    server.log = ROWS[:6]
    assert values_of(reader.next_records()) == ROWS[5:6]
    reader.close()


# Marks.


def test_records_that_go_while_a_mark_is_compared(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the bounds and the records: cut, or passed by retention."""
    driver = Driver(server)
    server.log = ROWS[:]
    mark = driver.mark_position(LOG, 20, 40)
    seen = driver.find_bounds("orders", [0])
    monkeypatch.setattr(driver, "find_bounds", lambda topic, numbers: seen)
    assert driver.is_mark_right(LOG, 20, mark)
    server.log[10:] = []
    assert not driver.is_mark_right(LOG, 20, mark)
    monkeypatch.undo()
    server.log = ROWS[:]
    server.start = 30
    bounds = [seen, driver.find_bounds("orders", [0])]
    monkeypatch.setattr(driver, "find_bounds", lambda topic, numbers: bounds.pop(0))
    assert driver.is_mark_right(LOG, 20, mark)
    assert not bounds


# Checksums.


def test_a_digest_tells_records_apart() -> None:
    lists = ([], [b""], [b"", b""], [b"ab"], [b"a", b"b"], [b"b", b"a"], [b"1 -1 "])
    assert len({digest(make(values)) for values in lists}) == len(lists)
    whole = make(ROWS)
    parts = digest(whole.cut(7, 40), digest(whole.cut(0, 7)))
    assert parts == digest(whole)


# Topics.

TO_PARTITION = pa.table({"value": [b"one"], "partition": [0]})


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.append("orders", [b"one"]),
        lambda client: client.append("orders", TO_PARTITION),
        lambda client: list(client.read("orders")),
    ],
    ids=["append", "to partitions", "read"],
)
def test_a_topic_without_partitions(
    server: Server, call: Callable[[LogClient], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no empty topic: nothing could be read of it, or written to it."""
    monkeypatch.setattr(Driver, "list_topics", lambda self: {"orders": 0, "other": 1})
    driver = Driver(server)
    with pytest.raises(RemoteProtocolError, match="'orders' has no partitions"):
        call(LogClient(driver))
    assert [entry.name for entry in driver.topics()] == ["orders", "other"]
