"""Consumers as the server knows them: subscriptions and committed offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lance_spark.client.caller import Caller
from lance_spark.wire.lwp import (
    CommitAck,
    CommitOffset,
    GetTopic,
    Subscribe,
    SubscribeAck,
    TopicInfo,
    Unsubscribe,
)

# Nothing is ever pushed, so servers only remember this number.
MAX_BATCH_BYTES = 4 * 1024 * 1024


class SubscriptionCalls(Caller):
    """The client's calls for consumers."""

    def subscribe(
        self,
        topic: int | str,
        consumer_id: int,
        *,
        start: int = 0,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> int:
        """Announce a consumer; return where it starts.

        Args:
            topic: id or name.
            consumer_id: see `lance_spark.client.consumer_id`.
            start: 0 resumes at the committed offset, if there is one.
            max_batch_bytes: how much the consumer wants at once.
        """

        def ask(topic_id: int) -> int:
            message = Subscribe(topic_id, start, max_batch_bytes, consumer_id)
            return self._ask(message, SubscribeAck).start

        return self._on_topic(topic, ask)

    def unsubscribe(self, topic: int | str, consumer_id: int) -> None:
        """End a subscription; what was committed stays.

        Raises:
            ConsumerNotFound: there is none.
        """

        def ask(topic_id: int) -> None:
            self._ask(Unsubscribe(topic_id, consumer_id), Unsubscribe)

        self._on_topic(topic, ask)

    def commit_offset(
        self,
        topic: int | str,
        consumer_id: int,
        offset: int,
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Have the server remember how far a consumer is; return what it remembers.

        Args:
            topic: id or name.
            consumer_id: see `lance_spark.client.consumer_id`.
            offset: of the next record.
            timeout_s: for the whole call; `retry_timeout_s` if not given.

        Raises:
            OffsetOutOfRange: the offset is behind the log's end.
        """

        def ask(topic_id: int) -> int:
            message = CommitOffset(topic_id, consumer_id, offset)
            return self._ask(message, CommitAck, timeout_s=timeout_s).offset

        return self._on_topic(topic, ask)

    def committed_offset(self, topic: int | str, consumer_id: int) -> int | None:
        """Tell how far a consumer is, or None if it has committed nothing.

        On a plain server a committed 0 can't be told from nothing.
        """

        def ask(topic_id: int) -> int | None:
            if self._link.connection().capabilities:
                details = self._ask(GetTopic(topic_id), TopicInfo).details
                if _is_complete(details):
                    return _find_committed(details, consumer_id)
            # A subscription at 0 is the only question that LWP has for this.
            return self.subscribe(topic_id, consumer_id) or None

        return self._on_topic(topic, ask)


def _is_complete(details: Mapping[str, Any]) -> bool:
    """Tell whether all consumers of a topic are listed; a server may show only some."""
    if "consumers" not in details:
        return False
    consumers, count = details["consumers"], details.get("consumer_count")
    if not isinstance(consumers, list) or not isinstance(count, int):
        return True
    return len(consumers) >= count


def _find_committed(details: Mapping[str, Any], consumer_id: int) -> int | None:
    consumers = details["consumers"]
    if not isinstance(consumers, list):
        return None
    for consumer in consumers:
        if isinstance(consumer, dict) and consumer.get("consumer_id") == consumer_id:
            offset = consumer.get("committed_offset")
            return offset if isinstance(offset, int) else None
    return None
