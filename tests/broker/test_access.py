"""Who may do what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lance_spark.broker import BrokerConfig
from lance_spark.broker.access import (
    Policy,
    Principal,
    TopicRule,
    apply_topics,
    decide,
    encode_rule,
    make_policy,
    parse_rule,
    read_rules,
    read_tokens,
    set_rule,
)
from lance_spark.errors import AccessDenied, AuthenticationRequired, OptionError
from lance_spark.model import Retention
from lance_spark.net.tls import fingerprints
from lance_spark.store import Store, StoreConfig
from lance_spark.wire.lwp import code_of, scan
from tests.each import each

# A busy machine is no failure.
relaxed = settings(deadline=None)

CA, TOPIC_CA, OTHER_CA, LEAF = b"ca", b"topic-ca", b"other-ca", b"leaf"

ANYONE = Principal()
FOO = Principal("foo.example.com", frozenset({LEAF, CA}))
BAR = Principal("bar.example.com", frozenset({LEAF, CA}))
FOREIGN = Principal("foo.example.com", frozenset({LEAF, OTHER_CA}))
NAMELESS = Principal(None, frozenset({LEAF, CA}))


def rule(
    *names: str,
    topics: tuple[int, ...] = (),
    ca: str | None = None,
    authority: tuple[bytes, ...] = (),
    enabled: bool = True,
) -> TopicRule:
    return TopicRule(
        enabled, ca, frozenset(names), frozenset(topics), frozenset(authority)
    )


def allows(who: Principal, topic: int | None, **policy: Any) -> bool:
    """Decide, with the server-wide authority of most principals here."""
    return (
        decide(who, Policy(**{"authority": frozenset({CA}), **policy}), topic) is None
    )


# Tokens.


def test_a_token_is_asked_for_before_anything_else() -> None:
    policy = Policy(token_required=True, rules={1: rule("foo.example.com")})
    for topic in (None, 0, 1):
        for who in (ANYONE, FOO):
            denial = decide(who, policy, topic)
            assert isinstance(denial, AuthenticationRequired)
            assert denial.message == "Authentication required"


def test_a_token_does_not_replace_a_certificate() -> None:
    policy = Policy(True, frozenset({CA}), {1: rule()})
    with_token = Principal(authenticated=True)
    assert decide(with_token, policy, None) is None
    assert decide(with_token, policy, 2) is None
    assert isinstance(decide(with_token, policy, 1), AccessDenied)
    both = Principal("foo.example.com", frozenset({CA}), True)
    assert decide(both, policy, 1) is None


# The rule of a topic.


def test_without_rules_everything_is_allowed() -> None:
    for who in (ANYONE, FOO, NAMELESS):
        for topic in (None, 0, 7):
            assert allows(who, topic)


@pytest.mark.parametrize(
    ("who", "allowed"),
    [(ANYONE, False), (FOO, True), (BAR, False), (FOREIGN, False), (NAMELESS, False)],
)
def test_names_that_are_let_in(who: Principal, allowed: bool) -> None:
    rules = {1: rule("foo.example.com")}
    assert allows(who, 1, rules=rules) is allowed
    # Neither other topics nor commands without one are concerned.
    assert allows(who, 2, rules=rules)
    assert allows(who, None, rules=rules)


@pytest.mark.parametrize(
    ("who", "allowed"),
    [(ANYONE, False), (FOO, True), (BAR, True), (FOREIGN, False), (NAMELESS, True)],
)
def test_no_names_let_in_every_certificate_of_the_authority(
    who: Principal, allowed: bool
) -> None:
    assert allows(who, 1, rules={1: rule()}) is allowed


def test_a_name_is_compared_to_the_letter() -> None:
    rules = {1: rule("*.example.com", "FOO.example.com", "foo.example.com.", "foo")}
    assert not allows(FOO, 1, rules=rules)


def test_a_name_without_a_chain_is_none() -> None:
    assert not allows(Principal("foo.example.com"), 1, rules={1: rule()})
    own = rule(ca="topic-ca.crt", authority=(TOPIC_CA,))
    assert not allows(Principal("foo.example.com"), 1, rules={1: own})


def test_the_authority_of_one_topic_opens_no_other() -> None:
    """TLS verifies against all authorities at once: that it did says not which one."""
    guest = Principal("admin", frozenset({LEAF, TOPIC_CA}))
    rules = {1: rule(ca="topic-ca.crt", authority=(TOPIC_CA,)), 2: rule("admin")}
    assert allows(guest, 1, rules=rules, authority=frozenset())
    assert not allows(guest, 2, rules=rules, authority=frozenset())
    assert not allows(guest, 2, rules=rules, authority=frozenset({CA}))


def test_a_rule_without_any_authority_lets_nobody_in() -> None:
    for who in (ANYONE, FOO, FOREIGN, NAMELESS):
        assert not allows(who, 1, rules={1: rule()}, authority=frozenset())


def test_the_server_wide_authority() -> None:
    policy = {"authority": frozenset({CA}), "rules": {1: rule()}}
    assert allows(FOO, 1, **policy)
    assert not allows(FOREIGN, 1, **policy)
    # It is asked for where a rule asks for a certificate, and nowhere else.
    assert allows(FOREIGN, 2, **policy)
    assert allows(ANYONE, 2, **policy)


def test_the_authority_of_a_topic_replaces_that_of_the_server() -> None:
    own = rule(ca="/etc/lance/topic-ca.crt", authority=(TOPIC_CA,))
    policy = {"authority": frozenset({CA}), "rules": {1: own}}
    assert not allows(FOO, 1, **policy)
    assert allows(Principal("x", frozenset({LEAF, TOPIC_CA})), 1, **policy)


def test_an_authority_that_could_not_be_read_lets_nobody_in() -> None:
    unread = {1: rule("foo.example.com", ca="/etc/lance/gone.crt")}
    assert not allows(FOO, 1, rules=unread)
    assert not allows(FOO, 1, rules=unread, authority=frozenset({CA}))


def test_a_rule_that_is_turned_off_does_nothing() -> None:
    off = {1: rule("bar.example.com", topics=(3,), ca="x", enabled=False)}
    for who in (ANYONE, FOO, BAR):
        for topic in (1, 2, 3):
            assert allows(who, topic, rules=off)


# Clients that are tied to topics.


@each(
    ("who", "topic", "allowed"),
    [
        (FOO, 1, True),
        (FOO, 2, True),
        (FOO, 3, True),  # By the rule of topic 3; the lists are joined.
        (FOO, 4, False),  # A topic without a rule.
        (FOO, 0, False),
        (FOO, None, True),
        (BAR, 1, False),
        (BAR, 3, True),
        (BAR, 4, False),  # It is named by the rule of topic 3.
        (BAR, 2, False),
        (ANYONE, 4, True),
        (NAMELESS, 4, True),
    ],
)
def test_allowed_topics(who: Principal, topic: int | None, allowed: bool) -> None:
    rules = {
        1: rule("foo.example.com", topics=(1, 2)),
        3: rule("foo.example.com", "bar.example.com", topics=(3,)),
        5: rule("foo.example.com", topics=(4,), enabled=False),
    }
    assert allows(who, topic, rules=rules) is allowed


def test_being_tied_to_a_topic_is_no_key_to_it() -> None:
    rules = {1: rule("foo.example.com", topics=(1, 2)), 2: rule("bar.example.com")}
    assert not allows(FOO, 2, rules=rules)


def test_a_list_without_the_topic_itself_closes_it() -> None:
    rules = {1: rule(topics=(2,)), 3: rule("foo.example.com", topics=(1, 3))}
    assert not allows(BAR, 1, rules=rules)
    assert not allows(FOO, 1, rules=rules)
    assert allows(BAR, 2, rules=rules)


def test_a_list_without_names_ties_nobody() -> None:
    rules = {1: rule(topics=(1,))}
    assert allows(FOO, 1, rules=rules)
    assert allows(FOO, 2, rules=rules)


def test_a_list_without_topics_ties_nobody() -> None:
    rules = {1: rule("foo.example.com")}
    assert allows(FOO, 2, rules=rules)


# The error.


@pytest.mark.parametrize(
    ("who", "text"),
    [
        (FOO, "Access denied: client 'foo.example.com' not authorized for topic 1"),
        (ANYONE, "Access denied: client 'anonymous' not authorized for topic 1"),
    ],
)
def test_the_error_is_that_of_the_specification(who: Principal, text: str) -> None:
    denial = decide(who, Policy(rules={1: rule("bar.example.com")}), 1)
    assert isinstance(denial, AccessDenied)
    assert (denial.message, code_of(denial)) == (text, 0x42)
    assert denial.details == {"topic_id": 1}


def test_a_policy_does_not_follow_the_mapping_it_was_made_of() -> None:
    rules = {1: rule("foo.example.com")}
    policy = Policy(rules=rules)
    rules[2] = rule("bar.example.com", topics=(2,))
    assert decide(BAR, policy, 3) is None
    assert decide(FOO, policy, 2) is None
    assert policy == Policy(rules={1: rule("foo.example.com")})


# Reading and writing rules.

WHOLE = {
    "mtls_enabled": True,
    "client_ca_path": "/etc/lance/topic-ca.crt",
    "allowed_cns": ["producer1.example.com", "producer2.example.com"],
    "allowed_topics": [1, 2],
}


def test_the_rule_of_the_specification() -> None:
    parsed = parse_rule(WHOLE)
    assert parsed == TopicRule(
        mtls_enabled=True,
        client_ca_path="/etc/lance/topic-ca.crt",
        allowed_cns=frozenset({"producer1.example.com", "producer2.example.com"}),
        allowed_topics=frozenset({1, 2}),
        authority=frozenset(),
    )
    assert encode_rule(parsed) == WHOLE


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_rule(nothing: Mapping[str, Any] | None) -> None:
    assert parse_rule(nothing) is None


def test_what_may_be_left_out() -> None:
    short = parse_rule({"mtls_enabled": False})
    assert short == TopicRule(False)
    nulls = {"client_ca_path": None, "allowed_cns": None, "allowed_topics": None}
    assert parse_rule({"mtls_enabled": False, **nulls}) == short


def test_the_authority_is_not_written() -> None:
    known = rule("foo", ca="x", authority=(CA,))
    written = encode_rule(known)
    assert set(written) == set(WHOLE)
    assert parse_rule(written) == rule("foo", ca="x")


@each(
    ("change", "text"),
    [
        ({"allowed_cn": ["a"]}, "allowed_cn=['a']: unknown; the keys are mtls_enabled"),
        ({"authority": []}, "authority=[]: unknown"),
        ({"mtls_enabled": None}, "mtls_enabled=None: must be given, as true or false"),
        ({"mtls_enabled": "true"}, "mtls_enabled='true': must be"),
        ({"mtls_enabled": 1}, "mtls_enabled=1: must be"),
        ({"client_ca_path": ""}, "client_ca_path='': must be the path"),
        ({"client_ca_path": 7}, "client_ca_path=7: must be the path"),
        ({"allowed_cns": "foo"}, "allowed_cns='foo': must be a list"),
        ({"allowed_cns": ["a", ""]}, "allowed_cns='': each must be"),
        ({"allowed_cns": [1]}, "allowed_cns=1: each must be"),
        ({"allowed_topics": 1}, "allowed_topics=1: must be a list"),
        ({"allowed_topics": {"1": 1}}, "allowed_topics={'1': 1}: must be a list"),
        ({"allowed_topics": [-1]}, "allowed_topics=-1: each must be"),
        ({"allowed_topics": [2**31]}, "from 0 to 2147483647"),
        ({"allowed_topics": [True]}, "allowed_topics=True: each must be"),
        ({"allowed_topics": ["1"]}, "allowed_topics='1': each must be"),
        ({"allowed_topics": [1.0]}, "allowed_topics=1.0: each must be"),
    ],
)
def test_a_rule_that_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_rule({**WHOLE, **change})
    assert text in str(caught.value)
    assert str(caught.value).startswith("access rule: ")


def test_a_rule_without_the_switch_is_refused() -> None:
    with pytest.raises(OptionError, match="mtls_enabled=None: must be given"):
        parse_rule({"allowed_cns": ["foo"]})


def test_a_long_value_is_cut_in_the_text() -> None:
    with pytest.raises(OptionError) as caught:
        parse_rule({**WHOLE, "client_ca_path": ["x" * 10_000]})
    assert len(str(caught.value)) < 200


# What holds for all rules.

names = st.sampled_from(["a", "b", "c", "d"])
chains = st.frozensets(st.sampled_from([CA, TOPIC_CA, OTHER_CA]))
topic_ids = st.integers(0, 4)
rules = st.builds(
    TopicRule,
    st.booleans(),
    st.sampled_from([None, "ca.crt"]),
    st.frozensets(names),
    st.frozensets(topic_ids),
    chains,
)
policies = st.builds(
    Policy, st.booleans(), chains, st.dictionaries(topic_ids, rules, max_size=5)
)
principals = st.builds(Principal, st.none() | names, chains, st.booleans())


def extend(policy: Policy, name: str, on: frozenset[int]) -> Policy:
    """Add a name to the lists of some topics, where there is one.

    Without names a rule has no list, but lets everyone in: a first name would close it.
    """
    longer = {
        topic: replace(old, allowed_cns=old.allowed_cns | {name})
        if old.allowed_cns and topic in on
        else old
        for topic, old in policy.rules.items()
    }
    return Policy(policy.token_required, policy.authority, longer)


@relaxed
@given(policies, names, st.frozensets(topic_ids), principals, topic_ids)
def test_a_name_more_takes_nothing_from_others(
    policy: Policy,
    name: str,
    on: frozenset[int],
    who: Principal,
    topic: int,
) -> None:
    if who.common_name == name:
        return
    before = decide(who, policy, topic)
    after = decide(who, extend(policy, name, on), topic)
    assert type(before) is type(after)


@relaxed
@given(policies, principals, topic_ids)
def test_a_rule_of_its_own_never_opens_a_topic(
    policy: Policy, who: Principal, topic: int
) -> None:
    rules = {k: r for k, r in policy.rules.items() if k != topic}
    opened = Policy(policy.token_required, policy.authority, rules)
    # A list of topics adds to those that the client is tied to by other rules.
    assume(policy.tie(who.common_name) == opened.tie(who.common_name))
    if decide(who, policy, topic) is None:
        assert decide(who, opened, topic) is None


@relaxed
@given(rules)
def test_a_rule_survives_its_json(given_rule: TopicRule) -> None:
    parsed = parse_rule(encode_rule(given_rule))
    assert parsed is not None
    assert encode_rule(parsed) == encode_rule(given_rule)
    assert parsed.authority == frozenset()


RULE = {"mtls_enabled": True, "allowed_cns": ["spark"]}


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    config = StoreConfig(fsync="none")  # type: ignore[arg-type]
    with Store(directory / "data", framing=scan, config=config) as store:
        yield store


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ca") / "ca.crt"
    trustme.CA().cert_pem.write_to_path(str(path))
    return str(path)


def test_topics_of_the_configuration_are_made(store: Store) -> None:
    apply_topics(store, {"a": {"retention": {"max_bytes": 9}, "auth": RULE}, "b": {}})
    first, second = (topic.metadata for topic in store.topics())
    assert (first.name, first.retention) == ("a", Retention(0, 9))
    assert first.auth is not None and first.auth["allowed_cns"] == ["spark"]
    assert (second.name, second.retention, second.auth) == ("b", Retention(), None)


def test_what_is_not_said_of_a_topic_is_left_as_it_is(store: Store) -> None:
    topic = store.create_topic("a", retention=Retention(5, 6), auth=RULE)
    apply_topics(store, {"a": {}})
    assert topic.metadata.retention == Retention(5, 6)
    assert topic.metadata.auth == RULE
    apply_topics(store, {"a": {"retention": {"max_age_secs": 5, "max_bytes": 6}}})
    assert topic.metadata.retention == Retention(5, 6)
    apply_topics(store, {"a": {"retention": {}, "auth": {}}})
    assert topic.metadata.retention == Retention()
    assert read_rules(store) == {}


def test_nothing_is_written_when_nothing_changes(store: Store) -> None:
    topic = store.create_topic("a")
    rule = TopicRule(True, allowed_cns=frozenset({"spark"}))
    set_rule(store, 1, rule)
    path = topic.log.directory / "metadata.json"
    before = path.stat().st_mtime_ns, path.stat().st_ino
    set_rule(store, 1, rule)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    set_rule(store, 1, None)
    assert not topic.metadata.auth


def test_a_rule_that_can_not_be_read_sets_nothing(store: Store) -> None:
    topics = {"a": {"auth": RULE}, "b": {"auth": {"mtls_enabled": "yes"}}}
    with pytest.raises(OptionError, match="topic 'b': access rule: mtls_enabled='yes'"):
        apply_topics(store, topics)
    assert store.topics() == []


def test_rules_are_read_from_all_topics(store: Store) -> None:
    store.create_topic("a", auth=RULE)
    store.create_topic("b")
    store.set_auth(0, {"mtls_enabled": False, "client_ca_path": "/not/there"})
    assert read_rules(store) == {
        # Not in force, so that its file is not looked for.
        0: TopicRule(False, "/not/there"),
        1: TopicRule(True, allowed_cns=frozenset({"spark"})),
    }


def test_a_rule_on_disk_that_can_not_be_read(store: Store) -> None:
    store.create_topic("a", auth={"allowed": []})
    with pytest.raises(OptionError, match="topic 'a': access rule: allowed="):
        read_rules(store)


def test_authorities_of_rules_are_opened(store: Store, authority: str) -> None:
    store.create_topic("a", auth={**RULE, "client_ca_path": authority})
    [rule] = read_rules(store).values()
    assert rule.authority == fingerprints(authority)
    assert len(rule.authority) == 1
    assert (rule.client_ca_path, rule.allowed_cns) == (authority, frozenset({"spark"}))


def test_an_authority_that_is_not_there(store: Store, tmp_path: Path) -> None:
    path = str(tmp_path / "none.crt")
    store.create_topic("a", auth={"mtls_enabled": True, "client_ca_path": path})
    with pytest.raises(OptionError, match=r"topic 'a': client_ca_path: .*none\.crt"):
        read_rules(store)


def test_the_policy(authority: str) -> None:
    rules = {1: TopicRule(True)}
    policy = make_policy(BrokerConfig(), rules)
    assert (policy.token_required, policy.authority) == (False, frozenset())
    assert policy.rules == rules
    config = BrokerConfig(**TLS, tls_client_ca_path=authority, tokens=("one",))
    policy = make_policy(config, {})
    assert policy.token_required
    assert policy.authority == fingerprints(authority)


TLS = {"tls_enabled": True, "tls_cert_path": "c", "tls_key_path": "k"}


def test_a_rule_needs_an_authority(authority: str) -> None:
    own = TopicRule(True, authority, authority=fingerprints(authority))
    rules = {1: own, 7: TopicRule(True, allowed_cns=frozenset({"admin"}))}
    text = r"topic 7: .* set client_ca_path of this rule, or tls client_ca_path"
    with pytest.raises(OptionError, match=text):
        make_policy(BrokerConfig(**TLS), rules)
    make_policy(BrokerConfig(**TLS, tls_client_ca_path=authority), rules)
    make_policy(BrokerConfig(**TLS), {1: own, 7: TopicRule(False)})
    # Without TLS there are no certificates: every topic with a rule is closed.
    make_policy(BrokerConfig(), rules)


def test_tokens_of_settings_and_file(tmp_path: Path) -> None:
    assert read_tokens(BrokerConfig()) == ()
    path = tmp_path / "tokens"
    path.write_text("two\n\n  three  \r\n", encoding="utf-8")
    config = BrokerConfig(tokens=("one",), token_file=str(path))
    assert read_tokens(config) == ("one", "two", "three")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "could not be read: No such file"),
        (b"secret\xff", "could not be read: it is not UTF-8"),
        (b" \n", "has no token; one per line"),
    ],
)
def test_token_files_that_can_not_be_used(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=f"token_file .*tokens: {text}") as error:
        read_tokens(BrokerConfig(token_file=str(path)))
    assert "secret" not in str(error.value)
