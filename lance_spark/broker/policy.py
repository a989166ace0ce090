"""From topics and settings to the policy that access is decided by.

Rules live in each topic's metadata (LWP §7.2). The configuration can set them; this is
where they are written to the topics, read from them, and their CA files are opened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lance_spark.broker.access import Policy, TopicRule, encode_rule, parse_rule
from lance_spark.broker.config import BrokerConfig, parse_retention
from lance_spark.errors import DamagedFile, OptionError
from lance_spark.net.certificate import fingerprints
from lance_spark.store import Store

logger = logging.getLogger(__name__)


def apply_topics(store: Store, topics: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the topics of a configuration and set what it says of them.

    Raises:
        OptionError: for a rule that can't be read; nothing of it is set.
    """
    rules = {name: _parse(name, table.get("auth")) for name, table in topics.items()}
    for name, table in topics.items():
        try:
            topic = store.find_topic(name) or store.create_topic(name)
        except DamagedFile as error:
            # Other topics are served; the rule holds once the topic can be opened.
            logger.error("topic %r of the configuration is left out: %s", name, error)
            continue
        metadata = topic.metadata
        if "retention" in table:
            retention = parse_retention(name, table["retention"])
            if retention != metadata.retention:
                store.set_retention(metadata.id, retention)
        if "auth" in table:
            set_rule(store, metadata.id, rules[name])


def set_rule(store: Store, topic: int, rule: TopicRule | None) -> None:
    """Write a rule to a topic's metadata; None removes it."""
    auth = {} if rule is None else encode_rule(rule)
    if auth != (store.topic(topic).metadata.auth or {}):
        store.set_auth(topic, auth)


def read_rules(store: Store) -> dict[int, TopicRule]:
    """Read the rules of all topics and open their CA files.

    Raises:
        OptionError: a rule or a CA file can't be read. A topic whose rule is unknown
            must not be served to everybody.
    """
    rules = {}
    for topic in store.topics(default=True):
        rule = _parse(topic.metadata.name, topic.metadata.auth)
        if rule is not None:
            rules[topic.metadata.id] = _open_authority(topic.metadata.name, rule)
    return rules


def read_named_rules(config: BrokerConfig) -> dict[str, TopicRule]:
    """Read the rules that the configuration has for topics by name.

    Raises:
        OptionError: a rule or a CA file can't be read.
    """
    rules = {}
    for name, table in config.topics.items():
        rule = _parse(name, table.get("auth"))
        if rule is not None:
            rules[name] = _open_authority(name, rule)
    return rules


def make_policy(config: BrokerConfig, rules: Mapping[int, TopicRule]) -> Policy:
    """Put together what access is decided by.

    Raises:
        OptionError: a file can't be read, or a rule asks for certificates and it is
            not said whose.
    """
    path = config.tls_client_ca_path
    if config.tls_enabled and path is None:
        _check_authorities(rules)
    return Policy(
        token_required=bool(read_tokens(config)),
        authority=frozenset() if path is None else fingerprints(path),
        rules=rules,
    )


def read_tokens(config: BrokerConfig) -> tuple[str, ...]:
    """Give the tokens of the settings and of the token file.

    Raises:
        OptionError: the file can't be read.
    """
    if config.token_file is None:
        return config.tokens
    path = Path(config.token_file)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        # The text of a decoding error would quote the file.
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise OptionError(f"token_file {path}: could not be read: {reason}") from None
    tokens = tuple(line.strip() for line in lines if line.strip())
    if not tokens:
        # An empty file is a mistake, not a wish to let everybody in.
        raise OptionError(f"token_file {path}: has no token; one per line is needed")
    return (*config.tokens, *tokens)


def _check_authorities(rules: Mapping[int, TopicRule]) -> None:
    # Such a rule closes its topic to everybody, which nobody means who sets up TLS.
    for topic, rule in rules.items():
        if rule.mtls_enabled and rule.client_ca_path is None:
            raise OptionError(
                f"topic {topic}: access rule: mtls_enabled=True: no CA is known that "
                "client certificates are verified against: set client_ca_path of this "
                "rule, or tls client_ca_path for all topics"
            )


def _parse(name: str, auth: Mapping[str, Any] | None) -> TopicRule | None:
    try:
        return parse_rule(auth)
    except OptionError as error:
        raise OptionError(f"topic {name!r}: {error}") from error


def _open_authority(name: str, rule: TopicRule) -> TopicRule:
    if rule.client_ca_path is None or not rule.mtls_enabled:
        return rule
    try:
        authority = fingerprints(rule.client_ca_path)
    except OptionError as error:
        raise OptionError(f"topic {name!r}: client_ca_path: {error}") from error
    return TopicRule(
        rule.mtls_enabled,
        rule.client_ca_path,
        rule.allowed_cns,
        rule.allowed_topics,
        authority,
    )
