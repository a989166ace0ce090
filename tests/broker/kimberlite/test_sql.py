"""Queries of clients: their process, its limits, and which streams they see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_spark.broker.kimberlite.sql as module
from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.kimberlite import worker
from lance_spark.broker.kimberlite.session import KimberliteSession
from lance_spark.broker.kimberlite.sql import Limits, Queries
from lance_spark.errors import (
    BrokerError,
    ConnectionLost,
    InternalError,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.wire import kimberlite as wire
from tests.broker.kimberlite.conftest import DialKimberlite
from tests.broker.kimberlite.kit import HERE, KimberliteClient
from tests.broker.kit import StartBroker, eventually
from tests.each import each

pytest.importorskip("duckdb")

MIB = 1024 * 1024
# Longer than any test takes: a query that is not ended makes its test fail.
LIMITS = Limits(256 * MIB, 600.0)
ENDLESS = "SELECT count(*) FROM range(10000000000000)"


class Processes(list[Any]):
    """The processes of queries, each as it was started."""

    @property
    def running(self) -> int:
        """How many run."""
        return sum(process.poll() is None for process in self)


class Thread:
    """What a process is to the broker: pipes, and an end. Its limits are none."""

    returncode: int | None = None

    def __init__(self) -> None:
        asked, answered = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(asked[1], "wb"), os.fdopen(answered[0])
        self._reading = os.fdopen(asked[0], "rb")
        self._writing = os.fdopen(answered[1], "wb")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with suppress(BrokenPipeError, SystemExit), self._writing, self._reading:
            asked = json.loads(worker.read_frame(self._reading))
            worker.answer(asked, self._reading, self._writing)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def kill(self) -> None:
        """Leave it to the end of its pipes."""

    def wait(self, timeout: float | None = None) -> None:
        self._thread.join(20)
        self.returncode = self.poll()


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    with worker.connect(256 * MIB) as database:
        yield database


@pytest.fixture
def threads(database: Any, monkeypatch: pytest.MonkeyPatch) -> Processes:
    """Threads in place of processes, for what does not depend on these."""
    started = Processes()

    def start(command: Sequence[str], **settings: Any) -> Any:
        started.append(Thread())
        return started[-1]

    monkeypatch.setattr(worker, "connect", lambda memory: database.cursor())
    monkeypatch.setattr(module.subprocess, "Popen", start)
    return started


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """All that are started in a test, which have to be gone at its end."""
    started = Processes()
    original = subprocess.Popen

    def start(*rest: Any, **more: Any) -> Any:
        started.append(original(*rest, **more))
        return started[-1]

    monkeypatch.setattr(module.subprocess, "Popen", start)
    return started


def load_nothing(name: str) -> None:
    return None


def ask(
    queries: Queries,
    sql: str,
    *params: wire.Value,
    load: module.LoadTable = load_nothing,
    hold: Callable[[int], None] = lambda size: None,
    check: Callable[[], None] = lambda: None,
) -> Any:
    return queries.run(sql, params, load=load, hold=hold, check=check)


def refused(
    code: int, sql: str, *params: wire.Value, limits: Limits = LIMITS, **more: Any
) -> str:
    """Ask a query that can't be answered; give the text."""
    with pytest.raises(BrokerError) as error:
        ask(Queries(limits), sql, *params, **more)
    assert wire.code_of(error.value) == code, error.value
    return str(error.value)


def make_batch(*values: bytes) -> pa.RecordBatch:
    offsets = pa.array(range(len(values)), pa.int64())
    return pa.record_batch({"offset": offsets, "value": pa.array(values, pa.binary())})


# The process.


def test_a_query(processes: Processes) -> None:
    held: list[int] = []
    found = ask(
        Queries(LIMITS),
        'SELECT "offset", text, $1, $2, $3, $4, $5 FROM events',
        *(None, -(2**63), "€", True, wire.Timestamp(-1)),
        load={"events": iter([make_batch(b"a", b"\xff"), make_batch()])}.get,
        hold=held.append,
    )
    columns, rows = found
    assert columns[:2] == ("offset", "text")
    rest = (None, -(2**63), "€", True, wire.Timestamp(-1))
    assert rows == ((0, "a", *rest), (1, None, *rest))
    assert len(held) == 1 and 100 < held[0] < 10_000
    assert len(processes) == 1 and processes.running == 0


def test_values_beyond_the_types_of_the_wire(threads: Processes) -> None:
    sql = "SELECT 18446744073709551615::UBIGINT, TIMESTAMP '9999-12-31', true, NULL"
    _, rows = ask(Queries(LIMITS), sql)
    assert rows == (("18446744073709551615", "9999-12-31 00:00:00", True, None),)


LOOK = """
import importlib.util, os, resource, sys
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
def answer(asked, reading, writing):
    names = "CPU", "CORE", "FSIZE", "DATA"
    limits = [resource.getrlimit(getattr(resource, "RLIMIT_" + n)) for n in names]
    found = [limits, sorted(os.environ), os.getcwd(), os.listdir("/proc/self/fd")]
    worker.write_frame(writing, {"names": []})
    worker.write_frame(writing, {"columns": [], "kinds": [1, 2, 2, 2], "rows": [found]})
worker.answer = answer
worker.main()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="/proc tells the files")
def test_what_a_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits, and nothing of the broker: neither its variables nor its files."""
    original = subprocess.Popen

    def start(command: Sequence[str], **more: Any) -> Any:
        program, *flags, script = command
        return original([program, *flags, "-c", LOOK, script], **more)

    monkeypatch.setattr(module.subprocess, "Popen", start)
    monkeypatch.setattr(module, "_make_value", lambda kind, value: value)
    monkeypatch.setenv("LANCE_TOKEN", "secret")
    own = worker._OWN_BYTES + 256 * MIB
    _, [[limits, variables, directory, files]] = ask(Queries(LIMITS), "SELECT 1")
    assert limits == [[601, 601], [0, 0], [0, 0], [own, own]]
    assert set(variables) <= {"TZ", "LC_CTYPE"}
    # The fourth is that of the look.
    assert (directory, sorted(files)) == ("/", ["0", "1", "2", "3"])


def test_it_takes_too_long(processes: Processes) -> None:
    text = refused(8, ENDLESS, limits=Limits(256 * MIB, 0.8))
    assert "query_timeout_s" in text
    assert processes[0].returncode == -signal.SIGKILL


def test_it_takes_too_much_memory() -> None:
    """Of what DuckDB counts, and of what it does not."""
    small = Limits(64 * MIB, 600.0)
    sql = "SELECT length(repeat('x', 500000000) || text) FROM events"
    events = {"events": iter([make_batch(b"a")])}
    text = refused(8, sql, limits=small, load=events.get)
    assert "memory" in text and "query_memory_bytes_max" in text


def test_it_is_killed(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of its tables, and before it has said anything."""

    def load(name: str) -> Iterator[pa.RecordBatch]:
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].wait(20)
        return iter([make_batch(b"x" * MIB)])

    text = refused(8, "SELECT * FROM events", load=load)
    assert "has ended (Killed)" in text and "query_memory_bytes_max" in text
    assert "the process of a query has ended: Killed" in caplog.text


def test_it_can_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*rest: Any, **more: Any) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(module.subprocess, "Popen", fail)
    queries = Queries(LIMITS)
    # More than may run at a time: turns are given back.
    for _ in range(3):
        with pytest.raises(InternalError, match="Resource temporarily unavail"):
            ask(queries, "SELECT 1")


@each(
    ("program", "kind", "text"),
    [
        ("import sys; sys.exit(3)", BrokerError, "exit status 3"),
        ("print('hello')", RemoteProtocolError, "a worker sends"),
        ("pass", BrokerError, "exit status 0"),
    ],
)
def test_it_says_nothing_that_makes_sense(
    program: str, kind: type[Exception], text: str
) -> None:
    original = subprocess.Popen

    def start(command: Sequence[str], **more: Any) -> Any:
        return original([*command[:2], "-S", "-c", program], **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.subprocess, "Popen", start)
        with pytest.raises(kind, match=text):
            ask(Queries(LIMITS), "SELECT 1")


# Bounds.


def test_a_few_run_at_a_time(threads: Processes) -> None:
    queries, most = Queries(LIMITS), [0]

    def load(name: str) -> None:
        most.append(threads.running)

    def run(number: int) -> Any:
        return ask(queries, f"WITH x AS (SELECT {number} AS n) FROM x", load=load)

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(run, range(5)))
    assert answers == [(("n",), ((n,),)) for n in range(5)]
    assert len(threads) == 5 and threads.running == 0
    assert 1 <= max(most) <= 2


def test_others_take_all_the_time(processes: Processes) -> None:
    queries, checked = Queries(Limits(256 * MIB, 0.3)), []
    for _ in range(2):
        assert queries._turns.acquire(timeout=0)
    with pytest.raises(Timeout, match="other queries took too long"):
        ask(queries, "SELECT 1", check=lambda: checked.append(1))
    assert checked
    # Nor does one wait whose client has gone.

    def check() -> None:
        raise ConnectionLost("gone")

    with pytest.raises(ConnectionLost):
        ask(queries, "SELECT 1", check=check)
    assert len(processes) == 0


def test_streams_that_are_too_large(threads: Processes) -> None:
    read = []

    def load(name: str) -> Iterator[pa.RecordBatch]:
        while True:
            read.append(name)
            yield make_batch(b"x" * MIB)

    limits = Limits(64 * MIB, 600.0)
    text = refused(8, "SELECT count(*) FROM events", limits=limits, load=load)
    assert "query fewer" in text and f"{16 * MIB} bytes" in text
    assert len(read) == 16


def test_texts_and_parameters_have_limits(processes: Processes) -> None:
    assert "1001 parameters" in refused(7, "SELECT 1", *range(1001))
    for asked in (["x" * (MIB + 1)], ["SELECT $1", "x" * MIB]):
        assert "characters" in refused(7, *asked)
    assert len(processes) == 0


def test_names_that_sql_does_not_tell_apart(threads: Processes) -> None:
    def load(name: str) -> Iterator[pa.RecordBatch]:
        return iter([make_batch(b"x")])

    text = refused(7, 'SELECT 1 FROM "events", "Events"', load=load)
    assert "'Events'" in text and "'events'" in text
    # One that is no stream is another matter.
    sql = "WITH recent AS (SELECT 1 AS n) SELECT a.n FROM recent a, Recent b"
    assert ask(Queries(LIMITS), sql) == (("n",), ((1,),))


def test_without_the_extra(
    client: KimberliteClient, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    for message in (wire.Query("SELECT 1"), wire.QueryAt("SELECT 1", (), 0)):
        assert "install lance-spark[sql]" in client.refused(message, 7)
    assert client.length(stream) == 0


# Clients.


def test_streams_are_tables(
    threads: Processes, client: KimberliteClient, name: str
) -> None:
    """Names as they are, null for what is no text, and only of one's own tenant."""
    names = [f"{name} plain", f'{name} "quoted"', f"{name}; DROP TABLE x"]
    for n, one in enumerate(names):
        client.append(client.create(one), b"of %d" % n, b"\xff")
    quoted = ['"' + one.replace('"', '""') + '"' for one in names]
    parts = [f'SELECT {n} AS n, "offset", text FROM {q}' for n, q in enumerate(quoted)]
    sql = f"{' UNION ALL '.join(parts)} ORDER BY ALL"
    answer = client.ask(wire.Query(sql))
    assert answer == wire.QueryResponse(
        ("n", "offset", "text"),
        tuple(row for n in range(3) for row in ((n, 0, f"of {n}"), (n, 1, None))),
    )
    text = client.refused(wire.Query(f"SELECT * FROM {quoted[0]}"), 6, tenant=42)
    assert "does not exist" in text


def test_other_tenants(threads: Processes, client: KimberliteClient, name: str) -> None:
    other = client.create(name, tenant=42)
    client.ask(client.make_append(other, b"theirs"), tenant=42)
    query = wire.Query(f'SELECT text FROM "{name}"')
    assert client.ask(query, tenant=42).rows == (("theirs",),)
    # Its topic has another name, which is no stream's.
    client.refused(wire.Query(f'SELECT text FROM "42:{name}"'), 6)
    assert "2^32" in client.refused(query, 2, tenant=2**32)


def test_topics_that_are_no_streams(
    threads: Processes, broker: EmbeddedBroker, kimberlite: KimberliteClient
) -> None:
    broker.service.create_topics(Principal(), "orders", 3)
    for name in ("orders", "orders/0", "a:b", "a/b", "..", "x" * 300, "a\0b", "nosuch"):
        kimberlite.refused(wire.Query(f'SELECT * FROM "{name}"'), 6)


def test_positions(threads: Processes, client: KimberliteClient, name: str) -> None:
    """A query at a position sees the events up to it, and that one too."""
    client.append(client.create(name), *[b"%d" % n for n in range(5)])
    sql = f'SELECT max("offset"), count(*) FROM "{name}"'
    for position in (0, 4):
        answer = client.ask(wire.QueryAt(sql, (), position))
        assert answer == wire.QueryAtResponse(
            answer.columns, ((position, position + 1),)
        )
    for position in (5, 2**64 - 1):
        text = client.refused(wire.QueryAt(sql, (), position), 9)
        assert text == f"position {position} is ahead: the streams end at 5"


def test_a_large_stream_is_read_in_parts(
    threads: Processes,
    client: KimberliteClient,
    stream: int,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which one at a time takes memory of the broker."""
    held: list[int] = []
    original = KimberliteSession._hold_answer

    def watch(self: KimberliteSession, size: int) -> None:
        original(self, size)
        held.append(self._lent)

    monkeypatch.setattr(KimberliteSession, "_hold_answer", watch)
    for n in range(3):
        client.append(stream, *[b"%06d" % n * 100] * 1500, expected=1500 * n)
    sql = f'SELECT count(*), count(DISTINCT "offset"), sum(length(text)) FROM "{name}"'
    assert client.ask(wire.Query(sql)).rows == ((4500, 4500, 4500 * 600),)
    assert client.ask(wire.QueryAt(sql, (), 3999)).rows == ((4000, 4000, 4000 * 600),)
    assert 2 * MIB < max(held) < 3 * MIB


def test_what_was_removed_is_not_seen(
    threads: Processes, start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    topics = {"events": {"retention": {"max_bytes": 300}}}
    broker = start(kimberlite=HERE, segment_bytes=100, topics=topics)
    client = dial_kimberlite(broker)
    stream = client.create("events")
    for n in range(8):
        client.append(stream, b"%d" % n * 60, expected=n)
    broker.service.maintain()
    first = broker.service.store.view(stream & 0xFFFF).records.start
    sql = 'SELECT min("offset"), max("offset") FROM events'
    rows = client.ask(wire.Query(sql)).rows
    assert first > 0 and rows == ((first, 7),)


def test_a_query_ends_with_its_client_and_with_the_broker(
    start: StartBroker, dial_kimberlite: DialKimberlite, processes: Processes
) -> None:
    broker = start(kimberlite=HERE, query_timeout_s=600)
    clients = [dial_kimberlite(broker) for _ in range(3)]
    for client in clients[:2]:
        client.submit(wire.Query(ENDLESS))
    assert eventually(lambda: processes.running == 2)
    # One that has sent more is noticed, too.
    clients[0].submit(wire.Sync())
    for client in clients[:2]:
        client.stream.close()
    assert eventually(lambda: processes.running == 0)
    assert clients[2].ask(wire.Query("SELECT 1")).rows == ((1,),)
    subscriber = dial_kimberlite(broker)
    stream = subscriber.create("events")
    assert subscriber.ask(wire.Subscribe(stream, 0, 1)).credits == 1
    for client in (clients[2], subscriber):
        client.submit(wire.Query(ENDLESS))
    assert eventually(lambda: processes.running == 2)
    ended = threading.Event()
    threading.Thread(target=lambda: (broker.stop(), ended.set()), daemon=True).start()
    assert ended.wait(20)
    assert processes.running == 0
