"""A cluster that behaves as Fluvio's own does: an SC and two SPUs on real sockets.

What it does is in the notes on the protocol: batches are stored as they come; a slice
starts with the batch that has the asked record, and is cut where it has as many bytes
as were asked for; no Fetch waits; a record behind the end is error 2, and an SPU that
does not lead says so.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lance_spark.net.address import parse_address
from lance_spark.net.stream import Stream
from lance_spark.records import Records, Spans
from lance_spark.wire import fluvio as wire
from tests.client.field import FieldServerBase, Lie

SC, SPU = wire.Role.SC, wire.Role.SPU


def make(values: Sequence[bytes]) -> Records:
    """Make records of values."""
    lengths = np.array([len(value) for value in values], np.int64)
    ends = np.cumsum(lengths, dtype=np.int64)
    return Records(
        Spans(np.frombuffer(b"".join(values), np.uint8), ends - lengths, ends)
    )


def batch(values: Sequence[bytes], codec: wire.Codec = wire.Codec.NONE) -> bytes:
    """Write a batch of values."""
    return bytes(wire.write_records(make(values), codec=codec))


class Stored(NamedTuple):
    """A batch with its numbers."""

    first: int
    end: int
    data: bytes


@dataclass
class Log:
    """A partition."""

    leader: int
    batches: list[Stored] = field(default_factory=list)
    start: int = 0
    end: int = 0
    # What the other replicas have not yet.
    behind: int = 0

    def append(self, record_set: bytes) -> int:
        """Store batches with new numbers; say which is the first."""
        base = self.end
        for head in wire.inspect_batches(record_set):
            size = 12 + struct.unpack_from(">i", record_set, 8)[0]
            data = struct.pack(">q", self.end) + record_set[8:size]
            record_set = record_set[size:]
            self.batches.append(Stored(self.end, self.end + head.count, data))
            self.end += head.count
        return base

    def drop(self, count: int) -> None:
        """Let retention take the oldest batches."""
        del self.batches[:count]
        self.start = self.batches[0].first if self.batches else self.end

    def values(self) -> list[bytes]:
        """Give the values of all records."""
        data = b"".join(one.data for one in self.batches)
        values = wire.read_chunk(data).records.values
        spans = zip(values.starts.tolist(), values.ends.tolist(), strict=True)
        return [bytes(values.data[start:end]) for start, end in spans]


class FieldNode(FieldServerBase):
    """A server of a cluster: an SPU, or the SC if it has no number."""

    def __init__(self, cluster: FieldCluster, spu: int | None = None) -> None:
        self._cluster = cluster
        self.spu = spu
        super().__init__()

    def make_parser(self) -> wire.FrameParser:
        return wire.FrameParser()

    def answer_all(self, stream: Stream, parser: wire.FrameParser) -> bool:
        while (frame := parser.next_frame()) is not None:
            request: Any = wire.decode_request(frame, SC if self.spu is None else SPU)
            answer = self._cluster.answer(request, self.spu)
            if answer is None:
                return False
            self.send(stream, answer)
        return True

    def stop(self) -> None:
        """End it for good."""
        self._listener.close()
        self.drop()

    @property
    def connections(self) -> int:
        """How many clients it has."""
        with self.lock:
            return len(self._streams)


class FieldCluster:
    """One controller and two SPUs, which lead partitions in turn."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.asked: Counter[str] = Counter()
        self.requests: list[Any] = []
        # What a topic takes batches with, if not with any codec.
        self.codecs: dict[str, wire.Codec] = {}
        # Which versions of requests SPUs know, by key.
        self.versions = {key.key: key.version_max for key in wire.API_KEYS[SPU]}
        # How often the SC names no partitions when it is asked for them.
        self.unready = 0
        # How many of the next appends are stored, and never answered …
        self.answers_to_lose = 0
        # … and how many are neither.
        self.appends_to_lose = 0
        # Sends something else than the answer to a request; None for the answer.
        self.lie: Lie | None = None
        self._lock = threading.Lock()
        self.sc = FieldNode(self)
        self.spus = [FieldNode(self, number) for number in range(2)]
        self.address = self.sc.address

    def __enter__(self) -> FieldCluster:
        return self

    def __exit__(self, *error: object) -> None:
        for node in (self.sc, *self.spus):
            node.__exit__()

    def drop(self) -> None:
        """End all connections."""
        for node in (self.sc, *self.spus):
            node.drop()

    def create(self, topic: str, partitions: int = 1) -> list[Log]:
        """Create a topic."""
        with self._lock:
            return self.topics.setdefault(
                topic, [Log(n % 2) for n in range(partitions)]
            )

    def fill(self, topic: str, *batches: Sequence[bytes], partitions: int = 1) -> Log:
        """Put batches of values into the first partition of a topic."""
        log = self.create(topic, partitions)[0]
        with self._lock:
            for values in batches:
                log.append(batch(values))
        return log

    def gain(self, topic: str, values: Sequence[bytes]) -> None:
        """Add a partition to a topic, with values in it."""
        with self._lock:
            logs = self.topics[topic]
            logs.append(Log(len(logs) % 2))
            logs[-1].append(batch(values))

    # Answers.

    def answer(self, request: Any, spu: int | None) -> Iterable[bytes] | None:
        """Say what a server sends; None if it ends the connection."""
        with self._lock:
            self.asked[type(request).__name__] += 1
            self.requests.append(request)
            answer = self._handle(request, spu)
        if answer is None:
            return None
        answer = replace(
            answer,
            correlation_id=request.correlation_id,
            api_version=request.api_version,
        )
        said = self.lie(request, answer) if self.lie else None
        if said is None:
            said = [b"".join(map(bytes, wire.encode_message(answer)))]
        return said

    def _handle(self, request: Any, spu: int | None) -> Any:
        if isinstance(request, wire.ApiVersions):
            keys = wire.API_KEYS[SC]
            if spu is not None:
                keys = tuple(wire.ApiKey(i, 0, n) for i, n in self.versions.items())
            return wire.Versions(keys=keys, platform_version="0.18.1")
        if isinstance(request, wire.List):
            return wire.Listing(request.kind, tuple(self._list(request.kind)))
        if isinstance(request, wire.Create):
            return self._create(request)
        assert spu is not None
        [topic] = request.topics
        if isinstance(request, wire.Produce):
            return self._produce(request, topic, spu)
        parts = []
        for asked in topic.partitions:
            number = asked if isinstance(asked, int) else asked.partition
            log = self._find(topic.name, number, spu)
            parts.append((asked, number, log))
        if isinstance(request, wire.FetchOffsets):
            offsets = tuple(
                wire.PartitionOffsets(partition=number, error=wire.ErrorCode(6))
                if log is None
                else wire.PartitionOffsets(
                    wire.NO_ERROR, number, log.start, log.end - log.behind
                )
                for _, number, log in parts
            )
            return wire.Offsets((wire.TopicOffsets(topic.name, offsets),))
        assert isinstance(request, wire.Fetch)
        fetched = tuple(self._fetch(request, *part) for part in parts)
        return wire.FetchAnswer(topics=(wire.FetchedTopic(topic.name, fetched),))

    def _find(self, topic: str, partition: int, spu: int) -> Log | None:
        logs = self.topics.get(topic, [])
        log = logs[partition] if partition < len(logs) else None
        return log if log is not None and log.leader == spu else None

    def _list(self, kind: str) -> Iterable[Any]:
        if kind == "Topic":
            for name, logs in self.topics.items():
                spec = wire.TopicSpec((wire.COMPUTED, len(logs), 1, False))
                yield wire.Topic(name, spec)
            yield wire.Topic("consumer-offset", wire.TopicSpec(system=True))
        elif kind == "SPU":
            for number, node in enumerate(self.spus):
                address = parse_address(node.address)
                ingress = wire.Ingress(hostname=address.host)
                public = wire.PublicEndpoint(address.port, (ingress,))
                yield wire.Spu(
                    f"custom-spu-{number}", wire.SpuSpec(5001 + number, 1, public)
                )
        elif self.unready:
            self.unready -= 1
        else:
            for name, logs in self.topics.items():
                for number, log in enumerate(logs):
                    spec = wire.PartitionSpec(5001 + log.leader)
                    yield wire.Partition(f"{name}-{number}", spec)

    def _create(self, request: wire.Create) -> wire.Status:
        assert isinstance(request.spec, wire.TopicSpec)
        if request.name in self.topics:
            return wire.Status(request.name, wire.ErrorCode(2002), "it is there")
        count = request.spec.partitions
        self.topics[request.name] = [Log(number % 2) for number in range(count)]
        return wire.Status(request.name)

    def _produce(
        self, request: wire.Produce, topic: wire.WriteTopic, spu: int
    ) -> wire.Produced | None:
        if self.appends_to_lose:
            self.appends_to_lose -= 1
            return None
        [write] = topic.writes
        outcome = wire.Outcome(write.partition, wire.ErrorCode(6))
        data, log = bytes(write.records), self._find(topic.name, write.partition, spu)
        used = {one.codec for one in wire.inspect_batches(data)}
        if log is not None and used != {self.codecs.get(topic.name, *used)}:
            outcome = wire.Outcome(write.partition, wire.ErrorCode(9000))
        elif log is not None:
            outcome = wire.Outcome(write.partition, base_offset=log.append(data))
            if self.answers_to_lose:
                self.answers_to_lose -= 1
                return None
        return wire.Produced((wire.ProducedTopic(topic.name, (outcome,)),))

    def _fetch(
        self,
        request: wire.Fetch,
        asked: wire.FetchPartition,
        number: int,
        log: Log | None,
    ) -> wire.Fetched:
        if log is None:
            return wire.Fetched(number, wire.ErrorCode(6))
        offset, hw = asked.offset, log.end - log.behind
        if offset < log.start:
            return wire.Fetched(number, wire.ErrorCode(71, (offset, log.start)))
        if offset > log.end:
            text = f"offset {offset} is behind the end {log.end}"
            return wire.Fetched(number, wire.ErrorCode(2, (text,)))
        limit = hw if request.isolation else log.end
        found = b"".join(b.data for b in log.batches if offset < b.end <= limit)
        return wire.Fetched(
            number,
            high_watermark=hw,
            log_start=log.start,
            records=found[: request.max_bytes],
        )
