"""RustLog's clients that are malformed, unknown, greedy or slow, and broken disks."""

from __future__ import annotations

import json
import struct
import threading
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.rustlog import session as module
from lance_spark.errors import LanceError
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.testing import run_broker_process
from lance_spark.wire import rustlog as wire
from tests.broker.kit import Dial, StartBroker, clients, eventually, records, running
from tests.broker.kit import record as make_tlv
from tests.broker.rustlog.conftest import DialRustlog
from tests.broker.rustlog.kit import MIB, RustlogClient, make
from tests.broker.test_server import certificates as certificates
from tests.broker.test_server import tls_of, tls_settings
from tests.store.seam import SeamFiles

HERE = "127.0.0.1:0"


@pytest.fixture
def plain(broker: EmbeddedBroker, dial_rustlog: DialRustlog) -> RustlogClient:
    return dial_rustlog(broker)


# Frames that are none.


@pytest.mark.parametrize("size", [0, 10 * MIB + 1, 2**32 - 1])
def test_a_bad_length_ends_the_connection(
    plain: RustlogClient, broker: EmbeddedBroker, size: int
) -> None:
    plain.create("orders")
    # What was asked before is answered before.
    plain.submit(wire.Produce("orders", 0, make([b"a"])))
    plain.send(struct.pack(">I", size) + b"more")
    assert plain.next() == wire.ProduceResponse(0, 1)
    answer = plain.next()
    assert isinstance(answer, wire.ErrorResponse) and answer.code == 1
    assert plain.ended()
    counts = broker.metrics.snapshot()
    assert counts.requests_refused == 1
    # From when the error was met, and not from when the process has started.
    assert counts.requests["rustlog.Unknown"].sum_s < 5


@pytest.mark.parametrize(
    "payload",
    [
        b"\x2a",
        b"\x00",
        b"\xfe\x00\x01\x00\x00",
        b"\x01\x00",
        b"\x01\x00\x01t\0\0\0\0\xff\xff\xff\xff",
        b"\x02\x00\x00\x00\x01t",
        b"\x05\x00\x02\xff\xff\0\0\0\1",
        b"{",
        b"{}",
        b'{"Nope":{}}',
        b'{"Produce":{"topic":"t","partition":0,"records":[[256]]}}',
        b'{"Produce":{"topic":"\\ud800","partition":0,"records":[]}}',
        b'{"Fetch":{"topic":"t","partition":-1,"offset":0,"max_bytes":1}}',
        b'"Ping"',
        b"   ",
        b'{"Produce":' + b"[" * 100_000,
    ],
)
def test_what_makes_no_sense_leaves_the_connection(
    plain: RustlogClient, payload: bytes
) -> None:
    plain.send_payload(payload)
    found = plain.next_payload()
    assert found is not None
    if wire.is_json(payload):
        assert "Error" in json.loads(found)
    else:
        assert found[:3] == b"\xfe\x00\x02"
    assert plain.ask(wire.Ping()) == wire.PingResponse()


def test_trailing_bytes_are_ignored(plain: RustlogClient) -> None:
    plain.send_payload(b"\xffmore")
    assert plain.next() == wire.PingResponse()


def test_an_internal_failure_is_told(
    plain: RustlogClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setitem(module._HANDLERS, wire.Ping, fail)
    assert plain.refused(wire.Ping()) == (500, "internal error: RuntimeError")
    assert plain.ask(wire.ListTopics()).topics == ()


def test_an_answer_that_fits_no_frame(
    plain: RustlogClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Exporter, "render", lambda self: "x" * (11 * MIB))
    code, text = plain.refused(wire.MetricsFetch())
    assert code == 500 and "the answer can't be sent" in text
    assert plain.ask(wire.Ping()) == wire.PingResponse()


def test_metrics_without_the_library(
    plain: RustlogClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    code, text = plain.refused(wire.MetricsFetch())
    assert code == 500 and "pip install" in text


# Access.


def test_a_token_can_not_be_carried(
    start: StartBroker, dial_rustlog: DialRustlog
) -> None:
    broker = start(rustlog=HERE, tokens=("secret",))
    for as_json in (False, True):
        client = dial_rustlog(broker, as_json=as_json)
        for message in (wire.Ping(), wire.ListTopics(), wire.MetricsFetch()):
            code, text = client.refused(message)
            assert code == (None if as_json else 500)
            assert "authentication required" in text and "certificate" in text
    # Nothing large is taken from strangers.
    client.send(struct.pack(">I", 65 * 1024))
    answer = client.next()
    assert client.as_json and "over the limit of 65536" in answer.message
    assert client.ended()


def test_a_certificate_stands_for_a_token(
    start: StartBroker,
    dial_rustlog: DialRustlog,
    certificates: dict[str, str],
) -> None:
    rule = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    broker = start(
        **tls_settings(certificates, tls_client_ca_path=certificates["ca"]),
        rustlog=HERE,
        tokens=("secret",),
        topics={"own": {"auth": rule, "partitions": 2}},
    )
    stranger = dial_rustlog(broker, tls=tls_of(certificates))
    assert stranger.refused(wire.Ping())[0] == 500
    spark = dial_rustlog(broker, tls=tls_of(certificates, "spark"))
    assert spark.ask(wire.ListTopics()).topics == (("own", 2),)
    assert spark.produce("own", [b"a"], partition=1) == 0
    assert 'topic="own/1"' in spark.ask(wire.MetricsFetch()).text
    flink = dial_rustlog(broker, tls=tls_of(certificates, "flink"))
    assert flink.ask(wire.ListTopics()).topics == ()
    assert 'topic="own' not in flink.ask(wire.MetricsFetch()).text
    for message in (
        wire.Produce("own", 1, make([b"x"])),
        wire.Fetch("own", 1, 0, 100),
        wire.OffsetCommit("own", 1, "g", 0),
        wire.OffsetFetch("own", 1, "g"),
        wire.CreateTopic("own", 2),
        wire.DescribeTopic("own"),
        wire.DescribePartition("own", 1),
    ):
        code, text = flink.refused(message)
        assert code == 500 and "access denied" in text.lower(), message
    assert spark.read("own", 1) == [b"a"]


@pytest.mark.parametrize("as_json", [False, True])
def test_too_many_connections(
    start: StartBroker, dial_rustlog: DialRustlog, as_json: bool
) -> None:
    broker = start(rustlog=HERE, connections_max=2)
    for _ in range(2):
        dial_rustlog(broker).ask(wire.Ping())
    code, text = dial_rustlog(broker, as_json=as_json).refused(wire.Ping())
    assert code == (None if as_json else 500) and "Connection limit reached" in text


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_frame_over_the_limit_is_refused_in_its_dialect(
    broker: EmbeddedBroker,
    dial_rustlog: DialRustlog,
    as_json: bool,
    pieces: int,
    is_first: bool,
) -> None:
    """Also where the length comes alone, with which the broker gives up."""
    client = dial_rustlog(broker, as_json=as_json)
    if not is_first:
        # What has come of the frame says more than those before it.
        client.as_json = not as_json
        assert client.ask(wire.Ping()) == wire.PingResponse()
        client.as_json = as_json if pieces == 1 else not as_json
    head, rest = struct.pack(">I", 2**31), b'{"Pi' if as_json else b"\x01\0\0\0"
    if pieces == 1:
        client.send(head + rest)
    else:
        before = broker.metrics.snapshot().received_bytes
        client.send(head)
        assert eventually(
            lambda: broker.metrics.snapshot().received_bytes >= before + len(head)
        )
        client.send(rest)
    answer = client.next()
    assert isinstance(answer, wire.ErrorResponse)
    assert "over the limit of" in answer.message
    assert client.ended()


@pytest.mark.parametrize("size", [0, 2**31])
def test_a_length_and_nothing_behind_it(plain: RustlogClient, size: int) -> None:
    plain.send(struct.pack(">I", size))
    assert plain.next().code == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_no_memory_is_told_in_the_dialect(
    start: StartBroker, dial_rustlog: DialRustlog, as_json: bool
) -> None:
    broker = start(rustlog=HERE, memory_bytes_max=8 * MIB, idle_timeout_s=0.2)
    assert broker._server is not None
    memory = broker._server._shared.memory
    assert memory.try_take(8 * MIB)
    try:
        client = dial_rustlog(broker, as_json=as_json)
        client.send(struct.pack(">I", MIB), b" " if as_json else b"\x01")
        answer = client.next()
        assert isinstance(answer, wire.ErrorResponse)
        assert "no memory for the batch" in answer.message
    finally:
        memory.give_back(8 * MIB)


# Memory.


def test_announced_sizes_and_silence_cost_little(
    start: StartBroker, dial_rustlog: DialRustlog
) -> None:
    broker = start(rustlog=HERE, memory_bytes_max=8 * MIB)
    assert broker._server is not None
    memory = broker._server._shared.memory
    for _ in range(40):
        dial_rustlog(broker).send(struct.pack(">I", 10 * MIB) + b"\x01")
    honest = dial_rustlog(broker)
    honest.create("orders")
    assert memory.taken <= 12 * MIB
    assert honest.produce("orders", [b"x" * MIB]) == 0
    assert memory.taken <= 12 * MIB


BOMBS = {
    "lists": b'{"Produce":' + b"[" * (10 * MIB - 11),
    "records": b'{"Produce":{"topic":"t","partition":0,"records":['
    + b"[]," * (3 * MIB)
    + b"[]]}}",
    "objects": b'{"a":' * (2 * MIB),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_in_json(
    start: StartBroker, dial_rustlog: DialRustlog, name: str
) -> None:
    """They are refused before memory is taken that others would wait for."""
    broker = start(rustlog=HERE, memory_bytes_max=32 * MIB)
    assert broker._server is not None
    memory = broker._server._shared.memory
    taken: list[int] = []
    original = type(memory).try_take

    def watch(self: Any, size: int) -> bool:
        taken.append(size)
        return original(self, size)

    client = dial_rustlog(broker, as_json=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(memory), "try_take", watch)
        client.send_payload(BOMBS[name])
        assert isinstance(client.next(), wire.ErrorResponse)
    assert max(taken) <= 10 * MIB
    assert client.ask(wire.Ping()) == wire.PingResponse()
    assert memory.taken == 0


def test_answers_that_are_not_read_are_bounded(
    start: StartBroker, dial_rustlog: DialRustlog
) -> None:
    """Many ask for all there is and read nothing; others are served meanwhile."""
    broker = start(rustlog=HERE, memory_bytes_max=64 * MIB, wait_timeout_s=20)
    honest = dial_rustlog(broker)
    honest.create("orders")
    for _ in range(8):
        honest.produce("orders", [b"x" * 1000] * 1000)
    assert broker._server is not None
    shared = broker._server._shared
    peak = 0
    for number in range(24):
        stalled = dial_rustlog(broker, as_json=number % 2 == 1)
        for _ in range(4):
            stalled.submit(wire.Fetch("orders", 0, 0, 2**32 - 1))
    for _ in range(50):
        peak = max(peak, shared.memory.taken)
        threading.Event().wait(0.005)
    assert peak <= 64 * MIB + 40 * MIB
    assert honest.produce("orders", [b"y"]) == 8000
    values, following = honest.fetch("orders", 7999, 1)
    assert (values, following) == ([b"x" * 1000], 8000)


def test_one_large_record_is_counted(
    start: StartBroker, dial_rustlog: DialRustlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch of one byte gives a record of any size: its size is held, not 1."""
    broker = start(rustlog=HERE)
    client = dial_rustlog(broker)
    client.create("orders")
    client.produce("orders", [b"x" * (3 * MIB)])
    held: list[int] = []
    original = module.RustlogSession._hold_answer

    def watch(self: Any, size: int) -> None:
        held.append(size)
        original(self, size)

    monkeypatch.setattr(module.RustlogSession, "_hold_answer", watch)
    client.fetch("orders", 0, 1)
    assert max(held) >= 6 * MIB


def test_records_that_fit_no_frame(
    broker: EmbeddedBroker, dial: Dial, dial_rustlog: DialRustlog
) -> None:
    """What is before them is given; they themselves are an error, and none is cut."""
    lwp = dial(broker)
    topic = lwp.create("orders")
    lwp.write(topic, make_tlv(b"a"), 1, count=1)
    lwp.write(topic, make_tlv(b"x" * (11 * MIB)), 2, count=1)
    lwp.write(topic, make_tlv(b"b"), 3, count=1)
    client = dial_rustlog(broker)
    assert client.fetch("orders", 0, 2**32 - 1) == ([b"a"], 1)
    code, text = client.refused(wire.Fetch("orders", 0, 1, 2**32 - 1))
    assert code == 4 and "record 1 can't be sent" in text
    assert client.fetch("orders", 2) == ([b"b"], 3)
    assert broker.metrics.snapshot().protocols["rustlog"].records_refused == 1
    # In JSON a record is four times as large.
    client.produce("orders", [b"y" * (3 * MIB)])
    client.as_json = True
    _, text = client.refused(wire.Fetch("orders", 0, 3, 100))
    assert "record 3 can't be sent" in text
    client.as_json = False
    assert client.fetch("orders", 3) == ([b"y" * (3 * MIB)], 4)


def test_more_than_a_batch_may_hold(
    start: StartBroker, dial_rustlog: DialRustlog
) -> None:
    broker = start(rustlog=HERE, batch_bytes_max=MIB, payload_bytes_max=MIB)
    client = dial_rustlog(broker)
    client.create("orders")
    code, text = client.refused(wire.Produce("orders", 0, make([b""] * 100_000)))
    assert code == 1 and "send fewer at a time" in text
    assert client.produce("orders", [b""] * 60_000) == 0
    assert client.ask(wire.Ping()) == wire.PingResponse()


def test_an_answer_that_is_cut_off_is_followed_by_none(
    broker: EmbeddedBroker, plain: RustlogClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes back to life must not take an error for a part of it."""
    plain.create("orders")
    for _ in range(8):
        plain.produce("orders", [b"x" * (8 * MIB - 100)])
    sent: list[int] = []
    original = module.RustlogSession._transmit

    def count(self: Any, size: int, *rest: Any) -> None:
        sent.append(size)
        original(self, size, *rest)

    monkeypatch.setattr(module.RustlogSession, "_transmit", count)
    monkeypatch.setattr(
        module.RustlogSession, "_sending_deadline", lambda self: Deadline.after(0.05)
    )
    plain.submit(wire.Fetch("orders", 0, 0, 2**32 - 1))
    assert eventually(lambda: broker.metrics.snapshot().connections == 0)
    assert len(sent) == 1


# Disks.


def test_produce_is_answered_once_it_is_durable(
    stack: ExitStack, directory: Path, dial_rustlog: DialRustlog
) -> None:
    files, released, reached = SeamFiles(), threading.Event(), threading.Event()
    broker = stack.enter_context(
        EmbeddedBroker(files=files, data_dir=str(directory / "data"), rustlog=HERE)
    )
    client, other = dial_rustlog(broker), dial_rustlog(broker)
    client.create("orders")

    def hold(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".lnc"):
            reached.set()
            assert released.wait(20)

    files.before = hold
    try:
        client.submit(wire.Produce("orders", 0, make([b"a"])))
        assert reached.wait(20)
        assert not client.stream.wait_readable(Deadline.after(0.1))
        # Nor is it shown to any other before.
        assert other.fetch("orders") == ([], 0)
    finally:
        released.set()
    assert client.next() == wire.ProduceResponse(0, 1)
    assert other.fetch("orders") == ([b"a"], 1)


def test_a_disk_that_fails(
    stack: ExitStack, directory: Path, dial_rustlog: DialRustlog
) -> None:
    files = SeamFiles()
    broker = stack.enter_context(
        EmbeddedBroker(files=files, data_dir=str(directory / "data"), rustlog=HERE)
    )
    client = dial_rustlog(broker)
    client.create("orders")
    assert client.produce("orders", [b"a"]) == 0

    def fail(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".lnc"):
            raise OSError(5, "Input/output error")

    files.before = fail
    for _ in range(3):
        client.submit(wire.Produce("orders", 0, make([b"b"])))
    for _ in range(3):
        answer = client.next()
        assert isinstance(answer, wire.ErrorResponse) and answer.code == 500
    assert client.fetch("orders") == ([b"a"], 1)


def test_damaged_bytes(directory: Path, dial_rustlog: DialRustlog) -> None:
    path = directory / "data"
    settings: dict[str, Any] = {
        "data_dir": str(path),
        "fsync": "none",
        "segment_bytes": 100,
        "rustlog": HERE,
    }
    with EmbeddedBroker(**settings) as broker, clients(broker, 1) as [lwp]:
        topic = lwp.create("orders")
        for n in range(1, 4):
            lwp.write(topic, records(f"{n}", 4), n, count=4)
    [first, *_] = sorted((path / "segments" / str(topic)).glob("0_*.lnc"))
    data = bytearray(first.read_bytes())
    data[-30] ^= 0xFF
    first.write_bytes(data)
    with EmbeddedBroker(**settings) as broker:
        client = dial_rustlog(broker)
        for start in range(4):
            code, text = client.refused(wire.Fetch("orders", 0, start, 1000))
            assert code == 4 and "damaged" in text
        assert len(client.fetch("orders", 4)[0]) == 4
        assert client.produce("orders", [b"more"]) == 12


def test_a_segment_that_is_gone(directory: Path, dial_rustlog: DialRustlog) -> None:
    """Its records are an error, and those behind it keep their numbers."""
    path = directory / "data"
    settings: dict[str, Any] = {
        "data_dir": str(path),
        "fsync": "none",
        "segment_bytes": 100,
        "rustlog": HERE,
    }
    with EmbeddedBroker(**settings) as broker, clients(broker, 1) as [lwp]:
        topic = lwp.create("orders")
        for n in range(1, 5):
            lwp.write(topic, records(f"{n}", 4), n, count=4)
    files = sorted((path / "segments" / str(topic)).glob("*.lnc"))
    for suffix in (".lnc", ".idx"):
        files[1].with_suffix(suffix).unlink()
    with EmbeddedBroker(**settings) as broker:
        client = dial_rustlog(broker)
        assert len(client.fetch("orders", 0)[0]) == 4
        for start in range(4, 8):
            code, text = client.refused(wire.Fetch("orders", 0, start, 1000))
            assert code == 4, text
        values, following = client.fetch("orders", 8)
        assert values[0].startswith(b"3/0") and following == 12


def test_a_restart_keeps_everything(
    start: StartBroker, dial_rustlog: DialRustlog
) -> None:
    broker = start(rustlog=HERE)
    client = dial_rustlog(broker)
    client.create("orders", 3)
    client.produce("orders", [b"a", b"b"], partition=2)
    client.ask(wire.OffsetCommit("orders", 2, "g", 1))
    address = broker.address_of("rustlog")
    broker.stop()
    broker.start()
    assert broker.address_of("rustlog") == address
    client = dial_rustlog(broker)
    assert client.ask(wire.ListTopics()).topics == (("orders", 3),)
    assert client.ask(wire.OffsetFetch("orders", 2, "g")).offset == 1
    assert client.fetch("orders", 0, group="g", partition=2) == ([b"b"], 2)
    assert client.produce("orders", [b"c"], partition=2) == 2


def test_families_across_a_kill(dial_rustlog: DialRustlog) -> None:
    """Each topic has all of its partitions or is not there; acknowledged rows stay."""
    listener = Listener(Address("127.0.0.1", 0))
    address = str(listener.address)
    listener.close()

    def create(round: int, busy: threading.Event) -> None:
        with RustlogClient(address) as maker, suppress(LanceError):
            for n in range(500):
                maker.submit(wire.CreateTopic(f"made-{round}-{n}", 4))
                if maker.next_payload() is None:
                    return  # The broker was killed.
                busy.set()

    with run_broker_process(relay=False, fsync="batch", rustlog=address) as scratch:
        for round in range(2):
            client = dial_rustlog(address)
            client.create(f"kept-{round}", 3)
            for number in range(3):
                client.produce(f"kept-{round}", [b"%d" % number], partition=number)
            busy = threading.Event()
            with running(partial(create, round, busy)):
                assert busy.wait(20)
                scratch.faults.kill_and_restart()
        client = dial_rustlog(address)
        topics = dict(client.ask(wire.ListTopics()).topics)
        assert {topics[name] for name in topics if name.startswith("made")} == {4}
        for name, partitions in topics.items():
            found = client.ask(wire.DescribeTopic(name)).partitions
            assert [number for number, _ in found] == list(range(partitions))
        for round in range(2):
            for number in range(3):
                assert client.read(f"kept-{round}", number) == [b"%d" % number]
