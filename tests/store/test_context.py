"""Being told of changes, by logs and by the list of topics; and findings."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial

import pytest

from lance_spark.errors import StoreClosed
from lance_spark.store import Finding, Severity, Store
from lance_spark.store.context import Findings, Watchers
from tests.store.disk import DiskFiles
from tests.store.jobs import commit, refusing, stage
from tests.store.kit import batch, open_store


class Bell:
    """Counts how often it is rung."""

    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1

    def taken(self) -> int:
        """Tell how often it was rung since the last time."""
        rings, self.rings = self.rings, 0
        return rings


@pytest.fixture
def bell() -> Bell:
    return Bell()


def test_everybody_is_told() -> None:
    watchers = Watchers()
    watchers.notify()
    first, second = Bell(), Bell()
    watchers.add(first.ring)
    watchers.add(second.ring)
    watchers.notify()
    watchers.remove(first.ring)
    watchers.notify()
    assert (first.rings, second.rings) == (1, 2)


def test_only_growth_past_its_offset_wakes_a_reader() -> None:
    watchers = Watchers()
    bells = {beyond: Bell() for beyond in (10, 20, 30)}
    for beyond, bell in bells.items():
        watchers.add(bell.ring, beyond)

    def rung(end: int) -> list[int]:
        watchers.notify(end)
        return [beyond for beyond, bell in bells.items() if bell.taken()]

    assert rung(10) == []
    assert rung(11) == [10]
    assert rung(21) == [10, 20]
    watchers.remove(bells[10].ring)
    assert rung(20) == []
    assert rung(21) == [20]
    watchers.remove(bells[20].ring)
    # Without an end it is the log itself that goes.
    watchers.notify()
    assert bells[30].taken() == 1
    watchers.remove(bells[30].ring)
    assert rung(1000) == []


def test_who_comes_twice_waits_for_what_it_said_last() -> None:
    watchers, bell = Watchers(), Bell()
    watchers.add(bell.ring, 10)
    watchers.add(bell.ring, 20)
    assert len(watchers) == 1
    watchers.notify(20)
    assert bell.taken() == 0
    watchers.notify(21)
    assert bell.taken() == 1
    watchers.remove(bell.ring)
    watchers.notify()
    assert bell.taken() == 0


def test_an_append_looks_at_no_reader_that_waits_for_more() -> None:
    """A thousand readers that wait for what never comes cost an append nothing."""

    class Counted(int):
        looks = 0

        def __lt__(self, other: int) -> bool:
            Counted.looks += 1
            return int(self) < int(other)

    watchers = Watchers()
    for number in range(1000):
        watchers.add(lambda number=number: None, Counted(2**60 + number))
    Counted.looks = 0
    for end in range(100):
        watchers.notify(end)
    assert Counted.looks == 0
    watchers.notify(2**61)
    assert Counted.looks == 1000


def test_who_goes_while_being_told() -> None:
    watchers, bell = Watchers(), Bell()

    def once() -> None:
        watchers.remove(once)
        bell.ring()

    watchers.add(once)
    watchers.add(bell.ring)
    watchers.notify()
    watchers.notify()
    assert bell.taken() == 3


def test_a_topic_that_grows(store: Store, bell: Bell) -> None:
    store.create_topic("one")
    store.create_topic("two")
    with store.watching({1: -1}, bell.ring):
        store.append(1, batch("a"))
        assert bell.taken() == 1
        store.append(2, batch("a"))
        assert bell.taken() == 0
    store.append(1, batch("a"))
    assert bell.taken() == 0


def test_only_what_can_be_read_is_growth(files: DiskFiles, bell: Bell) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        with store.watching({1: -1}, bell.ring):
            appended = store.append(1, batch("a"), wait=False)
            assert bell.taken() == 0
            store.wait_durable(1, appended)
            assert bell.taken() == 1
            assert store.view(1).end.offset == appended.end


def test_a_commit_is_growth(store: Store, bell: Bell) -> None:
    store.create_topic("one")
    named = stage(store, "one", "w", 1, batch("a"), batch("b"))
    with store.watching({1: -1}, bell.ring):
        store.commit_stages("w", 1, [named])
        # At once, and not batch by batch.
        assert bell.taken() == 1
        assert len(store.read(1, 0, 1000)) == 270


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_that_goes(store: Store, partitions: int) -> None:
    """A reader that looks when it is woken finds the topic gone, the last time."""
    logs = [topic.metadata.id for topic in store.create_topics({"one": partitions})]
    seen: dict[int, list[bool]] = {log: [] for log in logs}

    def look(log: int) -> None:
        seen[log].append(any(topic.metadata.id == log for topic in store.topics()))

    with ExitStack() as stack:
        for log in logs:
            stack.enter_context(store.watching({log: -1}, partial(look, log)))
        store.delete_topics(logs)
    assert [found[-1] for found in seen.values()] == [False] * partitions


def test_a_disk_that_fails(files: DiskFiles, bell: Bell) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    with store.watching({1: -1}, bell.ring), refusing(files, "sync", ".lnc"):
        with pytest.raises(Exception, match="a sync failed"):
            store.append(1, batch("b"))
        assert bell.taken() >= 1


def test_the_end_of_the_store(files: DiskFiles, bell: Bell) -> None:
    store = open_store(files=files)
    with store.watching({0: -1}, bell.ring):
        store.close()
        assert bell.taken() >= 1
    with pytest.raises(StoreClosed), store.watching({0: -1}, bell.ring):
        pass


def test_the_list_of_topics(store: Store, bell: Bell) -> None:
    before = store.topics_version
    with store.watching({}, bell.ring, catalog=True):
        store.create_topic("one")
        assert (bell.taken(), store.topics_version) == (1, before + 1)
        store.append(1, batch("a"))
        assert bell.taken() == 0
        commit(store, "two", "w", 1, batch("a"))
        assert bell.taken() >= 1
        store.delete_topic(1)
        assert bell.taken() >= 1
    store.create_topic("three")
    assert bell.taken() == 0


def test_topics_that_there_are_not(store: Store, bell: Bell) -> None:
    store.create_topic("one")
    with store.watching({1: -1, 77: -1}, bell.ring):
        store.append(1, batch("a"))
        assert bell.taken() == 1


def test_nobody_is_left_behind(store: Store, bell: Bell) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        store.watching({0: -1}, bell.ring, catalog=True),
    ):
        raise ZeroDivisionError
    store.append(0, batch("a"))
    store.create_topic("one")
    assert bell.taken() == 0


# Findings.


def test_text() -> None:
    with_span = Finding(Severity.DAMAGE, "segments/1", "the checksum differs", 10, 20)
    assert str(with_span) == "damage: segments/1 [10, 20): the checksum differs"
    assert str(Finding(Severity.NOTE, "lock", "odd")) == "note: lock: odd"


def test_findings_are_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    findings = Findings()
    with caplog.at_level(logging.WARNING):
        findings.note("a", "mended")
        findings.damage("b", "lost", 1, 2)
    assert findings.all == [
        Finding(Severity.NOTE, "a", "mended"),
        Finding(Severity.DAMAGE, "b", "lost", 1, 2),
    ]
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "note: a: mended"),
        ("ERROR", "damage: b [1, 2): lost"),
    ]
