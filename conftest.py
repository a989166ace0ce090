"""Order of the test run: quick tests first, so that a mistake shows early."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("lance", deadline=None)
settings.load_profile("lance")

_LATE = ("slow", "fuzz", "crash", "soak")
# Tests of the whole system, with processes and sockets.
_SYSTEM = "integration"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put system tests behind the others and marked ones last, in order otherwise."""
    items.sort(key=_lateness)


def _lateness(item: pytest.Item) -> int:
    if any(item.get_closest_marker(marker) for marker in _LATE):
        return 2
    return 1 if _SYSTEM in item.path.parts else 0
