"""Opening a store costs time for each segment, and no more for each in a larger one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.store import UnsyncedFiles, grow_store, time_open_s

# Generous: quadratic growth would make it the factor by which the store has grown.
RATIO_MAX = 2.5
FACTOR = 6


def test_time_per_segment_does_not_grow_with_the_store(tmp_path: Path) -> None:
    small = 400
    large = small * FACTOR
    grow_store(tmp_path, segments=small, topics=small // 10)
    small_s = min(time_open_s(tmp_path, UnsyncedFiles()) for _ in range(4))
    grow_store(tmp_path, segments=large, topics=large // 10)
    large_s = min(time_open_s(tmp_path, UnsyncedFiles()) for _ in range(3))
    assert large_s / large <= RATIO_MAX * small_s / small
