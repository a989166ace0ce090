"""How everything is measured that is compared with something else: in turns.

Both sides of a ratio meet the same machine, so that they go one after the other, in an
order that is reversed each time, and the first round of all does not count: in it the
JVM compiles, processes start, and memory is touched for the first time.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from benchmarks._figures import read_cpu_s

MIB = 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True)
class Took:
    """What something took: seconds by the clock, and of processors.

    Processors are counted for this process and all below it: the JVM of Spark, its
    Python workers and the brokers.
    """

    wall_s: float
    cpu_s: float

    @classmethod
    def middle(cls, times: Sequence[Took]) -> Took:
        """Take the medians."""
        return cls(median(x.wall_s for x in times), median(x.cpu_s for x in times))


def time_call(call: Callable[[], object]) -> Took:
    """Time a call."""
    # The time it takes to look at processes is no part of the measurement.
    cpu_s = read_cpu_s()
    start_s = time.perf_counter()
    call()
    wall_s = time.perf_counter() - start_s
    return Took(wall_s, read_cpu_s() - cpu_s)


def take_turns(
    names: Iterable[str], rounds: int, *, warm_up: bool = True
) -> Iterator[tuple[str, bool]]:
    """Say who is next, and whether it counts.

    In the first round the JVM compiles what it has not seen before. It gets faster for
    long after that, and other things on a machine come and go, so that every other
    round goes backwards: what is always last would look best.

    Args:
        names: of those that take turns.
        rounds: how many count.
        warm_up: whether a round comes first that does not; what begins anew each time
            has to warm up by itself.
    """
    order = list(names)
    for turn in range(warm_up + rounds):
        for name in order:
            yield name, turn >= warm_up
        order.reverse()


def collect(
    calls: Mapping[str, Callable[[], _T]], rounds: int, *, warm_up: bool = True
) -> dict[str, list[_T]]:
    """Make calls in turns; give what each returned in the rounds that count."""
    found: dict[str, list[_T]] = {name: [] for name in calls}
    for name, counts in take_turns(calls, rounds, warm_up=warm_up):
        one = calls[name]()
        if counts:
            found[name].append(one)
    return found


def measure(calls: Mapping[str, Callable[[], Took]], rounds: int) -> dict[str, Took]:
    """Make calls in turns; give the median of each."""
    return {name: Took.middle(took) for name, took in collect(calls, rounds).items()}


def touch_memory(most: int = 8 * 1024 * MIB) -> None:
    """Touch half of the memory that is free, and give it back.

    A virtual machine gets a page from its host when it touches it for the first time,
    which takes a second or more per gigabyte. What runs first would pay for that.
    """
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # Not every system tells.
        return
    size = min(free // 2, most) // MIB * MIB
    if size:
        with mmap.mmap(-1, size) as memory:
            for page in range(0, size, mmap.PAGESIZE):
                memory[page] = 1
