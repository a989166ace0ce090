"""Telling the server how far a query is, so that other tools see its lag.

Spark's checkpoint is what counts. This is for people who look at the server, and must
neither hold up the query nor fail it: a thread of its own tells the newest offset, and
what can't be told is said in the log once.
"""

from __future__ import annotations

import logging
import threading

from lance_spark.client import ClientConfig, LanceClient, consumer_id
from lance_spark.errors import BrokerError, LanceError
from lance_spark.offset import StreamOffset

logger = logging.getLogger(__name__)

# The next offset is as good as this one, so nothing is tried for long.
_COMMIT_S_MAX = 10.0
# How long the end of a query may wait for its last offset to be told.
_CLOSE_S_MAX = 2.0


class GroupCommit:
    """Commits the offsets of a query under the name of a consumer group.

    Args:
        config: how to reach the servers.
        group: the name, whose number is that of `lance_spark.client.consumer_id`.
    """

    def __init__(self, config: ClientConfig, group: str) -> None:
        self._config = config
        self._group = group
        self._consumer_id = consumer_id(group)
        self._told: dict[str, tuple[int, int]] = {}
        # Topics that are refused; None if no server answers.
        self._failing: set[str | None] = set()
        self._news = threading.Condition()
        self._next: StreamOffset | None = None
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name=f"lance-group-{group}", daemon=True
        )
        self._thread.start()

    def tell(self, offset: StreamOffset) -> None:
        """Have an offset committed soon, instead of one that still waits."""
        with self._news:
            self._next = offset
            self._news.notify()

    def close(self) -> None:
        """Wait a moment for what is left, and end."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        with LanceClient(config=self._config) as client:
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._next or self._is_closing)
                    offset, self._next = self._next, None
                if offset is None:
                    return
                self._commit(client, offset)

    def _commit(self, client: LanceClient, offset: StreamOffset) -> None:
        there = [(topic, p) for topic, p in offset.topics if not p.is_away]
        self._forget_all_but({topic for topic, _ in there})
        for topic, place in there:
            now = place.topic_id, place.offset
            if self._told.get(topic) == now:
                continue
            try:
                client.commit_offset(
                    place.topic_id,
                    self._consumer_id,
                    place.offset,
                    timeout_s=min(_COMMIT_S_MAX, self._config.retry_timeout_s),
                )
                self._failing -= {topic, None}
            except LanceError as error:
                is_refused = isinstance(error, BrokerError) and not error.retriable
                self._note(topic if is_refused else None, error)
                if not is_refused:
                    # The next topic would wait as long for the same.
                    return
            # What is refused would be refused again, until the offset is another one.
            self._told[topic] = now

    def _forget_all_but(self, topics: set[str]) -> None:
        """Forget topics that are gone, of which there may be more and more.

        One that was refused would keep all later trouble from being said.
        """
        self._told = {name: at for name, at in self._told.items() if name in topics}
        self._failing &= {*topics, None}

    def _note(self, topic: str | None, error: LanceError) -> None:
        """Say that it fails, once until all of it works again."""
        if not self._failing:
            logger.warning(
                "how far the query is can't be committed for group %r, which does not "
                "concern the query: %s",
                self._group,
                error,
            )
        self._failing.add(topic)
