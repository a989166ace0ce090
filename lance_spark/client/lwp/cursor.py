"""A place in a topic that moves as records are handed out, and what it is made of.

`SeekPosition` says where to read from, `PollResult` holds the records of one poll, as
columns or one by one. Consumers have one `Cursor`, groups one per topic. It decides
what happens when the records that are next are gone, and nothing about threads, commits
or who owns the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.offsets import check_u64
from lance_spark.client.lwp.reader import (
    FETCH_BYTES_DEFAULT,
    Chunk,
    RecordReader,
    join_last,
)
from lance_spark.columnar.decode import DEFAULT_COLUMNS, decode
from lance_spark.errors import DataLoss, OptionError, RecordError
from lance_spark.quantity import check_choice, check_number
from lance_spark.value import dataclass
from lance_spark.wire.lwp import Capability, RecordType, decode_record

if TYPE_CHECKING:
    import pyarrow as pa


logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NS_PER_US = 1000
# A log that loses its start faster than it can be read is not read at all.
_LOSSES_MAX = 10


class SeekKind(Enum):
    """What the value of a position means; `BEGINNING` and `END` need none."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class SeekPosition:
    """A place in a topic: `BEGINNING`, `END`, or made by `offset` or `time_ns`."""

    BEGINNING: ClassVar[SeekPosition]
    END: ClassVar[SeekPosition]

    kind: SeekKind
    value: int = 0

    @classmethod
    def offset(cls, offset: int) -> SeekPosition:
        """Make the position of a byte offset, which must be that of a record.

        Raises:
            OptionError: if no log has such an offset.
        """
        check_u64(offset)
        return cls(SeekKind.OFFSET, offset)

    @classmethod
    def time_ns(cls, time_ns: int) -> SeekPosition:
        """Make the position of the first record appended at or after a time.

        Args:
            time_ns: nanoseconds since 1970 on the broker's clock.

        Raises:
            OptionError: if the time is before 1970 or beyond what LWP can say.
        """
        check_u64(time_ns, "a time in ns")
        return cls(SeekKind.TIME, time_ns)

    @classmethod
    def time(cls, when: datetime) -> SeekPosition:
        """Make the same from a `datetime`, which must have a time zone.

        Raises:
            OptionError: if it has none, or is before 1970.
        """
        if not isinstance(when, datetime):
            raise OptionError(
                f"time {when!r} is not a datetime: give one with a time zone"
            )
        if when.tzinfo is None:
            raise OptionError(
                f"time {when} has no time zone: "
                "say which with replace(tzinfo=timezone.utc) or astimezone()"
            )
        return cls.time_ns((when - _EPOCH) // timedelta(microseconds=1) * _NS_PER_US)

    def __str__(self) -> str:
        if self.kind in (SeekKind.BEGINNING, SeekKind.END):
            return str(self.kind.value)
        return f"{self.kind.value} {self.value}"


SeekPosition.BEGINNING = SeekPosition(SeekKind.BEGINNING)
SeekPosition.END = SeekPosition(SeekKind.END)


def as_position(place: SeekPosition | int) -> SeekPosition:
    """Take a position, or a number as that of a byte offset.

    Raises:
        OptionError: it is neither.
    """
    if isinstance(place, SeekPosition):
        return place
    if isinstance(place, int):
        return SeekPosition.offset(place)
    raise OptionError(
        f"{place!r} is not a position: give an offset, or one of "
        "SeekPosition.BEGINNING, END, offset(…), time(…)"
    )


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record as people read it.

    Args:
        offset: where it starts in its topic.
        type: its TLV type.
        key: None if its type has none.
        value: None for a Null record.
        timestamp_ns: None if its type has none.
        next_offset: where the next one starts, which is what to commit once this one
            is done.
    """

    offset: int
    type: int
    key: bytes | None
    value: bytes | None
    timestamp_ns: int | None
    next_offset: int


@dataclass(frozen=True, slots=True)
class PollResult:
    """The records of one poll.

    Args:
        topic: where they are from: the name or id that the consumer was given.
        data: their bytes, a view that stays valid for as long as it is kept.
        start_offset: offset of the first.
        current_offset: offset behind the last, where the consumer is now.
        record_count: how many they are.
        end_of_stream: whether there was nothing behind them at that time.
        high_water_mark: where the log ended then; None if the server does not say.
        before: what stands before the first record, on a plain server: a consumer that
            goes back to one of them compares it.
    """

    topic: int | str
    data: memoryview = field(repr=False)
    start_offset: int
    current_offset: int
    record_count: int
    end_of_stream: bool
    high_water_mark: int | None = None
    before: bytes = field(default=b"", repr=False, compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether there are no records."""
        return not self.record_count

    def __len__(self) -> int:
        return self.record_count

    def to_arrow(self, columns: Sequence[str] = DEFAULT_COLUMNS) -> pa.RecordBatch:
        """Build Arrow columns, the fast way to many records.

        Args:
            columns: any of topic, offset, next_offset, type, key, value, timestamp
                and timestamp_ns.

        Raises:
            RecordError: a record is malformed; its position is its offset.
            OptionError: there is no such column.
        """
        decoded = decode(
            self.data,
            base_offset=self.start_offset,
            columns=columns,
            topic=str(self.topic),
        )
        return decoded.batch

    def records(self) -> Iterator[ConsumerRecord]:
        """Give the records one by one, the slow and convenient way.

        Raises:
            RecordError: a record is malformed; its position is its offset.
        """
        position = 0
        while position < len(self.data):
            start = position
            try:
                record, position = decode_record(self.data, start)
            except RecordError as error:
                at = self.start_offset + start
                raise RecordError(error.reason, at, truncated=error.truncated) from None
            is_null = record.type == RecordType.NULL
            yield ConsumerRecord(
                self.start_offset + start,
                record.type,
                None if record.key is None else bytes(record.key),
                None if is_null else bytes(record.value),
                record.timestamp_ns,
                self.start_offset + position,
            )

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self.records()


def make_result(topic: int | str, chunk: Chunk) -> PollResult:
    """Make the result that holds the records of a chunk."""
    mark, end = chunk.high_water_mark, chunk.end
    is_end = mark is not None and end >= mark
    counted = chunk.data, chunk.start, end, chunk.records
    return PollResult(topic, *counted, is_end, mark, chunk.before)


def make_empty_result(topic: int | str, position: int) -> PollResult:
    """Make the result of a poll that found nothing."""
    return PollResult(topic, memoryview(b""), position, position, 0, True)


_RESETS = {
    "earliest": SeekPosition.BEGINNING,
    "latest": SeekPosition.END,
    "error": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorOptions:
    """How a topic is read.

    Args:
        offset_reset: `earliest`, `latest` or `error`: where to start if nothing else
            says so, and where to go on if the next records are gone.
        fail_on_data_loss: raise DataLoss in that last case, or warn and go on.
        max_poll_records: how many records one poll gives at most.
        fetch_bytes: how much to ask the server for at once.
        prefetch: keep a fetch under way while the caller works.

    Raises:
        OptionError: a value can't be used.
    """

    offset_reset: str = "earliest"
    fail_on_data_loss: bool = True
    max_poll_records: int | None = None
    fetch_bytes: int = FETCH_BYTES_DEFAULT
    prefetch: bool = True

    def __post_init__(self) -> None:
        check_choice("offset_reset", self.offset_reset, _RESETS)
        if self.max_poll_records is not None:
            check_number("max_poll_records", self.max_poll_records, 1)

    @property
    def reset_position(self) -> SeekPosition | None:
        """Where to start if nothing else says so; None if that is an error."""
        return _RESETS[self.offset_reset]

    @property
    def loss_position(self) -> SeekPosition | None:
        """Where to go on if the next records are gone; None if that is an error."""
        return None if self.fail_on_data_loss else self.reset_position


def resolve_position(
    client: LanceClient, topic: int | str, position: SeekPosition
) -> int:
    """Find the offset of a position.

    Raises:
        Unsupported: it is a time, and the server has no index of times.
        OptionError: it is inside a record, and the server can tell.
    """
    if position.kind is SeekKind.OFFSET:
        check_boundary(client, topic, position.value)
        return position.value
    if position.kind is SeekKind.TIME:
        return client.locate_time(topic, position.value).offset
    bounds = client.bounds(topic)
    # A plain server counts from what is left of the log.
    return bounds.end if position.kind is SeekKind.END else bounds.start or 0


def check_boundary(client: LanceClient, topic: int | str, offset: int) -> None:
    """Check that no record is cut by an offset, where the server can tell.

    An offset before the log's start or behind its end is left to the reader.

    Raises:
        OptionError: it is inside a record.
    """
    if not client.supports(Capability.LOCATE):
        return
    found = client.locate_offset(topic, offset).offset
    # The start comes second: if it is not behind the offset now, it was not before.
    if found > offset >= client.locate_start(topic).offset:
        raise OptionError(
            f"offset {offset} of topic {topic!r} is inside a record: the next one "
            f"starts at {found}; give the offset of a record"
        )


class Cursor:
    """Reads a topic from an offset on; one thread may use it.

    Args:
        client: has the connection, and stays open.
        topic: name, or id.
        start: where to begin; None says that nothing is known and the options decide.
        options: how to read.
        topic_id: the id of the topic, if it is known already.
        loss: why the records at `start` are known to be gone; `poll` says so, unless
            there is a seek first.

    Raises:
        TopicNotFound: there is no such topic.
        OptionError: nothing says where to begin, or it is inside a record.
    """

    def __init__(
        self,
        client: LanceClient,
        topic: int | str,
        start: SeekPosition | None,
        options: CursorOptions,
        *,
        topic_id: int | None = None,
        loss: DataLoss | None = None,
    ) -> None:
        self.topic = topic
        self._client = client
        self._options = options
        # Records that were read and not handed out, because of max_poll_records.
        self._rest: Chunk | None = None
        start = start or options.reset_position
        if start is None:
            raise OptionError(
                f"no offset is stored for topic {topic!r} and offset_reset is "
                "'error': say where to start, or use earliest or latest"
            )
        if topic_id is None:
            topic_id = client.topic_id(topic)
        self._loss = loss
        offset = loss.asked if loss else resolve_position(client, topic_id, start)
        self._reader = self._open(topic_id, offset)
        if loss is not None and options.loss_position is not None:
            self._pass_over(loss)

    @property
    def topic_id(self) -> int:
        """The id of the topic that is being read."""
        return self._reader.topic_id

    @property
    def position(self) -> int:
        """Offset of the next record to hand out."""
        return self._reader.position if self._rest is None else self._rest.start

    @property
    def is_lost(self) -> bool:
        """Whether it was told of a loss, and there was no seek since."""
        return self._loss is not None

    def seek(self, position: SeekPosition | int) -> int:
        """Go to another place, and return its offset.

        Raises:
            Unsupported: it is a time, and the server has no index of times.
            OptionError: it is inside a record, and the server can tell.
        """
        place = as_position(position)
        offset = resolve_position(self._client, self.topic_id, place)
        self._go(offset)
        return offset

    def go_back(self, result: PollResult, offset: int) -> None:
        """Go to a record of the result that was handed out last, or to its end."""
        before = None
        if result.high_water_mark is None:
            # A plain server may shift its offsets before the record is read again.
            given = result.data[: offset - result.start_offset]
            before = join_last(result.before, given)
        self._go(offset, before)

    def _go(self, offset: int, before: bytes | None = None) -> None:
        self._rest = self._loss = None
        self._reader.seek(offset, before=before)

    def lag(self) -> int:
        """Say how many bytes are between here and the log's end."""
        return max(0, self._client.bounds(self.topic_id).end - self.position)

    def poll(self, wait_s: float = 0.0) -> PollResult | None:
        """Hand out the next records; None if there are none in time.

        Raises:
            DataLoss: they are gone, and that is not to be passed over.
            RecordError: the bytes there are not a record.
        """
        chunk = self._rest or self._next_chunk(wait_s)
        self._rest = None
        if chunk is not None and self._options.max_poll_records is not None:
            chunk, self._rest = chunk.split(self._options.max_poll_records)
        return None if chunk is None else make_result(self.topic, chunk)

    def close(self) -> None:
        """Give up what is under way."""
        self._reader.close()

    def _open(self, topic_id: int, offset: int) -> RecordReader:
        return RecordReader(
            self._client,
            self.topic,
            offset,
            fetch_bytes=self._options.fetch_bytes,
            prefetch=self._options.prefetch,
            topic_id=topic_id,
        )

    def _next_chunk(self, wait_s: float) -> Chunk | None:
        if self._loss is not None:
            raise self._loss
        for _ in range(_LOSSES_MAX):
            try:
                return self._reader.next_chunk(wait_s)
            except DataLoss as loss:
                self._pass_over(loss)
        return self._reader.next_chunk(wait_s)

    def _pass_over(self, loss: DataLoss) -> None:
        """Go on where the options say, or raise the loss."""
        target = self._options.loss_position
        if target is None:
            raise loss
        # The topic may be another one of the same name by now.
        self._client.forget(self.topic)
        self._reader.close()
        topic_id = self._client.topic_id(self.topic)
        offset = resolve_position(self._client, topic_id, target)
        self._reader = self._open(topic_id, offset)
        self._loss = None
        logger.warning("%s; going on at offset %d", loss, self._reader.position)
