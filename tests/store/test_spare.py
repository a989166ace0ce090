"""Descriptors that are kept back, and what they are given up for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lance_spark.store import Store
from lance_spark.store.files import SPARE_FILES, OsFiles, Spare, is_out_of_files
from tests.store.jobs import commit
from tests.store.kit import batch


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
    assert len(store._spare._kept) == SPARE_FILES
    store.close()
    assert not store._spare.give_up()


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
