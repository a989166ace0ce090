"""Campaigns against the store's files: a fault at every operation, a flip of every bit.

Both run random histories on a disk in memory. By default a part of one; `make campaign`
goes on for as long as it is told.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import PurePath

import pytest

from lance_spark.errors import Corrupt, LanceError, StoreError, StoreWriteFailed
from lance_spark.store import (
    CommitStatus,
    Fsync,
    Store,
    StoreConfig,
    check_store,
)
from lance_spark.wire.lwp import scan
from tests.campaign import Tally
from tests.store.disk import Disk, DiskFiles
from tests.store.history import Commit, Historian, Refused, State, Step, find
from tests.store.kit import (
    ROOT,
    SMALL,
    batch,
    check_clean,
    damage,
    open_store,
    read_all,
    ticking,
)

pytestmark = pytest.mark.crash

# Of each kind of stage: without files, with files that are copied, and adopted.
MIXED = {**SMALL, "journal_bytes_max": 1024, "stage_inline_bytes": 100}
STEPS = 14
# More than that can't be told apart any more: every failure doubles what may be so.
STATES_MAX = 16
# All that a store has; each of them has to be met.
FILES = {
    *("store.json", "metadata.json", "stage.json"),
    *("consumers.log", "journal.log", "stages.log"),
}
ENDINGS = {".lnc", ".idx"}


def kind_of(path: str) -> str:
    """Say what a file is, in a word; new versions of one are the same."""
    name = PurePath(path).name
    for known in FILES:
        if name.startswith(known):
            return known
    return next((ending for ending in ENDINGS if name.endswith(ending)), "others")


# A fault at every operation.


class Crash(BaseException):
    """The process or the machine is gone: no code may go on."""


class Fault:
    """Lets the n-th operation that changes something fail, and later ones if asked."""

    def __init__(self, disk: Disk, number: int, how: str) -> None:
        self._disk = disk
        self._number = number
        self._code = getattr(errno, how.split()[0], 0)
        self._is_lasting = not self._code or how.endswith("from then on")
        self.operation = ""
        # The files of all operations so far.
        self.paths: list[str] = []
        # What is on the disk when all is over.
        self.left: Disk | None = None

    def __call__(self, operation: str, path: str) -> None:
        self.paths.append(path)
        if len(self.paths) == self._number:
            self.operation = f"{operation} {path}"
            if not self._code:
                self.left = self._disk.clone()
        elif len(self.paths) < self._number or not self._is_lasting:
            return
        if self._code:
            raise OSError(self._code, os.strerror(self._code), path)
        raise Crash


ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EMFILE")
FAULTS = [
    *ERRORS,
    *(f"{error} from then on" for error in ERRORS),
    *("kill", "power drop", "power keep", "power reorder"),
]


# By default so many with each kind of file.
FAULTS_OF_EACH = 12


class Trial:
    """One history with one fault."""

    def __init__(self, seed: str, number: int, how: str, tally: Tally) -> None:
        self._seed = seed
        self._number = number
        rng = random.Random(seed)
        fsync = rng.choice([Fsync.ALWAYS, Fsync.BATCH, Fsync.BATCH, Fsync.NONE])
        self._config = StoreConfig(fsync=fsync, **MIXED)  # type: ignore[arg-type]
        # A loss of power takes what was never synced.
        self._how = "kill" if fsync is Fsync.NONE and "power" in how else how
        self._counts = tally.counts
        self._files = DiskFiles(Disk())
        self._files.before = self.fault = Fault(self._files.disk, number, how)
        self._clock = ticking()
        self._states = [State()]
        self._doubtful: Commit | None = None

    def run(self) -> None:
        try:
            self._live()
            self._recover()
        except AssertionError as error:
            where = f"{self._how} at operation {self._number}"
            raise AssertionError(
                f"{where}, {self.fault.operation}, of history {self._seed!r}: {error}"
            ) from error

    def _open(self) -> Store:
        return open_store(files=self._files, config=self._config, clock_ns=self._clock)

    def _live(self) -> None:
        store = None
        try:
            store = self._open()
            for number, step in enumerate(Historian(self._seed).tell(STEPS)):
                if number == STEPS // 2:
                    store.close()
                    self._files.locks.clear()
                    store = self._open()
                self._do(store, step)
                if len(self._states) > STATES_MAX or self._doubtful:
                    break
            store.close()
        except Crash:
            pass
        except LanceError:
            self._counts["refused"] += 1
        finally:
            self._files.locks.clear()

    def _do(self, store: Store, step: Step) -> None:
        after = [step.after(state) for state in self._states]
        try:
            step.do(store)
        except (Refused, LanceError, Crash) as error:
            if isinstance(error, Refused) or (
                isinstance(error, StoreWriteFailed) and step.is_strict
            ):
                self._counts["refused"] += 1
                return
            self._counts["in doubt"] += 1
            for state in (state for each in after for state in each):
                if state not in self._states:
                    self._states.append(state)
            if step.commit is not None and step.commit.named:
                self._doubtful = step.commit
            if isinstance(error, Crash):
                raise
        else:
            self._counts["acknowledged"] += 1
            self._states = [each[-1] for each in after if each]
            assert self._states, f"{step.text} should not have been possible"

    def _recover(self) -> None:
        self._files.before = lambda operation, name: None
        if self.fault.left is not None:
            how, _, kept = self._how.partition(" ")
            rng = random.Random(f"{self._seed} {self._number}")
            left = self.fault.left
            left = left.killed() if how == "kill" else left.without_power(kept, rng)
            self._files = DiskFiles(left)
        with self._open() as store:
            assert damage(store.findings) == []
            self._check(store)
            if self._doubtful is not None:
                self._states = self._doubtful.settle(store, self._states)
                self._check(store)
            for topic in store.topics():
                store.append(topic.metadata.id, batch("after"))
        check_clean(files=self._files)

    def _check(self, store: Store) -> None:
        found = [(state.find_difference(store), state) for state in self._states]
        fitting = [state for difference, state in found if difference is None]
        assert fitting, " or ".join(str(difference) for difference, _ in found)
        self._states = fitting


@pytest.mark.campaign("faults")
def test_a_fault_at_every_operation(tally: Tally) -> None:
    met: set[str] = set()
    while tally.goes_on():
        seed = f"{tally.seed} {tally.rounds}"
        quiet = Trial(seed, 0, "EIO", Tally("", 0, ""))
        quiet.run()
        tally.counts["histories"] += 1
        for number, how in plan_faults(quiet.fault.paths, tally):
            trial = Trial(seed, number, how, tally)
            trial.run()
            tally.counts["faults"] += 1
            met.add(kind_of(trial.fault.paths[number - 1]))
            if tally.seconds and tally.is_over:
                break
    assert met >= FILES | ENDINGS
    tally.counts["lost"] = tally.counts["doubled"] = 0


def plan_faults(paths: list[str], tally: Tally) -> list[tuple[int, str]]:
    """Pair all operations with all faults; by default, some with each kind of file."""
    pairs = [(n, how) for n in range(1, len(paths) + 1) for how in FAULTS]
    tally.rng.shuffle(pairs)
    if tally.seconds:
        return pairs
    picked: dict[str, list[tuple[int, str]]] = {}
    for number, how in pairs:
        picked.setdefault(kind_of(paths[number - 1]), []).append((number, how))
    return [pair for each in picked.values() for pair in each[:FAULTS_OF_EACH]]


# A flip of every bit.

# All bits of a file are flipped up to this size, and as many at random of a larger one.
FLIPPED_BYTES_MAX = 600
# By default so many bits of each file.
FLIPS = 4


class Picture:
    """A store that was closed or killed, and what is known of it."""

    def __init__(self, seed: str) -> None:
        self.state = State()
        self.last: Commit | None = None
        disk = self.disk = Disk()
        with open_flipped(disk) as store:
            for step in Historian(seed).tell(STEPS):
                step.do(store)
                self.state = step.after(self.state)[-1]
                self.last = step.commit or self.last
            # One that is staged before the flip and done after it.
            self.open = Commit("late", 1, {"one": 3, "late": 2}, [])
            self.open.stage(store)
            killed = disk.killed()
        if random.Random(seed).random() < 0.5:
            self.disk = killed
        with open_flipped(self.disk.clone()) as store:
            # Retention drops what it likes; from now on that is known.
            for name, known in self.state.topics.items():
                start = store.view(find(store, name).metadata.id).start.offset
                exact = replace(known, start=start, start_max=start)
                self.state = self.state.put(name, exact)
            assert self.state.find_difference(store) is None

    def flips(self, tally: Tally) -> list[tuple[str, int]]:
        """Give files and bits of them to flip, in any order."""
        flips = []
        for path, number in sorted(self.disk.seen.items()):
            bits = 8 * len(self.disk.inodes[number].seen) if number else 0
            count = 8 * FLIPPED_BYTES_MAX if tally.seconds else FLIPS
            chosen = tally.rng.sample(range(bits), min(count, bits))
            flips += [(path, bit) for bit in chosen]
        tally.rng.shuffle(flips)
        return flips

    def flipped(self, path: str, bit: int) -> Disk:
        disk = self.disk.clone()
        inode = disk.inodes[disk.seen[path]]
        inode.seen[bit // 8] ^= 1 << bit % 8
        inode.sync()
        return disk


def open_flipped(disk: Disk) -> Store:
    config = StoreConfig(fsync=Fsync.ALWAYS, **MIXED)  # type: ignore[arg-type]
    return open_store(files=DiskFiles(disk), config=config)


class Examination:
    """What is wrong after one flip: nothing, unless it is said so and kept apart."""

    def __init__(self, picture: Picture, path: str, bit: int) -> None:
        self._picture = picture
        self._path = path
        self._disk = picture.flipped(path, bit)
        # What is not as before, and what is worse: it can't be excused by being told.
        self.differences: list[str] = []
        self.faults: list[str] = []
        self._is_told = False

    def run(self) -> None:
        try:
            findings = check_store(ROOT, framing=scan, files=DiskFiles(self._disk))
            is_checked = bool(damage(findings))
            for round_ in ("first", "second"):
                self._look(round_)
        except Exception as error:
            self.faults.append(f"an error of another kind: {error!r}")
            return
        if self.differences and not (is_checked and self._is_told):
            silent = "check" if not is_checked else "the store"
            self.faults.append(f"{silent} says nothing of: {self.differences[0]}")

    def _look(self, round_: str) -> None:
        try:
            store = open_flipped(self._disk)
        except StoreError as error:
            self._is_told = True
            self.differences.append(f"it does not open: {error}")
            if "/segments/" in self._path or "/stages/" in self._path:
                self.faults.append("one topic or stage keeps all others closed")
            return
        with store:
            self._is_told = self._is_told or bool(damage(store.findings))
            if round_ == "second":
                # What was kept until now must outlast this, too.
                store.maintain()
            self._compare(store)
            if round_ == "first":
                self._commit(store)

    def _compare(self, store: Store) -> None:
        state = self._picture.state
        extra = {t.metadata.name for t in store.topics()} - {*state.topics, "late"}
        if extra:
            self.faults.append(f"topics that nobody made: {extra}")
        for name in state.topics:
            self._compare_topic(store, name)
        for (consumer, name), offset in state.offsets.items():
            try:
                topic = find(store, name).metadata.id
            except (StoreError, Refused):
                continue  # Told of above.
            if store.committed_offset(consumer, topic) != offset:
                self.differences.append(f"an offset of {name}")

    def _compare_topic(self, store: Store, name: str) -> None:
        known = self._picture.state.topics[name]
        try:
            topic = find(store, name)
            view = store.view(topic.metadata.id)
            rules = (topic.metadata.retention, topic.metadata.auth)
        except Refused:
            self.faults.append(f"topic {name} is gone")
            return
        except StoreError as error:
            self._is_told = True
            self.differences.append(f"{name} is closed: {error}")
            self._check_concerns(topic_id=None)
            return
        if rules != (known.retention, known.auth):
            self.differences.append(f"the rules of {name}: {rules}")
        start, end = view.start.offset, view.end.offset
        if start != known.start or end < len(known.data):
            self.faults.append(f"{name} is [{start}, {end}) only")
            return
        while start < len(known.data):
            try:
                piece = view.read(start, 1 << 20)
            except Corrupt as error:
                self._is_told = True
                self.differences.append(f"{name}: {error}")
                self._check_concerns(topic.metadata.id)
                start = error.end
                continue
            expected = known.data[start : piece.end]
            if piece.read()[: len(expected)] != expected:
                self.faults.append(f"{name} gives out other bytes at {start}")
            start = piece.end

    def _check_concerns(self, topic_id: int | None) -> None:
        """Check that damage is told of what is damaged, and of nothing else."""
        inside = "/segments/" if topic_id is None else f"/segments/{topic_id}/"
        if inside not in self._path and "/stages/" not in self._path:
            self.faults.append(f"a flip in {self._path} damages another topic")

    def _commit(self, store: Store) -> None:
        """Do again what was done, and what was left to do: once, and in its place."""
        picture = self._picture
        if picture.last is not None:
            try:
                status = picture.last.ask(store)
            except StoreError as error:
                self._is_told = True
                self.differences.append(f"a commit that was done: {error}")
            else:
                if status is not CommitStatus.REPEATED:
                    self.faults.append("a commit is done twice")
        try:
            picture.open.ask(store)
        except StoreError as error:
            self._is_told = True
            self.differences.append(f"a stage: {error}")
        else:
            for name, data in picture.open.data.items():
                try:
                    there = read_all(find(store, name).log)
                except Corrupt:
                    continue  # Of what was there before, and told.
                if not there.endswith(data):
                    self.faults.append(f"{name} does not end with what was staged")


@pytest.mark.campaign("flips")
def test_a_flip_of_every_bit(tally: Tally) -> None:
    wrong: Counter[str] = Counter()
    met: set[str] = set()
    while tally.goes_on():
        picture = Picture(f"{tally.seed} {tally.rounds}")
        tally.counts["stores"] += 1
        for path, bit in picture.flips(tally):
            kind = kind_of(path)
            examined = Examination(picture, path, bit)
            examined.run()
            tally.counts["flips"] += 1
            tally.counts["told"] += bool(examined.differences)
            met.add(kind)
            wrong.update(f"{kind}: {fault}" for fault in examined.faults)
            if tally.seconds and tally.is_over:
                break
    tally.counts["lost, doubled or silent"] = wrong.total()
    assert met >= FILES | ENDINGS
    told = "\n".join(f"{count} {what}" for what, count in wrong.most_common(40))
    assert not wrong, told
