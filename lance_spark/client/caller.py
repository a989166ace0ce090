"""What the parts of the client share: asking, capabilities and topic ids."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from lance_spark.client.config import ClientConfig
from lance_spark.client.connection import Connection
from lance_spark.client.link import Build, Link, Request
from lance_spark.client.retry import Retry
from lance_spark.errors import TopicDeleted, TopicNotFound, Unsupported
from lance_spark.wire.lwp import Capability, ListTopics, Message, TopicListing

M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Caller:
    """The base of the client's parts; nothing is sent before the first call.

    Args:
        link: the way to the servers.
        config: the settings.
    """

    def __init__(self, link: Link, config: ClientConfig) -> None:
        self._link = link
        self._config = config
        self._topic_ids: dict[str, int] = {}
        self._topic_ids_lock = threading.Lock()

    def topic_id(self, topic: int | str) -> int:
        """Return a topic's id; a name is looked up once and remembered.

        Raises:
            TopicNotFound: no topic has that name.
        """
        if isinstance(topic, int):
            return topic
        with self._topic_ids_lock:
            known = self._topic_ids.get(topic)
        if known is not None:
            return known
        listing = self._ask(ListTopics(), TopicListing)
        ids = {info.name: info.id for info in listing.topics}
        with self._topic_ids_lock:
            self._topic_ids = dict(ids)
        if topic not in ids:
            raise TopicNotFound(
                f"no topic is named {topic!r}, or none that this client may use; "
                "create it first"
            )
        return ids[topic]

    def forget(self, topic: int | str) -> None:
        """Forget a topic's id, so that its name is looked up again."""
        with self._topic_ids_lock:
            for name, topic_id in list(self._topic_ids.items()):
                if topic in (name, topic_id):
                    del self._topic_ids[name]

    # For the parts.

    def _ask(
        self,
        message: Message,
        kind: type[M],
        *,
        needs: tuple[Capability, str] | None = None,
        retry: bool = True,
        timeout_s: float | None = None,
        make_rules: Callable[..., Retry] = Retry,
    ) -> M:
        """Send a message and return its answer, which has to be of this kind.

        Args:
            message: the request.
            kind: what the answer is.
            needs: a capability, and what it is needed for.
            retry: whether it may be sent again when it may have arrived before.
            timeout_s: for the whole call.
            make_rules: makes the rules of when to try again.
        """

        def build(connection: Connection) -> Request:
            if needs is not None:
                check_capability(connection, *needs)
            return Request(message)

        return self._ask_built(
            build, kind, retry=retry, timeout_s=timeout_s, make_rules=make_rules
        )

    def _ask_built(
        self,
        build: Build,
        kind: type[M],
        *,
        retry: bool = True,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
        make_rules: Callable[..., Retry] = Retry,
    ) -> M:
        answer = self._link.ask(
            build,
            retry=retry,
            timeout_s=timeout_s,
            wait_s=wait_s,
            make_rules=make_rules,
        )
        # A pending request takes no other answers than those in its table.
        assert isinstance(answer, kind)
        return answer

    def _on_topic(self, topic: int | str, ask: Callable[[int], T]) -> T:
        """Ask about a topic; a name whose id is gone is looked up once more."""
        if isinstance(topic, int):
            return ask(topic)
        try:
            return ask(self.topic_id(topic))
        except (TopicNotFound, TopicDeleted):
            self.forget(topic)
            return ask(self.topic_id(topic))


def check_capability(connection: Connection, capability: Capability, what: str) -> None:
    """Check that the server at the other end can do something.

    Raises:
        Unsupported: it can't.
    """
    if capability.value not in connection.capabilities:
        raise Unsupported(what, capability.value, str(connection.address))
