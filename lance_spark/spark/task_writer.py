"""The writer of a task: its rows by topic, and an open writer for some of the topics.

    write -> wait -> pass to the topic's writer -> finish
               |       ^
               +-- enough for one topic, too much of all, the end

To encode a few rows costs as much as to encode thousands, so rows wait until there are
enough of their topic. Each topic's writer has a thread and a connection, so only some
are open at once. Rows of other topics wait longer; when too many wait, the topic with
most of them takes the place of the writer that was used longest ago. What that writer
has written is a stage of its own, and later rows of its topic go into a further stage,
behind it. Stages are limited and cost time. Before more are opened, the waiting pieces
of each topic are merged, because most of the memory of small pieces is not rows.

Rows keep their order within a topic and the number that they had in the task, so that
an error names the user's row. No row becomes a Python object.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.client.driver import (
    Driver,
    RecordWriter,
    Staged,
    WriterSettings,
)
from lance_spark.columnar import IGNORED_COLUMNS, hash_keys, make_integers
from lance_spark.errors import (
    LanceError,
    OptionError,
    PayloadTooLarge,
    RowError,
    StorageError,
    Timeout,
    Undelivered,
)
from lance_spark.model import Partition, find_name_fault
from lance_spark.spark.job import WriteJob, check_topics
from lance_spark.spark.options import WriteOptions
from lance_spark.spark.schema import ALL_CARRIED, Carried

logger = logging.getLogger(__name__)

OPEN_MAX = 32
WAITING_BYTES_MAX = 32 * 1024 * 1024

# So much of a topic is worth encoding. Spark's batches are often a little larger than
# one batch of the protocol, and the rest of each would travel alone.
_WORTH_BYTES = 4 * 1024 * 1024
# What a piece takes beside its rows, whatever these are: objects of Python and Arrow,
# and what is lost between them. Measured with one to five columns: 2.0 to 2.4 KB.
_PIECE_BYTES = 2560
# No reader waits for a row of a task before its end, so batches may fill.
_LINGER_S = 0.25
# Numbers of partitions are below this.
_PARTITIONS_END = 2**31
_NO_CODES = np.empty(0, np.int32)
# What the user decides about a writer: the fields of both kinds of settings.
_SETTINGS = {each.name for each in fields(WriterSettings)} & {
    each.name for each in fields(WriteOptions)
}


_FEWER_STAGES = (
    "every task of a job has at least one for each topic that its rows go to: have "
    'fewer tasks per topic, by repartition("topic") or coalesce before the write, or '
    "raise stages_max of the broker"
)
# `sink` drops them.
_STAGES_LEFT = (
    "if there was room before, restart the query: the stages that earlier attempts of "
    "the micro-batch have left are dropped now"
)


@dataclass(frozen=True, slots=True)
class TopicStage:
    """A stage that a task has written.

    Args:
        topic: where its rows go.
        content: which it is and what it holds, as the commit names it.
    """

    topic: str
    content: Staged


@dataclass(slots=True)
class _Waiting:
    """Rows of a topic that wait, and the memory that they take.

    The overhead of the first piece is left out. Only a stage for each few rows could
    save it, and there may be only some thousands of stages.
    """

    pieces: list[Routed] = field(default_factory=list)
    bytes: int = 0

    def weigh(self, piece: Routed) -> int:
        """Tell how much memory one more piece would take."""
        return piece.nbytes + (_PIECE_BYTES if self.pieces else 0)

    def merge(self) -> int:
        """Make one piece of all; tell how much memory is saved."""
        before = self.bytes
        self.pieces = [merge_rows(self.pieces)]
        self.bytes = self.pieces[0].nbytes
        return before - self.bytes


class TaskWriter:
    """Takes the rows of one task, and has all of them acknowledged at `finish`.

    Its user has to `close` it, which gives up what is not written yet.

    Args:
        job: says how to write.
        driver: talks to the server; it stays open.
        open_max: how many writers may be open.
        waiting_bytes_max: how much memory rows that wait may take, beside a few KB for
            each topic that has some.
    """

    def __init__(
        self,
        job: WriteJob,
        driver: Driver,
        *,
        open_max: int = OPEN_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        self._job = job
        self._driver = driver
        self._open_max = open_max
        self._waiting_bytes_max = waiting_bytes_max
        options = job.options
        # How much one writer holds: what is in flight and what is being filled.
        self._buffer_bytes = (options.max_in_flight + 1) * options.batch_bytes
        # The one that was used last is the last.
        self._open: OrderedDict[Partition, RecordWriter] = OrderedDict()
        self._queues: dict[Partition, _Waiting] = {}
        self._waiting_bytes = 0
        self._stages: list[TopicStage] = []
        # Topics that were there when we looked.
        self._known: set[str] = set()
        # How many partitions topics have, or will have when they are created.
        self._counts: dict[str, int] = {}

    # Rows in.

    def write(self, routed: Routed) -> None:
        """Take rows; they are acknowledged when `finish` says so.

        Raises:
            RowError: a row can't be a record, with the number that it came with.
            OptionError: the columns can't be used.
            TopicNotFound: there is no such topic, and none may be created.
            Undelivered, Timeout: the server does not take the rows.
            LanceError: the server is of another kind than the job was made for.
        """
        to = routed.to
        self._check_topic(to.topic)
        queue = self._queues.setdefault(to, _Waiting())
        size = queue.weigh(routed)
        queue.bytes += size
        self._waiting_bytes += size
        has_place = to in self._open or len(self._open) < self._open_max
        if queue.bytes >= _WORTH_BYTES and has_place:
            queue.pieces.append(routed)
            self._release(to)
            return
        queue.pieces.append(routed.detach())
        if self._waiting_bytes > self._waiting_bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        """Put pieces together, and write rows if that is not enough."""
        for queue in self._queues.values():
            if len(queue.pieces) > 1 and queue.bytes < _WORTH_BYTES:
                self._waiting_bytes -= queue.merge()
        # The more waits, the fewer stages it takes. But some room has to be made, so
        # that this is not done for every few rows.
        eighth = self._waiting_bytes_max // 8
        if self._waiting_bytes > 7 * eighth:
            self._release_down_to(4 * eighth)

    def _release_down_to(self, bytes_left: int) -> None:
        """Write until no more waits: where a writer is open first, then where most is.

        A limit below 0 writes all, also where nothing but nulls waits, which take no
        bytes.
        """
        ranked = sorted(
            self._queues,
            key=lambda to: (to in self._open, self._queues[to].bytes),
            reverse=True,
        )
        for to in ranked:
            if self._waiting_bytes <= bytes_left:
                return
            self._release(to)

    def _release(self, to: Partition) -> None:
        queue = self._queues.pop(to)
        self._waiting_bytes -= queue.bytes
        if to not in self._open:
            while len(self._open) >= self._open_max:
                self._finish_writer(next(iter(self._open)))
            self._open_writer(to)
        self._open.move_to_end(to)
        self._pass(self._open[to], queue.pieces)

    def _pass(self, writer: RecordWriter, pieces: Sequence[Routed]) -> None:
        table = pa.Table.from_batches([piece.rows for piece in pieces])
        try:
            with self._explaining():
                writer.write(table)
        except RowError as error:
            row = _find_row(pieces, error.row)
            raise RowError(error.reason, row) from None
        self._limit_pending()

    def _limit_pending(self) -> None:
        """Keep all writers together from holding what each of them may hold."""
        pending = {to: writer.pending_bytes for to, writer in self._open.items()}
        # One topic that gets most of the rows must not be stopped by this: its own
        # limit does that, and lets it go on as soon as there is room.
        if sum(pending.values()) > 2 * self._buffer_bytes:
            with self._explaining():
                self._open[max(pending, key=pending.__getitem__)].flush()

    # Writers.

    def _open_writer(self, to: Partition) -> None:
        job, options = self._job, self._job.options
        settings = WriterSettings(
            linger_s=_LINGER_S,
            buffer_bytes=self._buffer_bytes,
            **{name: getattr(options, name) for name in _SETTINGS},
        )
        open_writer = partial(
            self._driver.open_writer, to, create_topic=options.create_topic
        )
        if job.is_staged:
            stages = job.find_stages(self._driver)
            open_writer = partial(
                stages.open_writer, to.topic, job.writer_id, job.sequence
            )
        job.check_server(self._driver.server)
        with self._explaining():
            self._open[to] = open_writer(options=settings, check=job.check_server)

    def _check_topic(self, topic: str) -> None:
        """Check each topic once, if it may not be created."""
        if self._job.options.create_topic or topic in self._known:
            return
        self._job.check_server(self._driver.server)
        self._known = check_topics(self._driver, [topic])

    def count_partitions(self, topic: str) -> int:
        """Tell how many partitions a topic has, or gets when it is created.

        Raises:
            TopicNotFound: there is no such topic, and none may be created.
        """
        if topic not in self._counts:
            self._check_topic(topic)
            there = {e.name: len(e.partitions) for e in self._driver.topics()}
            self._counts = {topic: self._job.options.partitions, **there}
        return self._counts[topic]

    def _finish_writer(self, to: Partition) -> None:
        with self._explaining():
            content = self._open[to].finish()
        if content is not None:
            self._stages.append(TopicStage(to.topic, content))
        del self._open[to]

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Add to errors of writers which option of Spark to change."""
        options = self._job.options
        try:
            yield
        except Timeout as error:
            patience_s = options.client.retry_timeout_s
            raise Timeout(
                f"the server does not take the rows in time (retryTimeout, "
                f"{patience_s:g} s): look whether it is up and what it waits for, or "
                f"raise retryTimeout: {error}"
            ) from error
        except StorageError as error:
            if "stages_max" not in error.message:
                raise
            text = f"{error.message}; {_FEWER_STAGES}"
            if self._job.is_stream:
                text = f"{text}; {_STAGES_LEFT}"
            raise StorageError(text, error.code) from error
        except Undelivered as error:
            if not isinstance(error.cause, PayloadTooLarge):
                raise
            remedy = f"lower batchBytes, which is {options.batch_bytes} bytes"
            text = f"{error.cause.message}; {remedy}"
            cause = PayloadTooLarge(text, error.cause.code)
            numbers = error.topic, error.batches, error.records, error.size
            raise Undelivered(*numbers, cause) from error

    # The end.

    def finish(self) -> tuple[TopicStage, ...]:
        """Have everything acknowledged; give the stages, those of a topic in order.

        Raises:
            RowError: a row that waited can't be a record.
            Undelivered: not everything was acknowledged.
        """
        self._release_down_to(-1)
        while self._open:
            self._finish_writer(next(iter(self._open)))
        return tuple(self._stages)

    def close(self) -> None:
        """Give up what is not written yet, and close everything."""
        self._queues.clear()
        while self._open:
            _, writer = self._open.popitem()
            try:
                writer.close(abandon=True)
            except LanceError as error:
                # The others have to be closed, too, and there is an error already.
                logger.warning("%s can't be closed: %s", writer, error)


def _find_row(pieces: Sequence[Routed], index: int) -> int:
    """Tell the number that a row of several pieces came with."""
    before = 0
    while index >= pieces[before].rows.num_rows:
        index -= pieces[before].rows.num_rows
        before += 1
    return pieces[before].find_row(index)


# Which rows go to which topic: batches in, batches out.


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows of one partition.

    Args:
        to: the partition; 0 where topics have one.
        rows: the columns of the rows.
        first_row: the number of the first row of the batch that they are from.
        origin: where in that batch each of them was; None if all of it is here.
        is_shared: the rows are in the memory of a batch with other topics' rows.
    """

    to: Partition
    rows: pa.RecordBatch
    first_row: int = 0
    origin: NDArray[np.uint32] | NDArray[np.int64] | None = None
    is_shared: bool = False

    @property
    def nbytes(self) -> int:
        """How many bytes of columns there are, and of what tells where they were."""
        size: int = self.rows.nbytes
        return size if self.origin is None else size + self.origin.nbytes

    def find_row(self, index: int) -> int:
        """Tell the number that one of the rows had in the task."""
        if self.origin is not None:
            index = int(self.origin[index])
        return self.first_row + index

    def detach(self) -> Routed:
        """Copy rows that are in shared memory, so that it can go."""
        if not self.is_shared:
            return self
        every = np.arange(self.rows.num_rows, dtype=np.int64)
        rows = self.rows.take(make_integers(every, pa.int64()))
        return replace(self, rows=rows, is_shared=False)


def merge_rows(pieces: Sequence[Routed]) -> Routed:
    """Make one piece of several of a topic, in memory of its own."""
    rows = pa.concat_batches([piece.rows for piece in pieces])
    origin = np.concatenate([_number_rows(piece) for piece in pieces])
    return Routed(pieces[0].to, rows, origin=origin)


def _number_rows(piece: Routed) -> NDArray[np.int64]:
    rows = np.arange(piece.rows.num_rows) if piece.origin is None else piece.origin
    return piece.first_row + rows.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which partition of its topic a row goes to.

    Args:
        count: tells how many partitions a topic has.
        task: the number of the task, for rows that neither a column `partition` nor a
            key places.
        number: the partition of all rows, whatever else they say; None to go by that.
    """

    count: Callable[[str], int]
    task: int = 0
    number: int | None = None


def route_rows(
    batch: pa.RecordBatch,
    topic: str | None,
    *,
    first_row: int = 0,
    carried: Carried = ALL_CARRIED,
    placement: Placement | None = None,
) -> Iterator[Routed]:
    """Split a batch by partition, in the order in which these turn up in it.

    Args:
        batch: the rows; names of columns in any case.
        topic: where all of them go, whatever their column says; None to go by that.
        first_row: the number of the batch's first row, for errors.
        carried: what the protocol can't carry.
        placement: where in its topic a row goes; None if topics have one partition.

    Raises:
        RowError: a row has no topic, one that no server can have, a partition that is
            not there, or something that the protocol can't carry.
        OptionError: there is no topic column, or none of text.
    """
    if not batch.num_rows:
        return
    lowered = [name.lower() for name in batch.schema.names]
    if lowered != batch.schema.names:
        batch = batch.rename_columns(lowered)
    _check_carried(batch, first_row, carried)
    targets, codes = [Partition(topic or "")], _NO_CODES
    ignored = carried.ignored
    if topic is None or placement is not None:
        targets, codes = _read_targets(batch, topic, first_row, placement)
        # A record is not made of the others, so they need not be copied.
        ignored = ignored | {*IGNORED_COLUMNS}
    if not ignored.isdisjoint(lowered):
        batch = batch.select([name for name in lowered if name not in ignored])
    if len(targets) == 1:
        yield Routed(targets[0], batch, first_row)
        return
    # Codes are given as topics turn up: rows that lie together by topic ascend.
    is_together = not (codes[1:] < codes[:-1]).any()
    # Of 16 bits, as only those are sorted by counting.
    short = codes.astype(np.uint16) if len(targets) <= 2**16 else codes
    order = np.argsort(short, kind="stable").astype(np.uint32)
    start = 0
    for to, count in zip(targets, np.bincount(codes).tolist(), strict=True):
        # A copy: a piece that waits would keep the whole array alive.
        origin = order[start : start + count].copy()
        if is_together:
            rows = batch.slice(start, count)
        else:
            rows = batch.take(make_integers(origin, pa.uint32()))
        yield Routed(to, rows, first_row, origin, is_shared=is_together)
        start += count


def _check_carried(batch: pa.RecordBatch, first_row: int, carried: Carried) -> None:
    """Check that rows have nothing that their records could not hold."""
    for name in batch.schema.names:
        column = batch.column(name)
        if name in carried.refused and column.null_count < len(column):
            raise RowError(
                f"its {name} is not null, and this format can't carry it: drop the "
                f"column {name}, or set it to null",
                first_row + column.is_valid().index(True).as_py(),
            )
    if carried.needs_value and batch.column("value").null_count:
        raise RowError(
            "its value is null, which can't be written to this format: filter it out",
            first_row + batch.column("value").is_null().index(True).as_py(),
        )


def _read_targets(
    batch: pa.RecordBatch,
    topic: str | None,
    first_row: int,
    placement: Placement | None,
) -> tuple[list[Partition], NDArray[np.int32]]:
    """Give the partitions in the order in which they turn up, and each row's."""
    names, codes = [topic or ""], np.zeros(batch.num_rows, np.int32)
    if topic is None:
        names, codes = _read_topics(batch, first_row)
    if placement is None:
        return [Partition(name) for name in names], codes
    counts = np.array([placement.count(name) for name in names])[codes]
    numbers = _place(batch, counts, placement)
    wrong = (numbers < 0) | (numbers >= counts)
    if wrong.any():
        row = int(wrong.argmax())
        name, count = names[codes[row]], counts[row]
        reason = (
            f"topic {name!r} has no partition {numbers[row]}, only 0 to {count - 1}: "
            "correct the column or option partition, or drop it; a topic gets as many "
            "partitions as option partitions says when it is created"
        )
        raise RowError(reason, first_row + row)
    pairs = codes.astype(np.int64) * _PARTITIONS_END + numbers
    if (pairs == pairs[0]).all():
        return [Partition(names[0], int(numbers[0]))], codes
    encoded = make_integers(pairs, pa.int64()).dictionary_encode()
    targets = [divmod(pair, _PARTITIONS_END) for pair in encoded.dictionary.to_pylist()]
    indices: NDArray[np.int32] = encoded.indices.to_numpy()
    return [Partition(names[code], number) for code, number in targets], indices


def _place(
    batch: pa.RecordBatch, counts: NDArray[np.int64], placement: Placement
) -> NDArray[np.int64]:
    """Give each row's partition: its own, else by its key, else by the task."""
    if placement.number is not None:
        return np.full(len(counts), placement.number)
    numbers = placement.task % counts
    if "key" in batch.schema.names and counts.max() > 1:
        keyed, sums = hash_keys(batch)
        numbers[keyed] = sums % counts[keyed]
    if "partition" in batch.schema.names:
        given = batch.column("partition").cast(pa.int64())
        own = given.is_valid().to_numpy(zero_copy_only=False)
        numbers[own] = given.drop_null().to_numpy()
    return numbers


def _read_topics(
    batch: pa.RecordBatch, first_row: int
) -> tuple[list[str], NDArray[np.int32]]:
    """Give the topics in the order in which they turn up, and each row's among them."""
    if "topic" not in batch.schema.names:
        raise OptionError(
            "rows without a topic: set option topic, or add a column topic"
        )
    column = batch.column("topic")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        raise OptionError(f"column topic must be string, not {column.type}: cast it")
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise RowError(
            "no topic: give it one, filter such rows out, or set option topic, which "
            "is for all rows",
            first_row + row,
        )
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy()
    names = _decode_names(encoded.dictionary)
    for code, name in enumerate(names):
        fault = find_name_fault(name)
        if fault is not None:
            row = first_row + int(np.argmax(codes == code))
            raise RowError(f"its topic {name!r:.100} {fault}", row)
    return names, codes


def _decode_names(names: pa.Array) -> list[str]:
    try:
        found: list[str] = names.to_pylist()
    except UnicodeDecodeError:
        # Spark does not check a text that was made of bytes. Wrong bytes become
        # surrogates, which are refused like others.
        raw = names.cast(pa.large_binary()).to_pylist()
        found = [name.decode(errors="surrogateescape") for name in raw]
    return found


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view(), pa.null())
