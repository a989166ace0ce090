"""A data directory written by release 0.1.0 is read for ever.

The files under `tests/vectors/store-v1` were written once, with a fixed clock. They are
never written again: whoever has to change this test breaks somebody's data.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lance_spark.model import Retention
from lance_spark.store import CommitStatus, NamedStage
from tests.store.kit import batch, check_clean, open_store, read_all, record

FROZEN = Path(__file__).parent.parent / "vectors" / "store-v1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy, because opening writes."""
    copy = tmp_path / "store"
    shutil.copytree(FROZEN, copy)
    return copy


def test_topics_of_format_1(path: Path) -> None:
    events = b"".join(batch(tag, 12) for tag in "abc")
    events += record(b"", 0xFF) + record(b"\x02\x00kv", 0x10)
    events += batch("staged-events", 3)
    with open_store(path) as store:
        assert store.findings == []
        named = {t.metadata.name: t for t in store.topics()}
        assert {name: t.metadata.id for name, t in named.items()} == {
            "events": 1,
            "adopted": 2,
            "replaced": 3,
        }
        assert named["events"].metadata.retention == Retention(86400, 0)
        assert named["events"].metadata.created_at == 1_700_000_000
        assert read_all(named["events"].log) == events
        assert read_all(named["adopted"].log) == batch("staged-adopted", 20)
        assert read_all(named["replaced"].log) == batch("new", 2)
        assert store.view(3).start == (225, 5, 1)
        assert store.view(1).locate_record(38).offset == len(events) - 3 * 45
    check_clean(path)


def test_promises_of_format_1(path: Path) -> None:
    with open_store(path) as store:
        assert store.committed_offset(2**63 + 5, 1) == 540
        again = store.commit_stages("job-1", 7, [])
        assert again.status is CommitStatus.REPEATED
        assert [(r.name, r.start, r.end) for r in again.ranges] == [
            ("events", 1634, 1769),
            ("adopted", 0, 900),
        ]
        (stage,) = store.stages()
        waiting = NamedStage(stage.metadata.id, 1, len(batch("waiting", 2)))
        result = store.commit_stages("job-1", 8, [waiting])
        assert result.status is CommitStatus.COMMITTED
        # Ids of topics and stages that are gone are not used again.
        assert store.create_topic("next").metadata.id == 5
        assert store.open_stage("next", "job-3", 1) > stage.metadata.id
    check_clean(path)
