"""Commits on a disk that fails or hangs, with a real client and broker.

The client asks again until the broker is started again and knows, or until its time is
up, and says so then. A commit that is known to have failed is written anew by another
writer, as a batch write of Spark's is. Every row is there once in the end.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer, StageWriter
from lance_spark.client.config import Runtime
from lance_spark.errors import (
    CommitUnknownError,
    StageNotFound,
    StorageError,
    UnknownError,
)
from lance_spark.wire.lwp import CommitStatus, StageContent
from tests.integration.kit import PATIENCE_S, QUICK, make_client, read_values
from tests.integration.proxy import CLEAR, Fate, Flow, Proxy
from tests.store.seam import SeamFiles

# `make crash` asks for the long run.
LONG_RUN = "LANCE_CRASH_ROUNDS" in os.environ

ROWS = {"old": [b"a", b"b"], "new": [b"c"]}
Pause = Callable[[Any, float], object]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="lance_spark")


@dataclass
class Scene:
    """A broker on a disk that fails on demand."""

    broker: EmbeddedBroker
    files: SeamFiles
    restarts: int = 0
    changes: list[str] = field(default_factory=list)

    def fail(self, number: int, code: int = errno.EIO) -> None:
        """Refuse the n-th change from now on."""
        self.changes.clear()

        def before(operation: str, name: str) -> None:
            self.changes.append(f"{operation} {name}")
            if len(self.changes) == number:
                raise OSError(code, os.strerror(code), name)

        self.files.before = before

    def restart(self, *_: object) -> None:
        """Mend the disk and start the broker again: the client waits meanwhile."""
        self.restarts += 1
        self.files.before = lambda operation, name: None
        self.broker.stop()
        self.broker.start()

    def client(self, pause: Pause) -> LanceClient:
        """Make a client that does something instead of waiting for its next try."""
        return LanceClient(self.broker.address, runtime=Runtime(pause=pause), **QUICK)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    files = SeamFiles()
    with EmbeddedBroker(data_dir=str(tmp_path), files=files) as broker:
        with make_client(broker.address) as client:
            client.create_topic("old")
        yield Scene(broker, files)


def stage(
    client: LanceClient, writer: str, sequence: int, *, new: str = "new"
) -> list[StageContent]:
    contents = []
    for topic, values in (("old", ROWS["old"]), (new, ROWS["new"])):
        with StageWriter(client, topic, writer, sequence) as stage_writer:
            for value in values:
                stage_writer.send(value)
            contents.append(stage_writer.finish(PATIENCE_S))
    return contents


def list_changes(scene: Scene) -> list[str]:
    """Name all that a commit changes on the disk; the second, when all is made."""
    for sequence in (1, 2):
        with scene.client(scene.restart) as client:
            contents = stage(client, "count", sequence, new=f"count-{sequence}")
            scene.fail(0)
            client.commit_stages("count", sequence, contents)
    return list(scene.changes)


def test_rows_are_there_once_wherever_the_disk_fails(scene: Scene) -> None:
    """One commit after the other; each time another operation fails."""
    changes = list_changes(scene)
    times, told = 2, {"known": 0, "unknown": 0, "refused": 0}
    journal = [n for n, name in enumerate(changes, 1) if "journal" in name]
    some = random.Random(3).sample(range(1, len(changes) + 1), 8)
    numbers = range(1, len(changes) + 1) if LONG_RUN else sorted({*journal, *some})
    for number, code in product(numbers, (errno.EIO, errno.ENOSPC)):
        restarts, new = scene.restarts, f"new-{times}"
        with scene.client(scene.restart) as client:
            contents = stage(client, "w", times, new=new)
            scene.fail(number, code)
            try:
                client.commit_stages("w", times, contents)
                told["unknown" if scene.restarts > restarts else "known"] += 1
            except StorageError:
                told["refused"] += 1
                scene.restart()
                # As a job that is run again: nothing of the first one comes later.
                contents = stage(client, f"again {times}", 1, new=new)
                client.commit_stages(f"again {times}", 1, contents)
            scene.files.before = lambda operation, name: None
            times += 1
            where = changes[number - 1]
            assert read_values(client, "old") == ROWS["old"] * times, where
            assert read_values(client, new) == ROWS["new"], where
    assert all(told.values()), told


def fail_journal(scene: Scene) -> None:
    """Refuse to sync the journal: what was written may or may not stay."""

    def before(operation: str, name: str) -> None:
        if operation == "sync" and "journal" in name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    scene.files.before = before


def test_time_is_up_before_it_is_known(scene: Scene) -> None:
    options = {**QUICK, "retry_timeout_s": 0.5}
    with LanceClient(scene.broker.address, **options) as client:
        contents = stage(client, "w", 1)
        other = stage(client, "v", 1)
        fail_journal(scene)
        said = r"outcome of commit 1 of 'w' is not known.* same writer id and sequence"
        for _ in range(2):
            with pytest.raises(CommitUnknownError, match=said):
                client.commit_stages("w", 1, contents)
        # Of another commit it is known that nothing was done.
        with pytest.raises(StorageError, match="no commits since"):
            client.commit_stages("v", 1, other)
        scene.restart()
        done = client.commit_stages("w", 1, contents)
        assert done.status is CommitStatus.REPEATED
        for topic, values in ROWS.items():
            assert read_values(client, topic) == values
        assert client.commit_stages("v", 1, other).status is CommitStatus.COMMITTED


def test_what_is_done_is_known_after_the_journal_has_failed(scene: Scene) -> None:
    """Its answer was lost, and the disk fails with the commit of another writer."""
    options = {**QUICK, "retry_timeout_s": 0.5}
    with LanceClient(scene.broker.address, **options) as client:
        contents, other = stage(client, "w", 1), stage(client, "v", 1)
        client.commit_stages("w", 1, contents)
        fail_journal(scene)
        with pytest.raises(CommitUnknownError):
            client.commit_stages("v", 1, other)
        again = client.commit_stages("w", 1, contents)
        assert again.status is CommitStatus.REPEATED


def test_a_client_that_is_closed_does_not_know(scene: Scene) -> None:
    def close(*_: object) -> None:
        client.close()

    client = scene.client(close)
    contents = stage(client, "w", 1)
    fail_journal(scene)
    with pytest.raises(CommitUnknownError, match="is closed"):
        client.commit_stages("w", 1, contents)


def test_a_refusal_behind_a_lost_answer_proves_nothing(scene: Scene) -> None:
    """The first request may still be carried out when the second finds no room."""
    with Proxy(scene.broker.address) as proxy:
        with make_client(scene.broker.address) as direct:
            contents = stage(direct, "w", 1)
        refused: list[str] = []

        def full(operation: str, name: str) -> None:
            if operation != "create":
                return
            refused.append(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

        def pause(*_: object) -> None:
            if refused:
                scene.files.before = lambda operation, name: None

        # The first request is lost on its way, as far as the client can tell.
        proxy.plan = lambda n: Fate(up=Flow(cut_frame=1)) if n == 0 else CLEAR
        scene.files.before = full
        options = {"runtime": Runtime(pause=pause), **QUICK}
        with LanceClient(proxy.address, **options) as client:
            done = client.commit_stages("w", 1, contents)
            assert done.status is CommitStatus.COMMITTED and refused
            assert read_values(client, "new") == ROWS["new"]


def test_what_was_never_sent_is_known(scene: Scene) -> None:
    with LanceClient(scene.broker.address, **{**QUICK, "retry_timeout_s": 0.2}) as one:
        contents = stage(one, "w", 1)
        scene.broker.stop()
        one.disconnect()
        with pytest.raises(Exception, match="could not connect") as told:
            one.commit_stages("w", 1, contents)
        assert not isinstance(told.value, CommitUnknownError | UnknownError)
        scene.broker.start()
        one.abort_stages("w", 1)
        with pytest.raises(StageNotFound):
            one.commit_stages("w", 1, contents)


def test_other_clients_are_served_while_a_commit_is_held(scene: Scene) -> None:
    """The disk hangs in the middle of a commit with as many names as are allowed."""
    reached, go = threading.Event(), threading.Event()
    names = [f"name-{n}" for n in range(scene.broker.config.overwrite_max)]

    def before(operation: str, name: str) -> None:
        if operation == "mkdir" and not reached.is_set():
            reached.set()
            assert go.wait(PATIENCE_S)

    with (
        make_client(scene.broker.address) as client,
        make_client(scene.broker.address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        contents = stage(other, "w", 1)
        scene.files.before = before
        long = pool.submit(client.commit_stages, "long", 1, [], overwrite=names)
        try:
            assert reached.wait(PATIENCE_S)
            # Each of these would wait for ever if it waited for the commit.
            with Producer(other, other.topic_id("old")) as producer:
                producer.send(b"meanwhile")
            assert read_values(other, "old") == [b"meanwhile"]
            scene.files.before = lambda operation, name: None
            other.delete_topic(other.create_topic("brief").id)
            other.commit_stages("w", 1, contents)
            assert read_values(other, "new") == ROWS["new"]
            assert not long.done()
        finally:
            go.set()
        assert len(long.result(PATIENCE_S).topics) == len(names)
        assert {info.name for info in other.topics()} == {*names, *ROWS}
