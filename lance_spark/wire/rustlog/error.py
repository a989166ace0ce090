"""The one table of RustLog's error codes, for session and client both.

RustLog has few codes. Where the code says less than the class, and in JSON, which has
no codes, a message starts with a phrase that names the class: "access denied: …". So a
client of this library gets the class that the broker of this library has raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lance_spark import errors
from lance_spark.errors import BrokerError

_INTERNAL = 500
# Code, class, and the command that alone is answered so. The first row that fits
# counts, in both directions.
_ROWS: tuple[tuple[int, type[BrokerError], int | None], ...] = (
    (1, errors.PayloadTooLarge, None),
    (5, errors.TopicNotFound, 0x03),
    (5, errors.StorageError, 0x03),
    # A number behind the end, a name of a group that can't be kept.
    (5, errors.OffsetOutOfRange, 0x03),
    (5, errors.InvalidPayload, 0x03),
    (13, errors.TopicNotFound, 0x07),
    (14, errors.TopicNotFound, 0x08),
    (10, errors.TopicNotFound, None),
    (10, errors.TopicDeleted, None),
    (11, errors.TopicAlreadyExists, None),
    (12, errors.InvalidTopicName, None),
    (12, errors.InvalidPartitionCount, None),
    # More topics than the broker allows.
    (12, errors.InvalidPayload, 0x05),
    (2, errors.InvalidPayload, None),
    (4, errors.StorageError, 0x02),
    # Records that retention has dropped.
    (4, errors.InvalidOffset, 0x02),
    (4, errors.OffsetOutOfRange, 0x02),
    (_INTERNAL, errors.InternalError, None),
)


def _phrase_of(kind: type[BrokerError]) -> str:
    """Give the words of a class's name."""
    return re.sub("(?<!^)(?=[A-Z])", " ", kind.__name__).lower()


def _find_kinds(kind: type[BrokerError]) -> Iterator[type[BrokerError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _find_kinds(each)


_KINDS = {
    **{_phrase_of(kind): kind for kind in _find_kinds(BrokerError)},
    # In the specification of the JSON.
    "failed to parse request": errors.InvalidPayload,
    "max frame size exceeded": errors.PayloadTooLarge,
    "partition not found": errors.TopicNotFound,
}


def code_of(error: BrokerError | type[BrokerError], command: int | None = None) -> int:
    """Return RustLog's number for an error in answer to a command; 500 if none fits."""
    kind = error if isinstance(error, type) else type(error)
    fits = (row[0] for row in _ROWS if row[1] is kind and row[2] in (None, command))
    return next(fits, _INTERNAL)


def kind_of(code: int | None, message: str = "") -> type[BrokerError]:
    """Return the class of a message's phrase, else of a code, else UnknownError."""
    fits = (row[1] for row in _ROWS if row[0] == code)
    kind = next(fits, errors.UnknownError)
    return _KINDS.get(message.partition(":")[0], kind)


def name_kind(kind: type[BrokerError], message: str) -> str:
    """Put the phrase of a class before a message that has none."""
    has_phrase = message.partition(":")[0] in _KINDS
    return message if has_phrase else f"{_phrase_of(kind)}: {message}"
