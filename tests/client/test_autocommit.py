"""When an automatic commit is due."""

from __future__ import annotations

import pytest

from lance_spark.client.lwp.consumer import CommitClock
from lance_spark.errors import OptionError


def test_due_once_per_interval() -> None:
    now_s = [100.0]
    commits = CommitClock(5.0, lambda: now_s[0])
    assert commits.is_on
    found = []
    for now_s[0] in (100.0, 104.9, 105.0, 105.1, 109.9, 111.0, 115.9, 116.0):
        found.append(commits.take_due())
    assert found == [False, False, True, False, False, True, False, True]


def test_never() -> None:
    now_s = [0.0]
    commits = CommitClock(None, lambda: now_s[0])
    now_s[0] = 1e9
    assert not commits.is_on
    assert not commits.take_due()


def test_always() -> None:
    commits = CommitClock(0.0, lambda: 1.0)
    assert commits.take_due()
    assert commits.take_due()


def test_negative() -> None:
    with pytest.raises(OptionError, match="auto_commit_interval_s -1"):
        CommitClock(-1, lambda: 0.0)
