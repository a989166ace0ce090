"""From format 1 to format 2, also if a crash or a full disk comes in between."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_spark.errors import StoreError, StoreWriteFailed
from lance_spark.model import Retention
from lance_spark.store import NamedStage, Store
from lance_spark.store.files import read_file
from tests.store.disk import DIRECTORY, Disk, DiskFiles, Inode
from tests.store.jobs import hooked, refusing
from tests.store.kit import ROOT, batch, check_clean, look, open_store
from tests.store.test_frozen import FROZEN


@pytest.fixture
def old() -> DiskFiles:
    """The data directory of release 0.1.0, on a disk in memory."""
    disk = Disk()
    disk.seen[str(ROOT)] = DIRECTORY
    for path in sorted(FROZEN.rglob("*")):
        name = str(ROOT / path.relative_to(FROZEN))
        if path.is_dir():
            disk.seen[name] = DIRECTORY
        else:
            data = path.read_bytes()
            disk.inodes[disk.next_inode] = Inode(bytearray(data), data)
            disk.seen[name] = disk.next_inode
            disk.next_inode += 1
    disk.durable = dict(disk.seen)
    return DiskFiles(disk)


def formats(files: DiskFiles) -> dict[str, int]:
    """The format of each small file, by name."""
    found = {}
    for name, number in files.disk.seen.items():
        data = bytes(files.disk.inodes[number].seen) if number else b""
        if name.endswith(".json"):
            found[name] = json.loads(data)["format"]
        elif name.endswith(".log"):
            found[name] = data[8]
    return found


def is_upgrading(files: DiskFiles) -> bool:
    data = read_file(files, ROOT / "store.json") or b""
    return bool(json.loads(data)["upgrading"])


def test_opening_gives_every_file_a_checksum(old: DiskFiles) -> None:
    assert set(formats(old).values()) == {1}
    with open_store(files=old) as store:
        assert store.findings == []
        assert set(formats(old).values()) == {2}
        assert not is_upgrading(old)
    check_clean(files=old)


def test_format_1_is_checked_before_it_is_upgraded(old: DiskFiles) -> None:
    check_clean(files=old)


@pytest.mark.parametrize("how", ["killed", "drop", "keep"])
def test_an_upgrade_that_a_crash_interrupts(old: DiskFiles, how: str) -> None:
    """The identity says format 2 before any other file does; the rest follows."""
    left: list[DiskFiles] = []

    def hook(operation: str, name: str) -> None:
        disk = old.disk
        if how != "killed":
            left.append(DiskFiles(disk.without_power(how, random.Random(len(left)))))
        else:
            left.append(DiskFiles(disk.killed()))

    with hooked(old, hook):
        store = open_store(files=old)
    known = look(store)
    store.close()
    assert len(left) > 30
    for files in left:
        found = formats(files)
        if 2 in found.values():
            assert found["/data/store.json"] == 2
        if 1 in found.values() and found["/data/store.json"] == 2:
            assert is_upgrading(files)
        with open_store(files=files) as again:
            assert look(again) == known
            assert set(formats(files).values()) == {2}
        check_clean(files=files)


def test_a_file_of_format_1_is_damage_once_the_upgrade_is_over(old: DiskFiles) -> None:
    path = ROOT / "segments/1/metadata.json"
    data = read_file(old, path) or b""
    open_store(files=old).close()
    old.open(path).truncate(0)
    old.open(path).pwrite(data, 0)
    with open_store(files=old) as store:
        assert "it has format 1 and no checksum" in str(store.closed(1))


def test_a_full_disk_keeps_nothing_from_being_read(old: DiskFiles) -> None:
    def full(operation: str, name: str) -> None:
        if operation == "pwrite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    whole = DiskFiles(old.disk.clone())
    with open_store(files=whole) as store:
        known = look(store)
    with hooked(old, full):
        store = open_store(files=old)
        assert set(formats(old).values()) == {1}
        assert look(store) == known
        assert any("no room" in f.text for f in store.findings)
        store.delete_topic(2)
        (waiting,) = store.stages()
        named = NamedStage(waiting.metadata.id, 1, waiting.size)
        for refused in (
            lambda: store.create_topic("new"),
            lambda: store.commit_offset(1, 1, 45),
            lambda: store.commit_stages("job-1", 8, [named]),
        ):
            with pytest.raises(StoreWriteFailed):
                refused()
        assert formats(old)["/data/store.json"] == 1
    store.commit_offset(1, 1, 45)  # There is room again.
    assert formats(old)["/data/store.json"] == 2 and is_upgrading(old)
    store.commit_stages("job-1", 8, [named])
    store.create_topic("new")
    store.append(1, batch("z"))
    store.close()
    open_store(files=old).close()
    assert not is_upgrading(old)
    assert set(formats(old).values()) == {2}
    check_clean(files=old)


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.set_retention(1, Retention(5, 5)),
        lambda store: store.open_stage("events", "w", 1),
        lambda store: store.commit_offset(1, 1, 45),
        lambda store: store.abort_stages("nobody", 1),
        lambda store: store.commit_stages("job-9", 1, [], ["events"]),
    ],
)
def test_no_file_is_new_before_the_identity_says_so(
    old: DiskFiles, write: Callable[[Store], object]
) -> None:
    """Also not if there is room only after the opening."""
    with refusing(old, "pwrite", "/data", code=errno.ENOSPC):
        store = open_store(files=old)
    assert set(formats(old).values()) == {1}

    def hook(operation: str, name: str) -> None:
        found = formats(old)
        assert found["/data/store.json"] == 2 or 2 not in found.values()

    with hooked(old, hook):
        write(store)
        hook("", "")
    store.close()
    open_store(files=old).close()
    assert set(formats(old).values()) == {2}


def test_a_disk_that_fails_is_not_a_full_one(old: DiskFiles) -> None:
    old.mkdir(ROOT / "segments" / "notes")
    with (
        refusing(old, "pwrite", "store.json"),
        pytest.raises(StoreError, match="could not open"),
    ):
        open_store(files=old)
    open_store(files=old).close()
    assert set(formats(old).values()) == {2}


def test_a_damaged_file_of_format_1_is_left_alone(old: DiskFiles) -> None:
    path = Path("/data/segments/1/metadata.json")
    old.open(path).truncate(40)
    data = read_file(old, path)
    with open_store(files=old) as store:
        assert store.closed(1) is not None
        assert not is_upgrading(old)
    assert read_file(old, path) == data
