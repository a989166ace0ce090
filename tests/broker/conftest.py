"""Brokers for the tests, and clients that are closed behind them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.broker.kit import Client, Dial, StartBroker

# Making a store syncs the disk, which most tests here would spend their time with.
MEMORY = Path("/dev/shm")


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory in memory, where there is such a thing."""
    where = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="lance-test-", dir=where) as path:
        yield Path(path)


@pytest.fixture
def stack(directory: Path) -> Iterator[ExitStack]:
    """What is entered here is left at the end of the test, the last one first.

    All of it before the directory goes.
    """
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(stack: ExitStack, directory: Path) -> StartBroker:
    """Start a broker with some settings."""
    numbers = itertools.count()

    def start(**settings: Any) -> EmbeddedBroker:
        path = str(directory / f"broker-{next(numbers)}")
        defaults = {"fsync": "none", "data_dir": path}
        return stack.enter_context(EmbeddedBroker(**{**defaults, **settings}))

    return start


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    """A broker as it comes."""
    return start()


@pytest.fixture
def dial(stack: ExitStack) -> Dial:
    """Connect to a broker."""

    def dial(broker: EmbeddedBroker, **options: Any) -> Client:
        return stack.enter_context(Client(broker.address, **options))

    return dial


@pytest.fixture
def client(broker: EmbeddedBroker, dial: Dial) -> Client:
    """A client of that broker."""
    return dial(broker)
