"""LWP: its frames, its commands, and the plain dialect of the server in the field."""

from __future__ import annotations

from collections.abc import Callable

from lance_spark.broker.lwp.command import LwpSession
from lance_spark.broker.lwp.plain import PlainSession
from lance_spark.broker.session import Session, Shared
from lance_spark.net.stream import Stream
from lance_spark.wire.lwp import Frame

__all__ = ["session_maker"]


def session_maker(shared: Shared) -> Callable[[Stream], Session[Frame]]:
    """Give the function that makes the session of a connection, in either dialect."""
    if shared.config.dialect == "lwp":
        return lambda stream: LwpSession(stream, shared)
    # The field server forgets committed offsets when it ends, and so does this one.
    committed: dict[tuple[int, int], int] = {}
    return lambda stream: PlainSession(stream, shared, committed)
