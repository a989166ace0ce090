"""A disk that can be full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_spark.store.files import File
from lance_spark.testing.disk import ScratchDisk


def make_file(disk: ScratchDisk, path: Path) -> File:
    file = disk.open(path, create=True)
    file.pwrite(b"abc", 0)
    return file


def refused(do: Callable[[], object]) -> bool:
    try:
        do()
    except OSError as error:
        assert error.errno == errno.ENOSPC
        assert error.filename
        return True
    return False


def test_empty_disk_takes_everything(tmp_path: Path) -> None:
    disk = ScratchDisk()
    file = make_file(disk, tmp_path / "a")
    file.truncate(10)
    disk.mkdir(tmp_path / "b")
    assert (file.size(), file.pread(3, 0)) == (10, b"abc")
    file.close()


def test_full_disk_refuses_what_needs_room(tmp_path: Path) -> None:
    disk = ScratchDisk()
    file = make_file(disk, tmp_path / "a")
    disk.fill()
    assert disk.is_full
    assert refused(lambda: file.pwrite(b"d", 3))
    assert refused(lambda: file.pwrite(b"xx", 2))
    assert refused(lambda: file.truncate(4))
    assert refused(lambda: disk.open(tmp_path / "b", create=True))
    assert refused(lambda: disk.mkdir(tmp_path / "c"))
    assert file.pread(10, 0) == b"abc"
    assert sorted(entry.name for entry in disk.list(tmp_path)) == ["a"]
    file.close()


def test_full_disk_takes_what_needs_none(tmp_path: Path) -> None:
    disk = ScratchDisk()
    (tmp_path / "there").mkdir()
    file = make_file(disk, tmp_path / "a")
    disk.fill()
    file.pwrite(b"x", 1)
    file.sync()
    file.truncate(2)
    disk.mkdir(tmp_path / "there")
    file.close()
    assert disk.open(tmp_path / "a", write=False).pread(9, 0) == b"ax"
    disk.replace(tmp_path / "a", tmp_path / "b")
    disk.unlink(tmp_path / "b")


def test_room_is_made(tmp_path: Path) -> None:
    disk = ScratchDisk()
    file = make_file(disk, tmp_path / "a")
    disk.fill()
    with pytest.raises(OSError):
        file.pwrite(b"d", 3)
    disk.free()
    file.pwrite(b"d", 3)
    assert file.pread(9, 0) == b"abcd"
    file.close()
