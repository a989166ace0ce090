"""Open segments."""

from __future__ import annotations

import pytest

from lance_spark.store import Store, StoreConfig
from lance_spark.store.segment import OpenSegment, SegmentCache, SegmentKey
from tests.store.disk import DiskFiles
from tests.store.jobs import refusing
from tests.store.kit import SMALL, batch, check_clean, open_store, read_all


class Opened:
    """Stands for the files of a segment."""

    def __init__(self, *, dirty: bool = False, table_bytes: int = 0) -> None:
        self.dirty = dirty
        self.table_bytes = table_bytes
        self.syncs = 0
        self.failure: OSError | None = None

    def sync(self) -> None:
        self.syncs += 1
        if self.failure:
            raise self.failure
        self.dirty = False

    def drop_table(self) -> None:
        self.table_bytes = 0


def make(*opened: Opened, open_max: int = 4, table_bytes_max: int = 100):  # type: ignore[no-untyped-def]
    cache = SegmentCache(open_max=open_max, table_bytes_max=table_bytes_max)
    for number, segment in enumerate(opened):
        put(cache, number, segment)
    return cache


def put(cache: SegmentCache, number: int, segment: Opened) -> None:
    cache.get(SegmentKey(1, number), lambda: segment)  # type: ignore[arg-type, return-value]


def has(cache: SegmentCache, number: int, topic: int = 1) -> bool:
    missing = object()
    key = SegmentKey(topic, number)
    return cache._open.get(key, missing) is not missing  # type: ignore[arg-type]


def test_a_segment_is_opened_once() -> None:
    cache = make()
    opened: list[OpenSegment] = []
    for _ in range(3):
        segment = cache.get(SegmentKey(1, 0), lambda: Opened())  # type: ignore[arg-type, return-value]
        opened.append(segment)
    assert opened[0] is opened[1] is opened[2]
    assert cache.open_files == 2


def test_the_least_recently_used_goes_first() -> None:
    cache = make(Opened(), Opened(), Opened(), Opened())
    put(cache, 0, Opened())  # Used once more.
    put(cache, 4, Opened())
    assert [has(cache, n) for n in range(5)] == [True, False, True, True, True]
    assert cache.open_files == 8


def test_a_clean_one_goes_before_an_older_dirty_one() -> None:
    dirty = Opened(dirty=True)
    cache = make(dirty, Opened(), Opened(), Opened())
    put(cache, 4, Opened())
    assert has(cache, 0) and not has(cache, 1)
    assert dirty.syncs == 0


def test_a_dirty_one_is_synced_before_it_goes() -> None:
    dirty = [Opened(dirty=True) for _ in range(4)]
    cache = make(*dirty)
    put(cache, 4, Opened())
    assert not has(cache, 0)
    assert [segment.syncs for segment in dirty] == [1, 0, 0, 0]


def test_one_that_can_not_be_synced_stays() -> None:
    dirty = [Opened(dirty=True) for _ in range(4)]
    dirty[0].failure = OSError("no")
    cache = make(*dirty)
    put(cache, 4, Opened())
    assert has(cache, 0) and not has(cache, 1)
    for segment in dirty:
        segment.failure = OSError("no")
    put(cache, 4, Opened())
    put(cache, 5, Opened(dirty=True))
    put(cache, 6, Opened(dirty=True))
    assert [has(cache, n) for n in (0, 2, 3)] == [True] * 3


def test_tables_above_the_limit_are_freed_oldest_first() -> None:
    opened = [Opened(table_bytes=size) for size in (30, 60, 50, 40)]
    cache = make(*opened)
    cache.trim_tables()
    assert [segment.table_bytes for segment in opened] == [0, 0, 50, 40]


def test_forgetting() -> None:
    cache = make(Opened(), Opened())
    cache.get(SegmentKey(2, 0), lambda: Opened())  # type: ignore[arg-type, return-value]
    cache.drop(SegmentKey(1, 0))
    cache.drop(SegmentKey(1, 0))
    assert not has(cache, 0) and has(cache, 1)
    cache.drop_topic(1)
    assert not has(cache, 1) and has(cache, 0, topic=2)


def test_forgetting_everything() -> None:
    cache = make(Opened(), Opened())
    cache.clear()
    assert cache.open_files == 0


def grow(store: Store, topics: int) -> None:
    for number in range(topics):
        topic = store.create_topic(f"t{number}").metadata.id
        for tag in "abc":
            store.append(topic, batch(tag, 20))


def test_open_files_are_bounded_with_many_topics(store: Store) -> None:
    grow(store, 20)
    for topic in store.topics():
        assert len(read_all(topic.log)) == 2700
        assert store._segments.open_files <= 2 * SMALL["open_segments_max"]


def test_index_memory_is_bounded(files: DiskFiles) -> None:
    config = StoreConfig(index_cache_bytes=5_000, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        grow(store, 6)
        for topic in store.topics():
            assert len(read_all(topic.log)) == 2700
            opened = store._segments._open.values()
            assert sum(segment.table_bytes for segment in opened) <= 5_000
    check_clean(files=files)


def test_a_sync_that_failed_while_making_room_reaches_its_log(
    files: DiskFiles,
) -> None:
    """Else a later descriptor would sync without an error, and prove nothing."""
    config = StoreConfig(**{**SMALL, "open_segments_max": 4})  # type: ignore[arg-type]
    store = open_store(files=files, config=config)
    ids = [store.create_topic(f"t{n}").metadata.id for n in range(6)]
    first, *_ = [store.append(topic, batch("a"), wait=False) for topic in ids[:4]]
    with refusing(files, "sync", f"segments/{ids[0]}/", times=1):
        store.append(ids[4], batch("b"))
    store.append(ids[5], batch("c"))
    with pytest.raises(Exception, match="read-only since a sync failed"):
        store.wait_durable(ids[0], first)
    assert store.view(ids[0]).end.offset == 0
