"""Offset stores: what is remembered, for whom, and who else may."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lance_spark.client.lwp.offsets import (
    BrokerOffsetStore,
    Incarnation,
    IncarnationStore,
    LockFileOffsetStore,
    MemoryOffsetStore,
    OffsetStore,
    consumer_id,
)
from lance_spark.errors import LanceError, OptionError
from tests.child import Child
from tests.client.kit_flow import FakeLog


@pytest.fixture(params=["memory", "file", "broker"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OffsetStore]:
    """Each kind of store, held to one behaviour."""
    client: Any = FakeLog()
    made: OffsetStore = {
        "memory": MemoryOffsetStore,
        "file": lambda: LockFileOffsetStore(tmp_path),
        "broker": lambda: BrokerOffsetStore(client),
    }[request.param]()
    yield made
    made.close()


# All of them.


def test_remembers_per_consumer_and_topic(store: OffsetStore) -> None:
    assert store.load("a", "events") is None
    store.save("a", "events", 10)
    store.save("b", "events", 20)
    store.save("a", "logs", 30)
    store.save("a", 9, 40)
    assert store.load("a", "events") == 10
    assert store.load("b", "events") == 20
    assert store.load("a", "logs") == 30
    assert store.load("a", 9) == 40
    assert store.load("a", "9") is None
    assert store.load("b", "logs") is None


def test_the_last_one_counts(store: OffsetStore) -> None:
    for offset in (5, 2**64 - 1, 0):
        store.save("a", "events", offset)
        assert store.load("a", "events") == offset


@pytest.mark.parametrize("offset", [-1, 2**64])
def test_refuses_what_is_no_offset(store: OffsetStore, offset: int) -> None:
    with pytest.raises(OptionError, match="not an offset"):
        store.save("a", "events", offset)
    assert store.load("a", "events") is None


def test_broker_store_uses_the_consumers_number() -> None:
    client: Any = FakeLog()
    BrokerOffsetStore(client).save("billing", "events", 99)
    assert client.committed == {(7, consumer_id("billing")): 99}


def test_broker_store_uses_the_id_that_the_offset_belongs_to() -> None:
    client: Any = FakeLog()
    # Under the name there is another topic by now.
    store = BrokerOffsetStore(client)
    store.identify("billing", "events", Incarnation(3, 1_700_000_000))
    store.save("billing", "events", 99)
    assert client.committed == {(3, consumer_id("billing")): 99}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_the_incarnation_is_kept(kind: str, tmp_path: Path) -> None:
    memory = MemoryOffsetStore()

    def make() -> IncarnationStore:
        return memory if kind == "memory" else LockFileOffsetStore(tmp_path)

    incarnation = Incarnation(2**32 - 1, 2**64 - 1)
    store = make()
    assert isinstance(store, IncarnationStore)
    store.save("a", "other", 5)
    store.identify("a", "events", incarnation)
    assert store.load_incarnation("a", "events") is None
    store.save("a", "events", 2**64 - 1)
    store.close()
    store = make()
    assert store.load("a", "events") == 2**64 - 1
    assert store.load_incarnation("a", "events") == incarnation
    assert store.load_incarnation("a", "other") is None
    store.close()


# Files.


def test_offsets_survive(tmp_path: Path) -> None:
    with LockFileOffsetStore(tmp_path / "deep" / "down") as store:
        store.save("a", "events", 12345)
    with LockFileOffsetStore(tmp_path / "deep" / "down") as store:
        assert store.load("a", "events") == 12345


def test_the_file_is_text_for_people(tmp_path: Path) -> None:
    with LockFileOffsetStore(tmp_path) as store:
        store.save("billing", "events", 12345)
        path = tmp_path / "billing@events.offset"
        assert path.read_text() == "v2 12345 056a0eb0\n"
        store.identify("billing", "events", Incarnation(7, 1706918400))
        store.save("billing", "events", 12345)
        assert path.read_text() == "v2 12345 7@1706918400 6bfb6483\n"


@pytest.mark.parametrize("content", [b"12345\n", b"12345 7@1706918400\n"])
def test_files_of_earlier_releases_are_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a@events.offset").write_bytes(content)
    with LockFileOffsetStore(tmp_path) as store:
        assert store.load("a", "events") == 12345


@pytest.mark.parametrize(
    ("offset", "incarnation"),
    [(12345, None), (12345, Incarnation(7, 1706918400)), (2**64 - 1, None)],
)
def test_no_flipped_bit_and_no_cut_is_another_offset(
    tmp_path: Path, offset: int, incarnation: Incarnation | None
) -> None:
    path = tmp_path / "a@events.offset"
    with LockFileOffsetStore(tmp_path) as store:
        if incarnation is not None:
            store.identify("a", "events", incarnation)
        store.save("a", "events", offset)
        good = path.read_bytes()
        flips = (1 << bit for bit in range(len(good) * 8))
        number = int.from_bytes(good, "big")
        spoiled = [(number ^ flip).to_bytes(len(good), "big") for flip in flips]
        for content in (*spoiled, *(good[:size] for size in range(len(good)))):
            path.write_bytes(content)
            with pytest.raises(LanceError, match="is damaged or not an offset"):
                store.load("a", "events")


NAMES = [
    "plain-name_1.x",
    "a/b",
    "../../etc/passwd",
    ".",
    "..",
    "~",
    "a@b",
    "a%2fb",
    "Upper",
    "upper",
    "größe 測試",
    "new\nline",
    "nul\0",
    "#7",
    "x" * 255,
    "x" * 254 + "y",
    "測" * 85,
    "\ud800",
]


def test_no_two_names_share_a_file_and_none_leaves_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hundreds of syncs take seconds, and this is about names.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    inside = tmp_path / "inside"
    pairs = [(a, b) for a in NAMES for b in [*NAMES, 7]]
    with LockFileOffsetStore(inside) as store:
        for number, (consumer, topic) in enumerate(pairs):
            store.save(consumer, topic, number)
        for number, (consumer, topic) in enumerate(pairs):
            assert store.load(consumer, topic) == number
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    stems = {path.stem.lower() for path in inside.glob("*.offset")}
    assert len(stems) == len(pairs), "also where A and a are the same"
    assert max(len(name) for name in os.listdir(inside)) <= 255


@pytest.mark.parametrize(("consumer", "topic"), [("", "events"), ("a", "")])
def test_empty_names(tmp_path: Path, consumer: str, topic: str) -> None:
    with LockFileOffsetStore(tmp_path) as store, pytest.raises(OptionError):
        store.load(consumer, topic)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        b"-1",
        b"1.5",
        b"12 34",
        b"12 34@",
        b"12 34@56 ",
        b"12  34@56",
        b"12 34@-5",
        b"1_000",
        b" 12",
        b"12\n\n",
        "\u0661".encode(),
        b"18446744073709551616",
        b"9" * 1_000_000,
    ],
)
def test_bad_content_is_told_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a@events.offset"
    path.write_bytes(content)
    with LockFileOffsetStore(tmp_path) as store:
        with pytest.raises(LanceError, match=r"a@events\.offset.*offset_reset"):
            store.load("a", "events")
        assert path.read_bytes() == content
        # Whoever knows the right offset can mend it.
        store.save("a", "events", 3)
        assert store.load("a", "events") == 3


def test_content_without_a_newline_is_good(tmp_path: Path) -> None:
    (tmp_path / "a@events.offset").write_bytes(b"18446744073709551615")
    with LockFileOffsetStore(tmp_path) as store:
        assert store.load("a", "events") == 2**64 - 1


def test_a_save_that_fails_leaves_the_last_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with LockFileOffsetStore(tmp_path) as store:
        store.save("a", "events", 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(OptionError, match="No space left"):
                store.save("a", "events", 2)
        assert store.load("a", "events") == 1
        # What the failure left behind is in nobody's way.
        store.save("a", "events", 3)
        assert store.load("a", "events") == 3


def test_a_new_offset_takes_the_place_of_the_old_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("sync")
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> Path:
        assert source.read_bytes().startswith(b"v2 2 ")
        assert target.read_bytes().startswith(b"v2 1 ")
        steps.append("replace")
        return real_replace(source, target)

    with LockFileOffsetStore(tmp_path) as store:
        store.save("a", "events", 1)
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)
        store.save("a", "events", 2)
    assert steps == ["sync", "replace", "sync"]


# Locks.


def test_a_second_store_is_told_who_is_in_the_way(tmp_path: Path) -> None:
    with LockFileOffsetStore(tmp_path) as first, LockFileOffsetStore(tmp_path) as other:
        first.save("a", "events", 1)
        with pytest.raises(OptionError, match=r"'a' in topic 'events'.*in use"):
            other.load("a", "events")
        with pytest.raises(OptionError, match="in use"):
            other.save("a", "events", 2)
        # Other consumers and topics are free.
        other.save("b", "events", 3)
        other.save("a", "logs", 4)
        assert first.load("a", "events") == 1


def test_close_lets_others_in(tmp_path: Path) -> None:
    first = LockFileOffsetStore(tmp_path)
    first.save("a", "events", 1)
    first.close()
    first.close()
    with LockFileOffsetStore(tmp_path) as other:
        assert other.load("a", "events") == 1
    with pytest.raises(LanceError, match="closed"):
        first.load("a", "events")


_HOLDER = """
import sys
from lance_spark.client.lwp.offsets import LockFileOffsetStore
store = LockFileOffsetStore(sys.argv[1])
store.save("a", "events", 42)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_of_another_process(tmp_path: Path) -> None:
    with Child(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        with LockFileOffsetStore(tmp_path) as store:
            with pytest.raises(OptionError, match="another process"):
                store.load("a", "events")
            # Even one that is killed has left what it saved, and its lock is gone.
            holder.kill()
            holder.wait(60)
            assert store.load("a", "events") == 42


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with LockFileOffsetStore(path) as store:
        with pytest.raises(OptionError, match="directory that it may write"):
            store.load("a", "events")
        with pytest.raises(OptionError, match="save an offset"):
            store.save("a", "events", 1)


def test_a_lock_that_fails_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    refused = pytest.raises(OptionError, match="No locks available")
    with LockFileOffsetStore(tmp_path) as store, refused:
        store.load("a", "events")


# The number of a consumer's name.


def test_is_fixed_for_ever() -> None:
    # Computed with sha256sum; a change here loses every offset that was committed.
    assert consumer_id("billing") == 0x971ACEE1ECC7950C
    assert consumer_id("größe") == 0xFFAF671B67A253D3


def test_is_the_start_of_the_hash() -> None:
    digest = hashlib.sha256(b"a").digest()
    assert consumer_id("a") == int.from_bytes(digest[:8], "little")


def test_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def digest(self) -> bytes:
            return bytes(32)

    monkeypatch.setattr(hashlib, "sha256", lambda data: Zeros())
    assert consumer_id("unlucky") == 1


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_refuses_what_has_no_utf8(name: str) -> None:
    with pytest.raises(OptionError):
        consumer_id(name)
