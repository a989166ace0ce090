"""Brokers and engines for the tests of the Spark layer; `spark` is one floor up."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lance_spark.broker import EmbeddedBroker

if TYPE_CHECKING:
    from tests.spark.engine.daemon import Cluster

# Making a store syncs the disk, which most tests here would spend their time with.
_MEMORY = Path("/dev/shm")
_NUMBERS = itertools.count(1)


def _run_broker(dialect: str) -> Iterator[EmbeddedBroker]:
    where = _MEMORY if _MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="lance-test-", dir=where) as path,
        EmbeddedBroker(fsync="none", data_dir=path, dialect=dialect) as broker,
    ):
        yield broker


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
