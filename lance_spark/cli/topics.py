"""`lance-spark topics`: what there is, what is kept of it, and who may use it.

All of it asks a server, apart from `auth`. A broker reads access rules when it starts,
so they are changed in its data directory, while it is not running.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lance_spark.broker.access import TopicRule, encode_rule, parse_rule, set_rule
from lance_spark.cli.display import (
    UNKNOWN,
    ByteCount,
    Row,
    count,
    format_json,
    print_list,
    print_table,
    show_cell,
    show_name,
)
from lance_spark.cli.main import FAILED
from lance_spark.cli.options import (
    AGE,
    NUMBER,
    PATH,
    SIZE,
    TOPIC,
    OptionType,
    check_is_store,
    connected,
    connected_log,
    option,
    server_options,
    take_name,
)
from lance_spark.cli.summary import (
    Document,
    read_groups,
    show_logs,
    show_retention,
    show_topic,
    summarise,
    summarise_logs,
)
from lance_spark.client import ClientConfig, consumer_id
from lance_spark.client.config import ConnectionConfig
from lance_spark.errors import TopicNotFound, UnknownTopic
from lance_spark.model import Retention
from lance_spark.net.tls import fingerprints
from lance_spark.store import Store
from lance_spark.store.topic import Topic
from lance_spark.wire.lwp import scan

_TITLES = ("id", "name", "records", "bytes", "log start", "log end", "retention")
_DESCRIBED_ONLY = ("stages", "consumers")


@click.group("topics")
def command() -> None:
    """List, create, describe, change and delete topics.

    A topic is given by its name, or as id: and its number. By other protocols than LWP,
    topics have partitions, and only list, create and describe are there.
    """


def _limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the two limits of a retention."""
    age = option("--max-age", AGE, "Drop what is older: 12h, 7d; 0 for no limit.")
    size = option("--max-bytes", SIZE, "Drop what is more: 500m, 10g; 0 for no limit.")
    return age(size(command))


@command.command("list")
@option("--json as_json", bool, "One JSON object per topic.")
@server_options
def list_topics(config: ConnectionConfig, as_json: bool) -> None:
    """List the topics: records and bytes that are there, from where to where.

    Retention is the age and the size above which data is dropped. By other protocols
    than LWP there is a row for each partition, from its first record to its next one.
    """
    if not isinstance(config, ClientConfig):
        _print_logs(config, None, as_json=as_json)
        return
    with connected(config) as client:
        topics = [summarise(client, info) for info in client.topics()]
    shown = map(show_topic, topics)
    rows: Iterator[Row] = (
        {title: cells[title] for title in _TITLES} for cells in shown
    )
    listed = [{k: v for k, v in t.items() if k not in _DESCRIBED_ONLY} for t in topics]
    print_list("topics", listed, rows, as_json=as_json)


def _print_logs(
    config: ConnectionConfig, topic: int | str | None, *, as_json: bool
) -> None:
    """Print the partitions of all topics or of one, by a protocol that has some."""
    names = None if topic is None else [take_name(topic, config)]
    with connected_log(config) as client:
        if names is None and not client.driver.traits.lists_topics:
            raise click.UsageError(
                f"{config.protocol} can't list its topics: name one, as in `topics "
                "describe NAME`, or list them by another protocol of the broker"
            )
        found = summarise_logs(client, client.driver.topics(names))
        if names and not found:
            raise TopicNotFound(config.describe_missing(names[0]))
    rows = (row for document in found for row in show_logs(document))
    print_list("topics", found, rows, as_json=as_json)


@command.command("create")
@click.argument("name")
@_limits
@option(
    *("--partitions=1", click.IntRange(min=1)),
    "How many it gets; LWP creates topics with one.",
)
@server_options
def create(
    config: ConnectionConfig,
    name: str,
    max_age: int | None,
    max_bytes: int | None,
    partitions: int,
) -> None:
    """Create the topic NAME."""
    retention = None
    if max_age is not None or max_bytes is not None:
        retention = Retention(max_age or 0, max_bytes or 0)
    if not isinstance(config, ClientConfig):
        if retention is not None:
            raise click.UsageError(
                f"{config.protocol} can't be told what to drop: set the limits by LWP, "
                "or in the broker's configuration"
            )
        with connected_log(config) as log:
            log.driver.create_topic(name, partitions)
            # Such a server does not tell whether it was there before.
            done = "is there" if log.driver.traits.creates_to_find else "created"
        print(f"topic {show_name(name)} {done}, {count(partitions, 'partition')}")
        return
    if partitions != 1:
        raise click.UsageError(
            "LWP creates topics with one partition: give --protocol rustlog, "
            "fluvio or tank, or set `partitions` in the broker's configuration"
        )
    with connected(config) as client:
        info = client.create_topic(name, retention=retention)
    print(f"topic {show_name(info.name)} created, id {info.id}")


@command.command("delete")
@click.argument("topic", type=TOPIC)
@option("--yes -y", bool, "Do not ask.")
@server_options
def delete(config: ConnectionConfig, topic: int | str, yes: bool) -> int:
    """Delete TOPIC and all of its records, in all of its partitions."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask on: say --yes")
    with connected(config) as client:
        logs = client.partitions(topic) if isinstance(topic, str) else []
        info = logs[0] if logs else client.topic(topic)
        name, partitions = info.name, 1
        if logs:
            name, partitions = str(topic), info.details["partitions"]
        content = [summarise(client, log) for log in logs or [info]]
        if not yes and not _confirm(name, content):
            print("nothing was deleted", file=sys.stderr)
            return FAILED
        # By number: under the same name there may be another topic by now.
        client.delete_topic(info.id, partitions=partitions)
    what = count(partitions, "partition") if logs else f"id {info.id}"
    print(f"topic {show_name(name)} deleted, {what}")
    return 0


def _confirm(name: str, logs: Sequence[Document]) -> bool:
    content = "its records"
    if logs[0]["records"] is not None:
        records = sum(log["records"] for log in logs)
        size = ByteCount(sum(log["bytes"] or 0 for log in logs))
        content = f"{count(records, 'record')} ({size})"
    question = f"Delete topic {show_name(name)} with {content}?"
    return click.confirm(question, err=True)


@command.command("retention")
@click.argument("topic", type=TOPIC)
@_limits
@server_options
def retention(
    config: ConnectionConfig,
    topic: int | str,
    max_age: int | None,
    max_bytes: int | None,
) -> None:
    """Show or change what TOPIC drops; a limit that is not given stays as it is."""
    given = max_age, max_bytes
    with connected(config) as client:
        limits = client.topic(topic).retention if None in given else Retention()
        if given != (None, None):
            if limits is None:
                raise click.UsageError(
                    "the server does not say what holds now: give --max-age and "
                    "--max-bytes"
                )
            age_s = limits.max_age_s if max_age is None else max_age
            size = limits.max_bytes if max_bytes is None else max_bytes
            limits = client.set_retention(topic, Retention(age_s, size))
    print(show_retention(limits))


@command.command("describe")
@click.argument("topic", type=TOPIC)
@option("--json as_json", bool, "One JSON object.")
@server_options
def describe(config: ConnectionConfig, topic: int | str, as_json: bool) -> None:
    """Show all that is known of TOPIC, and how far its consumers are.

    A consumer's lag is in bytes. The server knows consumers by number; the names of
    groups that are active are shown beside it. By other protocols than LWP, it shows
    where each partition starts and ends.
    """
    if not isinstance(config, ClientConfig):
        _print_logs(config, topic, as_json=as_json)
        return
    with connected(config) as client:
        groups = {consumer_id(g["group"]): g["group"] for g in read_groups(client)}
        found = summarise(client, client.topic(topic), groups)
    if as_json:
        print(format_json(found))
        return
    for name, value in show_topic(found).items():
        print(f"{name:10} {show_cell(value)}".rstrip())
    if found["consumers"]:
        print()
        print_table(
            {
                "consumer": consumer["consumer_id"],
                "committed": consumer["committed_offset"],
                "lag": consumer["lag_bytes"],
                "group": show_name(consumer["group"] or UNKNOWN),
            }
            for consumer in found["consumers"]
        )


@command.command("auth")
@click.argument("topic", type=TOPIC)
@option(
    *("--data-dir", PATH, "The data directory of a broker that is not running."),
    required=True,
)
@option(
    *("--mtls/--no-mtls mtls_enabled", bool, "Ask clients for a certificate."),
    default=None,
)
@option(
    *("--client-ca client_ca_path", PATH),
    "PEM file of the CA that must have signed it.",
)
@option(
    *("--allow allowed_cns", OptionType("cn", str), "Let this name in; repeat it."),
    multiple=True,
)
@option(
    *("--allow-topic allowed_topics", NUMBER),
    "Tie those names to this topic; repeat it.",
    multiple=True,
    metavar="ID",
)
@option("--clear", bool, "Remove the rule: every client is let in.")
def auth(data_dir: Path, topic: int | str, clear: bool, **changes: Any) -> None:
    """Show or change who may use TOPIC (LWP 7.2), while no broker is running.

    What is not given stays as it is; a list that is given replaces the one that was.
    The broker needs TLS with a client CA for such rules.
    """
    changes = {k: value for k, value in changes.items() if value not in (None, ())}
    if clear and changes:
        raise click.UsageError("--clear goes with no other change")
    check_is_store(data_dir)
    with Store(data_dir, framing=scan) as store:
        found = _find(store, topic)
        rule = parse_rule(found.metadata.auth)
        if clear or changes:
            rule = None if clear else _change(rule, changes)
            set_rule(store, found.metadata.id, rule)
    _print_rule(found, rule)


def _find(store: Store, topic: int | str) -> Topic:
    if isinstance(topic, int):
        return store.topic(topic)
    found = store.find_topic(topic)
    if found is None:
        raise UnknownTopic(topic)
    return found


def _change(rule: TopicRule | None, changes: Mapping[str, Any]) -> TopicRule:
    if rule is None and "mtls_enabled" not in changes:
        # A list of names that protects nothing would be a trap.
        raise click.UsageError("the topic has no rule yet: say --mtls or --no-mtls too")
    rule = rule or TopicRule(mtls_enabled=False)
    if (path := changes.get("client_ca_path")) is not None:
        # A broker does not start with a file that it can't read, or can't find from
        # another working directory.
        fingerprints(str(path))
        changes = {**changes, "client_ca_path": str(path.absolute())}
    lists = {k: frozenset(v) for k, v in changes.items() if isinstance(v, tuple)}
    checked = parse_rule(encode_rule(replace(rule, **{**changes, **lists})))
    assert checked is not None, "a rule always says whether it is on"
    return checked


def _print_rule(topic: Topic, rule: TopicRule | None) -> None:
    name, number = topic.metadata.name, topic.metadata.id
    if name:
        print(f"topic {show_name(name)}, id {number}")
    else:
        print(f"the default topic (id {number})")
    if rule is None:
        print("no rule: every client that may connect may use it")
        return
    print(f"certificate     {'required' if rule.mtls_enabled else 'not required'}")
    print(f"client CA       {rule.client_ca_path or 'that of the server'}")
    print(f"allowed names   {', '.join(sorted(rule.allowed_cns)) or 'any'}")
    ids = ", ".join(map(str, sorted(rule.allowed_topics)))
    print(f"allowed topics  {ids or 'any'}")
