"""What an SC of Fluvio knows: topics, partitions and SPUs, each a spec and a status.

Mirrors, which are topics of other clusters, are not understood: there is no way to skip
them, so a list that has one is malformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_spark.errors import LocalProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.schema import Choice, Cursor, Form, Many, Option, Since, Struct

# How a topic gets its partitions: by a list, or by their number.
ASSIGNED, COMPUTED = 0, 1
# How far a topic is, and a partition.
PROVISIONED = 4
ONLINE = 1
# What a topic lets producers compress with.
ANY_CODEC = 4


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


@dataclass(frozen=True, slots=True)
class Mirror(Struct):
    """A field of mirrors, which can only be left out."""

    def encode(self, form: Form) -> Iterator[Buffer]:
        raise LocalProtocolError("mirrors can't be written")

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> Mirror:
        raise cursor.error("there is a mirror, which can't be read")


@dataclass(frozen=True, slots=True)
class Replicas(Struct):
    """The SPUs that have a partition, the first of them by preference its leader."""

    LAYOUT = ("I", Many("i", "i"))

    partition: int
    spus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Storage(Struct):
    """Sizes of segments and of a partition, in bytes."""

    LAYOUT = (Option("I"), Option("Q"))

    segment_bytes: int | None = None
    partition_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Deduplication(Struct):
    """A smart module that drops records that came before."""

    LAYOUT = ("Q", Option(Age), "s", Many(Parameter, "H"))

    count: int
    age: Age | None
    uses: str
    parameters: tuple[Parameter, ...] = ()


_CLEANUP = Option(Choice("B", {0: "I"}))


@dataclass(frozen=True, slots=True)
class TopicSpec(Struct):
    """What a topic is to be.

    Args:
        replicas: (COMPUTED, partitions, copies, ignore racks) or (ASSIGNED, lists).
        cleanup: (0, seconds): how long records are kept.
        storage: how large it may be.
        compression: which codec producers may use.
        deduplication: whether records are dropped that came before.
        system: whether it is the cluster's own.
    """

    LAYOUT = (
        Choice("B", {ASSIGNED: (Many(Replicas, "i"),), COMPUTED: "II?", 2: (Mirror,)}),
        _CLEANUP,
        Option(Storage),
        "B",
        Since(12, Option(Deduplication)),
        Since(13, "?", False),
    )

    replicas: tuple[Any, ...] = (COMPUTED, 1, 1, False)
    cleanup: tuple[int, int] | None = None
    storage: Storage | None = None
    compression: int = ANY_CODEC
    deduplication: Deduplication | None = None
    system: bool = False

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        kind, found, *_ = self.replicas
        return int(found) if kind == COMPUTED else len(found)


@dataclass(frozen=True, slots=True)
class TopicStatus(Struct):
    """How far a topic is."""

    LAYOUT = (
        "B",
        Many(Replicas, "H"),
        Since(14, Many(Mirror, "H"), ()),
        "s",
    )

    resolution: int = PROVISIONED
    replicas: tuple[Replicas, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PartitionSpec(Struct):
    """Where a partition is."""

    LAYOUT = (
        "i",
        Many("i", "i"),
        _CLEANUP,
        Option(Storage),
        "B",
        Since(12, Option(Deduplication)),
        Since(13, "?", False),
        Since(14, Option(Mirror)),
    )

    leader: int
    replicas: tuple[int, ...] = ()
    cleanup: tuple[int, int] | None = None
    storage: Storage | None = None
    compression: int = ANY_CODEC
    deduplication: Deduplication | None = None
    system: bool = False
    mirror: Mirror | None = None


@dataclass(frozen=True, slots=True)
class ReplicaStatus(Struct):
    """How far a copy is: up to where it is committed, and where it ends."""

    LAYOUT = "iqq"

    spu: int = -1
    high_watermark: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True)
class PartitionStatus(Struct):
    """How far a partition is."""

    LAYOUT = (
        "B",
        ReplicaStatus,
        "I",
        Many(ReplicaStatus, "i"),
        *"q?",
        Since(16, "q", 0),
    )

    resolution: int = ONLINE
    leader: ReplicaStatus = ReplicaStatus()
    live_replicas: int = 0
    replicas: tuple[ReplicaStatus, ...] = ()
    size: int = 0
    is_being_deleted: bool = False
    base_offset: int = 0


@dataclass(frozen=True, slots=True)
class Ingress(Struct):
    """A name or an address of a host."""

    LAYOUT = (Option("s"), Option("s"))

    hostname: str | None = None
    ip: str | None = None


@dataclass(frozen=True, slots=True)
class PublicEndpoint(Struct):
    """Where clients find an SPU."""

    LAYOUT = ("H", Many(Ingress, "i"), "B")

    port: int
    ingress: tuple[Ingress, ...] = ()
    encryption: int = 0

    @property
    def host(self) -> str | None:
        """Its first name, or address if it has no name; None without any."""
        hosts = (one.hostname or one.ip for one in self.ingress)
        return next((host for host in hosts if host), None)


@dataclass(frozen=True, slots=True)
class Endpoint(Struct):
    """Where SPUs find each other."""

    LAYOUT = "HsB"

    port: int = 0
    host: str = "127.0.0.1"
    encryption: int = 0


@dataclass(frozen=True, slots=True)
class SpuSpec(Struct):
    """What an SPU is: by the cluster's own doing (0), or by its owner's (1)."""

    LAYOUT = ("i", "B", PublicEndpoint, Endpoint, Option("s"), Option(Endpoint))

    id: int
    type: int
    public: PublicEndpoint
    private: Endpoint = Endpoint()
    rack: str | None = None
    local: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class SpuStatus(Struct):
    """Whether an SPU is online (0)."""

    LAYOUT = "B"

    resolution: int = 0


@dataclass(frozen=True, slots=True)
class Topic(Struct):
    """A topic."""

    LAYOUT = ("s", TopicSpec, TopicStatus)

    name: str
    spec: TopicSpec = TopicSpec()
    status: TopicStatus = TopicStatus()


@dataclass(frozen=True, slots=True)
class Partition(Struct):
    """A partition, whose name is that of its topic, a dash and its number."""

    LAYOUT = ("s", PartitionSpec, PartitionStatus)

    name: str
    spec: PartitionSpec
    status: PartitionStatus = PartitionStatus()


@dataclass(frozen=True, slots=True)
class Spu(Struct):
    """A server that has partitions."""

    LAYOUT = ("s", SpuSpec, SpuStatus)

    name: str
    spec: SpuSpec
    status: SpuStatus = SpuStatus()


Metadata = Topic | Partition | Spu
# By the names that requests have for them; there are others.
OBJECTS: Mapping[str, type[Metadata]] = {
    "Topic": Topic,
    "Partition": Partition,
    "SPU": Spu,
}
