"""The gate to a store: who may do what, for every command and every protocol.

Every call of `service` asks here before it touches a topic; access is decided nowhere
else.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from lance_spark.broker.access import Policy, Principal, TopicRule, decide, set_rule
from lance_spark.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerError,
    DamagedFile,
    StorageError,
    UnknownTopic,
)
from lance_spark.store import Store, Topic

# Stands for a topic that does not exist yet; no topic ever gets this id.
_NO_TOPIC = 2**32 - 1


class Gate:
    """The rules of access to a store.

    Args:
        store: the store.
        policy: the rules of the topics that there are.
        tokens: what clients may authenticate with.
        named: rules that the configuration has for topics by name. They hold also for
            a topic of that name that is made later.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy | None = None,
        tokens: Sequence[str] = (),
        named: Mapping[str, TopicRule] | None = None,
    ) -> None:
        self._store = store
        self.policy = policy or Policy()
        self._tokens = [token.encode() for token in tokens]
        self._named = dict(named or {})
        # Serialises changes of the policy, which is replaced as a whole.
        self._adopting = Lock()

    def authenticate(self, client: Principal, token: str) -> Principal:
        """Check a token; give the client with it.

        Raises:
            AuthenticationFailed: no setting has that token.
        """
        # All are compared, so that the time taken tells nothing.
        matches = [hmac.compare_digest(token.encode(), t) for t in self._tokens]
        if self.policy.token_required and not any(matches):
            raise AuthenticationFailed("Authentication failed")
        return Principal(client.common_name, client.chain, True)

    def may_see(self, client: Principal, topic: int) -> bool:
        """Tell whether a topic exists for a client."""
        return self._decide(client, topic) is None

    def hides(self, client: Principal, name: str) -> bool:
        """Tell whether a client may not know of a topic of that name.

        A rule of the configuration counts also while the topic does not exist.
        """
        try:
            found = self._find(name)
        except DamagedFile:
            return True  # It may be a topic whose name and rules can't be read.
        if found is None:
            return not self._is_ruled_in(client, name)
        return not self.may_see(client, found.metadata.id)

    def may_use(self, client: Principal, name: str) -> bool:
        """Tell whether a client may touch a topic of that name, or make it."""
        try:
            self.admit_name(client, name)
        except (BrokerError, DamagedFile):
            return False
        return True

    def admit(self, client: Principal, topic: int | None) -> None:
        """Let a client go on to a topic, or without one to ask at all.

        Raises:
            AuthenticationRequired, AccessDenied: the client may not.
            StorageError: the topic's rules can't be read.
        """
        denial = self._decide(client, topic)
        if denial is not None:
            raise denial

    def admit_name(self, client: Principal, name: str) -> None:
        """Let a client go on to a topic that need not exist.

        Every client that may ask at all may create one, unless the configuration has a
        rule for its name.

        Raises:
            AuthenticationRequired, AccessDenied: the client may not.
        """
        found = self._find(name)
        if found is not None:
            self.admit(client, found.metadata.id)
            return
        self.admit(client, None)
        if not self._may_make(client, name):
            raise AccessDenied(
                f"Access denied: client '{client.name}' not authorized for topic "
                f"'{name}'"
            )

    def _find(self, name: str) -> Topic | None:
        # All partitions of a topic have the same rule, and one may be damaged.
        count = self._store.partitions(name)
        for number in range(count) if count > 1 else ():
            with suppress(DamagedFile):
                return self._store.find_topic(f"{name}/{number}")
        return self._store.find_topic(name) or self._store.find_topic(f"{name}/0")

    def _may_make(self, client: Principal, name: str) -> bool:
        if self.policy.tie(client.common_name) is not None:
            return False  # It is tied to topics that exist.
        return self._is_ruled_in(client, name)

    def _is_ruled_in(self, client: Principal, name: str) -> bool:
        """Tell whether the configuration's rule for a name lets a client in."""
        rule = self._named.get(name)
        if rule is None:
            return True
        trial = replace(self.policy, rules={**self.policy.rules, _NO_TOPIC: rule})
        return decide(client, trial, _NO_TOPIC) is None

    def _decide(self, client: Principal, topic: int | None) -> BrokerError | None:
        if self._named and topic is not None and topic not in self.policy.rules:
            self._adopt(topic)
        denial = decide(client, self.policy, topic)
        closed = None if denial or topic is None else self._store.closed(topic)
        # The rules of a closed topic can't be read: it is for no client.
        return denial if closed is None else StorageError(str(closed))

    def _adopt(self, topic: int) -> None:
        """Give a topic that was made since the start the rule of its name."""
        try:
            # A rule goes by the topic's name and covers all its partitions.
            metadata = self._store.topic(topic).metadata
            rule = self._named.get(metadata.partition.topic)
            if rule is not None:
                with self._adopting:
                    rules = {**self.policy.rules, topic: rule}
                    self.policy = replace(self.policy, rules=rules)
                set_rule(self._store, topic, rule)
        except (UnknownTopic, DamagedFile):
            return
