"""Order and deadlines of the test run: quick tests first, and none for ever."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For tests of the plugin, which run pytest inside of pytest; and what campaigns count.
pytest_plugins = ["pytester", "tests.campaign"]
# An environment that was made before the plugin was there does not know it.
if "lance_spark" not in entry_points(group="pytest11").names:
    pytest_plugins.append("lance_spark.testing.plugin")

# How long an example takes says more of the machine than of the code.
settings.register_profile("lance", deadline=None)
settings.load_profile("lance")

_LATE = ("slow", "fuzz", "crash", "soak", "long", "campaign")
# Tests of the whole system, with processes and sockets.
_SYSTEM = "integration"
# Whoever has one of these waits for a JVM.
_SESSION = "lance_spark_session"
_ENGINES = {_SESSION, "cluster", "connect"}
# And of these one that is not everybody's: they come last of them.
_OWN_ENGINES = _ENGINES - {_SESSION}

# A test that takes longer hangs: some ten times what the slowest needs by itself, as
# other processes may have the machine. Setup counts, that of the whole session too.
_DEADLINE_S = 300.0
_LONG_DEADLINE_S = 900.0
# Long forms have a deadline that grows with what their variable asks for: the seconds
# that each unit of it may take.
_LONG_FORMS = {
    "LANCE_CAMPAIGN_SECONDS": 1.5,
    "LANCE_CRASH_ROUNDS": 10.0,
    "LANCE_FUZZ_SECONDS": 1.5,
    "LANCE_LONG_ROWS": 0.001,
    "LANCE_SOAK_SECONDS": 1.5,
}
# An alarm does not end everything: not a wait in compiled code, nor a teardown that
# hangs after it. So much later the process ends, and shows where its threads are.
_LAST_S = 120.0
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Have SIGINT mean what it usually does, and keep an outlet for a hung process."""
    # Under nohup, and in the background of a script, SIGINT is ignored. Each process
    # would inherit that, and tests that send it to one would wait in vain.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nothing is captured yet.
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process also where a thread would keep it after the last test."""
    # A process of xdist waits here for the others, and xdist ends it after them.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        file = config.stash[_STDERR]
        faulthandler.dump_traceback_later(_LAST_S, exit=True, file=file)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process where the deadline of a test did not end the test."""
    marker = item.get_closest_marker("timeout")
    # Nobody is hurried in a debugger.
    if marker is None or item.config.getoption("usepdb"):
        return (yield)
    file = item.config.stash[_STDERR]
    faulthandler.dump_traceback_later(marker.args[0] + _LAST_S, exit=True, file=file)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def lance_spark_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Have the testing kit's session try each task again, as a cluster would."""
    from tests.spark.engine.session import SETTINGS

    if "PYTEST_XDIST_WORKER" in os.environ:
        # This directory has those of all processes. A second session would go unseen,
        # and take the time that the groups below are there to save.
        (tmp_path_factory.getbasetemp().parent / "has-session").touch(exist_ok=False)
    return SETTINGS


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
    """Put quick tests first, system tests behind them, then marked ones.

    Those with a JVM are two long rows of tests, each for one process, and wait most of
    their time. So they begin at once where others run beside them; where there is but
    one process, the quick ones come before them.
    """
    for item in items:
        if _uses(item, _ENGINES):
            item.add_marker("spark")
        group = _find_group(item)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_find_deadline(item)))
    items.sort(key=_lateness)


def _find_deadline(item: pytest.Item) -> float:
    """Say when a test hangs, in seconds."""
    is_long = any(item.get_closest_marker(m) for m in ("slow", "spark", *_LATE))
    asked = sum(
        float(os.environ.get(name, "0")) * seconds
        for name, seconds in _LONG_FORMS.items()
    )
    return _LONG_DEADLINE_S + asked if is_long else _DEADLINE_S


def _find_group(item: pytest.Item) -> str | None:
    """Name the tests that one process has to run; with two, others run beside them."""
    if _uses(item, {_SESSION}):
        return "session"
    if item.get_closest_marker("spark"):
        return "engines"
    return "browser" if item.get_closest_marker("browser") else None


def _uses(item: pytest.Item, fixtures: set[str]) -> bool:
    return not fixtures.isdisjoint(getattr(item, "fixturenames", ()))


def _lateness(item: pytest.Item) -> tuple[int, bool]:
    if item.get_closest_marker("spark"):
        is_beside = "PYTEST_XDIST_WORKER" in os.environ
        # One row behind the other, and so each in a process of its own.
        rank = (_uses(item, {_SESSION}) - 2) if is_beside else 1
        return rank, _uses(item, _OWN_ENGINES)
    if any(item.get_closest_marker(marker) for marker in _LATE):
        return 3, False
    return 2 if _SYSTEM in item.path.parts else 0, False
