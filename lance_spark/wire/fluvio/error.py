"""Fluvio's error codes: their fields, and one table for session and client both.

An error is a number (i16) and fields that depend on it. A number that is not in the
table can't be skipped, as its fields are not known: such a response is malformed. Only
OTHER carries a text, so this is how errors are sent that have no number of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lance_spark import errors
from lance_spark.errors import BrokerError
from lance_spark.model import Buffer
from lance_spark.value import dataclass
from lance_spark.wire.schema import Choice, Cursor, Form, Option, Struct

OK = 0
OTHER = 2
TIMED_OUT = 7
EVICTED = 71

ERROR_CODES: Mapping[int, tuple[type[BrokerError], str]] = {
    -1: (errors.UnknownError, "the server gives no reason"),
    1: (errors.OffsetOutOfRange, "the offset is out of range"),
    OTHER: (errors.UnknownError, "the server refused"),
    6: (errors.NotLeader, "another SPU leads"),
    TIMED_OUT: (errors.OperationTimeout, "the request took too long"),
    10: (errors.PayloadTooLarge, "the message is too large"),
    13: (errors.AccessDenied, "permission denied"),
    56: (errors.StorageError, "the server could not use its disk"),
    60: (errors.InvalidPayload, "the object can't be created so"),
    61: (errors.InvalidPayload, "the object can't be deleted so"),
    EVICTED: (errors.InvalidOffset, "the records were deleted by retention"),
    72: (errors.StorageError, "the partition is full"),
    1000: (errors.InternalError, "the SPU failed"),
    1001: (errors.ClusterNotReady, "the SPU is not registered"),
    1002: (errors.LeaderUnknown, "the SPU is offline"),
    1003: (errors.LeaderUnknown, "the SPU is unknown"),
    1004: (errors.InvalidPayload, "the SPU exists"),
    2000: (errors.InternalError, "the topic failed"),
    2001: (errors.TopicNotFound, "there is no such topic"),
    2002: (errors.TopicAlreadyExists, "the topic exists"),
    2003: (errors.ClusterNotReady, "the topic is not ready yet"),
    2004: (errors.InvalidPartitionCount, "the topic's settings can't be used"),
    2005: (errors.ClusterNotReady, "the topic has no SPU yet"),
    2006: (errors.InvalidTopicName, "the topic's name is not allowed"),
    3000: (errors.ClusterNotReady, "the partition is not ready yet"),
    3001: (errors.NotLeader, "another SPU leads the partition"),
    3002: (errors.ConsumerNotFound, "there is no such stream"),
    5000: (errors.UnknownError, "the connector failed"),
    5001: (errors.UnknownError, "the connector is unknown"),
    5002: (errors.UnknownError, "the connector exists"),
    6000: (errors.UnknownError, "the SmartModule failed"),
    6001: (errors.UnknownError, "the SmartModule is unknown"),
    6002: (errors.UnknownError, "the SmartModule is not valid"),
    6003: (errors.UnknownError, "the SmartModule is of another kind"),
    6005: (errors.UnknownError, "the SmartModules could not be chained"),
    7000: (errors.UnknownError, "the table format failed"),
    7001: (errors.UnknownError, "the table format is unknown"),
    7002: (errors.UnknownError, "the table format exists"),
    8000: (errors.UnknownError, "the derived stream failed"),
    8001: (errors.UnknownError, "the derived stream is unknown"),
    8002: (errors.UnknownError, "the derived stream could not be joined"),
    8003: (errors.UnknownError, "the derived stream is not valid"),
    9000: (errors.InvalidPayload, "the topic does not take this compression"),
}
_FIELDS: Mapping[int, Sequence[Any]] = {
    OTHER: "s",
    TIMED_OUT: "QB",
    EVICTED: "qq",
    72: "sI",
    6001: "s",
    6002: ("s", Option("s")),
    6003: "ss",
    6005: "s",
    8001: "s",
    8003: "s",
}
_CHOICE = Choice("h", {code: _FIELDS.get(code, "") for code in (OK, *ERROR_CODES)})
# The others say less than a text would, or are about what a broker here does not have.
_SENT = (1, 6, 10, 13, 56, 1002, 2001, 2002, 2003, 2004, 2006, 3002)
# Classes that share the code of another.
_LIKE: Mapping[type[BrokerError], type[BrokerError]] = {
    errors.AuthenticationFailed: errors.AccessDenied,
    errors.AuthenticationRequired: errors.AccessDenied,
    errors.Backpressure: errors.OperationTimeout,
    errors.InvalidOffset: errors.OffsetOutOfRange,
    errors.RateLimited: errors.OperationTimeout,
    errors.TopicDeleted: errors.TopicNotFound,
}
# The text of OTHER, which is a text of Fluvio: at most 2^15 - 1 bytes.
_TEXT_LETTERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class ErrorCode(Struct):
    """An error as it is on the wire, or OK; the fields are as the table says."""

    code: int = OK
    fields: tuple[Any, ...] = ()

    def encode(self, form: Form) -> Iterator[Buffer]:
        yield from form.encode(_CHOICE, (self.code, *self.fields))

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> ErrorCode:
        code, *fields = cursor.one(_CHOICE)
        return cls(code, tuple(fields))


NO_ERROR = ErrorCode()


def code_of(error: BrokerError, offset: int | None = None) -> ErrorCode:
    """Return what to send for an error; OTHER and its text if no number fits.

    Args:
        error: it; `details` may say where the log starts and ends, as `log_start` and
            `log_end`.
        offset: which record was asked for, to tell what retention has dropped from
            what is not there yet, for which SPUs have no number.
    """
    start, end = map(error.details.get, ("log_start", "log_end"))
    if offset is not None and start is not None and offset < start:
        return ErrorCode(EVICTED, (offset, start))
    if offset is not None and end is not None and offset > end:
        return _say(error)
    found = _LIKE.get(type(error), type(error))
    if found is errors.OperationTimeout:
        # How long it took is in the log of the broker, and what was asked for is known.
        return ErrorCode(TIMED_OUT, (0, 0))
    for code in _SENT:
        if found is ERROR_CODES[code][0]:
            return ErrorCode(code)
    return _say(error)


def _say(error: BrokerError) -> ErrorCode:
    return ErrorCode(OTHER, (error.message[:_TEXT_LETTERS_MAX],))


def make_error(error: ErrorCode, subject: str) -> BrokerError:
    """Make the exception of an error that is not OK.

    Args:
        error: the answer.
        subject: the topic or partition, for the text.
    """
    exception, text = ERROR_CODES[error.code]
    details = {}
    if error.code == EVICTED:
        details["log_start"] = error.fields[1]
    elif said := [field for field in error.fields if isinstance(field, str)]:
        text = f"{text}: {', '.join(said)}"
    return exception(f"{subject}: {text}", error.code, details)
