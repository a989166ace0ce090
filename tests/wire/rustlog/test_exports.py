"""What the package shows."""

from __future__ import annotations

from lance_spark.wire import rustlog


def test_all_is_true() -> None:
    assert len(set(rustlog.__all__)) == len(rustlog.__all__)
    for name in rustlog.__all__:
        assert hasattr(rustlog, name)
