"""Consumers and groups: who reads what, and how far behind they are."""

from __future__ import annotations

import hashlib
from typing import Any

from lance_spark.broker.access import Principal
from lance_spark.broker.console.overview import Overview
from lance_spark.broker.console.sampler import Sampler
from lance_spark.broker.group import GroupDescription
from lance_spark.broker.service import Service
from lance_spark.errors import LanceError, StoreClosed
from lance_spark.store import Topic
from lance_spark.store.consumers import ConsumerKey

# More fit neither a page nor an answer.
CONSUMERS_MAX = 500
_HISTORY_POINTS = 120


def find_consumer_id(group: str) -> int:
    """Give the number that a group commits under, by the rule of `client.identity`."""
    digest = hashlib.sha256(group.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") or 1


class ConsumerList:
    """Describes consumers and groups to whoever asks, as far as he may know."""

    def __init__(self, service: Service, overview: Overview, sampler: Sampler) -> None:
        self._service = service
        self._overview = overview
        self._sampler = sampler

    def describe(self, client: Principal) -> dict[str, Any]:
        """Describe all of them, for one visitor."""
        topics = {t.metadata.id: t for t in self._service.topics(client)}
        topics.update({t.metadata.id: t for t in self._overview.topics(client)})
        groups = self._service.describe_groups(client)
        names = {find_consumer_id(group.group): group.group for group in groups}
        states = [
            (topic, state)
            for topic, found in self._service.all_consumers(client).items()
            for state in found
            if topic in topics
        ]
        # Those of groups come first: the lag of a group is made from them.
        states.sort(key=lambda found: found[1].consumer not in names)
        consumers = []
        for topic, state in states[:CONSUMERS_MAX]:
            key = ConsumerKey(state.consumer, topic)
            consumers.append(
                {
                    # Above 2^53, where numbers of JavaScript are not exact.
                    "id": str(state.consumer),
                    **self._measure(client, topics[topic], state.committed),
                    "group": names.get(state.consumer),
                    "history": self._sampler.lag_history(key, _HISTORY_POINTS),
                }
            )
        standing = {(row["group"], row["topic"]): row for row in consumers}
        return {
            "groups": [self._describe_group(client, g, standing) for g in groups],
            "consumers": consumers,
            "left_out": len(states) - len(consumers),
        }

    def _describe_group(
        self,
        client: Principal,
        group: GroupDescription,
        standing: dict[tuple[str | None, str], dict[str, Any]],
    ) -> dict[str, Any]:
        subscribed: set[str] = set()
        members = []
        for member, assigned in group.members.items():
            topics = self._service.subscription(client, group.group, member)
            subscribed.update(topics)
            members.append(
                {
                    "id": member,
                    "topics": topics,
                    "assigned": list(assigned),
                }
            )
        found = [standing.get((group.group, topic)) for topic in sorted(subscribed)]
        keys = ("topic", "committed", "bytes_behind", "records_behind")
        return {
            "name": group.group,
            "generation": group.generation,
            "strategy": group.strategy.name.lower().replace("_", "-"),
            "members": members,
            "lag": [{key: row[key] for key in keys} for row in found if row],
        }

    def _measure(
        self, client: Principal, topic: Topic, committed: int | None
    ) -> dict[str, Any]:
        """Say how far behind the end of a topic an offset is."""
        bytes_behind = records_behind = None
        if committed is not None:
            number = topic.metadata.id
            end = topic.log.visible
            bytes_behind = max(0, end.offset - committed)
            try:
                at = self._service.locate(client, number, "offset", committed)
                records_behind = max(0, end.record - at.record)
            except StoreClosed:
                raise
            except LanceError:
                # Damaged, or deleted meanwhile: the bytes are known all the same.
                pass
        return {
            "topic": topic.metadata.name,
            "committed": committed,
            "bytes_behind": bytes_behind,
            "records_behind": records_behind,
        }
