"""Order of the test run: quick tests first, so that a mistake shows early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example takes says more of the machine than of the code.
settings.register_profile("lance", deadline=None)
settings.load_profile("lance")

_LATE = ("slow", "fuzz", "crash", "soak")
# Tests of the whole system, with processes and sockets.
_SYSTEM = "integration"
# Whoever has one of these waits for a JVM.
_ENGINES = {"spark", "standalone", "connect"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one Spark session of the run, which tests of all parts may use."""
    from tests.spark.engine.session import run_session

    with run_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put system tests behind the others and marked ones last, in order otherwise."""
    for item in items:
        if _ENGINES & set(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
    items.sort(key=_lateness)


def _lateness(item: pytest.Item) -> int:
    if any(item.get_closest_marker(marker) for marker in _LATE):
        return 3
    if item.get_closest_marker("spark"):
        return 2
    return 1 if _SYSTEM in item.path.parts else 0
