"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.scripted import FakeTime, Network


@pytest.fixture
def network() -> Iterator[Network]:
    """A network in memory; what its servers met is told at the end."""
    network = Network()
    yield network
    network.close()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()
