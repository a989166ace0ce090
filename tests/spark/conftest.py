"""Brokers and engines for the tests of the Spark layer; `spark` is one floor up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.testing import run_broker

if TYPE_CHECKING:
    from tests.spark.engine.daemon import Cluster

_NUMBERS = itertools.count(1)


def _run_broker(dialect: str) -> Iterator[EmbeddedBroker]:
    # Tests look into it, and those that want a bad network bring one.
    with run_broker(relay=False, dialect=dialect) as made:
        assert isinstance(made.broker, EmbeddedBroker)
        yield made.broker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Run a broker with all that ours has."""
    yield from _run_broker("lwp")


@pytest.fixture
def plain_broker() -> Iterator[EmbeddedBroker]:
    """Run a broker that has no more than the specification asks for."""
    yield from _run_broker("plain")


@pytest.fixture
def topic() -> str:
    """Give a name that no topic has yet."""
    return f"topic-{next(_NUMBERS)}"


# Engines other than the session's. Whoever has one comes last of all tests.


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a standalone cluster with two workers, and a driver that takes jobs."""
    from tests.spark.engine.daemon import run_cluster

    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def connect(cluster: Cluster) -> str:
    """Give the address of a server of Spark Connect, for sessions in other processes.

    Its jobs run on the cluster.
    """
    return cluster.connect
