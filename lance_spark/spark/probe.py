"""Where a record starts near an offset, on a server that can't be asked.

What the bytes say is `columnar.chains`; here is how many of them are fetched. The
answer depends on the bytes and on the arguments alone: the task that ends at a point
and the one that starts there ask separately, and have to be told the same.
"""

from __future__ import annotations

from collections.abc import Callable

from lance_spark.columnar.chains import find_meeting, follow_chains

# (start, size) -> the bytes there, fewer only at the end of the range.
Fetch = Callable[[int, int], memoryview]

# Each is tried if the one before it did not do. The first holds enough records of up to
# some 5 KB, the last enough of up to 150 KB; larger ones are not worth the reading.
WINDOW_BYTES = (64 * 1024, 256 * 1024, 1024 * 1024)


def find_boundary(fetch: Fetch, at: int, *, before: int, end: int) -> int | None:
    """Find a position in [at, before) at which a record starts.

    It need not be the first. It can be wrong where values hold records themselves, so
    that whoever reads up to it has to check that a record ends there.

    Args:
        fetch: gets bytes; is asked for those of [at, end) only.
        at: where to look from on.
        before: the answer is below it.
        end: where the range ends. A record may start before it and end behind it.

    Returns:
        The position, or None if the bytes do not tell.
    """
    window = b""
    for size in WINDOW_BYTES:
        rest = min(size, end - at) - len(window)
        window += bytes(fetch(at + len(window), rest)) if rest > 0 else b""
        is_all = at + size >= end or size == WINDOW_BYTES[-1]
        # Half of what is there shows where chains lead that start in the other half.
        reach = min(len(window), before - at) // 2
        found = find_meeting(follow_chains(window), reach, wary=not is_all)
        if found is not None:
            return at + found if at + found < before else None
        # To look much further than the answer may be is not worth the reading.
        if is_all or at + size >= before:
            break
    return None
