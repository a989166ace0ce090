"""What each answer tells a client of topics, stages and groups that are not its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.assignment import Strategy
from lance_spark.errors import StageUnknown, StoreReadOnly
from lance_spark.model import Retention
from lance_spark.store import Store
from lance_spark.store.log import Syncer
from lance_spark.store.stage import Stage
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import AssignmentStrategy, LocateKind
from tests.broker.kit import Client, Dial, StartBroker, record

RULE = {"mtls_enabled": True, "allowed_cns": ["alice"]}
STRATEGY = AssignmentStrategy.RANGE
# Words that a client without a certificate has no business to learn.
SECRETS = ("payroll", "bonus", "writer-of-alice", "member-of-alice")


@dataclass
class Scene:
    """A broker with things of alice's, and a client who is not her.

    `payroll` exists and has a rule; `bonus` has one and does not exist; the stage is
    alice's and is for `bonus`, her group member reads both.
    """

    broker: EmbeddedBroker
    client: Client
    hidden: int
    absent: int
    stage: int
    own_stage: int


@pytest.fixture
def scene(start: StartBroker, dial: Dial) -> Iterator[Scene]:
    broker = start(topics={"payroll": {"auth": RULE}, "bonus": {"auth": RULE}})
    store = broker.service.store
    hidden, gone = (store.find_topic(name) for name in ("payroll", "bonus"))
    assert hidden is not None and gone is not None
    store.delete_topic(gone.metadata.id)
    stage = store.open_stage("bonus", "writer-of-alice", 1)
    names = ["payroll", "bonus"]
    broker.service.groups.join("shared", "member-of-alice", names, Strategy.RANGE, 60)
    client = dial(broker)
    own = client.ask(wire.OpenStage("open", "mine", 1)).stage_id
    yield Scene(broker, client, hidden.metadata.id, gone.metadata.id, stage, own)


Ask = Callable[[Scene], wire.Message]

# Each request and situation in which it touches what is not the client's: the code of
# the answer, None where it is no error.
HIDDEN: dict[str, tuple[Ask, int | None]] = {
    "create": (lambda s: wire.CreateTopic("payroll"), 0x42),
    "create absent": (lambda s: wire.CreateTopic("bonus"), 0x42),
    "create with retention": (
        lambda s: wire.CreateTopicWithRetention("bonus", Retention(1, 1)),
        0x42,
    ),
    "delete": (lambda s: wire.DeleteTopic(s.hidden), 0x42),
    "delete absent": (lambda s: wire.DeleteTopic(s.absent), 0x42),
    "delete partitions": (lambda s: wire.DeletePartitions(s.hidden, 1), 0x42),
    "delete absent partitions": (lambda s: wire.DeletePartitions(s.absent, 2), 0x42),
    "list": (lambda s: wire.ListTopics(), None),
    "get": (lambda s: wire.GetTopic(s.hidden), 0x42),
    "get absent": (lambda s: wire.GetTopic(s.absent), 0x42),
    "retention": (
        lambda s: wire.SetRetention(s.hidden, Retention(1, 1)),
        0x42,
    ),
    "status": (lambda s: wire.GetClusterStatus(), None),
    "fetch": (lambda s: wire.Fetch(s.hidden, 0, 100), 0x42),
    "fetch absent": (lambda s: wire.Fetch(s.absent, 0, 100), 0x42),
    "fetch of a stage": (lambda s: wire.Fetch(s.stage, 0, 100), 0x10),
    "subscribe": (lambda s: wire.Subscribe(s.hidden, 0, 1, 1), 0x42),
    "unsubscribe": (lambda s: wire.Unsubscribe(s.hidden, 1), 0x42),
    "commit offset": (lambda s: wire.CommitOffset(s.hidden, 1, 0), 0x42),
    "locate": (lambda s: wire.Locate(s.hidden, LocateKind.END), 0x42),
    "wait": (lambda s: wire.Wait(0, (wire.TopicPosition(s.hidden, 0),), 0), 0x42),
    "wait absent": (
        lambda s: wire.Wait(0, (wire.TopicPosition(s.absent, 0),), 0),
        0x42,
    ),
    "open stage": (lambda s: wire.OpenStage("payroll", "mine", 2), 0x42),
    "open stage, absent": (lambda s: wire.OpenStage("bonus", "mine", 2), 0x42),
    "commit a foreign stage": (
        lambda s: wire.CommitStages("mine", 1, (), (wire.StageContent(s.stage, 0, 0),)),
        0x72,
    ),
    "commit with a foreign one": (
        lambda s: wire.CommitStages(
            *("mine", 1, ()),
            tuple(wire.StageContent(n, 0, 0) for n in (s.own_stage, s.stage)),
        ),
        0x72,
    ),
    "commit of a foreign writer": (
        lambda s: wire.CommitStages("writer-of-alice", 1, (), ()),
        0x42,
    ),
    "overwrite": (lambda s: wire.CommitStages("mine", 1, ("payroll",), ()), 0x42),
    "overwrite absent": (lambda s: wire.CommitStages("mine", 1, ("bonus",), ()), 0x42),
    "abort of a foreign writer": (
        lambda s: wire.AbortStages("writer-of-alice", 1),
        0x42,
    ),
    "join": (lambda s: wire.JoinGroup("g", "", ("payroll",), STRATEGY, 9000), 0x42),
    "join absent": (
        lambda s: wire.JoinGroup("g", "", ("bonus",), STRATEGY, 9000),
        0x42,
    ),
    "join as a foreign member": (
        lambda s: wire.JoinGroup("shared", "member-of-alice", (), STRATEGY, 9000),
        0x42,
    ),
    "heartbeat": (lambda s: wire.GroupHeartbeat("shared", "member-of-alice", 1), 0x42),
    "leave": (lambda s: wire.LeaveGroup("shared", "member-of-alice"), 0x42),
    "authenticate": (lambda s: wire.Authenticate("any"), None),
}


def test_every_request_is_in_the_table(scene: Scene) -> None:
    asked = {type(ask(scene)) for ask, _ in HIDDEN.values()}
    assert asked == set(wire.REQUESTS.values())


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_client_is_told(scene: Scene, name: str) -> None:
    ask, code = HIDDEN[name]
    message = ask(scene)
    scene.client.send(scene.client.message(message))
    frame = scene.client.next()
    answer = wire.decode_response(frame)
    if code is None:
        assert not isinstance(answer, wire.ErrorResponse)
    else:
        assert isinstance(answer, wire.ErrorResponse)
        assert answer.code == code, answer
    # What the client has named itself may be repeated, and nothing else.
    told = json.dumps(str(answer)) + bytes(frame.payload).decode("latin-1")
    for secret in SECRETS:
        assert secret in str(message) or secret not in told
    if "payroll" not in str(message) and f"topic_id={scene.hidden}" not in str(message):
        assert f"topic {scene.hidden}" not in told
    scene.client.alive()
    # Nothing of hers has changed.
    store = scene.broker.service.store
    assert store.find_topic("payroll") is not None
    assert store.stage(scene.stage).batches == 0
    assert scene.broker.service.groups.subscription("shared", "member-of-alice") == {
        *("payroll", "bonus")
    }


def test_a_batch_for_a_foreign_stage(scene: Scene) -> None:
    """It is told the same as of one that is not there."""
    errors = []
    for stage in (scene.stage, scene.stage + 1000):
        scene.client.send(scene.client.ingest(record(b"x"), 1, topic=stage))
        error = scene.client.error()
        assert error.details == {"batch_id": 1, "topic_id": stage}
        errors.append((error.code, error.message.replace(str(stage), "N")))
    assert errors == [(0x70, "stage N is not open")] * 2
    assert scene.broker.service.store.stage(scene.stage).batches == 0
    scene.client.send(scene.client.ingest(record(b"x"), 1, topic=scene.own_stage))
    scene.client.acked(1)


def test_a_member_goes_on_when_its_topic_goes(client: Client) -> None:
    """A topic without a rule may be absent, before and after."""
    topics = ("open", "later")
    client.create("open")
    joined = client.ask(wire.JoinGroup("g", "", topics, STRATEGY, 9000))
    assert [topic.name for topic in joined.assignment] == ["open"]
    client.ask(wire.DeleteTopic(joined.assignment[0].topic_id))
    beat = client.ask(wire.GroupHeartbeat("g", joined.member, joined.generation))
    assert beat.assignment == ()


# A batch that meets the end of its stage.


@pytest.mark.parametrize("inline_bytes", [0, 1000])
@pytest.mark.parametrize("end", ["abort", "commit"])
@pytest.mark.parametrize("moment", ["looked up", "written", "waits"])
def test_a_batch_that_meets_the_end_of_its_stage(
    start: StartBroker,
    dial: Dial,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    end: str,
    inline_bytes: int,
) -> None:
    """At whichever moment the stage goes, the batch is answered with 0x70."""
    broker = start(fsync="batch", stage_inline_bytes=inline_bytes)
    # Nothing becomes durable by itself: the batch waits until its stage goes.
    monkeypatch.setattr(Syncer, "request", lambda *_: None)
    store, client = broker.service.store, dial(broker)
    stage = client.ask(wire.OpenStage("t", "w", 1)).stage_id
    place, name = {
        "looked up": (Store, "append_stage"),
        "written": (Store, "wait_durable"),
        "waits": (Stage, "wait"),
    }[moment]
    usual = getattr(place, name)

    def late(self: Any, *args: Any, **named: Any) -> Any:
        monkeypatch.setattr(place, name, usual)
        if end == "abort":
            assert store.abort_stages("w", 1) == 1
        else:
            # As far as a commit has come when the stage's files are the topic's.
            store.stage(stage).retire()
        return usual(self, *args, **named)

    monkeypatch.setattr(place, name, late)
    client.send(client.ingest(record(b"x"), 1, topic=stage))
    error = client.error()
    assert (error.code, error.details["batch_id"]) == (0x70, 1)


@pytest.mark.parametrize("inline_bytes", [0, 1000])
def test_a_stage_that_goes_while_an_append_waits(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    """The same for users of the store, and the disk's own failures stay theirs."""
    broker = start(fsync="batch", stage_inline_bytes=inline_bytes)
    monkeypatch.setattr(Syncer, "request", lambda *_: None)
    store = broker.service.store
    stage = store.open_stage("t", "w", 1)
    usual = Stage.wait

    def dropped(self: Stage, *args: Any, **named: Any) -> None:
        store.abort_stages("w", 1)
        usual(self, *args, **named)

    monkeypatch.setattr(Stage, "wait", dropped)
    with pytest.raises(StageUnknown):
        store.append_stage(stage, 1, record(b"x"))
    other = store.open_stage("t", "v", 1)

    def failed(self: Stage, *args: Any, **named: Any) -> None:
        self.home.fail("a test")
        usual(self, *args, **named)

    monkeypatch.setattr(Stage, "wait", failed)
    with pytest.raises(StoreReadOnly):
        store.append_stage(other, 1, record(b"x"))
