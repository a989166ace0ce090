"""The one table of Kimberlite's error codes, for session and client both.

A code is the number of a choice, so that releases know different ones; those from 29 on
came with 0.9. Facts that go with an error stand at the end of its text, as "…, actual
3" of the server in the field does: `text_of` puts them there, `make_error` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lance_spark import errors
from lance_spark.errors import BrokerError

# Of several codes for a class, the first is the one to send.
ERROR_CODES: Mapping[int, tuple[str, type[BrokerError]]] = {
    0: ("Unknown", errors.UnknownError),
    1: ("InternalError", errors.InternalError),
    2: ("InvalidRequest", errors.InvalidPayload),
    3: ("AuthenticationFailed", errors.AuthenticationFailed),
    5: ("StreamNotFound", errors.TopicNotFound),
    4: ("TenantNotFound", errors.TopicNotFound),
    6: ("TableNotFound", errors.TopicNotFound),
    7: ("QueryParseError", errors.InvalidPayload),
    8: ("QueryExecutionError", errors.InvalidPayload),
    9: ("PositionAhead", errors.OffsetOutOfRange),
    10: ("StreamAlreadyExists", errors.TopicAlreadyExists),
    11: ("InvalidOffset", errors.InvalidOffset),
    12: ("StorageError", errors.StorageError),
    13: ("ProjectionLag", errors.OperationTimeout),
    14: ("RateLimited", errors.RateLimited),
    15: ("NotLeader", errors.NotLeader),
    16: ("OffsetMismatch", errors.AppendConflictError),
    17: ("SubscriptionNotFound", errors.ConsumerNotFound),
    18: ("SubscriptionClosed", errors.ConsumerNotFound),
    19: ("SubscriptionBackpressure", errors.Backpressure),
    20: ("ApiKeyNotFound", errors.AuthenticationFailed),
    21: ("TenantAlreadyExists", errors.TopicAlreadyExists),
    22: ("ConsentNotFound", errors.AccessDenied),
    23: ("ConsentExpired", errors.AccessDenied),
    24: ("ErasureNotFound", errors.InvalidPayload),
    25: ("ErasureAlreadyComplete", errors.InvalidPayload),
    26: ("ErasureExempt", errors.InvalidPayload),
    27: ("BreachNotFound", errors.InvalidPayload),
    28: ("ExportNotFound", errors.InvalidPayload),
    29: ("UniqueConstraintViolation", errors.InvalidPayload),
    30: ("RowVersionChainTooLarge", errors.InvalidPayload),
}
# Codes after which clients in the field ask again by themselves.
RETRIABLE = frozenset({1, 12, 13, 14, 15})

_INTERNAL = 1
# A longer text is cut: it may quote what a client has sent.
_TEXT_MAX = 8 * 1024
# Classes that are sent with the code of another, where theirs is missing or about
# something else. Whatever may pass is sent with a code of RETRIABLE.
_SENT: Mapping[type[BrokerError], int] = {
    errors.AccessDenied: 3,
    errors.AuthenticationRequired: 3,
    errors.Backpressure: 14,
    errors.ConnectionLimit: 14,
    errors.CrcMismatch: 2,
    errors.InvalidPartitionCount: 2,
    errors.InvalidTopicName: 2,
    errors.LeaderUnknown: 15,
    errors.PayloadTooLarge: 2,
    errors.TopicDeleted: 5,
    errors.VersionMismatch: 2,
}
# The detail that goes with a code, and the words before it at the end of the text.
_FACTS: Mapping[int, tuple[str, str]] = {
    11: ("log_start", "first offset"),
    15: ("leader_addr", "try"),
    16: ("next_record", "actual"),
}
# "try" is the word of the specification. The server in the field says "not the leader
# (view: 3, leader hint: 10.0.0.2:5432)", or "unknown" in place of the address.
_LEADER = re.compile(r"\b(?:try|leader hint:) (?!unknown\b)([^\s,)]{1,300})\)?$")


def code_of(error: BrokerError | type[BrokerError]) -> int:
    """Return Kimberlite's number for an error; that of a failure if none fits.

    One that `make_error` made keeps the number that it was made of: several numbers
    stand for some of the classes.
    """
    code = error.code if isinstance(error, BrokerError) else None
    if code is not None and code in ERROR_CODES:
        return code
    kind = error if isinstance(error, type) else type(error)
    fits = (code for code, (_, each) in ERROR_CODES.items() if each is kind)
    return _SENT.get(kind, next(fits, _INTERNAL))


def text_of(error: BrokerError) -> str:
    """Return the text of an error, with the fact that a client needs to go on."""
    detail, words = _FACTS.get(code_of(error), ("", ""))
    text = error.message[:_TEXT_MAX]
    return (
        f"{text}, {words} {error.details[detail]}" if detail in error.details else text
    )


def make_error(code: int, message: str) -> BrokerError:
    """Make the exception of a code; an unknown one is no reason to ask again."""
    name, exception = ERROR_CODES.get(code, ("", errors.UnknownError))
    details = dict(_read_fact(code, message))
    text = message or name or f"error {code}"
    return exception(text, code, details, is_decimal=True)


def _read_fact(code: int, message: str) -> Iterator[tuple[str, Any]]:
    detail, words = _FACTS.get(code, ("", ""))
    if detail == "leader_addr":
        if (leader := _LEADER.search(message)) is not None:
            yield detail, leader[1]
    # The longest number of 64 bits has 20 digits.
    elif words and (found := re.search(rf"\b{words} ([0-9]{{1,20}})$", message)):
        yield detail, int(found[1])
