"""The limit of open files, as the system would give it."""

from __future__ import annotations

import resource

import pytest

from lance_spark.net.limit import raise_file_limit

INFINITY = resource.RLIM_INFINITY


class Limits:
    """A process's limits; above `most` the system refuses."""

    def __init__(self, soft: int, hard: int, most: int = 10**9) -> None:
        self.soft, self.hard, self.most = soft, hard, most

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.soft, self.hard

    def set(self, which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE and limits[1] == self.hard
        if limits[0] > self.most:
            raise ValueError("not allowed to raise maximum limit")
        self.soft = limits[0]


@pytest.mark.parametrize(
    ("limits", "after"),
    [
        (Limits(1024, 4096), 3000),
        (Limits(1024, 2000), 2000),
        (Limits(1024, INFINITY), 3000),
        (Limits(1024, INFINITY, most=2999), 1024),
        (Limits(3000, 4096), 3000),
        (Limits(4096, 4096), 4096),
        (Limits(INFINITY, INFINITY), INFINITY),
    ],
)
def test_raised_to_what_is_wanted_where_that_is_allowed(
    limits: Limits, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert raise_file_limit(3000) == (3000 if after == INFINITY else after)
    assert limits.soft == after
