"""A broker that speaks RustLog, and clients of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.broker.kit import StartBroker
from tests.broker.rustlog.kit import RustlogClient

DialRustlog = Callable[..., RustlogClient]


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    """A broker that speaks RustLog, too."""
    return start(rustlog="127.0.0.1:0")


@pytest.fixture
def dial_rustlog(stack: ExitStack) -> DialRustlog:
    """Connect to a broker."""

    def dial(broker: EmbeddedBroker | str, **options: Any) -> RustlogClient:
        return stack.enter_context(RustlogClient(broker, **options))

    return dial


@pytest.fixture(params=["binary", "json"])
def client(
    broker: EmbeddedBroker, dial_rustlog: DialRustlog, request: pytest.FixtureRequest
) -> RustlogClient:
    """A client of that broker, in each dialect."""
    return dial_rustlog(broker, as_json=request.param == "json")
