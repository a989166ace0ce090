"""What a broker does, asked without any protocol."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lance_spark import errors
from lance_spark.broker import service as service_module
from lance_spark.broker.access import Policy, Principal, TopicRule
from lance_spark.broker.assignment import Strategy
from lance_spark.broker.service import ConsumerState, Service, to_broker_error
from lance_spark.errors import (
    AccessDenied,
    AuthenticationRequired,
    OutOfRange,
    StageUnknown,
)
from lance_spark.model import Retention
from lance_spark.store import (
    CommitStatus,
    LogStart,
    NamedStage,
    Store,
    StoreConfig,
    View,
)
from lance_spark.wire.lwp import code_of, scan
from tests.broker.kit import record, records
from tests.each import each

ANYBODY = Principal()
CA = frozenset({b"ca"})
SPARK = Principal("spark", CA)
FLINK = Principal("flink", CA)
START = np.zeros(1, np.int64)


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    config = StoreConfig(fsync="none", segment_bytes=200)  # type: ignore[arg-type]
    with Store(directory / "data", framing=scan, config=config) as store:
        yield store


@pytest.fixture
def service(store: Store) -> Service:
    return Service(store)


@pytest.fixture
def guarded(store: Store) -> Service:
    """Topic 1 is for the client spark, topic 2 for everybody."""
    store.create_topic("mine")
    store.create_topic("open")
    for topic in (1, 2):
        store.append(topic, records("a", 3))
    rule = TopicRule(True, allowed_cns=frozenset({"spark"}))
    service = Service(store, policy=Policy(authority=CA, rules={1: rule}))
    service.groups.join("theirs", "m", ["mine"], Strategy.RANGE, 30)
    return service


def fill(service: Service, count: int = 10, topic: str = "a") -> int:
    """Make a topic with so many batches of 100 bytes, two to a segment."""
    number = service.create_topic(ANYBODY, topic).metadata.id
    for n in range(count):
        service.append(
            ANYBODY, number, n + 1, record(bytes([65 + n]) * 95), starts=START
        )
    return number


def cut(service: Service, topic: int, segment: int) -> int:
    """Drop all segments before one, as retention does; give the new start."""
    found = service.store.topic(topic)
    kept = found.log.segments()[segment]
    start = LogStart(kept.base_offset, kept.base_record, kept.name.number)
    found.drop_before(start)
    return start.offset


# Access.


def calls(service: Service, client: Principal) -> dict[str, Callable[[], Any]]:
    """Everything that touches topic 1, `mine`."""
    none = Retention()
    return {
        "topic": lambda: service.topic(client, 1),
        "view": lambda: service.view(client, 1),
        "read": lambda: service.read(client, 1, 0, 100),
        "locate": lambda: service.locate(client, 1, "start", 0),
        "ends": lambda: service.ends(client, [1]),
        "append": lambda: service.append(client, 1, 1, record(b"x"), starts=START),
        "set_retention": lambda: service.set_retention(client, 1, none),
        "subscribe": lambda: service.subscribe(
            client, 1, 7, start=0, max_batch_bytes=1
        ),
        "unsubscribe": lambda: service.unsubscribe(client, 1, 7),
        "commit_offset": lambda: service.commit_offset(client, 1, 7, 0),
        "committed_offset": lambda: service.committed_offset(client, 1, 7),
        "check_log_name": lambda: service.check_log_name(client, "mine"),
        "look": lambda: service.look(client, 1, lambda view: view.end),
        "partitions": lambda: service.partitions(client, "mine"),
        "consumers": lambda: service.consumers(client, 1),
        "open_stages": lambda: service.open_stages(client, 1),
        "resolve": lambda: service.resolve(client, ["mine"]),
        "join_group": lambda: service.join_group(
            client,
            "g",
            "",
            topics=["mine"],
            strategy=Strategy.RANGE,
            session_timeout_s=30,
        ),
        "beat_group": lambda: service.beat_group(client, "theirs", "m", 1),
        "leave_group": lambda: service.leave_group(client, "theirs", "m"),
        "open_stage": lambda: service.open_stage(client, "mine", "w", 1),
        "commit_stages": lambda: service.commit_stages(
            client, "w", 1, stages=[], overwrite=["mine"]
        ),
        "delete_topic": lambda: service.delete_topic(client, 1),
    }


OPEN = {
    # These touch no topic, or only those that the client may see.
    *("topics", "topics_version"),
    *("create_topic", "create_topics", "abort_stages", "wait_durable", "watching"),
    *("describe_groups", "subscription", "hidden_topics", "stages"),
    *("all_consumers", "findings"),
    # These are for the broker's operator, and for the console before it asks.
    *("gauges", "lags", "maintain", "sync", "data_dir", "consumer_count"),
}


def test_no_call_is_forgotten(service: Service) -> None:
    names = {n for n, _ in inspect.getmembers(Service) if not n.startswith("_")}
    assert names == OPEN | calls(service, ANYBODY).keys()


@pytest.mark.parametrize("name", calls(None, ANYBODY))  # type: ignore[arg-type]
def test_every_call_is_denied_to_strangers(guarded: Service, name: str) -> None:
    before = guarded.store.view(1).end
    for client in (ANYBODY, FLINK):
        with pytest.raises(AccessDenied) as error:
            calls(guarded, client)[name]()
        # A member's topics are not told: the client has named none of them.
        members = name in ("beat_group", "leave_group")
        what = "member 'm' of group 'theirs'" if members else "topic 1"
        text = f"Access denied: client '{client.name}' not authorized for {what}"
        assert error.value.message == text
    assert guarded.store.view(1).end == before
    assert guarded.store.stages() == []


@pytest.mark.parametrize("name", calls(None, ANYBODY))  # type: ignore[arg-type]
def test_every_call_is_allowed_to_its_client(guarded: Service, name: str) -> None:
    if name == "unsubscribe":
        calls(guarded, SPARK)["subscribe"]()
    calls(guarded, SPARK)[name]()


@pytest.mark.parametrize("name", calls(None, ANYBODY))  # type: ignore[arg-type]
def test_without_a_token_nothing_is_allowed(store: Store, name: str) -> None:
    service = Service(store, policy=Policy(token_required=True), tokens=["good"])
    with pytest.raises(AuthenticationRequired, match="Authentication required"):
        calls(service, SPARK)[name]()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.gate.admit(ANYBODY, None),
        lambda s: s.topics(ANYBODY),
        lambda s: s.create_topic(ANYBODY, "new"),
        lambda s: s.abort_stages(ANYBODY, "w", 1),
        lambda s: s.describe_groups(ANYBODY),
        lambda s: s.subscription(ANYBODY, "g", "m"),
        lambda s: s.hidden_topics(ANYBODY),
        lambda s: s.stages(ANYBODY),
        lambda s: s.all_consumers(ANYBODY),
        lambda s: s.findings(ANYBODY),
    ],
)
def test_without_a_token_not_even_what_touches_no_topic(
    store: Store, call: Callable[[Service], object]
) -> None:
    service = Service(store, policy=Policy(token_required=True), tokens=["good"])
    with pytest.raises(AuthenticationRequired):
        call(service)
    assert store.topics() == []


def test_tokens(store: Store) -> None:
    policy = Policy(token_required=True)
    service = Service(store, policy=policy, tokens=["good", "bett\u00e9r"])
    for token in ("", "goo", "goodd", "GOOD"):
        with pytest.raises(errors.AuthenticationFailed, match="Authentication failed"):
            service.gate.authenticate(SPARK, token)
    for token in ("good", "bett\u00e9r"):
        client = service.gate.authenticate(SPARK, token)
        assert client == Principal("spark", SPARK.chain, True)
        service.gate.admit(client, None)


def test_where_no_token_is_needed_every_one_is_good(service: Service) -> None:
    assert service.gate.authenticate(ANYBODY, "anything").authenticated


def test_a_stage_is_of_its_topic(guarded: Service) -> None:
    stage = guarded.open_stage(SPARK, "mine", "w", 1)
    with pytest.raises(StageUnknown, match=f"^stage {stage} is not open$"):
        guarded.append(FLINK, stage, 1, record(b"x"), starts=START)
    guarded.append(SPARK, stage, 1, record(b"x"), starts=START)
    named = [NamedStage(stage, 1, 6)]
    with pytest.raises(AccessDenied, match="for writer 'w'"):
        guarded.commit_stages(FLINK, "w", 1, stages=named, overwrite=[])
    with pytest.raises(AccessDenied, match="for writer 'w'"):
        guarded.abort_stages(FLINK, "w", 1)
    # Another job of the same writer is as protected; another writer's is not.
    with pytest.raises(AccessDenied, match="for writer 'w'"):
        guarded.abort_stages(FLINK, "w", 2)
    assert guarded.abort_stages(FLINK, "other", 1) == 0
    result = guarded.commit_stages(SPARK, "w", 1, stages=named, overwrite=[])
    assert result.status is CommitStatus.COMMITTED
    # The stage is gone, and with it the way to see whose it was.
    with pytest.raises(AccessDenied, match="for writer 'w'"):
        guarded.commit_stages(FLINK, "w", 1, stages=named, overwrite=[])
    again = guarded.commit_stages(SPARK, "w", 1, stages=named, overwrite=[])
    assert again.status is CommitStatus.REPEATED
    assert again.ranges == result.ranges


def test_whoever_is_tied_to_topics_makes_no_others(store: Store) -> None:
    store.create_topic("mine")
    rule = TopicRule(True, None, frozenset({"spark"}), frozenset({1}))
    service = Service(store, policy=Policy(authority=CA, rules={1: rule}))
    for call in (
        lambda: service.open_stage(SPARK, "new", "w", 1),
        lambda: service.create_topic(SPARK, "new"),
        lambda: service.commit_stages(SPARK, "w", 1, stages=[], overwrite=["new"]),
    ):
        with pytest.raises(AccessDenied, match="not authorized for topic 'new'"):
            call()
    assert [topic.metadata.name for topic in store.topics()] == ["mine"]
    service.open_stage(SPARK, "mine", "w", 1)


def test_nobody_makes_the_commits_of_another_writer_stale(guarded: Service) -> None:
    stage = guarded.open_stage(SPARK, "mine", "w", 1)
    guarded.append(SPARK, stage, 1, record(b"x"), starts=START)
    named = [NamedStage(stage, 1, 6)]
    last = 2**64 - 1
    # While it writes, after it has written, and before it is known at all.
    with pytest.raises(AccessDenied):
        guarded.commit_stages(FLINK, "w", last, stages=[], overwrite=[])
    guarded.commit_stages(SPARK, "w", 1, stages=named, overwrite=[])
    with pytest.raises(AccessDenied):
        guarded.commit_stages(FLINK, "w", last, stages=[], overwrite=[])
    empty = guarded.commit_stages(FLINK, "later", last, stages=[], overwrite=[])
    assert empty.status is CommitStatus.COMMITTED
    for writer, sequence in (("w", 2), ("later", 1)):
        stage = guarded.open_stage(SPARK, "mine", writer, sequence)
        guarded.append(SPARK, stage, 1, record(b"x"), starts=START)
        named = [NamedStage(stage, 1, 6)]
        result = guarded.commit_stages(
            SPARK, writer, sequence, stages=named, overwrite=[]
        )
        assert result.status is CommitStatus.COMMITTED
    # An empty commit of a known writer counts, as an empty micro-batch does.
    guarded.commit_stages(SPARK, "w", 3, stages=[], overwrite=[])
    stale = guarded.commit_stages(SPARK, "w", 2, stages=[], overwrite=[])
    assert stale.status is CommitStatus.STALE


def test_what_stays_has_limits(store: Store) -> None:
    service = Service(store, topics_max=2, consumers_max=2)
    for name in "ab":
        service.create_topic(ANYBODY, name)
    for call in (
        lambda: service.create_topic(ANYBODY, "c"),
        lambda: service.open_stage(ANYBODY, "c", "w", 1),
        lambda: service.commit_stages(ANYBODY, "w", 1, stages=[], overwrite=["c"]),
    ):
        with pytest.raises(errors.LimitReached, match="topics_max"):
            call()
    with pytest.raises(errors.TopicAlreadyExists):
        service.create_topic(ANYBODY, "a")
    for consumer in (7, 8, 7):
        service.commit_offset(ANYBODY, 1, consumer, 0)
    with pytest.raises(errors.InvalidPayload, match="consumers_max"):
        service.commit_offset(ANYBODY, 1, 9, 0)
    assert store.consumer_offsets() == {(7, 1): 0, (8, 1): 0}


def test_a_commit_creates_no_more_topics_than_allowed(store: Store) -> None:
    """Those of its stages and those that it replaces count, before anything is made."""
    service = Service(store, topics_max=3)
    service.create_topic(ANYBODY, "a")
    stages = [service.open_stage(ANYBODY, name, "w", 1) for name in "ab"]
    named = [NamedStage(stage, 0, 0) for stage in stages]

    def commit(*overwrite: str) -> CommitStatus:
        return service.commit_stages(
            ANYBODY, "w", 1, stages=named, overwrite=overwrite
        ).status

    with pytest.raises(errors.LimitReached, match=r"there are 1, with 3 more .* 3"):
        commit("c", "a", "d")
    assert [topic.metadata.name for topic in service.topics(ANYBODY)] == ["a"]
    assert commit("c", "a", "b", "c") is CommitStatus.COMMITTED
    assert len(service.topics(ANYBODY)) == 3
    # What is done is known to be done, although there is no room for it any more.
    service.delete_topic(ANYBODY, store.find_topic("c").metadata.id)  # type: ignore[union-attr]
    service.create_topic(ANYBODY, "d")
    assert commit("c", "a", "b") is CommitStatus.REPEATED


def test_partitions_are_deleted_together(store: Store) -> None:
    service = Service(store)
    logs = [log.metadata.id for log in service.create_topics(ANYBODY, "orders", 3)]
    service.create_topic(ANYBODY, "alone")
    service.subscribe(ANYBODY, logs[2], 7, start=0, max_batch_bytes=1)
    said = r"'orders/1' is a partition of topic 'orders', which has 3: .* alone"
    with pytest.raises(errors.InvalidPayload, match=said):
        service.delete_topic(ANYBODY, logs[1])
    # A client that knows of another number means another topic of that name.
    with pytest.raises(errors.InvalidPayload, match="has 3 partitions, not 2: all are"):
        service.delete_topic(ANYBODY, logs[1], 2)
    assert len(service.topics(ANYBODY)) == 4
    service.delete_topic(ANYBODY, logs[1], 3)
    [alone] = service.topics(ANYBODY)
    assert alone.metadata.name == "alone"
    with pytest.raises(errors.InvalidPayload, match="'alone' has 1 partitions, not 3"):
        service.delete_topic(ANYBODY, alone.metadata.id, 3)
    assert [len(service.create_topics(ANYBODY, "orders", n)) for n in (5,)] == [5]


def test_a_commit_replaces_no_more_topics_than_allowed(store: Store) -> None:
    service = Service(store)
    names = [f"t{n}" for n in range(store.config.overwrite_max + 1)]
    with pytest.raises(errors.LimitReached, match="overwrite_max"):
        service.commit_stages(ANYBODY, "w", 1, stages=[], overwrite=names)
    assert service.topics(ANYBODY) == []


def test_who_sees_what(guarded: Service) -> None:
    seen = [topic.metadata.name for topic in guarded.topics(FLINK)]
    assert seen == ["open"]
    assert [t.metadata.id for t in guarded.topics(SPARK)] == [1, 2]
    assert guarded.gate.may_see(SPARK, 1) and not guarded.gate.may_see(FLINK, 1)
    assert guarded.gate.hides(FLINK, "mine")
    assert not guarded.gate.hides(SPARK, "mine")
    assert not guarded.gate.hides(FLINK, "open")
    assert not guarded.gate.hides(FLINK, "none")
    assert (guarded.hidden_topics(FLINK), guarded.hidden_topics(SPARK)) == (1, 0)
    names = ("mine", "open", "none")
    assert [guarded.gate.may_use(FLINK, name) for name in names] == [False, True, True]
    assert guarded.gate.may_use(SPARK, "mine")


def test_who_sees_which_stages_and_consumers(guarded: Service) -> None:
    store = guarded.store
    for name in ("mine", "open", "later"):
        store.open_stage(name, "w", 1)
    assert [s.metadata.topic for s in guarded.stages(FLINK)] == ["open", "later"]
    assert len(guarded.stages(SPARK)) == 3
    store.commit_offset(9, 1, 0)
    store.commit_offset(9, 2, 0)
    guarded.subscribe(SPARK, 2, 8, start=1, max_batch_bytes=5)
    of_open = [ConsumerState(8, None, 5), ConsumerState(9, 0, None)]
    assert guarded.all_consumers(FLINK) == {2: of_open}
    assert guarded.all_consumers(SPARK) == {1: [ConsumerState(9, 0, None)], 2: of_open}
    assert guarded.lags() == {(9, 1): 75, (9, 2): 75}
    assert guarded.subscription(SPARK, "theirs", "m") == ["mine"]
    assert guarded.subscription(FLINK, "theirs", "m") == []
    assert guarded.findings(FLINK) == store.findings


def test_lags(service: Service) -> None:
    topic = fill(service)
    service.commit_offset(ANYBODY, topic, 7, 300)
    assert service.lags() == {(7, topic): 700}


def test_a_member_is_protected_as_its_topics_are(guarded: Service) -> None:
    strategy = Strategy.RANGE
    with pytest.raises(AccessDenied):
        guarded.join_group(
            FLINK,
            "theirs",
            "m",
            topics=["open"],
            strategy=strategy,
            session_timeout_s=9,
        )
    assert guarded.groups.subscription("theirs", "m") == {"mine"}
    guarded.groups.join("theirs", "other", ["open"], strategy, 30)
    [seen] = guarded.describe_groups(FLINK)
    assert seen.members.keys() == {"other"}
    [seen] = guarded.describe_groups(SPARK)
    assert seen.members.keys() == {"m", "other"}
    guarded.groups.leave("theirs", "other")
    assert guarded.describe_groups(FLINK) == []


# Topics.


def test_creating_topics(service: Service) -> None:
    topic = service.create_topic(ANYBODY, "a", Retention(5, 6))
    assert topic.metadata.retention == Retention(5, 6)
    with pytest.raises(errors.TopicAlreadyExists, match="Topic 'a' already exists"):
        service.create_topic(ANYBODY, "a")
    with pytest.raises(errors.InvalidName, match="Topic name required"):
        service.create_topic(ANYBODY, "")


def test_the_version_of_the_list_goes_up_and_is_no_other_brokers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module.time, "time_ns", lambda: 1 << 60)
    service = Service(store)
    before = service.topics_version
    service.create_topic(ANYBODY, "a")
    assert service.topics_version == before + 1
    service.delete_topic(ANYBODY, 1)
    assert service.topics_version == before + 2
    monkeypatch.setattr(service_module.time, "time_ns", lambda: (1 << 60) + (1 << 30))
    assert Service(store).topics_version > before + 2


def test_the_default_topic_stays(service: Service) -> None:
    with pytest.raises(errors.InvalidPayload, match="default topic can't be deleted"):
        service.delete_topic(ANYBODY, 0)
    assert service.topic(ANYBODY, 0).metadata.id == 0


def test_a_deleted_topic_leaves_nothing(service: Service) -> None:
    fill(service)
    service.subscribe(ANYBODY, 1, 7, start=0, max_batch_bytes=1)
    service.subscribe(ANYBODY, 0, 7, start=0, max_batch_bytes=1)
    assert 1 in service.metrics.snapshot().topics
    service.delete_topic(ANYBODY, 1)
    assert 1 not in service.metrics.snapshot().topics
    assert service._subscriptions.keys() == {(7, 0)}
    for call in (
        lambda: service.topic(ANYBODY, 1),
        lambda: service.delete_topic(ANYBODY, 1),
        lambda: service.read(ANYBODY, 1, 0, 100),
    ):
        with pytest.raises(errors.UnknownTopic, match="topic 1 was deleted"):
            call()
    with pytest.raises(errors.UnknownTopic, match="topic 9 not found"):
        service.topic(ANYBODY, 9)


# Reading.


def test_offsets_outside_the_log_are_served_from_its_ends(service: Service) -> None:
    topic = fill(service)
    start = cut(service, topic, 2)
    assert start == 400
    for offset in (0, 399, 400):
        reading = service.read(ANYBODY, topic, offset, 100)
        assert (reading.slice.start, reading.slice.end) == (400, 500)
        assert reading.high_water_mark == 1000
    for offset in (1000, 1001, 2**64 - 1):
        reading = service.read(ANYBODY, topic, offset, 100)
        assert (reading.slice.start, reading.slice.end) == (1000, 1000)


def test_snapping_to_the_next_record(service: Service) -> None:
    topic = fill(service)
    plain = service.read(ANYBODY, topic, 101, 100)
    assert (plain.slice.start, plain.slice.end) == (101, 200)
    snapped = service.read(ANYBODY, topic, 101, 100, snap=True)
    assert (snapped.slice.start, snapped.slice.end) == (200, 300)
    last = service.read(ANYBODY, topic, 901, 100, snap=True)
    assert (last.slice.start, last.slice.end) == (1000, 1000)


def test_nothing_is_asked_for(service: Service) -> None:
    topic = fill(service)
    reading = service.read(ANYBODY, topic, 100, 0)
    assert (reading.slice.start, reading.slice.end, len(reading.slice)) == (100, 100, 0)
    assert service.metrics.snapshot().traffic.records_out == 0


def test_what_is_read_is_counted(service: Service) -> None:
    topic = fill(service)
    service.read(ANYBODY, topic, 0, 200)
    traffic = service.metrics.snapshot().topics[topic]
    assert (traffic.records_out, traffic.bytes_out) == (2, 200)
    assert (traffic.records_in, traffic.bytes_in) == (10, 1000)


def test_retention_that_is_quicker_than_a_reader(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(service)
    views = [service.store.view(topic)]  # What was there before the cut.
    cut(service, topic, 3)
    service.store._context.segments.drop_topic(topic)
    monkeypatch.setattr(
        service.store,
        "view",
        lambda topic: views.pop() if views else View.of(service.store.topic(1).log),
    )
    reading = service.read(ANYBODY, topic, 0, 100)
    assert (reading.slice.start, reading.slice.end) == (600, 700)
    assert views == []


def test_places(service: Service) -> None:
    topic = fill(service)

    def offset(kind: str, value: int) -> int:
        return service.locate(ANYBODY, topic, kind, value).offset

    assert offset("offset", 101) == 200
    assert offset("record", 3) == 300
    assert offset("start", 99) == 0
    assert offset("end", 99) == 1000
    at = service.locate(ANYBODY, topic, "record", 5)
    assert (at.offset, at.record) == (500, 5)
    assert offset("time", at.append_time_ns) <= 500
    assert offset("time", 2**63) == 1000


def test_a_topic_that_is_cut_all_the_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(service)

    def cut_off(*arguments: object, **options: object) -> None:
        raise OutOfRange(0, 1, 2)

    monkeypatch.setattr(View, "read", cut_off)
    monkeypatch.setattr(View, "locate_offset", cut_off)
    with pytest.raises(errors.StorageError, match="is being cut faster than it is"):
        service.read(ANYBODY, topic, 0, 100)
    with pytest.raises(errors.StorageError, match="is being cut faster than it is"):
        service.locate(ANYBODY, topic, "offset", 0)


def test_ends_of_topics_that_there_are(service: Service) -> None:
    topic = fill(service)
    assert service.ends(ANYBODY, [topic, 77, 0]) == {topic: 1000, 0: 0}


def test_being_told_of_growth(service: Service) -> None:
    topic = fill(service)
    told = threading.Event()
    with service.watching({topic: -1}, told.set, catalog=True):
        service.append(ANYBODY, topic, 1, record(b"x"), starts=START)
        assert told.is_set()
        told.clear()
        service.create_topic(ANYBODY, "b")
        assert told.is_set()
        told.clear()
    service.append(ANYBODY, topic, 2, record(b"x"), starts=START)
    assert not told.is_set()


# Consumers.


def test_where_a_consumer_starts(service: Service) -> None:
    topic = fill(service)

    def subscribe(start: int) -> int:
        return service.subscribe(ANYBODY, topic, 7, start=start, max_batch_bytes=10)

    assert subscribe(0) == 0
    service.commit_offset(ANYBODY, topic, 7, 500)
    assert subscribe(0) == 500
    assert subscribe(300) == 300
    assert subscribe(2**64 - 1) == 1000


def test_what_is_known_of_consumers(service: Service) -> None:
    topic = fill(service)
    service.subscribe(ANYBODY, topic, 7, start=0, max_batch_bytes=10)
    service.subscribe(ANYBODY, topic, 8, start=0, max_batch_bytes=20)
    service.subscribe(ANYBODY, 0, 9, start=0, max_batch_bytes=20)
    service.commit_offset(ANYBODY, topic, 8, 100)
    service.commit_offset(ANYBODY, topic, 6, 0)
    assert service.consumers(ANYBODY, topic) == [
        ConsumerState(6, 0, None),
        ConsumerState(7, None, 10),
        ConsumerState(8, 100, 20),
    ]
    service.unsubscribe(ANYBODY, topic, 8)
    with pytest.raises(
        errors.ConsumerNotFound, match="Consumer 8 is not subscribed to topic 1"
    ):
        service.unsubscribe(ANYBODY, topic, 8)


def test_subscriptions_do_not_pile_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_SUBSCRIPTIONS_MAX", 3)
    for consumer in (1, 2, 3, 1, 4):
        service.subscribe(ANYBODY, 0, consumer, start=0, max_batch_bytes=1)
    assert [consumer for consumer, _ in service._subscriptions] == [3, 1, 4]


def test_an_offset_beyond_the_end(service: Service) -> None:
    topic = fill(service)
    service.commit_offset(ANYBODY, topic, 7, 1000)
    with pytest.raises(errors.OffsetOutOfRange, match="Offset 1001 is beyond") as error:
        service.commit_offset(ANYBODY, topic, 7, 1001)
    assert error.value.details == {"log_end": 1000}
    assert service.store.committed_offset(7, topic) == 1000


def test_names_of_topics(service: Service) -> None:
    fill(service)
    assert service.resolve(ANYBODY, ["a", "b"]) == {"a": 1}


# Housekeeping.


def test_maintenance(service: Service) -> None:
    topic = fill(service)
    service.set_retention(ANYBODY, topic, Retention(0, 300))
    service.groups.join("g", "m", ["a"], Strategy.RANGE, 1)
    service.groups.clock = lambda: 1e12
    stage = service.open_stage(ANYBODY, "a", "w", 1)
    service.append(ANYBODY, stage, 1, record(b"x"), starts=START)
    other = service.open_stage(ANYBODY, "not there yet", "w", 1)
    service.append(ANYBODY, other, 1, record(b"x"), starts=START)
    # What is staged counts for its topic, if that is there.
    assert service.metrics.snapshot().topics[topic].records_in == 11
    assert service.metrics.snapshot().traffic.records_in == 12
    service.metrics.fetched(99, 1, 1)  # Of a topic that was deleted meanwhile.
    assert service.metrics.snapshot().topics.keys() == {topic, 99}
    service.maintain()
    assert service.store.view(topic).start.offset > 0
    assert service.groups.describe() == []
    assert service.metrics.snapshot().topics.keys() == {topic}


def test_gauges(service: Service) -> None:
    topic = fill(service)
    cut(service, topic, 1)
    service.open_stage(ANYBODY, "a", "w", 1)
    service.open_stage(ANYBODY, "a", "w", 2)
    service.open_stage(ANYBODY, "none", "w", 2)
    default, gauge = service.gauges()
    assert (default.id, default.records, default.stages) == (0, 0, 0)
    assert (gauge.id, gauge.name, gauge.stages) == (topic, "a", 2)
    assert (gauge.log_start, gauge.log_end, gauge.records) == (200, 1000, 8)
    assert gauge.bytes_on_disk > 800
    assert service.open_stages(ANYBODY, topic) == 2


# Rules of the configuration hold for names, whoever makes the topic and when.


NAMED = {"mine": TopicRule(True, None, frozenset({"spark"}), frozenset())}


def test_a_topic_made_again_keeps_the_rule_of_its_name(store: Store) -> None:
    service = Service(store, policy=Policy(authority=CA), named=NAMED)
    topic = service.create_topic(SPARK, "mine").metadata.id
    with pytest.raises(AccessDenied, match=f"not authorized for topic {topic}"):
        service.read(ANYBODY, topic, 0, 100)
    service.delete_topic(SPARK, topic)
    again = service.create_topic(SPARK, "mine").metadata.id
    assert again != topic
    with pytest.raises(AccessDenied, match=f"not authorized for topic {again}"):
        service.read(FLINK, again, 0, 100)
    assert service.topics(ANYBODY) == []
    assert store.topic(again).metadata.auth == {
        "mtls_enabled": True,
        "client_ca_path": None,
        "allowed_cns": ["spark"],
        "allowed_topics": [],
    }


def test_a_rule_by_name_holds_before_there_is_a_topic(store: Store) -> None:
    service = Service(store, policy=Policy(authority=CA), named=NAMED)
    calls = [
        lambda: service.create_topic(ANYBODY, "mine"),
        lambda: service.open_stage(FLINK, "mine", "job", 1),
    ]
    for call in calls:
        with pytest.raises(AccessDenied, match="not authorized for topic 'mine'"):
            call()
    assert store.topics() == []
    service.create_topic(ANYBODY, "yours")
    stage = service.open_stage(SPARK, "mine", "job", 1)
    assert stage >= 2**31


def test_a_topic_that_is_gone_has_no_rule(store: Store) -> None:
    service = Service(store, policy=Policy(authority=CA), named=NAMED)
    with pytest.raises(errors.UnknownTopic):
        service.topic(ANYBODY, 77)


CASES = [
    (errors.RecordTooLarge("too long", 3), 0x03),
    (errors.RecordError("odd", 3), 0x04),
    (errors.PayloadOverLimit("payload", 9, 3), 0x03),
    (errors.RemoteProtocolError("odd"), 0x04),
    (errors.LocalProtocolError("odd"), 0x04),
    (errors.InvalidName("odd name"), 0x12),
    (errors.TopicExists("there"), 0x11),
    (errors.LimitReached("too many"), 0x04),
    (errors.OutOfRange(3, 4, 5), 0x50),
    (errors.StageExpired("late"), 0x71),
    (errors.StageUnknown("none"), 0x70),
    (errors.StageMismatch("other"), 0x72),
    (errors.BatchGap("gap"), 0x72),
    (errors.CommitConflict("other"), 0x73),
    (errors.CommitUnknown("w", 1, "EIO"), 0x74),
    (errors.Timeout("late"), 0x62),
    (errors.Corrupt("topic 1", 3, 4, "damaged"), 0x61),
    (errors.StoreReadOnly("broken"), 0x61),
    (errors.StoreWriteFailed("full"), 0x61),
    (errors.StoreClosed("closed"), 0x61),
    (errors.OptionError("odd"), 0x04),
]


@each(("error", "code"), CASES, ids=lambda case: type(case[0]).__name__)
def test_codes(error: errors.LanceError, code: int) -> None:
    said = to_broker_error(error)
    assert code_of(said) == code
    assert said.message == str(error)


def test_an_error_of_the_protocol_stays_what_it_is() -> None:
    error = errors.RateLimited("slow down", details={"retry_after_ms": 5})
    assert to_broker_error(error) is error


@pytest.mark.parametrize(
    ("error", "code", "text", "details"),
    [
        (errors.UnknownTopic(42), 0x10, "Topic 42 not found", {"topic_id": 42}),
        (errors.UnknownTopic(42, True), 0x13, "Topic 42 was deleted", {"topic_id": 42}),
        (errors.UnknownTopic("a"), 0x10, "Topic a not found", {}),
    ],
)
def test_topics_that_there_are_not(
    error: errors.UnknownTopic, code: int, text: str, details: dict[str, int]
) -> None:
    said = to_broker_error(error)
    assert (code_of(said), said.message, said.details) == (code, text, details)


def test_a_bug_is_for_the_log_and_not_for_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        said = to_broker_error(ValueError("/secret/path"))
    assert (code_of(said), said.message) == (0x60, "internal error: ValueError")
    assert "/secret/path" in caplog.text


def test_errors_that_a_request_can_not_meet_are_bugs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert code_of(to_broker_error(errors.SplitError("t", 1, 2))) == 0x60
    assert "request failed" in caplog.text


def test_a_topic_with_partitions_is_not_found_by_its_name_alone(
    service: Service,
) -> None:
    service.create_topics(ANYBODY, "orders", 3)
    for ask in (
        lambda: service.open_stage(ANYBODY, "orders", "w", 1),
        lambda: service.commit_stages(ANYBODY, "w", 1, stages=[], overwrite=["orders"]),
    ):
        with pytest.raises(errors.UnknownTopic) as failure:
            ask()
        told = to_broker_error(failure.value)
        assert isinstance(told, errors.TopicNotFound)
        assert "'orders/0' to 'orders/2'" in told.message


def test_a_partition_is_neither_deleted_nor_changed_alone(service: Service) -> None:
    made = service.create_topics(ANYBODY, "orders", 2)
    one = made[1].metadata.id
    for change in (
        lambda: service.delete_topic(ANYBODY, one),
        lambda: service.set_retention(ANYBODY, one, Retention(5, 6)),
    ):
        with pytest.raises(errors.InvalidPayload, match=r"'orders/1' is a partition"):
            change()
    assert [log.metadata.retention for log in made] == [Retention()] * 2
    assert service.topics(ANYBODY) == made
