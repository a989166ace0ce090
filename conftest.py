"""Order of the test run: quick tests first, so that a mistake shows early."""

from __future__ import annotations

import pytest

_LATE = ("slow", "fuzz", "crash", "soak")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put marked tests behind the unmarked ones, keeping the order otherwise."""
    items.sort(key=lambda item: any(item.get_closest_marker(m) for m in _LATE))
