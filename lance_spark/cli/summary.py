"""What a server tells of topics and groups, in the form that commands show.

A plain server tells less: what it does not say is None here, and `-` in a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lance_spark.cli.display import format_bytes, format_time, show_name
from lance_spark.client import LanceClient
from lance_spark.model import Retention
from lance_spark.quantity import format_duration, format_size
from lance_spark.wire.lwp import TopicInfo

UNKNOWN = "-"


class ConsumerLag(NamedTuple):
    """How far a consumer has come in a topic.

    Args:
        consumer_id: its number.
        committed: the offset that it committed, None if it has not.
        lag: how many bytes it has not read.
    """

    consumer_id: int
    committed: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A topic as its server describes it; None is what it does not say."""

    id: int
    name: str
    created_at_s: int
    records: int | None
    log_start: int | None
    log_end: int | None
    retention: Retention | None
    stages: int | None
    consumers: tuple[ConsumerLag, ...] | None

    @property
    def size(self) -> int | None:
        """How many bytes of records are in the log."""
        if self.log_start is None or self.log_end is None:
            return None
        return self.log_end - self.log_start

    def find_lag(self, consumer_id: int) -> ConsumerLag:
        """Tell how far a consumer has come, also one that committed nothing."""
        for found in self.consumers or ():
            if found.consumer_id == consumer_id:
                return found
        return ConsumerLag(consumer_id, None, self.size)

    def show(self) -> dict[str, str]:
        """Give what tables print, by title."""
        created_ns = self.created_at_s * 1_000_000_000
        return {
            "name": show_name(self.name),
            "id": str(self.id),
            "created": format_time(created_ns) if created_ns else UNKNOWN,
            "records": show(self.records),
            "bytes": show_bytes(self.size),
            "log start": show(self.log_start),
            "log end": show(self.log_end),
            "retention": show_retention(self.retention),
            "stages": show(self.stages),
            "consumers": show(None if self.consumers is None else len(self.consumers)),
        }

    def to_document(self) -> dict[str, Any]:
        """Give what `--json` prints in a list of topics."""
        limits = self.retention
        return {
            "id": self.id,
            "name": self.name,
            "created_at": self.created_at_s,
            "records": self.records,
            "bytes": self.size,
            "log_start": self.log_start,
            "log_end": self.log_end,
            "max_age_secs": None if limits is None else limits.max_age_s,
            "max_bytes": None if limits is None else limits.max_bytes,
        }


def summarise(client: LanceClient, info: TopicInfo) -> Summary:
    """Take what a server said of a topic; ask for the log's end if it did not."""
    details = info.details
    start, end = _take(details, "log_start"), _take(details, "log_end")
    if end is None:
        end = client.bounds(info.id).end
    return Summary(
        id=info.id,
        name=info.name,
        created_at_s=info.created_at_s,
        records=_take(details, "record_count"),
        log_start=start,
        log_end=end,
        retention=info.retention,
        stages=_take(details, "stages"),
        consumers=_read_consumers(details, start, end),
    )


def _take(details: Mapping[str, Any], name: str) -> int | None:
    value = details.get(name)
    return value if isinstance(value, int) else None


def _read_consumers(
    details: Mapping[str, Any], start: int | None, end: int
) -> tuple[ConsumerLag, ...] | None:
    consumers = details.get("consumers")
    if not isinstance(consumers, list):
        return None
    found = []
    for entry in consumers:
        number = _take(entry, "consumer_id") if isinstance(entry, dict) else None
        if number is None:
            continue
        committed = _take(entry, "committed_offset")
        # No consumer lags behind what retention has dropped.
        known = [at for at in (committed, start) if at is not None]
        lag = max(0, end - max(known)) if known else None
        found.append(ConsumerLag(number, committed, lag))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ActiveGroup:
    """A consumer group that is active, and what each member reads."""

    name: str
    generation: int | None
    strategy: str
    members: Mapping[str, tuple[str, ...]]


def read_groups(client: LanceClient) -> list[ActiveGroup]:
    """Ask which groups are active; what can't be understood is left out."""
    groups = client.status().details.get("groups")
    if not isinstance(groups, list):
        return []
    named = [g for g in groups if isinstance(g, dict) and g.get("group")]
    return [
        ActiveGroup(
            name=str(group["group"]),
            generation=_take(group, "generation"),
            strategy=str(group.get("strategy", UNKNOWN)),
            members=_read_members(group.get("members")),
        )
        for group in named
    ]


def _read_members(members: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(members, list):
        return {}
    return {
        str(member.get("member")): tuple(sorted(map(str, member.get("topics", ()))))
        for member in members
        if isinstance(member, dict)
    }


def show(value: int | None) -> str:
    """Write a number that may not be known."""
    return UNKNOWN if value is None else str(value)


def show_bytes(size: int | None) -> str:
    """Write a size that may not be known."""
    return UNKNOWN if size is None else format_bytes(size)


def show_retention(retention: Retention | None) -> str:
    """Write limits so that they can be typed again."""
    if retention is None:
        return UNKNOWN
    limits = []
    if retention.max_age_s:
        limits.append(format_duration(retention.max_age_s))
    if retention.max_bytes:
        limits.append(format_size(retention.max_bytes))
    return ", ".join(limits) or "no limit"
