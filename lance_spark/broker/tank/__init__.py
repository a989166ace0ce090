"""TANK's protocol, served from the logs of this broker."""

from __future__ import annotations

from collections.abc import Callable

from lance_spark.broker.session import Session, Shared
from lance_spark.broker.tank.session import TankSession
from lance_spark.net.stream import Stream
from lance_spark.wire.tank import Frame

__all__ = ["session_maker"]


def session_maker(shared: Shared) -> Callable[[Stream], Session[Frame]]:
    """Give the function that makes the session of a connection."""
    return lambda stream: TankSession(stream, shared)
