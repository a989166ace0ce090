"""A broker that speaks Kimberlite, and clients of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.broker.kimberlite.kit import HERE, KimberliteClient
from tests.broker.kit import StartBroker

DialKimberlite = Callable[..., KimberliteClient]


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    """A broker that speaks Kimberlite, too."""
    return start(kimberlite=HERE)


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
