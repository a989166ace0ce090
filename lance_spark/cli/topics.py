"""`lance-spark topics`: what there is, and what is kept of it.

`describe` is in `topics_describe`, the access rules are in `topics_auth`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from lance_spark.cli.connect import connected, server_options
from lance_spark.cli.main import FAILED
from lance_spark.cli.quantity import DURATION, SIZE, TOPIC
from lance_spark.cli.summary import (
    Summary,
    show,
    show_bytes,
    show_retention,
    summarise,
)
from lance_spark.cli.text import count, format_json, print_table, show_name
from lance_spark.cli.topics_auth import auth
from lance_spark.cli.topics_describe import describe
from lance_spark.client import ClientConfig, LanceClient
from lance_spark.model import Retention

_TITLES = ("id", "name", "records", "bytes", "log start", "log end", "retention")
_RIGHT = ("id", "records", "bytes", "log start", "log end")


@click.group("topics")
def command() -> None:
    """List, create, describe, change and delete topics.

    A topic is given by its name, or as id: and its number.
    """


def _limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the two limits of a retention."""
    age = click.option(
        "--max-age", type=DURATION, help="Drop what is older: 12h, 7d; 0 for no limit."
    )
    size = click.option(
        "--max-bytes", type=SIZE, help="Drop what is more: 500m, 10g; 0 for no limit."
    )
    return age(size(command))


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per topic.")
@server_options
def list_topics(config: ClientConfig, as_json: bool) -> None:
    """List the topics: records and bytes that are there, from where to where.

    Retention is the age and the size above which data is dropped.
    """
    with connected(config) as client:
        topics = [summarise(client, info) for info in client.topics()]
    if as_json:
        for topic in topics:
            print(format_json(topic.to_document()))
    elif topics:
        print_table(_TITLES, _rows(topics), right=_RIGHT)
    else:
        print("no topics", file=sys.stderr)


def _rows(topics: Iterable[Summary]) -> Iterable[tuple[str, ...]]:
    for topic in topics:
        yield (
            str(topic.id),
            show_name(topic.name),
            show(topic.records),
            show_bytes(topic.size),
            show(topic.log_start),
            show(topic.log_end),
            show_retention(topic.retention),
        )


@command.command("create")
@click.argument("name")
@_limits
@server_options
def create(
    config: ClientConfig, name: str, max_age: float | None, max_bytes: int | None
) -> None:
    """Create the topic NAME."""
    retention = None
    if max_age is not None or max_bytes is not None:
        retention = Retention(_whole_seconds(max_age or 0), max_bytes or 0)
    with connected(config) as client:
        info = client.create_topic(name, retention=retention)
    print(f"topic {show_name(info.name)} created, id {info.id}")


@command.command("delete")
@click.argument("topic", type=TOPIC)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@server_options
def delete(config: ClientConfig, topic: int | str, yes: bool) -> int:
    """Delete TOPIC and all of its records."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask on: say --yes")
    with connected(config) as client:
        info = client.topic(topic)
        if not yes and not _confirm(summarise(client, info)):
            print("nothing was deleted", file=sys.stderr)
            return FAILED
        # By number: under the same name there may be another topic by now.
        client.delete_topic(info.id)
    print(f"topic {show_name(info.name)} deleted, id {info.id}")
    return 0


def _confirm(topic: Summary) -> bool:
    content = "its records"
    if topic.records is not None:
        content = f"{count(topic.records, 'record')} ({show_bytes(topic.size)})"
    question = f"Delete topic {show_name(topic.name)} with {content}?"
    return click.confirm(question, err=True)


@command.command("retention")
@click.argument("topic", type=TOPIC)
@_limits
@server_options
def retention(
    config: ClientConfig,
    topic: int | str,
    max_age: float | None,
    max_bytes: int | None,
) -> None:
    """Show or change what TOPIC drops; a limit that is not given stays as it is."""
    with connected(config) as client:
        if max_age is None and max_bytes is None:
            limits = client.topic(topic).retention
        else:
            limits = _change_retention(client, topic, max_age, max_bytes)
    print(show_retention(limits))


def _change_retention(
    client: LanceClient,
    topic: int | str,
    max_age: float | None,
    max_bytes: int | None,
) -> Retention:
    age_s = None if max_age is None else _whole_seconds(max_age)
    if age_s is None or max_bytes is None:
        present = client.topic(topic).retention
        if present is None:
            raise click.UsageError(
                "the server does not say what holds now: give --max-age and --max-bytes"
            )
        age_s = present.max_age_s if age_s is None else age_s
        max_bytes = present.max_bytes if max_bytes is None else max_bytes
    return client.set_retention(topic, Retention(age_s, max_bytes))


def _whole_seconds(seconds: float) -> int:
    if seconds != int(seconds):
        raise click.UsageError(f"--max-age {seconds:g} s: must be whole seconds")
    return int(seconds)


command.add_command(describe)
command.add_command(auth)
