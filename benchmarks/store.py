"""The store against the plain file operations that it is made of.

Each pair of figures comes from the same run on the same disk, in turns, each as the
best of several rounds after one that does not count. The disk is that of the temporary
directory: set TMPDIR to measure another one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks._turns import MIB, collect
from benchmarks.report import Report, format_rate, format_ratio
from lance_spark.store import Fsync, NamedStage, Store, StoreConfig
from lance_spark.store.files import File, Files, OsFile, OsFiles
from lance_spark.wire.lwp import scan

RECORD = b"\x01" + (1019).to_bytes(4, "little") + bytes(1019)
BATCH = RECORD * (MIB // len(RECORD))
SMALL = b"\x01" + (95).to_bytes(4, "little") + bytes(95)
STARTS = scan(BATCH).starts
# Segments and topics of the stores that are opened.
SCALES = ((1_000, 100), (2_500, 250), (5_000, 500), (10_000, 1_000))
QUICK_SCALES = ((500, 50), (2_000, 200))

# Does a piece of work and tells how long the part that counts took.
Contender = Callable[[], float]


class UnsyncedFile(OsFile):
    """A file that leaves syncing to the operating system."""

    def sync(self) -> None:
        """Do nothing."""


class UnsyncedFiles(OsFiles):
    """File operations that never wait for the disk, to make large stores quickly."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        """Open a file."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return UnsyncedFile(os.open(path, flags, 0o644))

    def sync_dir(self, path: Path) -> None:
        """Do nothing."""


class Bench:
    """A directory to work in, and fresh names in it."""

    def __init__(self, path: Path, *, quick: bool) -> None:
        self.path = path
        self.rounds = 2 if quick else 4
        self.batches = 16 if quick else 48
        self._numbers = count()

    def new_path(self) -> Path:
        """Give a path that nothing is at."""
        return self.path / str(next(self._numbers))

    @contextmanager
    def store(self, config: StoreConfig | None = None) -> Iterator[Store]:
        """Open a new store and remove it afterwards."""
        path = self.new_path()
        with Store(path, framing=scan, config=config) as store:
            yield store
        shutil.rmtree(path)

    @contextmanager
    def file(self) -> Iterator[int]:
        """Open a new file and remove it afterwards."""
        path = self.new_path()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            path.unlink()

    def race(self, contenders: Mapping[str, Contender]) -> dict[str, float]:
        """Run contenders in turns; give the best time of each."""
        found = collect(contenders, self.rounds)
        return {name: min(times) for name, times in found.items()}


@contextmanager
def timing(times: list[float]) -> Iterator[None]:
    """Add the time that a block takes to a list."""
    start = time.perf_counter()
    yield
    times.append(time.perf_counter() - start)


def run(report: Report) -> None:
    """Measure appends, reads, commits and openings."""
    with tempfile.TemporaryDirectory(prefix="lance-bench-") as directory:
        bench = Bench(Path(directory), quick=report.quick)
        measure_append(bench, report)
        measure_read(bench, report)
        measure_group_commit(bench, report)
        measure_commit(bench, report)
        measure_open(bench, report)


# Appending large batches.


def measure_append(bench: Bench, report: Report) -> None:
    """Append batches of 1 MiB and write the same bytes to a plain file."""
    none, batch = StoreConfig(fsync=Fsync.NONE), StoreConfig(fsync=Fsync.BATCH)
    always = StoreConfig(fsync=Fsync.ALWAYS)
    contenders: dict[str, Contender] = {
        "raw": lambda: write_raw(bench),
        "raw, sync at end": lambda: write_raw(bench, sync_last=True),
        "raw, sync each": lambda: write_raw(bench, sync_each=True),
        "none": lambda: append(bench, none),
        "none, framed": lambda: append(bench, none, framed=True),
        "batch, wait at end": lambda: append(bench, batch, wait=False),
        "batch": lambda: append(bench, batch),
        "always": lambda: append(bench, always),
    }
    best = bench.race(contenders)
    pairs = [
        ("fsync=none", "none", "write", "raw"),
        ("fsync=none, framed by the store", "none, framed", "write", "raw"),
        (
            "fsync=batch, waiting for the last",
            "batch, wait at end",
            "write all, one fdatasync",
            "raw, sync at end",
        ),
        ("fsync=batch, waiting for each", "batch", "fdatasync each", "raw, sync each"),
        ("fsync=always", "always", "fdatasync each", "raw, sync each"),
    ]
    size = bench.batches * len(BATCH)
    rows = [
        [
            f"{what}; plain file: {against}",
            format_rate(size / best[own], "B"),
            format_rate(size / best[raw], "B"),
            format_ratio(best[raw] / best[own]),
        ]
        for what, own, against, raw in pairs
    ]
    head = ["append, 1 MiB batches", "bytes/s", "plain file, bytes/s", "to plain file"]
    report.add_table(head, rows, "Appending large batches:")


def write_raw(
    bench: Bench, *, sync_each: bool = False, sync_last: bool = False
) -> float:
    """Write the batches to a file."""
    times: list[float] = []
    with bench.file() as file, timing(times):
        for number in range(bench.batches):
            os.pwrite(file, BATCH, number * len(BATCH))
            if sync_each:
                os.fdatasync(file)
        if sync_last:
            os.fdatasync(file)
    return times[0]


def append(
    bench: Bench, config: StoreConfig, *, framed: bool = False, wait: bool = True
) -> float:
    """Append the batches to a topic of a new store."""
    times: list[float] = []
    starts = None if framed else STARTS
    with bench.store(config) as store:
        topic = store.create_topic("bench").metadata.id
        with timing(times):
            for _ in range(bench.batches):
                appended = store.append(topic, BATCH, starts, wait=wait)
            store.wait_durable(topic, appended)
    return times[0]


# Reading.


def measure_read(bench: Bench, report: Report) -> None:
    """Read slices of 1 MiB and the same bytes from the same kind of file."""
    path = bench.new_path()
    with Store(path, framing=scan, config=StoreConfig(fsync=Fsync.NONE)) as store:
        topic = store.create_topic("bench").metadata.id
        for _ in range(bench.batches):
            store.append(topic, BATCH, STARTS)
    with bench.file() as file:
        os.pwrite(file, BATCH * bench.batches, 0)
        contenders: dict[str, Contender] = {
            "raw": lambda: read_raw(bench, file),
            "first": lambda: read_store(path, topic)[0],
            "again": lambda: read_store(path, topic)[1],
        }
        best = bench.race(contenders)
    shutil.rmtree(path)
    size = bench.batches * len(BATCH)
    names = {
        "first": "first time after opening, checksums verified",
        "again": "again",
        "raw": "plain pread",
    }
    rows = [
        [
            text,
            format_rate(size / best[name], "B"),
            format_ratio(best["raw"] / best[name]),
        ]
        for name, text in names.items()
    ]
    head = ["read, 1 MiB slices", "bytes/s", "to pread"]
    report.add_table(head, rows, "Reading what is in the page cache:")


def read_raw(bench: Bench, file: int) -> float:
    """Read a plain file to its end."""
    times: list[float] = []
    with timing(times):
        for number in range(bench.batches):
            os.pread(file, len(BATCH), number * len(BATCH))
    return times[0]


def read_store(path: Path, topic: int) -> list[float]:
    """Read a topic to its end, twice."""
    times: list[float] = []
    with Store(path, framing=scan) as store:
        for _ in range(2):
            with timing(times):
                offset, end = 0, store.view(topic).end.offset
                while offset < end:
                    piece = store.read(topic, offset, len(BATCH))
                    piece.read()
                    offset = piece.end
    return times


# Many small appends, each waited for.


def measure_group_commit(bench: Bench, report: Report) -> None:
    """Append single records of 100 bytes from one and from eight threads."""
    each = 20 if report.quick else 80
    rows = []
    for threads in (1, 8):
        per_thread = each if threads > 1 else 4 * each
        contenders: dict[str, Contender] = {
            fsync.value: partial(append_small, bench, fsync, threads, per_thread)
            for fsync in (Fsync.ALWAYS, Fsync.BATCH)
        }
        best = bench.race(contenders)
        total = threads * per_thread
        rows.append(
            [
                str(threads),
                format_rate(total / best["always"]),
                format_rate(total / best["batch"]),
                format_ratio(best["always"] / best["batch"]),
            ]
        )
    head = ["threads", "always, appends/s", "batch, appends/s", "batch to always"]
    report.add_table(head, rows, "Single records of 100 bytes, each waited for:")


def append_small(bench: Bench, fsync: Fsync, threads: int, per_thread: int) -> float:
    """Append one record after the other from some threads to one topic."""
    times: list[float] = []
    with bench.store(StoreConfig(fsync=fsync)) as store:
        topic = store.create_topic("bench").metadata.id
        store.append(topic, SMALL)

        def work() -> None:
            for _ in range(per_thread):
                store.append(topic, SMALL)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        with timing(times):
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    return times[0]


# Committing a large stage.


def measure_commit(bench: Bench, report: Report) -> None:
    """Commit a stage by taking its file over, and by copying it."""
    contenders: dict[str, Contender] = {
        "adopt": lambda: commit(bench, StoreConfig()),
        "copy": lambda: commit(bench, StoreConfig(stage_adopt_bytes=1 << 40)),
        "raw": lambda: copy_raw(bench),
    }
    best = bench.race(contenders)
    names = {
        "adopt": "adopted by a link",
        "copy": "copied behind the topic's last record",
        "raw": "plain copy of the bytes and fdatasync",
    }
    rows = [
        [text, f"{best[name] * 1000:.3g} ms", format_ratio(best["copy"] / best[name])]
        for name, text in names.items()
    ]
    size = bench.batches * len(BATCH) // MIB
    head = [f"commit of a stage of {size} MiB", "time", "faster than a copy by"]
    report.add_table(head, rows, "Commit of a large stage:")


def commit(bench: Bench, config: StoreConfig) -> float:
    """Fill a stage and time its commit alone."""
    times: list[float] = []
    with bench.store(config) as store:
        store.create_topic("bench")
        stage = store.open_stage("bench", "writer", 1)
        for number in range(1, bench.batches + 1):
            store.append_stage(stage, number, BATCH, STARTS, wait=False)
        store.wait_durable(stage, store.append_stage(stage, number, BATCH, STARTS))
        named = NamedStage(stage, bench.batches, bench.batches * len(BATCH))
        with timing(times):
            store.commit_stages("writer", 1, [named])
    return times[0]


def copy_raw(bench: Bench) -> float:
    """Copy a file of the stage's size."""
    times: list[float] = []
    with bench.file() as source, bench.file() as target:
        os.pwrite(source, BATCH * bench.batches, 0)
        os.fdatasync(source)
        with timing(times):
            for number in range(bench.batches):
                at = number * len(BATCH)
                os.pwrite(target, os.pread(source, len(BATCH), at), at)
            os.fdatasync(target)
    return times[0]


# Opening.


def measure_open(bench: Bench, report: Report) -> None:
    """Open a store that grows, and look at the time per segment."""
    path, rows, smallest = bench.new_path(), [], 0.0
    for segments, topics in QUICK_SCALES if report.quick else SCALES:
        grow_store(path, segments=segments, topics=topics)
        took_s = min(time_open_s(path) for _ in range(bench.rounds))
        per_segment = took_s / segments
        smallest = smallest or per_segment
        rows.append(
            [
                f"{segments} / {topics}",
                f"{took_s:.2f} s",
                f"{per_segment * 1e6:.0f} µs",
                format_ratio(per_segment / smallest),
            ]
        )
    head = ["segments / topics", "opening", "per segment", "to the smallest"]
    report.add_table(head, rows, "Opening a store that was closed:")


def grow_store(path: Path, *, segments: int, topics: int) -> None:
    """Add topics and tiny segments to a store until it has so many, evenly."""
    config = StoreConfig(segment_bytes=1, fsync=Fsync.NONE)
    with Store(path, framing=scan, config=config, files=UnsyncedFiles()) as store:
        for number in range(len(store.topics()), topics):
            store.create_topic(f"topic-{number}")
        for topic in store.topics():
            there = len(store.view(topic.metadata.id).segments)
            for _ in range(there, segments // topics):
                store.append(topic.metadata.id, SMALL)


def time_open_s(path: Path, files: Files | None = None) -> float:
    """Time one opening of a store."""
    times: list[float] = []
    with timing(times):
        store = Store(path, framing=scan, files=files)
    store.close()
    return times[0]
