"""The contract, continued: consuming, committed offsets, extensions.

See `test_contract`: the same servers, the same rules.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lance_spark.client import (
    Consumer,
    GroupedConsumer,
    LanceClient,
    LockFileOffsetStore,
    MemoryOffsetStore,
    OffsetStore,
    RecordReader,
    SeekPosition,
    StageWriter,
    consumer_id,
)
from lance_spark.errors import DataLoss, StageMismatchError, Unsupported
from lance_spark.wire.lwp import Capability, CommitStatus, StageContent
from tests.integration.contract import Target, fill, read
from tests.integration.kit import read_bytes, wait_for

# Consuming.


def test_poll(client: LanceClient, topic: str) -> None:
    with Consumer(client, topic) as consumer:
        assert consumer.poll() is None
        empty = consumer.poll_blocking(0.05)
        assert empty.is_empty and len(empty) == 0 and empty.start_offset == 0
        values = fill(client, topic)
        result = consumer.poll()
        assert result is not None and not result.is_empty
        assert [record.value for record in result] == values
        assert result.record_count == len(result) == len(values)
        assert (result.start_offset, result.current_offset) == (0, len(result.data))
        assert consumer.current_offset == client.bounds(topic).end
        assert consumer.lag() == 0
        assert consumer.poll() is None


def test_poll_waits_for_records(client: LanceClient, topic: str) -> None:
    timer = threading.Timer(0.2, fill, (client, topic, 1))
    with Consumer(client, topic) as consumer:
        timer.start()
        try:
            result = consumer.poll_blocking(30)
        finally:
            timer.join(60)
    assert [record.value for record in result] == [b"value 0"]


def test_small_polls(client: LanceClient, topic: str) -> None:
    values = fill(client, topic, 25)
    with Consumer(client, topic, max_poll_records=4) as consumer:
        sizes, found = [], []
        while (result := consumer.poll()) is not None:
            sizes.append(len(result))
            found += [record.value for record in result]
    assert sizes == [4] * 6 + [1]
    assert found == values


@pytest.mark.parametrize("fetch_bytes", [1, 13, 14, 100])
def test_small_fetches(client: LanceClient, topic: str, fetch_bytes: int) -> None:
    """Also where the server cuts inside of records."""
    values = fill(client, topic, 25)
    with Consumer(client, topic, fetch_bytes=fetch_bytes) as consumer:
        assert [record.value for record in consumer] == values


def test_iteration_can_be_left(client: LanceClient, topic: str) -> None:
    values = fill(client, topic)
    with Consumer(client, topic) as consumer:
        first = [record.value for record in itertools.islice(consumer, 3)]
        rest = [record.value for record in consumer.records(follow_s=0.01)]
    assert (first, rest) == (values[:3], values[3:])


def test_seek(client: LanceClient, topic: str) -> None:
    values = fill(client, topic)
    with Consumer(client, topic) as consumer:
        offsets = [record.offset for record in consumer]
        end = client.bounds(topic).end
        assert consumer.seek(offsets[4]) == offsets[4]
        assert [record.value for record in consumer] == values[4:]
        assert consumer.rewind() == 0
        assert consumer.lag() == end
        assert [record.value for record in consumer] == values
        consumer.rewind()
        assert consumer.seek_to_end() == end
        assert consumer.poll() is None
        assert consumer.seek_to_offset(offsets[9]) == offsets[9]
        assert [record.value for record in consumer] == values[9:]
        assert consumer.seek(SeekPosition.END) == end
    with Consumer.from_offset(client, topic, offsets[2]) as consumer:
        assert next(iter(consumer)).value == values[2]
    with Consumer.from_beginning(client, topic) as consumer:
        assert next(iter(consumer)).value == values[0]
    with Consumer.from_end(client, topic) as consumer:
        assert consumer.poll() is None
        fill(client, topic, 1)
        assert [record.value for record in consumer] == [b"value 0"]


def test_seek_to_time(target: Target, client: LanceClient, topic: str) -> None:
    fill(client, topic, 3)
    between = time.time_ns()
    values = fill(client, topic, 4)
    with Consumer(client, topic) as consumer:
        if target.is_plain:
            with pytest.raises(Unsupported):
                consumer.seek_to_time(between)
            return
        consumer.seek_to_time(between)
        assert [record.value for record in consumer] == values
        consumer.seek(SeekPosition.time(datetime(1971, 1, 1, tzinfo=timezone.utc)))
        assert len(list(consumer)) == 7
        assert consumer.seek_to_time(2**62) == client.bounds(topic).end


def test_range_of_a_topic(client: LanceClient, topic: str) -> None:
    values = fill(client, topic)
    with Consumer(client, topic) as consumer:
        offsets = [record.offset for record in consumer]
    reader = RecordReader(client, topic, offsets[2], end=offsets[6])
    data = b""
    while (chunk := reader.next_chunk()) is not None:
        data += chunk.data
    reader.close()
    assert data == read_bytes(client, topic)[offsets[2] : offsets[6]]
    assert reader.is_finished
    assert data.count(b"value") == len(values[2:6])


# Committed offsets.


def test_commit_and_resume(client: LanceClient, topic: str) -> None:
    values = fill(client, topic)
    with Consumer(client, topic, name="reader", max_poll_records=4) as consumer:
        assert consumer.committed_offset is None
        consumer.poll()
        offset = consumer.commit()
    assert client.committed_offset(topic, consumer_id("reader")) == offset
    with Consumer(client, topic, name="reader") as consumer:
        assert consumer.committed_offset == consumer.current_offset == offset
        assert [record.value for record in consumer] == values[4:]
    # Nothing was committed of that; and others have offsets of their own.
    with Consumer(client, topic, name="reader") as consumer:
        assert consumer.current_offset == offset
    with Consumer(client, topic, name="another") as consumer:
        assert consumer.current_offset == 0


def test_auto_commit(client: LanceClient, topic: str) -> None:
    fill(client, topic)
    with Consumer(client, topic, name="auto", auto_commit=True) as consumer:
        list(consumer)
    with Consumer(client, topic, name="auto", auto_commit=True) as consumer:
        assert consumer.poll() is None
        assert consumer.lag() == 0


@pytest.mark.parametrize("store", ["memory", "files"])
def test_offsets_kept_by_the_client(
    client: LanceClient, topic: str, tmp_path: Path, store: str
) -> None:
    values = fill(client, topic)
    stores: dict[str, OffsetStore] = {
        "memory": MemoryOffsetStore(),
        "files": LockFileOffsetStore(tmp_path / "offsets"),
    }
    options: dict[str, Any] = {"name": "kept", "offset_store": stores[store]}
    for expected in (values[:3], values[3:6]):
        with Consumer(client, topic, max_poll_records=3, **options) as consumer:
            result = consumer.poll()
            assert result is not None
            assert [record.value for record in result] == expected
            consumer.commit()
    for each in stores.values():
        each.close()
    assert client.committed_offset(topic, consumer_id("kept")) is None


def test_subscriptions(client: LanceClient, topic: str) -> None:
    fill(client, topic)
    assert client.subscribe(topic, 5) == 0
    assert client.commit_offset(topic, 5, 14) == 14
    assert client.subscribe(topic, 5) == 14
    assert client.subscribe(topic, 5, start=28) == 28
    client.unsubscribe(topic, 5)
    assert client.committed_offset(topic, 5) == 14
    assert client.committed_offset(topic, 6) is None


# Extensions: they work, or say that the server has none.


def test_locate(target: Target, client: LanceClient, topic: str) -> None:
    fill(client, topic, 12)
    end = client.bounds(topic).end
    if target.is_plain:
        assert client.bounds(topic).start is None
        for call in (
            lambda: client.locate_offset(topic, 1),
            lambda: client.locate_record(topic, 1),
            lambda: client.locate_time(topic, 1),
            lambda: client.locate_start(topic),
            lambda: client.locate_end(topic),
            lambda: client.fetch(topic, 1, 100, snap=True),
        ):
            with pytest.raises(Unsupported) as caught:
                call()
            assert target.address in str(caught.value)
        return
    assert client.bounds(topic).start == 0
    with Consumer(client, topic) as consumer:
        offsets = [record.offset for record in consumer]
    assert client.locate_start(topic).offset == 0
    assert client.locate_end(topic).offset == end
    assert client.locate_end(topic).record == 12
    assert client.locate_record(topic, 7).offset == offsets[7]
    assert client.locate_offset(topic, offsets[6] + 1).offset == offsets[7]
    assert client.locate_offset(topic, offsets[6]).record == 6
    assert client.locate_time(topic, 0).offset == 0
    assert client.fetch(topic, offsets[3] + 1, 20, snap=True).start == offsets[4]


def test_wait(target: Target, client: LanceClient, topic: str) -> None:
    topic_id = client.topic_id(topic)
    if target.is_plain:
        with pytest.raises(Unsupported):
            client.wait(0, {topic_id: 0}, 0.1)
        return
    version = client.wait(0, {}, 0).version
    idle = client.wait(version, {topic_id: 0}, 0.05)
    assert idle.version == version
    with client.dedicated() as waiting:
        timer = threading.Timer(0.2, fill, (client, topic, 1))
        timer.start()
        try:
            grown = waiting.wait(version, {topic_id: 0}, 30)
        finally:
            timer.join(60)
        assert [end.offset for end in grown.ends] == [client.bounds(topic).end]
        client.create_topic(f"{topic}-new")
        assert waiting.wait(version, {}, 30).version != version


def test_stages(target: Target, client: LanceClient, name: str) -> None:
    if target.is_plain:
        for call in (
            lambda: StageWriter(client, name, "job", 1),
            lambda: client.open_stage(name, "job", 1),
            lambda: client.commit_stages("job", 1, ()),
            lambda: client.abort_stages("job", 1),
        ):
            with pytest.raises(Unsupported) as caught:
                call()
            assert caught.value.capability == Capability.STAGED_COMMIT.value
        return
    job = f"job {name}"
    contents = []
    for part in range(3):
        with StageWriter(client, name, job, 1, batch_bytes=100) as writer:
            for n in range(20):
                writer.send(f"{part} {n}".encode())
            contents.append(writer.finish(30))
    loser = StageWriter(client, name, job, 1)
    loser.send(b"loser")
    loser.finish(30)
    assert name not in {info.name for info in client.topics()}
    wrong = StageContent(contents[0].stage_id, 1, contents[0].byte_count)
    with pytest.raises(StageMismatchError):
        client.commit_stages(job, 1, [wrong])
    done = client.commit_stages(job, 1, contents)
    assert done.status is CommitStatus.COMMITTED
    again = client.commit_stages(job, 1, contents)
    assert (again.status, again.topics) == (CommitStatus.REPEATED, done.topics)
    expected = [f"{part} {n}".encode() for part in range(3) for n in range(20)]
    assert read(client, name) == expected


def test_overwrite_and_abort(target: Target, client: LanceClient, topic: str) -> None:
    if target.is_plain:
        return  # There is nothing that the test before does not say.
    fill(client, topic)
    end = client.bounds(topic).end
    job = f"job {topic}"
    with StageWriter(client, topic, job, 1) as writer:
        writer.send(b"never")
        writer.finish(30)
    assert client.abort_stages(job, 1) == 1
    with StageWriter(client, topic, job, 2) as writer:
        writer.send(b"instead")
        content = writer.finish(30)
    client.commit_stages(job, 2, [content], overwrite=[topic])
    assert read(client, topic) == [b"instead"]
    # Offsets go on, so that a reader in the middle notices.
    assert client.bounds(topic).start == end
    with Consumer.from_offset(client, topic, 0) as late, pytest.raises(DataLoss):
        late.poll()


def test_group(target: Target, client: LanceClient, name: str) -> None:
    names = [f"{name}-{n}" for n in range(4)]
    for each in names:
        client.create_topic(each)
    if target.is_plain:
        with pytest.raises(Unsupported):
            GroupedConsumer(client, name, names)
        with pytest.raises(Unsupported):
            client.join_group(name, names)
        return
    values = {each: fill(client, each, 5) for each in names}
    seen: dict[str, list[bytes | None]] = {each: [] for each in names}

    def settle(
        is_done: Callable[[], bool], what: str, *members: GroupedConsumer
    ) -> None:
        """Poll all members until something holds."""

        def step() -> bool:
            for member in members:
                result = member.poll(0.05)
                if result is not None:
                    seen[str(result.topic)] += [record.value for record in result]
            return is_done()

        wait_for(step, what)

    with GroupedConsumer(client, name, names, session_timeout_s=1.5) as first:
        settle(lambda: first.assignment == names, "one has all", first)
        with GroupedConsumer(client, name, names, session_timeout_s=1.5) as second:
            both = (first, second)
            settle(lambda: {len(m.assignment) for m in both} == {2}, "halves", *both)
            assert sorted(first.assignment + second.assignment) == names
            settle(lambda: seen == values, "everything is read", *both)
        settle(lambda: first.assignment == names, "one is left", first)
    assert seen == values, "committed before it was given up, and read by one"
    for each in names:
        end = client.bounds(each).end
        assert client.committed_offset(each, consumer_id(name)) == end
