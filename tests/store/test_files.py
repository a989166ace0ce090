"""The operating system's files; descriptors and room that are kept back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lance_spark.errors import StoreLocked
from lance_spark.store import Store
from lance_spark.store.files import (
    SPARE_FILES,
    DirectoryEntry,
    OsFiles,
    Spare,
    is_out_of_files,
    make_directories,
    read_file,
    remove_if_there,
    remove_tree,
    replace_file,
)
from tests.store.jobs import commit
from tests.store.kit import batch

FILES = OsFiles()


def test_write_and_read(tmp_path: Path) -> None:
    file = FILES.open(tmp_path / "a", create=True)
    file.pwrite(b"hello", 3)
    file.pwrite(memoryview(b"xyz"), 0)
    file.sync()
    assert file.size() == 8
    assert file.pread(8, 0) == b"xyzhello"
    assert file.pread(100, 6) == b"lo"
    assert file.pread(5, 100) == b""
    file.truncate(2)
    assert os.pread(file.fileno(), 10, 0) == b"xy"
    file.close()
    file.close()


def test_an_existing_file_is_not_created_again(tmp_path: Path) -> None:
    FILES.open(tmp_path / "a", create=True).close()
    with pytest.raises(FileExistsError):
        FILES.open(tmp_path / "a", create=True)
    with pytest.raises(FileNotFoundError):
        FILES.open(tmp_path / "b")


def test_a_file_for_reading_only(tmp_path: Path) -> None:
    replace_file(FILES, tmp_path / "a", b"x")
    file = FILES.open(tmp_path / "a", write=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwrite(b"y", 0)
    file.close()


def test_short_reads_and_writes_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, min(n, 3), at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    file = FILES.open(tmp_path / "a", create=True)
    file.pwrite(b"0123456789", 0)
    assert file.pread(10, 0) == b"0123456789"
    assert file.pread(99, 4) == b"456789"
    file.close()


def test_a_file_closes_when_nobody_holds_it(tmp_path: Path) -> None:
    file = FILES.open(tmp_path / "a", create=True)
    descriptor = file.fileno()
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_list(tmp_path: Path) -> None:
    FILES.mkdir(tmp_path / "b")
    FILES.mkdir(tmp_path / "b")
    replace_file(FILES, tmp_path / "c", b"123")
    replace_file(FILES, tmp_path / "a", b"")
    assert FILES.list(tmp_path) == [
        DirectoryEntry("a", False, 0),
        DirectoryEntry("b", True, 0),
        DirectoryEntry("c", False, 3),
    ]
    assert FILES.list(tmp_path / "not there") == []


def test_links_and_names(tmp_path: Path) -> None:
    replace_file(FILES, tmp_path / "a", b"1")
    FILES.link(tmp_path / "a", tmp_path / "b")
    assert os.stat(tmp_path / "a").st_ino == os.stat(tmp_path / "b").st_ino
    FILES.replace(tmp_path / "b", tmp_path / "c")
    FILES.unlink(tmp_path / "a")
    assert [FILES.exists(tmp_path / name) for name in "abc"] == [False, False, True]
    FILES.sync_dir(tmp_path)


def test_directories_are_made_and_removed(tmp_path: Path) -> None:
    make_directories(FILES, tmp_path / "a" / "b" / "c")
    make_directories(FILES, tmp_path / "a" / "b" / "c")
    replace_file(FILES, tmp_path / "a" / "b" / "file", b"1")
    assert FILES.list(tmp_path / "a" / "b" / "c") == []
    remove_tree(FILES, tmp_path / "a")
    remove_tree(FILES, tmp_path / "a")
    assert FILES.list(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        FILES.rmdir(tmp_path / "a")


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert read_file(FILES, path) is None
    (tmp_path / "a.tmp").write_bytes(b"left by a crash")
    replace_file(FILES, path, b"one")
    replace_file(FILES, path, b"two")
    assert read_file(FILES, path) == b"two"
    assert [entry.name for entry in FILES.list(tmp_path)] == ["a"]


def test_removing_what_is_gone(tmp_path: Path) -> None:
    replace_file(FILES, tmp_path / "a", b"1")
    remove_if_there(FILES, tmp_path / "a")
    remove_if_there(FILES, tmp_path / "a")
    assert FILES.list(tmp_path) == []


def test_the_lock_says_who_has_it(tmp_path: Path) -> None:
    lock = FILES.lock(tmp_path / "lock")
    with pytest.raises(StoreLocked, match=f"already in use by process {os.getpid()};"):
        FILES.lock(tmp_path / "lock")
    lock.close()
    FILES.lock(tmp_path / "lock").close()


def test_a_lock_without_a_name_in_it(tmp_path: Path) -> None:
    lock = FILES.lock(tmp_path / "lock")
    lock.truncate(0)
    with pytest.raises(StoreLocked, match="already in use by process unknown"):
        FILES.lock(tmp_path / "lock")
    lock.close()


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("lance_spark.store.files.fcntl.flock", flock)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No locks available"):
        FILES.lock(tmp_path / "lock")
    assert len(os.listdir("/proc/self/fd")) == before


# Descriptors that are kept back, and what they are given up for.


def no_file(code: int = errno.EMFILE) -> OSError:
    return OSError(code, os.strerror(code))


class Scarce(OsFiles):
    """Files of which only so many can be open."""

    def __init__(self, free: int) -> None:
        self.free = free

    def open(self, path, *, create=False, write=True):  # type: ignore[no-untyped-def]
        if not self.free:
            raise no_file()
        self.free -= 1
        return super().open(path, create=create, write=write)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lock"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("code", "out"),
    [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EIO, False)],
)
def test_which_errors_mean_that_no_descriptor_is_free(code: int, out: bool) -> None:
    assert is_out_of_files(no_file(code)) is out


def test_as_many_as_can_be_needed_are_kept_or_it_is_an_error(path: Path) -> None:
    files = Scarce(SPARE_FILES - 1)
    spare = Spare(files, path)
    with pytest.raises(OSError, match="Too many open files"):
        spare.keep()
    files.free = 1
    spare.keep()
    spare.keep()
    assert files.free == 0
    before = len(os.listdir("/proc/self/fd"))
    assert spare.give_up()
    assert len(os.listdir("/proc/self/fd")) == before - SPARE_FILES
    assert not spare.give_up()


def test_a_store_that_is_closed_keeps_none(store: Store) -> None:
    commit(store, "one", "w", 1, batch("a"))
    assert len(store._context.spare._kept) == SPARE_FILES
    store.close()
    assert not store._context.spare.give_up()


def test_the_first_to_lack_one_gets_what_was_kept(path: Path) -> None:
    spare = Spare(OsFiles(), path)
    spare.keep()
    before = len(os.listdir("/proc/self/fd"))
    open_then: list[int] = []

    def need_all() -> None:
        open_then.append(before - len(os.listdir("/proc/self/fd")))
        if open_then[-1] < SPARE_FILES:
            raise no_file()

    spare.insist(need_all)
    assert open_then == [0, SPARE_FILES]


def test_it_is_tried_until_a_descriptor_is_free(path: Path) -> None:
    refusals = [no_file(errno.ENFILE), no_file(), no_file()]

    def do() -> None:
        if refusals:
            raise refusals.pop()

    Spare(OsFiles(), path).insist(do)
    assert not refusals


@pytest.mark.parametrize(
    ("code", "patience_s"), [(errno.EMFILE, 0.0), (errno.EIO, 60.0)]
)
def test_when_it_is_given_up(path: Path, code: int, patience_s: float) -> None:
    tried: list[int] = []

    def do() -> None:
        tried.append(code)
        raise no_file(code)

    with pytest.raises(OSError) as caught:
        Spare(OsFiles(), path, patience_s=patience_s).insist(do)
    assert caught.value.errno == code and len(tried) == 1
