"""Rules and tokens: from settings to topics, and from topics to the policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from lance_spark.broker import BrokerConfig
from lance_spark.broker.access import TopicRule
from lance_spark.broker.policy import (
    apply_topics,
    make_policy,
    read_rules,
    read_tokens,
    set_rule,
)
from lance_spark.columnar.scan import scan
from lance_spark.errors import OptionError
from lance_spark.model import Retention
from lance_spark.net.certificate import fingerprints
from lance_spark.store import Store, StoreConfig

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
