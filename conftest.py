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
_ENGINES = {"spark", "cluster", "connect"}
# And of these one that is not everybody's: they come last, one behind the other.
_OWN_ENGINES = _ENGINES - {"spark"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one Spark session of the run, which tests of all parts may use."""
    from tests.spark.engine.session import run_session

    with run_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put system tests behind the others, then marked ones, then those with a JVM."""
    for item in items:
        if _uses(item, _ENGINES):
            item.add_marker("spark")
        if item.get_closest_marker("spark"):
            # One process has the one session, and nobody else in it meanwhile.
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=_lateness)


def _uses(item: pytest.Item, fixtures: set[str]) -> bool:
    return not fixtures.isdisjoint(getattr(item, "fixturenames", ()))


def _lateness(item: pytest.Item) -> tuple[bool, bool, int]:
    is_late = any(item.get_closest_marker(marker) for marker in _LATE)
    # A JVM takes both cores: whatever runs beside it would only be in its way.
    needs_jvm = item.get_closest_marker("spark") is not None
    return (
        _uses(item, _OWN_ENGINES),
        needs_jvm,
        2 if is_late else int(_SYSTEM in item.path.parts),
    )
