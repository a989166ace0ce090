"""`lance-spark groups`: who reads what together, and how far behind."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from lance_spark.cli.display import format_json, print_table, show_name
from lance_spark.cli.options import connected, server_options
from lance_spark.cli.summary import (
    UNKNOWN,
    ActiveGroup,
    ConsumerLag,
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object per group.")
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
    if as_json:
        for group in groups:
            print(format_json(_to_document(group, topics)))
    elif groups:
        print_table(_TITLES, _rows(groups, topics), right=_RIGHT)
    else:
        print("no groups", file=sys.stderr)


def _find(client: LanceClient, topic: str) -> Summary | None:
    """Ask for a topic that may be gone again, or not be ours to see."""
    try:
        return summarise(client, client.topic(topic))
    except (TopicNotFound, TopicDeleted, AccessDenied):
        return None


def _stand(group: ActiveGroup, topic: Summary | None) -> ConsumerLag:
    number = consumer_id(group.name)
    return ConsumerLag(number, None, None) if topic is None else topic.stand(number)


def _to_document(
    group: ActiveGroup, topics: Mapping[str, Summary | None]
) -> dict[str, Any]:
    def place(name: str) -> dict[str, Any]:
        standing = _stand(group, topics[name])
        return {
            "topic": name,
            "committed_offset": standing.committed,
            "lag_bytes": standing.lag,
        }

    return {
        "group": group.name,
        "generation": group.generation,
        "strategy": group.strategy,
        "members": [
            {"member": member, "topics": [place(name) for name in names]}
            for member, names in group.members.items()
        ],
    }


def _rows(
    groups: Iterable[ActiveGroup], topics: Mapping[str, Summary | None]
) -> Iterator[tuple[str, ...]]:
    for group in groups:
        head = (show_name(group.name), show(group.generation), group.strategy)
        for member, names in group.members.items():
            if not names:  # It waits for topics, or there are too few.
                yield (*head, show_name(member), UNKNOWN, UNKNOWN, UNKNOWN)
            for name in names:
                standing = _stand(group, topics[name])
                yield (
                    *head,
                    show_name(member),
                    show(standing.committed),
                    show(standing.lag),
                    show_name(name),
                )
