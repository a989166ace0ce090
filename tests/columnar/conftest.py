"""What all tests of this layer share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from lance_spark.columnar.scan import KERNEL


@pytest.fixture(
    params=[
        pytest.param(
            True, id="kernel", marks=pytest.mark.skipif(not KERNEL, reason="not built")
        ),
        pytest.param(False, id="twin"),
    ],
    scope="module",
)
def kernel(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run the tests of a module with the kernel and with its twin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["lance_spark.columnar.scan"], "KERNEL", request.param)
        yield request.param
