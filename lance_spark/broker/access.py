"""Rules of access (LWP §7): where they are read, and the one decision about a client.

A topic's rule protects that topic: a client has to show a verified certificate of the
right authority and with a name on the list. Besides, a rule's `allowed_topics` ties the
clients that it names to those topics, wherever they go. `decide` is a pure function of
a client, a policy and a topic. Rules live in each topic's metadata, and the
configuration can set them: the second half writes them to the topics, reads them from
there, and opens their CA files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from lance_spark.broker.config import BrokerConfig, parse_retention
from lance_spark.errors import (
    AccessDenied,
    AuthenticationRequired,
    DamagedFile,
    OptionError,
)
from lance_spark.net.tls import fingerprints
from lance_spark.store import Store, Topic

logger = logging.getLogger(__name__)

# Ids from here on are those of stages, which no rule can name.
_TOPIC_ID_END = 0x8000_0000
_ANONYMOUS = "anonymous"
_KEYS = ("mtls_enabled", "client_ca_path", "allowed_cns", "allowed_topics")
# A wrong value is shown up to this length.
_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Principal:
    """The client at the other end of a connection.

    Args:
        common_name: the CN of its verified certificate, if that has one.
        chain: SHA-256 of each certificate of its verified chain, in DER; empty if it
            has shown none.
        authenticated: it has presented a good token.
    """

    common_name: str | None = None
    chain: frozenset[bytes] = frozenset()
    authenticated: bool = False

    @property
    def name(self) -> str:
        """Its name in error texts."""
        return _ANONYMOUS if self.common_name is None else self.common_name


@dataclass(frozen=True, slots=True)
class TopicRule:
    """The access rule of a topic (LWP §7.2).

    Args:
        mtls_enabled: a client needs a certificate; if not, the rule does nothing.
        client_ca_path: file of the authority that has to have signed it.
        allowed_cns: the names that are let in; empty for any.
        allowed_topics: the topics that the named clients are tied to; empty for any.
        authority: SHA-256 of the certificates in `client_ca_path`, in DER. It is not
            part of the topic's metadata: the caller reads the file.
    """

    mtls_enabled: bool
    client_ca_path: str | None = None
    allowed_cns: frozenset[str] = frozenset()
    allowed_topics: frozenset[int] = frozenset()
    authority: frozenset[bytes] = frozenset()


def parse_rule(auth: Mapping[str, Any] | None) -> TopicRule | None:
    """Read a rule from a topic's metadata or a TOML table; nothing gives None.

    Raises:
        OptionError: a key is unknown or missing, or a value can't be used.
    """
    if not auth:
        return None
    for key in auth:
        if key not in _KEYS:
            _refuse(key, auth[key], f"unknown; the keys are {', '.join(_KEYS)}")
    # A list of names that protects nothing would be a trap, so this is never guessed.
    enabled = auth.get("mtls_enabled")
    if not isinstance(enabled, bool):
        _refuse("mtls_enabled", enabled, "must be given, as true or false")
    path = auth.get("client_ca_path")
    if path is not None and not (isinstance(path, str) and path):
        _refuse("client_ca_path", path, "must be the path of a file of certificates")
    names = _parse_list(
        auth,
        "allowed_cns",
        "certificate common names",
        lambda name: isinstance(name, str) and name != "",
        "each must be a text that is not empty",
    )
    topics = _parse_list(
        auth,
        "allowed_topics",
        "topic ids",
        # In Python a bool is an int; in JSON it is not.
        lambda topic: type(topic) is int and 0 <= topic < _TOPIC_ID_END,
        f"each must be a topic id, from 0 to {_TOPIC_ID_END - 1}",
    )
    return TopicRule(enabled, path, names, topics)


def _parse_list(
    auth: Mapping[str, Any],
    key: str,
    of: str,
    is_good: Callable[[Any], bool],
    wanted: str,
) -> frozenset[Any]:
    value = auth.get(key)
    if value is None:
        return frozenset()
    if not isinstance(value, list | tuple):
        _refuse(key, value, f"must be a list of {of}")
    for item in value:
        if not is_good(item):
            _refuse(key, item, wanted)
    return frozenset(value)


def _refuse(key: str, value: object, wanted: str) -> NoReturn:
    shown = repr(value)
    if len(shown) > _SHOWN_MAX:
        shown = f"{shown[:_SHOWN_MAX]}…"
    raise OptionError(f"access rule: {key}={shown}: {wanted}")


def encode_rule(rule: TopicRule) -> dict[str, Any]:
    """Give the JSON object of LWP §7.2, which `parse_rule` reads."""
    return {
        "mtls_enabled": rule.mtls_enabled,
        "client_ca_path": rule.client_ca_path,
        "allowed_cns": sorted(rule.allowed_cns),
        "allowed_topics": sorted(rule.allowed_topics),
    }


@dataclass(frozen=True)
class Policy:
    """All that a decision depends on besides who asks and for what.

    Args:
        token_required: a client has to have presented a token.
        authority: SHA-256 of the server-wide client authorities. Without any, a rule
            that names none of its own lets no client in: the certificate that TLS has
            verified may be of an authority that only another topic trusts.
        rules: the rules of the topics, by id.
    """

    token_required: bool = False
    authority: frozenset[bytes] = frozenset()
    rules: Mapping[int, TopicRule] = field(default_factory=dict)
    # What each named client is tied to. Every request asks for it, so it is not looked
    # for in all rules each time.
    _ties: Mapping[str, frozenset[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A copy: the ties below would not follow a change.
        rules = dict(self.rules)
        ties: dict[str, frozenset[int]] = {}
        for rule in rules.values():
            if rule.mtls_enabled and rule.allowed_topics:
                for name in rule.allowed_cns:
                    ties[name] = ties.get(name, frozenset()) | rule.allowed_topics
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "_ties", ties)

    def tie(self, common_name: str | None) -> frozenset[int] | None:
        """Give the topics that a client is tied to; None if it is not."""
        return None if common_name is None else self._ties.get(common_name)


def decide(
    principal: Principal, policy: Policy, topic_id: int | None
) -> AuthenticationRequired | AccessDenied | None:
    """Say whether a client may touch a topic: None if so, else the error to send.

    Args:
        principal: the client.
        policy: the rules.
        topic_id: the topic; None for a command that touches none.
    """
    if policy.token_required and not principal.authenticated:
        return AuthenticationRequired("Authentication required")
    if topic_id is None:
        return None
    tie = policy.tie(principal.common_name)
    if (tie is None or topic_id in tie) and _is_let_in(principal, policy, topic_id):
        return None
    return AccessDenied(
        # The text is that of LWP §7.4, to the letter.
        f"Access denied: client '{principal.name}' not authorized for topic {topic_id}",
        details={"topic_id": topic_id},
    )


def _is_let_in(principal: Principal, policy: Policy, topic_id: int) -> bool:
    """Tell whether the topic's own rule lets a client in."""
    rule = policy.rules.get(topic_id)
    if rule is None or not rule.mtls_enabled:
        return True
    # A rule whose CA file holds nothing lets no client in.
    own = rule.client_ca_path is not None
    if not principal.chain & (rule.authority if own else policy.authority):
        return False
    if rule.allowed_cns and principal.common_name not in rule.allowed_cns:
        return False
    return not rule.allowed_topics or topic_id in rule.allowed_topics


# From topics and settings to the policy.


def apply_topics(
    store: Store, topics: Mapping[str, Mapping[str, Any]]
) -> dict[str, TopicRule]:
    """Create the topics of a configuration, and set their rules and retention.

    Returns:
        The rules by the names of their topics.

    Raises:
        OptionError: for a rule that can't be read, and nothing of it is set; or for
            another number of partitions than the topic has.
    """
    rules = {name: _read_rule(name, t.get("auth")) for name, t in topics.items()}
    for name, table in topics.items():
        try:
            topic = _find_or_make(store, name, table.get("partitions"))
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
    return {name: rule for name, rule in rules.items() if rule is not None}


def _find_or_make(store: Store, name: str, partitions: int | None) -> Topic:
    """Give a log of a topic: what is set for one partition is set for all.

    Raises:
        OptionError: the topic has another number of partitions.
    """
    found = store.find_topic(name) or store.find_topic(f"{name}/0")
    if found is None:
        if (partitions or 1) == 1:
            return store.create_topic(name)
        return store.create_topics({name: partitions or 1})[0]
    there = found.metadata.partitions or 1
    if partitions not in (None, there):
        raise OptionError(
            f"topic {name!r}: partitions = {partitions}; the topic has {there}, and "
            "that can't be changed"
        )
    return found


def set_rule(store: Store, topic: int, rule: TopicRule | None) -> None:
    """Write a rule to a topic's metadata; None removes it."""
    auth = {} if rule is None else encode_rule(rule)
    if auth != (store.topic(topic).metadata.auth or {}):
        store.set_auth(topic, auth)


def read_rules(store: Store) -> dict[int, TopicRule]:
    """Read the rules of all topics and open their CA files.

    Raises:
        OptionError: a rule or a CA file can't be read. A topic whose rule is unknown
            must not be served to every client.
    """
    metadata = [topic.metadata for topic in store.topics(default=True)]
    rules = {m.id: _read_rule(m.name, m.auth) for m in metadata}
    return {topic: rule for topic, rule in rules.items() if rule is not None}


def make_policy(config: BrokerConfig, rules: Mapping[int, TopicRule]) -> Policy:
    """Put together what access is decided by.

    Raises:
        OptionError: a file can't be read, or a rule asks for certificates and no CA
            is set for them.
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
        # An empty file is a mistake, not a wish to let every client in.
        raise OptionError(f"token_file {path}: has no token; one per line is needed")
    return (*config.tokens, *tokens)


def _check_authorities(rules: Mapping[int, TopicRule]) -> None:
    # Such a rule closes its topic to every client, which can't be meant with TLS on.
    for topic, rule in rules.items():
        if rule.mtls_enabled and rule.client_ca_path is None:
            raise OptionError(
                f"topic {topic}: access rule: mtls_enabled=True: no CA is known that "
                "client certificates are verified against: set client_ca_path of this "
                "rule, or tls client_ca_path for all topics"
            )


def _read_rule(name: str, auth: Mapping[str, Any] | None) -> TopicRule | None:
    """Read a topic's rule and open its CA file."""
    where = f"topic {name!r}"
    try:
        rule = parse_rule(auth)
        if rule is None or rule.client_ca_path is None or not rule.mtls_enabled:
            return rule
        where = f"{where}: client_ca_path"
        return replace(rule, authority=fingerprints(rule.client_ca_path))
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from error
