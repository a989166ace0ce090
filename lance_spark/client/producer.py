"""The producer: records to a topic, at least once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lance_spark.client.delivery import Delivery
from lance_spark.client.writer import Writer, WriterOptions
from lance_spark.errors import Unsupported
from lance_spark.model import RecordType

if TYPE_CHECKING:
    from lance_spark.client.client import LanceClient
    from lance_spark.client.connection import Connection


class Producer(Writer):
    """Sends records to a topic and keeps them until they are acknowledged.

    Records keep their order, unless the server refuses a batch for now: it is sent
    again and comes after those behind it that were in flight. `max_in_flight=1` keeps
    the order even then. After a lost connection those that have no answer are sent
    again, so that some may be stored twice. A batch that the server refuses for good is
    dropped, and those behind it go on; each thread is told by its next `send`, `write`,
    `flush` or `close`.

    It has a connection and a thread of its own; any number of threads may use it. One
    that is dropped without `close` delivers what it has, and nobody is told if it
    can't.

    Args:
        client: says how to reach the server; it stays open.
        topic: name, or id.
        create_topic: create the topic if it is not there.
        check: called with each new connection; what it raises is the end.

    The other arguments are those of `WriterOptions`.

    Raises:
        TopicNotFound: there is no such topic.
        Unsupported: the server can't store what is compressed.
        OptionError: an option can't be used.
    """

    def __init__(
        self,
        client: LanceClient,
        topic: int | str,
        *,
        batch_bytes: int = 1024 * 1024,
        linger_s: float = 0.005,
        max_in_flight: int = 8,
        buffer_bytes: int = 32 * 1024 * 1024,
        compression: str = "none",
        create_topic: bool = False,
        record_type: int = RecordType.RAW,
        allow_null_records: bool = False,
        check: Callable[[Connection], None] | None = None,
    ) -> None:
        options = WriterOptions(
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            compression=compression,
            record_type=record_type,
            allow_null_records=allow_null_records,
        )
        check_compression(client, options)
        self.topic = topic

        def resolve() -> int:
            """Find the topic; also again, when it was created anew meanwhile."""
            if isinstance(topic, int):
                return topic
            client.forget(topic)
            if create_topic:
                return client.ensure_topic(topic).id
            return client.topic_id(topic)

        topic_id = resolve()
        delivery = Delivery(
            client.dedicated(),
            topic,
            topic_id,
            options=options,
            resolve=None if isinstance(topic, int) else resolve,
            check=check,
        )
        super().__init__(delivery, options, client.config.retry_timeout_s)

    def __repr__(self) -> str:
        return f"<Producer to {self.topic!r}>"


def check_compression(client: LanceClient, options: WriterOptions) -> None:
    """Refuse to compress for a server that would store the compressed bytes.

    Raises:
        Unsupported: the server is a plain one.
    """
    if options.compresses and client.is_plain:
        raise Unsupported("compression", None, client.config.servers)
