"""Answers that get lost: a staged write is there once, however often it was sent."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer, StageWriter
from lance_spark.errors import CommitConflictError, ConnectionLost
from lance_spark.wire import lwp
from lance_spark.wire.lwp import HEADER_BYTES, CommitStatus, StageContent
from tests.integration.kit import (
    PATIENCE_S,
    Raw,
    by_producer,
    first_occurrences,
    make_client,
    name_value,
    read_values,
)
from tests.integration.proxy import CLEAR, Fate, Flow, Proxy

NUMBERS = itertools.count(1)
ROWS = 40
# One row per batch, so that there are many acks to lose.
SMALL: dict[str, Any] = {"batch_bytes": 1, "linger_s": 0.0, "max_in_flight": 4}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="lance_spark.client")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir = tmp_path_factory.mktemp("lost")
    with EmbeddedBroker(data_dir=str(data_dir), fsync="none") as running:
        yield running


@pytest.fixture
def proxy(broker: EmbeddedBroker) -> Iterator[Proxy]:
    with Proxy(broker.address) as running:
        yield running


@pytest.fixture
def direct(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    with make_client(broker.address) as client:
        yield client


@pytest.fixture
def client(proxy: Proxy) -> Iterator[LanceClient]:
    """A client behind the proxy."""
    with make_client(proxy.address) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"lost-{next(NUMBERS)}"


def values(count: int = ROWS) -> list[bytes]:
    return [name_value("w", n) for n in range(count)]


def stage(client: LanceClient, topic: str, sequence: int = 1) -> StageContent:
    """Write a stage, every row of it a batch."""
    with StageWriter(client, topic, f"job {topic}", sequence, **SMALL) as writer:
        for value in values():
            writer.send(value)
        content = writer.finish(PATIENCE_S)
    assert content.batch_count == ROWS
    return content


def commit(
    client: LanceClient, topic: str, *stages: StageContent, sequence: int = 1
) -> tuple[CommitStatus, int, int]:
    done = client.commit_stages(f"job {topic}", sequence, stages)
    (span,) = done.topics
    assert span.name == topic
    return done.status, span.start, span.end


# The first frame down is the answer to the greeting; the second one an ack.

LOSSES: dict[str, Callable[[int], Fate]] = {
    # Acks are there and the connection is cut in front of the first, second, … one.
    "cut before an ack": lambda n: Fate(
        down=Flow(cut_frame=1 + n % 7, cut_share=0), reset=bool(n % 2)
    ),
    "cut inside an ack": lambda n: Fate(down=Flow(cut_frame=1 + n % 7)),
    # Acks vanish, and the connection ends behind or inside one of the batches that
    # may be in flight.
    "cut behind batches": lambda n: Fate(
        up=Flow(cut_frame=2 + n % 3, cut_share=0), down=Flow(swallow_frame=1 + n % 3)
    ),
    "cut inside batches": lambda n: Fate(
        up=Flow(cut_frame=2 + n % 3), down=Flow(swallow_frame=1 + n % 3)
    ),
    "said twice": lambda n: Fate(
        down=Flow(cut_frame=2 + n % 7, cut_share=0), is_doubled=True
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_stage_holds_every_row_once(
    proxy: Proxy, client: LanceClient, direct: LanceClient, topic: str, loss: str
) -> None:
    client.connection()  # This one is for opening the stage.
    proxy.plan = lambda number: LOSSES[loss](number) if number < 30 else CLEAR
    content = stage(client, topic)
    assert proxy.cuts >= 5
    status, start, end = commit(direct, topic, content)
    assert (status, start) == (CommitStatus.COMMITTED, 0)
    assert read_values(direct, topic) == values()
    assert end == content.byte_count


def test_plain_producer_may_double_but_loses_nothing(
    proxy: Proxy, client: LanceClient, direct: LanceClient, topic: str
) -> None:
    """The same losses without a stage: so that they are known to be real ones."""
    topic_id = direct.create_topic(topic).id
    proxy.plan = LOSSES["cut before an ack"]
    with Producer(client, topic_id, **SMALL) as producer:
        for value in values():
            producer.send(value)
    assert producer.retried_batches > 0
    found = by_producer(read_values(direct, topic))["w"]
    assert first_occurrences(found) == list(range(ROWS))
    assert len(found) > ROWS, "no ack was lost, and this file proves nothing"


def test_silent_network_is_noticed(
    proxy: Proxy, direct: LanceClient, topic: str
) -> None:
    """Nothing is cut: acks just never arrive, until the client has waited enough."""
    with make_client(proxy.address, request_timeout_s=0.3) as client:
        client.connection()
        proxy.plan = lambda number: (
            Fate(down=Flow(swallow_frame=3)) if number < 4 else CLEAR
        )
        content = stage(client, topic)
        assert proxy.connections >= 5
    commit(direct, topic, content)
    assert read_values(direct, topic) == values()


def test_silence_inside_an_ack(proxy: Proxy, direct: LanceClient, topic: str) -> None:
    with make_client(proxy.address, request_timeout_s=0.3) as client:
        with Raw(proxy.address) as raw:
            raw.send(*lwp.encode_message(lwp.GetClusterStatus()))
            frame = raw.frame()
            assert frame is not None
        middle = HEADER_BYTES + len(frame.payload) + HEADER_BYTES // 2
        client.connection()
        proxy.plan = lambda number: (
            Fate(down=Flow(swallow_at=middle)) if number < 4 else CLEAR
        )
        content = stage(client, topic)
        assert proxy.connections >= 5
    commit(direct, topic, content)
    assert read_values(direct, topic) == values()


# Commits.


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("lost", [1, 4])
def test_commit_whose_answer_is_lost(
    proxy: Proxy,
    client: LanceClient,
    direct: LanceClient,
    topic: str,
    lost: int,
    share: float,
) -> None:
    """It is repeated by the client itself, and stored once."""
    content = stage(direct, topic)
    proxy.plan = lambda number: (
        Fate(down=Flow(cut_frame=1, cut_share=share)) if number < lost else CLEAR
    )
    status, start, end = commit(client, topic, content)
    assert proxy.cuts == lost
    # The answer that arrived is not the first one that was given.
    assert (status, start, end) == (CommitStatus.REPEATED, 0, content.byte_count)
    assert read_values(direct, topic) == values()
    # And by a driver that was started again.
    again = commit(direct, topic, content)
    assert again == (CommitStatus.REPEATED, 0, content.byte_count)
    assert read_values(direct, topic) == values()


def test_commit_said_twice(
    proxy: Proxy, client: LanceClient, direct: LanceClient, topic: str
) -> None:
    """Two connections commit the same at the same moment."""
    proxy.plan = lambda _: Fate(is_doubled=True)
    for sequence in range(1, 6):
        content = stage(direct, topic, sequence)
        status, start, end = commit(client, topic, content, sequence=sequence)
        assert status in (CommitStatus.COMMITTED, CommitStatus.REPEATED)
        size = content.byte_count
        assert (start, end) == (size * (sequence - 1), size * sequence)
    assert read_values(direct, topic) == 5 * values()


def test_commit_that_never_arrived(
    proxy: Proxy, client: LanceClient, direct: LanceClient, topic: str
) -> None:
    content = stage(direct, topic)
    proxy.plan = lambda number: (
        Fate(up=Flow(cut_frame=1, cut_share=0.9)) if number < 3 else CLEAR
    )
    status, _, _ = commit(client, topic, content)
    assert (proxy.cuts, status) == (3, CommitStatus.COMMITTED)
    assert read_values(direct, topic) == values()


def test_older_commit_comes_late(direct: LanceClient, topic: str) -> None:
    """A driver that was thought dead commits after its successor has."""
    late = stage(direct, topic, 1)
    commit(direct, topic, stage(direct, topic, 2), sequence=2)
    done = direct.commit_stages(f"job {topic}", 1, [late])
    assert (done.status, done.topics) == (CommitStatus.STALE, ())
    assert read_values(direct, topic) == values()


def test_same_sequence_with_another_topic(direct: LanceClient, topic: str) -> None:
    commit(direct, topic, stage(direct, topic))
    other = StageWriter(direct, f"{topic}-other", f"job {topic}", 1, **SMALL)
    other.send(b"x")
    content = other.finish(PATIENCE_S)
    with pytest.raises(CommitConflictError):
        direct.commit_stages(f"job {topic}", 1, [content])
    assert read_values(direct, topic) == values()
    assert f"{topic}-other" not in {info.name for info in direct.topics()}


def test_abort_whose_answer_is_lost(
    proxy: Proxy, client: LanceClient, direct: LanceClient, topic: str
) -> None:
    stage(direct, topic)
    proxy.plan = lambda number: (
        Fate(down=Flow(cut_frame=1, cut_share=0)) if number < 2 else CLEAR
    )
    assert client.abort_stages(f"job {topic}", 1) == 0
    assert proxy.cuts == 2
    assert topic not in {info.name for info in direct.topics()}


def test_what_is_not_safe_to_repeat_is_not(
    proxy: Proxy, client: LanceClient, direct: LanceClient, topic: str
) -> None:
    """A topic that was created and an answer that was lost: the caller is told so."""
    proxy.plan = lambda number: (
        Fate(down=Flow(cut_frame=1, cut_share=0)) if number < 1 else CLEAR
    )
    with pytest.raises(ConnectionLost):
        client.create_topic(topic)
    assert proxy.connections == 1
    assert client.ensure_topic(topic).id == direct.topic(topic).id


def test_arrow_stage_over_lost_acks(
    proxy: Proxy, client: LanceClient, direct: LanceClient, topic: str
) -> None:
    """Columns in large batches, compressed: what Spark's tasks do."""
    rows = 20_000
    table = pa.table({"value": [name_value("w", n) for n in range(rows)]})
    client.connection()
    proxy.plan = lambda number: (
        LOSSES["cut before an ack"](number) if number < 8 else CLEAR
    )
    writer = StageWriter(
        client, topic, f"job {topic}", 1, batch_bytes=20_000, compression="lz4"
    )
    with writer:
        writer.write(table)
        content = writer.finish(PATIENCE_S)
    assert writer.retried_batches > 0
    commit(direct, topic, content)
    assert read_values(direct, topic) == table["value"].to_pylist()
