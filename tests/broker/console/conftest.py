"""Brokers with a console, and visitors of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.broker.conftest import MEMORY
from tests.broker.console.visit import Visitor
from tests.broker.kit import StartBroker


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    """A broker with a console that may change things."""
    return start(ui=True, ui_admin=True)


@pytest.fixture
def visitor(broker: EmbeddedBroker) -> Visitor:
    """Somebody who looks at it."""
    return Visitor(broker)


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedBroker]:
    """One as `broker`, for tests that leave nothing behind."""
    where = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="lance-test-", dir=where) as path,
        EmbeddedBroker(ui=True, ui_admin=True, fsync="none", data_dir=path) as broker,
    ):
        yield broker


@pytest.fixture
def guest(shared: EmbeddedBroker) -> Visitor:
    """Somebody who looks at the shared one."""
    return Visitor(shared)
