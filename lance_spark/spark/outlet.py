"""The way out of a task: a writer for each topic that its rows go to.

    write -> wait -> pass to the topic's writer -> finish
               |       ^
               +-- enough for one topic, too much of all, the end

To encode a few rows costs as much as to encode thousands, so rows wait until there are
enough of their topic. A writer has a thread and a connection, so only some are open at
once: rows of other topics wait longer, and when too many wait, the topic with most of
them takes the place of the one that was used longest ago. What that one has written is
a stage of its own; later rows of its topic go into a further stage, behind it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.client import LanceClient, Producer, StageContent, StageWriter
from lance_spark.errors import LanceError, RowError
from lance_spark.spark.job import WriteJob, check_topics
from lance_spark.spark.routing import Routed

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

OPEN_MAX = 32
WAITING_BYTES_MAX = 32 * 1024 * 1024

# So much of a topic is worth encoding: Spark's batches are often a little larger than
# one of ours, and what is left over of each would travel alone.
_WORTH_BYTES = 4 * 1024 * 1024
# Nobody waits for a row of a task before its end, so batches may fill.
_LINGER_S = 0.25


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
    """Rows of a topic that wait."""

    pieces: list[Routed] = field(default_factory=list)
    bytes: int = 0


class Outlet:
    """Takes the rows of one task, and has all of them acknowledged at `finish`.

    Leaving its `with` block without `finish` gives up what is not written yet.

    Args:
        job: says how to write.
        client: says how to reach the server; it stays open.
        open_max: how many writers may be open.
        waiting_bytes_max: how many bytes of rows may wait.
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
        self._worth_bytes = _WORTH_BYTES
        # How much one writer holds: what is in flight and what is being filled.
        self._buffer_bytes = (options.max_in_flight + 1) * options.batch_bytes
        # The one that was used last is the last.
        self._open: OrderedDict[str, Producer | StageWriter] = OrderedDict()
        self._queues: dict[str, _Queue] = {}
        self._waiting_bytes = 0
        self._stages: list[TopicStage] = []
        # Topics that were there when we looked.
        self._known: set[str] = set()
        self._is_checked = False

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
        topic, size = routed.topic, routed.rows.nbytes
        self._check_topic(topic)
        queue = self._queues.setdefault(topic, _Queue())
        queue.bytes += size
        self._waiting_bytes += size
        if queue.bytes >= self._worth_bytes and self._has_place(topic):
            queue.pieces.append(routed)
            self._release(topic)
            return
        queue.pieces.append(routed.detach())
        if self._waiting_bytes > self._waiting_bytes_max:
            # Down to half, so that this is not done for every few rows.
            self._release_down_to(self._waiting_bytes_max // 2)

    def _has_place(self, topic: str) -> bool:
        return topic in self._open or len(self._open) < self._open_max

    def _release_down_to(self, bytes_left: int) -> None:
        """Write rows that wait: where a writer is open first, then where most do."""
        order = sorted(
            self._queues,
            key=lambda topic: (topic in self._open, self._queues[topic].bytes),
            reverse=True,
        )
        for topic in order:
            if self._waiting_bytes <= bytes_left:
                return
            self._release(topic)

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
        try:
            writer.write(pa.Table.from_batches([piece.rows for piece in pieces]))
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
        }
        writer: Producer | StageWriter
        if self._job.is_staged:
            job = self._job.writer_id, self._job.sequence
            writer = StageWriter(self._client, topic, *job, **settings)
        else:
            settings["create_topic"] = options.create_topic
            writer = Producer(self._client, topic, **settings)
        self._open[topic] = writer

    def _check_topic(self, topic: str) -> None:
        """Check the server before anything else, and each topic once."""
        if not self._is_checked:
            self._job.check_server(self._client)
            self._is_checked = True
        if self._job.options.create_topic or topic in self._known:
            return
        self._known = check_topics(self._client, [topic])

    def _finish_writer(self, topic: str) -> None:
        writer = self._open[topic]
        if isinstance(writer, StageWriter):
            self._stages.append(TopicStage(topic, writer.finish()))
        else:
            writer.close()
        del self._open[topic]

    # The end.

    def finish(self) -> tuple[TopicStage, ...]:
        """Have everything acknowledged; give the stages, those of a topic in order.

        Raises:
            RowError: a row that waited can't be a record.
            Undelivered: not everything was acknowledged.
        """
        self._release_down_to(0)
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
