"""The segmented log on disk. It knows no protocol: its user brings the framing."""

from lance_spark.store.check import check_store
from lance_spark.store.commit import CommitResult, CommitStatus, NamedStage
from lance_spark.store.config import Fsync, StoreConfig
from lance_spark.store.extent import Appended, LogStart
from lance_spark.store.finding import Finding, Severity
from lance_spark.store.reader import Slice, View
from lance_spark.store.store import Store
from lance_spark.store.topic import DEFAULT_TOPIC, Topic, TopicMetadata
from lance_spark.store.writers import CommittedRange

__all__ = [
    "DEFAULT_TOPIC",
    "Appended",
    "CommitResult",
    "CommitStatus",
    "CommittedRange",
    "Finding",
    "Fsync",
    "LogStart",
    "NamedStage",
    "Severity",
    "Slice",
    "Store",
    "StoreConfig",
    "Topic",
    "TopicMetadata",
    "View",
    "check_store",
]
