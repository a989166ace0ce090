"""`lance-spark groups`: who reads what together, and how far behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from lance_spark.cli.display import Row, print_list, show_name
from lance_spark.cli.options import connected, option, server_options
from lance_spark.cli.summary import Document, find_lag, read_groups, summarise_named
from lance_spark.client.config import ConnectionConfig
from lance_spark.wire.lwp import Capability


@click.command("groups")
@option("--json as_json", bool, "One JSON object per group.")
@server_options
def command(config: ConnectionConfig, as_json: bool) -> None:
    """Show the consumer groups that are active: members, topics, lag in bytes.

    What a group that is not active has committed is shown by `topics describe`.
    """
    with connected(config) as client:
        client.require(Capability.GROUPS, "consumer groups")
        groups = read_groups(client)
        members = [member for group in groups for member in group["members"]]
        names = {name for member in members for name in member["topics"]}
        topics = summarise_named(client, names)
    for group in groups:
        for member in group["members"]:
            member["topics"] = [
                {"topic": name, **find_lag(topics.get(name), group["group"])}
                for name in member["topics"]
            ]
    print_list("groups", groups, _rows(groups), as_json=as_json)


def _rows(groups: Iterable[Document]) -> Iterator[Row]:
    for group in groups:
        for member in group["members"]:
            # A member without topics waits for them, or there are too few.
            for topic in member["topics"] or [{}]:
                yield {
                    "group": show_name(group["group"]),
                    "generation": group["generation"],
                    "strategy": group["strategy"],
                    "member": show_name(member["member"]),
                    "committed": topic.get("committed_offset"),
                    "lag": topic.get("lag_bytes"),
                    "topic": show_name(topic["topic"]) if topic else None,
                }
