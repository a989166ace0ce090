"""The clients: that of LANCE servers, and a small one for servers of every protocol.

`LanceClient` has admin, producers, consumers and groups. `connect("rustlog://…")` gives
a `LogClient`: topics, bounds, read, follow, append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_spark.late import find_late

if TYPE_CHECKING:
    from lance_spark.client.log import LogClient as LogClient
    from lance_spark.client.log import connect as connect
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

# Spark needs `driver` and what that imports, and no more.
__getattr__, __dir__ = find_late(
    __name__,
    {
        "Bounds": "lance_spark.client.lwp.answer:KnownBounds",
        "BrokerOffsetStore": "lance_spark.client.lwp.offsets",
        "COMPRESSIONS": "lance_spark.client.lwp.writer",
        "Capability": "lance_spark.wire.lwp",
        "Chunk": "lance_spark.client.lwp.reader",
        "ClientConfig": "lance_spark.client.lwp.config",
        "CommitStatus": "lance_spark.wire.lwp",
        "Consumer": "lance_spark.client.lwp.consumer",
        "ConsumerRecord": "lance_spark.client.lwp.cursor",
        "FETCH_BYTES_MAX": "lance_spark.client.lwp.reader",
        "GroupedConsumer": "lance_spark.client.lwp.group",
        "IN_FLIGHT_MAX": "lance_spark.client.outbox",
        "Incarnation": "lance_spark.client.lwp.offsets",
        "IncarnationStore": "lance_spark.client.lwp.offsets",
        "LanceClient": "lance_spark.client.lwp.client",
        "LockFileOffsetStore": "lance_spark.client.lwp.offsets",
        "LogClient": "lance_spark.client.log",
        "MemoryOffsetStore": "lance_spark.client.lwp.offsets",
        "OffsetStore": "lance_spark.client.lwp.offsets",
        "PollResult": "lance_spark.client.lwp.cursor",
        "Producer": "lance_spark.client.lwp.writer",
        "RecordReader": "lance_spark.client.lwp.reader",
        "SeekKind": "lance_spark.client.lwp.cursor",
        "SeekPosition": "lance_spark.client.lwp.cursor",
        "StageContent": "lance_spark.wire.lwp",
        "StageWriter": "lance_spark.client.lwp.writer",
        "StagesCommitted": "lance_spark.wire.lwp",
        "TopicInfo": "lance_spark.wire.lwp",
        "connect": "lance_spark.client.log",
        "consumer_id": "lance_spark.client.lwp.offsets",
    },
)
