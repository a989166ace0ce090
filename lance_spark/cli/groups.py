"""`lance-spark groups`: who reads what together, and how far behind."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from lance_spark.cli.display import format_json, print_table, show_name
from lance_spark.cli.options import connected, option, server_options
from lance_spark.cli.summary import (
    UNKNOWN,
    ActiveGroup,
    Summary,
    read_groups,
    show,
    summarise,
)
from lance_spark.client import ClientConfig, LanceClient, consumer_id
from lance_spark.errors import AccessDenied, TopicDeleted, TopicNotFound
from lance_spark.wire.lwp import Capability

_TITLES = (
    *("group", "generation", "strategy", "member"),
    *("committed", "lag", "topic"),
)
_RIGHT = ("generation", "committed", "lag")


@click.command("groups")
@option("--json as_json", bool, "One JSON object per group.")
@server_options
def command(config: ClientConfig, as_json: bool) -> None:
    """Show the consumer groups that are active: members, topics, lag in bytes.

    What a group that is not active has committed is shown by `topics describe`.
    """
    with connected(config) as client:
        client.require(Capability.GROUPS, "consumer groups")
        groups = read_groups(client)
        names = {t for g in groups for topics in g.members.values() for t in topics}
        topics = {name: _find(client, name) for name in sorted(names)}
    documents = [_describe(group, topics) for group in groups]
    if as_json:
        for document in documents:
            print(format_json(document))
    elif documents:
        print_table(_TITLES, _rows(documents), right=_RIGHT)
    else:
        print("no groups", file=sys.stderr)


def _find(client: LanceClient, topic: str) -> Summary | None:
    """Ask for a topic that may be gone again, or that this client may not see."""
    try:
        return summarise(client, client.topic(topic))
    except (TopicNotFound, TopicDeleted, AccessDenied):
        return None


def _describe(
    group: ActiveGroup, topics: Mapping[str, Summary | None]
) -> dict[str, Any]:
    number = consumer_id(group.name)

    def describe_topic(name: str) -> dict[str, Any]:
        topic = topics[name]
        found = None if topic is None else topic.find_lag(number)
        return {
            "topic": name,
            "committed_offset": found and found.committed,
            "lag_bytes": found and found.lag,
        }

    return {
        "group": group.name,
        "generation": group.generation,
        "strategy": group.strategy,
        "members": [
            {"member": member, "topics": [describe_topic(name) for name in names]}
            for member, names in group.members.items()
        ],
    }


def _rows(groups: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for group in groups:
        head = (show_name(group["group"]), show(group["generation"]), group["strategy"])
        for member in group["members"]:
            # A member without topics waits for them, or there are too few.
            for topic in member["topics"] or [{}]:
                yield (
                    *head,
                    show_name(member["member"]),
                    show(topic.get("committed_offset")),
                    show(topic.get("lag_bytes")),
                    show_name(topic["topic"]) if topic else UNKNOWN,
                )
