"""Deadlines, wakers, and waiting for descriptors."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterator

import pytest

from lance_spark.errors import Timeout
from lance_spark.net import deadline as deadline_module
from lance_spark.net.address import Address
from lance_spark.net.deadline import (
    READABLE,
    WRITABLE,
    Deadline,
    Waker,
    timeout_ms,
    wait_ready,
)
from lance_spark.net.listener import Listener
from tests.net.conftest import LONG_S, Spawn, soon


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_counts_down_to_zero(clock: Clock) -> None:
    deadline = Deadline.after(5, clock)
    assert deadline.remaining() == 5 and not deadline.expired
    clock.now_s += 2
    assert deadline.remaining() == 3 and not deadline.expired
    clock.now_s += 3
    assert deadline.remaining() == 0 and deadline.expired
    clock.now_s += 1
    assert deadline.remaining() == 0 and deadline.expired


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_is_expired(clock: Clock, seconds: float) -> None:
    assert Deadline.after(seconds, clock).expired


def test_endless(clock: Clock) -> None:
    deadline = Deadline.after(float("inf"), clock)
    clock.now_s += 1e9
    assert deadline.remaining() == float("inf") and not deadline.expired


@pytest.mark.parametrize(("seconds", "expected"), [(2, 2), (5, 5), (9, 5), (0, 0)])
def test_sooner_is_the_earlier(clock: Clock, seconds: float, expected: float) -> None:
    assert Deadline.after(5, clock).sooner(seconds).remaining() == expected


def test_sooner_counts_from_now(clock: Clock) -> None:
    deadline = Deadline.after(5, clock)
    clock.now_s += 4
    assert deadline.sooner(3).remaining() == 1
    assert deadline.sooner(0.5).remaining() == 0.5


def test_default_clock_does_not_go_back() -> None:
    before = time.monotonic()
    remaining = Deadline.after(1000).remaining()
    assert 1000 - (time.monotonic() - before) <= remaining <= 1000


def test_repr(clock: Clock) -> None:
    assert repr(Deadline.after(1.5, clock)) == "<Deadline in 1.500 s>"


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


def is_readable(waker: Waker) -> bool:
    poll = select.poll()
    poll.register(waker.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_set_and_clear(waker: Waker) -> None:
    assert not waker.is_set and not is_readable(waker)
    waker.set()
    assert waker.is_set and is_readable(waker)
    waker.clear()
    assert not waker.is_set and not is_readable(waker)
    waker.set()
    assert waker.is_set and is_readable(waker)


def test_setting_twice_is_once(waker: Waker) -> None:
    # More often than a socket has room for, so that it would block.
    for _ in range(5_000):
        waker.set()
    waker.clear()
    assert not waker.is_set and not is_readable(waker)


def test_clearing_what_is_clear(waker: Waker) -> None:
    waker.clear()
    assert not waker.is_set


def test_close_wakes_and_stays_set() -> None:
    waker = Waker()
    waker.close()
    assert waker.is_set
    waker.clear()
    assert waker.is_set and waker.fileno() == -1
    waker.set()
    waker.close()
    assert waker.is_set


def test_close_after_set() -> None:
    waker = Waker()
    waker.set()
    waker.close()
    assert waker.is_set


def test_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("socket.socketpair", refuse)
    with pytest.raises(Timeout, match=r"can't wait: Too many open files; .*ulimit -n"):
        Waker()
    # And no socket is left behind, which would be a warning.
    with pytest.raises(Timeout):
        Listener(Address("127.0.0.1", 0))


Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


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
    monkeypatch.setattr(deadline_module, "_WAIT_MS_MAX", 1)
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
