"""What a query that is killed does: from which topic to which, and what is carried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

# Small pieces: a micro-batch is two tasks or three, and each sends several frames.
BATCH_ROWS = 120
_READ = {
    "startingOffsets": "earliest",
    "fetchBytes": "32k",
    "maxRecordsPerTrigger": str(BATCH_ROWS),
}
_WRITE = {"batchBytes": "8k"}


@dataclass(frozen=True)
class Hop:
    """A streaming query from topic to topic; its options are those of Spark.

    Args:
        source: the topic's name, which is in `read`, too.
        target: the same of `write`.
        formats: of the source and of the target.
        read: how it reads.
        write: how it writes.
        columns: what it selects.
    """

    source: str
    target: str
    formats: tuple[str, str]
    read: dict[str, str]
    write: dict[str, str]
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name, also that of its checkpoint."""
        return f"{self.source}-{self.target}"

    @property
    def is_once(self) -> bool:
        """Whether it promises to double nothing."""
        return self.write.get("delivery") == "exactly-once"


@dataclass(frozen=True)
class Format:
    """A format of Spark at either end of a hop.

    Args:
        columns: what its records have beside values.
        unit_ns: the parts of a second that its times have.
        read: options besides those that all formats have.
        write: the same.
    """

    columns: tuple[str, ...] = ()
    unit_ns: int = 1
    read: dict[str, str] = field(default_factory=dict)
    write: dict[str, str] = field(default_factory=dict)


_PIECES = {"maxPartitionRecords": "100"}
_SPREAD = {"partitions": "2"}
_KEYED = ("key", "timestamp")
FORMATS = {
    "lance": Format(
        _KEYED, 1000, {"maxPartitionBytes": "32k"}, {"delivery": "exactly-once"}
    ),
    "rustlog": Format(read=_PIECES, write=_SPREAD),
    "kimberlite": Format(read=_PIECES),
    "fluvio": Format(_KEYED, 10**6, _PIECES, _SPREAD),
    "tank": Format(_KEYED, 10**6, _PIECES, _SPREAD),
}


def make_hop(
    address_of: Callable[[str], str], source: tuple[str, str], target: tuple[str, str]
) -> Hop:
    """Make a query that copies between two topics, each with its format.

    Args:
        address_of: tells where a format is served.
        source: format and name.
        target: the same.
    """
    (reads, source_name), (writes, target_name) = source, target
    given, taken = FORMATS[reads], FORMATS[writes]
    columns = [name for name in given.columns if name in taken.columns]
    return Hop(
        source_name,
        target_name,
        (reads, writes),
        {"servers": address_of(reads), "topic": source_name, **_READ, **given.read},
        {"servers": address_of(writes), "topic": target_name, **_WRITE, **taken.write},
        (*columns, "value"),
    )


def make_transform(address_of: Callable[[str], str]) -> list[Hop]:
    """Plan the query from `in` to `out` that says of each record that it is whole."""
    hop = make_hop(address_of, ("lance", "in"), ("lance", "out"))
    columns = ("key", "timestamp", "concat(value, unhex(sha2(value, 256))) value")
    return [replace(hop, columns=columns)]
