"""The segmented log on disk. It knows no protocol: its user brings the framing."""

from lance_spark.model import CommitStatus
from lance_spark.store.check import Progress, check_store
from lance_spark.store.commit import CommitResult, NamedStage
from lance_spark.store.config import Fsync, StoreConfig
from lance_spark.store.consumers import ConsumerKey, parse_consumers
from lance_spark.store.context import Finding, Severity, Wake
from lance_spark.store.decisions import CommittedRange, Job
from lance_spark.store.document import FIRST_STAGE_ID, decode_document
from lance_spark.store.files import File, Files, OsFile, OsFiles
from lance_spark.store.journal import parse_journal
from lance_spark.store.log import Appended, Point
from lance_spark.store.reader import Slice, View, combine_crc32c
from lance_spark.store.repair import Answers, repairing
from lance_spark.store.stage import Stage
from lance_spark.store.store import Store
from lance_spark.store.topic import DEFAULT_TOPIC, Topic, TopicMetadata, check_name

# The name of a `Point` at the start of a log up to release 0.6.
LogStart = Point

__all__ = [
    "DEFAULT_TOPIC",
    "FIRST_STAGE_ID",
    "Answers",
    "Appended",
    "CommitResult",
    "CommitStatus",
    "CommittedRange",
    "ConsumerKey",
    "File",
    "Files",
    "Finding",
    "Fsync",
    "Job",
    "LogStart",
    "NamedStage",
    "OsFile",
    "OsFiles",
    "Point",
    "Progress",
    "Severity",
    "Slice",
    "Stage",
    "Store",
    "StoreConfig",
    "Topic",
    "TopicMetadata",
    "View",
    "Wake",
    "check_name",
    "check_store",
    "combine_crc32c",
    "decode_document",
    "parse_consumers",
    "parse_journal",
    "repairing",
]
