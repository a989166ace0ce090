"""Turns: how many sessions compute at the same time, and which of them is next.

A thread per connection lets a crowd of busy clients starve a quiet one: the interpreter
runs one thread at a time and gives each of a hundred its five milliseconds before a
batch of another client is even looked at, and again for each step of it. So a session
that has something to do takes a turn, and gives it back before it waits for anything:
the network, the disk, memory. Sessions that wait for a turn do not compete for the
interpreter.

There are turns of two kinds: for sessions whose turns are short, and for all others.
So long requests never hold up the short ones of other clients. A client that pipelines
many small requests counts as long, too. Among the long sessions, those go first that
have used the least.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time

# A session is long when what it sends at once takes more of the processor than this.
# An append of a small batch takes a third of it.
CPU_S_MAX = 0.0015
# A turn counts with what it took of the processor, and with a part of the time it took
# in all, for requests that wait for the disk. The part is small, as on a busy machine
# every turn takes long.
_WALL_PART = 0.02
# How much the last one counts in the average: a session that was long once has to be
# short for some time before it counts as short again.
_WEIGHT = 1 / 16
# More run at once where there are processors: what is not Python runs in parallel.
_LONG = min(4, max(2, os.cpu_count() or 1))
_SHORT = 4
# Of its fair share, a session gets at least this part while new ones go before it.
_SHARE_MIN = 1 / 8
# When no turn is given back for so long, a session goes on without one: those that have
# one are held by a disk that hangs, and others may need nothing of it.
_PATIENCE_S = 1.0


class _Queue:
    """Turns of one kind."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, threading.Lock]] = []
        self._given_up: set[int] = set()
        self._given_back = 0
        self._numbers = itertools.count()
        # How much a session has used that is served now: where new ones start, so that
        # to have been silent is no credit.
        self._now = 0.0

    def take(self, used_s: float) -> float:
        """Wait for a turn; give the use that the session starts from."""
        with self._lock:
            used_s = max(used_s, self._now)
            if self._free > 0:
                self._free -= 1
                self._now = used_s
                return used_s
            number, gate = next(self._numbers), threading.Lock()
            gate.acquire()
            heapq.heappush(self._waiting, (used_s, number, gate))
        given_back = -1
        while not gate.acquire(timeout=_PATIENCE_S):
            with self._lock:
                if gate.acquire(blocking=False):
                    break
                if self._given_back == given_back:
                    self._given_up.add(number)
                    self._free -= 1
                    break
                given_back = self._given_back
        return used_s

    def give_back(self, took_s: float) -> None:
        """Let the next one go on, after a turn that took so long."""
        with self._lock:
            # Clients that come anew with each request would else all start ahead of a
            # session that stays, and it would wait as long as they come.
            self._now += _SHARE_MIN * took_s / (1 + len(self._waiting))
            self._free += 1
            self._given_back += 1
            while self._free > 0 and self._waiting:
                used_s, number, gate = heapq.heappop(self._waiting)
                if number in self._given_up:
                    self._given_up.remove(number)
                    continue
                self._free -= 1
                self._now = max(self._now, used_s)
                gate.release()


class Turns:
    """The turns of all sessions of a server."""

    def __init__(self, short: int = _SHORT, long: int = _LONG) -> None:
        self.short = _Queue(short)
        self.long = _Queue(long)


class Turn:
    """The turn of one session; only its thread uses it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held: _Queue | None = None
        # Nothing is known of a new session: if it were short, a client could come anew
        # with each long request.
        self._average_s = 2 * CPU_S_MAX
        # What was used since the session has last received something: many requests
        # that came together are as one.
        self._burst_s = 0.0
        # Whether requests were dealt with since then. To receive a part of one says
        # nothing of what it will take.
        self._has_worked = False
        self._used_s = 0.0
        self._cpu_s = 0.0
        self._since_s = 0.0

    def take(self) -> None:
        """Wait until the session may go on; nothing if it has its turn already."""
        if self._held is not None:
            return
        if max(self._average_s, self._burst_s) > CPU_S_MAX:
            self._held = self._turns.long
            self._used_s = self._held.take(self._used_s)
        else:
            self._held = self._turns.short
            self._held.take(0.0)
        self._cpu_s, self._since_s = time.thread_time(), time.perf_counter()

    def rest(self) -> None:
        """Let others go on; nothing if the session has no turn."""
        if self._held is None:
            return
        wall_s = time.perf_counter() - self._since_s
        took_s = time.thread_time() - self._cpu_s
        self._burst_s += took_s + _WALL_PART * wall_s
        self._used_s += wall_s
        held, self._held = self._held, None
        held.give_back(wall_s)

    def renew(self) -> None:
        """Take note that everything is dealt with that had come."""
        self.rest()
        if self._has_worked or self._burst_s > self._average_s:
            self._average_s += (self._burst_s - self._average_s) * _WEIGHT
        self._has_worked, self._burst_s = False, 0.0

    def lengthen(self) -> None:
        """Go on among the long ones, as what comes now is known to take long."""
        if self._held is self._turns.short:
            self.rest()
            self._average_s = max(self._average_s, 2 * CPU_S_MAX)
            self.begin()

    def begin(self) -> None:
        """Take a turn to deal with a request."""
        self.take()
        self._has_worked = True

    def pause(self) -> None:
        """Between two requests: take another turn if this one was long enough."""
        if self._held is not None and time.perf_counter() - self._since_s > CPU_S_MAX:
            self.rest()
            self.take()
