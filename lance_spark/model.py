"""Small frozen values that several layers share. No behaviour beyond validation."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from lance_spark.errors import OptionError, RecordError
from lance_spark.value import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# `bytes`, `bytearray`, `memoryview`, `pyarrow.Buffer`, one-dimensional uint8 arrays:
# anything with a contiguous buffer of bytes.
Buffer = Any


@dataclass(frozen=True, slots=True)
class Scan:
    """Where the records of a buffer start.

    Args:
        starts: int64 positions of the whole records, ascending.
        end: position behind the last whole record.
        fault: why the scan stopped before the end of the buffer, if it did.
    """

    starts: NDArray[np.int64]
    end: int
    fault: RecordError | None = None


# Given the bytes of a batch, says where its records start. The store is handed one of
# these and knows nothing else of what it stores.
Framing = Callable[[Buffer], Scan]


# The rule for topic names, for store, broker, Spark and the command line alike. Other
# servers may refuse more.
TOPIC_NAME_BYTES_MAX = 255
_NOT_IN_TOPIC_NAMES = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")


def find_name_fault(name: str) -> str | None:
    """Say why a text can't be the name of a topic, None if it can.

    The answer continues a sentence: `f"topic name {name!r} {fault}"`.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "has half a character (a lone surrogate): leave that out"
    if not 1 <= size <= TOPIC_NAME_BYTES_MAX:
        return f"has {size} bytes: give 1 to {TOPIC_NAME_BYTES_MAX}"
    if name in (".", ".."):
        return "is a name of directories: give another"
    if _NOT_IN_TOPIC_NAMES.search(name):
        return "has a slash, a backslash or a control character: leave that out"
    return None


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be dropped from a topic; 0 means no limit."""

    max_age_s: int = 0
    max_bytes: int = 0

    def __post_init__(self) -> None:
        if self.max_age_s < 0 or self.max_bytes < 0:
            raise OptionError(
                f"retention of {self.max_age_s} s and {self.max_bytes} bytes: neither "
                "can be negative; 0 means no limit"
            )


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One log of a topic. Topics of LWP have the partition 0 and no other."""

    topic: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first position of a partition that can be read, and the next to be written.

    Positions are bytes in LWP and record numbers in other protocols.
    """

    start: int
    end: int


# How many bytes a mark covers at most, before a position and at the head of the log:
# some hundred records of common size, or several padded ones of a few KiB. A fetch of
# so much takes hardly longer than one of a few bytes. Release 0.5 covered 64 bytes.
MARK_BYTES_MAX = 16 * 1024


class CommitStatus(IntEnum):
    """What became of a commit."""

    COMMITTED = 0
    # The same commit was made before; the offsets are those of that time.
    REPEATED = 1
    # The writer has committed a higher sequence; nothing was changed.
    STALE = 2


@dataclass(frozen=True, slots=True)
class StageContent:
    """A stage as its writer knows it; the broker refuses the commit if it differs."""

    stage_id: int
    batch_count: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class OffsetMark:
    """How a log looked when a position was written down, where positions may shift.

    Args:
        size: how many bytes before the position it covers, at most `MARK_BYTES_MAX`.
        crc: their CRC32C.
        head_size: how many bytes at the head of the log it covers; None if the bytes
            before the position are all there are, or in a mark of release 0.5.
        head_crc: their CRC32C.
        end: where the log ended; None in a mark of release 0.5.
    """

    size: int
    crc: int
    head_size: int | None = None
    head_crc: int | None = None
    end: int | None = None

    def to_document(self) -> dict[str, Any]:
        """Return what checkpoints hold of it, keys in sorted order."""
        document: dict[str, Any] = {"bytes": self.size, "crc32c": self.crc}
        if self.end is not None:
            document["end"] = self.end
        if self.head_size is not None:
            document["head"] = {"bytes": self.head_size, "crc32c": self.head_crc}
        return document


@dataclass(frozen=True, slots=True)
class Location:
    """A record boundary: where it is, which record starts there, when it came.

    `append_time_ns` is 0 at the end of the log, where no record is yet.
    """

    offset: int
    record: int
    append_time_ns: int
