"""What the store, the codec and the records say, as an error of the protocol.

One table: whatever a request runs into becomes a `BrokerError` here and nowhere else.
The texts are those of LWP §5.7 where it has one.
"""

from __future__ import annotations

import logging

from lance_spark import errors
from lance_spark.errors import BrokerError, LanceError

logger = logging.getLogger(__name__)

# The first match counts, so that special cases stand before what they are cases of.
_TABLE: tuple[tuple[type[LanceError], type[BrokerError]], ...] = (
    (errors.RecordTooLarge, errors.PayloadTooLarge),
    (errors.RecordError, errors.InvalidPayload),
    (errors.PayloadOverLimit, errors.PayloadTooLarge),
    (errors.ProtocolError, errors.InvalidPayload),
    (errors.InvalidName, errors.InvalidTopicName),
    (errors.TopicExists, errors.TopicAlreadyExists),
    (errors.LimitReached, errors.InvalidPayload),
    (errors.OutOfRange, errors.InvalidOffset),
    (errors.StageExpired, errors.StageExpiredError),
    (errors.StageUnknown, errors.StageNotFound),
    (errors.StageMismatch, errors.StageMismatchError),
    (errors.BatchGap, errors.StageMismatchError),
    (errors.CommitConflict, errors.CommitConflictError),
    (errors.CommitUnknown, errors.CommitUnknownError),
    (errors.Timeout, errors.OperationTimeout),
    (errors.StoreError, errors.StorageError),
    (errors.OptionError, errors.InvalidPayload),
)


def to_broker_error(error: Exception) -> BrokerError:
    """Say an error in the words of the protocol."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, errors.UnknownTopic):
        return unknown_topic(error)
    for met, said in _TABLE:
        if isinstance(error, met):
            return said(str(error))
    # A bug of ours. The client learns that, the reason is for the broker's log.
    logger.error("request failed", exc_info=error)
    return errors.InternalError(f"internal error: {type(error).__name__}")


def unknown_topic(error: errors.UnknownTopic) -> BrokerError:
    """Say that there is no such topic, or not any more (0x10, 0x13)."""
    details = {"topic_id": error.topic} if isinstance(error.topic, int) else {}
    if error.deleted:
        return errors.TopicDeleted(f"Topic {error.topic} was deleted", details=details)
    return errors.TopicNotFound(f"Topic {error.topic} not found", details=details)
