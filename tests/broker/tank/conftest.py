"""A broker that speaks TANK, and clients of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.broker.kit import StartBroker
from tests.broker.tank.kit import HERE, TankClient

DialTank = Callable[..., TankClient]


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    """A broker that speaks TANK, too."""
    return start(tank=HERE)


@pytest.fixture
def dial_tank(stack: ExitStack) -> DialTank:
    """Connect to a broker."""

    def dial(broker: EmbeddedBroker | str, **options: Any) -> TankClient:
        return stack.enter_context(TankClient(broker, **options))

    return dial


@pytest.fixture
def tank(broker: EmbeddedBroker, dial_tank: DialTank) -> TankClient:
    """A client of that broker."""
    return dial_tank(broker)
