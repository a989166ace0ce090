"""Every way to damage an index: nothing is lost, or both opening and checker say so.

Each index file of a topic, the first, a middle and the last one, is harmed in one place
at a time, under each policy, after a kill and after a proper end: each bit is flipped,
each row, sector and tail becomes zeros or noise, and the file is cut at every place.
All batches of these stores were acknowledged, so none may be called unacknowledged.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from lance_spark.errors import Corrupt
from lance_spark.store import Finding, Fsync, Store, StoreConfig, check_store
from lance_spark.store.format import HEADER_BYTES, ROW_BYTES
from lance_spark.wire.lwp import scan
from tests.store.disk import SECTOR, Disk, DiskFiles
from tests.store.kit import ROOT, SMALL, batch, check_clean, damage, open_store

pytestmark = pytest.mark.crash

# `make crash` does all of it; otherwise it is one of so many.
LONG_RUN = "LANCE_CRASH_ROUNDS" in os.environ
FLIP_STEP, OTHER_STEP = (1, 1) if LONG_RUN else (151, 5)
# The header's bytes before the first mark are covered by its checksum.
MARKS = range(64, HEADER_BYTES)


class Left(NamedTuple):
    """A disk with a topic on it, whose indexes are about to be harmed."""

    disk: Disk
    data: bytes
    records: int
    indexes: tuple[str, ...]


def config(fsync: Fsync) -> StoreConfig:
    return StoreConfig(fsync=fsync, **{**SMALL, "segment_bytes": 800})  # type: ignore[arg-type]


@functools.cache
def left_behind(fsync: Fsync, end: str) -> Left:
    """Fill three segments, and end by a kill, properly, or by a kill after that."""
    store = open_store(files=DiskFiles(Disk()), config=config(fsync))
    store.create_topic("one")
    parts = [batch(f"batch{n}", 1 + n % 4) for n in range(19)]
    for number, data in enumerate(parts):
        if end == "killed later" and number == 17:
            store.close()
            store = open_store(files=store._files, config=config(fsync))
        store.append(1, data)
    if end == "closed":
        store.close()
    assert isinstance(store._files, DiskFiles)
    disk = store._files.disk.killed()
    names = sorted(n for n in disk.seen if "/segments/1/" in n and n.endswith(".idx"))
    assert len(names) == 3
    data = b"".join(parts)
    return Left(disk, data, len(data) // 45, tuple(names))


class Harm(NamedTuple):
    """What is done to a file: the new content of a range, or a shorter length."""

    what: str
    start: int
    new: bytes | None


def harms(content: bytes, rng: random.Random) -> Iterator[Harm]:
    for bit in range(rng.randrange(FLIP_STEP), len(content) * 8, FLIP_STEP):
        flipped = bytes([content[bit // 8] ^ 1 << bit % 8])
        yield Harm(f"bit {bit % 8} flipped", bit // 8, flipped)
    yield from list(other_harms(len(content), rng))[
        rng.randrange(OTHER_STEP) :: OTHER_STEP
    ]


def other_harms(size: int, rng: random.Random) -> Iterator[Harm]:
    rows = range(HEADER_BYTES, size, ROW_BYTES)
    for start in [0, *rows, *range(0, size, SECTOR)]:
        length = SECTOR if start % SECTOR == 0 else ROW_BYTES
        length = min(length, size - start)
        yield Harm("zeros", start, bytes(length))
        yield Harm("noise", start, rng.randbytes(length))
    for start in range(0, size, 16):
        yield Harm("zeros to the end", start, bytes(size - start))
        yield Harm("cut", start, None)


def harmed(left: Left, index: str, harm: Harm) -> DiskFiles:
    disk = left.disk.clone()
    inode = disk.inodes[disk.seen[index]]
    if harm.new is None:
        inode.truncate(harm.start)
    else:
        inode.write(harm.start, harm.new)
    return DiskFiles(disk)


def read_what_is_there(store: Store, expected: bytes) -> int:
    """Read a topic; tell how many bytes of it are lost. None may be wrong."""
    view, offset, lost = store.view(1), 0, 0
    while offset < view.end.offset:
        try:
            piece = view.read(offset, 10**6)
        except Corrupt as error:
            assert error.start <= offset < error.end
            lost, offset = lost + error.end - offset, error.end
            continue
        assert piece.read() == expected[offset : piece.end]
        offset = piece.end
    return lost + len(expected) - offset


def texts(findings: list[Finding]) -> str:
    return "\n".join(map(str, findings))


def compare(left: Left, index: str, harm: Harm, fsync: Fsync) -> None:
    files = harmed(left, index, harm)
    checked = check_store(ROOT, framing=scan, files=files)
    with open_store(files=files, config=config(fsync)) as store:
        opened = store.findings
        lost = read_what_is_there(store, left.data)
        if not lost:
            assert store.view(1).end.record == left.records
            times = [store.view(1).locate_record(n) for n in range(left.records)]
            assert [place.offset // 45 for place in times] == list(range(left.records))
            ns = [place.append_time_ns for place in times]
            assert ns == sorted(ns)
        assert "acknowledged" not in texts([*checked, *store.findings])
        assert store.append(1, batch("more")).start == store.view(1).end.offset - 135
    if lost and harm.new is None and fsync is Fsync.NONE:
        # A kill that came between the two writes of an append leaves the same.
        assert "no index row" in texts(opened) and "cuts" in texts(checked)
        return
    if lost:
        assert damage(opened) and damage(checked)
    covered = harm.start not in MARKS and not changes_nothing(left, index, harm)
    assert bool(damage(checked)) or not covered
    if not lost and not damage(opened):
        check_clean(files=files)


def changes_nothing(left: Left, index: str, harm: Harm) -> bool:
    content = left.disk.inodes[left.disk.seen[index]].seen
    if harm.new is None:
        return harm.start == len(content)
    return content[harm.start : harm.start + len(harm.new)] == harm.new


@pytest.mark.parametrize("end", ["killed", "closed", "killed later"])
@pytest.mark.parametrize("fsync", list(Fsync))
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_every_harm_of_an_index(segment: int, fsync: Fsync, end: str) -> None:
    left = left_behind(fsync, end)
    index = left.indexes[segment]
    content = bytes(left.disk.inodes[left.disk.seen[index]].seen)
    rng = random.Random(f"{segment}{fsync}{end}")
    tried = 0
    for harm in harms(content, rng):
        try:
            compare(left, index, harm, fsync)
        except AssertionError as error:
            raise AssertionError(f"{harm.what} at {harm.start} of {index}") from error
        tried += 1
    assert tried > (2_000 if LONG_RUN else 40)
