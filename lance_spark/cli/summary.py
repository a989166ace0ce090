"""What a server tells of topics and groups, in the form that `--json` prints.

A plain server tells less: what it does not say is None here, and `-` in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from lance_spark.cli.display import (
    UNKNOWN,
    ByteCount,
    Cell,
    Row,
    format_time,
    show_name,
)
from lance_spark.client import LanceClient, consumer_id
from lance_spark.client.driver import TopicEntry, warn_if_new
from lance_spark.client.log import LogClient
from lance_spark.errors import AccessDenied, TopicDeleted, TopicNotFound
from lance_spark.model import Retention
from lance_spark.quantity import format_limits
from lance_spark.wire.lwp import TopicInfo

Document = dict[str, Any]


def summarise(
    client: LanceClient, info: TopicInfo, groups: Mapping[int, str] | None = None
) -> Document:
    """Take what a server said of a topic; ask for the log's end if it did not.

    Args:
        client: asks.
        info: what the server said.
        groups: names of consumers by their numbers.
    """
    details, limits = info.details, info.retention
    start, end = _take(details, "log_start"), _take(details, "log_end")
    if end is None:
        end = client.bounds(info.id).end
    consumers = _take_objects(details, "consumers")
    if consumers is not None:
        described = (_describe_consumer(c, start, end, groups or {}) for c in consumers)
        consumers = [c for c in described if c["consumer_id"] is not None]
    return {
        "id": info.id,
        "name": info.name,
        "created_at": info.created_at_s,
        "records": _take(details, "record_count"),
        "bytes": None if start is None else end - start,
        "log_start": start,
        "log_end": end,
        "max_age_secs": limits and limits.max_age_s,
        "max_bytes": limits and limits.max_bytes,
        "stages": _take(details, "stages"),
        "consumers": consumers,
    }


def _describe_consumer(
    consumer: Document, start: int | None, end: int, groups: Mapping[int, str]
) -> Document:
    number = _take(consumer, "consumer_id")
    committed = _take(consumer, "committed_offset")
    # No consumer lags behind what retention has dropped.
    known = [at for at in (committed, start) if at is not None]
    return {
        "consumer_id": number,
        "group": None if number is None else groups.get(number),
        "committed_offset": committed,
        "lag_bytes": max(0, end - max(known)) if known else None,
    }


def summarise_named(client: LanceClient, names: Iterable[str]) -> dict[str, Document]:
    """Ask for topics; leave out those that are gone or that the client may not see."""
    found = {}
    for name in sorted(names):
        with suppress(TopicNotFound, TopicDeleted, AccessDenied):
            found[name] = summarise(client, client.topic(name))
    return found


def summarise_logs(client: LogClient, topics: Iterable[TopicEntry]) -> list[Document]:
    """Ask for the bounds of all partitions of topics, by any protocol."""
    entries = list(topics)
    found = client.driver.bounds([log for entry in entries for log in entry.logs])
    for entry in entries:
        ends = (found[log.partition] for log in entry.logs if log.partition in found)
        warn_if_new(client.driver, entry.name, ends)
    return [
        {
            "name": entry.name,
            "partitions": [
                {
                    "partition": log.partition.number,
                    "log_start": bounds and bounds.start,
                    "log_end": bounds and bounds.end,
                }
                for log in entry.logs
                for bounds in [found.get(log.partition)]
            ],
        }
        for entry in entries
    ]


def find_lag(topic: Document | None, group: str) -> Document:
    """Tell how far a group has come in a topic, also one that committed nothing."""
    found = {"committed_offset": None, "lag_bytes": topic and topic["bytes"]}
    for consumer in (topic and topic["consumers"]) or ():
        if consumer["consumer_id"] == consumer_id(group):
            return {key: consumer[key] for key in found}
    return found


def read_groups(client: LanceClient) -> list[Document]:
    """Ask which groups are active; what can't be understood is left out."""
    groups = _take_objects(client.status().details, "groups") or ()
    return [
        {
            "group": str(group["group"]),
            "generation": _take(group, "generation"),
            "strategy": str(group.get("strategy", UNKNOWN)),
            "members": [
                {
                    "member": str(member.get("member")),
                    "topics": sorted(map(str, member.get("topics", ()))),
                }
                for member in _take_objects(group, "members") or ()
            ],
        }
        for group in groups
        if group.get("group")
    ]


def _take(details: Mapping[str, Any], name: str) -> int | None:
    value = details.get(name)
    return value if isinstance(value, int) else None


def _take_objects(details: Mapping[str, Any], name: str) -> list[Document] | None:
    """Take the objects of a list; None if the server has no such list."""
    values = details.get(name)
    if not isinstance(values, list):
        return None
    return [value for value in values if isinstance(value, dict)]


def show_topic(topic: Document) -> dict[str, Cell]:
    """Give what tables print of a topic, by title."""
    created_ns = topic["created_at"] * 1_000_000_000
    age_s, limit = topic["max_age_secs"], topic["max_bytes"]
    size, consumers = topic["bytes"], topic["consumers"]
    return {
        "name": show_name(topic["name"]),
        "id": topic["id"],
        "created": format_time(created_ns) if created_ns else None,
        "records": topic["records"],
        "bytes": None if size is None else ByteCount(size),
        "log start": topic["log_start"],
        "log end": topic["log_end"],
        "retention": show_retention(None if limit is None else Retention(age_s, limit)),
        "stages": topic["stages"],
        "consumers": None if consumers is None else len(consumers),
    }


def show_logs(topic: Document) -> list[Row]:
    """Give what tables print of a topic's partitions."""
    return [
        {
            "name": show_name(topic["name"]),
            "partition": log["partition"],
            "log start": log["log_start"],
            "log end": log["log_end"],
        }
        for log in topic["partitions"]
    ]


def show_retention(retention: Retention | None) -> str:
    """Write limits so that they can be typed again."""
    return UNKNOWN if retention is None else format_limits(retention) or "no limit"
