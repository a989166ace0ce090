"""TANK's messages, requests and answers, as values.

Each is the fields of its `LAYOUT`; `frame` says what the letters mean. Bytes behind the
last known field are ignored, as the broker in the field does. Every answer has the id
of its request, and answers may overtake each other. Bundles and chunks are buffers
here, which `record` reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Bounds, Buffer
from lance_spark.value import dataclass
from lance_spark.wire.schema import Cursor, Form, Many, Maybe, Struct, show
from lance_spark.wire.tank.frame import FORM, Frame, Kind, encode_frame

# Consume from here gives what comes next, whatever its number; from 0 the oldest.
SEQ_END = 2**64 - 1
# What the client in the field says of itself.
CLIENT_VERSION = 2
# Instead of the number of a partition, or of the nodes of a cluster.
_NONE_U16 = 2**16 - 1

# Flags and codes that stand for more than an error.
OK = 0x00
OUT_OF_RANGE = 0x01
OTHER_LEADER = 0xFC
SPARSE = READ_ONLY = 0xFE
UNKNOWN = 0xFF
_FLAGS = {OK, OUT_OF_RANGE, 0xFB, OTHER_LEADER, 0xFD, SPARSE, UNKNOWN}


class Message(Struct):
    """A message of one direction."""

    __slots__ = ()

    KIND: ClassVar[Kind]

    def __init_subclass__(cls, kind: Kind | None = None) -> None:
        # A dataclass with slots is made twice, and the second time without this.
        if kind is not None:
            cls.KIND = kind


@dataclass(frozen=True, slots=True)
class Ping(Message, kind=Kind.PING):
    """The first thing that a broker says on a connection; it gets no answer."""


# Requests.


@dataclass(frozen=True, slots=True)
class Write(Struct):
    """A bundle for a partition.

    `first_seq` goes with `ProduceAt` only, and there 0 stands for any number.
    """

    partition: int
    bundle: Buffer
    first_seq: int | None = None

    def encode(self, form: Form) -> Iterator[Buffer]:
        yield form.encode_one("H", self.partition)
        yield form.encode_one("v", memoryview(self.bundle).nbytes)
        if self.first_seq is not None:
            yield form.encode_one("Q", self.first_seq)
        yield self.bundle

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> Write:
        # Only the message says whether a number follows.
        has_seq = cursor.what == ProduceAt.__name__
        partition, size, *first_seq = cursor.read("HvQ" if has_seq else "Hv")
        return cls(partition, cursor.take(size), *first_seq)


@dataclass(frozen=True, slots=True)
class WriteTopic(Struct):
    """The writes to a topic, at most one per partition."""

    LAYOUT = ("s", Many(Write, "B"))

    name: str
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Produce(Message, kind=Kind.PRODUCE):
    """Append a bundle to each of some partitions, wherever these end."""

    LAYOUT = (*"HIsBI", Many(WriteTopic, "B"))

    client_version: int = CLIENT_VERSION
    request_id: int = 0
    client_id: str = ""
    required_acks: int = 0
    ack_timeout_ms: int = 0
    topics: tuple[WriteTopic, ...] = ()

    def __post_init__(self) -> None:
        for topic in self.topics:
            for write in topic.writes:
                if (write.first_seq is None) == (self.KIND is Kind.PRODUCE_AT):
                    raise LocalProtocolError("ProduceAt has a first_seq, Produce none")


@dataclass(frozen=True, slots=True)
class ProduceAt(Produce, kind=Kind.PRODUCE_AT):
    """Append if the first message gets the number `first_seq`."""


@dataclass(frozen=True, slots=True)
class Fetch(Struct):
    """From which sequence number on to read a partition, and about how much."""

    LAYOUT = "HQI"

    partition: int
    seq: int
    fetch_size: int


@dataclass(frozen=True, slots=True)
class FetchTopic(Struct):
    """The partitions of a topic that are to be read."""

    LAYOUT = ("s", Many(Fetch, "B"))

    name: str
    fetches: tuple[Fetch, ...]


@dataclass(frozen=True, slots=True)
class Consume(Message, kind=Kind.CONSUME):
    """Read partitions; wait where all of them are at their end.

    Bit 0 of `op_flags` asks for the node at hand; it is sent from version 3 on.
    """

    LAYOUT = (
        *"HIsQI",
        Maybe("B", lambda before: before[0] >= 3),
        Many(FetchTopic, "B"),
    )

    client_version: int = CLIENT_VERSION
    request_id: int = 0
    client_id: str = ""
    max_wait_ms: int = 0
    min_bytes: int = 0
    op_flags: int = 0
    topics: tuple[FetchTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoverPartitions(Message, kind=Kind.DISCOVER_PARTITIONS):
    """Ask for the bounds of all partitions.

    A list of partitions could follow. It makes the broker in the field exit if one of
    them is unknown, so this side never sends it.
    """

    LAYOUT = "Is"

    request_id: int
    topic: str


@dataclass(frozen=True, slots=True)
class CreateTopic(Message, kind=Kind.CREATE_TOPIC):
    """Create a topic; `config` has lines `name=value`, as `log.retention.secs=60`."""

    LAYOUT = "IsHt"

    request_id: int
    topic: str
    partitions: int
    config: str = ""


@dataclass(frozen=True, slots=True)
class ReloadConf(Message, kind=Kind.RELOAD_CONF):
    """Ask to read a partition's configuration again."""

    LAYOUT = "IsH"

    request_id: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GetStatus(Message, kind=Kind.STATUS):
    """Ask how many topics there are, and since when."""

    LAYOUT = "I"

    request_id: int


@dataclass(frozen=True, slots=True)
class DiscoverTopics(Message, kind=Kind.DISCOVER_TOPICS):
    """Ask for all topics."""

    LAYOUT = "IB"

    request_id: int
    flags: int = 0


@dataclass(frozen=True, slots=True)
class DiscoverTopology(Message, kind=Kind.DISCOVER_TOPOLOGY):
    """Ask for the nodes of the cluster."""

    LAYOUT = "IB"

    request_id: int
    flags: int = 0


# Answers.


@dataclass(frozen=True, slots=True)
class Outcome(Struct):
    """A code, which `error` explains, and who leads if that is another broker."""

    LAYOUT = ("B", Maybe("a", lambda before: before[0] == OTHER_LEADER, None))

    code: int = OK
    leader: str | None = None


@dataclass(frozen=True, slots=True)
class Produced(Message, kind=Kind.PRODUCE):
    """The answer to Produce and ProduceAt, as it is on the wire.

    One outcome per partition, but only one for a whole topic if that is UNKNOWN or
    READ_ONLY. `match` says which belongs to which.
    """

    LAYOUT = ("I", Many(Outcome))

    request_id: int
    outcomes: tuple[Outcome, ...]

    def match(self, request: Produce) -> Iterator[tuple[str, Write, Outcome]]:
        """Give the topic, the write and the outcome of each write of a request.

        Raises:
            RemoteProtocolError: there are too few outcomes.
        """
        left = iter(self.outcomes)
        for topic in request.topics:
            first = next(left, None) if topic.writes else None
            whole = first is not None and first.code in (UNKNOWN, READ_ONLY)
            for write in topic.writes:
                is_same = whole or write is topic.writes[0]
                outcome = first if is_same else next(left, None)
                if outcome is None:
                    raise RemoteProtocolError("fewer outcomes than writes")
                yield topic.name, write, outcome


def _has_chunk(before: Sequence[Any]) -> bool:
    return before[1] in (OK, OUT_OF_RANGE, SPARSE)


class _Chunk:
    """The size of a chunk, which is behind the header."""

    def encode(
        self, form: Form, value: Buffer, before: Sequence[Any]
    ) -> Iterator[Buffer]:
        size = memoryview(value).nbytes
        if before[1] not in _FLAGS or (size and not _has_chunk(before)):
            raise LocalProtocolError(f"flag 0x{before[1]:02X} with {size} bytes")
        if _has_chunk(before):
            yield form.encode_one("I", size)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> Buffer:
        if before[1] not in _FLAGS:
            raise cursor.error(f"unknown flag 0x{before[1]:02X}")
        assert cursor.behind is not None
        return cursor.behind.take(cursor.one("I") if _has_chunk(before) else 0)


@dataclass(frozen=True, slots=True)
class Fetched(Struct):
    """What a partition has to say to a Consume.

    Args:
        partition: its number.
        flag: OK, SPARSE (the first bundle of the chunk is), OUT_OF_RANGE, or an error.
        base_seq: the number of the chunk's first message. It is not sent with SPARSE,
            and without a chunk it means nothing.
        hwm: the number of the last message; after sparse bundles the broker in the
            field says less in answers without a chunk.
        chunk: bundles, for `read_chunk`; the last one may be cut.
        first_seq: the oldest message, with OUT_OF_RANGE only.
        leader: the address of another broker, with OTHER_LEADER only.
    """

    LAYOUT = (
        *"HB",
        Maybe("Q", lambda before: before[1] in (OK, OUT_OF_RANGE)),
        Maybe("Q", _has_chunk),
        _Chunk(),
        Maybe("Q", lambda before: before[1] == OUT_OF_RANGE),
        Maybe("a", lambda before: before[1] == OTHER_LEADER, None),
    )

    partition: int
    flag: int = OK
    base_seq: int = 0
    hwm: int = 0
    chunk: Buffer = b""
    first_seq: int = 0
    leader: str | None = None


@dataclass(frozen=True, slots=True)
class FetchedTopic(Struct):
    """The partitions of a topic; of a topic that is not there, `unknown` partitions."""

    LAYOUT = ("s", Many(Fetched, "B"))

    name: str
    partitions: tuple[Fetched, ...] = ()
    unknown: int | None = None

    def encode(self, form: Form) -> Iterator[Buffer]:
        if self.unknown is None:
            yield from Struct.encode(self, form)
        else:
            yield form.encode_one("s", self.name)
            yield form.encode_one("B", self.unknown)
            yield form.encode_one("H", _NONE_U16)

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> FetchedTopic:
        name, count = cursor.read("sB")
        if bytes(cursor.peek(2)) == b"\xff\xff":
            cursor.take(2)
            return cls(name, unknown=count)
        return cls(name, tuple(Fetched.read(cursor) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class Consumed(Message, kind=Kind.CONSUME):
    """The answer to Consume: a header, and behind it the chunks in the same order."""

    LAYOUT = ("I", Many(FetchedTopic, "B"))

    request_id: int
    topics: tuple[FetchedTopic, ...]

    def encode(self, form: Form) -> Iterator[Buffer]:
        header = b"".join(Struct.encode(self, form))
        yield form.encode_one("I", len(header))
        yield header
        for topic in self.topics:
            yield from (fetched.chunk for fetched in topic.partitions)

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> Consumed:
        payload = cursor.take(cursor.one("I"))
        header = Cursor(payload, cls.__name__, cursor.form, cursor)
        return cls(*header.read(cls.LAYOUT))


@dataclass(frozen=True, slots=True)
class PartitionState(Struct):
    """The oldest and the newest message of a partition; SEQ_END if a reason follows."""

    LAYOUT = (
        *"QQ",
        Maybe(Outcome, lambda before: before[0] == before[1] == SEQ_END, Outcome()),
    )

    first_seq: int = SEQ_END
    hwm: int = SEQ_END
    reason: Outcome = Outcome()

    @property
    def bounds(self) -> Bounds:
        """The first and the next sequence number; an empty partition says 0 and 0."""
        return Bounds(max(self.first_seq, 1), self.hwm + 1)


@dataclass(frozen=True, slots=True)
class Partitions(Message, kind=Kind.DISCOVER_PARTITIONS):
    """The answer to DiscoverPartitions; an unknown topic has none."""

    LAYOUT = (*"Is", Many(PartitionState, "H"))

    request_id: int
    topic: str
    partitions: tuple[PartitionState, ...] = ()


@dataclass(frozen=True, slots=True)
class Created(Message, kind=Kind.CREATE_TOPIC):
    """The answer to CreateTopic."""

    LAYOUT = "IsB"

    request_id: int
    topic: str
    code: int = OK


@dataclass(frozen=True, slots=True)
class Reloaded(Message, kind=Kind.RELOAD_CONF):
    """The answer to ReloadConf."""

    LAYOUT = "IsHB"

    request_id: int
    topic: str
    partition: int
    code: int = OK


def _in_cluster(before: Sequence[Any]) -> Any:
    return before[2]


@dataclass(frozen=True, slots=True)
class Status(Message, kind=Kind.STATUS):
    """The answer to GetStatus."""

    LAYOUT = (
        *"IBBII",
        *(
            Maybe("B", _in_cluster),
            Maybe("s", _in_cluster, ""),
            Maybe("I", _in_cluster),
        ),
        *"IIII",
    )

    request_id: int
    flags: int = 0
    in_cluster: int = 0
    topics: int = 0
    partitions: int = 0
    cluster_flags: int = 0
    cluster_name: str = ""
    nodes: int = 0
    open_partitions: int = 0
    open_time_us: int = 0
    start_time_s: int = 0
    version: int = 400


@dataclass(frozen=True, slots=True)
class TopicEntry(Struct):
    """A topic in a list."""

    LAYOUT = "sBH"

    name: str
    enabled: int = 1
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class Topics(Message, kind=Kind.DISCOVER_TOPICS):
    """The answer to DiscoverTopics."""

    LAYOUT = ("I", Many(TopicEntry, "I"))

    request_id: int
    topics: tuple[TopicEntry, ...]

    def encode(self, form: Form) -> Iterator[Buffer]:
        number, count, *entries = Struct.encode(self, form)
        yield from (number, count, form.encode_one("B", 0), *entries)

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> Topics:
        number, count, in_cluster = cursor.read("IIB")
        if count > cursor.remaining // 4:
            raise cursor.error(f"{count} topics in {cursor.remaining} bytes")
        topics = []
        for _ in range(count):
            topics.append(TopicEntry.read(cursor))
            cursor.take(1 if in_cluster else 0)  # How many replicas there are.
        return cls(number, tuple(topics))


@dataclass(frozen=True, slots=True)
class Topology(Message, kind=Kind.DISCOVER_TOPOLOGY):
    """The answer to DiscoverTopology; only that of a single broker is understood."""

    LAYOUT = "IH"

    request_id: int
    nodes: int = _NONE_U16


# Frames to messages and back.


def _list(*messages: type[Message]) -> Mapping[Kind, type[Message]]:
    return {message.KIND: message for message in messages}


# Names several to a line: these are lists and not code.
# fmt: off
REQUESTS = _list(
    Ping, Produce, ProduceAt, Consume, DiscoverPartitions, CreateTopic, ReloadConf,
    GetStatus, DiscoverTopics, DiscoverTopology,
)
RESPONSES = _list(
    Ping, Produced, Consumed, Partitions, Created, Reloaded, Status, Topics, Topology,
)
# fmt: on


def encode_message(message: Message) -> list[Buffer]:
    """Write a message as a frame: buffers to be sent one after the other.

    Raises:
        LocalProtocolError: a field does not fit.
    """
    return encode_frame(message.KIND, list(message.encode(FORM)))


def decode_request(frame: Frame) -> Message:
    """Read what a client asks.

    Raises:
        RemoteProtocolError: its payload is malformed; TANK has no code for that.
    """
    return _decode(frame, REQUESTS)[0]


def decode_response(frame: Frame) -> Message:
    """Read what a broker answers.

    Raises:
        RemoteProtocolError: its payload is malformed, or it is no answer.
    """
    return _decode(frame, RESPONSES)[0]


def _decode(frame: Frame, table: Mapping[Kind, type[Message]]) -> tuple[Message, int]:
    """Read a message, and say how many bytes are behind it."""
    message = table.get(frame.kind)
    if message is None:
        raise RemoteProtocolError(f"{frame.kind.name} is no answer")
    cursor = Cursor(frame.payload, message.__name__, FORM)
    return message.read(cursor), cursor.remaining


def number_of(frame: Frame) -> int | None:
    """Tell which request a frame answers; None for a Ping, which answers none.

    Raises:
        RemoteProtocolError: it is too short to say.
    """
    if frame.kind is Kind.PING:
        return None
    # The header of a Consumed has its length in front.
    skipped = 4 if frame.kind is Kind.CONSUME else 0
    number: int = Cursor(frame.payload[skipped:], frame.kind.name, FORM).one("I")
    return number


def describe(frame: Frame) -> str:
    """Say what is in a frame of either direction, in a line for people.

    A frame does not tell its direction, but nearly always fits just one.
    """
    found: list[tuple[int, str]] = []
    error: RemoteProtocolError | None = None
    for table in (REQUESTS, RESPONSES):
        try:
            message, rest = _decode(frame, table)
            found.append((rest, show(message)))
        except RemoteProtocolError as problem:
            error = problem
    # The one that leaves fewer bytes over; a request if both leave as many.
    best = min(found, key=lambda one: one[0], default=None)
    return best[1] if best else f"{frame.kind.name} malformed: {error}"
