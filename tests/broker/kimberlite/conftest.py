"""A broker that speaks Kimberlite, and clients of it."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.broker.conftest import MEMORY
from tests.broker.kimberlite.kit import HERE, KimberliteClient
from tests.broker.kit import StartBroker

DialKimberlite = Callable[..., KimberliteClient]
_names = itertools.count()


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    """A broker that speaks Kimberlite, too."""
    return start(kimberlite=HERE)


@pytest.fixture(scope="package")
def shared() -> Iterator[EmbeddedBroker]:
    """A broker that tests share which leave nothing that others see."""
    where = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="lance-test-", dir=where) as path,
        EmbeddedBroker(fsync="none", data_dir=path, kimberlite=HERE) as broker,
    ):
        yield broker


@pytest.fixture
def dial_kimberlite(stack: ExitStack) -> DialKimberlite:
    """Connect to a broker."""

    def dial(broker: EmbeddedBroker | str, **options: Any) -> KimberliteClient:
        return stack.enter_context(KimberliteClient(broker, **options))

    return dial


@pytest.fixture
def kimberlite(
    broker: EmbeddedBroker, dial_kimberlite: DialKimberlite
) -> KimberliteClient:
    """A client of that broker."""
    return dial_kimberlite(broker)


@pytest.fixture
def client(shared: EmbeddedBroker, dial_kimberlite: DialKimberlite) -> KimberliteClient:
    """A client of the broker that tests share."""
    return dial_kimberlite(shared)


@pytest.fixture
def name() -> str:
    """Name a stream that no other test has."""
    return f"stream {next(_names)}"


@pytest.fixture
def stream(client: KimberliteClient, name: str) -> int:
    """The id of an empty stream of the broker that tests share."""
    return client.create(name)
