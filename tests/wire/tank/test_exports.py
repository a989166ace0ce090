"""What the package shows."""

from __future__ import annotations

from lance_spark.wire import tank


def test_all_is_true() -> None:
    assert len(set(tank.__all__)) == len(tank.__all__)
    for name in tank.__all__:
        assert hasattr(tank, name)
