"""Kimberlite's protocol, served from the logs of this broker."""

from __future__ import annotations

from collections.abc import Callable

from lance_spark.broker.kimberlite.session import KimberliteSession
from lance_spark.broker.kimberlite.sql import Limits, Queries
from lance_spark.broker.session import Session, Shared
from lance_spark.net.stream import Stream
from lance_spark.wire.kimberlite import Frame

__all__ = ["session_maker"]


def session_maker(shared: Shared) -> Callable[[Stream], Session[Frame]]:
    """Give the function that makes the session of a connection."""
    config = shared.config
    queries = Queries(Limits(config.query_memory_bytes_max, config.query_timeout_s))
    return lambda stream: KimberliteSession(stream, shared, queries)
