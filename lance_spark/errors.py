"""The exception tree: every error that this library raises on purpose.

LanceError
├── ProtocolError               bytes that are not the protocol
│   ├── LocalProtocolError      the caller asked to send something impossible
│   └── RemoteProtocolError     the peer sent something impossible
│       └── PayloadOverLimit    … or something larger than this side accepts
├── RecordError                 malformed record, with its byte position
│   └── RecordTooLarge          … or one over the limit
├── RowError                    a row that can't become a record, with its index
├── ConnectionLost              the peer is gone
│   └── TlsRefused              … because one side does not trust the other
├── Timeout                     a deadline passed
├── Unsupported                 the server can't do what was asked
├── DataLoss                    records that were asked for are gone
│   └── OffsetsShifted          … and a plain server's offsets mean something else
├── SplitError                  a range was cut where no record starts
├── CheckpointError             a checkpoint that can't be used
├── Undelivered                 records that were not acknowledged
├── BrokerError                 the broker refused: message, code, details
│   └── one class per reason
├── StoreError                  the log on disk
│   ├── StoreLocked             another process has the data directory
│   ├── StoreClosed             used after close
│   ├── StoreReadOnly           a write failed in a way that can't be taken back
│   │   └── CommitUnknown       … and whether a commit counts is not known yet
│   ├── StoreWriteFailed        a write failed and was taken back
│   ├── Corrupt                 damaged bytes, with topic and byte range
│   ├── DamagedFile             a small file that can't be relied on, with its name
│   ├── OutOfRange              an offset that is not in the log
│   ├── UnknownTopic, TopicExists, InvalidName
│   ├── LimitReached            more than the settings allow
│   └── StageError              StageUnknown, StageExpired, StageMismatch,
│                               BatchGap, CommitConflict
└── OptionError                 a setting the user has to change

Exceptions carry fields; the text is made from them. `retriable` says whether the same
call may succeed later although nothing is changed. `struct.error`, `OSError` and
`ssl.SSLError` never leave the module that met them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


class LanceError(Exception):
    """Root of everything this library raises on purpose."""

    retriable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # Of classes with fields: the arguments of the constructor, for pickle.
        self.args = tuple(vars(self).values())


class ProtocolError(LanceError):
    """Bytes that do not follow the wire protocol."""


class LocalProtocolError(ProtocolError):
    """A message that can't be put on the wire; nothing was sent."""


@dataclass(eq=False, repr=False)
class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that do not follow the protocol.

    Args:
        reason: what was wrong.
        position: byte position in the stream or payload, where one is known.
    """

    reason: str
    position: int | None = None

    def __str__(self) -> str:
        where = "" if self.position is None else f" at byte {self.position}"
        return f"{self.reason}{where}"


class PayloadOverLimit(RemoteProtocolError):
    """The peer announced a payload over the limit; nothing was allocated for it.

    Args:
        what: which payload.
        size: its announced size in bytes.
        limit: the largest size that this side accepts.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} of {size} bytes is over the limit of {limit}")
        self.what = what
        self.size = size
        self.limit = limit
        # The arguments of the constructor, for pickle.
        self.args = (what, size, limit)


@dataclass(eq=False, repr=False)
class RecordError(LanceError):
    """A malformed record inside a buffer of records.

    Args:
        reason: what was wrong.
        position: where the record is, in most buffers its first byte.
        truncated: the buffer ends inside the record, so that more bytes may mend it.
        unit: what the position is: a `byte`, or an `offset` where these count records.
    """

    reason: str
    position: int
    truncated: bool = False
    unit: str = "byte"

    def __str__(self) -> str:
        return f"malformed record at {self.unit} {self.position}: {self.reason}"


class RecordTooLarge(RecordError):
    """A record that is larger than its protocol allows."""


@dataclass(eq=False, repr=False)
class RowError(LanceError):
    """A row that can't be written as a record.

    Args:
        reason: what was wrong and what to change.
        row: index of the row in the columns that were given.
    """

    reason: str
    row: int

    def __str__(self) -> str:
        return f"row {self.row}: {self.reason}"


class ConnectionLost(LanceError):
    """The connection ended before the answer came, or could not be made."""

    retriable = True


class TlsRefused(ConnectionLost):
    """One side does not trust the other or does not speak TLS; retrying won't help."""

    retriable = False


class Timeout(LanceError):
    """A deadline passed before the answer came."""

    retriable = True


@dataclass(eq=False, repr=False)
class Unsupported(LanceError):
    """The server can't do what was asked.

    Args:
        what: what was asked for.
        capability: what the server would have to list in its status; None if it would
            have to list anything at all, because a plain one can't do it.
        server: its address.
        reason: why not, if that has nothing to do with capabilities.
    """

    what: str
    capability: str | None
    server: str
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None:
            told = f"the server {self.server} can't do it: {self.reason}"
            return f"{self.what}: {told}"
        missing = "of any kind" if self.capability is None else repr(self.capability)
        return (
            f"{self.what}: the server {self.server} does not offer it "
            f"(it lists no capability {missing})"
        )


@dataclass(eq=False, repr=False)
class DataLoss(LanceError):
    """Records that were asked for are not in the log any more.

    Args:
        topic: the topic's name or id.
        asked: the first offset that was asked for.
        log_start: where the log starts now; None if the server does not say.
        log_end: where the log ends now.
        reason: how it was noticed.
        unit: what offsets count.
    """

    topic: int | str
    asked: int
    log_start: int | None
    log_end: int | None
    reason: str
    unit: str = "bytes"

    @property
    def missing_bytes(self) -> int | None:
        """How much is gone, in its unit, where that is known."""
        if self.log_start is None:
            return None
        return max(0, self.log_start - self.asked)

    def __str__(self) -> str:
        gone = self.missing_bytes
        missing = f", {gone} {self.unit} gone" if gone else ""
        # A topic that is not there has neither.
        log = f" (log start {self.log_start}, log end {self.log_end})"
        if self.log_start is None and self.log_end is None:
            log = ""
        return (
            f"topic {self.topic!r}: data at offset {self.asked} is lost{missing}: "
            f"{self.reason}{log}"
        )


class OffsetsShifted(DataLoss):
    """A plain server has deleted old records, which shifted the offsets of all others.

    The new place of the next record can't be found out.
    """


@dataclass(eq=False, repr=False)
class SplitError(LanceError):
    """A range was cut inside a record, because a value looks like records.

    Args:
        topic: the topic's name.
        boundary: where the range was cut.
        position: where a record really starts.
    """

    topic: str
    boundary: int
    position: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}: a partition was taken to start at offset "
            f"{self.boundary}, but the record before it ends at {self.position}: "
            "values that look like records, or batches that are none, mislead the "
            "search for record boundaries; set splitting=none to read each topic in "
            "one partition"
        )


@dataclass(eq=False, repr=False)
class CheckpointError(LanceError):
    """A checkpoint of Spark holds something that can't be used.

    Args:
        where: the file or the part of it.
        reason: what is wrong there.
        remedy: what to do.
    """

    where: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}; {self.remedy}"


@dataclass(eq=False, repr=False)
class Undelivered(LanceError):
    """A producer was given records that no server has acknowledged.

    Args:
        topic: the topic's name or id.
        batches: ids of the batches that hold them, oldest first.
        records: how many they are.
        size: their bytes.
        cause: what kept them from being acknowledged, if it is known.
    """

    topic: int | str
    batches: tuple[int, ...]
    records: int
    size: int
    cause: Exception | None = None

    def __str__(self) -> str:
        ids = ", ".join(map(str, self.batches[:5]))
        more = ", …" if len(self.batches) > 5 else ""
        why = "" if self.cause is None else f": {self.cause}"
        return (
            f"topic {self.topic!r}: {self.records} records ({self.size} bytes) in "
            f"batches {ids}{more} are not acknowledged{why}"
        )


class BrokerError(LanceError):
    """The broker refused a request.

    The classes below are what refusals mean, in any protocol. Which number stands for
    which of them is in the protocol's own package, as in `wire.lwp.error`.

    Args:
        message: the broker's own text.
        code: the number that the broker sent; None if this side made the error.
        details: further fields of the answer.
        is_decimal: the protocol writes its codes in decimal, not in hexadecimal.
    """

    def __init__(
        self,
        message: str,
        code: int | None = None,
        details: Mapping[str, Any] | None = None,
        is_decimal: bool = False,
    ) -> None:
        self.message = message
        self.code = code
        self.details: dict[str, Any] = dict(details or {})
        self.is_decimal = is_decimal
        super().__init__(message, code, self.details, is_decimal)

    def __str__(self) -> str:
        code = ""
        if self.code is not None:
            code = f"{self.code} " if self.is_decimal else f"0x{self.code:02X} "
        return f"{self.message} ({code}{type(self).__name__})"


class UnknownError(BrokerError):
    """The broker gave no reason, or one that its protocol does not number."""


class InvalidMagic(BrokerError):
    """The bytes that reached the broker are not its protocol."""


class PayloadTooLarge(BrokerError):
    """A payload or record is over the limit."""


class InvalidPayload(BrokerError):
    """A payload is malformed."""


class InvalidPartitionCount(InvalidPayload):
    """A topic can't have so many partitions."""


class CrcMismatch(BrokerError):
    """A checksum did not match."""


class VersionMismatch(BrokerError):
    """The protocol version is not supported."""


class TopicNotFound(BrokerError):
    """No such topic."""


class TopicAlreadyExists(BrokerError):
    """A topic of that name exists."""


class InvalidTopicName(BrokerError):
    """The topic name is not allowed."""


class TopicDeleted(BrokerError):
    """The topic was deleted."""


class NotLeader(BrokerError):
    """Another node leads; `details["leader_addr"]` names its address."""

    retriable = True


class QuorumNotReached(BrokerError):
    """The write did not reach its quorum."""

    retriable = True


class LeaderUnknown(BrokerError):
    """No leader is known yet."""

    retriable = True


class ClusterNotReady(BrokerError):
    """The cluster is still starting."""

    retriable = True


class RateLimited(BrokerError):
    """Too many requests; `details["retry_after_ms"]` says how long to wait."""

    retriable = True


class Backpressure(BrokerError):
    """The broker's buffers are full."""

    retriable = True


class ConnectionLimit(BrokerError):
    """The broker serves as many connections as it may."""


class AuthenticationRequired(BrokerError):
    """The request needs authentication."""


class AuthenticationFailed(BrokerError):
    """The credentials are wrong."""


class AccessDenied(BrokerError):
    """The rules of the broker do not let this client do that."""


class InvalidOffset(BrokerError):
    """The offset is not one that can be read from."""


class OffsetOutOfRange(BrokerError):
    """The offset is beyond the log's end."""


class AppendConflictError(BrokerError):
    """The next record has another number than the append expects; nothing was stored.

    `details["next_record"]` is the number. The records before it are durable.
    """


class ConsumerNotFound(BrokerError):
    """No such consumer."""


class InternalError(BrokerError):
    """The broker failed because of a bug; its log has the reason."""


class StorageError(BrokerError):
    """The broker could not read or write its disk."""


class OperationTimeout(BrokerError):
    """The broker waited in vain, for its disk or for memory."""

    retriable = True


class StageNotFound(BrokerError):
    """The stage was committed, aborted or never opened."""


class StageExpiredError(BrokerError):
    """The stage expired before its commit."""


class StageMismatchError(BrokerError):
    """The stage does not hold what the commit names."""


class CommitConflictError(BrokerError):
    """The writer committed this sequence with other topics."""


class CommitUnknownError(BrokerError):
    """Whether a commit was carried out is not known yet.

    Its rows may be visible, now or once the broker is started again, or never. The same
    commit, asked for again with its writer id and sequence, is carried out once: that
    is how its outcome becomes known.
    """

    retriable = True


class StoreError(LanceError):
    """The log on disk refused or failed."""


class StoreLocked(StoreError):
    """Another process holds the data directory."""


class StoreClosed(StoreError):
    """The store was used after it was closed."""


class StoreReadOnly(StoreError):
    """An earlier failure left writing unsafe; reading goes on."""


@dataclass(eq=False, repr=False)
class CommitUnknown(StoreReadOnly):
    """A commit was begun, and the store finishes or undoes it when it is next opened.

    Args:
        writer: who commits.
        sequence: which of the writer's commits it is.
        reason: what has failed.
    """

    writer: str
    sequence: int
    reason: str

    def __str__(self) -> str:
        return (
            f"the outcome of commit {self.sequence} of {self.writer!r} is not known: "
            f"{self.reason}; reopen the store (restart the broker), which finishes or "
            "undoes the commit, then commit again with the same writer and sequence"
        )


class StoreWriteFailed(StoreError):
    """A write failed and was taken back: nothing of it is stored."""


@dataclass(eq=False, repr=False)
class Corrupt(StoreError):
    """Damaged bytes in a topic.

    Args:
        where: the topic or file.
        start: first damaged offset.
        end: first offset behind the damage.
        reason: how the damage was noticed.
    """

    where: str
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: damaged bytes [{self.start}, {self.end}): {self.reason}"


@dataclass(eq=False, repr=False)
class DamagedFile(StoreError):
    """A small file of the store is damaged; the store closes what it describes.

    Args:
        root: the data directory.
        file: the file, relative to it.
        reason: how the damage was noticed.
        effect: what can't be done because of it.
    """

    root: Path
    file: str
    reason: str
    effect: str | None = None

    def __str__(self) -> str:
        effect = "" if self.effect is None else f"{self.effect}: "
        return (
            f"{effect}{self.root / self.file} is damaged ({self.reason}); stop the "
            f"broker and run `lance-spark check --repair {self.root}`"
        )


@dataclass(eq=False, repr=False)
class OutOfRange(StoreError):
    """An offset outside the log.

    Args:
        offset: what was asked for.
        start: where the log starts.
        end: where the log ends.
    """

    offset: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"offset {self.offset} is outside the log [{self.start}, {self.end})"


@dataclass(eq=False, repr=False)
class UnknownTopic(StoreError):
    """No topic has that id or name.

    Args:
        topic: the id or name.
        deleted: it did exist once.
    """

    topic: int | str
    deleted: bool = False

    def __str__(self) -> str:
        return f"topic {self.topic!r} {'was deleted' if self.deleted else 'not found'}"


class PartitionedTopic(UnknownTopic):
    """A topic has several partitions, and each of them is a log of its own.

    Args:
        topic: the topic's name.
        partitions: how many it has.
    """

    def __init__(self, topic: str, partitions: int) -> None:
        super().__init__(topic)
        self.args = (topic, partitions)
        self.partitions = partitions

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has {self.partitions} partitions: name one of them, "
            f"{f'{self.topic}/0'!r} to {f'{self.topic}/{self.partitions - 1}'!r}"
        )


@dataclass(eq=False, repr=False)
class AppendConflict(StoreError):
    """The next record does not have the number that the append expects.

    The records before `next_record` are durable when this is raised.

    Args:
        expected: the number that the append asked for.
        next_record: the number that the next record gets.
        next_offset: the offset that it gets.
    """

    expected: int
    next_record: int
    next_offset: int

    def __str__(self) -> str:
        return (
            f"the append expects to write record {self.expected}, but the next record "
            f"is number {self.next_record}; nothing was stored"
        )


class TopicExists(StoreError):
    """A topic of that name exists."""


class InvalidName(StoreError):
    """A topic name that can't be used."""


class LimitReached(StoreError):
    """More than the settings allow; nothing was done."""


class StageError(StoreError):
    """A staged write can't go on."""


class StageUnknown(StageError):
    """No such stage: it was committed, aborted or never opened."""


class StageExpired(StageError):
    """The stage saw no activity for too long and was dropped."""


class StageMismatch(StageError):
    """A stage does not hold what its writer says."""


class BatchGap(StageError):
    """A batch id that does not follow the one before it."""


class CommitConflict(StageError):
    """The same writer and sequence were committed with other topics."""


class OptionError(LanceError):
    """A setting that has to be changed by the user."""
