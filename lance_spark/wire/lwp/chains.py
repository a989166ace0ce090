"""Find where records start in bytes that begin anywhere.

A server that can't be asked for a record boundary leaves one way to find it: take every
position for the start of a record and see where that leads. Each header says where the
next one is, so that a position starts a chain. Most chains die at once, on a header
that can't be one. Three kinds reach the end of the window:

- The true one. A start inside of a record may lead into it by chance.
- Chance. A value of random bytes has a plausible length at one position in 256, and
  nearly all of those lead out of the window in one hop. A header and the byte before it
  look like a header too, of a length 256 times as large. Such chains have a few hops
  where the true one has many, and those that last are never alone.
- Values that hold records themselves. Their chains have more hops than the true one,
  but end with the value they are in, and lead into the true one there.

So the chain with most hops is believed if no other that leads elsewhere comes near it,
and the boundary is where all starts in the first part of the window have met on it.
What can't be told apart at all is a value that holds records and is larger than that
part. Nothing here reads more than it is given; what is fetched is up to the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_spark.model import Buffer
from lance_spark.records import as_bytes
from lance_spark.value import dataclass
from lance_spark.wire.lwp.record import (
    KEY_LENGTH_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_VALUE_BYTES_MAX,
    TIMESTAMP_BYTES,
    RecordType,
)
from lance_spark.wire.lwp.tlv import read_scattered

# A chain is believed if it has so many times the hops of any that leads elsewhere.
BELIEVED_RATIO = 3
# And if so many of its records end before or at the place where all meet: one that
# starts by chance may lead to the true one over a place that is no boundary.
BELIEVED_HOPS = 3

# Plain integers, as NumPy takes several times longer to compare with an enumeration.
_KEY_VALUE = int(RecordType.KEY_VALUE)
_TIMESTAMPED = int(RecordType.TIMESTAMPED)
_KEY_TIMESTAMPED = int(RecordType.KEY_TIMESTAMPED)
_NULL = int(RecordType.NULL)

_LENGTH: np.dtype[Any] = np.dtype("<u4")
_KEY_LENGTH: np.dtype[Any] = np.dtype("<u2")

# The least and the most that a value of a type can be long.
_LEAST = np.zeros(256, np.int64)
_LEAST[_KEY_VALUE] = KEY_LENGTH_BYTES
_LEAST[_TIMESTAMPED] = TIMESTAMP_BYTES
_LEAST[_KEY_TIMESTAMPED] = TIMESTAMP_BYTES + KEY_LENGTH_BYTES
_MOST = np.full(256, RECORD_VALUE_BYTES_MAX, np.int64)
_MOST[_NULL] = 0

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains that reach the end of a window; an item is a start of one.

    Args:
        end: behind the last position of which the whole header is there.
        starts: where they start, ascending.
        nexts: where the record at each start would end.
        landings: where each chain leaves the window, at `end` or later.
        hops: how many headers lead there.
    """

    end: int
    starts: _Positions
    nexts: _Positions
    landings: _Positions
    hops: _Positions


def follow_chains(data: Buffer) -> Chains:
    """Follow the chain from every position of a window."""
    view = as_bytes(data)
    end = max(len(view) - RECORD_HEADER_BYTES + 1, 0)
    starts, nexts = _find_headers(view, end)
    count = len(starts)
    # Which header a chain goes on with; the last of it goes on with itself, and the
    # item behind all headers stands for what is none.
    index = np.full(end + 1, count, np.int64)
    index[starts] = np.arange(count)
    jumps = np.append(index[np.minimum(nexts, end)], count)
    leaving = np.flatnonzero(nexts >= end)
    jumps[leaving] = leaving
    hops = np.ones(count + 1, np.int64)
    hops[leaving] = hops[count] = 0
    # Each round doubles how far a jump leads.
    while True:
        further = jumps[jumps]
        if np.array_equal(further, jumps):
            break
        hops += hops[jumps]
        jumps = further
    alive = np.flatnonzero(jumps[:count] != count)
    return Chains(
        end=end,
        starts=starts[alive],
        nexts=nexts[alive],
        landings=nexts[jumps[alive]],
        hops=hops[alive] + 1,
    )


def find_meeting(chains: Chains, reach: int, *, wary: bool) -> int | None:
    """Find where a record starts, at `reach` or later.

    A record is taken to start before `reach`, and the answer is true if one does.

    Args:
        chains: those of a window.
        reach: chains that start before have to meet.
        wary: believe no chain that one from `reach` or later comes near, either. Where
            values hold records the last one's always do, so that a window in which all
            is clear holds no such value, or nothing else.

    Returns:
        The first position at which all chains have met that lead where the believed
        one does; None if none is believed or they do not meet.
    """
    count = int(np.searchsorted(chains.starts, reach))
    if not count or reach >= chains.end:
        return None
    best = int(chains.hops[:count].argmax())
    same = chains.landings == chains.landings[best]
    judged = len(same) if wary else count
    rival = int(chains.hops[:judged][~same[:judged]].max(initial=1))
    if chains.hops[best] < BELIEVED_RATIO * (rival + 1):
        return None
    nexts = chains.nexts[:count][same[:count]]
    met = _meet(chains, np.unique(nexts[nexts >= reach]))
    if met is None or chains.hops[best] - chains.hops[met] < BELIEVED_HOPS:
        return None
    return int(chains.starts[met])


def _meet(chains: Chains, heads: _Positions) -> int | None:
    """Let the hindmost of some chains go on until all are at one item."""
    # Items instead of positions; all that is behind the window is one item.
    items: list[int] = np.searchsorted(chains.starts, heads).tolist()
    at, behind = items[0], len(chains.starts)
    if len(items) == 1:
        return at if at < behind else None
    after: list[int] = np.searchsorted(chains.starts, chains.nexts).tolist()
    is_head = bytearray(behind + 1)
    for item in items:
        is_head[item] = True
    count = is_head.count(True)
    while at < behind:
        if count == 1:
            return at
        # It leaves its place, for one where there may be another already.
        follower = after[at]
        count -= is_head[follower]
        is_head[follower] = True
        at = is_head.index(True, at + 1)
    return None


def _find_headers(view: _Bytes, end: int) -> tuple[_Positions, _Positions]:
    """Find what could be the header of a record, and where that record would end."""
    # The highest byte of the length rules out nearly all, at a fraction of the cost.
    high = view[RECORD_HEADER_BYTES - 1 :]
    at = np.flatnonzero((view[:end] != 0) & (high <= RECORD_VALUE_BYTES_MAX >> 24))
    kinds = view[at]
    lengths = read_scattered(view, at + 1, _LENGTH).astype(np.int64)
    good = (lengths >= _LEAST[kinds]) & (lengths <= _MOST[kinds])
    at, kinds, lengths = at[good], kinds[good], lengths[good]
    for kind in (_KEY_VALUE, _KEY_TIMESTAMPED):
        rows = np.flatnonzero(kinds == kind)
        if len(rows):
            good = np.ones(len(at), np.bool_)
            good[rows] = _has_key(view, at[rows], lengths[rows], int(_LEAST[kind]))
            at, kinds, lengths = at[good], kinds[good], lengths[good]
    return at, at + lengths + RECORD_HEADER_BYTES


def _has_key(
    view: _Bytes, at: _Positions, lengths: _Positions, least: int
) -> NDArray[np.bool_]:
    """Say whether keys fit into their records, as far as their lengths are there."""
    key_at = at + RECORD_HEADER_BYTES + least - KEY_LENGTH_BYTES
    there = key_at + KEY_LENGTH_BYTES <= len(view)
    fits = np.ones(len(at), np.bool_)
    keys = read_scattered(view, key_at[there], _KEY_LENGTH)
    fits[there] = keys <= lengths[there] - least
    return fits
