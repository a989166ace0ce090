"""The controller (SC): which topics there are, where they are, and new ones.

There is one SPU, which has everything. A Watch stands for as long as its connection:
it is answered with all objects, and then with each change.
"""

from __future__ import annotations

import ipaddress
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from lance_spark.broker.exchange import Family
from lance_spark.broker.fluvio.session import FluvioSession, Handler
from lance_spark.broker.service import Service
from lance_spark.broker.session import STANDING_MAX, Owed, Shared, StandingRequest
from lance_spark.errors import (
    BrokerError,
    InvalidPayload,
    LanceError,
    LimitReached,
    OperationTimeout,
    UnknownError,
)
from lance_spark.model import Buffer, Retention
from lance_spark.net.address import Address, parse_address
from lance_spark.net.stream import Stream
from lance_spark.wire import fluvio as wire

# The only SPU, named as one that its owner has made.
_SPU = 5001
# The request to delete an object.
_DELETE = 1002
_SPU_NAME = f"custom-spu-{_SPU}"
_CUSTOM = 1
_TLS = 1
# What an object takes while an answer with it is made.
_OBJECT_BYTES = 4096
# Changes that are remembered for clients which have not been told yet.
_CHANGES_MAX = 10_000
_U32_MAX = 2**32 - 1
_ANY_HOST = ("0.0.0.0", "::")


# What has changed.


class Topic(NamedTuple):
    """A topic that there is, or was."""

    name: str
    log: int
    partitions: int


class Changed(NamedTuple):
    """A topic that has come, or has gone."""

    topic: Topic
    is_deleted: bool


class Changes:
    """The topics that have come and gone, for all Watches of a broker.

    Each change has a number. A Watch keeps the number of the next change to tell, and
    no list of topics of its own.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._version: int | None = None
        self._topics: dict[str, Topic] = {}
        self._changes: deque[Changed] = deque(maxlen=_CHANGES_MAX)
        # The number of the next change.
        self._next = 1

    def next_number(self) -> int:
        """Tell which number the next change gets."""
        with self._lock:
            self._look()
            return self._next

    def since(self, number: int) -> list[Changed]:
        """Give the changes from a number on, the oldest first.

        Raises:
            LimitReached: the oldest of them is forgotten.
        """
        with self._lock:
            self._look()
            missed = self._next - number
            if missed > len(self._changes):
                raise LimitReached(
                    f"{missed} topics have come or gone since the client was told of "
                    f"some: no more than {_CHANGES_MAX} are remembered"
                )
            return [self._changes[at - missed] for at in range(missed)]

    def _look(self) -> None:
        """Compare the list of topics with what it was."""
        version = self._service.topics_version
        if version == self._version:
            return
        # Who may see them is asked for each client that is to be told.
        found: dict[str, Topic] = {}
        for log in self._service.store.topics():
            metadata = log.metadata
            name = metadata.partition.topic
            found.setdefault(name, Topic(name, metadata.id, metadata.partitions or 1))
        if self._version is not None:
            for name in self._topics.keys() | found.keys():
                was, now = self._topics.get(name), found.get(name)
                for topic, is_deleted in ((was, True), (now, False)):
                    if topic is not None and was != now:
                        self._changes.append(Changed(topic, is_deleted))
                        self._next += 1
        self._version, self._topics = version, found


@dataclass(eq=False, slots=True)
class _Watching:
    """A Watch, and the next change to tell; before the first answer there is none."""

    request: wire.Watch
    next: int | None = None


# Objects.


def _describe_topic(family: Family) -> Iterator[wire.Metadata]:
    replicas = tuple(wire.Replicas(n, (_SPU,)) for n in range(family.partitions))
    cleanup, storage = _write_retention(family)
    yield wire.Topic(
        family.name,
        wire.TopicSpec((wire.COMPUTED, family.partitions, 1, False), cleanup, storage),
        wire.TopicStatus(replicas=replicas),
    )


def _describe_partitions(family: Family) -> Iterator[wire.Metadata]:
    cleanup, storage = _write_retention(family)
    spec = wire.PartitionSpec(_SPU, (_SPU,), cleanup, storage)
    for number in range(family.partitions):
        start = end = 0
        if number in family.logs:
            first, last, _ = family.logs[number].log.snapshot()
            start, end = first.record, last.record
        state = wire.ReplicaStatus(_SPU, end, end)
        status = wire.PartitionStatus(leader=state, live_replicas=1, base_offset=start)
        yield wire.Partition(f"{family.name}-{number}", spec, status)


_DESCRIBE: dict[str, Callable[[Family], Iterator[wire.Metadata]]] = {
    "Topic": _describe_topic,
    "Partition": _describe_partitions,
}


def _forget(kind: str, topic: Topic) -> Iterator[wire.Metadata]:
    """Give what a deleted topic was; clients look at the names only."""
    if kind == "Topic":
        yield wire.Topic(topic.name)
        return
    for number in range(topic.partitions):
        yield wire.Partition(f"{topic.name}-{number}", wire.PartitionSpec(_SPU))


def _write_retention(
    family: Family,
) -> tuple[tuple[int, int] | None, wire.Storage | None]:
    log = next(iter(family.logs.values()))
    kept = log.metadata.retention
    cleanup = (0, min(kept.max_age_s, _U32_MAX)) if kept.max_age_s else None
    storage = wire.Storage(None, kept.max_bytes) if kept.max_bytes else None
    return cleanup, storage


def _read_retention(spec: wire.TopicSpec) -> Retention | None:
    age_s = 0 if spec.cleanup is None else spec.cleanup[1]
    size = 0 if spec.storage is None else spec.storage.partition_bytes_max or 0
    return Retention(age_s, size) if age_s or size else None


class ScSession(FluvioSession):
    """Serves one client that asks for topics."""

    ROLE = wire.Role.SC

    def __init__(self, stream: Stream, shared: Shared, changes: Changes) -> None:
        super().__init__(stream, shared)
        self._addresses = shared.addresses
        self._changes = changes

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        raise AssertionError("an SC writes no records")

    def _make_refusal(
        self, request: wire.Request, error: BrokerError
    ) -> wire.Response | None:
        # Lists have no place for an error.
        if isinstance(request, wire.List | wire.Watch):
            return None
        name = request.name if isinstance(request, wire.Create) else ""
        return wire.Status(name, wire.code_of(error), error.message)

    # Requests.

    def _create(self, request: wire.Create) -> wire.Response:
        if not isinstance(request.spec, wire.TopicSpec):
            raise InvalidPayload(f"only topics can be created here, no {request.kind}")
        topic, partitions = request.name, request.spec.partitions
        retention = _read_retention(request.spec)
        self._service.create_topics(
            self._client, topic, partitions, retention, dry_run=request.dry_run
        )
        return wire.Status(topic)

    def _list(self, request: wire.List) -> wire.Response:
        objects = self._find_objects(request.kind)
        if request.names:
            names = set(request.names)
            objects = [
                one
                for one in objects
                if one.name in names
                # Clients ask for the partitions of a topic by its name.
                or (request.kind == "Partition" and _topic_of(one.name) in names)
            ]
        return wire.Listing(request.kind, tuple(objects))

    def _watch_objects(self, request: wire.Watch) -> wire.Response | None:
        if request.kind not in _DESCRIBE:
            # There are none that could change.
            objects = tuple(self._find_objects(request.kind))
            return wire.Watched(request.kind, 1, everything=objects)
        # Without what is not needed: it may stand for days.
        watching = _Watching(replace(request, client_id=""))
        standing = StandingRequest(
            {},
            lambda final: self._tell(watching),
            math.inf,
            topics=True,
            command=type(request).__name__,
        )
        if not self._stand(standing):
            raise OperationTimeout(
                f"no room for another Watch: a connection may have {STANDING_MAX}, "
                "and all of them a part of the memory"
            )
        return None

    def _refuse_other(self, request: wire.Other) -> wire.Response:
        if request.key == _DELETE:
            raise UnknownError("delete topics with `lance-spark topics delete`")
        raise UnknownError(f"request {request.key} is not known here")

    # Objects.

    def _find_objects(self, kind: str) -> list[wire.Metadata]:
        if kind == "SPU":
            # Not for clients that may not ask at all.
            self._service.gate.admit(self._client, None)
            return [self._describe_spu()]
        families = self._exchange.topics(self._client)
        describe = _DESCRIBE.get(kind)
        if describe is None:
            return []
        count = sum(family.partitions for family in families)
        self._hold_answer(count * _OBJECT_BYTES)
        return [one for family in families for one in describe(family)]

    def _describe_spu(self) -> wire.Metadata:
        at = self._find_advertised()
        try:
            ipaddress.ip_address(at.host)
            ingress = wire.Ingress(ip=at.host)
        except ValueError:
            ingress = wire.Ingress(at.host)
        security = _TLS if self._config.tls_enabled else 0
        public = wire.PublicEndpoint(at.port, (ingress,), security)
        private = wire.Endpoint(at.port, at.host, security)
        return wire.Spu(_SPU_NAME, wire.SpuSpec(_SPU, _CUSTOM, public, private))

    def _find_advertised(self) -> Address:
        if self._config.fluvio_advertise is not None:
            return parse_address(self._config.fluvio_advertise)
        own = self._addresses["fluvio_spu"]
        if own.host in _ANY_HOST and self._stream.host:
            # How the client has come here, it comes there as well.
            return Address(self._stream.host.removeprefix("::ffff:"), own.port)
        return own

    def _tell(self, watching: _Watching) -> bool:
        """Push what a Watch does not know yet; it is never done."""
        kind = watching.request.kind
        if watching.next is None:
            # Taken before the look at the topics: what comes between is told twice.
            watching.next = self._changes.next_number()
            objects = tuple(self._find_objects(kind))
            told = wire.Watched(kind, watching.next, everything=objects)
            self._answer(watching.request, told)
            return False
        changes = self._changes.since(watching.next)
        watching.next += len(changes)
        self._hold_answer(_OBJECT_BYTES * sum(one.topic.partitions for one in changes))
        seen = tuple(self._show(kind, changes))
        if seen:
            self._answer(watching.request, wire.Watched(kind, watching.next, seen))
        return False

    def _show(self, kind: str, changes: Sequence[Changed]) -> Iterator[wire.Change]:
        """Give the changes that the client may see."""
        gate = self._service.gate
        for topic, is_deleted in changes:
            if is_deleted:
                is_seen = gate.may_see(self._client, topic.log)
                if is_seen and not gate.hides(self._client, topic.name):
                    yield from (wire.Change(1, one) for one in _forget(kind, topic))
                continue
            # One that has gone again, which is among the changes too, or is hidden.
            with suppress(LanceError):
                family = self._exchange.family(self._client, topic.name)
                yield from (wire.Change(0, one) for one in _DESCRIBE[kind](family))

    HANDLERS: ClassVar[Mapping[type[wire.Request], Handler]] = {
        wire.Create: _create,
        wire.List: _list,
        wire.Watch: _watch_objects,
        wire.Other: _refuse_other,
    }


def _topic_of(partition: str) -> str:
    return partition.rpartition("-")[0]
