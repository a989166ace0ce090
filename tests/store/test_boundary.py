"""Record boundaries inside one segment."""

from __future__ import annotations

import numpy as np
import pytest

from lance_spark.errors import Corrupt
from lance_spark.store import Store, View
from lance_spark.store.reader import Boundaries
from lance_spark.store.segment import Boundary
from tests.store.disk import DiskFiles
from tests.store.kit import open_store, record

# Two batches of 200 and 145 bytes, with a record that is longer than two strides.
SIZES = [[10, 30, 100, 20, 40], [50, 5, 5, 60, 25]]


def starts() -> list[int]:
    return [0, *np.cumsum([n for sizes in SIZES for n in sizes]).tolist()]


@pytest.fixture
def found(store: Store) -> Boundaries:
    topic = store.create_topic("one")
    for sizes in SIZES:
        store.append(topic.metadata.id, b"".join(record(bytes(n - 5)) for n in sizes))
    view = View.of(topic.log)
    return view._boundaries(view.segments[0])


def test_every_position(found: Boundaries) -> None:
    expected = [Boundary(position, n) for n, position in enumerate(starts())]
    for position in range(starts()[-1] + 3):
        after = next((b for b in expected if b.position >= position), expected[-1])
        before = [b for b in expected if b.position <= position][-1]
        assert found.at_or_after(position) == after
        assert found.at_or_before(position) == before


def test_every_record(found: Boundaries) -> None:
    for number, position in enumerate(starts()):
        assert found.of_record(number) == Boundary(position, number)
    assert found.of_record(99) == Boundary(345, 10)


def test_nothing_behind_the_limit_is_found(found: Boundaries) -> None:
    limited = Boundaries(
        found.where,
        found.base,
        found.opened,
        found.table,
        found.framing,
        Boundary(200, 5),
    )
    assert limited.at_or_after(190) == Boundary(200, 5)
    assert limited.at_or_after(300) == Boundary(200, 5)
    assert limited.at_or_before(300) == Boundary(200, 5)
    assert limited.of_record(7) == Boundary(200, 5)


def test_a_batch_of_one_record_may_hold_anything(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        topic = store.create_topic("one").metadata.id
        one = np.array([0], np.int64)
        for _ in range(3):
            store.append(topic, bytes(300), one)
        view = store.view(topic)
        assert view.locate_offset(1).offset == 300
        assert view.locate_offset(301).offset == 600
        assert view.locate_record(2).offset == 600
        assert view.read(0, 10).read() == bytes(300)
        assert len(view.read(0, 650)) == 600


def test_bytes_that_do_not_follow_the_framing(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        topic = store.create_topic("one").metadata.id
        store.append(topic, record(b"sound"))
        store.append(topic, record(b"x" * 20) + bytes(30), np.array([0, 25, 40]))
        with pytest.raises(Corrupt, match="type 0 is reserved") as caught:
            store.locate(topic, 38)
        assert (caught.value.start, caught.value.end) == (35, 65)
