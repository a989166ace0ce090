"""ErrorResponse (0xFF), and the one table of error codes, for session and client both.

The codes are those of LWP §12.2 and, from 0x70, those of the extensions. 0x00 (success)
and 0xFF (reserved) never stand in an error response and so have no row. Whether a retry
may help is a property of the exception class.

A response is JSON (LWP §12.1) or a bare text (§5.7, all that the server in the field
sends). A text is matched with the table of its known phrases to get a code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from lance_spark import errors
from lance_spark.errors import BrokerError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.value import dataclass
from lance_spark.wire.lwp.message import (
    TEXT_BYTES_MAX,
    Command,
    DocumentReader,
    Message,
    decode_document,
    encode_document,
    encode_utf8,
)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A row of the table.

    `name` is the specification's, `remedy` a sentence for the user who meets it.
    """

    code: int
    name: str
    exception: type[BrokerError]
    remedy: str

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later (LWP §12.4)."""
        return self.exception.retriable


_ROWS: Mapping[int, tuple[type[BrokerError], str]] = {
    0x01: (
        errors.UnknownError,
        "Look into the server's log: it gave no further reason.",
    ),
    0x02: (
        errors.InvalidMagic,
        "Check that the port is an LWP port and that nothing rewrites the stream.",
    ),
    0x03: (
        errors.PayloadTooLarge,
        "Send smaller batches; a single record can't be over 16 MiB.",
    ),
    0x04: (
        errors.InvalidPayload,
        "Check that the batch is a row of whole TLV records and its count is right.",
    ),
    0x05: (
        errors.CrcMismatch,
        "Set checksum to crc32c or crc32, whichever the server computes.",
    ),
    0x06: (errors.VersionMismatch, "Use a server that speaks LWP version 1."),
    0x10: (errors.TopicNotFound, "Check the topic's name, or create the topic first."),
    0x11: (errors.TopicAlreadyExists, "Use the existing topic or another name."),
    0x12: (
        errors.InvalidTopicName,
        "Use 1 to 255 bytes of letters, digits and hyphens.",
    ),
    0x13: (
        errors.TopicDeleted,
        "Look the topic up again by name; it may have been created anew.",
    ),
    0x20: (errors.NotLeader, "Connect to the leader named in details.leader_addr."),
    0x21: (
        errors.QuorumNotReached,
        "Try again; check that most nodes of the cluster are up.",
    ),
    0x22: (errors.LeaderUnknown, "Try again after the cluster has elected a leader."),
    0x23: (errors.ClusterNotReady, "Try again when the cluster has started."),
    0x30: (
        errors.RateLimited,
        "Wait for details.retry_after_ms, then go on more slowly.",
    ),
    0x31: (errors.Backpressure, "Send more slowly until acknowledgements come again."),
    0x32: (
        errors.ConnectionLimit,
        "Use fewer connections or raise the server's limit.",
    ),
    0x40: (errors.AuthenticationRequired, "Set a token or a client certificate."),
    0x41: (errors.AuthenticationFailed, "Check the token or the client certificate."),
    0x42: (
        errors.AccessDenied,
        "Have the client's name added to the topic's allow-list.",
    ),
    0x50: (errors.InvalidOffset, "Read from an offset that an earlier read returned."),
    0x51: (errors.OffsetOutOfRange, "Use an offset that is not behind the log's end."),
    0x52: (errors.ConsumerNotFound, "Subscribe or join the group again."),
    0x60: (errors.InternalError, "Look into the server's log for the reason."),
    0x61: (
        errors.StorageError,
        "Check the server's disk: free space, permissions, and its log.",
    ),
    0x62: (errors.OperationTimeout, "Try again, or allow the request more time."),
    0x70: (
        errors.StageNotFound,
        "Run the job again: its stage was committed, aborted or never opened.",
    ),
    0x71: (
        errors.StageExpiredError,
        "Run the job again, or let stages live longer on the server.",
    ),
    0x72: (
        errors.StageMismatchError,
        "Run the job again: the server holds other data than the tasks wrote.",
    ),
    0x73: (
        errors.CommitConflictError,
        "Give each target its own writer id, and each commit its own sequence.",
    ),
    0x74: (
        errors.CommitUnknownError,
        "Start the broker again, then commit again with the same writer and sequence.",
    ),
}
# Names of the specification that are not those of the classes.
_NAMES = {
    0x62: "TimeoutError",
    0x71: "StageExpired",
    0x72: "StageMismatch",
    0x73: "CommitConflict",
    0x74: "CommitUnknown",
}

ERROR_CODES: Mapping[int, ErrorCode] = {
    code: ErrorCode(code, _NAMES.get(code, kind.__name__), kind, remedy)
    for code, (kind, remedy) in _ROWS.items()
}
_CODES = {row.exception: row.code for row in ERROR_CODES.values()}
_UNKNOWN = _CODES[errors.UnknownError]


def code_of(error: BrokerError | type[BrokerError]) -> int:
    """Return the number that LWP has for an error; 0x01 if it has none."""
    kind = error if isinstance(error, type) else type(error)
    return next((_CODES[k] for k in kind.__mro__ if k in _CODES), _UNKNOWN)


# What the server in the field says, and the code that LWP has for it.
_PHRASES: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), code)
    for pattern, code in (
        (r"NOT_LEADER: redirect to (?P<leader_addr>\S+)", 0x20),
        (r"NOT_LEADER", 0x22),
        (r"FORWARD_FAILED", 0x21),
        (r"Topic name required", 0x12),
        (r"Topic '.*' already exists", 0x11),
        (r"(Configuration error: )?Topic (\d+ )?not found", 0x10),
        (r"Unknown topic", 0x10),
        (r"(Invalid data: )?Topic name ", 0x12),
        (r"(Protocol error: )?Fetch request payload ", 0x50),
        (r"Invalid .* payload|Invalid payload", 0x04),
        (r"Invalid client command", 0x04),
        (r"Rate limit exceeded", 0x30),
        (r"Authentication required", 0x40),
        (r"Access denied", 0x42),
    )
)


@dataclass(frozen=True, slots=True)
class ErrorResponse(Message):
    """A refusal; `to_exception` makes it something to raise."""

    COMMAND = Command.ERROR_RESPONSE

    code: int
    message: str
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def encode_payload(self) -> list[Buffer]:
        """Return the payload as JSON (LWP §12.1)."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            body["details"] = dict(self.details)
        return [encode_document(body)]

    def encode_text(self) -> list[Buffer]:
        """Return the payload as a bare text (LWP §5.7), without code and details."""
        return [encode_utf8(self.message)]

    @classmethod
    def decode_payload(cls, payload: Buffer) -> ErrorResponse:
        """Read either form.

        Whatever can't be read as JSON is a text: the peer reports a failure, and the
        worst thing to do with it is to fail in another way.
        """
        view = memoryview(payload).cast("B")
        if bytes(view[:1]) == b"{":
            try:
                return cls._read(DocumentReader(decode_document(view, cls.NAME), ""))
            except RemoteProtocolError:
                pass
        return cls.from_text(str(view[:TEXT_BYTES_MAX], "utf-8", "replace"))

    @classmethod
    def _read(cls, reader: DocumentReader) -> ErrorResponse:
        if "code" not in reader:
            return cls.from_text(reader.take("message", str))
        return cls(
            reader.take_uint("code", 32),
            reader.take("message", str, ""),
            reader.take("details", dict, {}),
        )

    @classmethod
    def from_text(cls, text: str) -> ErrorResponse:
        """Find the code that belongs to a server's text; 0x01 if none does."""
        for pattern, code in _PHRASES:
            if match := pattern.match(text):
                return cls(code, text, match.groupdict())
        return cls(_UNKNOWN, text)

    @classmethod
    def from_exception(cls, error: BrokerError) -> ErrorResponse:
        """Make the response that tells a peer of an error."""
        return cls(code_of(error), error.message, error.details)

    def to_exception(self) -> BrokerError:
        """Make the exception; an unknown code is a plain BrokerError."""
        row = ERROR_CODES.get(self.code)
        exception = BrokerError if row is None else row.exception
        return exception(self.message, self.code, self.details)
