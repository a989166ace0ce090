"""The topics of a server as rows: what a read with `metadata=topics` gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from lance_spark.client import Capability, LanceClient, TopicInfo
from lance_spark.errors import TopicDeleted, TopicNotFound
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.pool import lease
from lance_spark.spark.schema import TOPICS_ARROW
from lance_spark.spark.topics import choose_topics

# The wire has numbers that Spark has not; of a limit this large nobody sees the rest.
_BIGINT_MAX = 2**63 - 1


def read_topics(
    options: ReadOptions, columns: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """List the topics that the options choose, all if they name none.

    Args:
        options: what the user has said.
        columns: what is wanted of them, and the name that it gets.
    """
    with lease(options.client) as client:
        chosen = choose_topics(options, client.topics())
        rows = [row for info in chosen if (row := _describe(client, info)) is not None]
    batch = pa.RecordBatch.from_pylist(rows, schema=TOPICS_ARROW)
    yield batch.select(list(columns)).rename_columns(list(columns.values()))


def _describe(client: LanceClient, info: TopicInfo) -> dict[str, Any] | None:
    """Say what the server knows of a topic, None if it is gone by now."""
    row: dict[str, Any] = {
        "id": info.id,
        "name": info.name,
        "created": min(info.created_at_s * 1_000_000, _BIGINT_MAX),
        "retention": None,
    }
    if info.retention is not None:
        row["retention"] = {
            "max_age_s": min(info.retention.max_age_s, _BIGINT_MAX),
            "max_bytes": min(info.retention.max_bytes, _BIGINT_MAX),
        }
    try:
        if client.supports(Capability.LOCATE):
            start, end = client.locate_start(info.id), client.locate_end(info.id)
            row["log_start"], row["log_end"] = start.offset, end.offset
            row["records"] = end.record - start.record
        else:
            row["log_end"] = client.bounds(info.id).end
    except (TopicNotFound, TopicDeleted):
        return None
    return row
