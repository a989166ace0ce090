"""The client of LANCE servers: admin, producers, consumers, groups."""

from lance_spark.client.lwp.answer import KnownBounds as Bounds
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.consumer import Consumer
from lance_spark.client.lwp.cursor import ConsumerRecord, PollResult, SeekPosition
from lance_spark.client.lwp.cursor import SeekKind as SeekKind
from lance_spark.client.lwp.group import GroupedConsumer
from lance_spark.client.lwp.offsets import (
    BrokerOffsetStore,
    LockFileOffsetStore,
    MemoryOffsetStore,
    OffsetStore,
    TopicOffset,
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
    "LanceClient",
    "LockFileOffsetStore",
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
    "TopicOffset",
    "consumer_id",
]
