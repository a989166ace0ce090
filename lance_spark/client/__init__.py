"""The client of LANCE servers: admin, producers, consumers, groups."""

from lance_spark.client.client import LanceClient
from lance_spark.client.config import ClientConfig
from lance_spark.client.consumer import Consumer
from lance_spark.client.fetch import Bounds
from lance_spark.client.group import GroupedConsumer
from lance_spark.client.identity import consumer_id
from lance_spark.client.offsets import (
    BrokerOffsetStore,
    LockFileOffsetStore,
    MemoryOffsetStore,
    OffsetStore,
    TopicOffset,
)
from lance_spark.client.poll import ConsumerRecord, PollResult
from lance_spark.client.producer import Producer
from lance_spark.client.reader import Chunk, RecordReader
from lance_spark.client.seek import SeekPosition
from lance_spark.client.stage import StageWriter
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
