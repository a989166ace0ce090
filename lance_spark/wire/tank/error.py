"""The one table of TANK's error codes, for session and client both.

A code is a byte, and what it means depends on the message that it answers. TANK has no
codes for refusals: `code_of` gives None for these, and the broker closes the
connection.
The client in the field exits on some of the codes, which are read here and never sent:
03 (acks timed out) is one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from lance_spark import errors
from lance_spark.errors import BrokerError
from lance_spark.wire.tank.frame import Kind

_Rows = Mapping[int, tuple[type[BrokerError], str]]

# Of several codes for a class, the first is the one to send.
_CONSUME: _Rows = {
    0x01: (errors.InvalidOffset, "the sequence number is out of range"),
    0xFB: (errors.StorageError, "the broker can't send this record; its log says why"),
    0xFC: (errors.NotLeader, "another broker leads"),
    0xFD: (errors.LeaderUnknown, "no broker leads"),
    0xFF: (errors.TopicNotFound, "unknown topic or partition"),
}
_PRODUCE: _Rows = {
    # Of a whole topic, then of a partition.
    0xFF: (errors.TopicNotFound, "unknown topic"),
    0x01: (errors.TopicNotFound, "unknown partition"),
    0x02: (errors.StorageError, "the broker could not store the messages"),
    0x03: (errors.OperationTimeout, "the replicas did not acknowledge in time"),
    0x04: (errors.QuorumNotReached, "too few replicas"),
    0x0A: (errors.AppendConflictError, "the first sequence number is taken"),
    0xFC: (errors.NotLeader, "another broker leads"),
    0xFD: (errors.LeaderUnknown, "no broker leads"),
    0xFE: (errors.StorageError, "the broker is read-only"),
}
_CREATE: _Rows = {
    0x01: (errors.TopicAlreadyExists, "the topic exists"),
    0x02: (errors.StorageError, "the broker failed"),
    0x04: (errors.InvalidPayload, "bad configuration"),
    0x05: (errors.StorageError, "the broker is read-only"),
    0x0A: (errors.InvalidTopicName, "bad name or number of partitions"),
}
ERROR_CODES: Mapping[Kind, _Rows] = {
    Kind.CONSUME: _CONSUME,
    Kind.DISCOVER_PARTITIONS: _CONSUME,
    Kind.PRODUCE: _PRODUCE,
    Kind.PRODUCE_AT: _PRODUCE,
    Kind.CREATE_TOPIC: _CREATE,
    Kind.RELOAD_CONF: _CREATE,
}
_NOT_SENT = {0x03}
# Classes that share the code of another.
_LIKE: Mapping[type[BrokerError], type[BrokerError]] = {
    errors.InvalidPartitionCount: errors.InvalidTopicName,
    errors.TopicDeleted: errors.TopicNotFound,
}
# Anything else that goes wrong.
_FAILED = {Kind.CONSUME: 0xFB, Kind.DISCOVER_PARTITIONS: 0xFB}
_FAILED_ELSE = 0x02

REFUSALS = (
    errors.AccessDenied,
    errors.AuthenticationRequired,
    errors.AuthenticationFailed,
    errors.ConnectionLimit,
)


def code_of(kind: Kind, error: BrokerError) -> int | None:
    """Return the code of an error in the answer to a message of some kind.

    Returns:
        The code; that of a failure if TANK has none of its own. None for a refusal,
        which TANK can't express: close the connection, and say why in the log.
    """
    if isinstance(error, REFUSALS):
        return None
    found = _LIKE.get(type(error), type(error))
    for code, (exception, _) in ERROR_CODES[kind].items():
        if found is exception and code not in _NOT_SENT:
            return code
    return _FAILED.get(kind, _FAILED_ELSE)


def make_error(
    kind: Kind, code: int, subject: str, leader: str | None = None
) -> BrokerError:
    """Make the exception of a code in the answer to a message of some kind.

    Args:
        kind: what was asked.
        code: the answer.
        subject: the topic or partition, for the text.
        leader: the address that stands behind the code, if one does.
    """
    unknown = (errors.UnknownError, "the broker gave a code that TANK does not have")
    exception, text = ERROR_CODES[kind].get(code, unknown)
    details = {} if leader is None else {"leader_addr": leader}
    return exception(f"{subject}: {text}", code, details)
