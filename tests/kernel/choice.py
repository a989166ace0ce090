"""A fixture that runs tests with the compiled kernel and with its twin."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from lance_spark import kernel as chosen
from lance_spark.kernel import twin


@pytest.fixture(
    params=[
        pytest.param(
            "compiled",
            marks=pytest.mark.skipif(not chosen.COMPILED, reason="not built"),
        ),
        "twin",
    ],
    scope="module",
)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the tests of a module with the compiled kernel and with its twin."""
    source = twin
    if request.param == "compiled":
        source = sys.modules["lance_spark.kernel.compiled"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen, "_source", source)
        yield request.param
