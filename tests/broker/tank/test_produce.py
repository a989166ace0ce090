"""Messages 1 and 5: what is stored, and what each partition answers."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_spark.broker.tank.session as module
from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.session import Session
from lance_spark.wire import tank as wire
from tests.broker.kit import StartBroker, eventually, patience
from tests.broker.tank.conftest import DialTank
from tests.broker.tank.kit import (
    HERE,
    MIB,
    NOW_MS,
    Row,
    TankClient,
    bundle,
    sparse,
    values,
)
from tests.store.seam import SeamFiles


def test_what_is_written_is_read(tank: TankClient) -> None:
    assert tank.create("orders") == 0
    rows = [Row(b"a", b"k"), Row(b"", b""), Row(b"c", None, NOW_MS + 5)]
    tank.write("orders", *rows)
    expected = [row._replace(seq=n + 1) for n, row in enumerate(rows)]
    assert tank.read("orders") == expected


def test_snappy(tank: TankClient) -> None:
    tank.create("orders")
    packed = bundle(*[b"x" * 100] * 500, compress=True)
    assert len(packed) < 10_000
    assert tank.produce(("orders", [(0, packed)])) == [0]
    assert values(tank.read_all("orders")) == [b"x" * 100] * 500


def test_several_topics_and_partitions(
    broker: EmbeddedBroker, tank: TankClient
) -> None:
    tank.create("orders", 3)
    tank.create("other")
    codes = tank.produce(
        ("orders", [(2, bundle(b"a", b"b")), (7, bundle(b"x")), (0, bundle(b"c"))]),
        ("nosuch", [(0, bundle(b"x")), (1, bundle(b"y")), (2, bundle(b"z"))]),
        ("other", [(1, bundle(b"x")), (0, bundle(b"d"))]),
    )
    assert codes == [0, 1, 0, 0xFF, 1, 0]
    assert values(tank.read("orders", partition=2)) == [b"a", b"b"]
    assert values(tank.read("orders", partition=0)) == [b"c"]
    assert values(tank.read("other")) == [b"d"]
    assert tank.bounds("orders") == [(1, 1), (1, 0), (1, 2)]
    # A partition's name is no topic's.
    assert tank.produce(("orders/2", [(0, bundle(b"x"))])) == [0xFF]


def test_a_bundle_is_one_append(broker: EmbeddedBroker, tank: TankClient) -> None:
    tank.create("orders")
    tank.write("orders", b"a", b"b", b"c")
    topic = broker.service.store.find_topic("orders")
    assert topic is not None
    view = broker.service.store.view(topic.metadata.id)
    found = view.read(0, MIB)
    times = view.find_append_times(found, 0)
    assert found.records == 3 and len(set(times.tolist())) == 1


def test_a_partition_may_be_there_once(tank: TankClient) -> None:
    tank.create("orders", 2)
    codes = tank.produce(
        ("orders", [(0, bundle(b"a")), (0, bundle(b"b"))]),
        ("orders", [(1, bundle(b"c"))]),
        ("orders", [(1, bundle(b"d"))]),
    )
    assert codes == [0, 2, 0, 2]
    assert values(tank.read("orders")) == [b"a"]
    assert values(tank.read("orders", partition=1)) == [b"c"]


def test_nothing_to_write(tank: TankClient) -> None:
    tank.create("orders")
    assert tank.produce() == []
    assert tank.produce(("orders", [])) == []
    assert tank.produce(("orders", [(0, b"")])) == [0]
    assert tank.bounds("orders") == [(1, 0)]


SET = b"\0" + (1).to_bytes(8, "little") + b"\1v"
SQUEEZED = bytes(pa.Codec("snappy").compress(SET))
# A message of too late a time: ns do not fit.
LATE = b"\0" + (2**63).to_bytes(8, "little") + b"\1v"
MALFORMED = {
    "reserved bit": b"\x84" + SET,
    "unknown codec": b"\x06" + SET,
    "codec three": b"\x07" + SET,
    "no messages": b"\0\0",
    "a head and nothing": b"\x04",
    "cut": b"\x04" + SET[:-1],
    "more than it says": b"\x04" + SET + b"x",
    "fewer than it says": b"\x08" + SET,
    "many": b"\0\xff\xff\xff\xff\x0f" + SET,
    "no snappy": b"\x05" + SET,
    "cut snappy": b"\x05" + SQUEEZED[:-1],
    "snappy of another size": b"\x05" + bytes([len(SET) + 9]) + SQUEEZED[1:],
    "a bomb": b"\x05\xff\xff\xff\xff\x07" + b"x" * 30,
    "late": b"\x04" + LATE,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bundles(
    tank: TankClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tank.create("orders", 2)
    writes = [(1, bundle(b"good")), (0, MALFORMED[name])]
    if name == "no messages":
        # As TANK's broker does, but nothing is stored.
        assert tank.produce(("orders", writes)) == [0, 0]
    else:
        with caplog.at_level(logging.WARNING, "lance_spark"):
            assert tank.produce(("orders", writes)) == [0, 2]
        assert "orders/0: malformed bundle" in caplog.text
    assert tank.bounds("orders") == [(1, 0), (1, 1)]


def test_more_than_a_batch_may_hold(
    start: StartBroker, dial_tank: DialTank, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(tank=HERE, batch_bytes_max=MIB, payload_bytes_max=MIB)
    tank = dial_tank(broker)
    tank.create("orders")
    # Messages of two bytes, and one that is compressed.
    small = bundle(*[b""] * 100_000)
    large = bundle(b"x" * (2 * MIB), compress=True)
    assert len(small) < MIB > len(large)
    for one in (small, large):
        assert tank.produce(("orders", [(0, one)])) == [2]
    assert "send fewer messages at a time" in caplog.text
    assert tank.bounds("orders") == [(1, 0)]
    tank.alive()


def test_bombs_take_no_memory(
    start: StartBroker, dial_tank: DialTank, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start(tank=HERE, memory_bytes_max=32 * MIB)
    tank = dial_tank(broker)
    tank.create("orders")
    assert broker._server is not None
    memory, taken = broker._server._shared.memory, [0]
    original = type(memory).try_take

    def watch(self: Any, size: int) -> bool:
        taken.append(size)
        return original(self, size)

    zeros = bytes(pa.Codec("snappy").compress(bytes(200 * MIB)))
    bombs = [
        # A message of 200 MiB; then very many messages.
        b"\x05" + zeros,
        b"\x01\x80\x80\x80\x08" + zeros,
        b"\0\x80\x80\x80\x04" + bytes(15 * MIB),
    ]
    monkeypatch.setattr(type(memory), "try_take", watch)
    for bomb in bombs:
        assert tank.produce(("orders", [(0, bomb)])) == [2]
    assert max(taken) <= 17 * MIB
    assert eventually(lambda: memory.taken == 0)


# Message 5.


def test_the_expected_number(
    tank: TankClient, caplog: pytest.LogCaptureFixture
) -> None:
    tank.create("orders")
    assert tank.produce(("orders", [(0, bundle(b"a", b"b"), 1)])) == [0]
    assert tank.produce(("orders", [(0, bundle(b"c"), 3)])) == [0]
    # Taken, wherever it is.
    for seq in (1, 2, 3):
        assert tank.produce(("orders", [(0, bundle(b"x"), seq)])) == [0x0A]
    # A gap is no conflict.
    for seq in (5, 2**63, 2**64 - 1):
        caplog.clear()
        assert tank.produce(("orders", [(0, bundle(b"x"), seq)])) == [2]
        assert "orders/0" in caplog.text
    assert values(tank.read("orders")) == [b"a", b"b", b"c"]
    # 0 stands for any.
    assert tank.produce(("orders", [(0, bundle(b"d"), 0)])) == [0]
    assert tank.bounds("orders") == [(1, 4)]


def test_sparse_bundles(tank: TankClient) -> None:
    tank.create("orders")
    rows = [b"a", b"b", b"c"]
    # Numbers without gaps that come next are stored, in both messages.
    assert tank.produce(("orders", [(0, sparse([1, 2, 3], *rows))])) == [0]
    assert tank.produce(("orders", [(0, sparse([4, 5, 6], *rows), 4)])) == [0]
    assert tank.produce(("orders", [(0, sparse([7], b"d"), 0)])) == [0]
    # Those that were given out already.
    assert tank.produce(("orders", [(0, sparse([4, 5, 6], *rows), 4)])) == [0x0A]
    assert tank.produce(("orders", [(0, sparse([7], b"x"))])) == [0x0A]
    # Gaps, before it and in it; and two numbers for the first.
    assert tank.produce(("orders", [(0, sparse([9, 10], b"x", b"y"))])) == [2]
    assert tank.produce(("orders", [(0, sparse([8, 10], b"x", b"y"))])) == [2]
    assert tank.produce(("orders", [(0, sparse([8, 10], b"x", b"y"), 8)])) == [2]
    assert tank.produce(("orders", [(0, sparse([8], b"x"), 9)])) == [2]
    assert values(tank.read("orders")) == [*rows, *rows, b"d"]


@pytest.fixture
def files() -> SeamFiles:
    return SeamFiles()


@pytest.fixture
def durable(stack: ExitStack, directory: Path, files: SeamFiles) -> EmbeddedBroker:
    """A broker that syncs, on files that a test can hold back."""
    path = str(directory / "data")
    return stack.enter_context(EmbeddedBroker(files=files, data_dir=path, tank=HERE))


def test_it_is_answered_once_it_is_durable(
    durable: EmbeddedBroker, files: SeamFiles, dial_tank: DialTank
) -> None:
    tank, other, third = (dial_tank(durable) for _ in range(3))
    tank.create("orders", 2)
    released, reached = threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".lnc"):
            reached.set()
            assert released.wait(20)

    files.before = hold
    try:
        writes = [(0, bundle(b"a"), 1), (1, bundle(b"b"), 1)]
        tank.submit(tank.make_produce(("orders", writes)))
        assert reached.wait(20)
        assert tank.is_silent()
        # Nor is it shown, nor is its number said to be taken.
        assert other.read("orders") == []
        other.submit(other.make_produce(("orders", [(0, bundle(b"x"), 1)])))
        assert other.is_silent()
        assert third.bounds("orders") == [(1, 0), (1, 0)]
    finally:
        released.set()
    assert [one.code for one in tank.next().outcomes] == [0, 0]
    assert [one.code for one in other.next().outcomes] == [0x0A]
    assert values(other.read("orders")) == [b"a"]


def test_a_disk_that_fails(
    durable: EmbeddedBroker,
    files: SeamFiles,
    dial_tank: DialTank,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tank = dial_tank(durable)
    tank.create("orders", 2)
    tank.write("orders", b"a")
    before = durable.metrics.snapshot().protocols["tank"].requests_refused

    def fail(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".lnc"):
            raise OSError(5, "Input/output error")

    files.before = fail
    writes = [(n, bundle(b"b")) for n in range(2)]
    assert tank.produce(("orders", writes)) == [2, 2]
    assert "orders/1" in caplog.text
    counts = durable.metrics.snapshot().protocols["tank"]
    assert counts.requests_refused == before + 2
    files.before = lambda operation, name: None
    assert values(tank.read("orders")) == [b"a"]


def test_answers_come_when_all_partitions_are_settled(
    broker: EmbeddedBroker, tank: TankClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owed answers are settled in the middle of a request when memory is short."""
    tank.create("orders", 3)
    original = Session._hold

    def settle_first(self: Any, size: int) -> bool:
        self._settle()
        return original(self, size)

    monkeypatch.setattr(Session, "_hold", settle_first)
    writes = [(n, bundle(b"%d" % n)) for n in range(3)]
    assert tank.produce(("orders", writes)) == [0, 0, 0]
    assert tank.is_silent(0.02)
    tank.alive()


def test_pipelined_requests(tank: TankClient) -> None:
    tank.create("orders")
    requests = [
        tank.make_produce(("orders", [(0, bundle(b"%d" % n), n + 1)]))
        for n in range(300)
    ]
    for request in requests:
        tank.submit(request)
    answers = [tank.next() for _ in requests]
    assert {one.request_id for one in answers} == {r.request_id for r in requests}
    assert all(one.outcomes == (wire.Outcome(0),) for one in answers)
    assert values(tank.read_all("orders")) == [b"%d" % n for n in range(300)]


def test_a_request_cut_off_writes_nothing(
    broker: EmbeddedBroker, tank: TankClient, dial_tank: DialTank
) -> None:
    tank.create("orders")
    request = tank.make_produce(("orders", [(0, bundle(b"a"))]))
    data = b"".join(bytes(part) for part in wire.encode_message(request))
    other = dial_tank(broker)
    other.send(data[:-1])
    other.stream.close()
    # One that says it has another topic behind its last.
    third = dial_tank(broker)
    assert request.topics
    broken = bytearray(data)
    broken[broken.index(b"\x01\x06orders")] = 2
    third.send(bytes(broken))
    assert third.ended()
    tank.stream.wait_readable(patience().sooner(0.02))
    assert tank.bounds("orders") == [(1, 0)]


def test_a_request_that_waits_for_the_disk_keeps_no_bundle() -> None:
    """The memory of its frame is given back while its answer is still owed."""
    write = wire.Write(0, bytes(1000))
    request = wire.Produce(request_id=7, topics=(wire.WriteTopic("t", (write,)),))
    writing = module._Writing(request, {(0, 0): wire.OK})
    writing.forget_bundles()
    assert [w.bundle for t in writing.request.topics for w in t.writes] == [b""]
    assert writing.answer() == wire.Produced(7, (wire.Outcome(),))
