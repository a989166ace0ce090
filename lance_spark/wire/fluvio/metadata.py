"""What an SC of Fluvio knows, and the messages about it.

Its objects are topics, partitions and SPUs, each a name, a spec and a status. Mirrors,
which are topics of other clusters, are not understood: there is no way to skip them, so
that a list with one is malformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lance_spark.errors import LocalProtocolError
from lance_spark.model import Buffer
from lance_spark.value import dataclass
from lance_spark.wire.fluvio.error import NO_ERROR, ErrorCode
from lance_spark.wire.fluvio.message import (
    SC_VERSION,
    Age,
    Parameter,
    Request,
    Response,
)
from lance_spark.wire.schema import Choice, Cursor, Form, Many, Option, Since, Struct

# How a topic gets its partitions: by a list, or by their number.
ASSIGNED, COMPUTED = 0, 1
# How far a topic is, and a partition.
PROVISIONED = 4
ONLINE = 1
# What a topic lets producers compress with.
ANY_CODEC = 4


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


# Messages. They name a kind of object, then come the size of all that follows and the
# other fields.


class ObjectMessage(Struct):
    """A message that is about a kind of objects."""

    __slots__ = ()

    def encode(self, form: Form) -> Iterator[Buffer]:
        kind, *body = Struct.encode(self, form)
        yield kind
        yield form.encode_one("I", sum(memoryview(part).nbytes for part in body))
        yield from body

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> Any:
        kind, size = cursor.read("sI")
        body = Cursor(cursor.take(size), f"{cls.__name__} of {kind!r}", cursor.form)
        return cls(*body.read(cls.LAYOUT[1:], [kind]))


@dataclass(frozen=True, slots=True)
class Change:
    """An object that is new or other than before, or was deleted (1)."""

    is_deleted: int
    object: Metadata


@dataclass(frozen=True, slots=True)
class _Objects:
    """A list of objects of the kind that the first field names, or of changes."""

    changed: bool = False

    def encode(
        self, form: Form, value: Sequence[Any], before: object
    ) -> Iterator[Buffer]:
        yield form.encode_one("i", len(value))
        for item in value:
            if self.changed:
                yield form.encode_one("B", item.is_deleted)
            yield from (item.object if self.changed else item).encode(form)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> tuple[Any, ...]:
        count, kind = cursor.count("i"), OBJECTS.get(before[0])
        if kind is None and count > 0:
            raise cursor.error("such objects can't be read")
        items: list[Any] = []
        for _ in range(count if kind else 0):
            change = cursor.one("B") if self.changed else 0
            assert kind is not None
            found = kind.read(cursor)
            items.append(Change(change, found) if self.changed else found)
        return tuple(items)


class _Spec:
    """The spec of a topic, or bytes if it is something else that is to be created."""

    def encode(self, form: Form, value: Any, before: Sequence[Any]) -> Iterator[Buffer]:
        yield from value.encode(form) if isinstance(value, TopicSpec) else (value,)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> Any:
        is_topic = before[0] == "Topic"
        return cursor.one(TopicSpec) if is_topic else cursor.take(cursor.remaining)


@dataclass(frozen=True, slots=True)
class Create(ObjectMessage, Request):
    """Create an object; a dry run only says whether it could be."""

    LAYOUT = (*"ss?", Option("I"), _Spec())
    KEY = 1001
    VERSION = SC_VERSION

    kind: str
    name: str
    dry_run: bool
    timeout_ms: int | None
    spec: TopicSpec | Buffer


@dataclass(frozen=True, slots=True)
class Status(Response):
    """The answer to Create, and of an SC to what it does not know."""

    LAYOUT = ("s", ErrorCode, Option("s"))
    VERSION = SC_VERSION

    name: str = ""
    error: ErrorCode = NO_ERROR
    text: str | None = None


@dataclass(frozen=True, slots=True)
class List(ObjectMessage, Request):
    """Ask for objects; those with one of the names, if there are any."""

    LAYOUT = ("s", Many("s", "i"), "?", Since(13, "?", False))
    KEY = 1003
    VERSION = SC_VERSION

    kind: str
    names: tuple[str, ...] = ()
    summary: bool = False
    system: bool = False


@dataclass(frozen=True, slots=True)
class Listing(ObjectMessage, Response):
    """The answer to List."""

    LAYOUT = ("s", _Objects())
    VERSION = SC_VERSION

    kind: str
    objects: tuple[Metadata, ...] = ()


@dataclass(frozen=True, slots=True)
class Watch(ObjectMessage, Request):
    """Ask for objects, and then for every change."""

    LAYOUT = "sq?"
    KEY = 1004
    VERSION = SC_VERSION

    kind: str
    epoch: int = 0
    summary: bool = False


@dataclass(frozen=True, slots=True)
class Watched(ObjectMessage, Response):
    """An answer to Watch, of which there are many: what has changed, or everything."""

    LAYOUT = ("s", "q", _Objects(changed=True), _Objects())
    VERSION = SC_VERSION

    kind: str
    epoch: int = 0
    changes: tuple[Change, ...] = ()
    everything: tuple[Metadata, ...] = ()
