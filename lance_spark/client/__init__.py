"""The clients: that of LANCE servers, and a small one for servers of every protocol.

`LanceClient` has admin, producers, consumers and groups. `connect("rustlog://…")` gives
a `LogClient`: topics, bounds, read, follow, append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_spark.client.lwp.answer import KnownBounds as Bounds
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.consumer import Consumer
from lance_spark.client.lwp.cursor import ConsumerRecord, PollResult, SeekPosition
from lance_spark.client.lwp.cursor import SeekKind as SeekKind
from lance_spark.client.lwp.group import GroupedConsumer
from lance_spark.client.lwp.offsets import (
    BrokerOffsetStore,
    Incarnation,
    IncarnationStore,
    LockFileOffsetStore,
    MemoryOffsetStore,
    OffsetStore,
    consumer_id,
)
from lance_spark.client.lwp.reader import FETCH_BYTES_MAX as FETCH_BYTES_MAX
from lance_spark.client.lwp.reader import Chunk, RecordReader
from lance_spark.client.lwp.writer import COMPRESSIONS as COMPRESSIONS
from lance_spark.client.lwp.writer import Producer, StageWriter
from lance_spark.client.outbox import IN_FLIGHT_MAX as IN_FLIGHT_MAX
from lance_spark.wire.lwp import (
    Capability,
    CommitStatus,
    StageContent,
    StagesCommitted,
    TopicInfo,
)

if TYPE_CHECKING:
    from lance_spark.client.log import LogClient as LogClient
    from lance_spark.client.log import connect as connect

__all__ = [
    "Bounds",
    "BrokerOffsetStore",
    "Capability",
    "Chunk",
    "ClientConfig",
    "CommitStatus",
    "Consumer",
    "ConsumerRecord",
    "GroupedConsumer",
    "Incarnation",
    "IncarnationStore",
    "LanceClient",
    "LockFileOffsetStore",
    "LogClient",
    "MemoryOffsetStore",
    "OffsetStore",
    "PollResult",
    "Producer",
    "RecordReader",
    "SeekPosition",
    "StageContent",
    "StageWriter",
    "StagesCommitted",
    "TopicInfo",
    "connect",
    "consumer_id",
]


def __getattr__(name: str) -> Any:
    """Import what needs Arrow when it is first used."""
    if name not in ("LogClient", "connect"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lance_spark.client import log

    return getattr(log, name)
