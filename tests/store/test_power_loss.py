"""Power loss at every single file operation, for everything the store does.

One run of a scenario records a picture of the disk before each operation. Each picture
is then left behind in several ways and opened again: what the store shows must be what
it showed before the step that was under way, or after it. A step of several appends may
show any number of them, if none was acknowledged.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from lance_spark.model import Retention
from lance_spark.store import Fsync, NamedStage, Store, StoreConfig
from tests.store.disk import Disk, DiskFiles
from tests.store.kit import (
    SMALL,
    Seen,
    batch,
    check_clean,
    damage,
    look,
    open_store,
    ticking,
)

pytestmark = pytest.mark.crash

# `make crash` asks for the long run.
LONG_RUN = "LANCE_CRASH_ROUNDS" in os.environ
# By default each way of losing power meets every other operation, and the next way
# those between, so that each operation is met.
STRIDE = 1 if LONG_RUN else 2

# Stages of each kind: without files, moved to files, copied from there, and adopted.
MIXED = {**SMALL, "stage_inline_bytes": 100}

Step = Callable[[Store], None]


def append(topic: int, *tags: str, records: int = 3) -> list[Step]:
    """Append batches, each acknowledged."""

    def one(tag: str) -> Step:
        return lambda store: store.append(topic, batch(tag, records)) and None

    return [one(tag) for tag in tags]


def append_together(topic: int, *tags: str) -> Step:
    """Append batches that share the wait for the disk."""

    def step(store: Store) -> None:
        for tag in tags[:-1]:
            store.append(topic, batch(tag), wait=False)
        store.append(topic, batch(tags[-1]))

    return step


def commit(
    writer: str, sequence: int, sizes: dict[str, list[int]], overwrite: tuple[str, ...]
) -> list[Step]:
    """Stage batches of so many records for each topic, and one loser; then commit."""
    named: list[NamedStage] = []

    def stage(store: Store) -> None:
        for topic, counts in sizes.items():
            stage_id = store.open_stage(topic, writer, sequence)
            total = 0
            for number, count in enumerate(counts, 1):
                data = batch(f"{writer}-{sequence}-{topic}-{number}", count)
                store.append_stage(stage_id, number, data)
                store.append_stage(stage_id, number, data)
                total += len(data)
            named.append(NamedStage(stage_id, len(counts), total))
        loser = store.open_stage("one", writer, sequence)
        store.append_stage(loser, 1, batch("loser"))

    def commit_all(store: Store) -> None:
        store.commit_stages(writer, sequence, named, overwrite)

    return [stage, commit_all]


def maintain(store: Store) -> None:
    """Drop segments and compact the journal, in one go."""
    start, size = store.view(1).start, store._decisions.journal.size
    store.maintain()
    assert store.view(1).start > start
    assert store._decisions.journal.size < size


def retain(topic: int, max_bytes: int) -> list[Step]:
    return [
        lambda store: store.set_retention(topic, Retention(max_bytes=max_bytes)),
        maintain,
    ]


def scenario() -> Iterator[Step]:
    """Everything that changes a store, each kind of file among it."""
    yield lambda store: store.create_topic("one") and None
    yield from append(1, "a", "b", "c")
    yield append_together(1, "d", "e", "f", "g")
    yield lambda store: store.create_topic("two", retention=Retention(60, 0)) and None
    yield from append(2, "h")
    yield from append(1, "i", records=40)  # Larger than a segment.
    yield lambda store: store.commit_offset(7, 1, 135)
    yield from commit("w", 1, {"one": [2, 3], "two": [4], "three": [2]}, ())
    yield from append(1, "j")
    yield from commit("w", 2, {"one": [9, 9], "two": [20, 20, 20]}, ())
    yield from append(2, "k")
    yield from commit("w", 3, {"one": [3], "two": [30]}, ("two", "four"))
    yield from append(2, "l", "m")
    yield lambda store: store.commit_offset(7, 1, 270)
    yield from retain(1, 2000)
    yield lambda store: store.delete_topic(3)
    yield from append(1, "n")
    yield lambda store: store.abort_stages("w", 4) and None
    yield from commit("v", 1, {"one": [30, 30]}, ("one",))
    yield from append(1, "o")
    yield lambda store: store.create_topics({"wide": 2}) and None
    yield from commit("v", 2, {"wide/1": [2], "one": [1]}, ())
    yield lambda store: store.delete_topics([5, 6])
    yield lambda store: store.close()


@dataclass
class Picture:
    """A disk just before an operation, and what may be seen after a crash there."""

    disk: Disk
    operation: str
    allowed: list[Seen]


class Recorder:
    """Takes a picture before each operation."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.pictures: list[Picture] = []

    def __call__(self, operation: str, name: str) -> None:
        text = f"{len(self.pictures)}: {operation} {name}"
        self.pictures.append(Picture(self.disk.clone(), text, []))


def states_of(step: Step, disk: Disk, config: StoreConfig) -> list[Seen]:
    """Find what may be seen while a step is under way: each append by itself."""
    files = DiskFiles(disk.killed())
    states = []
    with open_store(files=files, config=replace(config, fsync=Fsync.ALWAYS)) as store:
        original = store.append

        def append_and_look(*args: object, **options: object) -> object:
            result = original(*args, **options)  # type: ignore[arg-type]
            states.append(look(store))
            return result

        store.append = append_and_look  # type: ignore[method-assign, assignment]
        step(store)
    return states


@functools.cache
def record(fsync: Fsync) -> list[Picture]:
    """Run the scenario once and keep a picture before each operation."""
    config = StoreConfig(fsync=fsync, journal_bytes_max=1024, **MIXED)  # type: ignore[arg-type]
    disk = Disk()
    files = DiskFiles(disk)
    recorder = Recorder(disk)
    files.before = recorder
    store = open_store(files=files, config=config)
    nothing = look(open_store(files=DiskFiles(disk.clone()), config=config))
    before, first = nothing, 0
    for step in scenario():
        between = []
        if step.__qualname__.startswith("append_together"):
            between = states_of(step, disk.clone(), config)
        step(store)
        after = before if store._closed else look(store)
        for picture in recorder.pictures[first:]:
            picture.allowed = [before, *between, after]
        before, first = after, len(recorder.pictures)
    return recorder.pictures


class Reopener:
    """Opens disks that were left behind; one that was seen before only once."""

    def __init__(self, fsync: Fsync, *, again: bool) -> None:
        # Lose power once more behind each opening.
        self._again = again
        self._config = StoreConfig(fsync=fsync, **MIXED)  # type: ignore[arg-type]
        self._seen: dict[tuple[object, ...], Seen] = {}

    def compare(self, picture: Picture, left: Disk) -> None:
        image = left.image()
        if image not in self._seen:
            self._seen[image] = self._reopen(picture.operation, left)
        assert self._seen[image] in picture.allowed, picture.operation

    def _reopen(self, operation: str, left: Disk) -> Seen:
        files = DiskFiles(left)
        clock = ticking(1_800_000_000_000_000_000)
        with open_store(files=files, config=self._config, clock_ns=clock) as store:
            assert damage(store.findings) == [], operation
            seen = look(store)
            for topic in store.topics():
                store.append(topic.metadata.id, batch("after"))
            if self._again:
                self._lose_power(operation, left, look(store))
        check_clean(files=files)
        return seen

    def _lose_power(self, operation: str, left: Disk, promised: Seen) -> None:
        """What a recovered store acknowledges is durable, whatever it was left with."""
        files = DiskFiles(left.without_power("drop", random.Random(0)))
        with open_store(files=files, config=self._config) as store:
            assert damage(store.findings) == [], operation
            assert look(store) == promised, operation


# The other ways are part of the long run.
WAYS = [
    (Fsync.ALWAYS, "drop"),
    (Fsync.ALWAYS, "reorder"),
    (Fsync.BATCH, "drop"),
    (Fsync.BATCH, "keep"),
    (Fsync.BATCH, "reorder"),
    (Fsync.BATCH, "kill"),
]
MORE_WAYS = [(Fsync.ALWAYS, "keep"), (Fsync.ALWAYS, "kill")] + [
    (fsync, f"reorder {n}") for n in range(20) for fsync in (Fsync.ALWAYS, Fsync.BATCH)
]


@pytest.mark.parametrize(("fsync", "how"), WAYS + MORE_WAYS * LONG_RUN)
def test_loss_of_power_at_every_operation(fsync: Fsync, how: str) -> None:
    # A kill leaves most for a later loss of power to take: nothing of it was synced.
    reopener = Reopener(fsync, again=how == "kill" or LONG_RUN)
    pictures = record(fsync)
    assert len(pictures) > 300
    first = (WAYS + MORE_WAYS).index((fsync, how)) % STRIDE
    for number, picture in list(enumerate(pictures))[first::STRIDE]:
        rng = random.Random(f"{how}{number}")
        if how == "kill":
            left = picture.disk.killed()
        else:
            left = picture.disk.without_power(how.split()[0], rng)
        reopener.compare(picture, left)


def test_a_second_loss_of_power_while_recovering() -> None:
    reopener = Reopener(Fsync.BATCH, again=LONG_RUN)
    pictures = record(Fsync.BATCH)
    config = StoreConfig(fsync=Fsync.BATCH, **SMALL)  # type: ignore[arg-type]
    tried = 0
    step = 1 if LONG_RUN else len(pictures) // 25
    for number, picture in enumerate(pictures[::step]):
        rng = random.Random(number)
        left = picture.disk.without_power("keep", rng)
        recorder = Recorder(left)
        files = DiskFiles(left)
        files.before = recorder
        open_store(files=files, config=config, clock_ns=ticking(18 * 10**17)).close()
        for again in recorder.pictures:
            again.allowed = picture.allowed
            again.operation = f"{picture.operation}, then {again.operation}"
            reopener.compare(again, again.disk.without_power("reorder", rng))
            tried += 1
    assert tried > 200
