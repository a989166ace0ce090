"""Fluvio's messages, requests and answers, as values.

Each is the fields of its `LAYOUT`; `frame` says what the letters mean. Which fields
there are depends on the version in the request's header, for the answer too. A broker
reads every request by that version, also one that it did not offer. Bytes behind the
last known field are ignored. Record sets are buffers here, which `record` reads and
writes; the messages about the objects of an SC are in `metadata`, and `catalog` has
the tables from keys to messages.

A request is answered once, but StreamFetch and Watch are answered again and again, and
all these answers have the correlation id of the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from lance_spark.model import Bounds, Buffer
from lance_spark.value import dataclass
from lance_spark.wire.assembler import EMPTY
from lance_spark.wire.fluvio.error import NO_ERROR, ErrorCode
from lance_spark.wire.schema import (
    Choice,
    Data,
    Form,
    Many,
    Option,
    Since,
    Struct,
)

# The newest versions that are known: of an SPU, and of the objects of an SC.
SPU_VERSION = 25
SC_VERSION = 19
# Before this objects were written in another way.
SC_VERSION_MIN = 11

# Whether the answer to Produce waits for the other replicas.
READ_UNCOMMITTED, READ_COMMITTED = 1, -1

# The default of `api_version`, which becomes that of the class.
_NEWEST = 2**15


@dataclass(frozen=True, slots=True)
class Header(Struct):
    """What every request starts with."""

    LAYOUT = "Hhis"

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Struct):
    """A message of one direction.

    Args:
        correlation_id: the number of the request, which its answers have as well.
        api_version: the version of the request, in which its answers are as well.
    """

    VERSION: ClassVar[int] = SPU_VERSION

    correlation_id: int = 0
    api_version: int = _NEWEST

    def __post_init__(self) -> None:
        if self.api_version == _NEWEST:
            object.__setattr__(self, "api_version", self.VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    """What a client asks."""

    KEY: ClassVar[int]

    client_id: str = ""

    @property
    def key(self) -> int:
        """The number of what is asked."""
        return self.KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """What a server answers."""


# Of both roles.


@dataclass(frozen=True, slots=True)
class ApiVersions(Request):
    """Ask which requests the server knows; SCs insist on a version like "1.2.3"."""

    LAYOUT = "sss"
    KEY = 18
    VERSION = 2

    client_version: str = "0.0.0"
    client_os: str = ""
    client_arch: str = ""


@dataclass(frozen=True, slots=True)
class ApiKey(Struct):
    """Which versions of a request a server knows."""

    LAYOUT = "hhh"

    key: int
    version_min: int
    version_max: int


@dataclass(frozen=True, slots=True)
class Versions(Response):
    """The answer to ApiVersions; clients insist on a version like "1.2.3"."""

    LAYOUT = (ErrorCode, Many(ApiKey, "i"), "s")
    VERSION = 2

    error: ErrorCode = NO_ERROR
    keys: tuple[ApiKey, ...] = ()
    platform_version: str = "0.0.0"


@dataclass(frozen=True, slots=True)
class Other(Request):
    """A request that is not known here: an SC answers Status, an SPU Failed."""

    VERSION = 0

    api_key: int
    payload: Buffer = EMPTY

    @property
    def key(self) -> int:
        """The number of what is asked."""
        return self.api_key

    def encode(self, form: Form) -> Iterator[Buffer]:
        yield self.payload


@dataclass(frozen=True, slots=True)
class Failed(Response):
    """The answer of an SPU to what it does not know."""

    LAYOUT = (ErrorCode,)

    error: ErrorCode


# Writing to an SPU.


@dataclass(frozen=True, slots=True)
class Parameter(Struct):
    """A name and a value."""

    LAYOUT = "ss"

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Age(Struct):
    """A span of time."""

    LAYOUT = "QI"

    seconds: int
    nanoseconds: int = 0


_CONTEXT = Choice("B", {0: "", 1: (Data("i"),), 2: "s", 3: "ss"})


@dataclass(frozen=True, slots=True)
class Lookback(Struct):
    """Which records a smart module is shown when it starts."""

    LAYOUT = ("Q", Option(Age))

    last: int
    age: Age | None = None


@dataclass(frozen=True, slots=True)
class SmartModule(Struct):
    """Code that the server is to run over records; a broker here refuses it.

    Args:
        code: (0, its name) or (1, its bytes).
        kind: what it does, a number and fields that depend on it.
        parameters: what it is given.
        lookback: what it is shown when it starts.
        name: what errors call it.
    """

    LAYOUT = (
        Choice("B", {0: "s", 1: (Data("i"),)}),
        Choice(
            "B",
            {
                **dict.fromkeys((0, 1, 2, 4), ""),
                3: (Data("i"),),
                5: "s",
                6: "ss",
                7: (_CONTEXT,),
            },
        ),
        Many(Parameter, "H"),
        Since(20, Option(Lookback)),
        Since(25, Option("s")),
    )

    code: tuple[int, Any]
    kind: tuple[Any, ...] = (0,)
    parameters: tuple[Parameter, ...] = ()
    lookback: Lookback | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Write(Struct):
    """A record set for a partition."""

    LAYOUT = ("I", Data("i"))

    partition: int
    records: Buffer


@dataclass(frozen=True, slots=True)
class WriteTopic(Struct):
    """The writes to a topic; clients ask without any whether all is written."""

    LAYOUT = ("s", Many(Write, "i"))

    name: str
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class Produce(Request):
    """Append records to partitions."""

    LAYOUT = (
        Option("s"),
        *"hi",
        Many(WriteTopic, "i"),
        Many(SmartModule, "i"),
    )
    KEY = 0

    transactional_id: str | None = None
    isolation: int = READ_UNCOMMITTED
    timeout_ms: int = 0
    topics: tuple[WriteTopic, ...] = ()
    smart_modules: tuple[SmartModule, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome(Struct):
    """What became of a write; the first record got the number `base_offset`."""

    LAYOUT = ("I", ErrorCode, "q", Since(2, "q", -1), Since(5, "q", 0))

    partition: int
    error: ErrorCode = NO_ERROR
    base_offset: int = -1
    append_time_ms: int = -1
    log_start: int = 0


@dataclass(frozen=True, slots=True)
class ProducedTopic(Struct):
    """The writes to a topic."""

    LAYOUT = ("s", Many(Outcome, "i"))

    name: str
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class Produced(Response):
    """The answer to Produce."""

    LAYOUT = (Many(ProducedTopic, "i"), Since(1, "i", 0))

    topics: tuple[ProducedTopic, ...] = ()
    throttle_ms: int = 0


# Reading from an SPU.


@dataclass(frozen=True, slots=True)
class FetchPartition(Struct):
    """From which record on to read a partition.

    Servers look at the limit of the whole request, and not at this one.
    """

    LAYOUT = ("I", Since(9, "i", -1), "q", Since(5, "q", -1), "i")

    partition: int
    leader_epoch: int = -1
    offset: int = 0
    log_start: int = -1
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FetchTopic(Struct):
    """The partitions of a topic that are to be read."""

    LAYOUT = ("s", Many(FetchPartition, "i"))

    name: str
    partitions: tuple[FetchPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgottenTopic(Struct):
    """Partitions that are not to be read any more."""

    LAYOUT = ("s", Many("i", "i"))

    name: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetch(Request):
    """Read partitions once; `isolation` 1 asks for what all replicas have."""

    LAYOUT = (
        *"ii",
        Since(3, "i", 2**31 - 1),
        Since(4, "B", 0),
        Many(FetchTopic, "i"),
        Since(7, Many(ForgottenTopic, "i"), ()),
    )
    KEY = 1

    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2**31 - 1
    isolation: int = 0
    topics: tuple[FetchTopic, ...] = ()
    forgotten: tuple[ForgottenTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class Aborted(Struct):
    """A transaction that does not count."""

    LAYOUT = "qq"

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Fetched(Struct):
    """What a partition has to say to a Fetch or StreamFetch.

    Args:
        partition: its number.
        error: why it can't be read.
        high_watermark: the number that the next record gets.
        next_filter_offset: where to read on, if it is above 0.
        log_start: the oldest record.
        aborted: transactions that do not count.
        records: batches, for `read_chunk`; the last one may be cut.
    """

    LAYOUT = (
        "I",
        ErrorCode,
        "q",
        Since(11, "q", 0),
        "q",
        Option(Many(Aborted, "i")),
        Data("i"),
    )

    partition: int
    error: ErrorCode = NO_ERROR
    high_watermark: int = -1
    next_filter_offset: int = 0
    log_start: int = -1
    aborted: tuple[Aborted, ...] | None = None
    records: Buffer = b""


@dataclass(frozen=True, slots=True)
class FetchedTopic(Struct):
    """The partitions of a topic."""

    LAYOUT = ("s", Many(Fetched, "i"))

    name: str
    partitions: tuple[Fetched, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchAnswer(Response):
    """The answer to Fetch."""

    LAYOUT = ("i", ErrorCode, "i", Many(FetchedTopic, "i"))

    throttle_ms: int = 0
    error: ErrorCode = NO_ERROR
    session_id: int = 0
    topics: tuple[FetchedTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetsTopic(Struct):
    """The partitions of a topic whose bounds are asked for."""

    LAYOUT = ("s", Many("I", "i"))

    name: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchOffsets(Request):
    """Ask for the bounds of partitions; one version named a consumer as well."""

    LAYOUT = (Many(OffsetsTopic, "i"), Since(23, Option("s"), end=24))
    KEY = 1002

    topics: tuple[OffsetsTopic, ...] = ()
    consumer_id: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffsets(Struct):
    """The oldest record of a partition, and the number that the next one gets."""

    LAYOUT = (ErrorCode, *"Iqq")

    error: ErrorCode = NO_ERROR
    partition: int = 0
    start_offset: int = -1
    last_stable_offset: int = -1

    @property
    def bounds(self) -> Bounds:
        """The first and the next record."""
        return Bounds(self.start_offset, self.last_stable_offset)


@dataclass(frozen=True, slots=True)
class TopicOffsets(Struct):
    """The bounds of a topic's partitions."""

    LAYOUT = ("s", Many(PartitionOffsets, "i"))

    name: str
    partitions: tuple[PartitionOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class Offsets(Response):
    """The answer to FetchOffsets."""

    LAYOUT = (Many(TopicOffsets, "i"),)

    topics: tuple[TopicOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class DerivedStream(Struct):
    """What older clients name instead of smart modules."""

    LAYOUT = ("s", Many(Parameter, "H"))

    stream: str
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamFetch(Request):
    """Read a partition from a record on, and what comes to it.

    After each answer the server waits for an UpdateOffsets. The fields behind
    `isolation` up to `derived` are of older versions, and smart modules as well.
    """

    LAYOUT = (
        *"sIqiB",
        Since(11, Data("i"), b"", end=19),
        Since(16, Option(SmartModule), end=19),
        Since(16, Option(DerivedStream), end=19),
        Since(18, Many(SmartModule, "i"), ()),
        Since(23, Option("s")),
    )
    KEY = 1003

    topic: str
    partition: int = 0
    offset: int = 0
    max_bytes: int = 0
    isolation: int = 0
    wasm: Buffer = b""
    smart_module: SmartModule | None = None
    derived: DerivedStream | None = None
    smart_modules: tuple[SmartModule, ...] = ()
    consumer_id: str | None = None


@dataclass(frozen=True, slots=True)
class Streamed(Response):
    """An answer to StreamFetch, of which there are many."""

    LAYOUT = ("s", "I", Fetched)

    topic: str
    stream_id: int
    partition: Fetched


@dataclass(frozen=True, slots=True)
class Consumed(Struct):
    """Up to where a stream is read."""

    LAYOUT = "qI"

    offset: int
    stream_id: int


@dataclass(frozen=True, slots=True)
class UpdateOffsets(Request):
    """Tell how far streams are read, and that more may come."""

    LAYOUT = (Many(Consumed, "i"),)
    KEY = 1005
    VERSION = 0

    streams: tuple[Consumed, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamOutcome(Struct):
    """Whether a stream is known."""

    LAYOUT = ("I", ErrorCode)

    stream_id: int
    error: ErrorCode = NO_ERROR


@dataclass(frozen=True, slots=True)
class Updated(Response):
    """The answer to UpdateOffsets."""

    LAYOUT = (Many(StreamOutcome, "i"),)
    VERSION = 0

    streams: tuple[StreamOutcome, ...] = ()
