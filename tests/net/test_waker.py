from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator

import pytest

from lance_spark.errors import Timeout
from lance_spark.net.address import Address
from lance_spark.net.listener import Listener
from lance_spark.net.waker import Waker


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


def test_listeners_are_called_while_they_listen(waker: Waker) -> None:
    calls: list[str] = []
    with waker.listening(lambda: calls.append("a")):
        waker.set()
        waker.set()
        assert calls == ["a"]
        waker.clear()
        waker.set()
        assert calls == ["a", "a"]
    waker.clear()
    waker.set()
    assert calls == ["a", "a"]


def test_close_wakes_and_stays_set() -> None:
    waker = Waker()
    calls: list[str] = []
    with waker.listening(lambda: calls.append("a")):
        waker.close()
    assert calls == ["a"] and waker.is_set
    waker.clear()
    assert waker.is_set and waker.fileno() == -1
    waker.set()
    waker.close()
    assert calls == ["a"]


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
