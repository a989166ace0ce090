"""What the package shows."""

from __future__ import annotations

from lance_spark.wire import fluvio


def test_all_is_true() -> None:
    assert len(set(fluvio.__all__)) == len(fluvio.__all__)
    for name in fluvio.__all__:
        assert hasattr(fluvio, name)
