"""Fluvio: the driver of a cluster.

The controller (SC) knows the topics, which SPU leads each partition, and where that SPU
is. Records are asked of the leader: there is one link to each SPU, which all partitions
share that it leads. What the SC said is kept until something fails; then the SC is
asked again, as another SPU may lead by now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lance_spark.client.config import Runtime
from lance_spark.client.connection import Connection
from lance_spark.client.counted import CountedDriver, Fetched, connect, show
from lance_spark.client.dialect import ConnectionEnded
from lance_spark.client.fluvio.config import TRAITS as TRAITS
from lance_spark.client.fluvio.config import Config as Config
from lance_spark.client.fluvio.dialect import FluvioDialect
from lance_spark.client.link import Build, Dialer, Link
from lance_spark.client.retry import Decision, Retry
from lance_spark.errors import (
    ConnectionLost,
    LanceError,
    LeaderUnknown,
    OptionError,
    ProtocolError,
    RecordError,
    RemoteProtocolError,
    Timeout,
    TopicNotFound,
)
from lance_spark.model import Bounds, Partition
from lance_spark.net.address import Address, parse_address
from lance_spark.net.deadline import Deadline
from lance_spark.records import Records
from lance_spark.wire import fluvio as wire

MIB = 1024 * 1024
# A broker of this library takes no larger message, unless its settings say so.
_APPEND_BYTES_MAX = 8 * MIB
_RECORD_BYTES_MAX = 16 * MIB - 2**10
_WAIT_S_MIN, _WAIT_S_MAX = 0.01, 3600.0
# What the number of a partition has at most.
_DIGITS_MAX = 10
# No record has this number.
_OFFSET_MAX = 2**62
# From so many on, links to SPUs are closed that the SC does not name any more.
_LINKS_MAX = 64

assert [*TRAITS.compressions] == [codec.name.lower() for codec in wire.Codec]


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What an SC has said.

    Args:
        topics: how many partitions each has.
        leaders: where the SPU is that leads a partition; without those that have none.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    leaders: Mapping[Partition, Address] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class _LeaderRules(Retry):
    """Retry, and ask the SC for the leader before each next try.

    The connection to an SPU is never dropped because it leads a partition no more: it
    has the appends of others under way.

    Args:
        forget: forgets what the SC has said of leaders.
    """

    forget: Callable[[], None]

    def note(self, error: LanceError, asked: Address | None) -> None:
        """Forget the leader if it may be another one."""
        if error.retriable or isinstance(error, ProtocolError | TopicNotFound):
            self.forget()

    def decide(self, error: LanceError, **facts: Any) -> Decision:
        """Decide as usual, but stay on the connection."""
        return Decision(super().decide(error, **facts).delay_s)


class FluvioDriver(CountedDriver):
    """Drives a cluster of Fluvio."""

    traits = TRAITS
    wait_s_min = _WAIT_S_MIN
    append_bytes_max = _APPEND_BYTES_MAX
    record_bytes_max = _RECORD_BYTES_MAX
    config: Config

    def __init__(self, config: Config, runtime: Runtime | None = None) -> None:
        size = config.response_bytes_max
        self._runtime = runtime or Runtime()
        super().__init__(
            config, lambda _: [FluvioDialect(wire.Role.SC, size)], self._runtime
        )
        self.fetch_bytes_max = size // 2
        self._is_committed = config.isolation == "read_committed"
        self._cluster = _Cluster()
        # Guards the links.
        self._lock = threading.Lock()
        self._links: dict[Address, Link] = {}

    def close(self) -> None:
        """Close the connections to the SC and to all SPUs."""
        super().close()
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close()

    # Where partitions are.

    def connect_to(self, at: Partition, deadline: Deadline | None = None) -> Connection:
        """Connect to the SPU that leads a partition, without any retry.

        Raises:
            TopicNotFound: there is no such partition.
            LeaderUnknown: no SPU leads it now.
        """
        if deadline is None:
            config = self.config
            # The SC is asked until then.
            timeout_s = min(config.connect_timeout_s, config.retry_timeout_s)
            deadline = Deadline.after(timeout_s)
        link = self._find_link(self._find_leader(at, deadline))
        try:
            return link.connect_once(deadline)
        except LanceError as error:
            if link.is_closed and not self.is_closed:
                # The next look at the cluster finds another one.
                raise ConnectionLost(f"{show(at)}: its SPU is gone") from error
            if type(error) in (ConnectionLost, ConnectionEnded, Timeout):
                # The settings do not name this server: the SC does.
                text = f"{show(at)}: the SPU that leads it, as the SC says: {error}"
                raise type(error)(text) from error
            raise

    def ask_of(
        self,
        at: Partition,
        build: Build,
        *,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        """Ask the SPU that leads a partition, and the SC for it as often as needed."""
        return self.link.ask(
            build,
            timeout_s=timeout_s,
            wait_s=wait_s,
            connect=partial(self.connect_to, at),
            make_rules=partial(_LeaderRules, forget=self._forget),
        )

    def _forget(self) -> None:
        self._cluster = replace(self._cluster, leaders={})

    def _find_leader(self, at: Partition, deadline: Deadline) -> Address:
        leader = self._cluster.leaders.get(at)
        if leader is not None:
            return leader
        cluster = self._cluster = self._ask_cluster(deadline)
        leader = cluster.leaders.get(at)
        if leader is not None:
            return leader
        if at.number >= cluster.topics.get(at.topic, 0):
            raise TopicNotFound(f"there is no partition {show(at)}")
        raise LeaderUnknown(f"{show(at)}: no SPU leads it that clients could reach")

    def _ask_cluster(self, deadline: Deadline) -> _Cluster:
        topics = self._list_topics(deadline)
        partitions = self._list("Partition", deadline)
        spus = {spu.spec.id: _find_address(spu) for spu in self._list("SPU", deadline)}
        leaders = {}
        for partition in partitions:
            at, address = _parse_name(partition.name), spus.get(partition.spec.leader)
            if at is not None and address is not None:
                leaders[at] = address
        self._close_links({*spus.values()})
        return _Cluster(topics, leaders)

    def _list_topics(self, deadline: Deadline | None = None) -> dict[str, int]:
        return {
            topic.name: topic.spec.partitions
            for topic in self._list("Topic", deadline)
            if not topic.spec.system
        }

    def _list(self, kind: str, deadline: Deadline | None = None) -> Sequence[Any]:
        answer: wire.Listing = self.link.ask(
            lambda _: wire.List(kind),
            timeout_s=None if deadline is None else deadline.remaining(),
        )
        return answer.objects

    def _find_link(self, address: Address) -> Link:
        with self._lock:
            link = self._links.get(address)
            if link is None:
                config = replace(self.config, servers=str(address))
                size = config.response_bytes_max
                dialer = Dialer(
                    config,
                    self._runtime,
                    lambda _: [FluvioDialect(wire.Role.SPU, size)],
                )
                link = self._links[address] = Link(config, self._runtime, dialer)
            if self.is_closed:
                # It may have come too late for `close`.
                link.close()
        return link

    def _close_links(self, named: set[Address | None]) -> None:
        """Close links to SPUs that are gone, if there are many of them."""
        with self._lock:
            if len(self._links) <= _LINKS_MAX:
                return
            gone = [address for address in self._links if address not in named]
            links = [self._links.pop(address) for address in gone]
        for link in links:
            link.close()

    # Topics.

    def list_topics(self) -> dict[str, int]:
        """Ask the SC for all topics, but for those of the cluster itself."""
        return self._list_topics()

    def create_topic(
        self, name: str, partitions: int = 1, *, retry: bool = False
    ) -> None:
        """Create a topic; the SC answers when its partitions have leaders."""
        timeout_ms = int(1000 * self.config.request_timeout_s)
        spec = wire.TopicSpec((wire.COMPUTED, partitions, 1, False))
        request = wire.Create("Topic", name, False, timeout_ms, spec)
        self.link.ask(lambda _: request, retry=retry)

    def find_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Ask each leader for all partitions that it leads."""
        found: dict[int, Bounds] = {}
        for number in partitions:
            if number in found:
                continue
            others = [n for n in partitions if n not in found]
            try:
                try:
                    found |= self._ask_bounds(topic, number, others)
                except TopicNotFound:
                    # Another one may be gone, or the SC has said it long ago.
                    found |= self._ask_bounds(topic, number)
            except TopicNotFound:
                if topic not in self._cluster.topics:
                    raise
        return found

    def _ask_bounds(
        self, topic: str, number: int, others: Sequence[int] = ()
    ) -> dict[int, Bounds]:
        """Ask the leader of a partition for it, and for others if it leads them."""

        def build(connection: Connection) -> wire.FetchOffsets:
            leaders, here = self._cluster.leaders, connection.address
            led = (n for n in others if leaders.get(Partition(topic, n)) == here)
            wanted = tuple(sorted({number, *led}))
            return wire.FetchOffsets((wire.OffsetsTopic(topic, wanted),))

        answer: wire.Offsets = self.ask_of(Partition(topic, number), build)
        parts = answer.topics[0].partitions
        return {part.partition: _check_bounds(topic, part) for part in parts}

    # Records.

    def make_fetch(
        self, at: Partition, position: int, max_bytes: int, wait_s: float = 0.0
    ) -> wire.Fetch:
        """Ask for records, and let the server wait for them; SPUs may not."""
        most = min(max_bytes, self.fetch_bytes_max)
        part = wire.FetchPartition(at.number, offset=position, max_bytes=most)
        return wire.Fetch(
            max_wait_ms=int(1000 * min(wait_s, _WAIT_S_MAX)),
            min_bytes=int(wait_s > 0),
            max_bytes=most,
            isolation=int(self._is_committed),
            topics=(wire.FetchTopic(at.topic, (part,)),),
        )

    def read_fetched(
        self, answer: wire.FetchAnswer, at: Partition, position: int
    ) -> Fetched:
        """Read batches; the first may start before the position."""
        found = answer.topics[0].partitions[0]
        chunk = wire.read_chunk(
            found.records,
            start=position,
            expanded_bytes_max=8 * self.config.response_bytes_max,
        )
        records = chunk.records
        if records.fault is not None:
            # It is raised when it is first in an answer.
            if not len(records):
                reason = f"{show(at)}: batch behind {position - 1}: {records.fault}"
                raise RecordError(reason, position, unit="offset")
            records = replace(records, fault=None)
        if len(records):
            records = _cut_at_gap(records)
            last = records.position(len(records) - 1)
            return Fetched(records, records.position(0), last + 1)
        needed = chunk.cut_bytes
        if needed and chunk.next_offset != position:
            # Whole batches came, and what was asked for is behind them.
            needed += memoryview(found.records).nbytes
        return Fetched(records, position, position, needed)

    def make_append(
        self,
        to: Partition,
        records: Records,
        *,
        expected: int | None,
        compression: str,
    ) -> wire.Produce:
        """Ask to append; records without a time stay so."""
        batch = wire.write_records(records, codec=wire.Codec[compression.upper()])
        return wire.Produce(
            isolation=(
                wire.READ_COMMITTED if self._is_committed else wire.READ_UNCOMMITTED
            ),
            timeout_ms=int(1000 * self.config.request_timeout_s),
            topics=(wire.WriteTopic(to.topic, (wire.Write(to.number, batch),)),),
        )

    def check_appended(self, answer: wire.Produced, to: Partition, count: int) -> None:
        """Take it for success: the dialect has raised what else it may be."""


def _parse_name(name: str) -> Partition | None:
    """Read which partition it is that an SC names so; None if it is none."""
    topic, _, number = name.rpartition("-")
    # Python refuses to read numbers of thousands of digits.
    is_number = number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX
    return Partition(topic, int(number)) if is_number else None


def _find_address(spu: wire.Spu) -> Address | None:
    """Read where clients find an SPU; None if that is no address."""
    public = spu.spec.public
    host = public.host or ""
    host = f"[{host}]" if ":" in host else host
    try:
        return parse_address(f"{host}:{public.port}") if public.port else None
    except OptionError:
        return None


def _check_bounds(topic: str, part: wire.PartitionOffsets) -> Bounds:
    bounds = part.bounds
    if not 0 <= bounds.start <= bounds.end <= _OFFSET_MAX:
        raise RemoteProtocolError(
            f"{show(Partition(topic, part.partition))} can't begin at {bounds.start} "
            f"and end at {bounds.end}"
        )
    return bounds


def _cut_at_gap(records: Records) -> Records:
    """Leave out what is behind a number that has no record: a loss, found there."""
    if records.positions is None:
        return records
    positions = records.find_positions()
    gaps = (positions[1:] != positions[:-1] + 1).nonzero()[0]
    return records.cut(0, int(gaps[0]) + 1) if len(gaps) else records


def open_driver(config: Config, *, once: bool = False) -> FluvioDriver:
    """Connect to the controller."""
    return connect(FluvioDriver(config), once=once)
