"""What Spark and the command line need of one protocol.

A `Driver` stands between them and the clients: it lists topics, tells where partitions
start and end, reads and writes. Nothing here belongs to one protocol. Positions are in
the unit of the driver's `traits`.

What depends on how records can be found in a partition is a `RecordFinder`. It is
chosen once, when a read is planned; the plan carries its name, and tasks ask their
driver for the finder of that name:

    located   the server tells where the next record starts
    probed    the bytes are searched for records
    counted   positions are record numbers, so arithmetic finds them

A protocol is one row of `_PROTOCOLS`, which names a `ProtocolModule` and a
`DriverModule`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from lance_spark.client.config import DURATION_S_MAX as DURATION_S_MAX
from lance_spark.client.config import ConnectionConfig as ConnectionConfig
from lance_spark.errors import OptionError, Unsupported
from lance_spark.model import Bounds, OffsetMark, Partition, Retention
from lance_spark.net.address import parse_addresses

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_spark.records import Records

logger = logging.getLogger(__name__)

FinderName = Literal["located", "probed", "counted"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a protocol, or the kind of server that speaks it, can do.

    Args:
        protocol: its name, which is the name of Spark's format.
        unit: what positions count.
        finder: how records are found, unless the user asks for another way.
        columns: the columns of a read, in their order. They say what the protocol
            carries beside `value`, of `partition`, `type`, `key` and `timestamp`.
        first_position: the position of the first record of a new partition.
        lists_topics: the server tells which topics there are; if not, `Driver.topics`
            has to be given names.
        creates_to_find: a look at a topic that does not exist creates it.
        waits: the server answers `Driver.wait` when something has changed.
        compressions: what batches may be compressed with.
        has_stages: writes can be staged, on servers that have all of the protocol.
        batch_units_max: how much a micro-batch reads if the user sets no limit.
        record_units_min: what the smallest record takes.
        split_units: how much one task reads if the user sets no limit.
    """

    protocol: str
    unit: Literal["bytes", "records"]
    finder: FinderName
    columns: tuple[str, ...]
    first_position: int = 0
    lists_topics: bool = True
    creates_to_find: bool = False
    waits: bool = False
    compressions: tuple[str, ...] = ("none",)
    has_stages: bool = False
    batch_units_max: int | None = None
    record_units_min: int = 1
    split_units: int = 500_000

    def check_position(self, name: str, position: int) -> None:
        """Check that there may be a record at a position that was asked for.

        Args:
            name: by which the user gave it.
            position: what was given.

        Raises:
            OptionError: the protocol has no such position, in no partition.
        """
        if position < self.first_position:
            raise OptionError(
                f"{name} {position}: positions of {self.protocol} begin at "
                f"{self.first_position}"
            )


@dataclass(frozen=True, slots=True, order=True)
class LogRef:
    """One partition of one topic; a topic that is created anew has other logs.

    Args:
        partition: the topic's name and the partition's number.
        topic_id: the topic's id; 0 where the protocol has none.
        created_s: when the topic was created; 0 where the protocol does not say.
    """

    partition: Partition
    topic_id: int = 0
    created_s: int = 0

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def name(self) -> str:
        """What losses call it: the topic, and the partition if it is not the first."""
        topic, number = self.partition.topic, self.partition.number
        return f"{topic}/{number}" if number else topic


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic as a listing has it.

    Args:
        name: its name.
        topic_id: its id.
        created_s: when it was created, in seconds since 1970.
        partitions: the numbers of its partitions.
        retention: how long it keeps records, if the server says.
        bounds: of each partition, if the listing says.
        records: how many records it holds, if the listing says.
    """

    name: str
    topic_id: int = 0
    created_s: int = 0
    partitions: tuple[int, ...] = (0,)
    retention: Retention | None = None
    bounds: Mapping[int, Bounds] | None = None
    records: int | None = None

    @property
    def logs(self) -> list[LogRef]:
        """Its partitions."""
        return [
            LogRef(Partition(self.name, number), self.topic_id, self.created_s)
            for number in self.partitions
        ]


@dataclass(frozen=True, slots=True)
class News:
    """What a wait has found.

    Args:
        version: of the list of topics; another one than before says that it changed.
        ends: where the partitions end that still exist.
    """

    version: int
    ends: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Unread:
    """What of a partition is behind a position, as far as the server tells.

    Args:
        records: how many records.
        oldest_ns: when the first of them was appended.
    """

    records: int | None = None
    oldest_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The server that answers: its address, and whether it has stages."""

    address: str
    has_stages: bool


# Reading.


@dataclass(frozen=True, slots=True)
class Range:
    """The positions [start, end) of one log, and how its records are found.

    Args:
        log: which log.
        start: the first position.
        end: the position behind the last.
        finder: how its records are found.
        ends_log: the log ended at `end` when the range was planned.
        is_aligned: a record starts at `start`, or the log ends there.
        mark: what the driver needs to notice that positions have shifted.
    """

    log: LogRef
    start: int
    end: int
    finder: FinderName = "located"
    ends_log: bool = False
    is_aligned: bool = False
    mark: Any = None

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.log.topic

    @property
    def size(self) -> int:
        """How many positions it has."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Split:
    """One of several nearly equal pieces of a range.

    Pieces are cut by arithmetic. A record belongs to the piece that it starts in.

    Args:
        range: what was cut.
        index: which piece this is.
        parts: how many there are.
    """

    range: Range
    index: int = 0
    parts: int = 1

    @property
    def start(self) -> int:
        """Where it starts, perhaps inside a record."""
        return self.point(self.index)

    @property
    def end(self) -> int:
        """Where it ends, perhaps inside a record."""
        return self.point(self.index + 1)

    @property
    def is_last(self) -> bool:
        """Whether no piece follows."""
        return self.index + 1 == self.parts

    def point(self, index: int) -> int:
        """Return the start of the piece of an index; `parts` gives the range's end."""
        return self.range.start + self.range.size * index // self.parts


@dataclass(frozen=True, slots=True)
class Extent:
    """The records of a split: those that start in [start, end).

    Args:
        start: position of the first record.
        end: records that start here or behind belong to the next split.
        is_last: no split follows.
    """

    start: int
    end: int
    is_last: bool


class RecordFinder(Protocol):
    """Finds the records of splits on one server."""

    # The server says where records start. A filter may then name any position, and a
    # bad record can be skipped without losing the good ones behind it.
    is_told: bool

    def find_extent(self, split: Split) -> Extent | None:
        """Find the records of a split; None if they belong to the split before.

        Raises:
            DataLoss: positions of the split are not in the log any more.
        """

    def find_rest(self, split: Split, start: int) -> Extent:
        """Find the end of a split whose first record starts at `start`."""

    def find_next(self, split: Split, extent: Extent) -> int | None:
        """Return where the next split starts to read, if there is one.

        The records of this split have to end there: a record in between would be in
        neither of the two.
        """

    def skip(self, split: Split, position: int, end: int) -> int:
        """Return the next record behind bytes that are no record, `end` at most."""

    def has_records(self, split: Split, position: int) -> bool:
        """Tell whether records are found between a position and the range's end."""


class Ruler(Protocol):
    """Knows where the records of one log end."""

    def fit(
        self, start: int, end: int, *, max_bytes: int | None, max_records: int | None
    ) -> int:
        """Find the last record boundary within limits.

        Args:
            start: where the first record starts.
            end: the answer is not behind it.
            max_bytes: nor further than this from the start; None for no limit.
            max_records: nor behind more records than these; None for no limit.

        Returns:
            A position in [start, end]; `start` if the first record does not fit.
        """

    def step(self, start: int, end: int) -> int | None:
        """Find the end of the record at `start`; None if it is behind `end`."""

    def count(self, start: int, end: int) -> int:
        """Count the records that start in [start, end), two boundaries."""


class ChunkReader(Protocol):
    """Reads whole records in order; used by one thread."""

    @property
    def position(self) -> int:
        """Position of the next record."""

    @property
    def is_finished(self) -> bool:
        """Whether every record that starts before the end was handed out."""

    @property
    def skipped(self) -> tuple[int, int]:
        """How many malformed records were left out, and how many bytes they had."""

    def next_records(self, wait_s: float = 0.0) -> Records | None:
        """Return the next records with their positions; None at the log's end.

        A `fault` of theirs says why those behind them could not be read. At the log's
        end they are waited for, by the server if it can.

        Raises:
            DataLoss: the record at `position` is not in the log any more.
            RecordError: there is no record; nothing tells where the next one starts.
        """

    def seek(self, position: int) -> None:
        """Go on at another record."""

    def close(self) -> None:
        """Give up what is under way."""


# Writing.


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How rows are gathered and sent.

    Args:
        batch_bytes: how large a batch may get; a larger record goes alone.
        linger_s: how long a batch waits for more records.
        max_in_flight: how many batches may be sent and not acknowledged.
        buffer_bytes: how much may be pending before `write` waits.
        compression: one of the traits' compressions.
        record_type: the type of values without key and timestamp.
        allow_null_records: send Null records to servers that misread them, too.
        partitions: how many a topic gets that is created, where topics have several.
        sole_writer: no other writer is there, so that records which are equal to those
            of a lost answer are taken for them.
    """

    batch_bytes: int
    linger_s: float
    max_in_flight: int
    buffer_bytes: int
    compression: str
    record_type: int
    allow_null_records: bool
    partitions: int = 1
    sole_writer: bool = False


class Staged(Protocol):
    """What one task has staged, as the commit names it; it travels to the driver."""

    @property
    def byte_count(self) -> int:
        """How many bytes."""


class RecordWriter(Protocol):
    """Writes rows to one partition or stage."""

    @property
    def pending_bytes(self) -> int:
        """How many bytes are not acknowledged yet."""

    def write(self, columns: pa.Table) -> None:
        """Take rows."""

    def flush(self) -> None:
        """Wait until all that was taken is acknowledged."""

    def finish(self) -> Staged | None:
        """Flush and close; return what was staged, if this writes a stage."""

    def close(self, *, abandon: bool = False) -> None:
        """Close, without a flush if `abandon`."""


# Is given the kind of every server that a writer connects to; what it raises ends the
# writer.
CheckServer = Callable[[ServerKind], None]


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a commit.

    Args:
        status: `committed`, `repeated`, or `stale`, which says that the writer has
            committed a later sequence.
        spans: where the records are, by partition.
    """

    status: str
    spans: tuple[tuple[Partition, Bounds], ...] = ()


class StageCalls(Protocol):
    """Writes that become visible together, exactly once."""

    def open_writer(
        self,
        topic: str,
        writer_id: str,
        sequence: int,
        *,
        options: WriterSettings,
        check: CheckServer,
    ) -> RecordWriter:
        """Open a stage for a topic that need not exist yet."""

    def commit(
        self,
        writer_id: str,
        sequence: int,
        stages: Sequence[Staged],
        *,
        overwrite: Sequence[str] = (),
    ) -> Committed:
        """Append stages in this order, all or nothing.

        Raises:
            CommitUnknownError: nothing tells whether the commit was carried out.
        """

    def abort(self, writer_id: str, sequence: int) -> int:
        """Drop the stages of a job; return how many there were."""


class Driver(Protocol):
    """One protocol, spoken with the servers of one configuration."""

    @property
    def traits(self) -> Traits:
        """What the protocol and the server can do."""

    @property
    def config(self) -> ConnectionConfig:
        """How the servers are reached."""

    @property
    def server(self) -> ServerKind:
        """The server that answers now."""

    def refresh(self) -> Driver:
        """Return the driver that suits the server that answers now, often this one."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""

    def close(self) -> None:
        """Close its connection."""

    def make_unsupported(
        self, what: str, needs: Literal["locate", "stages"] | None = None
    ) -> Unsupported:
        """Make the error for what this server can't do."""

    # Topics.

    def topics(self, names: Collection[str] | None = None) -> list[TopicEntry]:
        """List topics, all or those of some names, sorted by name."""

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic.

        Raises:
            TopicAlreadyExists: it is there.
            Unsupported: the protocol can't create several partitions.
        """

    def describe(self, log: LogRef) -> TopicEntry:
        """Describe the topic that has a log's id, or its name where there are no ids.

        It may be another topic by now.

        Raises:
            TopicNotFound, TopicDeleted: it is gone.
        """

    def bounds(self, logs: Sequence[LogRef]) -> dict[Partition, Bounds]:
        """Tell where logs start and end; those that are gone are left out."""

    def wait(self, known: Mapping[LogRef, int], version: int, wait_s: float) -> News:
        """Wait until a log grows past a position or the list of topics changes."""

    # Positions.

    def locate_time(self, log: LogRef, time_ns: int, *, option: str) -> int:
        """Find the first record that was appended at a time or later.

        Raises:
            Unsupported: the server has no index of times; names the option.
        """

    def align(self, log: LogRef, position: int) -> int:
        """Find the first record at or behind a position, where the server tells.

        Where it does not, this is the position itself.
        """

    def make_ruler(self, log: LogRef, *, fetch_bytes: int) -> Ruler:
        """Make what tells where records end."""

    def count_unread(self, log: LogRef, position: int) -> Unread:
        """Tell what is behind a position."""

    # Marks: whether positions still mean the same bytes. They cost nothing on servers
    # whose positions never shift.

    def mark_position(
        self, log: LogRef, position: int, log_end: int
    ) -> OffsetMark | None:
        """Take a mark for a position; None where positions never shift.

        Raises:
            DataLoss: the log ends before the position.
        """

    def is_mark_right(self, log: LogRef, position: int, mark: OffsetMark) -> bool:
        """Tell whether a position still means what it meant when it was marked."""

    def mark_range(self, piece: Range, log_end: int) -> Range:
        """Return a range with its mark, or as it is where positions never shift.

        Raises:
            DataLoss: bytes of the range are not there.
        """

    def is_range_right(self, piece: Range) -> bool:
        """Tell whether the positions of a range still mean what they meant.

        Raises:
            TopicNotFound, TopicDeleted: the topic is gone.
        """

    # Records.

    def choose_finder(self, splitting: str) -> FinderName:
        """Choose how records are found, once per planning.

        Raises:
            Unsupported: the server can't do what the option `splitting` asks for.
        """

    def find_with(self, name: FinderName) -> RecordFinder:
        """Return the finder that a plan has chosen.

        Raises:
            Unsupported: the server is of another kind than the plan was made for.
        """

    def open_reader(
        self,
        log: LogRef,
        start: int,
        *,
        end: int | None,
        fetch_bytes: int,
        first_fetch_bytes: int | None = None,
        last_end: int | None = None,
        on_bad: Literal["fail", "skip"] = "fail",
    ) -> ChunkReader:
        """Read the records that start in [start, end).

        Args:
            log: which log.
            start: the position of a record.
            end: where to stop; None follows the log, and notices if it becomes another
                one.
            fetch_bytes: how much to ask for at once.
            first_fetch_bytes: how much to ask for at first.
            last_end: leave out a last record that ends behind it.
            on_bad: stop before a malformed record with a `fault`, or leave it out.
        """

    def open_writer(
        self,
        to: Partition,
        *,
        options: WriterSettings,
        create_topic: bool,
        check: CheckServer,
    ) -> RecordWriter:
        """Write rows to a partition, each at least once."""

    def stages(self) -> StageCalls | None:
        """Return the calls for staged writes; None if the server has no stages."""

    def commit_position(self, log: LogRef, group: str, position: int) -> None:
        """Tell the server how far a group has read."""


def list_topics(driver: Driver, names: Collection[str]) -> list[TopicEntry]:
    """List the topics that there are; those of some names if the server lists none."""
    return driver.topics(None if driver.traits.lists_topics else names)


# Protocols whose positions are record numbers need nothing else to find records.


class CountedFinder:
    """Finds records by their numbers; a split starts and ends with a record."""

    is_told = True

    def find_extent(self, split: Split) -> Extent:
        """Return the split itself."""
        return self.find_rest(split, split.start)

    def find_rest(self, split: Split, start: int) -> Extent:
        """Return what is left of the split."""
        return Extent(start, split.end, split.is_last)

    def find_next(self, split: Split, extent: Extent) -> int | None:
        """Return the end of the split, unless no split follows."""
        return None if split.is_last else extent.end

    def skip(self, split: Split, position: int, end: int) -> int:
        """Return the next number."""
        return min(position + 1, end)

    def has_records(self, split: Split, position: int) -> bool:
        """Return true: each number up to the range's end is a record."""
        return position < split.range.end


class CountedRuler:
    """Measures records by their numbers."""

    def fit(
        self, start: int, end: int, *, max_bytes: int | None, max_records: int | None
    ) -> int:
        """Add the smaller limit; limits of positions are limits of records here."""
        limits = [most for most in (max_bytes, max_records) if most is not None]
        return min([end, *(start + most for most in limits)])

    def step(self, start: int, end: int) -> int | None:
        """Return the next number."""
        return start + 1 if start < end else None

    def count(self, start: int, end: int) -> int:
        """Subtract."""
        return end - start


# The protocols there are.


class ProtocolModule(Protocol):
    """What the module with the settings of a protocol has to have."""

    # What the protocol can do at best; a driver may know more of its server.
    TRAITS: Traits
    # How its servers are reached; its `protocol` is the traits'.
    Config: type[ConnectionConfig]


class DriverModule(Protocol):
    """What the module with the driver of a protocol has to have."""

    def open_driver(self, config: Any, *, once: bool = False) -> Driver:
        """Connect to a server; with `once` each is tried once."""


def _name_modules(package: str) -> tuple[str, str]:
    home = f"lance_spark.client.{package}"
    return f"{home}.config", f"{home}.driver"


# The two modules of each protocol, a `ProtocolModule` and a `DriverModule`. The second
# needs the whole client of its protocol, and only a process that connects imports it.
_PROTOCOLS = {
    "fluvio": _name_modules("fluvio"),
    "kimberlite": _name_modules("kimberlite"),
    "lance": _name_modules("lwp"),
    "rustlog": _name_modules("rustlog"),
    "tank": _name_modules("tank"),
}


def protocols() -> list[str]:
    """List the protocols that have a driver."""
    return sorted(_PROTOCOLS)


def check_servers(text: str) -> str:
    """Check addresses; a port that is missing is chosen by the protocol.

    Raises:
        OptionError: one of them can't be read.
    """
    parse_addresses(text.strip(), default_port=1)
    return text.strip()


def find_protocol(protocol: str) -> ProtocolModule:
    """Find what a protocol can do and which settings it has.

    Raises:
        OptionError: the protocol is unknown.
    """
    return cast("ProtocolModule", import_module(_find_modules(protocol)[0]))


def open_driver(config: ConnectionConfig, *, once: bool = False) -> Driver:
    """Connect to a server of the protocol that a configuration is for.

    Args:
        config: which servers, and how they are reached.
        once: try each server once; else until `retry_timeout_s` is over.

    Raises:
        LanceError: no server can be reached.
    """
    module = import_module(_find_modules(config.protocol)[1])
    return cast("DriverModule", module).open_driver(config, once=once)


def _find_modules(protocol: str) -> tuple[str, str]:
    modules = _PROTOCOLS.get(protocol)
    if modules is None:
        raise OptionError(
            f"protocol {protocol!r} is unknown: give {', '.join(sorted(_PROTOCOLS))}"
        )
    return modules


def warn_if_new(driver: Driver, topic: str, bounds: Iterable[Bounds]) -> None:
    """Warn of an empty topic that was perhaps created when it was looked up."""
    if driver.traits.creates_to_find and not any(each.end for each in bounds):
        logger.warning(
            "stream %r is empty, and may be new: %s creates a stream when it is looked "
            "up by its name; check the name, or give the stream's id",
            topic,
            driver.traits.protocol,
        )
