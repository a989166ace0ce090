"""`lance-spark topics describe`: all that a server tells of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lance_spark.cli.connect import connected, server_options
from lance_spark.cli.quantity import TOPIC
from lance_spark.cli.summary import (
    UNKNOWN,
    Standing,
    Summary,
    read_groups,
    show,
    show_bytes,
    show_retention,
    summarise,
)
from lance_spark.cli.text import format_json, format_time, print_table, show_name
from lance_spark.client import ClientConfig, consumer_id

_TITLES = ("consumer", "committed", "lag", "group")
_RIGHT = ("consumer", "committed", "lag")


@click.command("describe")
@click.argument("topic", type=TOPIC)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@server_options
def describe(config: ClientConfig, topic: int | str, as_json: bool) -> None:
    """Show all that is known of TOPIC, and how far its consumers are.

    A consumer's lag is in bytes. The server knows consumers by number; the names of
    groups that are active are shown beside it.
    """
    with connected(config) as client:
        found = summarise(client, client.topic(topic))
        groups = {consumer_id(group.name): group.name for group in read_groups(client)}
    if as_json:
        print(format_json(_to_document(found, groups)))
    else:
        _print(found, groups)


def _to_document(topic: Summary, groups: Mapping[int, str]) -> dict[str, Any]:
    document = {**topic.to_document(), "stages": topic.stages, "consumers": None}
    if topic.consumers is not None:
        document["consumers"] = [
            {
                "consumer_id": standing.consumer_id,
                "group": groups.get(standing.consumer_id),
                "committed_offset": standing.committed,
                "lag_bytes": standing.lag,
            }
            for standing in topic.consumers
        ]
    return document


def _print(topic: Summary, groups: Mapping[int, str]) -> None:
    created = UNKNOWN
    if topic.created_at_s:
        created = format_time(topic.created_at_s * 1_000_000_000)
    fields = {
        "name": show_name(topic.name),
        "id": str(topic.id),
        "created": created,
        "records": show(topic.records),
        "bytes": show_bytes(topic.size),
        "log start": show(topic.log_start),
        "log end": show(topic.log_end),
        "retention": show_retention(topic.retention),
        "stages": show(topic.stages),
        "consumers": show(None if topic.consumers is None else len(topic.consumers)),
    }
    for name, value in fields.items():
        print(f"{name:10} {value}".rstrip())
    if topic.consumers:
        print()
        rows = (_row(standing, groups) for standing in topic.consumers)
        print_table(_TITLES, rows, right=_RIGHT)


def _row(standing: Standing, groups: Mapping[int, str]) -> tuple[str, ...]:
    return (
        str(standing.consumer_id),
        show(standing.committed),
        show(standing.lag),
        show_name(groups.get(standing.consumer_id, UNKNOWN)),
    )
