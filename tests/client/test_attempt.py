"""Ending a connection that is being set up."""

from __future__ import annotations

import pytest

from lance_spark.client.connection import Attempt
from lance_spark.errors import ConnectionLost


class Fake:
    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


def test_cancel_ends_what_is_under_way_and_what_would_follow() -> None:
    attempt, connection = Attempt(), Fake()
    attempt.check()
    attempt.enter(connection)
    assert not attempt.is_cancelled
    attempt.cancel()
    assert connection.aborted == 1
    assert attempt.is_cancelled
    for call in (attempt.check, lambda: attempt.enter(Fake())):
        with pytest.raises(ConnectionLost, match="given up"):
            call()


def test_what_is_set_up_is_left_alone() -> None:
    attempt, connection = Attempt(), Fake()
    attempt.enter(connection)
    attempt.leave()
    attempt.cancel()
    assert connection.aborted == 0
