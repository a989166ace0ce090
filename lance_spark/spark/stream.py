"""Planning of a stream: where it starts, where each batch ends, which ranges it has.

Spark keeps one process per stream for this, calls it from one thread, and ends the
query at the first error; trouble with the server is retried inside of each call. What
is kept here between calls only saves time or is asked for anew after a restart: what a
query has to remember is in the offsets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from lance_spark.client import LanceClient, TopicInfo
from lance_spark.errors import DataLoss, TopicDeleted, TopicNotFound
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.batch_end import BatchEnd, LostMeanwhile, is_plain
from lance_spark.spark.batch_range import resolve_batch
from lance_spark.spark.lag import measure_lag
from lance_spark.spark.loss import LossLog
from lance_spark.spark.options import StreamOptions
from lance_spark.spark.planning import Split, cut_ranges
from lance_spark.spark.pool import lease
from lance_spark.spark.start import find_first_start, needs_pin, resolve_start
from lance_spark.spark.topics import check_offsets, choose_locate, choose_topics
from lance_spark.spark.watch import Head, Watch

logger = logging.getLogger(__name__)

# A log that ends before an offset which was read may be one that is not open yet.
_GRACE_S = 2.0
_GRACE_PAUSE_S = 0.1
# A topic may go between the look at it and the next question about it.
_ATTEMPTS = 10


class StreamPlanner:
    """Plans the batches of one stream.

    Args:
        options: what the user has said.
        watch: looks at the topics.
        clock: a monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        options: StreamOptions,
        *,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._watch = watch or Watch(options.read.reads, clock=clock, sleep=sleep)
        self._losses = LossLog(options.read.fail_on_data_loss)
        self._clock = clock
        self._sleep = sleep
        # The start of a query that has no checkpoint.
        self._initial: StreamOffset | None = None
        self._initial_topics: list[TopicInfo] = []
        self._is_planned = False
        # Where `Trigger.AvailableNow` ends; None without it.
        self._target: dict[str, Head] | None = None
        self._turn = 0
        self._has_looked = False
        self._is_plain: bool | None = None
        # The last question whose answer was that there is nothing to read.
        self._nothing: tuple[StreamOffset, dict[str, Head]] | None = None
        self._report: dict[str, Any] | None = None

    # Where to start and end.

    def initial(self) -> StreamOffset:
        """Say where a query without a checkpoint starts; always the same.

        Raises:
            TopicNotFound: a topic that is named is not there.
            OptionError: offsets are given for a topic that is not read.
            Unsupported: it is a time, and the server has no index of times; or records
                are to be located, and it can't do that.
        """
        if self._initial is None:
            read = self._options.read
            with lease(read.client) as client:
                # What can't work is said before anything is written down.
                choose_locate(client, read)
                for attempt in range(_ATTEMPTS):
                    topics = choose_topics(read, client.topics())
                    try:
                        self._initial = resolve_start(client, read.start, topics)
                        self._initial_topics = topics
                        break
                    except (TopicNotFound, TopicDeleted, DataLoss):
                        # Deleted since it was listed; another look tells.
                        if attempt + 1 == _ATTEMPTS:
                            raise
        assert self._initial is not None
        return self._initial

    def freeze(self) -> None:
        """Let the stream end where the topics end now."""
        with lease(self._options.read.client) as client:
            self._target = self._watch.glance(client)

    def hurry(self) -> None:
        """Let the next look answer at once, as the query has something to do."""
        self._watch.hurry()

    @property
    def is_plain(self) -> bool:
        """Whether the server can't tell where records end."""
        if self._is_plain is None:
            with lease(self._options.read.client) as client:
                self._is_plain = is_plain(client)
        return self._is_plain

    def latest(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        """Say where the batch ends that starts at an offset.

        Returns:
            The same offset if there is nothing to read.

        Raises:
            DataLoss: something that was to be read is gone, and that is an error.
            TopicNotFound: a topic that is named was never there.
            OptionError: a query without a checkpoint has no offset for a topic.
        """
        if self._is_first(start):
            # Not when the start is asked for: Spark asks for it again when it repeats
            # a first batch, and by then there may be topics that came later.
            check_offsets(self._options.read, self._initial_topics)
        if self._is_pinning(start):
            return start
        with lease(self._options.read.client) as client:
            heads = self._find_heads(client, start)
            if self._nothing == (start, heads):
                return start
            heads, places = self._find_ends(client, start, heads, is_limited=is_limited)
            self._report = self._describe(client, heads, places)
        end = StreamOffset.of(places)
        self._nothing = (start, heads) if end == start else None
        return end

    def _is_pinning(self, start: StreamOffset) -> bool:
        """Tell whether this is the first batch, which has to be an empty one."""
        return self._is_first(start) and needs_pin(self._options.read.start, start)

    def _is_first(self, start: StreamOffset) -> bool:
        """Tell whether this is the first batch, whose start is not written down."""
        return not self._is_planned and start == self._initial

    # What there is.

    def _find_heads(self, client: LanceClient, start: StreamOffset) -> dict[str, Head]:
        if self._target is None:
            heads = self._watch.look(client, start)
        else:
            heads = self._watch.glance(client)
        deadline_s = self._clock() + _GRACE_S
        while _has_shrunk(heads, start) and self._clock() < deadline_s:
            self._sleep(_GRACE_PAUSE_S)
            heads = self._watch.glance(client)
        if not self._has_looked:
            self._check_named(heads, start)
            self._has_looked = True
        return heads

    def _check_named(self, heads: Mapping[str, Head], start: StreamOffset) -> None:
        """Check at the first look that topics are there that are named.

        One that was deleted later is a loss, and may come again.
        """
        topics = self._options.read.topics
        missing = [t for t in topics if t not in heads and start.get(t) is None]
        if not missing:
            return
        text = (
            f"no topic is named {', '.join(map(repr, missing))}, or none that this "
            "client may use; create it, or correct the option topic"
        )
        if self._options.read.fail_on_data_loss:
            raise TopicNotFound(text)
        logger.warning("%s", text)

    # What of it is in the batch.

    def _find_ends(
        self,
        client: LanceClient,
        start: StreamOffset,
        heads: dict[str, Head],
        *,
        is_limited: bool,
    ) -> tuple[dict[str, Head], dict[str, TopicPlace]]:
        """Say where the batch ends, given what there is, or was a moment ago."""
        for _ in range(_ATTEMPTS):
            try:
                return heads, self._find_end(client, start, heads, is_limited)
            except (TopicNotFound, TopicDeleted, LostMeanwhile):
                heads = self._watch.glance(client)
        return heads, self._find_end(client, start, heads, is_limited)

    def _find_end(
        self,
        client: LanceClient,
        start: StreamOffset,
        heads: Mapping[str, Head],
        is_limited: bool,
    ) -> dict[str, TopicPlace]:
        end = BatchEnd(
            client,
            self._options,
            self._losses,
            target=self._target,
            turn=self._turn + 1,
            is_limited=is_limited,
        )
        places = end.find(start, heads)
        self._turn += end.is_worth_a_turn
        return places

    # How far behind it is.

    def report(self) -> dict[str, Any] | None:
        """Say where the topics ended at the last look, and how far behind that is."""
        return self._report

    def _describe(
        self,
        client: LanceClient,
        heads: Mapping[str, Head],
        places: Mapping[str, TopicPlace],
    ) -> dict[str, Any]:
        ends = {
            topic: TopicPlace.at(head.topic_id, head.created_s, head.end)
            for topic, head in heads.items()
        }
        document = StreamOffset.of(ends).to_document()
        for topic, head in heads.items():
            place = places.get(topic)
            lag = measure_lag(client, head, 0 if place is None else place.offset)
            numbers = lag.to_document(head, self._losses.lost_bytes(topic))
            document["topics"][topic].update(numbers)
        return document

    # What a batch reads.

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[Split]:
        """Cut the records between two offsets into splits.

        Raises:
            DataLoss: something of it is gone, and that is an error.
        """
        read = self._options.read
        if self._is_first(start):
            start = find_first_start(read.start, start, end)
        self._is_planned = True
        deadline_s = self._clock() + _GRACE_S
        with lease(read.client) as client:
            while True:
                ranges, losses = resolve_batch(client, read, start=start, end=end)
                if not any(map(_is_behind_end, losses)) or self._clock() >= deadline_s:
                    break
                self._sleep(_GRACE_PAUSE_S)
        for loss in losses:
            self._losses.report(loss)
        return cut_ranges(ranges, read)


def _is_behind_end(loss: DataLoss) -> bool:
    return loss.log_end is not None and loss.asked > loss.log_end


def _has_shrunk(heads: Mapping[str, Head], start: StreamOffset) -> bool:
    """Tell whether a log ends before what was seen of it."""
    for topic, place in start.topics:
        head = heads.get(topic)
        if head is None:
            continue
        # It may be a topic that had the name before, and is back.
        found = place.find(head.topic_id, head.created_s)
        if found is not None and head.end < found.seen_end:
            return True
    return False
