"""Random operations against a dictionary, thousands of steps.

The model is what a user would say the store is: a start, and the batches behind it with
their append times, for each topic; stages by id; the last sequence of each writer.
After every step a random part is compared, and after every reopening everything.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from dataclasses import dataclass, field

import pytest

from lance_spark.errors import CommitConflict, OutOfRange, StageUnknown, UnknownTopic
from lance_spark.model import Location, Retention
from lance_spark.store import CommitStatus, Fsync, NamedStage, Store, StoreConfig
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import DAY_S, SECOND_NS
from tests.store.kit import batch, check_clean, damage, open_store, read_all

pytestmark = pytest.mark.crash

STEPS = 4000
SEEDS = 3 if "LANCE_CRASH_ROUNDS" not in os.environ else 40
RECORD_BYTES = 45


@dataclass
class TopicModel:
    """A topic: where it starts, and its batches from there on."""

    id: int
    start: int = 0
    first_record: int = 0
    batches: list[bytes] = field(default_factory=list)
    # When each of the batches was appended, and the time that none goes back behind.
    times: list[int] = field(default_factory=list)
    floor_ns: int = 0

    @property
    def data(self) -> bytes:
        return b"".join(self.batches)

    @property
    def end(self) -> int:
        return self.start + sum(map(len, self.batches))

    def append(self, data: bytes, now_ns: int) -> None:
        self.floor_ns = max(self.floor_ns, now_ns)
        self.batches.append(data)
        self.times.append(self.floor_ns)

    def drop_until(self, offset: int) -> None:
        while self.start < offset:
            dropped = self.batches.pop(0)
            self.times.pop(0)
            self.start += len(dropped)
            self.first_record += len(dropped) // RECORD_BYTES

    def locations(self) -> list[Location]:
        """Give the place of every record, and the end."""
        offset, record, places = self.start, self.first_record, []
        for data, time_ns in zip(self.batches, self.times, strict=True):
            for _ in range(len(data) // RECORD_BYTES):
                places.append(Location(offset, record, time_ns))
                offset, record = offset + RECORD_BYTES, record + 1
        return [*places, Location(offset, record, 0)]


@dataclass
class StageModel:
    """A stage: whose it is, for which topic, and its batches."""

    topic: str
    job: tuple[str, int]
    batches: list[bytes] = field(default_factory=list)


class Machine:
    """A store and its model, driven by random operations."""

    def __init__(self, seed: int, fsync: Fsync) -> None:
        self.random = random.Random(seed)
        self.files = DiskFiles(Disk())
        self.config = StoreConfig(
            fsync=fsync,
            segment_bytes=self.random.choice([300, 1500, 10_000]),
            index_stride_bytes=64,
            stage_adopt_bytes=self.random.choice([100, 600, 5000]),
            open_segments_max=6,
            index_cache_bytes=self.random.choice([0, 10_000]),
            journal_bytes_max=2048,
            stage_ttl_s=10_000 * DAY_S,
            writer_ttl_s=10_000 * DAY_S,
        )
        self.topics: dict[str, TopicModel] = {}
        self.stages: dict[int, StageModel] = {}
        self.sequences: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.ids: set[int] = set()
        self.now_ns = 10**18
        self.step_ns = 10**6
        self.count = 0
        self.store = self.open()

    def open(self) -> Store:
        store = open_store(files=self.files, config=self.config, clock_ns=self.clock)
        assert damage(store.findings) == []
        return store

    def clock(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns

    def make_batch(self) -> bytes:
        self.count += 1
        return batch(f"{self.count}", self.random.choice([1, 1, 3, 10]))

    def pick(self) -> TopicModel | None:
        return self.random.choice([*self.topics.values(), None][:8])

    # Operations.

    def create(self) -> None:
        name = f"topic{self.random.randrange(6)}"
        if name not in self.topics:
            topic = self.store.create_topic(name).metadata.id
            assert topic not in self.ids
            self.ids.add(topic)
            self.topics[name] = TopicModel(topic)

    def delete(self) -> None:
        if self.topics and self.random.random() < 0.1:
            name = self.random.choice(list(self.topics))
            topic = self.topics.pop(name).id
            self.store.delete_topic(topic)
            self.offsets = {k: o for k, o in self.offsets.items() if k[1] != topic}
            with pytest.raises(UnknownTopic):
                self.store.append(topic, batch("gone"))

    def append(self) -> None:
        topic = self.pick()
        if topic is not None:
            data = self.make_batch()
            appended = self.store.append(topic.id, data)
            assert (appended.start, appended.end) == (topic.end, topic.end + len(data))
            topic.append(data, self.now_ns)

    def append_together(self) -> None:
        topic = self.pick()
        if topic is not None:
            datas = [self.make_batch() for _ in range(self.random.randrange(1, 5))]
            for data in datas:
                appended = self.store.append(topic.id, data, wait=False)
                topic.append(data, self.now_ns)
            self.store.wait_durable(topic.id, appended)

    def stage(self) -> None:
        writer = f"w{self.random.randrange(3)}"
        last = self.sequences.get(writer, (0, ()))[0]
        job = (writer, last + self.random.choice([0, 1, 1, 1, 2]))
        name = f"topic{self.random.randrange(6)}"
        stage = self.store.open_stage(name, *job)
        assert stage not in self.ids
        self.ids.add(stage)
        self.stages[stage] = StageModel(name, job)

    def append_stage(self) -> None:
        if not self.stages:
            return
        stage, model = self.random.choice(list(self.stages.items()))
        if model.batches and self.random.random() < 0.3:
            number = self.random.randrange(len(model.batches))
            self.store.append_stage(stage, number + 1, model.batches[number])
            return
        data = self.make_batch()
        self.store.append_stage(stage, len(model.batches) + 1, data)
        model.batches.append(data)

    def commit(self) -> None:
        if not self.stages:
            return
        job = self.random.choice(list(self.stages.values())).job
        own = [stage for stage, model in self.stages.items() if model.job == job]
        winners = self.random.sample(own, self.random.randrange(1, len(own) + 1))
        overwrite = ["topic0"] if self.random.random() < 0.2 else []
        named = []
        for stage in winners:
            batches = self.stages[stage].batches
            named.append(NamedStage(stage, len(batches), sum(map(len, batches))))
        writer, sequence = job
        last, last_topics = self.sequences.get(writer, (-1, ()))
        names = list(dict.fromkeys([self.stages[s].topic for s in winners] + overwrite))
        if sequence == last:
            self.repeat(job, named, overwrite, names, last_topics)
            return
        result = self.store.commit_stages(writer, sequence, named, overwrite)
        if sequence < last:
            assert result.status is CommitStatus.STALE
        else:
            assert result.status is CommitStatus.COMMITTED
            assert [r.name for r in result.ranges] == names
            for committed in result.ranges:
                self.apply(committed.topic, committed.name, winners, overwrite)
                topic = self.topics[committed.name]
                assert committed.end == topic.end
            self.sequences[writer] = (sequence, (*names, *(f"!{o}" for o in overwrite)))
        self.forget(job)

    def apply(
        self, topic_id: int, name: str, winners: list[int], overwrite: list[str]
    ) -> None:
        topic = self.topics.setdefault(name, TopicModel(topic_id))
        self.ids.add(topic_id)
        assert topic.id == topic_id
        if name in overwrite:
            topic.drop_until(topic.end)
        for stage in winners:
            if self.stages[stage].topic == name:
                for data in self.stages[stage].batches:
                    topic.append(data, self.now_ns)
        if name in overwrite and not topic.batches:
            topic.floor_ns = 0  # Not a segment is left that knows a time.

    def repeat(
        self,
        job: tuple[str, int],
        named: list[NamedStage],
        overwrite: list[str],
        names: list[str],
        last: tuple[str, ...],
    ) -> None:
        done = {name for name in last if not name.startswith("!")}
        replaced = [name[1:] for name in last if name.startswith("!")]
        if overwrite == replaced and set(names) == done:
            result = self.store.commit_stages(*job, named, overwrite)
            assert result.status is CommitStatus.REPEATED
            self.forget(job)
        else:
            with pytest.raises(CommitConflict):
                self.store.commit_stages(*job, named, overwrite)

    def abort(self) -> None:
        if self.stages:
            job = self.random.choice(list(self.stages.values())).job
            dropped = self.store.abort_stages(*job)
            assert dropped == self.forget(job)

    def forget(self, job: tuple[str, int]) -> int:
        gone = [stage for stage, model in self.stages.items() if model.job == job]
        for stage in gone:
            del self.stages[stage]
            with pytest.raises(StageUnknown):
                self.store.append_stage(stage, 1, batch("gone"))
        return len(gone)

    def retain(self) -> None:
        topic = self.pick()
        if topic is not None:
            retention = Retention(max_bytes=self.random.choice([0, 500, 2000]))
            self.store.set_retention(topic.id, retention)
            self.maintain()

    def maintain(self) -> None:
        self.store.maintain()
        for model in self.topics.values():
            start = self.store.view(model.id).start.offset
            model.drop_until(start)
            assert model.start == start

    def pass_time(self) -> None:
        """Let segments get too old, or set the clock back."""
        if self.stages:
            # A stage has times of its own, which its commit does not go back behind.
            self.now_ns += DAY_S * SECOND_NS
        else:
            self.now_ns += self.random.choice([DAY_S, DAY_S, -DAY_S // 2]) * SECOND_NS
        self.maintain()

    def stand_still(self) -> None:
        """Let several batches have the same time, or go on."""
        self.step_ns = 10**6 - self.step_ns

    def commit_offset(self) -> None:
        topic = self.pick()
        if topic is not None:
            consumer = self.random.randrange(3)
            offset = self.random.randrange(topic.start, topic.end + 1)
            self.store.commit_offset(consumer, topic.id, offset)
            self.offsets[consumer, topic.id] = offset

    def reopen(self) -> None:
        self.store.close()
        check_clean(files=self.files)
        self.store = self.open()
        self.compare_all()

    def kill(self) -> None:
        self.files = DiskFiles(self.files.disk.killed())
        self.store = self.open()
        self.compare_all()

    def lose_power(self) -> None:
        how = self.random.choice(["drop", "keep", "reorder"])
        left = self.files.disk.without_power(how, self.random)
        if self.config.fsync is not Fsync.NONE:
            self.files = DiskFiles(left)
            self.store = self.open()
            self.compare_all()

    # Comparing.

    def compare(self) -> None:
        topic = self.pick()
        if topic is None:
            return
        view = self.store.view(topic.id)
        assert (view.start.offset, view.end.offset) == (topic.start, topic.end)
        offset = self.random.randrange(max(0, topic.start - 50), topic.end + 50)
        max_bytes = self.random.choice([1, 50, 1000, 10**6])
        if not topic.start <= offset <= topic.end:
            with pytest.raises(OutOfRange):
                view.read(offset, max_bytes)
            return
        data = topic.data
        piece = view.read(offset, max_bytes)
        inside = offset - topic.start
        assert piece.read() == data[inside : piece.end - topic.start]
        assert (piece.end - topic.start) % RECORD_BYTES == 0 or not data
        assert len(piece) > 0 or offset == topic.end
        assert len(piece) <= max(max_bytes, RECORD_BYTES)
        last = (piece.end - topic.start) // RECORD_BYTES
        assert piece.records == last - -(-inside // RECORD_BYTES)

    def locate(self) -> None:
        """Compare each kind of locate, everywhere in a short log."""
        topic = self.pick()
        if topic is None:
            return
        view, places = self.store.view(topic.id), topic.locations()
        end = len(places) - 1
        offsets = [place.offset for place in places]
        times = topic.times
        first = [
            bisect_left([p.append_time_ns for p in places[:end]], t) for t in times
        ]
        assert view.locate_start() == places[0]
        assert view.locate_end() == places[end]
        assert view.locate_time(0) == places[0]
        assert view.locate_time(2**63 - 1) == places[end]
        for number in self.sample(range(-2, end + 3)):
            place = places[min(max(number, 0), end)]
            assert view.locate_record(max(0, topic.first_record + number)) == place
        for offset in self.sample(range(max(0, topic.start - 50), topic.end + 50)):
            found = min(bisect_left(offsets, offset), end)
            assert view.locate_offset(offset) == places[found]
        for number in self.sample(range(len(times))):
            assert view.locate_time(times[number]) == places[first[number]]
            # Just behind a batch comes the next one with another time, or the end.
            behind = [f for f, t in zip(first, times, strict=True) if t > times[number]]
            found = behind[0] if behind else end
            assert view.locate_time(times[number] + 1) == places[found]

    def sample(self, numbers: range) -> list[int]:
        return self.random.sample(numbers, min(len(numbers), 40))

    def forget_stale(self) -> None:
        """Opening drops the stages that can never be committed any more."""
        for stage, model in list(self.stages.items()):
            writer, sequence = model.job
            if sequence < self.sequences.get(writer, (-1, ()))[0]:
                del self.stages[stage]

    def compare_all(self) -> None:
        names = {t.metadata.name: t.metadata.id for t in self.store.topics()}
        assert names == {name: topic.id for name, topic in self.topics.items()}
        for topic in self.topics.values():
            assert read_all(self.store.topic(topic.id).log) == topic.data
            assert self.store.view(topic.id).start.record == topic.first_record
        self.forget_stale()
        stages = {s.metadata.id: s.batches for s in self.store.stages()}
        assert stages == {stage: len(m.batches) for stage, m in self.stages.items()}
        for key, offset in self.offsets.items():
            assert self.store.committed_offset(*key) == offset


OPERATIONS = {
    "append": 30,
    "append_together": 10,
    "append_stage": 25,
    "compare": 60,
    "locate": 20,
    "stage": 10,
    "commit": 8,
    "create": 4,
    "delete": 2,
    "abort": 2,
    "retain": 3,
    "pass_time": 2,
    "stand_still": 1,
    "commit_offset": 4,
    "reopen": 1,
    "kill": 1,
    "lose_power": 1,
}


@pytest.mark.parametrize("fsync", list(Fsync))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_operations(seed: int, fsync: Fsync) -> None:
    machine = Machine(seed, fsync)
    chooser = random.Random(seed)
    names = list(OPERATIONS)
    steps = STEPS // (2 * SEEDS) if SEEDS == 3 else STEPS
    for _ in range(steps):
        (name,) = chooser.choices(names, OPERATIONS.values())
        getattr(machine, name)()
    machine.reopen()
