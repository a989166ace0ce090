"""What the package shows."""

from __future__ import annotations

from lance_spark.wire import kimberlite


def test_all_is_true() -> None:
    assert len(set(kimberlite.__all__)) == len(kimberlite.__all__)
    for name in kimberlite.__all__:
        assert hasattr(kimberlite, name)
