"""Drivers of protocols whose positions are record numbers: all that they share.

Such a protocol brings a `Dialect`, and a subclass of `CountedDriver` that makes its
requests and reads its answers. Reading ahead, marks, batches and what to do when an
answer is lost are here, and the same for all of them.

These protocols have no topic ids, and a server may forget its records (RustLog does at
every restart). So positions are marked: a mark holds a checksum of the records before a
position and at the head of the log, and tells later whether they are still the same.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.client.config import ConnectionConfig, Runtime
from lance_spark.client.dialect import Dialect
from lance_spark.client.driver import (
    CheckServer,
    CountedFinder,
    CountedRuler,
    FinderName,
    LogRef,
    News,
    Range,
    ServerKind,
    TopicEntry,
    Traits,
    Unread,
    WriterSettings,
)
from lance_spark.client.link import Build, Dialer, Link
from lance_spark.columnar import read_records
from lance_spark.errors import (
    AppendConflictError,
    DataLoss,
    InvalidOffset,
    LanceError,
    OffsetOutOfRange,
    RecordError,
    RecordTooLarge,
    RemoteProtocolError,
    RowError,
    StorageError,
    Timeout,
    TopicAlreadyExists,
    TopicDeleted,
    TopicNotFound,
    UnknownError,
    Unsupported,
)
from lance_spark.model import Bounds, OffsetMark, Partition
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.records import Records, Spans

if TYPE_CHECKING:
    from lance_spark.client.connection import Connection
    from lance_spark.client.inbox import Pending

logger = logging.getLogger(__name__)

_GONE = (TopicNotFound, TopicDeleted)
_REMOVED = "what was before the log start is removed"
_REPLACED = (
    "the record before it is not the one that was read there: the server has lost its "
    "records, or another log has taken the place of this one"
)
# How many records a mark covers, before a position and at the head of the log.
_MARKED_RECORDS = 4
_MARKED_BYTES = 16 * 1024
# The most partitions of all topics together, as a number costs a server four bytes.
_PARTITIONS_MAX = 1_000_000
# What one record costs beside its bytes, in the limit of a batch.
_ROW_BYTES = 16
# A server that can't wait is asked for new records after a pause that doubles.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.005, 0.25
# How often a reader that follows a log makes sure that it is the same one.
_CHECK_S = 1.0
# How much a look for the end of a log asks for, where no request tells it: records
# behind the one that is looked for save the last steps. And how much wider each next
# step is.
_PROBE_BYTES = 4 * 1024
_GALLOP = 4
# Writers of a log that appends conditionally take turns. One writes for so long and
# then lets others in. One that waits looks whether the log stands still for a moment,
# the more often the longer it waits.
_TURN_S, _GAP_S = 0.5, 0.025
_STILL_S = 0.002
_LOOK_S_MAX, _LOOK_S_MIN = 0.05, 0.01


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of a partition, and which of its positions an answer covers.

    Args:
        records: with their positions; those before the asked one may be among them.
        start: the first position that is covered.
        next: the position behind the last. Positions in between without a record have
            none: the protocol said so.
        needed_bytes: ask for at least as much: the first record was not there whole.
    """

    records: Records
    start: int
    next: int
    needed_bytes: int = 0


class CountedDriver(ABC):
    """A driver of servers that count records; used by any number of threads.

    Args:
        config: how the servers are reached.
        candidates: lists the dialects to try with a server.
        runtime: the network, the time and chance.
    """

    traits: Traits
    # The server appends only if the records get the numbers that were expected.
    is_conditional = False
    # It need not, and a writer that is not alone appends without: the records at a
    # number that is taken may then be those of others, equal or not.
    is_conditional_alone = False
    # The most that one append holds, unless it is one record, and what that may have.
    append_bytes_max: int
    record_bytes_max: int
    append_records_max: int | None = None
    key_bytes_max: int | None = None
    # The most that is asked for at once, where an answer may need more than was asked.
    fetch_bytes_max: int = 2**31
    # How many appends may be under way; None for as many as the writer is told.
    appends_max: int | None = None
    # The shortest wait for records that is left to the server; None if it can't wait.
    wait_s_min: float | None = None

    def __init__(
        self,
        config: ConnectionConfig,
        candidates: Callable[[Address], Sequence[Dialect]],
        runtime: Runtime | None = None,
    ) -> None:
        runtime = runtime or Runtime()
        self.config = config
        self.link = Link(config, runtime, Dialer(config, runtime, candidates))
        # Where partitions ended at the last look, if their ends have to be searched.
        self._ends: dict[Partition, int] = {}

    # What a protocol brings.

    @abstractmethod
    def list_topics(self) -> dict[str, int]:
        """Ask for all topics, with the number of their partitions."""

    @abstractmethod
    def create_topic(
        self, name: str, partitions: int = 1, *, retry: bool = False
    ) -> None:
        """Create a topic.

        Args:
            name: its name.
            partitions: how many it gets.
            retry: ask again when an answer is lost. The topic may then be there
                because of the first time.

        Raises:
            TopicAlreadyExists: it is there.
        """

    @abstractmethod
    def find_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Ask where partitions of one topic start and end.

        Raises:
            TopicNotFound: it is gone.
        """

    @abstractmethod
    def make_fetch(
        self, at: Partition, position: int, max_bytes: int, wait_s: float = 0.0
    ) -> Any:
        """Make a request for records from a position on.

        `max_bytes` may be passed by one record. A server that can waits for a first
        record for so long, and answers with none after that.
        """

    @abstractmethod
    def read_fetched(self, answer: Any, at: Partition, position: int) -> Fetched:
        """Read the answer to such a request.

        Raises:
            OffsetOutOfRange, InvalidOffset: the position is not in the log.
        """

    @abstractmethod
    def make_append(
        self,
        to: Partition,
        records: Records,
        *,
        expected: int | None,
        compression: str,
    ) -> Any:
        """Make a request to append records as one batch.

        Raises:
            RowError: the protocol can't carry one of them.
        """

    @abstractmethod
    def check_appended(self, answer: Any, to: Partition, count: int) -> None:
        """Read the answer to such a request.

        Raises:
            AppendConflictError: the records would get other numbers than expected;
                none was appended.
        """

    # The server.

    def connect_to(self, at: Partition) -> Connection:
        """Return the live connection to the server of a partition, without any retry.

        A protocol whose servers have a part of the partitions each overrides this and
        `ask_of`.
        """
        return self.link.connect_once()

    def ask_of(
        self,
        at: Partition,
        build: Build,
        *,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        """Ask the server of a partition, as `Link.ask` does."""
        return self.link.ask(build, timeout_s=timeout_s, wait_s=wait_s)

    @property
    def server(self) -> ServerKind:
        """The server that answers now."""
        return ServerKind(str(self.link.connection().address), has_stages=False)

    def refresh(self) -> CountedDriver:
        """Return itself: all servers of such a protocol are of one kind."""
        return self

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self.link.is_closed

    def close(self) -> None:
        """Close the connection."""
        self.link.close()

    def make_unsupported(
        self, what: str, needs: Literal["locate", "stages"] | None = None
    ) -> Unsupported:
        """Make the error for what the protocol can't do."""
        reason = f"{self.traits.protocol} has no such thing"
        return Unsupported(what, None, self.config.servers, reason)

    # Topics.

    def topics(self, names: Collection[str] | None = None) -> list[TopicEntry]:
        """List topics, all or those of some names, sorted by name.

        Raises:
            RemoteProtocolError: the server claims more partitions than any has, or none
                of a topic that is asked for, which would be read as an empty one.
        """
        found = self.list_topics()
        if sum(found.values()) > _PARTITIONS_MAX:
            raise RemoteProtocolError(f"more than {_PARTITIONS_MAX} partitions in all")
        for name in names or ():
            if found.get(name, 1) < 1:
                raise RemoteProtocolError(f"topic {name!r} has no partitions")
        return [
            TopicEntry(name, partitions=tuple(range(count)))
            for name, count in sorted(found.items())
            if names is None or name in names
        ]

    def describe(self, log: LogRef) -> TopicEntry:
        """Look a topic up by name: there are no ids."""
        found = self.topics([log.topic])
        if not found or log.partition.number not in found[0].partitions:
            raise _not_found(log.partition)
        return found[0]

    def bounds(self, logs: Sequence[LogRef]) -> dict[Partition, Bounds]:
        """Ask topic by topic; those that are gone are left out."""
        by_topic: dict[str, list[int]] = {}
        for log in logs:
            by_topic.setdefault(log.topic, []).append(log.partition.number)
        found: dict[Partition, Bounds] = {}
        for topic, numbers in by_topic.items():
            try:
                bounds = self.find_bounds(topic, numbers)
            except _GONE:
                continue
            found |= {Partition(topic, n): bounds[n] for n in numbers if n in bounds}
        return found

    def wait(self, known: Mapping[LogRef, int], version: int, wait_s: float) -> News:
        """Refuse: the ends of logs are asked for instead."""
        raise self.make_unsupported("waiting for new data")

    # Positions.

    def locate_time(self, log: LogRef, time_ns: int, *, option: str) -> int:
        """Refuse: these protocols have no index of times."""
        raise self.make_unsupported(f"{option}: use offsets")

    def align(self, log: LogRef, position: int) -> int:
        """Return the position itself, or the log's start if that is behind it."""
        bounds = self.bounds([log]).get(log.partition)
        return position if bounds is None else max(position, bounds.start)

    def make_ruler(self, log: LogRef, *, fetch_bytes: int) -> CountedRuler:
        """Make a ruler that counts."""
        return CountedRuler()

    def count_unread(self, log: LogRef, position: int) -> Unread:
        """Subtract from the log's end."""
        bounds = self.bounds([log]).get(log.partition)
        return Unread(None if bounds is None else max(0, bounds.end - position))

    # Marks.

    def mark_position(self, log: LogRef, position: int, log_end: int) -> OffsetMark:
        """Look at the records before a position and at the head of a whole log."""
        start = self.find_bounds_of(log).start
        # Retention may have passed the position.
        first = min(max(start, position - _MARKED_RECORDS), position)
        mark = OffsetMark(0, 0, end=log_end)
        # Some records can't be sent, such as one with a long key by TANK. A query that
        # goes on behind it has no mark then.
        with contextlib.suppress(StorageError):
            crc = self.checksum(log, first, position)
            mark = replace(mark, size=position - first, crc=crc)
            head = min(start + _MARKED_RECORDS, first)
            if start == self.traits.first_position and head > start:
                head_crc = self.checksum(log, start, head)
                mark = replace(mark, head_size=head - start, head_crc=head_crc)
        return mark

    def is_mark_right(self, log: LogRef, position: int, known: OffsetMark) -> bool:
        """Compare the records before a position, and the head if it is still there.

        A log that reaches the position may have lost records behind it, which is not
        for the mark to tell.
        """
        bounds = self.find_bounds_of(log)
        if bounds.end < position:
            return False
        try:
            return self._is_alike(log, position, known, bounds.start)
        except DataLoss as loss:
            # They are gone since the look at the bounds.
            return _is_removed(loss, loss.asked)

    def _is_alike(
        self, log: LogRef, position: int, known: OffsetMark, log_start: int
    ) -> bool:
        # Retention may have passed some of them: numbers are not given out again.
        before = position - known.size
        if log_start <= before and self.checksum(log, before, position) != known.crc:
            return False
        start = self.traits.first_position
        if known.head_size is None or log_start != start:
            return True
        return self.checksum(log, start, start + known.head_size) == known.head_crc

    def mark_range(self, piece: Range, log_end: int) -> Range:
        """Look at the last record of a range."""
        if not piece.size:
            return piece
        last = piece.end - 1
        try:
            crc = self.checksum(piece.log, last, piece.end)
        except StorageError:
            return piece  # It can't be sent. The task says so, behind those before it.
        except DataLoss as loss:
            if not _is_removed(loss, last):
                raise
            return piece  # Retention has emptied the log. The reader says so.
        return replace(piece, mark=crc)

    def is_range_right(self, piece: Range) -> bool:
        """Compare the last record of a range, if the range has a mark.

        The reader tells whether the first one is there.
        """
        if piece.mark is None:
            return True
        last = piece.end - 1
        try:
            # The bounds are not asked for: to find an end may take many requests.
            return bool(self.checksum(piece.log, last, piece.end) == piece.mark)
        except DataLoss as loss:
            return _is_removed(loss, last)

    def find_bounds_of(self, log: LogRef) -> Bounds:
        """Ask where one partition starts and ends.

        Raises:
            TopicNotFound: it is gone.
        """
        bounds = self.bounds([log]).get(log.partition)
        if bounds is None:
            raise _not_found(log.partition)
        return bounds

    def find_end(self, at: Partition) -> int:
        """Ask where one partition ends.

        Raises:
            TopicNotFound: it is gone.
        """
        return self.find_bounds_of(LogRef(at)).end

    def search_end(self, at: Partition, start: int) -> int:
        """Find the end of a partition by fetches, as no request tells it.

        Each fetch tells whether there is a record of a number. So the end is found by
        galloping from the one that was known last, and then by bisection.
        """
        known = self._ends.get(at, start)
        if known > start:
            # A restart may have emptied it.
            last = known - 1
            found = self._probe(at, last)
            known = start if found == last else found
        end = self._ends[at] = self._gallop(at, max(known, start))
        return end

    def _gallop(self, at: Partition, low: int) -> int:
        """Find the first number without a record; all below `low` have one.

        If the log grows meanwhile, it may be one that had none before.
        """
        step, high = 1, low
        while (following := self._probe(at, high)) > high:
            low, high, step = following, following + step, step * _GALLOP
        while low < high:
            middle = (low + high) // 2
            following = self._probe(at, middle)
            low, high = (following, high) if following > middle else (low, middle)
        return low

    def _probe(self, at: Partition, position: int) -> int:
        """Fetch a few records; give the number behind them, the same without any."""
        try:
            answer = self.ask_of(
                at, lambda _: self.make_fetch(at, position, _PROBE_BYTES)
            )
        except (OffsetOutOfRange, InvalidOffset):
            # Past the end is no error, so it is before the start: there was one.
            return position + 1
        return self.read_fetched(answer, at, position).next

    def checksum(self, log: LogRef, start: int, end: int) -> int:
        """Compute a checksum of the values and keys of [start, end).

        Raises:
            DataLoss: a record is not there.
        """
        crc = 0
        reader = self.open_reader(log, start, end=end, fetch_bytes=_MARKED_BYTES)
        try:
            while not reader.is_finished:
                records = reader.next_records()
                if records is None and reader.is_finished:
                    break  # The rest are numbers that a sparse bundle leaves out.
                if records is None:
                    reason = "the log ends before it"
                    raise _lose(log.partition, reader.position, None, reason)
                crc = digest(records, crc)
        finally:
            reader.close()
        return crc

    # Records.

    def choose_finder(self, splitting: str) -> FinderName:
        """Return the only way there is."""
        return "counted"

    def find_with(self, name: FinderName) -> CountedFinder:
        """Return the finder of a plan."""
        return CountedFinder()

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
    ) -> CountedReader:
        """Read the records of [start, end)."""
        return CountedReader(
            self, log.partition, start, end=end, fetch_bytes=fetch_bytes
        )

    def open_writer(
        self,
        to: Partition,
        *,
        options: WriterSettings,
        create_topic: bool,
        check: CheckServer,
    ) -> CountedWriter:
        """Write rows to a partition, each at least once."""
        if create_topic and not self.topics([to.topic]):
            # Another task may be quicker.
            with contextlib.suppress(TopicAlreadyExists):
                self.create_topic(to.topic, options.partitions, retry=True)
        return CountedWriter(self, to, options)

    def stages(self) -> None:
        """Return none: staged writes are LWP's."""
        return

    def commit_position(self, log: LogRef, group: str, position: int) -> None:
        """Refuse: the option `consumerGroup` is LWP's."""
        raise self.make_unsupported("committing positions of a group")


_Driver = TypeVar("_Driver", bound=CountedDriver)


def connect(driver: _Driver, *, once: bool) -> _Driver:
    """Connect a driver, with all retries or without any, or close it."""
    try:
        if once:
            driver.link.connect_once()
        else:
            driver.link.connection()
    except BaseException:
        driver.close()
        raise
    return driver


class CountedReader:
    """Reads records in order, with the next fetch under way; one thread may use it.

    A reader that has no end, or waits, follows its log. The server may forget all
    records and give their numbers to others, and an answer does not show it: a log that
    is shorter looks like one to which nothing was added. So the last record that was
    read is looked at again: on each new connection, as a server that has forgotten was
    restarted; before records that were waited for; and now and then.

    Args:
        driver: has the connection.
        at: which partition.
        start: the first record.
        end: where to stop; None never does.
        fetch_bytes: how much to ask for at once.
    """

    skipped = (0, 0)

    def __init__(
        self,
        driver: CountedDriver,
        at: Partition,
        start: int,
        *,
        end: int | None,
        fetch_bytes: int,
    ) -> None:
        self._driver = driver
        self._at = at
        self._end = end
        self._fetch_bytes = fetch_bytes
        self.position = start
        self._pending: Pending | None = None
        # The last record that was read, or the one before the start: its number and
        # checksum. None before the first look, and if there is none.
        self._last: tuple[int, int] | None = None
        self._is_following = end is None
        self._has_looked = False
        self._is_idle = False
        self._checked_on: Callable[[], Any] = lambda: None
        self._check = Deadline.after(0.0)

    @property
    def is_finished(self) -> bool:
        """Whether every record before the end was handed out."""
        return self._end is not None and self.position >= self._end

    def next_records(self, wait_s: float = 0.0) -> Records | None:
        """Return the next records with their positions; None at the log's end.

        Raises:
            DataLoss: the record at `position` is not in the log any more, or the one
                that was read before it.
        """
        deadline, pause_s = Deadline.after(wait_s), _PAUSE_S_MIN
        self._is_following |= wait_s > 0
        while not self.is_finished:
            if self._is_following and not self._has_looked:
                self._look()
            # What was fetched ahead is an answer to a question of some time ago.
            is_ahead = self._pending is not None
            asked_s = self._plan_wait(deadline)
            fetched = self._fetch(asked_s)
            if fetched.start > self.position:
                bounds = Bounds(fetched.start, fetched.next)
                raise _lose(self._at, self.position, bounds, _REMOVED)
            if fetched.needed_bytes:
                self._ask_for_more(fetched.needed_bytes)
                continue
            records = self._trim(fetched.records)
            is_over = fetched.next <= self.position
            self._check_log(is_due=self._is_idle and not is_over)
            self._is_idle = is_over
            self.position = max(self.position, fetched.next)
            if self._end is not None:
                self.position = min(self.position, self._end)
            if len(records):
                if self._is_following:
                    self._note_last(records)
                if not self.is_finished:
                    self._ask_ahead()
                return records
            if is_over:
                if deadline.expired:
                    return None
                # Some servers can't wait, and some do not although they were asked to.
                if not is_ahead:
                    self._driver.link.pause(min(pause_s, deadline.remaining()))
                    pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return None

    def _plan_wait(self, deadline: Deadline) -> float:
        """Say how long the server is to wait."""
        left_s, least_s = deadline.remaining(), self._driver.wait_s_min
        return 0.0 if least_s is None or left_s < least_s else left_s

    # Whether the log is still the same.

    def _look(self) -> None:
        """Look at the record before the start of a log that is followed, once."""
        last = self.position - 1
        if last >= self._driver.traits.first_position:
            # It may be removed, not be there yet, or be one that can't be had.
            unknown = DataLoss, RecordError, RemoteProtocolError, StorageError
            with contextlib.suppress(*unknown):
                self._last = last, self._sum_up(last)
        self._has_looked = True
        self._note_check()

    def _note_last(self, records: Records) -> None:
        last = len(records) - 1
        self._last = records.position(last), digest(records.cut(last, last + 1))

    def _note_check(self) -> None:
        self._check = Deadline.after(_CHECK_S)
        with contextlib.suppress(LanceError):
            self._checked_on = weakref.ref(self._driver.connect_to(self._at))

    def _check_log(self, is_due: bool) -> None:
        """Compare the last record that was read, if it is time to.

        Raises:
            DataLoss: it is another one, or not there.
        """
        if self._last is None:
            return
        is_due = is_due or self._check.expired
        try:
            if not is_due and self._driver.connect_to(self._at) is self._checked_on():
                return
        except LanceError as error:
            logger.debug("%s: no connection: %s", show(self._at), error)
        last, crc = self._last
        try:
            is_same = self._sum_up(last) == crc
        except DataLoss as loss:
            # If retention is quicker than this reader, the fetch tells it.
            is_same = _is_removed(loss, last)
        if not is_same:
            self.close()
            bounds = self._driver.find_bounds(self._at.topic, [self._at.number])
            found = bounds.get(self._at.number)
            raise _lose(self._at, self.position, found, _REPLACED)
        self._note_check()

    def _sum_up(self, position: int) -> int:
        return self._driver.checksum(LogRef(self._at), position, position + 1)

    def seek(self, position: int) -> None:
        """Go on at another record."""
        self.close()
        self.position = position

    def close(self) -> None:
        """Give up the fetch that is under way."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.give_up()

    def _fetch(self, wait_s: float) -> Fetched:
        driver, at, position = self._driver, self._at, self.position
        pending, self._pending = self._pending, None
        answer = None
        try:
            if pending is not None:
                try:
                    timeout_s = driver.config.request_timeout_s
                    answer = pending.conclude(Deadline.after(timeout_s))
                except LanceError as error:
                    # The same question again, with all retries.
                    logger.debug("%s: a fetch was lost: %s", show(at), error)
            if answer is None:
                answer = driver.ask_of(
                    at,
                    lambda _: driver.make_fetch(
                        at, position, self._fetch_bytes, wait_s
                    ),
                    wait_s=wait_s,
                )
            return driver.read_fetched(answer, at, position)
        except (OffsetOutOfRange, InvalidOffset, UnknownError) as error:
            bounds = driver.find_bounds(at.topic, [at.number]).get(at.number)
            if isinstance(error, UnknownError) and _has_place(bounds, position):
                raise
            is_removed = bounds is not None and bounds.start > position
            reason = _REMOVED if is_removed else str(error)
            raise _lose(at, position, bounds, reason) from error

    def _ask_for_more(self, needed_bytes: int) -> None:
        most = self._driver.fetch_bytes_max
        if max(needed_bytes, self._fetch_bytes + 1) > most:
            text = (
                f"{needed_bytes} bytes have to be fetched at once to get record "
                f"{self.position}, and {most} can be: raise response_bytes_max, of "
                "which that is the half"
            )
            if needed_bytes <= most:
                text = (
                    f"the server cuts record {self.position} off, also in an answer of "
                    f"{most} bytes, although {needed_bytes} would do"
                )
            raise RecordTooLarge(
                f"{show(self._at)}: {text}", self.position, unit="offset"
            )
        self._fetch_bytes = min(max(needed_bytes, 2 * self._fetch_bytes), most)

    def _ask_ahead(self) -> None:
        deadline = Deadline.after(self._driver.config.request_timeout_s)
        try:
            connection = self._driver.connect_to(self._at)
            request = self._driver.make_fetch(
                self._at, self.position, self._fetch_bytes
            )
            self._pending = connection.submit(request, deadline=deadline)
        except LanceError as error:
            # The next call asks, and tells.
            logger.debug("%s: no fetch ahead: %s", show(self._at), error)

    def _trim(self, records: Records) -> Records:
        """Leave out records before the position and behind the end."""
        if not len(records):
            return records
        end = 2**63 - 1 if self._end is None else self._end
        last = len(records) - 1
        if self.position <= records.position(0) and records.position(last) < end:
            return records
        positions = records.find_positions()
        first, last = np.searchsorted(positions, (self.position, end))
        return records.cut(int(first), int(last))


class CountedWriter:
    """Gathers rows into batches and appends them, each at least once.

    Several batches are under way where the protocol allows it, on one connection and in
    order. Batches whose answers are lost are sent again one at a time, before those
    behind them. A server that appends conditionally is given
    the number that the first record is expected to get, also then: if other records
    are there by now, they may be this batch or those of another writer. They count as
    this batch only if they are equal and no other writer is there; else the batch is
    appended again, as a row that is there twice is better than one that is missing.
    Writers that are not alone take turns there.

    Args:
        driver: has the connection.
        to: which partition.
        options: sizes.
    """

    def __init__(
        self, driver: CountedDriver, to: Partition, options: WriterSettings
    ) -> None:
        self._driver = driver
        self._to = to
        self._options = options
        self._batch_bytes = min(options.batch_bytes, driver.append_bytes_max)
        self._is_conditional = driver.is_conditional and (
            options.sole_writer or not driver.is_conditional_alone
        )
        self._takes_turns = self._is_conditional and not options.sole_writer
        in_flight = max(1, options.max_in_flight)
        self._in_flight_max = min(in_flight, driver.appends_max or in_flight)
        if self._takes_turns:
            # Were there two, the second might fit where another writer's batch ends,
            # and so overtake the first.
            self._in_flight_max = 1
        self._batch_rows = driver.append_records_max or 2**62
        self._rows: list[pa.RecordBatch] = []
        self._row_bytes = self._row_count = 0
        self._sent: deque[_Sent] = deque()
        # A batch was lost since the last one was sent.
        self._has_resent = False
        # The number that the next record gets, as far as this writer knows.
        self._next: int | None = None
        # Ends this writer's turn.
        self._turn = Deadline.after(_TURN_S)

    @property
    def pending_bytes(self) -> int:
        """How many bytes are not acknowledged yet."""
        return self._row_bytes + sum(batch.size for batch in self._sent)

    def write(self, columns: pa.Table) -> None:
        """Take rows; sends each batch that is full.

        Raises:
            RowError: the protocol can't carry a row. Those before it are taken.
        """
        taken = 0
        for batch in columns.combine_chunks().to_batches():
            records = read_records(batch, first_row=taken)
            fault = self._find_fault(records)
            if fault is not None:
                rows = fault.row - taken
                records, batch = records.cut(0, rows), batch.slice(0, rows)
            taken += len(records)
            self._take(batch, _measure(records))
            if fault is not None:
                raise fault

    def _take(self, batch: pa.RecordBatch, sizes: NDArray[np.int64]) -> None:
        ends, start, done = np.cumsum(sizes), 0, 0
        while start < len(sizes):
            room = self._batch_bytes - self._row_bytes
            stop = int(np.searchsorted(ends, done + room, "right"))
            if stop == start and not self._rows:
                stop += 1
            stop = min(stop, start + self._batch_rows - self._row_count)
            if stop > start:
                self._rows.append(batch.slice(start, stop - start))
                self._row_bytes += int(ends[stop - 1]) - done
                self._row_count += stop - start
                start, done = stop, int(ends[stop - 1])
            if start < len(sizes):
                self._send_rows()

    def flush(self) -> None:
        """Wait until all that was taken is acknowledged."""
        self._send_rows()
        while self._sent:
            self._settle()

    def finish(self) -> None:
        """Flush and close."""
        self.flush()

    def close(self, *, abandon: bool = False) -> None:
        """Close, without a flush if `abandon`."""
        if not abandon:
            self.flush()
        for batch in self._sent:
            if batch.pending is not None:
                batch.pending.give_up()
        self._sent.clear()
        self._drop_rows()

    def _drop_rows(self) -> None:
        self._rows, self._row_bytes, self._row_count = [], 0, 0

    def _find_fault(self, records: Records) -> RowError | None:
        """Find the first row that the protocol can't carry."""
        traits, most = self._driver.traits, self._driver.record_bytes_max
        faults: list[tuple[int, str]] = []
        if records.nulls is not None:
            text = f"its value is null, which {traits.protocol} has no form for"
            faults.append((int(records.nulls.argmax()), text))
        for column, rows in (("key", records.keyed), ("timestamp", records.stamped)):
            if len(rows) and column not in traits.columns:
                text = f"it has a {column}, which {traits.protocol} can't carry"
                faults.append((int(rows[0]), f"{text}: drop the column {column}"))
        keys, key_max = records.keys.lengths, self._driver.key_bytes_max
        if key_max is not None and len(keys) and keys.max() > key_max:
            number = int((keys > key_max).argmax())
            text = f"its key has {keys[number]} bytes, and {traits.protocol} carries"
            faults.append((int(records.keyed[number]), f"{text} {key_max}"))
        sizes = _measure(records) - _ROW_BYTES
        if len(sizes) and sizes.max() > most:
            row = int((sizes > most).argmax())
            text = f"it has {sizes[row]} bytes, and {traits.protocol} carries {most}"
            faults.append((row, f"{text}: split the value"))
        if faults:
            row, text = min(faults)
            return RowError(text, records.position(row))
        fault = records.fault
        assert fault is None or isinstance(fault, RowError)
        return fault

    # Sending.

    def _send_rows(self) -> None:
        """Send the rows that were taken as a batch.

        A call that fails before that keeps them, for the next one.
        """
        if not self._rows:
            return
        if self._takes_turns and self._next is not None and self._turn.expired:
            self._let_others_in()
        while len(self._sent) >= self._in_flight_max:
            self._settle()
        if self._has_resent:
            # Those behind the one that was lost went the same way. The next one goes
            # another way, where it must not overtake them.
            while self._sent:
                self._settle()
            self._has_resent = False
        if self._is_conditional and self._next is None:
            # After a conflict: what is behind it goes before this batch.
            while self._sent:
                self._settle()
            self._next = self._driver.find_end(self._to)
            self._turn = Deadline.after(_TURN_S)
        rows = pa.Table.from_batches(self._rows).combine_chunks().to_batches()
        batch = _Sent(read_records(rows[0]), self._row_bytes, self._next)
        if self._next is not None:
            self._next += len(batch.records)
        self._drop_rows()
        try:
            self._submit(batch)
        finally:
            self._sent.append(batch)

    def _submit(self, batch: _Sent) -> None:
        driver = self._driver
        try:
            if self._sent:
                before = self._sent[-1].pending
                if before is None:
                    return  # One before it has to be sent first.
                # Over another connection it could overtake those that are lost here.
                connection = before.connection
            else:
                connection = driver.connect_to(self._to)
            request = self._make_request(batch)
            deadline = Deadline.after(driver.config.request_timeout_s)
            batch.pending = connection.submit(request, deadline=deadline)
        except LanceError as error:
            # It is sent again when its turn has come.
            logger.debug("%s: not sent: %s", show(self._to), error)

    def _settle(self) -> None:
        """Make sure that the oldest batch is stored."""
        batch, conflict = self._sent[0], None
        try:
            if batch.pending is not None:
                timeout_s = self._driver.config.request_timeout_s
                answer = batch.pending.conclude(Deadline.after(timeout_s))
                self._driver.check_appended(answer, self._to, len(batch.records))
                self._sent.popleft()
                return
        except AppendConflictError as error:
            conflict = error
        except LanceError as error:
            # Behind a batch that moved, a number that is still free is a gap.
            is_gap = batch.is_behind and isinstance(error, StorageError)
            is_lost = error.retriable or isinstance(error, RemoteProtocolError)
            if not (is_gap or is_lost):
                raise
            logger.warning("%s: %s; sending again", show(self._to), error)
            if batch.is_behind:
                batch.expected = self._driver.find_end(self._to)
        self._append_again(batch, conflict)
        self._has_resent = True
        self._sent.popleft()

    def _append_again(self, batch: _Sent, conflict: AppendConflictError | None) -> None:
        """Append a batch that was lost, or refused for its number.

        Raises:
            Timeout: that was so until the deadline.
        """
        driver = self._driver
        deadline = Deadline.after(driver.config.retry_timeout_s)
        while conflict is None or not self._resolve(batch, deadline):
            try:
                answer = driver.ask_of(
                    self._to,
                    lambda _: self._make_request(batch),
                    timeout_s=deadline.remaining(),
                )
                driver.check_appended(answer, self._to, len(batch.records))
                return
            except AppendConflictError as error:
                conflict = error
            except Timeout as error:
                if conflict is None:
                    raise
                raise Timeout(
                    f"{show(self._to)}: other writers were quicker until the deadline: "
                    f"{conflict}"
                ) from error

    def _resolve(self, batch: _Sent, deadline: Deadline) -> bool:
        """Tell whether a batch is stored that was refused for its number.

        If not, the batch expects the log's end from now on.
        """
        if self._options.sole_writer and self._is_stored(batch):
            return True
        batch.expected = self._await_turn(deadline)
        # Batches behind this one expect numbers that they will not get.
        self._next = None
        for later in self._sent:
            later.is_behind = later is not batch
        return False

    def _await_turn(self, deadline: Deadline) -> int:
        """Wait until no other writer appends; return where the log ends then.

        What is sent while another one appends is refused nearly always, so that only
        the end is asked for meanwhile, which is small.
        """
        driver = self._driver
        end, look_s = driver.find_end(self._to), _LOOK_S_MAX
        while self._takes_turns:
            driver.link.pause(_STILL_S)
            before, end = end, driver.find_end(self._to)
            if end == before or deadline.expired:
                break
            driver.link.pause(look_s)
            look_s = max(look_s / 2, _LOOK_S_MIN)
            end = driver.find_end(self._to)
        return end

    def _let_others_in(self) -> None:
        """Leave the log alone for long enough that a writer which waits notices it."""
        while self._sent:
            self._settle()
        self._driver.link.pause(_GAP_S)
        self._next = None

    def _is_stored(self, batch: _Sent) -> bool:
        """Tell whether the records at the expected place are those of a batch."""
        start = batch.expected or 0
        end = start + len(batch.records)
        try:
            found = self._driver.checksum(LogRef(self._to), start, end)
        except DataLoss:
            return False
        return found == digest(batch.records)

    def _make_request(self, batch: _Sent) -> Any:
        return self._driver.make_append(
            self._to,
            batch.records,
            expected=batch.expected,
            compression=self._options.compression,
        )


@dataclass(slots=True, eq=False)
class _Sent:
    """A batch without an answer."""

    records: Records
    size: int
    expected: int | None
    pending: Pending | None = None
    # One before it has got other numbers than were expected.
    is_behind: bool = False


def _measure(records: Records) -> NDArray[np.int64]:
    """Give about how many bytes each record takes in a batch."""
    sizes = records.values.lengths + _ROW_BYTES
    if len(records.keyed):
        sizes[records.keyed] += records.keys.lengths
    return sizes


def digest(records: Records, crc: int = 0) -> int:
    """Compute a checksum of values and keys, record by record.

    A loop over rows: it is for the few records of a mark, and for a batch whose answer
    was lost.
    """
    keys = dict(zip(records.keyed.tolist(), _cut(records.keys), strict=True))
    for row, value in enumerate(_cut(records.values)):
        key = keys.get(row)
        head = f"{len(value)} {-1 if key is None else len(key)} "
        crc = crc32c(b"".join((head.encode(), value, key or b"")), crc)
    return crc


def _cut(spans: Spans) -> list[bytes]:
    data = spans.data.data
    bounds = zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
    return [bytes(data[start:end]) for start, end in bounds]


def _lose(at: Partition, asked: int, bounds: Bounds | None, reason: str) -> DataLoss:
    start, end = (None, None) if bounds is None else (bounds.start, bounds.end)
    return DataLoss(show(at), asked, start, end, reason, "records")


def _is_removed(loss: DataLoss, position: int) -> bool:
    """Tell whether retention has passed a position; a log that was cut says not so."""
    return loss.log_start is not None and loss.log_start > position


def _has_place(bounds: Bounds | None, position: int) -> bool:
    return bounds is not None and bounds.start <= position <= bounds.end


def _not_found(at: Partition) -> TopicNotFound:
    return TopicNotFound(f"there is no partition {show(at)}")


def show(at: Partition) -> str:
    """Name a partition in error texts."""
    return f"{at.topic}/{at.number}"
