"""How many descriptors this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_file_limit(wanted: int) -> int:
    """Raise the limit of open files to what is wanted, as far as that is allowed.

    No further: where there are very many, some programs take long to start others, and
    select(2) can't wait for all of them.

    Returns:
        The limit that holds now, at least `wanted` if there is none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        # The system may have a limit of its own below the hard one.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            return allowed
    return soft
