"""What a poll gives: bytes of whole records, as columns or one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.client.reader import Chunk
from lance_spark.columnar.decode import DEFAULT_COLUMNS, decode
from lance_spark.errors import RecordError
from lance_spark.model import RecordType
from lance_spark.wire.lwp import decode_record

if TYPE_CHECKING:
    import pyarrow as pa

_EMPTY = memoryview(b"")


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
    mark = chunk.high_water_mark
    return PollResult(
        topic,
        chunk.data,
        chunk.start,
        chunk.end,
        chunk.records,
        mark is not None and chunk.end >= mark,
        mark,
        chunk.before,
    )


def make_empty_result(topic: int | str, position: int) -> PollResult:
    """Make the result of a poll that found nothing."""
    return PollResult(topic, _EMPTY, position, position, 0, True)
