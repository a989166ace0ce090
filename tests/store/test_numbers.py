"""Record numbers: they never shift, and none is given out twice.

Random histories of one topic, with damage between closing and opening. What was given
out is known: each record by its number. Whatever is left of a log, a number is that of
the same record, or answers with an error; and a new record has a number that none had.

Besides the topic's metadata, data or indexes are damaged, or both: of one segment
either its data or its index. Where a segment has lost both, nothing says how many
records there were.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from lance_spark.errors import Corrupt
from lance_spark.model import Bounds, Retention
from lance_spark.store import (
    Answers,
    Fsync,
    NamedStage,
    Store,
    StoreConfig,
    View,
    repairing,
)
from lance_spark.wire.lwp import scan
from tests.store.disk import Disk, DiskFiles
from tests.store.kit import ROOT, SMALL, batch, open_store

pytestmark = pytest.mark.crash

SEEDS = 6 if "LANCE_CRASH_ROUNDS" not in os.environ else 40
STEPS = 60
RECORD_BYTES = 45
TOPIC = 1


class Numbers:
    """A store with one topic, and every record that it ever acknowledged."""

    def __init__(self, seed: int, fsync: Fsync, suffix: str | tuple[str, ...]) -> None:
        self.suffix = suffix
        self.rng = random.Random(seed)
        self.files = DiskFiles(Disk())
        self.config = StoreConfig(fsync=fsync, **SMALL)  # type: ignore[arg-type]
        self.given: dict[int, bytes] = {}
        self.damaged: dict[str, str] = {}
        self.sequence = 0
        self.count = 0
        self.store = self.open()
        self.store.create_topic("one")

    def open(self) -> Store:
        return open_store(files=self.files, config=self.config)

    def make(self) -> bytes:
        self.count += 1
        return batch(str(self.count), self.rng.choice([1, 2, 3, 12, 30]))

    def give(self, first: int, data: bytes) -> None:
        assert first > max(self.given, default=-1), "a number is given out twice"
        for number in range(len(data) // RECORD_BYTES):
            at = number * RECORD_BYTES
            self.given[first + number] = data[at : at + RECORD_BYTES]

    # What happens to a log.

    def append(self) -> None:
        data = self.make()
        self.give(self.store.append(TOPIC, data).record, data)

    def commit(self, *overwrite: str) -> None:
        self.sequence += 1
        data, first = self.make(), self.store.view(TOPIC).records.end
        stage = self.store.open_stage("one", "w", self.sequence)
        self.store.append_stage(stage, 1, data)
        named = [NamedStage(stage, 1, len(data))]
        self.store.commit_stages("w", self.sequence, named, overwrite)
        self.give(first, data)

    def overwrite(self) -> None:
        self.commit("one")

    def empty(self) -> None:
        self.sequence += 1
        self.store.commit_stages("w", self.sequence, [], ["one"])

    def retain(self) -> None:
        retention = Retention(max_bytes=self.rng.choice([2000, 4000]))
        self.store.set_retention(TOPIC, retention)
        self.store.maintain()

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def kill(self) -> None:
        self.files = DiskFiles(self.files.disk.killed())
        self.store = self.open()

    def damage(self) -> None:
        """Damage one file of the log while no process has it open."""
        self.store.close()
        directory = ROOT / "segments" / str(TOPIC)
        found = [e.name for e in self.files.list(directory) if e.size]
        names = [n for n in found if n.endswith(self.suffix)]
        # Of one segment only one of the two.
        names = [n for n in names if self.damaged.get(n[:-4], n) == n]
        path = directory / self.rng.choice([*names, "metadata.json"])
        self.damaged[path.stem] = path.name
        # A batch that is cut gets new rows: they hide a flip that came before.
        flip = ["flip"] * (path.suffix != ".lnc")
        kind = self.rng.choice(["cut", "remove", *flip])
        if path.name == "metadata.json":
            self.flip(path)
            self.repair()
        elif kind == "flip":
            self.flip(path)
        elif kind == "cut":
            file = self.files.open(path)
            file.truncate(self.rng.randrange(file.size()))
        else:
            self.files.unlink(path)
        self.store = self.open()

    def flip(self, path: Path) -> None:
        file = self.files.open(path)
        at = self.rng.randrange(file.size())
        byte = file.pread(1, at)[0] ^ 1 << self.rng.randrange(8)
        file.pwrite(bytes((byte,)), at)

    def repair(self) -> None:
        answers = Answers({TOPIC: "one"}, {TOPIC: Retention()}, {TOPIC: None})
        with repairing(ROOT, answers, framing=scan, files=self.files) as steps:
            for step in steps:
                assert step.run is not None, step.text
                step.run()

    # What is seen of it.

    def compare(self) -> None:
        view = self.store.view(TOPIC)
        bounds = view.records
        assert bounds.end > max(self.given, default=-1), "the end has gone back"
        for number in self.sample(bounds):
            try:
                found = view.locate_record(number)
            except Corrupt:
                continue
            if found.record != number:
                # The bytes are lost, and so is the number of what was there.
                assert not self.is_readable(view, number)
                continue
            try:
                data = view.read(found.offset, 1).read()
            except Corrupt:
                continue
            assert self.given[number] == data[:RECORD_BYTES], f"record {number} differs"

    @staticmethod
    def is_readable(view: View, number: int) -> bool:
        found = view.locate_record(number)
        return found.record <= number < view.locate_offset(found.offset + 1).record

    def sample(self, bounds: Bounds) -> list[int]:
        numbers = range(bounds.start, bounds.end)
        ends = [*numbers[:3], *numbers[-3:]]
        return ends + self.rng.sample(numbers, min(20, len(numbers)))


@pytest.mark.parametrize("fsync", [Fsync.BATCH, Fsync.NONE])
@pytest.mark.parametrize("suffix", [".lnc", ".idx", (".lnc", ".idx")])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_numbers_never_shift(
    seed: int, suffix: str | tuple[str, ...], fsync: Fsync
) -> None:
    numbers = Numbers(seed, fsync, suffix)
    kinds = [
        *[numbers.append] * 8,
        *[numbers.commit] * 3,
        *[numbers.overwrite, numbers.empty, numbers.retain],
        *[numbers.reopen, numbers.kill],
        *[numbers.damage] * 3,
    ]
    for _ in range(STEPS):
        numbers.rng.choice(kinds)()
        numbers.compare()
    numbers.store.close()


def lose(store: Store, *lost: tuple[int, str]) -> Store:
    """Remove files of segments, by number and ending, while the store is closed."""
    store.close()
    directory = ROOT / "segments" / str(TOPIC)
    for entry in store._files.list(directory):
        number, _, rest = entry.name.partition("_")
        if (number, rest[-4:]) in [(str(n), suffix) for n, suffix in lost]:
            store._files.unlink(directory / entry.name)
    return open_store(files=store._files, config=store.config)


def number_all(store: Store) -> dict[int, bytes]:
    """Read each record that can be read, by its number."""
    view, found = store.view(TOPIC), {}
    for number in range(view.records.end):
        try:
            place = view.locate_record(number)
            if place.record == number:
                found[number] = view.read(place.offset, 1).read()[:RECORD_BYTES]
        except Corrupt:
            continue
    return found


def fill(files: DiskFiles, *sizes: int) -> Store:
    """Make a topic with a segment for each number of records."""
    store = open_store(files=files, config=StoreConfig(segment_bytes=1))
    store.create_topic("one")
    for size in sizes:
        store.append(TOPIC, batch("a", size))
    return store


def test_a_segment_knows_what_it_lost_also_without_its_successor(
    files: DiskFiles,
) -> None:
    """First the data of a segment is lost, and later the index of the one behind it."""
    store = fill(files, 5, 20, 100)
    left = {n: data for n, data in number_all(store).items() if not 5 <= n < 25}
    store = lose(store, (1, ".lnc"))
    for _ in range(3):
        assert number_all(store) == left
        store = lose(store, (2, ".idx"))
    assert number_all(store) == left
    assert store.append(TOPIC, batch("d", 1)).record == 125
    store.close()


def test_the_last_segment_that_lost_data(files: DiskFiles) -> None:
    """As many numbers are left out as it lost bytes, and those behind it stay."""
    store = lose(fill(files, 5, 20), (1, ".lnc"))
    assert store.append(TOPIC, batch("b", 10)).record == 5 + 20 * RECORD_BYTES
    before = number_all(store)
    assert len(before) == 15
    store = lose(store, (2, ".idx"))
    assert number_all(store) == before
    store.close()


def test_without_a_count_the_next_segment_is_numbered_above_all(
    files: DiskFiles,
) -> None:
    """The data of a segment and all indexes that tell what it held are lost at once."""
    store = fill(files, 1, 100, 200)
    before = number_all(store)
    store = lose(store, (0, ".lnc"), (1, ".idx"), (2, ".idx"))
    for _ in range(3):
        after = number_all(store)
        assert list(after.values()) == list(before.values())[1:]
        assert min(after) > max(before)
        store.close()
        store = open_store(files=files, config=store.config)
    with pytest.raises(Corrupt):  # The numbers between are those of lost records.
        store.view(TOPIC).locate_record(30)
    assert store.append(TOPIC, batch("d", 1)).record == max(after) + 1
    store.close()


def test_records_whose_numbers_are_lost_have_none(files: DiskFiles) -> None:
    """They are read by offset. The numbers behind them stay what they are."""
    store = fill(files, 5, 20, 100)
    left = {n: data for n, data in number_all(store).items() if n >= 25}
    names = [e.name for e in files.list(ROOT / "segments" / str(TOPIC))]
    [name] = [n for n in names if n.startswith("1_") and n.endswith(".lnc")]
    files.open(ROOT / "segments" / str(TOPIC) / name).truncate(100)
    store = lose(store, (0, ".lnc"), (1, ".idx"))
    for _ in range(3):
        assert number_all(store) == left
        assert store.read(TOPIC, 5 * RECORD_BYTES, 90).records == 2
        assert store.locate(TOPIC, 6 * RECORD_BYTES).record == 25
        store = lose(store)
    store.close()
