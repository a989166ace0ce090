"""A broker that speaks Fluvio, and clients of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.wire.fluvio import Role
from tests.broker.fluvio.kit import HERE, FluvioClient
from tests.broker.kit import StartBroker

DialFluvio = Callable[..., FluvioClient]


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    """A broker that speaks Fluvio, too."""
    return start(fluvio=HERE)


@pytest.fixture
def dial_fluvio(stack: ExitStack) -> DialFluvio:
    """Connect to the SPU of a broker, or its SC."""

    def dial(broker: EmbeddedBroker, *role: Role, **options: Any) -> FluvioClient:
        return stack.enter_context(FluvioClient(broker, *role, **options))

    return dial


@pytest.fixture
def sc(broker: EmbeddedBroker, dial_fluvio: DialFluvio) -> FluvioClient:
    """A client of that broker's SC."""
    return dial_fluvio(broker, Role.SC)


@pytest.fixture
def spu(
    broker: EmbeddedBroker, sc: FluvioClient, dial_fluvio: DialFluvio
) -> FluvioClient:
    """A client of that broker's SPU, with the topic `orders` of one partition."""
    sc.create("orders")
    return dial_fluvio(broker)
