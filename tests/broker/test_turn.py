"""Turns: so many at once, the short apart from the long, and none waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from lance_spark.broker import turn as module
from lance_spark.broker.turn import CPU_S_MAX, Turn, Turns
from tests.broker.kit import PATIENCE_S, eventually


class Clock:
    """Time that passes when it is told to, of the processor and in all."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0

    def spend(self, cpu_s: float, wall_s: float | None = None) -> None:
        self.cpu_s += cpu_s
        self.wall_s += cpu_s if wall_s is None else wall_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "thread_time", lambda: clock.cpu_s)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.wall_s)
    return clock


def settle_down(turn: Turn, clock: Clock) -> Turn:
    """Let a session have short turns until it counts as short."""
    for _ in range(100):
        turn.begin()
        clock.spend(CPU_S_MAX / 10)
        turn.renew()
    turn.take()
    assert turn._held is turn._turns.short
    turn.renew()
    return turn


@contextmanager
def waiting(turn: Turn) -> Iterator[threading.Event]:
    """Have another thread take a turn, which waits; tell when it has it."""
    has_it, let_go = threading.Event(), threading.Event()

    def run() -> None:
        turn.take()
        has_it.set()
        assert let_go.wait(PATIENCE_S)
        turn.rest()

    thread = threading.Thread(target=run, daemon=True)
    queues = (turn._turns.short, turn._turns.long)
    before = sum(len(queue._waiting) for queue in queues)
    thread.start()
    assert eventually(
        lambda: has_it.is_set() or sum(len(queue._waiting) for queue in queues) > before
    )
    try:
        yield has_it
    finally:
        let_go.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_so_many_at_once(clock: Clock) -> None:
    turns = Turns(short=1, long=2)
    first, second = Turn(turns), Turn(turns)
    first.take()
    first.take()
    second.take()
    with waiting(Turn(turns)) as third:
        assert not third.is_set()
        first.rest()
        first.rest()
        assert third.wait(PATIENCE_S)
    second.rest()
    assert turns.long._free == 2


def test_the_long_do_not_hold_up_the_short(clock: Clock) -> None:
    turns = Turns(short=1, long=1)
    quick, slow = settle_down(Turn(turns), clock), Turn(turns)
    slow.take()
    quick.take()
    quick.rest()
    slow.rest()


def test_one_long_request_is_remembered(clock: Clock) -> None:
    turns = Turns()
    turn = settle_down(Turn(turns), clock)
    turn.begin()
    clock.spend(0.05)
    turn.renew()
    # Receiving parts of the next one does not make the session short again.
    for _ in range(100):
        turn.take()
        assert turn._held is turns.long
        clock.spend(0.00001)
        turn.renew()
    settle_down(turn, clock)


def test_a_session_that_waits_for_the_disk_is_long(clock: Clock) -> None:
    turns = Turns()
    turn = settle_down(Turn(turns), clock)
    for _ in range(50):
        turn.begin()
        clock.spend(0.0001, wall_s=0.1)
        turn.renew()
    turn.take()
    assert turn._held is turns.long
    turn.renew()


def test_what_is_known_to_be_long(clock: Clock) -> None:
    turns = Turns()
    turn = settle_down(Turn(turns), clock)
    turn.begin()
    turn.lengthen()
    assert turn._held is turns.long
    turn.lengthen()
    turn.rest()
    assert (turns.short._free, turns.long._free) == (4, module._LONG)


def test_many_small_requests_make_room(clock: Clock) -> None:
    """Between two of them, when the turn has been long enough."""
    turns = Turns(short=1, long=1)
    flood = Turn(turns)
    flood.begin()
    with waiting(Turn(turns)) as other:
        clock.spend(CPU_S_MAX / 2)
        flood.pause()
        assert not other.is_set()
        clock.spend(CPU_S_MAX)
        thread = threading.Thread(target=flood.pause, daemon=True)
        thread.start()
        assert other.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert flood._held is turns.long
    flood.rest()


def test_who_has_used_least_is_next(clock: Clock) -> None:
    turns = Turns(long=1)
    greedy, modest, holder = Turn(turns), Turn(turns), Turn(turns)
    for turn, used_s in ((modest, 1.0), (greedy, 5.0)):
        turn.take()
        clock.spend(used_s)
        turn.rest()
    turns.long._now = 0.0
    modest._used_s, greedy._used_s = 1.0, 5.0
    holder.take()
    with waiting(greedy) as second, waiting(modest) as first:
        holder.rest()
        assert first.wait(PATIENCE_S)
        assert not second.is_set()


def test_clients_that_come_anew_do_not_keep_one_out_that_stays(clock: Clock) -> None:
    """Each of them has used nothing yet, and they come faster than they are served."""
    turns = Turns(long=1)
    staying = Turn(turns)
    staying.take()
    clock.spend(0.5)
    staying.rest()
    with ExitStack() as stack:
        holder = stack.enter_context(ExitStack())
        holder.enter_context(waiting(Turn(turns)))
        place = stack.enter_context(ExitStack())
        served = place.enter_context(waiting(staying))
        for _ in range(200):
            following = stack.enter_context(ExitStack())
            fresh = following.enter_context(waiting(Turn(turns)))
            clock.spend(0.1)
            holder.close()
            assert eventually(lambda: served.is_set() or fresh.is_set())  # noqa: B023
            if served.is_set():
                place.close()
                return
            holder = following
        pytest.fail("the session that stays has waited for 200 others")


def test_a_turn_that_never_comes_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs: others go on without a turn, and one more is not too many."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    turns = Turns(long=1)
    stuck, other = Turn(turns), Turn(turns)
    stuck.take()
    other.take()
    other.rest()
    stuck.rest()
    assert turns.long._free == 1
    assert turns.long._given_up == set()


def test_many_requests_that_come_together_are_as_one(clock: Clock) -> None:
    """Each is short, and its answer is sent in between."""
    turns = Turns()
    turn = settle_down(Turn(turns), clock)
    kinds = []
    for _ in range(20):
        turn.begin()
        kinds.append(turn._held is turns.long)
        clock.spend(CPU_S_MAX / 8)
        turn.rest()
    assert kinds == [False] * 8 + [True] * 12
    turn.renew()
