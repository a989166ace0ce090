"""The drivers of LWP servers: our own extensions, and plain LWP.

`LwpDriver` is for servers that tell where records are (capability `locate`): their
offsets never shift. `PlainDriver` is for all others. A plain server has no index of
records or times, can't wait, starts every log at 0, and shifts its offsets when it
deletes; so records are probed, ends of batches are found by walking over records, and
marks tell whether offsets have shifted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from lance_spark.client.driver import (
    CheckServer,
    Committed,
    FinderName,
    LogRef,
    News,
    Range,
    RecordFinder,
    Ruler,
    ServerKind,
    Staged,
    TopicEntry,
    Traits,
    Unread,
    WriterSettings,
)
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.config import CHECKSUMS
from lance_spark.client.lwp.config import TRAITS as TRAITS
from lance_spark.client.lwp.config import Config as Config
from lance_spark.errors import OptionError, TopicDeleted, TopicNotFound, Unsupported
from lance_spark.model import Bounds, OffsetMark, Partition
from lance_spark.wire.lwp import (
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    Capability,
    Checksum,
    TopicInfo,
)

# Each of these is imported by the methods that use it: of the processes that Spark
# starts for a query some read, others write, and most do neither.
if TYPE_CHECKING:
    from lance_spark.client.connection import Connection
    from lance_spark.client.lwp.reader import LogReader
    from lance_spark.client.lwp.writer import StageWriter, TopicWriter

# All records of a micro-batch go through the driver of the query if the server is a
# plain one, because its ends are found by reading.
PLAIN_BATCH_BYTES = 64 * 1024 * 1024

assert TRAITS.record_units_min == RECORD_HEADER_BYTES
assert Config.response_bytes_min == PAYLOAD_BYTES_MAX
assert [*CHECKSUMS] == [*(each.value for each in Checksum), "auto"]

_NEEDS = {"locate": Capability.LOCATE.value, "stages": Capability.STAGED_COMMIT.value}
_GONE = (TopicNotFound, TopicDeleted)


def open_driver(config: Config, *, once: bool = False) -> LwpDriver | PlainDriver:
    """Connect, and choose the driver that suits the server."""
    client = LanceClient(config=config)
    try:
        return make_driver(client.connect() if once else client)
    except BaseException:
        client.close()
        raise


def _read_settings(options: WriterSettings) -> dict[str, Any]:
    """Give the settings that writers of LWP have."""
    settings = asdict(options)
    # Topics have one partition, and batches are told apart by their numbers.
    del settings["partitions"], settings["sole_writer"]
    return settings


def make_driver(client: LanceClient) -> LwpDriver | PlainDriver:
    """Choose the driver that suits the server that a client talks to."""
    return (LwpDriver if client.supports(Capability.LOCATE) else PlainDriver)(client)


class _LanceDriver:
    """What both kinds of servers have in common.

    Args:
        client: has the connection, and is closed with the driver.
    """

    traits: Traits

    def __init__(self, client: LanceClient) -> None:
        self.client = client

    @property
    def config(self) -> Config:
        """How the servers are reached."""
        return self.client.config

    @property
    def server(self) -> ServerKind:
        """The server that answers now."""
        return _describe_server(self.client.connection())

    def refresh(self) -> LwpDriver | PlainDriver:
        """Return the driver that suits the server that answers now."""
        made = make_driver(self.client)
        return self if type(made) is type(self) else made

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self.client.is_closed

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def make_unsupported(
        self, what: str, needs: Literal["locate", "stages"] | None = None
    ) -> Unsupported:
        """Make the error for what this server can't do."""
        capability = None if needs is None else _NEEDS[needs]
        return Unsupported(what, capability, self.server.address)

    # Topics.

    def topics(self, names: Collection[str] | None = None) -> list[TopicEntry]:
        """List topics, all or those of some names, sorted by name."""
        infos = sorted(self.client.topics(), key=lambda info: info.name)
        return [self._to_entry(i) for i in infos if names is None or i.name in names]

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, which has one partition in LWP."""
        if partitions != 1:
            raise self.make_unsupported(f"a topic with {partitions} partitions")
        self.client.create_topic(name)

    def describe(self, log: LogRef) -> TopicEntry:
        """Ask by id: another topic may have the name by now."""
        return self._to_entry(self.client.topic(log.topic_id))

    def bounds(self, logs: Sequence[LogRef]) -> dict[Partition, Bounds]:
        """Ask for each log; those that are gone are left out."""
        found = {}
        for log in logs:
            try:
                bounds = self.client.bounds(log.topic_id)
            except _GONE:
                continue
            # A plain server does not say where a log starts: always at 0.
            found[log.partition] = Bounds(bounds.start or 0, bounds.end)
        return found

    def _to_entry(self, info: TopicInfo) -> TopicEntry:
        return TopicEntry(
            name=info.name,
            topic_id=info.id,
            created_s=info.created_at_s,
            retention=info.retention,
        )

    # Marks are compared on every server: a plain one may have been in its place before.

    def is_mark_right(self, log: LogRef, position: int, known: OffsetMark) -> bool:
        """Compare the bytes before an offset and at the head of the log."""
        from lance_spark.client.lwp import places

        return places.is_mark_right(self.client, log, position, known)

    def is_range_right(self, piece: Range) -> bool:
        """Compare the head of the log and both ends of a range, if it has a mark."""
        if piece.mark is None:
            return True
        from lance_spark.client.lwp import places

        return places.is_range_right(self.client, piece)

    # Reading and writing.

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
    ) -> LogReader:
        """Read the records that start in [start, end)."""
        from lance_spark.client.lwp.reader import FETCH_BYTES_MAX, LogReader

        # Answers of LWP are in order: a fetch that waits would hold up other calls.
        client = self.client.dedicated() if end is None else self.client
        reader = LogReader(
            client,
            log.topic,
            start,
            end=end,
            fetch_bytes=min(fetch_bytes, FETCH_BYTES_MAX),
            first_fetch_bytes=first_fetch_bytes,
            topic_id=log.topic_id,
        )
        reader.last_end, reader.skips = last_end, on_bad == "skip"
        reader.own_client = client if end is None else None
        return reader

    def open_writer(
        self,
        to: Partition,
        *,
        options: WriterSettings,
        create_topic: bool,
        check: CheckServer,
    ) -> TopicWriter:
        """Write rows to a topic, each at least once."""
        if to.number:
            raise OptionError(
                f"topic {to.topic!r} has no partition {to.number}: topics of LWP have "
                "the partition 0 alone"
            )
        from lance_spark.client.lwp.writer import TopicWriter

        # Any of the servers may answer when a connection has to be made anew.
        return TopicWriter(
            self.client,
            to.topic,
            create_topic=create_topic,
            check=lambda connection: check(_describe_server(connection)),
            **_read_settings(options),
        )

    def stages(self) -> LwpStages | None:
        """Return the calls for stages, if the server has them."""
        return LwpStages(self.client) if self.server.has_stages else None

    def commit_position(self, log: LogRef, group: str, position: int) -> None:
        """Commit an offset under the number of the group's name."""
        from lance_spark.client.lwp.offsets import consumer_id

        self.client.commit_offset(log.topic_id, consumer_id(group), position)


class LwpDriver(_LanceDriver):
    """Drives servers that tell where records are."""

    def __init__(self, client: LanceClient) -> None:
        super().__init__(client)
        self.traits = replace(TRAITS, waits=client.supports(Capability.WAIT))

    def _to_entry(self, info: TopicInfo) -> TopicEntry:
        found, entry = info.details, super()._to_entry(info)
        start, end = found.get("log_start"), found.get("log_end")
        records = found.get("record_count")
        # A capability promises none of these: another server may leave them out.
        if type(start) is int and type(end) is int and type(records) is int:
            bounds = {0: Bounds(start, end)}
            entry = replace(entry, bounds=bounds, records=records)
        return entry

    def wait(self, known: Mapping[LogRef, int], version: int, wait_s: float) -> News:
        """Wait until a log grows past an offset or the list of topics changes."""
        by_id = {log.topic_id: log.partition for log in known}
        positions = {log.topic_id: offset for log, offset in known.items()}
        answer = self.client.wait(version, positions, wait_s)
        # A topic that was deleted since has no end, and the list another version.
        # What another server says of topics that were not asked for is ignored.
        ends = {
            by_id[end.topic_id]: end.offset
            for end in answer.ends
            if end.topic_id in by_id
        }
        return News(answer.version, ends)

    def locate_time(self, log: LogRef, time_ns: int, *, option: str) -> int:
        """Ask for the first record of a time."""
        return self.client.locate_time(log.topic_id, time_ns).offset

    def align(self, log: LogRef, position: int) -> int:
        """Ask for the first record at or behind an offset."""
        return self.client.locate_offset(log.topic_id, position).offset

    def make_ruler(self, log: LogRef, *, fetch_bytes: int) -> Ruler:
        """Make a ruler that asks."""
        from lance_spark.client.lwp import places

        return places.LocatedRuler(self.client, log.topic_id)

    def count_unread(self, log: LogRef, position: int) -> Unread:
        """Compare the record numbers of an offset and of the log's end."""
        try:
            first = self.client.locate_offset(log.topic_id, position)
            last = self.client.locate_end(log.topic_id)
        except _GONE:
            # The next look at the topics reports it.
            return Unread()
        records = max(0, last.record - first.record)
        return Unread(records, first.append_time_ns or None)

    def mark_position(self, log: LogRef, position: int, log_end: int) -> None:
        """Take none: offsets never shift."""

    def mark_range(self, piece: Range, log_end: int) -> Range:
        """Return the range as it is: offsets never shift."""
        return piece

    def choose_finder(self, splitting: str) -> FinderName:
        """Have the server asked, unless the user wants the bytes searched."""
        return "probed" if splitting == "probe" else "located"

    def find_with(self, name: FinderName) -> RecordFinder:
        """Return the finder of a plan."""
        from lance_spark.client.lwp import places

        finder = places.LocatedFinder if name == "located" else places.ProbedFinder
        return finder(self.client)


class PlainDriver(_LanceDriver):
    """Drives servers that have LWP and nothing else."""

    traits = replace(
        TRAITS,
        finder="probed",
        waits=False,
        compressions=("none",),
        batch_units_max=PLAIN_BATCH_BYTES,
    )

    def wait(self, known: Mapping[LogRef, int], version: int, wait_s: float) -> News:
        """Refuse: the server can't wait."""
        raise self.make_unsupported("waiting for new data")

    def locate_time(self, log: LogRef, time_ns: int, *, option: str) -> int:
        """Refuse: the server has no index of times."""
        raise self.make_unsupported(
            f"{option} (a plain server has no index of times; use offsets)", "locate"
        )

    def align(self, log: LogRef, position: int) -> int:
        """Return the offset itself: nothing tells where records start."""
        return position

    def make_ruler(self, log: LogRef, *, fetch_bytes: int) -> Ruler:
        """Make a ruler that walks over the records."""
        from lance_spark.client.lwp import places
        from lance_spark.client.lwp.reader import FETCH_BYTES_MAX

        fetch_bytes = min(fetch_bytes, FETCH_BYTES_MAX)
        return places.WalkedRuler(self.client, log.topic, log.topic_id, fetch_bytes)

    def count_unread(self, log: LogRef, position: int) -> Unread:
        """Return nothing: the server counts no records and keeps no times."""
        return Unread()

    def mark_position(self, log: LogRef, position: int, log_end: int) -> OffsetMark:
        """Look at the bytes before an offset and at the head of the log."""
        from lance_spark.client.lwp import places

        return places.mark_offset(self.client, log, position, log_end)

    def mark_range(self, piece: Range, log_end: int) -> Range:
        """Look at the head of the log and at both ends of a range."""
        from lance_spark.client.lwp import places

        return replace(piece, mark=places.mark_range(self.client, piece, log_end))

    def choose_finder(self, splitting: str) -> FinderName:
        """Have the bytes searched; the server can't be asked."""
        if splitting == "locate":
            what = "splitting=locate (use auto, probe or none)"
            raise self.make_unsupported(what, "locate")
        return "probed"

    def find_with(self, name: FinderName) -> RecordFinder:
        """Return the finder of a plan, which may have been made for another server."""
        if name == "located":
            raise self.make_unsupported("a read that was planned with locate", "locate")
        from lance_spark.client.lwp import places

        return places.ProbedFinder(self.client)


class LwpStages:
    """Staged writes."""

    def __init__(self, client: LanceClient) -> None:
        self._client = client

    def open_writer(
        self,
        topic: str,
        writer_id: str,
        sequence: int,
        *,
        options: WriterSettings,
        check: CheckServer,
    ) -> StageWriter:
        """Open a stage for a topic that need not exist yet."""
        from lance_spark.client.lwp.writer import StageWriter

        settings = _read_settings(options)
        return StageWriter(
            self._client,
            topic,
            writer_id,
            sequence,
            check=lambda connection: check(_describe_server(connection)),
            **settings,
        )

    def commit(
        self,
        writer_id: str,
        sequence: int,
        stages: Sequence[Staged],
        *,
        overwrite: Sequence[str] = (),
    ) -> Committed:
        """Append stages in this order, all or nothing."""
        contents: Any = stages
        answer = self._client.commit_stages(
            writer_id, sequence, contents, overwrite=overwrite
        )
        spans = tuple(
            (Partition(span.name), Bounds(span.start, span.end))
            for span in answer.topics
        )
        return Committed(answer.status.name.lower(), spans)

    def abort(self, writer_id: str, sequence: int) -> int:
        """Drop the stages of a job; return how many there were."""
        return self._client.abort_stages(writer_id, sequence)


def _describe_server(connection: Connection) -> ServerKind:
    has_stages = Capability.STAGED_COMMIT.value in connection.capabilities
    return ServerKind(str(connection.address), has_stages)
