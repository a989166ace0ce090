"""Who may do what: the one decision, as a pure function of values (LWP §7).

A topic's rule protects that topic: who is let in has to show a verified certificate,
of the right authority and with a name on the list. A rule's `allowed_topics` besides
ties the clients it names to those topics, wherever they go. Nothing here reads a file,
a certificate or a clock; the caller brings what it found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lance_spark.errors import AccessDenied, AuthenticationRequired, OptionError

# Ids from here on are those of stages, which no rule can name.
_TOPIC_ID_END = 0x8000_0000
_ANONYMOUS = "anonymous"
_KEYS = ("mtls_enabled", "client_ca_path", "allowed_cns", "allowed_topics")
# A wrong value is shown up to this length.
_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is at the other end of a connection.

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
        """What it is called in texts."""
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
    return TopicRule(
        mtls_enabled=enabled,
        client_ca_path=path,
        allowed_cns=frozenset(_parse_names(auth)),
        allowed_topics=frozenset(_parse_topics(auth)),
    )


def _parse_names(auth: Mapping[str, Any]) -> list[str]:
    names = _parse_list(auth, "allowed_cns", "certificate common names")
    for name in names:
        if not (isinstance(name, str) and name):
            _refuse("allowed_cns", name, "each must be a text that is not empty")
    return names


def _parse_topics(auth: Mapping[str, Any]) -> list[int]:
    topics = _parse_list(auth, "allowed_topics", "topic ids")
    for topic in topics:
        # In Python a bool is an int; in JSON it is not.
        if type(topic) is not int or not 0 <= topic < _TOPIC_ID_END:
            wanted = f"each must be a topic id, from 0 to {_TOPIC_ID_END - 1}"
            _refuse("allowed_topics", topic, wanted)
    return topics


def _parse_list(auth: Mapping[str, Any], key: str, of: str) -> list[Any]:
    value = auth.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        _refuse(key, value, f"must be a list of {of}")
    return list(value)


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
            that names none of its own lets nobody in: what the TLS layer has verified
            may be of an authority that only another topic trusts.
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
    """Say whether the topic's own rule has nothing against a client."""
    rule = policy.rules.get(topic_id)
    if rule is None or not rule.mtls_enabled:
        return True
    # A rule with a file of which nothing could be read lets nobody in.
    own = rule.client_ca_path is not None
    if not principal.chain & (rule.authority if own else policy.authority):
        return False
    if rule.allowed_cns and principal.common_name not in rule.allowed_cns:
        return False
    return not rule.allowed_topics or topic_id in rule.allowed_topics
