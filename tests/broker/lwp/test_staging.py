"""Stages over the wire: what is committed is there once, whatever is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import STAGE_ID_MIN, CommitStatus, StageContent
from tests.broker.kit import Client, Dial, StartBroker, record, records


def open_stage(client: Client, topic: str, sequence: int = 1, writer: str = "w") -> int:
    answer = client.ask(wire.OpenStage(topic, writer, sequence))
    assert isinstance(answer, wire.StageOpened), answer
    assert answer.stage_id >= STAGE_ID_MIN
    return answer.stage_id


def fill(client: Client, stage: int, *batches: bytes) -> StageContent:
    for n, batch in enumerate(batches, 1):
        client.write(stage, batch, n, count=1)
    return StageContent(stage, len(batches), sum(map(len, batches)))


def commit(
    *stages: StageContent,
    sequence: int = 1,
    overwrite: tuple[str, ...] = (),
    writer: str = "w",
) -> wire.CommitStages:
    return wire.CommitStages(writer, sequence, overwrite, stages)


def test_from_opening_to_commit(client: Client) -> None:
    client.create("there")
    client.write(1, record(b"old"), count=1)
    first, second, third = (
        open_stage(client, name) for name in ("there", "new", "there")
    )
    content = [
        fill(client, first, record(b"a"), record(b"b")),
        fill(client, second, record(b"c")),
        fill(client, third, record(b"d")),
    ]
    # Nobody sees anything of them before.
    assert [t.name for t in client.ask(wire.ListTopics()).topics] == ["there"]
    assert client.ask(wire.GetTopic(1)).details["stages"] == 2
    assert client.read(1) == record(b"old")
    answer = client.ask(commit(*content))
    assert answer == wire.StagesCommitted(
        CommitStatus.COMMITTED,
        (wire.TopicSpan(1, "there", 8, 26), wire.TopicSpan(2, "new", 0, 6)),
    )
    assert client.read(1, 8) == record(b"a") + record(b"b") + record(b"d")
    assert client.read(2) == record(b"c")
    assert client.ask(wire.GetTopic(1)).details["stages"] == 0
    # The same again changes nothing and says the same.
    again = client.ask(commit(*content))
    assert again == wire.StagesCommitted(CommitStatus.REPEATED, answer.topics)
    # An older one does nothing, and says so.
    client.ask(commit(sequence=5, overwrite=("other",)))
    stale = client.ask(commit(sequence=4, overwrite=("there",)))
    assert stale == wire.StagesCommitted(CommitStatus.STALE)
    assert client.read(1, 8) == record(b"a") + record(b"b") + record(b"d")
    # The same number for something else is a mistake.
    error = client.refused(commit(sequence=5, overwrite=("there",)))
    assert error.code == 0x73


def test_a_batch_that_comes_again(
    broker: EmbeddedBroker, client: Client, dial: Dial
) -> None:
    stage = open_stage(client, "a")
    client.write(stage, record(b"a"), 1, count=1)
    other = dial(broker)
    other.write(stage, record(b"a"), 1, count=1)
    other.write(stage, record(b"b"), 2, count=1)
    client.write(stage, record(b"b"), 2, count=1)
    other.send(other.ingest(record(b"c"), 2, topic=stage))
    error = other.error()
    assert (error.code, error.details) == (0x72, {"batch_id": 2, "topic_id": stage})
    answer = client.ask(commit(StageContent(stage, 2, 12)))
    assert answer.status is CommitStatus.COMMITTED
    assert client.read(1) == record(b"a") + record(b"b")


def test_a_gap(client: Client) -> None:
    stage = open_stage(client, "a")
    client.write(stage, record(b"a"), 1, count=1)
    client.send(client.ingest(record(b"c"), 3, topic=stage))
    error = client.error()
    assert (error.code, error.details["batch_id"]) == (0x72, 3)
    client.write(stage, record(b"b"), 2, count=1)


def test_once_over_restarts(directory: Path) -> None:
    path = str(directory / "data")
    with EmbeddedBroker(data_dir=path) as broker, Client(broker.address) as client:
        stage = open_stage(client, "a")
        client.write(stage, record(b"a"), 1, count=1)
    with EmbeddedBroker(data_dir=path) as broker, Client(broker.address) as client:
        client.write(stage, record(b"a"), 1, count=1)
        answer = client.ask(commit(StageContent(stage, 1, 6)))
        assert answer.status is CommitStatus.COMMITTED
    with EmbeddedBroker(data_dir=path) as broker, Client(broker.address) as client:
        answer = client.ask(commit(StageContent(stage, 1, 6)))
        assert answer.status is CommitStatus.REPEATED
        assert client.read(1) == record(b"a")


@pytest.mark.parametrize(("batches", "size"), [(2, 6), (1, 7), (0, 0)])
def test_a_commit_that_says_something_else(
    client: Client, batches: int, size: int
) -> None:
    stage = open_stage(client, "a")
    fill(client, stage, record(b"a"))
    error = client.refused(commit(StageContent(stage, batches, size)))
    assert error.code == 0x72
    assert client.ask(wire.ListTopics()) == wire.TopicListing(())
    # All or nothing, and it can be put right.
    assert client.ask(commit(StageContent(stage, 1, 6))).topics[0].end == 6


def test_stages_that_there_are_not(client: Client) -> None:
    unknown = STAGE_ID_MIN + 77
    assert client.refused(commit(StageContent(unknown, 1, 6))).code == 0x70
    client.send(client.ingest(record(b"a"), 1, topic=unknown))
    assert client.error().code == 0x70
    other = open_stage(client, "a", sequence=2)
    assert client.refused(commit(StageContent(other, 0, 0))).code == 0x72


def test_giving_up(client: Client) -> None:
    stages = [open_stage(client, "a"), open_stage(client, "b")]
    kept = open_stage(client, "a", sequence=2)
    assert client.ask(wire.AbortStages("w", 1)) == wire.StagesAborted(2)
    assert client.ask(wire.AbortStages("w", 1)) == wire.StagesAborted(0)
    for stage in stages:
        client.send(client.ingest(record(b"a"), 1, topic=stage))
        assert client.error().code == 0x70
    client.write(kept, record(b"a"), 1, count=1)
    assert client.ask(wire.ListTopics()) == wire.TopicListing(())


def test_losers_are_dropped_with_the_commit(client: Client) -> None:
    winner, loser = open_stage(client, "a"), open_stage(client, "a")
    content = fill(client, winner, record(b"a"))
    fill(client, loser, record(b"a"))
    assert client.ask(commit(content)).status is CommitStatus.COMMITTED
    client.send(client.ingest(record(b"b"), 2, topic=loser))
    assert client.error().code == 0x70
    assert client.read(1) == record(b"a")


def test_a_stage_that_expired(start: StartBroker, dial: Dial) -> None:
    broker = start(stage_ttl_s=1)
    client = dial(broker)
    stage = open_stage(client, "a")
    content = fill(client, stage, record(b"a"))
    clock_ns = broker.service.store._clock_ns
    broker.service.store._clock_ns = lambda: clock_ns() + 2_000_000_000
    broker.service.maintain()
    error = client.refused(commit(content))
    assert error.code == 0x71
    assert "expired" in error.message
    client.send(client.ingest(record(b"b"), 2, topic=stage))
    assert client.error().code == 0x71


def test_overwriting(client: Client) -> None:
    client.create("a")
    client.write(1, records("old", 4), count=4)
    content = fill(client, open_stage(client, "a"), record(b"new"))
    answer = client.ask(commit(content, overwrite=("a",)))
    assert answer.topics == (wire.TopicSpan(1, "a", 100, 108),)
    fetched = client.fetch(1, 0)
    assert bytes(fetched.data) == record(b"new")
    assert fetched.next_offset == 108
    # With nothing, too.
    client.ask(commit(sequence=2, overwrite=("a",)))
    assert client.fetch(1, 0).next_offset == 108
    assert client.read(1) == b""


def test_too_many_stages(start: StartBroker, dial: Dial) -> None:
    client = dial(start(stages_max=1))
    open_stage(client, "a")
    error = client.refused(wire.OpenStage("b", "w", 1))
    assert error.code == 0x61
    assert "stages_max" in error.message
