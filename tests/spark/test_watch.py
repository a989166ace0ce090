"""Looking at topics: nothing is missed, and little is asked while nothing comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import Capability, LanceClient
from lance_spark.client.driver import Driver, LogRef
from lance_spark.client.lwp.driver import make_driver
from lance_spark.model import Partition, Retention
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.watch import SeenLog, Watch, is_news
from lance_spark.wire.lwp import TopicPosition, WaitResponse
from tests.integration.kit import PATIENCE_S
from tests.spark.reading import (
    DIALECTS,
    append_bytes,
    connect,
    fill,
    make_records,
    run_broker,
)
from tests.spark.streaming import (
    Engine,
    Requests,
    Time,
    delete,
    expect,
    make_waits_pass,
    recreate,
)

SIZE = 25


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param) as broker:
        yield broker


def make_watch(time: Time | None = None, but: str = "") -> Watch:
    time = time or Time()
    return Watch(lambda name: name != but, clock=time.clock, sleep=time.sleep)


Heads = dict[str, SeenLog]


def look(watch: Watch, client: LanceClient, known: StreamOffset) -> Heads:
    """Look, and give what there is by topic."""
    states = watch.look(make_driver(client), known)
    return {partition.topic: state for partition, state in states.items()}


def look_now(watch: Watch, client: LanceClient) -> Heads:
    states = watch.look_now(make_driver(client))
    return {partition.topic: state for partition, state in states.items()}


def know(heads: Heads) -> StreamOffset:
    """Give the offset of a stream that has read all there is."""
    return StreamOffset.of(
        {
            topic: TopicPlace.at(head.log.topic_id, head.log.created_s, head.end)
            for topic, head in heads.items()
        }
    )


NOTHING = StreamOffset.of({})


# What is new.

PLACE = TopicPlace.at(1, 100, 50)
AWAY = replace(PLACE, is_away=True)


@pytest.mark.parametrize(
    ("heads", "known", "expected"),
    [
        ({}, {}, False),
        ({"a": (1, 100, 0)}, {}, False),
        ({"a": (1, 100, 1)}, {}, True),
        ({"a": (1, 100, 50)}, {"a": PLACE}, False),
        ({"a": (1, 100, 51)}, {"a": PLACE}, True),
        ({"a": (1, 100, 49)}, {"a": PLACE}, True),
        ({"a": (2, 100, 50)}, {"a": PLACE}, True),
        ({"a": (1, 101, 50)}, {"a": PLACE}, True),
        ({}, {"a": PLACE}, True),
        ({}, {"a": AWAY}, False),
        ({"a": (1, 100, 50)}, {"a": AWAY}, True),
        ({"a": (2, 100, 0)}, {"a": AWAY}, True),
        ({"a": (1, 100, 50), "b": (2, 100, 0)}, {"a": PLACE}, False),
        ({"a": (1, 100, 2**63)}, {"a": TopicPlace.at(1, 100, 2**63)}, False),
    ],
)
def test_what_is_new(
    heads: dict[str, tuple[int, int, int]], known: dict[str, TopicPlace], expected: bool
) -> None:
    states = {
        Partition(topic): SeenLog(LogRef(Partition(topic), topic_id, created_s), end)
        for topic, (topic_id, created_s, end) in heads.items()
    }
    assert is_news(states, StreamOffset.of(known)) is expected


# What there is.


def test_the_topics_that_are_read(server: EmbeddedBroker) -> None:
    for name in ("c", "a", "b"):
        fill(server, name, make_records(len(name)))
    with connect(server) as client:
        infos = {info.name: info for info in client.topics()}
        watch = make_watch(but="b")
        for heads in (look(watch, client, NOTHING), look_now(watch, client)):
            assert list(heads) == ["a", "c"]
            assert {
                (h.log.topic_id, h.log.created_s, h.end) for h in heads.values()
            } == {(infos[name].id, infos[name].created_at_s, SIZE) for name in "ac"}


def test_what_was_appended_before_a_look_is_in_it(server: EmbeddedBroker) -> None:
    watch = make_watch()
    with connect(server) as client:
        known = know(look(watch, client, NOTHING))
        for number in range(20):
            if number % 4 == 1:
                # Idle, so that the next look would take its time.
                look(watch, client, known)
            topic = f"t-{number % 5}"
            end = fill(server, topic, make_records(1))[-1]["next_offset"]
            heads = look(watch, client, known)
            assert heads[topic].end == end
            known = know(heads)


def test_topics_come_and_go(server: EmbeddedBroker) -> None:
    watch = make_watch()
    with connect(server) as client:
        assert look(watch, client, NOTHING) == {}
        fill(server, "a", make_records(2))
        heads = look(watch, client, NOTHING)
        assert heads["a"].end == 2 * SIZE
        recreate(server, "a", make_records(1))
        again = look(watch, client, know(heads))
        assert again["a"].end == SIZE
        assert again["a"].log != heads["a"].log
        delete(server, "a")
        assert look(watch, client, know(again)) == {}


def test_a_topic_that_goes_between_the_list_and_the_ends(
    server: EmbeddedBroker,
) -> None:
    fill(server, "a", make_records(1))
    fill(server, "b", make_records(1))
    watch = make_watch()
    lists = watch._list

    def list_and_delete(driver: Driver) -> None:
        lists(driver)
        watch._list = lists  # type: ignore[method-assign]
        delete(server, "a")

    watch._list = list_and_delete  # type: ignore[method-assign]
    with connect(server) as client:
        assert list(look(watch, client, NOTHING)) == ["b"]


def test_a_topic_that_comes_between_the_list_and_the_ends(
    broker: EmbeddedBroker,
) -> None:
    fill(broker, "a", make_records(1))
    watch = make_watch()
    lists = watch._list

    def list_and_create(driver: Driver) -> None:
        lists(driver)
        watch._list = lists  # type: ignore[method-assign]
        fill(broker, "b", make_records(1))

    watch._list = list_and_create  # type: ignore[method-assign]
    with connect(broker) as client:
        assert list(look(watch, client, NOTHING)) == ["a", "b"]


def test_a_list_that_changes_all_the_time_has_an_end(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(1))
    wait, versions = LanceClient.wait, iter(range(1, 1000))

    def change(client: LanceClient, version: int, *given: Any) -> WaitResponse:
        return WaitResponse(next(versions), wait(client, version, *given).ends)

    monkeypatch.setattr(LanceClient, "wait", change)
    with connect(broker) as client:
        assert look(make_watch(), client, NOTHING)["a"].end == SIZE
    assert next(versions) < 50


def test_a_topic_that_is_replaced_all_the_time_never_gets_the_end_of_another(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(50))
    wait, sizes = LanceClient.wait, iter(range(40, 0, -1))

    def replace_topic(client: LanceClient, *given: Any) -> WaitResponse:
        found = wait(client, *given)
        recreate(broker, "a", make_records(next(sizes)))
        return WaitResponse(wait(client, 0, {}, 0.0).version, found.ends)

    with connect(broker) as client:
        monkeypatch.setattr(LanceClient, "wait", replace_topic)
        heads = look(make_watch(), client, NOTHING)
        monkeypatch.undo()
        ends = {info.id: client.bounds(info.id).end for info in client.topics()}
    assert {h.log.topic_id: h.end for h in heads.values()}.items() <= ends.items()


def test_an_end_that_was_not_asked_for_is_ignored(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(1))
    wait = LanceClient.wait

    def add_end(client: LanceClient, *given: Any) -> WaitResponse:
        found = wait(client, *given)
        return replace(found, ends=(*found.ends, TopicPosition(999, 5)))

    monkeypatch.setattr(LanceClient, "wait", add_end)
    with connect(broker) as client:
        assert list(look(make_watch(), client, NOTHING)) == ["a"]


def test_how_long_a_topic_keeps_its_data_is_seen_before_long(
    broker: EmbeddedBroker,
) -> None:
    fill(broker, "a", make_records(1))
    time = Time()
    watch = make_watch(time)
    with connect(broker) as client:
        look(watch, client, NOTHING)
        client.set_retention("a", Retention(60, 5000))
        time.sleep(31.0)
        assert look(watch, client, NOTHING)["a"].retention == Retention(60, 5000)


def test_a_broker_that_starts_again(broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(2))
    watch = make_watch()
    with connect(broker) as client:
        known = know(look(watch, client, NOTHING))
        broker.stop()
        broker.start()
        fill(broker, "a", make_records(1))
        fill(broker, "b", make_records(1))
        heads = look(watch, client, known)
        assert {name: head.end for name, head in heads.items()} == {
            "a": 3 * SIZE,
            "b": SIZE,
        }


# Waiting.


def look_in_thread(
    broker: EmbeddedBroker, patch: pytest.MonkeyPatch, do: Callable[[], Any]
) -> Heads:
    """Look with a long patience, do something when the look has begun to wait."""
    fill(broker, "a", make_records(1))
    watch, begun = make_watch(), threading.Event()
    found: list[Heads] = []
    wait = LanceClient.wait

    def wait_long(
        client: LanceClient, version: int, positions: Any, wait_s: float
    ) -> WaitResponse:
        begun.set()
        return wait(client, version, positions, PATIENCE_S if wait_s else 0.0)

    with connect(broker) as client:
        known = know(look(watch, client, NOTHING))
        look(watch, client, known)
        patch.setattr(LanceClient, "wait", wait_long)
        thread = threading.Thread(
            target=lambda: found.append(look(watch, client, known))
        )
        thread.start()
        assert begun.wait(PATIENCE_S)
        do()
        # Half as long as it would wait.
        thread.join(PATIENCE_S / 2)
        assert not thread.is_alive()
    return found[0]


def test_what_is_appended_ends_a_wait(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append() -> None:
        fill(broker, "a", make_records(1))

    assert look_in_thread(broker, monkeypatch, append)["a"].end == 2 * SIZE


def test_a_new_topic_ends_a_wait(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create() -> None:
        with connect(broker) as client:
            client.create_topic("b")

    assert list(look_in_thread(broker, monkeypatch, create)) == ["a", "b"]


def test_a_topic_that_is_deleted_ends_a_wait(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look_in_thread(broker, monkeypatch, lambda: delete(broker, "a")) == {}


def test_pauses_grow_up_to_a_second_and_end_with_news(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(1))
    time = Time()
    waits = make_waits_pass(monkeypatch, time)
    watch = make_watch(time)
    with connect(broker) as client:
        known = know(look(watch, client, NOTHING))
        for _ in range(8):
            look(watch, client, known)
        assert waits[1:] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
        watch.skip_pause()
        look(watch, client, known)
        look(watch, client, known)
        assert waits[-2:] == [0.0, 0.1]
        fill(broker, "a", make_records(1))
        known = know(look(watch, client, known))
        look(watch, client, known)
        assert waits[-1] == 0.0


def test_a_plain_server_is_asked_at_the_end_of_a_pause(
    plain_broker: EmbeddedBroker,
) -> None:
    fill(plain_broker, "a", make_records(1))
    time = Time()
    watch = make_watch(time)
    with connect(plain_broker) as client:
        known = know(look(watch, client, NOTHING))
        for _ in range(7):
            look(watch, client, known)
        assert time.slept_s == [0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]

        def append() -> None:
            time.meanwhile = lambda: None
            fill(plain_broker, "a", make_records(1))

        time.meanwhile = append
        heads = look(watch, client, known)
        # It came in the pause, and is seen at its end.
        assert heads["a"].end == 2 * SIZE
        look(watch, client, know(heads))
        assert time.slept_s[-1] == 0.0


def test_no_pause_is_very_long(plain_broker: EmbeddedBroker) -> None:
    """It holds up the query's end, and other sources, however many topics there are."""
    make_topics(plain_broker, 100)
    time = Time()
    watch = make_watch(time)
    with connect(plain_broker) as client:
        known = know(look(watch, client, NOTHING))
        for _ in range(12):
            look(watch, client, known)
    assert max(time.slept_s) == 15.0


# An idle query, with the engine's part in it.

IDLE_S = 60.0
# A query that looks more often than this does not pause.
_LOOKS_PER_S_MAX = 10


def idle(engine: Engine, seconds: float) -> None:
    """Let the engine ask until so much time has passed."""
    until_s = engine.time.now_s + seconds
    for _ in range(int(seconds) * _LOOKS_PER_S_MAX):
        if engine.time.now_s >= until_s:
            return
        assert not engine.step()
    raise AssertionError("it looks all the time")


def make_topics(broker: EmbeddedBroker, count: int) -> None:
    with connect(broker) as client:
        for number in range(count):
            client.create_topic(f"t-{number}")
    for number in range(0, count, 10):
        fill(broker, f"t-{number}", make_records(2))


def test_an_idle_query_asks_less_than_five_times_a_second(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(server, 50)
    engine = Engine(server, topicPattern="t-.*", startingOffsets="earliest")
    engine.drain()
    make_waits_pass(monkeypatch, engine.time)
    if server.config.dialect == "plain":
        # Each look is 51 requests, so that the pause has to grow first.
        idle(engine, 15.0)
    requests, began_s = Requests(monkeypatch), engine.time.now_s
    idle(engine, IDLE_S)
    assert 0 < requests.count < 5 * (engine.time.now_s - began_s)
    # And still it sees what comes.
    rows = fill(server, "t-7", make_records(1))
    assert engine.drain() == expect(rows)


@pytest.mark.parametrize("pattern", ["nothing-.*", "t-0"])
def test_an_idle_query_of_few_topics(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    make_topics(server, 1)
    engine = Engine(server, topicPattern=pattern, startingOffsets="earliest")
    engine.drain()
    make_waits_pass(monkeypatch, engine.time)
    requests, began_s = Requests(monkeypatch), engine.time.now_s
    idle(engine, IDLE_S)
    assert 0 < requests.count < 5 * (engine.time.now_s - began_s)


def test_a_record_that_is_not_whole_is_no_reason_to_hurry(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(plain_broker, "a", make_records(2))
    append_bytes(plain_broker, "a", b"\x01\x10")
    append_bytes(plain_broker, "b", b"\x01\x10")
    engine = Engine(plain_broker, topicPattern=".*", startingOffsets="earliest")
    engine.drain()
    requests, began_s = Requests(monkeypatch), engine.time.now_s
    idle(engine, IDLE_S)
    assert 0 < requests.count < 5 * (engine.time.now_s - began_s)
    # The list and two ends: what did not change is not walked through again.
    requests.names.clear()
    assert not engine.step()
    assert requests.names == ["ListTopics", "Fetch", "Fetch"]
    rows = fill(plain_broker, "c", make_records(1))
    assert engine.drain() == expect(rows)


def test_a_batch_that_is_done_lets_the_next_look_answer_at_once(
    plain_broker: EmbeddedBroker,
) -> None:
    fill(plain_broker, "a", make_records(2))
    engine = Engine(plain_broker, topic="a", startingOffsets="earliest")
    engine.drain()
    idle(engine, 10.0)
    assert engine.time.slept_s[-1] == 1.0
    # It was perhaps another source of the query that had something.
    engine.reader.commit({})
    engine.step()
    assert engine.time.slept_s[-1] == 0.0


def test_a_server_that_locates_and_can_not_wait(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capability is asked for by its own name: such a server is polled."""
    fill(broker, "a", make_records(2))
    with connect(broker) as client:
        supports = client.supports
        monkeypatch.setattr(
            client, "supports", lambda c: c is not Capability.WAIT and supports(c)
        )
        time = Time()
        watch = make_watch(time)
        known = know(look(watch, client, NOTHING))
        look(watch, client, known)
        look(watch, client, known)
    assert known.get("a") is not None
    assert time.slept_s == [0.0, 0.0, 0.1]
