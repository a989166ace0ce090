"""A place in a topic that moves as records are handed out.

Consumers have one, groups one per topic. Here is decided what happens when the records
that are next are gone, and nothing about threads, commits or who owns the connection.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.client.poll import PollResult, make_result
from lance_spark.client.reader import (
    FETCH_BYTES_DEFAULT,
    Chunk,
    RecordReader,
    join_last,
)
from lance_spark.client.seek import SeekKind, SeekPosition
from lance_spark.errors import DataLoss, OptionError
from lance_spark.wire.lwp import Capability

if TYPE_CHECKING:
    from lance_spark.client.client import LanceClient

logger = logging.getLogger(__name__)

_RESETS = {
    "earliest": SeekPosition.BEGINNING,
    "latest": SeekPosition.END,
    "error": None,
}
# A log that loses its start faster than it can be read is not read at all.
_LOSSES_MAX = 10


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
        if self.offset_reset not in _RESETS:
            raise OptionError(
                f"offset_reset {self.offset_reset!r} is unknown; "
                f"use {', '.join(_RESETS)}"
            )
        if self.max_poll_records is not None and self.max_poll_records < 1:
            raise OptionError(
                f"max_poll_records {self.max_poll_records} can't be used: "
                "give 1 or more, or None for no limit"
            )

    @property
    def reset_position(self) -> SeekPosition | None:
        """Where to start if nothing else says so; None if that is an error."""
        return _RESETS[self.offset_reset]

    @property
    def passes_over_losses(self) -> bool:
        """Whether to go on somewhere else if the next records are gone."""
        return not self.fail_on_data_loss and self.reset_position is not None


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
    if position.kind is SeekKind.END:
        return bounds.end
    # A plain server counts from what is left of the log.
    return bounds.start or 0


def check_boundary(client: LanceClient, topic: int | str, offset: int) -> None:
    """Check that no record is cut by an offset, where the server can tell.

    What is before the log's start or behind its end is left to who reads there.

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
        if start is None:
            start = options.reset_position
        if start is None:
            raise OptionError(
                f"no offset is stored for topic {topic!r} and offset_reset is "
                "'error': say where to start, or use earliest or latest"
            )
        if topic_id is None:
            topic_id = client.topic_id(topic)
        self._loss = loss
        if loss is None:
            offset = resolve_position(client, topic_id, start)
        else:
            offset = loss.asked
        self._reader = self._open(topic_id, offset)
        if loss is not None and options.passes_over_losses:
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
        """Whether it was told of a loss that nobody has got over by a seek yet."""
        return self._loss is not None

    def seek(self, position: SeekPosition | int) -> int:
        """Go to another place, and return its offset.

        Raises:
            Unsupported: it is a time, and the server has no index of times.
            OptionError: it is inside a record, and the server can tell.
        """
        if isinstance(position, int):
            position = SeekPosition.offset(position)
        offset = resolve_position(self._client, self.topic_id, position)
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
            RecordError: what is there is no record.
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
        target = self._options.reset_position
        if target is None or not self._options.passes_over_losses:
            raise loss
        # The topic may be another one of the same name by now.
        self._client.forget(self.topic)
        self._reader.close()
        topic_id = self._client.topic_id(self.topic)
        offset = resolve_position(self._client, topic_id, target)
        self._reader = self._open(topic_id, offset)
        self._loss = None
        logger.warning("%s; going on at offset %d", loss, self._reader.position)
