"""How much of each topic goes into the next batch: decisions only.

The rules, in the order in which they win:

1. A batch stays within its limits to the byte and to the record. The one exception is a
   batch of exactly one record, which is larger than the limit by itself.
2. Topics take turns at being first. The one whose turn it is gets its first record at
   least, so that each topic with a backlog advances once in as many batches as there
   are topics, however small its share is. If that record alone is over the limit, it
   is the whole batch: it would otherwise wait until all other topics are read.
3. Every other topic gets its first record, too, if there is room for those of all; if
   not, some do, in turn, from one half of the limit.
4. Otherwise the limit is shared in proportion to the bytes that wait.
5. What is left over, because records do not end where shares do, goes to others.

Nothing here talks to a server, except through the rulers it is given. Each ruler is
always asked from the same start on, for quotas that only grow: that is cheap for rulers
that have to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from lance_spark.model import Partition
from lance_spark.value import dataclass

if TYPE_CHECKING:
    from lance_spark.client.driver import Ruler

# What is left is shared again in proportion while it is an eighth of the limit, so many
# times. Less than that goes to any partition that can use it.
_ROUNDS_MAX = 2
_ROUND_PARTS = 8
# Handing out a rest ends after so many topics in a row whose next record is too large:
# asking a thousand of them costs more than a batch that is a record short.
_MISSES_MAX = 8


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in one partition, [start, end), and what measures its records."""

    partition: Partition
    start: int
    end: int
    ruler: Ruler


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """How much a batch may hold; None for no limit."""

    max_bytes: int | None = None
    max_records: int | None = None

    def allows(self, size: int, records: int = 0) -> bool:
        """Tell whether so much is within the limit."""
        return (self.max_bytes is None or size <= self.max_bytes) and (
            self.max_records is None or records <= self.max_records
        )

    def halve(self) -> BatchLimit:
        """Return half of the limit."""
        both = (self.max_bytes, self.max_records)
        return BatchLimit(*(None if most is None else most // 2 for most in both))


def admit(
    backlogs: Sequence[Backlog], limit: BatchLimit, *, turn: int
) -> dict[Partition, int]:
    """Say where a batch ends in each partition.

    Args:
        backlogs: the partitions, in the same order each time.
        limit: the limits of the batch.
        turn: a number that is one higher for each batch.

    Returns:
        By partition the record boundary where its part ends; its start if it has none.

    Raises:
        LanceError: what a ruler raises.
    """
    ends = {backlog.partition: backlog.start for backlog in backlogs}
    waiting = _take_turns(backlogs, turn)
    size = sum(backlog.end - backlog.start for backlog in waiting)
    if limit.allows(size) and limit.max_records is None:
        parts = [_Part(backlog) for backlog in waiting]
        for part in parts:
            part.grow(None, None)
    elif len(waiting) == 1:
        parts = [_admit_one(waiting[0], limit)]
    else:
        parts = _share(waiting, limit)
    ends.update((part.backlog.partition, part.end) for part in parts)
    return ends


def _take_turns(backlogs: Sequence[Backlog], turn: int) -> list[Backlog]:
    # Over all topics and not over those with a backlog, whose number changes from batch
    # to batch: a topic could be passed over for ever.
    first = turn % len(backlogs) if backlogs else 0
    order = [*backlogs[first:], *backlogs[:first]]
    return [backlog for backlog in order if backlog.start < backlog.end]


class _Part:
    """What one topic has of the batch so far."""

    __slots__ = ("backlog", "end", "first", "records")

    def __init__(self, backlog: Backlog, first: int | None = None) -> None:
        self.backlog = backlog
        self.end = backlog.start
        # End of the first record, where it is known.
        self.first = backlog.start if first is None else first
        # Counted only where records are limited.
        self.records = 0

    @property
    def size(self) -> int:
        return self.end - self.backlog.start

    @property
    def first_size(self) -> int:
        return self.first - self.backlog.start

    @property
    def rest(self) -> int:
        return self.backlog.end - self.end

    def may_use(self, more_bytes: int | None) -> bool:
        """Tell what is known without asking: whether the first record fits."""
        return self.size > 0 or more_bytes is None or self.first_size <= more_bytes

    def grow(self, max_bytes: int | None, max_records: int | None) -> None:
        """Take what fits into a quota that is not below the last one."""
        start, ruler = self.backlog.start, self.backlog.ruler
        end = ruler.fit(
            start, self.backlog.end, max_bytes=max_bytes, max_records=max_records
        )
        if end <= self.end:
            return
        self.end = end
        if max_records is not None:
            # No more than fit, if the log loses its start while it is counted.
            self.records = min(ruler.count(start, end), max_records)


def _admit_one(backlog: Backlog, limit: BatchLimit) -> _Part:
    part = _Part(backlog)
    part.grow(limit.max_bytes, limit.max_records)
    if not part.size:
        first = backlog.ruler.step(backlog.start, backlog.end)
        part.end = backlog.start if first is None else first
    return part


def _share(waiting: Sequence[Backlog], limit: BatchLimit) -> list[_Part]:
    """Divide a limit among topics that are in the order of their turns."""
    parts = []
    for backlog in waiting:
        first = backlog.ruler.step(backlog.start, backlog.end)
        if first is not None:
            parts.append(_Part(backlog, first))
    if not parts:
        return parts
    if not limit.allows(parts[0].first_size):
        parts[0].end = parts[0].first
        return parts[:1]
    batch = _Sharing(parts, limit)
    batch.offer(parts, floors=_reserve(parts, limit))
    batch.hand_on_rest()
    return parts


def _reserve(parts: Sequence[_Part], limit: BatchLimit) -> list[bool]:
    """Say which parts get a first record in any case."""
    sizes = [part.first_size for part in parts]
    if limit.allows(sum(sizes), len(parts)):
        return [True] * len(parts)
    # Small topics must not keep a large one from its share, so they have one half.
    half = limit.halve()
    reserved, size, records = [True], sizes[0], 1
    for first_size in sizes[1:]:
        is_room = half.allows(size + first_size, records + 1)
        reserved.append(is_room)
        if is_room:
            size, records = size + first_size, records + 1
    return reserved


class _Sharing:
    """Parts that grow, and what is left of the limit for them."""

    def __init__(self, parts: Sequence[_Part], limit: BatchLimit) -> None:
        self.parts = parts
        self.limit = limit
        self.left_bytes, self.left_records = limit.max_bytes, limit.max_records

    def offer(self, parts: Sequence[_Part], *, floors: Sequence[bool]) -> None:
        """Share what is left by backlog, with a first record where a floor is."""
        weights = [part.rest for part in parts]
        pairs = zip(parts, floors, strict=True)
        sizes = [part.first_size if floor else 0 for part, floor in pairs]
        counts = [int(floor) for floor in floors]
        bytes_each = _apportion_limit(self.left_bytes, weights, sizes)
        records_each = _apportion_limit(self.left_records, weights, counts)
        for part, more_bytes, more_records in zip(
            parts, bytes_each, records_each, strict=True
        ):
            self._grow(part, more_bytes, more_records)

    def hand_on_rest(self) -> None:
        """Give what is left to parts that can use it."""
        for _ in range(_ROUNDS_MAX):
            parts = [part for part in self.parts if part.rest]
            if not parts or not self._is_much_left():
                break
            self.offer(parts, floors=[False] * len(parts))
        misses = 0
        for part in self.parts:
            if 0 in (self.left_bytes, self.left_records) or misses == _MISSES_MAX:
                break
            if part.rest and part.may_use(self.left_bytes):
                grown = self._grow(part, self.left_bytes, self.left_records)
                misses = 0 if grown else misses + 1

    def _grow(
        self, part: _Part, more_bytes: int | None, more_records: int | None
    ) -> bool:
        size, records = part.size, part.records
        if 0 in (more_bytes, more_records) or not part.may_use(more_bytes):
            return False
        part.grow(
            None if more_bytes is None else size + more_bytes,
            None if more_records is None else records + more_records,
        )
        if self.left_bytes is not None:
            self.left_bytes -= part.size - size
        if self.left_records is not None:
            self.left_records -= part.records - records
        return part.size > size

    def _is_much_left(self) -> bool:
        pairs = (
            (self.left_bytes, self.limit.max_bytes),
            (self.left_records, self.limit.max_records),
        )
        return all(
            left is None or limit is None or left * _ROUND_PARTS >= limit > 0
            for left, limit in pairs
        )


def _apportion_limit(
    pot: int | None, weights: Sequence[int], floors: Sequence[int]
) -> Sequence[int | None]:
    return [None] * len(weights) if pot is None else apportion(pot, weights, floors)


def apportion(pot: int, weights: Sequence[int], floors: Sequence[int]) -> list[int]:
    """Divide a number in proportion to weights, but never below floors.

    Args:
        pot: what is divided; not less than the floors together.
        weights: above 0.
        floors: what each gets at least.

    Returns:
        What each gets: its floor where its share is less, otherwise its share of what
        these leave, rounded so that the sum is exact.
    """
    shares = list(floors)
    weight = sum(weights)
    rising = sorted(range(len(weights)), key=lambda i: Fraction(floors[i], weights[i]))
    # The part that needs its floor most makes the share of all others smaller, so that
    # the next may need its own floor. Once one part does not, none of the rest does.
    while rising and pot * weights[rising[-1]] < floors[rising[-1]] * weight:
        index = rising.pop()
        pot -= floors[index]
        weight -= weights[index]
    reached = given = 0
    for index in sorted(rising):
        reached += weights[index]
        shares[index] = pot * reached // weight - given
        given += shares[index]
    return shares
