"""The whole broker at a glance, and single topics: the numbers of most pages."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import lance_spark
from lance_spark.broker.access import Principal, TopicRule
from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.console.health import Signs, judge
from lance_spark.broker.console.sampler import OFFSETS_MAX, Sampler
from lance_spark.broker.console.stages import find_activity
from lance_spark.broker.service import Service
from lance_spark.errors import TopicNotFound
from lance_spark.model import Retention
from lance_spark.net.address import Address
from lance_spark.store import DEFAULT_TOPIC, Topic
from lance_spark.store.stage import Stage


class Overview:
    """Describes a broker to whoever asks, as far as he may know.

    Args:
        service: the broker.
        config: its settings.
        sampler: its rates.
        address: where its clients connect to.
        wall_ns: the time of day.
    """

    def __init__(
        self,
        service: Service,
        config: BrokerConfig,
        sampler: Sampler,
        address: Address,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._service = service
        self._config = config
        self._sampler = sampler
        self._address = address
        self._wall_ns = wall_ns

    @property
    def facts(self) -> dict[str, str]:
        """What everybody may know: version and address."""
        return {"version": lance_spark.__version__, "address": str(self._address)}

    def describe(self, client: Principal) -> dict[str, Any]:
        """Describe everything, for one visitor.

        Raises:
            AuthenticationRequired: it has to sign in first.
        """
        tick = self._sampler.ticks
        topics = self.topics(client)
        stages = self._service.stages(client)
        counts = Counter(stage.metadata.topic for stage in stages)
        described = [self._describe_topic(t, counts[t.metadata.name]) for t in topics]
        disk = self._describe_disk()
        pulse = self._sampler.pulse()
        rates = self._sampler.rates()
        if self._sampler.ticks != tick:
            # Some rates are of one second and some of the next. With this number the
            # overview that follows looks late to a page, which then asks for them all.
            tick -= 1
        return {
            "time_ms": self._wall_ns() // 1_000_000,
            "tick": tick,
            "uptime_s": round(self._sampler.uptime_s, 1),
            "broker": {
                **self.facts,
                "dialect": self._config.dialect,
                "fsync": self._config.fsync.value,
                "tls": self._config.tls_enabled,
                "tokens": self._service.policy.token_required,
                "data_dir": str(self._service.data_dir),
                "disk_bytes": sum(topic["disk_bytes"] for topic in described),
                **disk,
            },
            "health": judge(self._find_signs(client, topics, stages, disk=disk)),
            "traffic": {
                "connections": pulse.connections,
                "requests_per_s": pulse.requests_per_s,
                "errors_per_s": pulse.errors_per_s,
                **asdict(rates),
            },
            "topics": described,
            "hidden_topics": self._service.hidden_topics(client),
        }

    def topics(self, client: Principal) -> list[Topic]:
        """List the topics that a visitor may see, by name; an empty topic 0 is none."""
        topics = sorted(self._service.topics(client), key=lambda t: t.metadata.name)
        if self._service.may_see(client, DEFAULT_TOPIC):
            default = self._service.topic(client, DEFAULT_TOPIC)
            start, end, _ = default.log.snapshot()
            if end.record > start.record:
                topics.insert(0, default)
        return topics

    def find(self, client: Principal, name: str) -> Topic:
        """Find a topic by its name; the default topic has an empty one.

        Raises:
            TopicNotFound: there is none.
            AccessDenied: it is not for this visitor.
        """
        if not name:
            return self._service.topic(client, DEFAULT_TOPIC)
        found = self._service.resolve(client, [name]).get(name)
        if found is None:
            raise TopicNotFound(f"Topic '{name}' not found")
        return self._service.topic(client, found)

    def describe_topic(self, client: Principal, name: str) -> dict[str, Any]:
        """Describe one topic in detail."""
        topic = self.find(client, name)
        number = topic.metadata.id
        stages = self._service.open_stages(client, number)
        return {
            **self._describe_topic(topic, stages),
            "segments": len(topic.log.snapshot()[2]),
            "consumers": len(self._service.consumers(client, number)),
            "rule": _describe_rule(self._service.policy.rules.get(number)),
        }

    def _describe_topic(self, topic: Topic, stages: int) -> dict[str, Any]:
        metadata = topic.metadata
        start, end, segments = topic.log.snapshot()
        last_ns = segments[-1].last_append_ns if segments else 0
        return {
            "id": metadata.id,
            "name": metadata.name,
            "created_ms": metadata.created_at * 1000,
            "records": end.record - start.record,
            "bytes": end.offset - start.offset,
            "disk_bytes": sum(s.size + s.index_bytes for s in segments),
            "log_start": start.offset,
            "log_end": end.offset,
            "retention": _describe_retention(metadata.retention),
            "stages": stages,
            "last_append_ms": last_ns // 1_000_000 if last_ns else None,
            **asdict(self._sampler.rates(metadata.id)),
        }

    def _describe_disk(self) -> dict[str, int]:
        try:
            usage = shutil.disk_usage(self._service.data_dir)
        except OSError:
            # A directory that is gone has other things to say about it.
            return {"disk_free_bytes": 0, "disk_total_bytes": 0}
        return {"disk_free_bytes": usage.free, "disk_total_bytes": usage.total}

    def _find_signs(
        self,
        client: Principal,
        topics: list[Topic],
        stages: list[Stage],
        *,
        disk: dict[str, int],
    ) -> Signs:
        rules = self._service.policy.rules.values()
        closed = 0 if self._config.tls_enabled else sum(r.mtls_enabled for r in rules)
        active = find_activity(stages)
        now_ns = self._wall_ns()
        return Signs(
            **disk,
            rules_closed=closed,
            findings=self._service.findings(client),
            pulse=self._sampler.pulse(),
            idle_stages_s=[(now_ns - active[s.metadata.job]) / 1e9 for s in stages],
            passed=self._find_passed(client, topics),
        )

    def _find_passed(
        self, client: Principal, topics: list[Topic]
    ) -> list[tuple[int, str]]:
        """Find the consumers whose next record is not there any more."""
        if self._service.consumer_count > OFFSETS_MAX:
            return []  # This is asked for each second.
        consumers = self._service.all_consumers(client)
        return [
            (state.consumer, topic.metadata.name)
            for topic in topics
            for state in consumers.get(topic.metadata.id, ())
            if state.committed is not None and state.committed < topic.log.start.offset
        ]


def _describe_retention(retention: Retention) -> dict[str, int | None]:
    return {
        "max_age_s": retention.max_age_s or None,
        "max_bytes": retention.max_bytes or None,
    }


def _describe_rule(rule: TopicRule | None) -> dict[str, Any] | None:
    if rule is None:
        return None
    return {
        "mtls": rule.mtls_enabled,
        "allowed_cns": sorted(rule.allowed_cns),
        "allowed_topics": sorted(rule.allowed_topics),
    }
