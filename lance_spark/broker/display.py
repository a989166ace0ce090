"""What a notebook shows of a broker."""

from __future__ import annotations

from collections.abc import Sequence

from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.metrics import TopicGauge
from lance_spark.html import render_facts, render_table, show_bytes, show_span

_COLUMNS = ("topic", "records", "log", "on disk", "open stages")


def render_broker(
    address: str | None, config: BrokerConfig, topics: Sequence[TopicGauge]
) -> str:
    """Write a broker as HTML: where it is, how it is set, what it holds.

    Args:
        address: where it listens; None if it is not running.
        config: its settings, of which no secret is shown.
        topics: what its topics are like, the default topic among them.
    """
    facts = {
        "address": address or "not running",
        "data": config.data_dir or "in a temporary directory",
        "fsync": config.fsync.value,
        "TLS": "on" if config.tls_enabled else "off",
    }
    parts = [render_facts(facts, caption="EmbeddedBroker")]
    # The default topic has no name, and hardly anybody uses it.
    rows = [
        (
            topic.name or "(default topic)",
            topic.records,
            show_span(topic.log_start, topic.log_end),
            show_bytes(topic.bytes_on_disk),
            topic.stages,
        )
        for topic in topics
        if topic.name or topic.log_end
    ]
    if rows:
        parts.append(render_table(_COLUMNS, rows))
    return "\n".join(parts)
