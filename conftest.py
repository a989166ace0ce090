"""Order of the test run: quick tests first, so that a mistake shows early."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For tests of the plugin, which run pytest inside of pytest.
pytest_plugins = ["pytester"]
# An environment that was made before the plugin was there does not know it.
if "lance_spark" not in entry_points(group="pytest11").names:
    pytest_plugins.append("lance_spark.testing.plugin")

# How long an example takes says more of the machine than of the code.
settings.register_profile("lance", deadline=None)
settings.load_profile("lance")

_LATE = ("slow", "fuzz", "crash", "soak")
# Tests of the whole system, with processes and sockets.
_SYSTEM = "integration"
# Whoever has one of these waits for a JVM.
_SESSION = "lance_spark_session"
_ENGINES = {_SESSION, "cluster", "connect"}
# And of these one that is not everybody's: they come last, one behind the other.
_OWN_ENGINES = _ENGINES - {_SESSION}


@pytest.fixture(scope="session")
def lance_spark_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Have the testing kit's session try each task again, as a cluster would."""
    from tests.spark.engine.session import MASTER

    if "PYTEST_XDIST_WORKER" in os.environ:
        # This directory has those of all processes. A second session would go unseen,
        # and take the time that the groups below are there to save.
        (tmp_path_factory.getbasetemp().parent / "has-session").touch(exist_ok=False)
    return {"spark.master": MASTER}


@pytest.fixture(scope="session")
def lance_spark_environment() -> dict[str, str]:
    """Have its Python workers start with all they need."""
    from tests.spark.engine.session import make_warm_environment

    return make_warm_environment()


@pytest.fixture(scope="session")
def spark(lance_spark_session: SparkSession) -> SparkSession:
    """Give the one Spark session of the run, which tests of all parts may use."""
    # Tests make errors on purpose, and look at what the user is told.
    lance_spark_session.sparkContext.setLogLevel("OFF")
    return lance_spark_session


# Before that of xdist, which looks for groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put system tests behind the others, then marked ones, then those with a JVM."""
    for item in items:
        if _uses(item, _ENGINES):
            item.add_marker("spark")
        group = _find_group(item)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_lateness)


def _find_group(item: pytest.Item) -> str | None:
    """Name the tests that one process has to run; with two, others run beside them."""
    if _uses(item, {_SESSION}):
        return "session"
    if item.get_closest_marker("spark"):
        return "engines"
    return "browser" if item.get_closest_marker("browser") else None


def _uses(item: pytest.Item, fixtures: set[str]) -> bool:
    return not fixtures.isdisjoint(getattr(item, "fixturenames", ()))


def _lateness(item: pytest.Item) -> tuple[bool, bool, int]:
    is_late = any(item.get_closest_marker(marker) for marker in _LATE)
    # A JVM takes a core and more: all that runs beside one is another one.
    needs_jvm = item.get_closest_marker("spark") is not None
    return (
        _uses(item, _OWN_ENGINES),
        needs_jvm,
        2 if is_late else int(_SYSTEM in item.path.parts),
    )
