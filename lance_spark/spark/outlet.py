"""The way out of a task: a writer for each topic that its rows go to.

    write -> wait -> pass to the topic's writer -> finish
               |       ^
               +-- enough for one topic, too much of all, the end

To encode a few rows costs as much as to encode thousands, so rows wait until there are
enough of their topic. A writer has a thread and a connection, so only some are open at
once: rows of other topics wait longer, and when too many wait, the topic with most of
them takes the place of the one that was used longest ago. What that one has written is
a stage of its own; later rows of its topic go into a further stage, behind it. Stages
are limited and cost time, so before that the pieces of each topic are put together:
most of the memory that small ones take is not rows.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.client import LanceClient, Producer, StageContent, StageWriter
from lance_spark.errors import (
    LanceError,
    PayloadTooLarge,
    RowError,
    StorageError,
    Timeout,
    Undelivered,
)
from lance_spark.spark.job import WriteJob, check_topics
from lance_spark.spark.routing import Routed, merge_rows

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

OPEN_MAX = 32
WAITING_BYTES_MAX = 32 * 1024 * 1024

# So much of a topic is worth encoding: Spark's batches are often a little larger than
# one of ours, and what is left over of each would travel alone.
_WORTH_BYTES = 4 * 1024 * 1024
# What a piece takes beside its rows, whatever these are: objects of Python and Arrow,
# and what is lost between them. Measured with one to five columns: 2.0 to 2.4 KB.
_PIECE_BYTES = 2560
# Nobody waits for a row of a task before its end, so batches may fill.
_LINGER_S = 0.25


_FEWER_STAGES = (
    "every task of a job has at least one for each topic that its rows go to: have "
    'fewer tasks per topic, by repartition("topic") or coalesce before the write, or '
    "raise stages_max of the broker"
)
# See `sink`, which does it.
_STAGES_LEFT = (
    "if there was room before: those that earlier attempts of the micro-batch have "
    "left are dropped now, so restart the query"
)


@dataclass(frozen=True, slots=True)
class TopicStage:
    """A stage that a task has written.

    Args:
        topic: where its rows go.
        content: which it is and what it holds, as the commit names it.
    """

    topic: str
    content: StageContent


@dataclass(slots=True)
class _Queue:
    """Rows of a topic that wait, and the memory that they take.

    The price of its first piece is not in that: it can't be saved, but by a stage for
    each few rows, of which there may be only some thousands.
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


class Outlet:
    """Takes the rows of one task, and has all of them acknowledged at `finish`.

    Leaving its `with` block without `finish` gives up what is not written yet.

    Args:
        job: says how to write.
        client: says how to reach the server; it stays open.
        open_max: how many writers may be open.
        waiting_bytes_max: how much memory rows that wait may take, beside a few KB for
            each topic that has some.
    """

    def __init__(
        self,
        job: WriteJob,
        client: LanceClient,
        *,
        open_max: int = OPEN_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        self._job = job
        self._client = client
        self._open_max = open_max
        self._waiting_bytes_max = waiting_bytes_max
        options = job.options
        # How much one writer holds: what is in flight and what is being filled.
        self._buffer_bytes = (options.max_in_flight + 1) * options.batch_bytes
        # The one that was used last is the last.
        self._open: OrderedDict[str, Producer | StageWriter] = OrderedDict()
        self._queues: dict[str, _Queue] = {}
        self._waiting_bytes = 0
        self._stages: list[TopicStage] = []
        # Topics that were there when we looked.
        self._known: set[str] = set()

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
        topic = routed.topic
        self._check_topic(topic)
        queue = self._queues.setdefault(topic, _Queue())
        size = queue.weigh(routed)
        queue.bytes += size
        self._waiting_bytes += size
        if queue.bytes >= _WORTH_BYTES and self._has_place(topic):
            queue.pieces.append(routed)
            self._release(topic)
            return
        queue.pieces.append(routed.detach())
        if self._waiting_bytes > self._waiting_bytes_max:
            self._make_room()

    def _has_place(self, topic: str) -> bool:
        return topic in self._open or len(self._open) < self._open_max

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
        for topic in self._rank_waiting():
            if self._waiting_bytes <= bytes_left:
                return
            self._release(topic)

    def _rank_waiting(self) -> list[str]:
        """List topics to write: where a writer is open first, then where most waits."""
        return sorted(
            self._queues,
            key=lambda topic: (topic in self._open, self._queues[topic].bytes),
            reverse=True,
        )

    def _release(self, topic: str) -> None:
        queue = self._queues.pop(topic)
        self._waiting_bytes -= queue.bytes
        if topic not in self._open:
            while len(self._open) >= self._open_max:
                self._finish_writer(next(iter(self._open)))
            self._open_writer(topic)
        self._open.move_to_end(topic)
        self._pass(self._open[topic], queue.pieces)

    def _pass(self, writer: Producer | StageWriter, pieces: Sequence[Routed]) -> None:
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
        pending = {topic: writer.pending_bytes for topic, writer in self._open.items()}
        # One topic that gets most of the rows must not be stopped by this: its own
        # limit does that, and lets it go on as soon as there is room.
        if sum(pending.values()) > 2 * self._buffer_bytes:
            with self._explaining():
                self._open[max(pending, key=pending.__getitem__)].flush()

    # Writers.

    def _open_writer(self, topic: str) -> None:
        options = self._job.options
        settings: dict[str, Any] = {
            "batch_bytes": options.batch_bytes,
            "linger_s": _LINGER_S,
            "max_in_flight": options.max_in_flight,
            "buffer_bytes": self._buffer_bytes,
            "compression": options.compression,
            "record_type": options.record_type,
            # Any of the servers may answer when a connection has to be made anew.
            "check": self._job.check_server,
        }
        self._job.check_server(self._client.connection())
        writer: Producer | StageWriter
        if self._job.is_staged:
            job = self._job.writer_id, self._job.sequence
            with self._explaining():
                writer = StageWriter(self._client, topic, *job, **settings)
        else:
            settings["create_topic"] = options.create_topic
            settings["allow_null_records"] = options.allow_null_records
            writer = Producer(self._client, topic, **settings)
        self._open[topic] = writer

    def _check_topic(self, topic: str) -> None:
        """Check each topic once, if it may not be created."""
        if self._job.options.create_topic or topic in self._known:
            return
        self._job.check_server(self._client.connection())
        self._known = check_topics(self._client, [topic])

    def _finish_writer(self, topic: str) -> None:
        writer = self._open[topic]
        with self._explaining():
            if isinstance(writer, StageWriter):
                self._stages.append(TopicStage(topic, writer.finish()))
            else:
                writer.close()
        del self._open[topic]

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Say in errors of writers what to change in terms of Spark."""
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
            raise StorageError(text) from error
        except Undelivered as error:
            if not isinstance(error.cause, PayloadTooLarge):
                raise
            remedy = f"lower batchBytes, which is {options.batch_bytes} bytes"
            cause = PayloadTooLarge(f"{error.cause.message}; {remedy}")
            numbers = error.topic, error.batches, error.records, error.size
            raise Undelivered(*numbers, cause) from error

    # The end.

    def finish(self) -> tuple[TopicStage, ...]:
        """Have everything acknowledged; give the stages, those of a topic in order.

        Raises:
            RowError: a row that waited can't be a record.
            Undelivered: not everything was acknowledged.
        """
        # All of them, also where nothing but nulls waits, which take no bytes.
        for topic in self._rank_waiting():
            self._release(topic)
        while self._open:
            self._finish_writer(next(iter(self._open)))
        return tuple(self._stages)

    def abandon(self) -> None:
        """Give up what is not written yet, and let go of everything."""
        self._queues.clear()
        while self._open:
            _, writer = self._open.popitem()
            try:
                writer.close(abandon=True)
            except LanceError as error:
                # The others have to be closed too, and there is an error already.
                logger.warning("%s can't be closed: %s", writer, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()


def _find_row(pieces: Sequence[Routed], index: int) -> int:
    """Tell the number that a row of several pieces came with."""
    before = 0
    while index >= pieces[before].rows.num_rows:
        index -= pieces[before].rows.num_rows
        before += 1
    return pieces[before].find_row(index)
