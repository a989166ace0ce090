"""`lance-spark topics auth`: the access rule of a topic, in a directory at rest.

A broker reads the rules when it starts, so they are changed while none is running.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from lance_spark.broker.access import TopicRule, encode_rule, parse_rule, set_rule
from lance_spark.cli.directory import check_is_store
from lance_spark.cli.quantity import TOPIC
from lance_spark.cli.text import show_name
from lance_spark.columnar.scan import scan
from lance_spark.errors import UnknownTopic
from lance_spark.net.certificate import fingerprints
from lance_spark.store import Store
from lance_spark.store.topic import Topic


@click.command("auth")
@click.argument("topic", type=TOPIC)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="The data directory of a broker that is not running.",
)
@click.option(
    "--mtls/--no-mtls", "mtls", default=None, help="Ask clients for a certificate."
)
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path),
    help="PEM file of who has to have signed it.",
)
@click.option(
    "--allow", "names", multiple=True, metavar="CN", help="Let this name in; repeat it."
)
@click.option(
    "--allow-topic",
    "topics",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="ID",
    help="Tie those names to this topic; repeat it.",
)
@click.option("--clear", is_flag=True, help="Remove the rule: everybody is let in.")
def auth(
    data_dir: Path,
    topic: int | str,
    mtls: bool | None,
    client_ca: Path | None,
    names: Sequence[str],
    topics: Sequence[int],
    clear: bool,
) -> None:
    """Show or change who may use TOPIC (LWP 7.2), while no broker is running.

    What is not given stays as it is; a list that is given replaces the one that was.
    The broker needs TLS with a client CA for such rules.
    """
    changes = mtls is not None or client_ca is not None or bool(names) or bool(topics)
    if clear and changes:
        raise click.UsageError("--clear goes with no other change")
    check_is_store(data_dir)
    with Store(data_dir, framing=scan) as store:
        found = _find(store, topic)
        rule = parse_rule(found.metadata.auth)
        if clear:
            rule = None
        elif changes:
            rule = _change(rule, mtls, client_ca, names=names, topics=topics)
        if clear or changes:
            set_rule(store, found.metadata.id, rule)
    _print(found, rule)


def _find(store: Store, topic: int | str) -> Topic:
    if isinstance(topic, int):
        return store.topic(topic)
    found = store.find_topic(topic)
    if found is None:
        raise UnknownTopic(topic)
    return found


def _change(
    rule: TopicRule | None,
    mtls: bool | None,
    client_ca: Path | None,
    *,
    names: Iterable[str],
    topics: Iterable[int],
) -> TopicRule:
    if rule is None and mtls is None:
        # A list of names that protects nothing would be a trap.
        raise click.UsageError("the topic has no rule yet: say --mtls or --no-mtls too")
    rule = rule or TopicRule(mtls_enabled=False)
    if mtls is not None:
        rule = replace(rule, mtls_enabled=mtls)
    if client_ca is not None:
        # A broker does not start with a file that it can't read, or can't find from
        # another working directory.
        fingerprints(str(client_ca))
        rule = replace(rule, client_ca_path=str(client_ca.absolute()))
    if names := frozenset(names):
        rule = replace(rule, allowed_cns=names)
    if topics := frozenset(topics):
        rule = replace(rule, allowed_topics=topics)
    checked = parse_rule(encode_rule(rule))
    assert checked is not None, "a rule always says whether it is on"
    return checked


def _print(topic: Topic, rule: TopicRule | None) -> None:
    name, number = topic.metadata.name, topic.metadata.id
    if name:
        print(f"topic {show_name(name)}, id {number}")
    else:
        print(f"the default topic (id {number})")
    if rule is None:
        print("no rule: everybody who may connect may use it")
        return
    print(f"certificate     {'required' if rule.mtls_enabled else 'not required'}")
    print(f"client CA       {rule.client_ca_path or 'that of the server'}")
    print(f"allowed names   {', '.join(sorted(rule.allowed_cns)) or 'any'}")
    ids = ", ".join(map(str, sorted(rule.allowed_topics)))
    print(f"allowed topics  {ids or 'any'}")
