"""Fluvio's protocol, served from the logs of this broker.

A cluster of Fluvio has a controller (SC), which knows the topics, and processing units
(SPU), which have the records. This broker is both, each at an address of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from lance_spark.broker.fluvio.sc import Changes, ScSession
from lance_spark.broker.fluvio.spu import SpuSession
from lance_spark.broker.session import Session, Shared
from lance_spark.net.stream import Stream
from lance_spark.wire.fluvio import Frame

__all__ = ["sc_session_maker", "spu_session_maker"]


def sc_session_maker(shared: Shared) -> Callable[[Stream], Session[Frame]]:
    """Give the function that makes the session of a connection with the SC."""
    changes = Changes(shared.exchange.service)
    return lambda stream: ScSession(stream, shared, changes)


def spu_session_maker(shared: Shared) -> Callable[[Stream], Session[Frame]]:
    """Give the function that makes the session of a connection with the SPU."""
    return lambda stream: SpuSession(stream, shared)
