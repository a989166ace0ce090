"""The fixtures, as a plugin of pytest.

Every run of pytest loads it where the package is installed, also for tests that have
nothing to do with it: what a fixture needs is imported when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lance_spark.testing.scratch import ScratchBroker
    from lance_spark.testing.topic import ScratchTopic

_SETTINGS = "lance_spark_settings"
_NAME_CHARACTERS_MAX = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings of Spark that a project's configuration may have."""
    parser.addini(
        _SETTINGS,
        "Settings of the session of lance_spark_session, one NAME=VALUE per line.",
        type="linelist",
        default=[],
    )


# Brokers and topics, new ones for each test.


@pytest.fixture
def lance_broker_settings() -> dict[str, Any]:
    """Give the settings of `lance_broker` and `lance_broker_process`; override it."""
    return {}


@pytest.fixture
def lance_broker(lance_broker_settings: dict[str, Any]) -> Iterator[ScratchBroker]:
    """Run a broker with data of its own in threads of this process."""
    from lance_spark.testing.scratch import run_broker

    with run_broker(**lance_broker_settings) as broker:
        yield broker


@pytest.fixture
def lance_broker_process(
    lance_broker_settings: dict[str, Any],
) -> Iterator[ScratchBroker]:
    """Run a broker with data of its own in a process of its own, to be killed."""
    from lance_spark.testing.scratch import run_broker_process

    with run_broker_process(**lance_broker_settings) as broker:
        yield broker


@pytest.fixture
def lance_topic(
    lance_broker: ScratchBroker, request: pytest.FixtureRequest
) -> ScratchTopic:
    """Create an empty topic of `lance_broker`, named after the test."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    return lance_broker.topic(name[:_NAME_CHARACTERS_MAX] or "topic").create()


# Spark, one session for all tests.


@pytest.fixture(scope="session")
def lance_spark_settings(pytestconfig: pytest.Config) -> dict[str, str]:
    """Give settings of the session besides the kit's; override it."""
    settings = {}
    for line in pytestconfig.getini(_SETTINGS):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise pytest.UsageError(f"{_SETTINGS}: {line!r} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def lance_spark_environment() -> dict[str, str]:
    """Give environment variables for the session's JVM; override it."""
    return {}


@pytest.fixture(scope="session")
def lance_spark_session(
    lance_spark_settings: dict[str, str],
    lance_spark_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """Run a small local Spark, in which `format("lance")` is known."""
    from lance_spark.spark.local import run_session

    with run_session(
        tmp_path_factory.mktemp("spark"),
        settings=lance_spark_settings,
        environment=lance_spark_environment,
    ) as session:
        yield session
