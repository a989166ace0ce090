"""Being told of changes: by every log that grows or ends, and by the list of topics."""

from __future__ import annotations

import pytest

from lance_spark.errors import StoreClosed
from lance_spark.store import Store
from lance_spark.store.watch import Watchers
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


def test_who_comes_twice_goes_twice() -> None:
    watchers, bell = Watchers(), Bell()
    watchers.add(bell.ring)
    watchers.add(bell.ring)
    watchers.remove(bell.ring)
    watchers.notify()
    assert bell.taken() == 1
    watchers.remove(bell.ring)
    watchers.notify()
    assert bell.taken() == 0


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
    with store.watching([1], bell.ring):
        store.append(1, batch("a"))
        assert bell.taken() == 1
        store.append(2, batch("a"))
        assert bell.taken() == 0
    store.append(1, batch("a"))
    assert bell.taken() == 0


def test_only_what_can_be_read_is_growth(files: DiskFiles, bell: Bell) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        with store.watching([1], bell.ring):
            appended = store.append(1, batch("a"), wait=False)
            assert bell.taken() == 0
            store.wait_durable(1, appended)
            assert bell.taken() == 1
            assert store.view(1).end.offset == appended.end


def test_a_commit_is_growth(store: Store, bell: Bell) -> None:
    store.create_topic("one")
    named = stage(store, "one", "w", 1, batch("a"), batch("b"))
    with store.watching([1], bell.ring):
        store.commit_stages("w", 1, [named])
        # At once, and not batch by batch.
        assert bell.taken() == 1
        assert len(store.read(1, 0, 1000)) == 270


def test_a_topic_that_goes(store: Store, bell: Bell) -> None:
    store.create_topic("one")
    with store.watching([1], bell.ring):
        store.delete_topic(1)
        assert bell.taken() >= 1


def test_a_disk_that_fails(files: DiskFiles, bell: Bell) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    with store.watching([1], bell.ring), refusing(files, "sync", ".lnc"):
        with pytest.raises(Exception, match="a sync failed"):
            store.append(1, batch("b"))
        assert bell.taken() >= 1


def test_the_end_of_the_store(files: DiskFiles, bell: Bell) -> None:
    store = open_store(files=files)
    with store.watching([0], bell.ring):
        store.close()
        assert bell.taken() >= 1
    with pytest.raises(StoreClosed), store.watching([0], bell.ring):
        pass


def test_the_list_of_topics(store: Store, bell: Bell) -> None:
    before = store.topics_version
    with store.watching([], bell.ring, catalog=True):
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
    with store.watching([1, 1, 77], bell.ring):
        store.append(1, batch("a"))
        assert bell.taken() == 1


def test_nobody_is_left_behind(store: Store, bell: Bell) -> None:
    with pytest.raises(ZeroDivisionError), store.watching([0], bell.ring, catalog=True):
        raise ZeroDivisionError
    store.append(0, batch("a"))
    store.create_topic("one")
    assert bell.taken() == 0
