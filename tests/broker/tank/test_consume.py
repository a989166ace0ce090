"""Message 2: what is answered, when, and how much of it."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import lance_spark.broker.tank.session as module
from lance_spark.broker import EmbeddedBroker
from lance_spark.store import NamedStage
from lance_spark.wire import tank as wire
from lance_spark.wire.lwp import write_records
from tests.broker.kit import Dial, StartBroker, clients, eventually, record, records
from tests.broker.tank.conftest import DialTank
from tests.broker.tank.kit import (
    HERE,
    MIB,
    Row,
    TankClient,
    bundle,
    fetched_of,
    make,
    rows_in,
    stands,
    values,
)

END = wire.SEQ_END
# Longer than a test has patience.
LONG_MS = 60_000


@pytest.fixture
def orders(tank: TankClient) -> TankClient:
    """A client, and a topic with ten messages."""
    tank.create("orders")
    tank.write("orders", *[b"%d" % n for n in range(1, 11)])
    return tank


# Where it begins, and how much it is.


def test_it_begins_at_the_asked_number(orders: TankClient) -> None:
    for seq in (1, 2, 6, 10):
        found = orders.consume("orders", seq)
        assert (found.base_seq, found.hwm) == (seq, 10)
        assert values(rows_in(found)) == [b"%d" % n for n in range(seq, 11)]
    assert orders.consume("orders", 0).base_seq == 1
    for seq in (11, END):
        found = orders.consume("orders", seq)
        assert (found.flag, found.hwm, bytes(found.chunk)) == (0, 10, b"")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_versions(orders: TankClient, version: int) -> None:
    assert len(rows_in(orders.consume("orders", 3, version=version))) == 8


def test_out_of_range(orders: TankClient) -> None:
    for seq in (12, 1000, 2**63, END - 1):
        found = orders.consume("orders", seq, wait_ms=LONG_MS)
        assert (found.flag, found.base_seq) == (wire.OUT_OF_RANGE, 0)
        assert (found.hwm, found.first_seq) == (10, 1)


def test_after_retention(start: StartBroker, dial_tank: DialTank) -> None:
    topics = {"orders": {"retention": {"max_bytes": 400}}}
    broker = start(tank=HERE, segment_bytes=100, topics=topics)
    tank = dial_tank(broker)
    for n in range(1, 11):
        tank.write("orders", b"%d" % n * 60)
    broker.service.maintain()
    [(first, hwm)] = tank.bounds("orders")
    assert hwm == 10 and 1 < first <= 10
    found = tank.consume("orders", first - 1, wait_ms=LONG_MS)
    assert found == wire.Fetched(0, wire.OUT_OF_RANGE, hwm=10, first_seq=first)
    assert tank.read("orders", 0)[0].seq == first
    assert tank.read("orders", first)[0].seq == first


def test_unknown_topics_and_partitions(tank: TankClient) -> None:
    tank.create("orders", 2)
    tank.write("orders", b"a", partition=1)
    request = tank.make_consume(
        ("nosuch", [(0, 0, 100), (1, 0, 100)]),
        ("orders", [(7, 0, 100), (1, 0, 100), (0, 0, 100)]),
        ("orders", [(9, 0, 100)]),
        wait_ms=LONG_MS,
    )
    answer = tank.ask(request)
    assert answer.topics[0] == wire.FetchedTopic("nosuch", unknown=2)
    orders = answer.topics[1].partitions
    assert [(one.partition, one.flag) for one in orders] == [(7, 255), (1, 0), (0, 0)]
    assert values(rows_in(orders[1])) == [b"a"]
    assert answer.topics[2].partitions == (wire.Fetched(9, wire.UNKNOWN),)


def test_fetch_sizes(orders: TankClient) -> None:
    assert values(orders.read("orders", 4, 0)) == [b"4"]
    assert values(orders.read("orders", 4, 1)) == [b"4"]
    assert 1 < len(orders.read("orders", 1, 60)) < 10
    assert len(orders.read("orders", 1, 2**32 - 1)) == 10
    assert values(orders.read_all("orders", size=13)) == [
        b"%d" % n for n in range(1, 11)
    ]


def test_answers_have_a_bound(
    broker: EmbeddedBroker, tank: TankClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions that do not fit are left for the next request."""
    monkeypatch.setattr(module, "_ANSWER_BYTES_MAX", 1000)
    monkeypatch.setattr(module, "_PARTITION_COST_BYTES", 0)
    tank.create("orders", 4)
    for n in range(4):
        tank.write("orders", *[b"x" * 90] * 8, partition=n)
    request = tank.make_consume(("orders", [(n, 1, 2**31) for n in range(4)]))
    [topic] = tank.ask(request).topics
    counts = [len(rows_in(one)) for one in topic.partitions]
    assert counts[0] == 8 and 0 < counts[1] < 8 and counts[3] == 0
    assert [one.hwm for one in topic.partitions] == [8] * 4
    # A message that is larger than any answer comes alone.
    tank.write("orders", b"y" * 5000, b"z", partition=0)
    assert values(tank.read("orders", 9, 2**31)) == [b"y" * 5000]


# What is in it.


def test_messages_without_a_time_have_that_of_their_batch(
    broker: EmbeddedBroker, tank: TankClient, dial: Dial
) -> None:
    lwp = dial(broker)
    topic = lwp.create("orders")
    before = time.time_ns() // 10**6
    for n in range(3):
        lwp.write(topic, records(f"{n}", 5), n + 1, count=5)
        time.sleep(0.003)
    tank.write("orders", Row(b"own", b"k", 77))
    rows = tank.read("orders")
    times = [row.time_ms for row in rows]
    assert [len(set(times[n : n + 5])) for n in (0, 5, 10)] == [1, 1, 1]
    assert before <= times[0] < times[5] < times[10] <= time.time_ns() // 10**6
    assert rows[-1] == Row(b"own", b"k", 77, 16)
    # The same at every read, wherever it begins.
    for seq in range(1, 17):
        assert tank.read("orders", seq, 1) == rows[seq - 1 : seq]
        assert tank.read("orders", seq) == rows[seq - 1 :]


def test_times_are_the_same_after_a_restart(
    start: StartBroker, dial_tank: DialTank
) -> None:
    broker = start(tank=HERE, segment_bytes=200)
    with clients(broker, 1) as [lwp]:
        topic = lwp.create("orders")
        for n in range(6):
            lwp.write(topic, records(f"{n}", 5), n + 1, count=5)
            time.sleep(0.002)
    rows = dial_tank(broker).read_all("orders")
    broker.stop()
    broker.start()
    assert dial_tank(broker).read_all("orders") == rows
    assert len(rows) == 30 and len({row.time_ms for row in rows}) > 1


def write_keyed(client: Any, topic: int, *rows: Row) -> None:
    data = bytes(write_records(make(*rows)))
    client.write(topic, data, 1, count=len(rows))


def test_a_key_that_is_too_long(
    broker: EmbeddedBroker,
    tank: TankClient,
    dial: Dial,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lwp = dial(broker)
    topic = lwp.create("orders")
    rows = [Row(b"a", b"k" * 255), Row(b"b"), Row(b"c", b"k" * 300), Row(b"d")]
    write_keyed(lwp, topic, *rows)
    assert values(tank.read("orders")) == [b"a", b"b"]
    with caplog.at_level(logging.WARNING, "lance_spark"):
        found = tank.consume("orders", 3)
    assert found == wire.Fetched(0, 0xFB)
    assert "orders/0: message 3 has a key of more than 255 bytes" in caplog.text
    assert broker.metrics.snapshot().protocols["tank"].records_refused == 1
    # Those behind it are there, and so is the connection.
    assert values(tank.read("orders", 4)) == [b"d"]


def test_what_is_no_records(start: StartBroker, dial_tank: DialTank) -> None:
    broker = start(tank=HERE, payload_validation="off")
    with clients(broker, 1) as [lwp]:
        topic = lwp.create("orders")
        lwp.write(topic, record(b"a"), 1, count=1)
        lwp.write(topic, b"no records at all", 2, count=1)
    tank = dial_tank(broker)
    assert values(tank.read("orders", 1)) == [b"a"]
    assert tank.consume("orders", 2).flag == 0xFB


def test_a_damaged_log(
    directory: Path, dial_tank: DialTank, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / "data"
    settings: dict[str, Any] = {
        "data_dir": str(path),
        "fsync": "none",
        "segment_bytes": 100,
        "tank": HERE,
    }
    with EmbeddedBroker(**settings) as broker, clients(broker, 1) as [lwp]:
        topic = lwp.create("orders")
        for n in range(1, 5):
            lwp.write(topic, records(f"{n}", 4), n, count=4)
    files = sorted((path / "segments" / str(topic)).glob("*.lnc"))
    data = bytearray(files[0].read_bytes())
    data[-30] ^= 0xFF
    files[0].write_bytes(data)
    for suffix in (".lnc", ".idx"):
        files[1].with_suffix(suffix).unlink()
    with EmbeddedBroker(**settings) as broker:
        tank = dial_tank(broker)
        for seq in range(1, 9):
            assert tank.consume("orders", seq).flag == 0xFB, seq
        assert "orders/0" in caplog.text
        rows = tank.read("orders", 9)
        assert rows[0].value.startswith(b"3/0") and rows[0].seq == 9
        tank.write("orders", b"more")
        assert tank.bounds("orders")[0][1] == 17


# Requests that stand.


def test_a_poll_stands_while_others_are_answered(
    broker: EmbeddedBroker, tank: TankClient, dial_tank: DialTank
) -> None:
    tank.create("orders", 2)
    polls = [
        tank.make_consume(("orders", [(n, 1, MIB)]), wait_ms=LONG_MS) for n in range(2)
    ]
    for poll in polls:
        tank.submit(poll)
    assert stands(broker)
    tank.alive()
    tank.submit(tank.make_produce(("orders", [(1, bundle(b"late"))])))
    answers = {type(one): one for one in (tank.next(), tank.next())}
    found = fetched_of(answers[wire.Consumed], polls[1])
    assert values(rows_in(found)) == [b"late"]
    tank.alive()
    dial_tank(broker).write("orders", b"first")
    assert values(rows_in(fetched_of(tank.next(), polls[0]))) == [b"first"]


def test_an_append_over_lwp_wakes(
    broker: EmbeddedBroker, tank: TankClient, dial: Dial
) -> None:
    assert broker._server is not None
    waiting = broker._server._shared.waiting
    lwp = dial(broker)
    topic = lwp.create("orders")
    lwp.write(topic, record(b"old"), 1, count=1)
    for number, seq in enumerate((2, END), 2):
        poll = tank.make_consume(("orders", [(0, seq, MIB)]), wait_ms=LONG_MS)
        tank.submit(poll)
        assert stands(broker)
        lwp.write(topic, record(b"new"), number, count=1)
        found = fetched_of(tank.next(), poll)
        assert values(rows_in(found)) == [b"new"]
        assert found.base_seq == number
        # It stands no more: else the next one would seem to stand before it does.
        assert eventually(lambda: not waiting.taken)


def test_the_first_message_of_an_empty_partition(tank: TankClient) -> None:
    tank.create("orders")
    poll = tank.make_consume(("orders", [(0, 0, MIB)]), wait_ms=LONG_MS)
    tank.submit(poll)
    assert tank.is_silent(0.02)
    tank.submit(tank.make_produce(("orders", [(0, bundle(b"a"))])))
    answers = {type(one): one for one in (tank.next(), tank.next())}
    found = fetched_of(answers[wire.Consumed], poll)
    assert values(rows_in(found)) == [b"a"]


def test_how_long_it_waits(orders: TankClient) -> None:
    began = time.monotonic()
    assert rows_in(orders.consume("orders", 11)) == []
    assert time.monotonic() - began < 0.3
    # Not shorter than TANK's broker does.
    for wait_ms in (1, 100, 400):
        began = time.monotonic()
        assert rows_in(orders.consume("orders", 11, wait_ms=wait_ms)) == []
        assert max(0.32, wait_ms / 1000) <= time.monotonic() - began < 5


def test_the_longest_wait(start: StartBroker, dial_tank: DialTank) -> None:
    tank = dial_tank(start(tank=HERE, wait_s_max=0.5))
    tank.create("orders")
    assert rows_in(tank.consume("orders", 1, wait_ms=2**64 - 1)) == []


def test_some_partitions_have_news(tank: TankClient) -> None:
    """One that has something, or is not there, answers for all at once."""
    tank.create("orders", 3)
    tank.write("orders", b"a", partition=2)
    for other in ((2, 1, MIB), (9, 1, MIB), (1, 5, MIB)):
        request = tank.make_consume(("orders", [(0, 1, MIB), other]), wait_ms=LONG_MS)
        [topic] = tank.ask(request).topics
        assert rows_in(topic.partitions[0]) == []
    # All at their end: the first that grows answers.
    fetches = [(0, 1, MIB), (1, 1, MIB), (2, 2, MIB)]
    request = tank.make_consume(("orders", fetches), wait_ms=LONG_MS)
    tank.submit(request)
    assert tank.is_silent(0.02)
    tank.submit(tank.make_produce(("orders", [(1, bundle(b"b"))])))
    answers = {type(one): one for one in (tank.next(), tank.next())}
    [topic] = answers[wire.Consumed].topics
    assert [values(rows_in(one)) for one in topic.partitions] == [[], [b"b"], []]


def test_min_bytes(
    broker: EmbeddedBroker, tank: TankClient, dial_tank: DialTank
) -> None:
    tank.create("orders")
    writer = dial_tank(broker)
    poll = tank.make_consume(("orders", [(0, 1, MIB)]), wait_ms=LONG_MS, min_bytes=250)
    tank.submit(poll)
    assert stands(broker)
    for _ in range(2):
        writer.write("orders", b"x" * 100)
        assert tank.is_silent(0.05)
    writer.write("orders", b"x" * 100)
    assert len(rows_in(fetched_of(tank.next(), poll))) == 3
    # It is about tails alone.
    assert len(rows_in(tank.consume("orders", 1, min_bytes=2**32 - 1))) == 3
    request = tank.consume("orders", 2, wait_ms=LONG_MS, min_bytes=2**32 - 1)
    assert len(rows_in(request)) == 2


def test_min_bytes_that_do_not_come(
    broker: EmbeddedBroker, tank: TankClient, dial_tank: DialTank
) -> None:
    """As in the field nothing is sent then; the next request finds it."""
    tank.create("orders")
    poll = tank.make_consume(("orders", [(0, 1, MIB)]), wait_ms=400, min_bytes=250)
    tank.submit(poll)
    assert stands(broker)
    dial_tank(broker).write("orders", b"x")
    assert rows_in(fetched_of(tank.next(), poll)) == []
    assert values(tank.read("orders", 1)) == [b"x"]


def test_a_topic_that_is_deleted_meanwhile(
    broker: EmbeddedBroker, tank: TankClient
) -> None:
    tank.create("orders")
    tank.create("other")
    for min_bytes in (0, 1000):
        poll = tank.make_consume(
            ("orders", [(0, 1, MIB)]),
            ("other", [(0, 1, MIB)]),
            wait_ms=LONG_MS,
            min_bytes=min_bytes,
        )
        tank.submit(poll)
        assert tank.is_silent(0.02)
        store = broker.service.store
        topic = store.find_topic("orders")
        assert topic is not None
        store.delete_topic(topic.metadata.id)
        answer = tank.next()
        assert answer.topics[0] == wire.FetchedTopic("orders", unknown=1)
        assert rows_in(answer.topics[1].partitions[0]) == []
        tank.create("orders")


def test_many_polls(broker: EmbeddedBroker, tank: TankClient) -> None:
    """Those over the limit are answered at once, and the memory is given back."""
    tank.create("orders")
    assert broker._server is not None
    shared = broker._server._shared
    for _ in range(300):
        tank.submit(tank.make_consume(("orders", [(0, 1, 10)]), wait_ms=LONG_MS))
    for _ in range(300 - 256):
        assert isinstance(tank.next(), wire.Consumed)
    assert shared.waiting.taken >= 256 * 512
    tank.submit(tank.make_produce(("orders", [(0, bundle(b"a"))])))
    assert sum(isinstance(tank.next(), wire.Consumed) for _ in range(257)) == 256
    assert eventually(lambda: shared.waiting.taken == shared.memory.taken == 0)


def test_a_poll_costs_what_it_asks_for(
    broker: EmbeddedBroker, tank: TankClient
) -> None:
    tank.create("orders")
    fetches = [(0, 1, 10)] * 255
    poll = tank.make_consume(*[("orders", fetches)] * 16, wait_ms=LONG_MS)
    tank.submit(poll)
    assert broker._server is not None
    waiting = broker._server._shared.waiting
    assert eventually(lambda: waiting.taken >= 16 * 255 * 512)
    tank.stream.close()
    assert eventually(lambda: waiting.taken == 0)


def test_too_many_partitions_close(tank: TankClient) -> None:
    """They would keep the broker busy for seconds."""
    tank.create("orders")
    tank.submit(tank.make_consume(*[("orders", [(0, 1, 10)] * 255)] * 17))
    assert tank.ended()


# Memory.


def test_answers_that_are_not_read_are_bounded(
    start: StartBroker, dial_tank: DialTank
) -> None:
    """Many ask for all there is and read nothing; others are served meanwhile."""
    broker = start(tank=HERE, memory_bytes_max=64 * MIB, wait_timeout_s=20)
    honest = dial_tank(broker)
    honest.create("orders", 2)
    for n in range(8):
        honest.write("orders", *[b"x" * 1000] * 1000, partition=n % 2)
    assert broker._server is not None
    shared, peak = broker._server._shared, 0
    for _ in range(24):
        stalled = dial_tank(broker)
        for _ in range(4):
            fetches = [(n, 0, 2**32 - 1) for n in range(2)]
            stalled.submit(stalled.make_consume(("orders", fetches)))
    for _ in range(50):
        peak = max(peak, shared.memory.taken)
        threading.Event().wait(0.005)
    assert peak <= 64 * MIB + 40 * MIB
    honest.write("orders", b"y")
    assert values(honest.read("orders", 4000, 1)) == [b"x" * 1000]


def test_one_large_message_is_counted(
    start: StartBroker, dial_tank: DialTank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch of nothing gives a message of any size: its size is held."""
    broker = start(tank=HERE)
    tank = dial_tank(broker)
    tank.create("orders", 2)
    for n in range(2):
        tank.write("orders", b"x" * (3 * MIB), partition=n)
    held: list[int] = []
    original = module.TankSession._hold_answer

    def watch(self: Any, size: int) -> None:
        held.append(size)
        original(self, size)

    monkeypatch.setattr(module.TankSession, "_hold_answer", watch)
    tank.consume("orders", 0, 0)
    assert max(held) >= 6 * MIB


def test_an_answer_without_memory_for_all(
    start: StartBroker, dial_tank: DialTank
) -> None:
    """The first partition is sent, and the others are asked for again."""
    broker = start(tank=HERE, memory_bytes_max=16 * MIB, wait_timeout_s=20)
    tank = dial_tank(broker)
    tank.create("orders", 3)
    for n in range(3):
        tank.write("orders", b"x" * (3 * MIB), partition=n)
    left, seen = [0, 1, 2], []
    while left:
        request = tank.make_consume(("orders", [(n, 1, MIB) for n in left]))
        [topic] = tank.ask(request).topics
        got = [one.partition for one in topic.partitions if rows_in(one)]
        assert got and got[0] == left[0]
        left = [n for n in left if n not in got]
        seen.append(got)
    assert len(seen) > 1


def test_the_first_messages_come_whatever_is_before_them(tank: TankClient) -> None:
    """Else partitions that are at their end would hold up the others for ever."""
    tank.create("orders", 2)
    tank.write("orders", b"a", b"b", partition=1)
    ends = [("orders", [(0, 1, MIB)] * 250)] * 9
    answer = tank.ask(tank.make_consume(*ends, ("orders", [(1, 1, MIB), (1, 2, MIB)])))
    first, second = answer.topics[-1].partitions
    assert values(rows_in(first)) == [b"a"]
    assert (bytes(second.chunk), second.hwm) == (b"", 2)


def test_an_answer_without_memory(
    start: StartBroker, dial_tank: DialTank, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not look as if the log ended there: TANK has no word, so it closes."""
    broker = start(tank=HERE, wait_timeout_s=0.05)
    tank = dial_tank(broker)
    tank.create("orders", 2)
    tank.write("orders", b"small")
    tank.write("orders", b"x" * MIB, partition=1)
    assert broker._server is not None
    waiting = broker._server._shared.waiting
    waiting.try_take(waiting._limit)
    # Behind other messages it is left out.
    fetches = [(0, 1, MIB), (1, 1, MIB), (1, 1, MIB)]
    [topic] = tank.ask(tank.make_consume(("orders", fetches))).topics
    assert [values(rows_in(one)) for one in topic.partitions] == [[b"small"], [], []]
    tank.submit(tank.make_consume(("orders", fetches[1:])))
    assert tank.ended()
    assert "no memory for the answer" in caplog.text
    waiting.give_back(waiting._limit)
    assert values(dial_tank(broker).read("orders", partition=1)) == [b"x" * MIB]


def test_times_of_an_adopted_stage(start: StartBroker, dial_tank: DialTank) -> None:
    """Its records count from the commit on, also if they were staged before others."""
    broker = start(tank=HERE, stage_adopt_bytes=1)
    store = broker.service.store
    topic = store.create_topic("t").metadata.id
    data = records("s", 10)
    stage = store.open_stage("t", "w", 1)
    store.append_stage(stage, 1, data)
    store.append(topic, records("a", 1))
    store.commit_stages("w", 1, [NamedStage(stage, 1, len(data))])
    rows = dial_tank(broker).read_all("t")
    view = store.view(topic)
    times = [view.locate_record(n).append_time_ns // 10**6 for n in range(11)]
    assert [row.time_ms for row in rows] == times == sorted(times)
