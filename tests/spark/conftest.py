"""Brokers and engines for the tests of the Spark layer; `spark` is one floor up."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker

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


# Engines other than the session's. They stay for the tests of one file.


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a standalone cluster with two workers; give the master's address.

    A process has one driver at most, so that jobs need one of their own: `run_script`.
    """
    from tests.spark.engine.daemon import run_cluster

    with run_cluster(tmp_path_factory.mktemp("standalone")) as address:
        yield address


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server of Spark Connect; give the address that sessions are made with.

    Clients are processes of their own, as this one has a session already.
    """
    from tests.spark.engine.daemon import run_connect

    with run_connect(tmp_path_factory.mktemp("connect")) as address:
        yield address
