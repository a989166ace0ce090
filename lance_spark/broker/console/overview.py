"""What the pages show besides records: broker, topics, consumers, stages, health."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import lance_spark
from lance_spark.broker.access import Principal
from lance_spark.broker.config import LWP, BrokerConfig
from lance_spark.broker.console.sampler import OFFSETS_MAX, Pulse, Sampler
from lance_spark.broker.server import ConnectedClient
from lance_spark.broker.service import ConsumerState, Service
from lance_spark.errors import LanceError, TopicNotFound
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


def judge(
    *,
    disk_free_bytes: int,
    disk_total_bytes: int,
    rules_closed: int = 0,
    findings: Sequence[Finding] = (),
    pulse: Pulse = Pulse(),  # noqa: B008 - it is frozen.
    idle_stages_s: Sequence[float] = (),
    passed: Sequence[tuple[int, str]] = (),
) -> dict[str, Any]:
    """Give the broker's status, and notes on what needs attention.

    Args:
        disk_free_bytes: of the disk with the data.
        disk_total_bytes: of the same; 0 where the disk could not be asked.
        rules_closed: topics whose rule no client can fulfil, as TLS is off.
        findings: what the store has found since it was opened.
        pulse: requests and errors.
        idle_stages_s: for each stage, how long its job has been idle.
        passed: consumers that retention has passed, as (consumer, topic).
    """
    free, share = disk_free_bytes, disk_free_bytes / (disk_total_bytes or 1)
    is_low = share < _FREE_WARNING or free < _FREE_BYTES_WARNING
    damage = sorted({f.where for f in findings if f.severity is Severity.DAMAGE})
    faults = pulse.faults_last_min
    refused = pulse.errors_last_min - faults
    old = sum(idle_s > _STAGE_AGE_S for idle_s in idle_stages_s)
    named = [f"{consumer} in {topic}" for consumer, topic in passed]
    # A level, whether there is something to note, and the text.
    table = (
        (
            "error" if share < _FREE_ERROR else "warning",
            disk_total_bytes and is_low,
            f"The disk is nearly full: {free / GIB:.1f} GiB are free, "
            f"{100 * share:.0f} %. Set retention, or make room.",
        ),
        (
            "warning",
            rules_closed,
            f"{_count(rules_closed, 'topic has', 'topics have')} an access rule and "
            "TLS is off: no client may use them. Turn TLS on, or remove the rules.",
        ),
        (
            "error",
            damage,
            f"Damage was found in the data directory: {_list(damage)}. Stop the "
            "broker and run lance-spark check.",
        ),
        (
            "error",
            faults,
            f"{_count(faults, 'request', 'requests')} failed in the last minute for "
            "faults of the broker or its disk. Its log has the reasons.",
        ),
        (
            "warning",
            refused > _ERRORS_PER_MIN,
            f"{refused} requests were refused in the last minute. The metrics count "
            "them by code.",
        ),
        (
            "warning",
            old,
            f"{_count(old, 'stage has', 'stages have')} been idle for more than a day. "
            "If the job is gone, abort it.",
        ),
        (
            "warning",
            passed,
            f"Retention has passed {_count(len(passed), 'consumer', 'consumers')}, "
            f"which will miss records: {_list(named)}.",
        ),
    )
    notes = [{"level": level, "text": text} for level, met, text in table if met]
    levels = {note["level"] for note in notes}
    status = next((s for s in ("error", "warning") if s in levels), "ok")
    return {"status": status, "notes": notes}


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _list(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


_NS_PER_MS = 1_000_000
# More fit neither a page nor an answer.
CONSUMERS_MAX = CLIENTS_MAX = 500
_HISTORY_POINTS = 120


class Overview:
    """Describes a broker to a visitor, as far as the visitor may know.

    Args:
        service: the broker.
        config: its settings.
        sampler: its rates.
        addresses: where its clients connect to, by protocol, LWP first.
        clients: lists those that are connected.

    Attributes:
        facts: what everybody may know: version and address.
    """

    def __init__(
        self,
        service: Service,
        config: BrokerConfig,
        sampler: Sampler,
        addresses: Mapping[str, Address],
        clients: Callable[[], Sequence[ConnectedClient]] = tuple,
    ) -> None:
        self._service = service
        self._config = config
        self._sampler = sampler
        self._addresses = addresses
        self._clients = clients
        address = str(addresses[LWP])
        self.facts = {"version": lance_spark.__version__, "address": address}

    def describe(self, client: Principal) -> dict[str, Any]:
        """Describe everything, for one visitor.

        Raises:
            AuthenticationRequired: it has to sign in first.
        """
        tick, config = self._sampler.ticks, self._config
        topics = self._list_topics(client)
        stages = self._service.stages(client)
        counts = Counter(stage.metadata.topic for stage in stages)
        described = [self._describe_topic(t, counts[t.metadata.name]) for t in topics]
        disk = self._measure_disk()
        pulse, rates = self._sampler.pulse(), self._sampler.rates()
        if self._sampler.ticks != tick:
            # Some rates are of one second and some of the next. With this number the
            # overview that follows looks late to a page, which then asks for them all.
            tick -= 1
        connections = self._sampler.connections()
        rules = self._service.gate.policy.rules.values()
        now_ns, active = time.time_ns(), _find_activity(stages)
        health = judge(
            **disk,
            rules_closed=sum(r.mtls_enabled and not config.tls_enabled for r in rules),
            findings=self._service.findings(client),
            pulse=pulse,
            idle_stages_s=[(now_ns - active[s.metadata.job]) / 1e9 for s in stages],
            passed=self._find_passed(client, topics),
        )
        return {
            "time_ms": now_ns // _NS_PER_MS,
            "tick": tick,
            "uptime_s": round(self._sampler.uptime_s, 1),
            "broker": {
                **self.facts,
                "protocols": [
                    {
                        "name": name,
                        "address": str(address),
                        "connections": connections.get(name, 0),
                    }
                    for name, address in self._addresses.items()
                ],
                "dialect": config.dialect,
                "fsync": config.fsync.value,
                "tls": config.tls_enabled,
                "tokens": self._service.gate.policy.token_required,
                "data_dir": str(self._service.data_dir),
                "disk_bytes": sum(topic["disk_bytes"] for topic in described),
                **disk,
            },
            "health": health,
            "traffic": asdict(pulse) | rates._asdict(),
            "topics": described,
            "hidden_topics": self._service.hidden_topics(client),
        }

    def _list_topics(self, client: Principal) -> list[Topic]:
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
        rule = self._service.gate.policy.rules.get(number)
        return {
            **self._describe_topic(topic, self._service.open_stages(client, number)),
            "segments": len(topic.log.snapshot()[2]),
            "consumers": len(self._service.consumers(client, number)),
            "rule": rule
            and {
                "mtls": rule.mtls_enabled,
                "allowed_cns": sorted(rule.allowed_cns),
                "allowed_topics": sorted(rule.allowed_topics),
            },
        }

    def _describe_topic(self, topic: Topic, stages: int) -> dict[str, Any]:
        metadata = topic.metadata
        start, end, segments = topic.log.snapshot()
        last_ns = segments[-1].last_append_ns if segments else 0
        return {
            "id": metadata.id,
            "name": metadata.name,
            "topic": metadata.partition.topic,
            "partition": metadata.partition.number,
            "partitions": metadata.partitions or 1,
            "created_ms": metadata.created_at * 1000,
            "records": end.record - start.record,
            "bytes": end.offset - start.offset,
            "disk_bytes": sum(s.size + s.index_bytes for s in segments),
            "log_start": start.offset,
            "log_end": end.offset,
            "retention": {k: v or None for k, v in asdict(metadata.retention).items()},
            "stages": stages,
            "last_append_ms": last_ns // _NS_PER_MS if last_ns else None,
            **self._sampler.rates(metadata.id)._asdict(),
        }

    def _measure_disk(self) -> dict[str, int]:
        try:
            usage = shutil.disk_usage(self._service.data_dir)
        except OSError:
            # A directory that is gone has other things to say about it.
            return {"disk_free_bytes": 0, "disk_total_bytes": 0}
        return {"disk_free_bytes": usage.free, "disk_total_bytes": usage.total}

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

    def describe_stages(self, client: Principal) -> dict[str, Any]:
        """Describe open stages, the one that was opened first at the front."""
        stages = self._service.stages(client)
        active, ttl_ms = _find_activity(stages), self._config.stage_ttl_s * 1000
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
                    "expires_ms": active[stage.metadata.job] // _NS_PER_MS + ttl_ms,
                }
                for stage in sorted(stages, key=lambda s: s.metadata.id)
            ]
        }

    def describe_clients(self, client: Principal) -> dict[str, Any]:
        """Describe the clients that are connected, the oldest connection first."""
        self._service.gate.admit(client, None)
        found = self._clients()
        return {
            "clients": [
                {
                    "peer": one.peer,
                    "protocol": one.protocol,
                    "name": one.name,
                    "standing": one.standing,
                    "since_ms": one.since_ns // _NS_PER_MS,
                }
                for one in found[:CLIENTS_MAX]
            ],
            "left_out": max(0, len(found) - CLIENTS_MAX),
        }

    def describe_consumers(self, client: Principal) -> dict[str, Any]:
        """Describe the consumers and groups that a visitor may know of."""
        topics = {t.metadata.id: t for t in self._list_topics(client)}
        groups = self._service.describe_groups(client)
        names = {find_consumer_id(group.group): group.group for group in groups}
        states = [
            (topic, state)
            for topic, found in self._service.all_consumers(client).items()
            for state in found
            if topic in topics
        ]
        # Those of groups come first: the page makes the lag of a group from them.
        states.sort(key=lambda found: found[1].consumer not in names)
        shown = states[:CONSUMERS_MAX]
        return {
            "groups": [
                {
                    "name": group.group,
                    "generation": group.generation,
                    "strategy": group.strategy.name.lower().replace("_", "-"),
                    "members": [
                        {
                            "id": member,
                            "topics": self._service.subscription(
                                client, group.group, member
                            ),
                            "assigned": list(assigned),
                        }
                        for member, assigned in group.members.items()
                    ],
                }
                for group in groups
            ],
            "consumers": [
                {
                    "group": names.get(state.consumer),
                    **self._describe_consumer(client, topics[topic], state),
                }
                for topic, state in shown
            ],
            "left_out": len(states) - len(shown),
        }

    def _describe_consumer(
        self, client: Principal, topic: Topic, state: ConsumerState
    ) -> dict[str, Any]:
        number, committed, end = topic.metadata.id, state.committed, topic.log.visible
        bytes_behind = records_behind = None
        if committed is not None:
            bytes_behind = max(0, end.offset - committed)
            # If it is damaged, or deleted meanwhile, the bytes are known all the same.
            with suppress(LanceError):
                at = self._service.locate(client, number, "offset", committed)
                records_behind = max(0, end.record - at.record)
        key = ConsumerKey(state.consumer, number)
        return {
            # Above 2^53, where numbers of JavaScript are not exact.
            "id": str(state.consumer),
            "topic": topic.metadata.name,
            "committed": committed,
            "bytes_behind": bytes_behind,
            "records_behind": records_behind,
            "history": self._sampler.lag_history(key, _HISTORY_POINTS),
        }


def _find_activity(stages: Iterable[Stage]) -> dict[Job, int]:
    """Tell when each job was last active, in ns: when any stage of it was."""
    active: dict[Job, int] = {}
    for stage in stages:
        job = stage.metadata.job
        active[job] = max(active.get(job, 0), stage.active_ns)
    return active


def find_consumer_id(group: str) -> int:
    """Give the number that a group commits under, as `client.lwp.offsets` does."""
    digest = hashlib.sha256(group.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") or 1
