"""The consumer: one topic, read in order, by one thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.cursor import (
    ConsumerRecord,
    Cursor,
    CursorOptions,
    PollResult,
    SeekPosition,
    as_position,
    make_empty_result,
)
from lance_spark.client.lwp.offsets import (
    BrokerOffsetStore,
    Incarnation,
    IncarnationStore,
    OffsetStore,
)
from lance_spark.client.lwp.reader import FETCH_BYTES_DEFAULT
from lance_spark.columnar.decode import DEFAULT_COLUMNS
from lance_spark.errors import DataLoss, LanceError, OptionError, TopicNotFound

if TYPE_CHECKING:
    import pyarrow as pa


logger = logging.getLogger(__name__)

AUTO_COMMIT_INTERVAL_S = 5.0


class CommitClock:
    """Says when an automatic commit is due.

    Args:
        interval_s: time between two; None for never.
        clock: a monotonic clock.
    """

    def __init__(self, interval_s: float | None, clock: Callable[[], float]) -> None:
        if interval_s is not None and interval_s < 0:
            raise OptionError(f"auto_commit_interval_s {interval_s} is negative")
        self._interval_s = interval_s
        self._clock = clock
        self._last_s = clock()

    @property
    def is_on(self) -> bool:
        """Whether commits are made at all."""
        return self._interval_s is not None

    def take_due(self) -> bool:
        """Tell whether a commit is due, and if so, wait for the next one."""
        if self._interval_s is None:
            return False
        now_s = self._clock()
        if now_s - self._last_s < self._interval_s:
            return False
        self._last_s = now_s
        return True


class Consumer:
    """Reads a topic from an offset on, and remembers how far it came if it has a name.

    It has a connection of its own; one thread may use it. Records that were handed out
    count as done when the next ones are asked for: that is what is committed.

    Args:
        client: says how to reach the server; it stays open.
        topic: name, or id.
        name: under which offsets are remembered; None remembers nothing.
        start: where to begin if no offset is remembered; `offset_reset` decides if it
            is not given.
        offset_store: where offsets are remembered, the broker if not given. It stays
            open.
        offset_reset: `earliest`, `latest` or `error`: where to begin if nothing else
            says so, and where to go on if the next records are gone.
        auto_commit: commit while polling, and at `close`.
        auto_commit_interval_s: how often.
        max_poll_records: how many records one poll gives at most.
        fetch_bytes: how much to ask the server for at once.
        fail_on_data_loss: raise if the next records are gone, or warn and go on.
        clock: a monotonic clock.

    Raises:
        TopicNotFound: there is no such topic.
        OptionError: an option can't be used, or an offset is inside a record.
    """

    def __init__(
        self,
        client: LanceClient,
        topic: int | str,
        *,
        name: str | None = None,
        start: SeekPosition | int | None = None,
        offset_store: OffsetStore | None = None,
        offset_reset: str = "earliest",
        auto_commit: bool = False,
        auto_commit_interval_s: float = AUTO_COMMIT_INTERVAL_S,
        max_poll_records: int | None = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        fail_on_data_loss: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        options = CursorOptions(
            offset_reset=offset_reset,
            fail_on_data_loss=fail_on_data_loss,
            max_poll_records=max_poll_records,
            fetch_bytes=fetch_bytes,
        )
        if name is None and (offset_store is not None or auto_commit):
            raise OptionError(
                "offset_store and auto_commit need a name to remember offsets under"
            )
        if start is not None:
            start = as_position(start)
        self.topic = topic
        self.name = name
        self._commits = CommitClock(
            auto_commit_interval_s if auto_commit else None, clock
        )
        self._is_closed = False
        # What an iteration over records gives and where it is; None if there is none.
        # An iteration that finds something else here has ended: there was a seek or
        # another poll.
        self._walked: tuple[PollResult, int] | None = None
        self._client = client.dedicated()
        try:
            self._store = offset_store
            if name is not None and offset_store is None:
                self._store = BrokerOffsetStore(self._client)
            topic_id = self._client.topic_id(topic)
            self._committed: int | None = None
            # Which topic the committed offset belongs to, as far as that is known.
            self._committed_of: Incarnation | None = None
            loss = None
            if self._store is not None and name is not None:
                self._committed = self._store.load(name, topic)
                self._committed_of = self._load_incarnation(name)
                self._incarnation = self._identify(topic_id)
                loss = self._find_loss()
            if self._committed is not None:
                start = SeekPosition.offset(self._committed)
            self._cursor = Cursor(
                self._client, topic, start, options, topic_id=topic_id, loss=loss
            )
        except BaseException:
            self._client.close()
            raise

    @classmethod
    def from_beginning(cls, client: LanceClient, topic: int | str) -> Consumer:
        """Make a consumer that reads everything that is there and comes."""
        return cls(client, topic, start=SeekPosition.BEGINNING)

    @classmethod
    def from_end(cls, client: LanceClient, topic: int | str) -> Consumer:
        """Make a consumer that reads what comes from now on."""
        return cls(client, topic, start=SeekPosition.END)

    @classmethod
    def from_offset(
        cls, client: LanceClient, topic: int | str, offset: int
    ) -> Consumer:
        """Make a consumer that reads from the record at an offset on."""
        return cls(client, topic, start=SeekPosition.offset(offset))

    # Where it is.

    @property
    def current_offset(self) -> int:
        """Offset of the next record to hand out."""
        return self._cursor.position if self._walked is None else self._walked[1]

    position = current_offset

    def lag(self) -> int:
        """Ask how many bytes are between here and the log's end."""
        return self._cursor.lag()

    def seek(self, position: SeekPosition | int) -> int:
        """Go to another place, and return its offset.

        Raises:
            Unsupported: it is a time, and the server has no index of times.
            OptionError: it is inside a record, and the server can tell.
        """
        offset = self._cursor.seek(position)
        self._walked = None
        return offset

    def rewind(self) -> int:
        """Go to where the log starts."""
        return self.seek(SeekPosition.BEGINNING)

    def seek_to_end(self) -> int:
        """Go to where the log ends now."""
        return self.seek(SeekPosition.END)

    def seek_to_offset(self, offset: int) -> int:
        """Go to the record at an offset."""
        return self.seek(SeekPosition.offset(offset))

    def seek_to_time(self, time_ns: int) -> int:
        """Go to the first record appended at or after a time in ns since 1970."""
        return self.seek(SeekPosition.time_ns(time_ns))

    # Reading.

    def poll(self) -> PollResult | None:
        """Return the next records; None if there are none now.

        A server that can't be reached is waited for, up to the client's
        `retry_timeout_s`, here and wherever something is read.

        Raises:
            DataLoss: they are not in the log any more.
            RecordError: the bytes there are not a record.
        """
        return self._poll(0.0)

    def poll_blocking(self, timeout_s: float = 1.0) -> PollResult:
        """Return the next records, waiting for some; an empty result if none came.

        Args:
            timeout_s: how long to wait for records. A server that can't be reached is
                waited for on top of it, up to the client's `retry_timeout_s`.
        """
        result = self._poll(timeout_s)
        return result or make_empty_result(self.topic, self.current_offset)

    def records(self, *, follow_s: float = 0.0) -> Iterator[ConsumerRecord]:
        """Give the records one by one, until there are none for so many seconds.

        An iteration that is left early has consumed what it gave, and nothing more.
        """
        while (result := self._poll(follow_s)) is not None:
            yield from self._walk(result)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self.records()

    def batches(
        self, columns: Sequence[str] = DEFAULT_COLUMNS, *, follow_s: float = 0.0
    ) -> Iterator[pa.RecordBatch]:
        """Give the records as Arrow columns, until there are none for so long."""
        while (result := self._poll(follow_s)) is not None:
            yield result.to_arrow(columns)

    def _poll(self, wait_s: float) -> PollResult | None:
        if self._is_closed:
            raise LanceError(f"topic {self.topic!r}: the consumer is closed")
        if self._walked is not None:
            # A poll in the middle of an iteration: what that has not given yet comes
            # next, and it will poll for the rest when it goes on.
            self._cursor.go_back(*self._walked)
            self._walked = None
        if self._commits.take_due():
            self._commit_quietly()
        return self._cursor.poll(wait_s)

    def _walk(self, result: PollResult) -> Iterator[ConsumerRecord]:
        """Give the records of a result; what is not given is read again."""
        walked = self._walked = result, result.start_offset
        try:
            for record in result.records():
                walked = self._walked = result, record.next_offset
                yield record
                if self._walked is not walked:
                    return
        finally:
            if self._walked is walked:
                self._walked = None
                if walked[1] != result.current_offset:
                    self._cursor.go_back(*walked)

    # Commits.

    def commit(self) -> int:
        """Remember the current offset, and return it.

        Raises:
            OptionError: the consumer has no name to remember it under.
            LanceError: the store could not.
        """
        if self._store is None or self.name is None:
            raise OptionError(
                f"topic {self.topic!r}: a consumer without a name can't commit"
            )
        offset = self.current_offset
        if self._cursor.is_lost:
            # The number is of another topic, and where to go on is not decided yet.
            return offset
        if self._incarnation.topic_id != self._cursor.topic_id:
            # The cursor has passed over the loss of the topic it began with.
            self._incarnation = self._identify(self._cursor.topic_id)
        if offset != self._committed or self._is_of_another:
            if isinstance(self._store, IncarnationStore):
                self._store.identify(self.name, self.topic, self._incarnation)
            self._store.save(self.name, self.topic, offset)
            self._committed, self._committed_of = offset, self._incarnation
        return offset

    @property
    def committed_offset(self) -> int | None:
        """The offset that is remembered, None if none is."""
        return self._committed

    def close(self) -> None:
        """Commit if that is automatic, and give everything back; may be repeated."""
        self._close(commit=self._commits.is_on)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # What was handed out last is not done if doing it failed.
        self._close(commit=self._commits.is_on and error is None)

    def _identify(self, topic_id: int) -> Incarnation:
        try:
            return Incarnation(topic_id, self._client.topic(topic_id).created_at_s)
        except TopicNotFound:
            # Servers in the field do not describe topic 0; a read meets other causes.
            return Incarnation(topic_id, 0)

    def _load_incarnation(self, name: str) -> Incarnation | None:
        if isinstance(self._store, IncarnationStore):
            return self._store.load_incarnation(name, self.topic)
        return None

    @property
    def _is_of_another(self) -> bool:
        """Whether the committed offset is known to be one of another topic."""
        known = self._committed_of
        return known is not None and known != self._incarnation

    def _find_loss(self) -> DataLoss | None:
        committed = self._committed
        if committed is None or not self._is_of_another:
            return None
        reason = "the topic was created anew since the offset was saved"
        return DataLoss(self.topic, committed, None, None, reason)

    def _commit_quietly(self) -> None:
        try:
            self.commit()
        except LanceError as error:
            # The next one may do better; until then more is read twice after a crash.
            logger.warning("topic %r: could not commit: %s", self.topic, error)

    def _close(self, *, commit: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if commit:
                self.commit()
        finally:
            self._cursor.close()
            self._client.close()

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        return f"<Consumer{name} of {self.topic!r} at {self.current_offset}>"
