"""Topics: create, list, describe, delete, and how long they keep their data."""

from __future__ import annotations

import logging
import re

from lance_spark.client.caller import Caller
from lance_spark.client.connection import Connection
from lance_spark.client.link import Request
from lance_spark.errors import OptionError, TopicAlreadyExists
from lance_spark.html import Cell, render_facts, render_table, show_retention, show_span
from lance_spark.model import Retention
from lance_spark.wire.lwp import (
    CreateTopic,
    CreateTopicWithRetention,
    DeleteTopic,
    GetTopic,
    ListTopics,
    Message,
    SetRetention,
    TopicDeletion,
    TopicInfo,
    TopicListing,
    TopicRetention,
)

logger = logging.getLogger(__name__)

# What the server in the field allows; other servers may be more generous.
_PORTABLE_NAME = re.compile(r"[A-Za-z0-9-]+")

# A plain server takes a limit of 0 at its word and deletes everything. These are as
# good as no limit: 285 years, which in nanoseconds still fit 64 bits, and 8 EiB.
PLAIN_MAX_AGE_S = 9_000_000_000
PLAIN_MAX_BYTES = 2**63 - 1


_COLUMNS = ("id", "topic", "records", "log", "retention")


class Topic(TopicInfo):
    """A topic that notebooks show as a table."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        # Dataclasses of two classes are never equal, whatever they hold.
        if not isinstance(other, TopicInfo):
            return NotImplemented
        return self.to_document() == other.to_document()

    __hash__ = TopicInfo.__hash__

    def _repr_html_(self) -> str:
        facts = dict(zip(_COLUMNS, _row(self), strict=True))
        return render_facts(facts, caption=f"topic {facts.pop('topic')}")


class TopicList(list[Topic]):
    """A list of topics that notebooks show as a table."""

    def _repr_html_(self) -> str:
        return render_table(_COLUMNS, [_row(info) for info in self])


class TopicCalls(Caller):
    """The client's calls for topics."""

    def create_topic(self, name: str, *, retention: Retention | None = None) -> Topic:
        """Create a topic.

        It is not sent a second time if the answer to the first is lost.

        Raises:
            TopicAlreadyExists: there is one of that name.
            InvalidTopicName: the server does not take the name.
        """
        return self._create_topic(name, retention, retry=False)

    def ensure_topic(self, name: str, *, retention: Retention | None = None) -> Topic:
        """Return a topic, created if there is none; `retention` is for a new one."""
        try:
            return self._create_topic(name, retention, retry=True)
        except TopicAlreadyExists:
            return self.topic(name)

    def topics(self) -> TopicList:
        """List the topics by id; the default topic 0 is not among them."""
        listing = self._ask(ListTopics(), TopicListing)
        topics = [_shown(info) for info in listing.topics]
        return TopicList(sorted(topics, key=lambda info: info.id))

    list_topics = topics

    def topic(self, topic: int | str) -> Topic:
        """Describe a topic.

        Raises:
            TopicNotFound: there is none of that id or name.
        """

        def ask(topic_id: int) -> Topic:
            return _shown(self._ask(GetTopic(topic_id), TopicInfo))

        return self._on_topic(topic, ask)

    get_topic = topic

    def delete_topic(self, topic: int | str) -> None:
        """Delete a topic and its data.

        It is not sent a second time if the answer to the first is lost.

        Raises:
            TopicNotFound: there is none of that id or name.
        """

        def ask(topic_id: int) -> None:
            self._ask(DeleteTopic(topic_id), TopicDeletion, retry=False)

        self._on_topic(topic, ask)
        self.forget(topic)

    def set_retention(self, topic: int | str, retention: Retention) -> Retention:
        """Change how long a topic keeps its data; return what holds now."""

        def ask(topic_id: int) -> Retention:
            def build(connection: Connection) -> Request:
                limits = _sent(retention, connection)
                return Request(SetRetention(topic_id, limits))

            answer = self._ask_built(build, TopicRetention)
            return _meant(answer.retention)

        return self._on_topic(topic, ask)

    def _create_topic(
        self, name: str, retention: Retention | None, *, retry: bool
    ) -> Topic:
        if retention is not None and not isinstance(retention, Retention):
            raise OptionError(f"retention {retention!r}: give a Retention")

        def build(connection: Connection) -> Request:
            message: Message = CreateTopic(name)
            if retention is not None:
                limits = _sent(retention, connection)
                message = CreateTopicWithRetention(name, limits)
            return Request(message)

        info = self._ask_built(build, TopicInfo, retry=retry)
        if not _PORTABLE_NAME.fullmatch(name):
            logger.warning(
                "topic name %r: some servers only take letters, digits and hyphens",
                name,
            )
        with self._topic_ids_lock:
            self._topic_ids[name] = info.id
        return _shown(info)


def _sent(retention: Retention, connection: Connection) -> Retention:
    """Give the limits as the server understands them."""
    if connection.capabilities:
        return retention
    return Retention(
        retention.max_age_s or PLAIN_MAX_AGE_S, retention.max_bytes or PLAIN_MAX_BYTES
    )


def _meant(retention: Retention) -> Retention:
    """Give the limits as we understand them: the opposite of `_sent`."""
    age_s, size = retention.max_age_s, retention.max_bytes
    return Retention(
        0 if age_s == PLAIN_MAX_AGE_S else age_s, 0 if size == PLAIN_MAX_BYTES else size
    )


def _shown(info: TopicInfo) -> Topic:
    limits = None if info.retention is None else _meant(info.retention)
    return Topic(
        info.id, info.name, info.created_at_s, info.epoch, limits, info.details
    )


def _row(info: TopicInfo) -> tuple[Cell, ...]:
    found = info.details
    log = show_span(found.get("log_start"), found.get("log_end"))
    records = found.get("record_count")
    return info.id, info.name, records, log, show_retention(info.retention)
