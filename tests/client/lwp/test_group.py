"""Grouped consumers: topics that come and go, and what is committed when."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.consumer import Consumer
from lance_spark.client.lwp.group import GroupedConsumer
from lance_spark.client.lwp.offsets import consumer_id
from lance_spark.client.lwp.writer import Producer
from lance_spark.errors import (
    ConnectionLost,
    ConsumerNotFound,
    DataLoss,
    LanceError,
    OptionError,
    StorageError,
    Timeout,
    Unsupported,
)
from lance_spark.wire.lwp import (
    AssignedTopic,
    AssignmentStrategy,
    Capability,
    GroupHeartbeatResponse,
    GroupJoined,
    TopicPosition,
    WaitResponse,
)
from tests.client.kit_flow import PATIENCE_S, FakeLog, record

IDS = {"a": 1, "b": 2, "c": 3}
DATA = b"".join(record(f"{number:05}") for number in range(4))


class FakeGroupClient(FakeLog):
    """Three topics of the same four records, and one group. Keeps what was done.

    `log` has the calls and callbacks in their order.
    """

    def __init__(self) -> None:
        super().__init__(DATA, whole=True)
        self.topic_ids = dict(IDS)
        self.log: list[Any] = []
        self.generation = 1
        self.topics: tuple[str, ...] = ("a",)
        self.heartbeat_error: LanceError | None = None
        self.commit_error: LanceError | None = None
        self.chosen: list[str] = []
        # Called with the time that a commit is given.
        self.on_commit: Callable[[float | None], None] | None = None

    def require(self, capability: Capability, what: str) -> None:
        assert capability in (Capability.GROUPS, Capability.WAIT)

    def assigned(self) -> tuple[AssignedTopic, ...]:
        return tuple(AssignedTopic(IDS[name], name) for name in self.topics)

    def join_group(
        self,
        group: str,
        topics: Any,
        *,
        member: str,
        strategy: AssignmentStrategy,
        session_timeout_s: float,
    ) -> GroupJoined:
        # The first name is of the member's own choice, and the server's word counts.
        name = member if member == "m-1" else ""
        self.chosen = [*self.chosen, *([] if name else [member])]
        self.log.append(("join", name, topics))
        return GroupJoined(self.generation, "m-1", self.assigned())

    def heartbeat(
        self, group: str, member: str, generation: int, *, timeout_s: float
    ) -> GroupHeartbeatResponse:
        self.log.append(("beat", generation))
        if self.heartbeat_error is not None:
            raise self.heartbeat_error
        return GroupHeartbeatResponse(self.generation, self.assigned())

    def leave_group(self, group: str, member: str, *, timeout_s: float) -> None:
        self.log.append(("leave", member))

    def commit_offset(
        self,
        topic: int | str,
        consumer_id: int,
        offset: int,
        *,
        timeout_s: float | None = None,
    ) -> int:
        self.log.append(("commit", topic, offset))
        if self.on_commit is not None:
            self.on_commit(timeout_s)
        if self.commit_error is not None:
            raise self.commit_error
        return super().commit_offset(topic, consumer_id, offset)

    def wait(
        self, version: int, positions: dict[int, int], wait_s: float
    ) -> WaitResponse:
        ends = tuple(TopicPosition(topic, len(self.data)) for topic in positions)
        return WaitResponse(1, ends)


@pytest.fixture
def fake() -> FakeGroupClient:
    return FakeGroupClient()


def _grouped(fake: FakeGroupClient, **options: Any) -> GroupedConsumer:
    client: Any = fake
    settings = {
        # No heartbeat comes by itself during a test.
        "session_timeout_s": 3600.0,
        "on_assigned": lambda names: fake.log.append(("assigned", names)),
        "on_revoked": lambda names: fake.log.append(("revoked", names)),
        **options,
    }
    consumer = GroupedConsumer(client, "readers", ["a", "b", "c"], **settings)
    consumer._member._interval_s = 3600.0
    return consumer


def _hear(consumer: GroupedConsumer) -> None:
    """Do what the heartbeat thread does every few seconds."""
    consumer._member._beat()


# Topics that come and go.


def test_topics_come_with_the_first_poll(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        assert consumer.assignment == []
        result = consumer.poll(0.0)
        assert result is not None
        assert (result.topic, len(result)) == ("a", 4)
        assert consumer.assignment == ["a"]
        assert (consumer.generation, consumer.member_id) == (1, "m-1")
        assert consumer.position("a") == 40
    assert fake.log[:3] == [
        ("join", "", ("a", "b", "c")),
        ("beat", 1),
        ("assigned", ["a"]),
    ]


def test_the_order_in_which_a_topic_is_given_up(fake: FakeGroupClient) -> None:
    fake.topics = ("a", "b")
    with _grouped(fake, max_poll_records=3) as consumer:
        consumer.poll(0.0)
        consumer.poll(0.0)
        fake.generation, fake.topics = 2, ("b", "c")
        _hear(consumer)
        fake.log.clear()
        consumer.poll(0.0)
        assert consumer.assignment == ["b", "c"]
        assert consumer.generation == 2
    assert fake.log[:4] == [
        ("revoked", ["a"]),
        ("commit", 1, 30),
        ("beat", 2),
        ("assigned", ["c"]),
    ]


def test_nothing_is_given_up_before_the_poll(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.generation, fake.topics = 2, ("b",)
        fake.log.clear()
        _hear(consumer)
        _hear(consumer)
        # As long as nobody polls, the old generation is what was applied.
        assert fake.log == [("beat", 1), ("beat", 1)]
        assert consumer.assignment == ["a"]


def test_a_server_that_answers_a_wait_at_once(
    fake: FakeGroupClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the broker does for which others wait: it is not asked without a pause."""
    asked, wait = [], FakeGroupClient.wait

    def count(*given: Any) -> WaitResponse:
        asked.append(time.monotonic())
        return wait(*given)

    monkeypatch.setattr(FakeGroupClient, "wait", count)
    with _grouped(fake) as consumer:
        assert consumer.poll(0.0) is not None
        asked.clear()
        began_s = time.monotonic()
        assert consumer.poll(0.2) is None
        took_s = time.monotonic() - began_s
    # The first is a look, and the last one may be cut short.
    assert 2 <= len(asked) <= 3 + took_s / 0.05


def test_more_topics_in_the_same_generation(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.topics = ("a", "b")
        _hear(consumer)
        fake.log.clear()
        result = consumer.poll(0.0)
        assert result is not None
        assert result.topic == "b"
        assert consumer.assignment == ["a", "b"]
        assert fake.log == [("assigned", ["b"])], "nothing had to be let go of"


def test_the_answer_to_letting_go_may_bring_more(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.generation, fake.topics = 2, ()
        _hear(consumer)
        real = fake.heartbeat

        def heartbeat(*arguments: Any, **options: Any) -> GroupHeartbeatResponse:
            fake.topics = ("b", "c")
            return real(*arguments, **options)

        fake.heartbeat = heartbeat  # type: ignore[method-assign]
        consumer.poll(0.0)
        assert consumer.assignment == ["b", "c"]


def test_a_topic_with_another_id_is_another_topic(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.topic_ids["a"] = 9
        fake.topics = ()
        fake.assigned = lambda: (AssignedTopic(9, "a"),)  # type: ignore[method-assign]
        _hear(consumer)
        fake.log.clear()
        result = consumer.poll(0.0)
        assert result is not None
        assert (result.topic, result.start_offset) == ("a", 0)
    assert [entry[0] for entry in fake.log[:3]] == ["revoked", "commit", "assigned"]


def test_subscribe_again(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.generation, fake.topics = 2, ("c",)
        consumer.subscribe(["c"])
        assert consumer.assignment == ["a"]
        consumer.poll(0.0)
        assert consumer.assignment == ["c"]
    assert ("join", "m-1", ("c",)) in fake.log


def test_no_topics_at_all(fake: FakeGroupClient) -> None:
    fake.topics = ()
    with _grouped(fake) as consumer:
        assert consumer.poll(0.01) is None
        assert consumer.commit() == {}


def test_topics_come_all_or_none(fake: FakeGroupClient) -> None:
    fake.topics = ("a", "b")
    with _grouped(fake, offset_reset="error") as consumer:
        fake.committed[1, consumer_id("readers")] = 0
        with pytest.raises(OptionError, match="'b'"):
            consumer.poll(0.0)
        assert consumer.assignment == []
        fake.committed[2, consumer_id("readers")] = 0
        consumer.poll(0.0)
    assert ("assigned", ["a", "b"]) in fake.log


# A member that is lost.


def test_joins_again_when_the_broker_does_not_know_it(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.heartbeat_error = ConsumerNotFound("who?")
        _hear(consumer)
        fake.heartbeat_error = None
        fake.generation = 1
        fake.log.clear()
        consumer.poll(0.0)
        assert fake.log[:4] == [
            ("revoked", ["a"]),
            # Nothing is committed: the topic may be another's by now.
            ("join", "m-1", ("a", "b", "c")),
            ("beat", 1),
            ("assigned", ["a"]),
        ]
        # What was not committed comes again.
        assert consumer.position("a") == 40


def test_joins_again_after_a_session_of_silence(fake: FakeGroupClient) -> None:
    now_s = [0.0]
    with _grouped(fake, clock=lambda: now_s[0], auto_commit=False) as consumer:
        consumer.poll(0.0)
        now_s[0] = 3601.0
        fake.log.clear()
        consumer.poll(0.0)
        assert fake.log[1] == ("join", "m-1", ("a", "b", "c"))


def _get_lost(consumer: GroupedConsumer, fake: FakeGroupClient) -> None:
    """Have the broker forget the member, and another one commit 20 of its topic."""
    fake.heartbeat_error = ConsumerNotFound("who?")
    _hear(consumer)
    fake.heartbeat_error = None
    fake.committed[1, consumer_id("readers")] = 20
    fake.log.clear()


def test_subscribe_after_the_member_was_lost(fake: FakeGroupClient) -> None:
    with _grouped(fake, max_poll_records=1) as consumer:
        consumer.poll(0.0)
        _get_lost(consumer, fake)
        consumer.subscribe(["a", "b"])
        assert fake.log == [("revoked", ["a"]), ("join", "m-1", ("a", "b"))]
        result = consumer.poll(0.0)
        assert result is not None
        assert result.start_offset == 20, "it goes on where the other one was"


def test_a_lost_member_can_not_commit(fake: FakeGroupClient) -> None:
    with _grouped(fake, max_poll_records=1) as consumer:
        consumer.poll(0.0)
        _get_lost(consumer, fake)
        with pytest.raises(ConsumerNotFound, match="poll to join again") as told:
            consumer.commit()
        assert told.value.code == 0x52
        consumer.poll(0.0)
        consumer.commit()
        assert fake.committed[1, consumer_id("readers")] == 30


@pytest.mark.parametrize("how", ["poll", "subscribe", "close"])
def test_a_callback_that_commits_does_not_do_so_for_others(
    fake: FakeGroupClient, how: str
) -> None:
    seen: list[Any] = []

    def on_revoked(names: list[str]) -> None:
        seen.append(consumer.commit())

    consumer = _grouped(fake, auto_commit=False, on_revoked=on_revoked)
    consumer.poll(0.0)
    _get_lost(consumer, fake)
    if how == "poll":
        consumer.poll(0.0)
    elif how == "subscribe":
        consumer.subscribe(["a"])
    else:
        consumer.close()
    assert seen == [{}]
    assert fake.committed[1, consumer_id("readers")] == 20
    consumer.close()


def test_who_does_not_poll_is_out(fake: FakeGroupClient) -> None:
    now_s = [0.0]
    options = {"clock": lambda: now_s[0], "max_poll_interval_s": 100.0}
    with _grouped(fake, auto_commit=False, **options) as consumer:
        consumer.poll(0.0)
        fake.log.clear()
        now_s[0] = 101.0
        consumer._member._keep_place()
        assert fake.log == [], "no heartbeat keeps the topic from others"
        now_s[0] = 3601.0
        consumer.poll(0.0)
        assert fake.log[:2] == [("revoked", ["a"]), ("join", "m-1", ("a", "b", "c"))]


def test_a_poll_that_takes_long_is_no_silence(fake: FakeGroupClient) -> None:
    now_s = [0.0]
    options = {"clock": lambda: now_s[0], "max_poll_interval_s": 100.0}
    with _grouped(fake, auto_commit=False, **options) as consumer:
        fake.before = lambda: now_s.__setitem__(0, 101.0)
        consumer.poll(0.0)
        fake.log.clear()
        consumer._member._keep_place()
        assert fake.log == [("beat", 1)]


def test_a_consumer_that_is_dropped_keeps_no_topics(fake: FakeGroupClient) -> None:
    consumer = _grouped(fake)
    consumer.poll(0.0)
    thread = consumer._member._heartbeats._thread
    assert thread.is_alive()
    del consumer
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


# Reading.


def test_topics_take_turns(fake: FakeGroupClient) -> None:
    fake.topics = ("a", "b", "c")
    with _grouped(fake, max_poll_records=1) as consumer:
        found = [consumer.poll(0.0) for _ in range(13)]
    topics = [result.topic for result in found if result is not None]
    assert len(topics) == 12
    assert found[12] is None
    for turn in range(0, 12, 3):
        assert sorted(topics[turn : turn + 3]) == ["a", "b", "c"]  # type: ignore[type-var]


def test_finds_what_comes(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        assert consumer.poll(0.0) is None
        fake.append(record("00004"))
        result = consumer.poll(0.0)
        assert result is not None
        assert [found.value for found in result] == [b"00004"]


def test_lost_data(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.data = bytearray(record("00000"))
        with pytest.raises(DataLoss, match="'a'"):
            consumer.poll(0.0)
        consumer._cursors.clear()


def test_starts_where_the_group_was(fake: FakeGroupClient) -> None:
    fake.committed[1, consumer_id("readers")] = 20
    with _grouped(fake) as consumer:
        result = consumer.poll(0.0)
        assert result is not None
        assert result.start_offset == 20
    fake.is_closed = False
    fake.committed.clear()
    with _grouped(fake, offset_reset="latest") as consumer:
        assert consumer.poll(0.0) is None
        assert consumer.position("a") == 40


def test_position_of_a_topic_that_is_not_ours(fake: FakeGroupClient) -> None:
    with _grouped(fake) as consumer, pytest.raises(OptionError, match="'b'"):
        consumer.position("b")


# Commits.


def test_commit(fake: FakeGroupClient) -> None:
    fake.topics = ("a", "b")
    with _grouped(fake, auto_commit=False) as consumer:
        consumer.poll(0.0)
        consumer.poll(0.0)
        fake.log.clear()
        assert consumer.commit() == {"a": 40, "b": 40}
        consumer.commit()
        assert sorted(fake.log) == [("commit", 1, 40), ("commit", 2, 40)]
    assert fake.committed == {
        (1, consumer_id("readers")): 40,
        (2, consumer_id("readers")): 40,
    }


def test_auto_commit_is_of_what_was_done_before_the_poll(fake: FakeGroupClient) -> None:
    now_s = [0.0]
    with _grouped(
        fake, clock=lambda: now_s[0], auto_commit_interval_s=5.0, max_poll_records=1
    ) as consumer:
        consumer.poll(0.0)
        consumer.poll(0.0)
        assert "commit" not in [entry[0] for entry in fake.log]
        now_s[0] = 5.0
        consumer.poll(0.0)
        assert fake.log[-1] == ("commit", 1, 20)
    assert ("commit", 1, 30) in fake.log


def test_without_auto_commit_the_callback_has_to(fake: FakeGroupClient) -> None:
    seen: list[Any] = []

    def on_revoked(names: list[str]) -> None:
        seen.append(consumer.commit())

    consumer = _grouped(fake, auto_commit=False, on_revoked=on_revoked)
    consumer.poll(0.0)
    fake.generation, fake.topics = 2, ()
    _hear(consumer)
    fake.log.clear()
    consumer.poll(0.0)
    assert fake.log == [("commit", 1, 40), ("beat", 2)]
    assert seen == [{"a": 40}]
    consumer.close()


def test_a_commit_that_fails_does_not_stop_the_group(
    fake: FakeGroupClient, caplog: pytest.LogCaptureFixture
) -> None:
    with _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.commit_error = ConnectionLost("down")
        fake.generation, fake.topics = 2, ("b",)
        _hear(consumer)
        consumer.poll(0.0)
        assert consumer.assignment == ["b"]
        with pytest.raises(ConnectionLost):
            consumer.commit()
    assert "could not commit topic 'a': down" in caplog.text


def test_commits_stop_when_the_server_is_gone(fake: FakeGroupClient) -> None:
    fake.topics = ("a", "b", "c")
    for error, tries in (
        (ConnectionLost("down"), 1),
        (Timeout("late"), 1),
        (StorageError("only this one"), 3),
    ):
        fake.is_closed, fake.commit_error = False, error
        consumer = _grouped(fake)
        for _ in range(3):
            assert consumer.poll(0.0) is not None
        fake.log.clear()
        consumer.close()
        assert [entry[0] for entry in fake.log].count("commit") == tries
        assert fake.log[-1] == ("leave", "m-1")


@pytest.mark.parametrize("how", ["poll", "close"])
def test_commits_of_a_round_share_a_deadline(fake: FakeGroupClient, how: str) -> None:
    fake.topics = ("a", "b", "c")
    now_s = [0.0]
    given_s: list[float | None] = []

    def take_long(timeout_s: float | None) -> None:
        given_s.append(timeout_s)
        now_s[0] += 12.0

    # A round has as long as a call may take (20 s here), or a session if that is less.
    consumer = _grouped(fake, clock=lambda: now_s[0], auto_commit_interval_s=5.0)
    for _ in range(3):
        consumer.poll(0.0)
    fake.on_commit = take_long
    now_s[0] = 5.0
    if how == "poll":
        consumer.poll(0.0)
    else:
        consumer.close()
    assert given_s == [20.0, 8.0]
    fake.on_commit = None
    consumer.close()


def test_a_member_that_gets_lost_stops_committing(fake: FakeGroupClient) -> None:
    fake.topics = ("a", "b", "c")
    now_s = [0.0]
    consumer = _grouped(fake, clock=lambda: now_s[0], session_timeout_s=15.0)
    for _ in range(3):
        consumer.poll(0.0)
    now_s[0] = 10.0
    fake.on_commit = lambda timeout_s: now_s.__setitem__(0, 16.0)
    fake.log.clear()
    consumer.close()
    assert [entry[0] for entry in fake.log] == ["revoked", "commit"]


# The end.


def test_close_commits_and_leaves(fake: FakeGroupClient) -> None:
    consumer = _grouped(fake)
    consumer.poll(0.0)
    fake.log.clear()
    consumer.close()
    consumer.close()
    assert fake.log == [("revoked", ["a"]), ("commit", 1, 40), ("leave", "m-1")]
    assert fake.is_closed
    with pytest.raises(LanceError, match="closed"):
        consumer.poll(0.0)
    assert "'readers'" in repr(consumer)


def test_work_that_failed_is_not_committed(fake: FakeGroupClient) -> None:
    with pytest.raises(KeyError), _grouped(fake) as consumer:
        consumer.poll(0.0)
        fake.log.clear()
        raise KeyError("work")
    assert fake.log == [("leave", "m-1")]
    consumer.close()


def test_a_callback_that_fails_does_not_keep_the_member(fake: FakeGroupClient) -> None:
    def on_revoked(names: list[str]) -> None:
        raise KeyError("callback")

    consumer = _grouped(fake, on_revoked=on_revoked)
    consumer.poll(0.0)
    with pytest.raises(KeyError):
        consumer.close()
    assert fake.log[-1] == ("leave", "m-1")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strategy": "best"}, "'best': must be one of range, round-robin, sticky"),
        ({"offset_reset": "now"}, "offset_reset"),
        ({"max_poll_interval_s": 0.0}, "max_poll_interval_s"),
        ({"max_poll_interval_s": float("nan")}, "max_poll_interval_s"),
    ],
)
def test_bad_options(fake: FakeGroupClient, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        _grouped(fake, **options)


@pytest.mark.parametrize("topics", [[], "events"])
def test_bad_topics(fake: FakeGroupClient, topics: Any) -> None:
    client: Any = fake
    with pytest.raises(OptionError, match="list of names"):
        GroupedConsumer(client, "readers", topics)
    assert fake.is_closed


# Against a broker.


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    with LanceClient(broker.address) as client:
        yield client


def _fill(client: LanceClient, topics: list[str], count: int) -> None:
    for topic in topics:
        with Producer(client, topic, create_topic=True) as producer:
            for number in range(count):
                producer.send(f"{topic} {number}")


def _poll_until(
    consumers: list[GroupedConsumer], is_done: Callable[[], bool], found: list[bytes]
) -> None:
    """Poll all in turn until something holds, and keep what comes."""
    end = time.monotonic() + PATIENCE_S
    while not is_done():
        assert time.monotonic() < end, [c.assignment for c in consumers]
        for consumer in consumers:
            # Sessions are long, so that no slow machine ends them; hence by hand.
            _hear(consumer)
            result = consumer.poll(0.01)
            if result is not None:
                found += [r.value or b"" for r in result]


@pytest.mark.parametrize("strategy", ["range", "round-robin", "sticky"])
def test_topics_are_shared_and_handed_over(client: LanceClient, strategy: str) -> None:
    topics = [f"{strategy}-{number}" for number in range(4)]
    found: list[bytes] = []
    _fill(client, topics, 10)
    with GroupedConsumer(client, strategy, topics, strategy=strategy) as second:
        first = GroupedConsumer(client, strategy, topics, strategy=strategy)
        both = [first, second]
        _poll_until(
            both, lambda: len(first.assignment) == len(second.assignment) == 2, found
        )
        assert sorted(first.assignment + second.assignment) == topics
        _poll_until(both, lambda: len(found) >= 40, found)
        # Everything once: whoever got a topic began where the other had stopped.
        everything = [f"{topic} {n}".encode() for topic in topics for n in range(10)]
        assert sorted(found) == sorted(everything)
        _fill(client, topics, 5)
        _poll_until(both, lambda: len(found) >= 50, found)
        first.close()
        _poll_until([second], lambda: len(found) >= 60, found)
        assert second.assignment == topics
    again = [f"{topic} {n}".encode() for topic in topics for n in range(5)]
    assert sorted(found) == sorted(everything + again)


def test_a_broker_that_has_forgotten_its_groups(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(data_dir=str(tmp_path)) as broker,
        LanceClient(broker.address, backoff_base_s=0.01, backoff_max_s=0.05) as client,
    ):
        _fill(client, ["events"], 3)
        found: list[bytes] = []
        with GroupedConsumer(client, "readers", ["events"]) as consumer:
            _poll_until([consumer], lambda: len(found) >= 3, found)
            consumer.commit()
            broker.stop()
            broker.start()
            _fill(client, ["events"], 1)
            _poll_until([consumer], lambda: len(found) >= 4, found)
            assert consumer.assignment == ["events"]
    assert found[3:] == [b"events 0"], "what was committed did not come again"


def test_a_plain_server_has_no_groups() -> None:
    with (
        EmbeddedBroker(dialect="plain") as broker,
        LanceClient(broker.address, checksum="auto") as client,
        pytest.raises(Unsupported),
    ):
        GroupedConsumer(client, "readers", ["a"])


def test_a_single_consumer_sees_the_groups_offset(client: LanceClient) -> None:
    _fill(client, ["seen"], 10)
    with GroupedConsumer(client, "watchers", ["seen"]) as grouped:
        found: list[bytes] = []
        _poll_until([grouped], lambda: len(found) == 10, found)
    with Consumer(client, "seen", name="watchers") as consumer:
        assert consumer.current_offset > 0
        assert consumer.lag() == 0
