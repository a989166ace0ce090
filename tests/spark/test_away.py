"""Topics that are away for a while, and other topics that have their names meanwhile.

A server that answers in place of another one, a list that is not complete yet and a
rule that hides a topic all look like topics that were deleted. Whatever comes back, a
record is read once.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, TopicInfo
from lance_spark.errors import DataLoss
from lance_spark.offset import EARLIER_MAX
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.watch import States, Watch
from lance_spark.wire.lwp import Record
from tests.spark.reading import (
    DIALECTS,
    fill,
    make_records,
    run_broker,
)
from tests.spark.streaming import (
    Engine,
    Requests,
    delete,
    expect,
    make_waits_pass,
    recreate,
    values,
)

SIZE = 25
# How many random histories there are of each dialect.
HISTORIES = int(os.environ.get("LANCE_AWAY_HISTORIES", "6"))


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(dialect: str) -> Iterator[EmbeddedBroker]:
    with run_broker(dialect, segment_bytes=1000) as broker:
        yield broker


@pytest.fixture
def fresh(dialect: str) -> Iterator[EmbeddedBroker]:
    """Run another broker, whose topics have ids of their own."""
    with run_broker(dialect, segment_bytes=1000) as broker:
        for number in range(40):
            fill(broker, f"pad-{number}")
        yield broker


def start(broker: EmbeddedBroker, **given: Any) -> Engine:
    """Start a query that goes on in spite of losses."""
    options = {"topicPattern": "[abc]", "failOnDataLoss": "false", **given}
    return Engine(broker, **{"startingOffsets": "earliest", **options})


def places(engine: Engine) -> dict[str, Any]:
    """Give what the checkpoint has of each topic."""
    found: dict[str, Any] = json.loads(engine.offsets[-1])["topics"]
    return found


# A topic that comes back.


@pytest.mark.parametrize("given", [{"topic": "a,b"}, {"topicPattern": "[ab]"}], ids=str)
def test_another_broker_at_the_address_for_a_moment(
    server: EmbeddedBroker, fresh: EmbeddedBroker, given: dict[str, str]
) -> None:
    rows = [fill(server, name, make_records(20)) for name in "ab"]
    engine = Engine(server, startingOffsets="earliest", failOnDataLoss="false", **given)
    assert engine.drain() == expect(*rows)
    assert engine.restart(broker=fresh).drain() == []
    # Never a set without them: it would be that of a query that has read nothing.
    assert {name: place["partitions"] for name, place in places(engine).items()} == {
        name: {"0": 20 * SIZE} for name in "ab"
    }
    assert engine.restart(broker=server).drain() == []
    more = [fill(server, name, make_records(3)) for name in "ab"]
    assert engine.drain() == expect(*more)
    assert not any(
        place.keys() & {"away", "earlier"} for place in places(engine).values()
    )


def test_the_second_of_two_addresses_is_a_fresh_broker(
    dialect: str, fresh: EmbeddedBroker, tmp_path: Path
) -> None:
    """All in one process, as clients do it: the first that answers is taken."""
    given: dict[str, Any] = {"dialect": dialect, "fsync": "none", "data_dir": tmp_path}
    with EmbeddedBroker(**given) as first:
        address, port = first.address, first.port
        rows = fill(first, "a", make_records(20))
        engine = start(first, servers=f"{address},{fresh.address}")
        assert engine.drain() == expect(rows)
    assert engine.drain() == []
    assert places(engine)["a"]["away"] is True
    with EmbeddedBroker(listen=f"127.0.0.1:{port}", **given) as first:
        # The pool has a connection to the second one, which goes with that broker.
        fresh.stop()
        assert engine.drain() == []
        more = fill(first, "a", make_records(3))
        assert engine.drain() == expect(more)
    clear_pool()


def hide(patch: pytest.MonkeyPatch, pattern: str) -> None:
    """Let a server's list not have some topics, as a rule or a slow start does."""
    listing = LanceClient.topics

    def list_others(client: LanceClient) -> list[TopicInfo]:
        found = listing(client)
        return [info for info in found if re.fullmatch(pattern, info.name) is None]

    patch.setattr(LanceClient, "topics", list_others)


@pytest.mark.parametrize("hidden", ["a", ".*"])
@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_is_hidden_for_a_moment(
    server: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    hidden: str,
    available_now: bool,
) -> None:
    rows = [fill(server, name, make_records(20)) for name in "ab"]
    engine = start(server, available_now=available_now)
    assert engine.drain() == expect(*rows)
    more = fill(server, "a", make_records(3))
    with monkeypatch.context() as patch:
        hide(patch, hidden)
        assert engine.restart(available_now=available_now).drain() == []
        assert places(engine)["a"]["away"] is True
        assert ("away" in places(engine)["b"]) is (hidden == ".*")
        # A run that ends where the topics ended when they were hidden.
        engine.restart(available_now=True)
    expected = [] if available_now else more
    if not available_now:
        engine.restart()
    assert engine.drain() == expect(expected)
    assert engine.restart(available_now=available_now).drain() == expect(
        more if available_now else []
    )


def test_a_topic_that_is_away_before_the_first_batch(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, "a", make_records(20))
    engine = start(server, startingOffsets="latest")
    assert engine.step()
    rows = fill(server, "a", make_records(3))
    with monkeypatch.context() as patch:
        hide(patch, ".*")
        assert engine.restart().drain() == []
    # Where it started is not forgotten either.
    assert engine.restart().drain() == expect(rows)


# Another topic of the name.


def test_another_topic_has_the_name_for_a_moment(
    server: EmbeddedBroker, fresh: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read from its start, and so is what comes after it, from where it was."""
    rows = fill(server, "a", make_records(20))
    others = fill(fresh, "a", make_records(7))
    engine = start(server)
    assert engine.drain() == expect(rows)
    assert engine.restart(broker=fresh).drain() == expect(others)
    assert "the topic was created anew" in caplog.text
    rows = fill(server, "a", make_records(5))
    caplog.clear()
    assert engine.restart(broker=server).drain() == expect(rows)
    [told] = [r.message for r in caplog.records if "failOnDataLoss" in r.message]
    assert "which had the name before, is back" in told
    others = fill(fresh, "a", make_records(2))
    assert engine.restart(broker=fresh).drain() == expect(others)
    assert engine.restart(broker=server).drain() == []


def test_the_topic_that_is_back_is_not_open_yet(
    server: EmbeddedBroker, fresh: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is looked at again, as that of a topic that was never away."""
    fill(server, "a", make_records(20))
    fill(fresh, "a", make_records(7))
    engine = start(server)
    engine.drain()
    engine.restart(broker=fresh).drain()
    look = Watch.look

    def look_too_early(*given: Any) -> States:
        monkeypatch.setattr(Watch, "look", look)
        return {name: replace(head, end=0) for name, head in look(*given).items()}

    monkeypatch.setattr(Watch, "look", look_too_early)
    assert engine.restart(broker=server).drain() == []
    rows = fill(server, "a", make_records(5))
    assert engine.drain() == expect(rows)


def test_a_batch_that_was_planned_on_the_one_is_run_on_it_again(
    server: EmbeddedBroker, fresh: EmbeddedBroker
) -> None:
    fill(server, "a", make_records(20))
    fill(fresh, "a", make_records(7))
    engine = start(server)
    engine.drain()
    engine.restart(broker=fresh).drain()
    rows = fill(server, "a", make_records(5))
    engine.restart(broker=server).step(crash=True)
    assert engine.restart().drain() == expect(rows)


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_deleted_and_created_anew(
    server: EmbeddedBroker, fails: bool
) -> None:
    """What is deleted is told once; what comes is not that topic, and is read whole."""
    fill(server, "a", make_records(20))
    engine = start(server, failOnDataLoss="true")
    engine.drain()
    delete(server, "a")
    for _ in range(2):
        with pytest.raises(DataLoss, match="the topic was deleted"):
            engine.restart().drain()
    # It is told and accepted, and the query is past it.
    assert engine.restart(failOnDataLoss="false").drain() == []
    assert engine.restart(failOnDataLoss=str(fails)).drain() == []
    rows = fill(server, "a", make_records(30))
    assert engine.drain() == expect(rows)
    recreate(server, "a", make_records(40))
    if fails:
        with pytest.raises(DataLoss, match="the topic was created anew"):
            engine.drain()
    else:
        assert len(engine.drain()) == 40


def test_a_query_that_fails_goes_on_when_the_topic_is_back(
    server: EmbeddedBroker, fresh: EmbeddedBroker
) -> None:
    fill(server, "a", make_records(20))
    fill(fresh, "b", make_records(20))
    engine = start(server, failOnDataLoss="true", topicPattern="a")
    engine.drain()
    with pytest.raises(DataLoss, match="the topic was deleted"):
        engine.restart(broker=fresh).drain()
    fill(fresh, "a", make_records(20))
    with pytest.raises(DataLoss, match="the topic was created anew"):
        engine.restart().drain()
    rows = fill(server, "a", make_records(1))
    assert engine.restart(broker=server).drain() == expect(rows)


def test_a_topic_that_is_away_and_not_named_any_more(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        fill(server, name, make_records(4))
    engine = Engine(
        server, topic="a,b", startingOffsets="earliest", failOnDataLoss="false"
    )
    engine.drain()
    delete(server, "b")
    engine.drain()
    caplog.clear()
    engine.restart(topic="a", failOnDataLoss="true")
    assert engine.drain() == []
    assert list(places(engine)) == ["a"] and not caplog.records


def test_names_that_many_topics_have_had(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(1))
    engine = start(server)
    for _ in range(EARLIER_MAX + 3):
        engine.drain()
        recreate(server, "a", make_records(1))
    engine.drain()
    place = places(engine)["a"]
    assert len(place["earlier"]) == EARLIER_MAX
    ids = [place["id"], *(earlier["id"] for earlier in place["earlier"])]
    assert ids == sorted(ids, reverse=True) and len(set(ids)) == len(ids)
    assert len(engine.rows) == EARLIER_MAX + 4


# What it costs.


def test_a_query_whose_topics_are_away_is_idle(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        fill(server, name, make_records(4))
    engine = start(server)
    engine.drain()
    delete(server, "a")
    engine.drain()
    make_waits_pass(monkeypatch, engine.time)
    requests = Requests(monkeypatch)
    began_s = engine.time.now_s
    for _ in range(1000):
        assert not engine.step()
        if engine.time.now_s > began_s + 20:
            break
    assert engine.time.now_s > began_s + 20
    assert requests.count < 5 * 20


def test_progress_is_of_the_topics_that_are_there(server: EmbeddedBroker) -> None:
    for name in "ab":
        fill(server, name, make_records(4))
    engine = start(server)
    engine.drain()
    delete(server, "a")
    fill(server, "b", make_records(4))
    engine.drain()
    report = engine.reader.reportLatestOffset()
    assert report is not None and list(report["topics"]) == ["b"]


def test_the_group_is_not_told_of_a_topic_that_is_away(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        fill(server, name, make_records(4))
    engine = start(server, consumerGroup="g")
    engine.drain()
    delete(server, "a")
    engine.drain()
    engine.reader.stop()
    caplog.clear()
    engine.restart().drain()
    # What waits to be told is told before this returns.
    engine.reader.stop()
    assert "can't be committed" not in caplog.text


# All of it at random.


class History:
    """Two brokers and one query, which is now at the one and now at the other.

    Each record has a value of its own, so that rows tell what was read how often.
    """

    def __init__(self, brokers: list[EmbeddedBroker], chance: random.Random) -> None:
        self.brokers = brokers
        self.chance = chance
        self.engine = start(brokers[0], maxRecordsPerTrigger=7)
        # The values in each topic that is there, and of all there ever were.
        self.there: dict[tuple[int, str], list[bytes]] = {}
        self.made = 0
        self.created: Counter[str] = Counter()

    def append(self) -> None:
        at, name = self.chance.randrange(2), self.chance.choice("ab")
        if (at, name) not in self.there and self.created[name] > EARLIER_MAX:
            return
        if (at, name) not in self.there:
            self.created[name] += 1
        count = self.chance.randrange(1, 9)
        new = [b"%d" % number for number in range(self.made, self.made + count)]
        self.made += count
        fill(self.brokers[at], name, [Record(1, value) for value in new])
        self.there.setdefault((at, name), []).extend(new)

    def delete(self) -> None:
        if self.there:
            at, name = self.chance.choice(sorted(self.there))
            del self.there[at, name]
            delete(self.brokers[at], name)

    def step(self) -> None:
        self.engine.step()

    def switch(self) -> None:
        broker = self.chance.choice(self.brokers)
        self.engine.restart(broker=broker, available_now=self.chance.random() < 0.3)

    def check(self) -> None:
        """Read all that is there, on both; see that each record was read once."""
        for broker in self.brokers:
            self.engine.restart(broker=broker).drain()
        read = Counter(values(self.engine.rows))
        assert [value for value, times in read.items() if times > 1] == []
        kept = {value for found in self.there.values() for value in found}
        assert kept - set(read) == set()
        assert self.engine.restart(broker=self.brokers[0]).drain() == []


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_random_histories(dialect: str, seed: int) -> None:
    chance = random.Random(seed)
    with ExitStack() as stack:
        brokers = [stack.enter_context(run_broker(dialect)) for _ in range(2)]
        # No topic of the one has the id of one of the other.
        for number in range(60):
            fill(brokers[1], f"pad-{number}")
        history = History(brokers, chance)
        acts = [history.append] * 4 + [history.step] * 4 + [history.switch] * 2
        for _ in range(40):
            chance.choice([*acts, history.delete])()
        history.check()
        clear_pool()
