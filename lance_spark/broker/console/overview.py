"""What the pages show besides records: broker, topics, consumers, stages, health."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import lance_spark
from lance_spark.broker.access import Principal, TopicRule
from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.console.sampler import OFFSETS_MAX, Pulse, Sampler
from lance_spark.broker.group import GroupDescription
from lance_spark.broker.service import Service
from lance_spark.errors import LanceError, StoreClosed, TopicNotFound
from lance_spark.model import Retention
from lance_spark.net.address import Address
from lance_spark.store import DEFAULT_TOPIC, Finding, Job, Severity, Topic
from lance_spark.store.consumers import ConsumerKey
from lance_spark.store.stage import Stage

GIB = 1024**3
_FREE_WARNING = 0.05
_FREE_ERROR = 0.01
_FREE_BYTES_WARNING = GIB
# A minute with more than one error per second is not a client's slip.
_ERRORS_PER_MIN = 60
_STAGE_AGE_S = 24 * 3600
# Names in one note.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Signs:
    """What a judgement is made from.

    Args:
        disk_free_bytes: of the disk with the data.
        disk_total_bytes: of the same.
        rules_closed: topics whose rule no client can fulfil, as TLS is off.
        findings: what the store has found since it was opened.
        pulse: requests and errors.
        idle_stages_s: for each stage, how long its job has been idle.
        passed: consumers that retention has passed, as (consumer, topic).
    """

    disk_free_bytes: int
    disk_total_bytes: int
    rules_closed: int = 0
    findings: Sequence[Finding] = ()
    pulse: Pulse = field(default_factory=Pulse)
    idle_stages_s: Sequence[float] = ()
    passed: Sequence[tuple[int, str]] = ()


def judge(signs: Signs) -> dict[str, Any]:
    """Give the status and the notes."""
    notes = [{"level": level, "text": text} for level, text in _find_notes(signs)]
    levels = {note["level"] for note in notes}
    status = next((s for s in ("error", "warning") if s in levels), "ok")
    return {"status": status, "notes": notes}


def _find_notes(signs: Signs) -> Iterator[tuple[str, str]]:
    free, total = signs.disk_free_bytes, signs.disk_total_bytes
    # There is no total where the disk could not be asked.
    if total and (free / total < _FREE_WARNING or free < _FREE_BYTES_WARNING):
        yield (
            "error" if free / total < _FREE_ERROR else "warning",
            f"The disk is nearly full: {free / GIB:.1f} GiB are free, "
            f"{100 * free / total:.0f} %. Set retention, or make room.",
        )
    if signs.rules_closed:
        yield (
            "warning",
            f"{_count(signs.rules_closed, 'topic has', 'topics have')} an access rule "
            "and TLS is off: no client may use them. Turn TLS on, or remove the rules.",
        )
    damage = {f.where for f in signs.findings if f.severity is Severity.DAMAGE}
    if damage:
        yield (
            "error",
            f"Damage was found in the data directory: {_list(sorted(damage))}. Stop "
            "the broker and run lance-spark check.",
        )
    faults, errors = signs.pulse.faults_last_min, signs.pulse.errors_last_min
    if faults:
        yield (
            "error",
            f"{_count(faults, 'request', 'requests')} failed in the last minute for "
            "faults of the broker or its disk. Its log has the reasons.",
        )
    if errors - faults > _ERRORS_PER_MIN:
        yield (
            "warning",
            f"{errors - faults} requests were refused in the last minute. The metrics "
            "count them by code.",
        )
    old = sum(idle_s > _STAGE_AGE_S for idle_s in signs.idle_stages_s)
    if old:
        yield (
            "warning",
            f"{_count(old, 'stage has', 'stages have')} been idle for more than a day. "
            "If the job is gone, abort it.",
        )
    if signs.passed:
        named = _list([f"{consumer} in {topic}" for consumer, topic in signs.passed])
        yield (
            "warning",
            f"Retention has passed {_count(len(signs.passed), 'consumer', 'consumers')}"
            f", which will miss records: {named}.",
        )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _list(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


_NS_PER_MS = 1_000_000


def find_activity(stages: Iterable[Stage]) -> dict[Job, int]:
    """Tell when each job was last active, in ns: when any stage of it was."""
    active: dict[Job, int] = {}
    for stage in stages:
        job = stage.metadata.job
        active[job] = max(active.get(job, 0), stage.active_ns)
    return active


def describe_stages(stages: Sequence[Stage], ttl_s: int) -> dict[str, Any]:
    """Describe stages, the one that was opened first at the front.

    Args:
        stages: what to describe.
        ttl_s: how long a job may be idle before its stages go.
    """
    active = find_activity(stages)
    return {
        "stages": [
            {
                "id": stage.metadata.id,
                "topic": stage.metadata.topic,
                "writer": stage.metadata.job.writer,
                # It may be above 2^53, where numbers of JavaScript are not exact.
                "sequence": str(stage.metadata.job.sequence),
                "batches": stage.batches,
                "bytes": stage.size,
                "last_active_ms": stage.active_ns // _NS_PER_MS,
                "expires_ms": active[stage.metadata.job] // _NS_PER_MS + ttl_s * 1000,
            }
            for stage in sorted(stages, key=lambda s: s.metadata.id)
        ]
    }


class Overview:
    """Describes a broker to a visitor, as far as the visitor may know.

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
                "tokens": self._service.gate.policy.token_required,
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
        if self._service.gate.may_see(client, DEFAULT_TOPIC):
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
            "rule": _describe_rule(self._service.gate.policy.rules.get(number)),
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
        rules = self._service.gate.policy.rules.values()
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

    def describe_consumers(self, client: Principal) -> dict[str, Any]:
        """Describe the consumers and groups that a visitor may know of."""
        topics = {t.metadata.id: t for t in self._service.topics(client)}
        topics.update({t.metadata.id: t for t in self.topics(client)})
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


# More fit neither a page nor an answer.
CONSUMERS_MAX = 500
_HISTORY_POINTS = 120


def find_consumer_id(group: str) -> int:
    """Give the number that a group commits under, by the rule of `client.identity`."""
    digest = hashlib.sha256(group.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") or 1
