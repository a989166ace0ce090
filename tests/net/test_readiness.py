from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from lance_spark.net import readiness
from lance_spark.net.deadline import Deadline
from lance_spark.net.readiness import READABLE, WRITABLE, timeout_ms, wait_ready
from lance_spark.net.waker import Waker
from tests.net.conftest import LONG_S, Spawn, soon

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


def test_readable_when_something_came(ends: Ends) -> None:
    assert not wait_ready(ends[0].fileno(), READABLE, Deadline.after(0))
    ends[1].send(b"x")
    assert wait_ready(ends[0].fileno(), READABLE, soon())
    # What is there is seen also when there is no time left.
    assert wait_ready(ends[0].fileno(), READABLE, Deadline.after(0))


def test_writable_while_there_is_room(ends: Ends) -> None:
    assert wait_ready(ends[0].fileno(), WRITABLE, soon())
    ends[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            ends[0].send(bytes(65536))
    assert not wait_ready(ends[0].fileno(), WRITABLE, Deadline.after(0.01))


def test_the_end_is_ready(ends: Ends) -> None:
    ends[1].close()
    assert wait_ready(ends[0].fileno(), READABLE, soon())


def test_waits_until_the_deadline(ends: Ends) -> None:
    deadline = Deadline.after(0.02)
    assert not wait_ready(ends[0].fileno(), READABLE, deadline)
    assert deadline.expired


def test_waker_ends_the_wait(ends: Ends, waker: Waker, spawn: Spawn) -> None:
    waiting = spawn(wait_ready, ends[0].fileno(), READABLE, soon(), waker)
    waker.set()
    assert waiting.result(LONG_S) is False


def test_data_goes_before_the_waker(ends: Ends, waker: Waker) -> None:
    waker.set()
    ends[1].send(b"x")
    assert wait_ready(ends[0].fileno(), READABLE, soon(), waker)


def test_waker_that_is_not_set_does_not_matter(ends: Ends, waker: Waker) -> None:
    assert not wait_ready(ends[0].fileno(), READABLE, Deadline.after(0.01), waker)
    ends[1].send(b"x")
    assert wait_ready(ends[0].fileno(), READABLE, soon(), waker)


def test_closed_waker_counts_as_set(ends: Ends, waker: Waker) -> None:
    waker.close()
    assert not wait_ready(ends[0].fileno(), READABLE, soon(), waker)
    ends[1].send(b"x")
    assert wait_ready(ends[0].fileno(), READABLE, soon(), waker)


def test_long_deadlines_are_waited_for_in_parts(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_WAIT_MS_MAX", 1)
    deadline = Deadline.after(0.02)
    assert not wait_ready(ends[0].fileno(), READABLE, deadline)
    assert deadline.expired


def test_pipes_can_be_waited_for() -> None:
    reader, writer = os.pipe()
    try:
        assert not wait_ready(reader, READABLE, Deadline.after(0))
        assert wait_ready(writer, WRITABLE, Deadline.after(0))
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, 0), (-1, 0), (0.0001, 1), (0.001, 1), (1.5, 1500), (float("inf"), 3_600_000)],
)
def test_timeout_is_rounded_up(seconds: float, expected: int) -> None:
    assert timeout_ms(Deadline.after(seconds, lambda: 0.0)) == expected
