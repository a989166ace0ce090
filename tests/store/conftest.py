"""A store on real files that the checker finds in order when the test is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_spark.store import Store
from tests.store.disk import Disk, DiskFiles
from tests.store.kit import check_clean, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "data"
    with open_store(path) as store:
        yield store
    check_clean(path)


@pytest.fixture
def files() -> DiskFiles:
    """An empty disk in memory."""
    return DiskFiles(Disk())
