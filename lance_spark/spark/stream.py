"""Planning of a stream: where it starts, where each batch ends, which ranges it has.

Spark keeps one process per stream for this, calls it from one thread, and ends the
query at the first error; calls retry by themselves while the server is away. What is
kept here between calls only saves time, or is asked for anew after a restart: what a
query has to remember is in the offsets.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lance_spark.client.driver import Driver, Split, TopicEntry, find_protocol
from lance_spark.errors import DataLoss, TopicDeleted, TopicNotFound
from lance_spark.model import OffsetMark, Partition
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.batch_end import BatchEnd, LossLog, LostMeanwhile
from lance_spark.spark.bound import EARLIEST_OFFSET, LATEST_OFFSET, AtOffsets, Bound
from lance_spark.spark.options import ReadOptions, describe_missing
from lance_spark.spark.planning import (
    check_offsets,
    cut_ranges,
    find_bounds,
    find_topics,
    resolve_batch,
    resolve_bound,
)
from lance_spark.spark.pool import lease
from lance_spark.spark.watch import Lag, States, Watch, add_lags, measure_lag

logger = logging.getLogger(__name__)

# A log that ends before a position which was read may be one that is not open yet.
_GRACE_S = 2.0
_GRACE_PAUSE_S = 0.1
# A topic may go between the look at it and the next question about it.
_ATTEMPTS = 10


class StreamPlanner:
    """Plans the batches of one stream.

    Args:
        options: what the user has said.
        clock: a monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._watch = Watch(
            options.reads, names=options.topics, clock=clock, sleep=sleep
        )
        self._clock = clock
        self._sleep = sleep
        traits = find_protocol(options.client.protocol).TRAITS
        self._first = traits.first_position
        self._losses = LossLog(options.fail_on_data_loss, traits.unit)
        # The start of a query that has no checkpoint.
        self._initial: StreamOffset | None = None
        self._initial_topics: list[TopicEntry] = []
        self._is_planned = False
        # Where `Trigger.AvailableNow` ends; None without it.
        self._target: States | None = None
        self._turn = 0
        self._has_looked = False
        # The last question whose answer was that there is nothing to read.
        self._nothing: tuple[StreamOffset, States] | None = None
        # Where records were seen to start when the last batch was planned.
        self._aligned: dict[Partition, int] = {}
        # Where the topics ended at the last look, and how far behind that is.
        self.report: dict[str, Any] | None = None

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
            read = self._options
            with lease(read.client) as driver:
                # An option that can't work fails before anything is written down.
                driver.choose_finder(read.splitting)
                for attempt in range(_ATTEMPTS):
                    topics = find_topics(driver, read)
                    try:
                        self._initial = resolve_start(driver, read.start, topics)
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
        with lease(self._options.client) as driver:
            self._target = self._watch.look_now(driver)

    def skip_pause(self) -> None:
        """Let the next look answer at once, as the query has something to do."""
        self._watch.skip_pause()

    def default_limit(self) -> int | None:
        """Say how much a batch may have if the user sets no limit."""
        with lease(self._options.client) as driver:
            return driver.traits.batch_units_max

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
            check_offsets(self._options, self._initial_topics)
        if self._is_pinning(start):
            return start
        with lease(self._options.client) as driver:
            states = self._look(driver, start)
            if self._nothing == (start, states):
                return start
            states, places = self._find_end(driver, start, states, is_limited)
            self.report = self._describe(driver, states, places)
        end = StreamOffset.of(places)
        self._nothing = (start, states) if end == start else None
        return end

    def _is_pinning(self, start: StreamOffset) -> bool:
        """Tell whether this is the first batch, which has to be an empty one."""
        bound = self._options.start
        return self._is_first(start) and needs_pin(bound, start, self._first)

    def _is_first(self, start: StreamOffset) -> bool:
        """Tell whether this is the first batch, whose start is not written down."""
        return not self._is_planned and start == self._initial

    # What there is.

    def _look(self, driver: Driver, start: StreamOffset) -> States:
        if self._target is None:
            states = self._watch.look(driver, start)
        else:
            states = self._watch.look_now(driver)
        deadline_s = self._clock() + _GRACE_S
        while _has_shrunk(states, start) and self._clock() < deadline_s:
            self._sleep(_GRACE_PAUSE_S)
            states = self._watch.look_now(driver)
        if not self._has_looked:
            self._check_named(states, start)
            self._has_looked = True
        return states

    def _check_named(self, states: States, start: StreamOffset) -> None:
        """Check at the first look that topics are there that are named.

        A topic that is deleted later is a loss, and may come again.
        """
        there = {partition.topic for partition in states}
        named = self._options.topics
        missing = [t for t in named if t not in there and start.get(t) is None]
        if not missing:
            return
        text = describe_missing(self._options.client, missing)
        if self._options.fail_on_data_loss:
            raise TopicNotFound(text)
        logger.warning("%s", text)

    # What of it is in the batch.

    def _find_end(
        self, driver: Driver, start: StreamOffset, states: States, is_limited: bool
    ) -> tuple[States, dict[str, TopicPlace]]:
        """Say where the batch ends, given what there is, or was a moment ago."""
        attempt = 0
        while True:
            end = BatchEnd(
                driver,
                self._options,
                self._losses,
                target=self._target,
                turn=self._turn + 1,
                is_limited=is_limited,
            )
            try:
                places = end.find(start, states)
            except (TopicNotFound, TopicDeleted, LostMeanwhile):
                attempt += 1
                if attempt > _ATTEMPTS:
                    raise
                states = self._watch.look_now(driver)
            else:
                self._turn += end.is_worth_a_turn
                self._aligned = end.aligned
                return states, places

    # How far behind it is.

    def _describe(
        self, driver: Driver, states: States, places: Mapping[str, TopicPlace]
    ) -> dict[str, Any]:
        first = driver.traits.first_position
        ends: dict[str, TopicPlace] = {}
        lags: defaultdict[str, list[Lag]] = defaultdict(list)
        lost: Counter[str] = Counter()
        for partition, state in states.items():
            topic, number, log = partition.topic, partition.number, state.log
            end = ends.get(topic) or TopicPlace.at(log.topic_id, log.created_s, 0)
            ends[topic] = end.moved(number, state.end)
            place = places.get(topic)
            position = place.position(number, first) if place else first
            lags[topic].append(measure_lag(driver, state, position))
            lost[topic] += self._losses.lost(log.name)
        document = StreamOffset.of(ends).to_document(driver.traits.protocol)
        for partition, state in states.items():
            topic, lag = partition.topic, add_lags(lags[partition.topic])
            unit = driver.traits.unit
            numbers = lag.to_document(state.retention, lost[topic], unit)
            document["topics"][topic].update(numbers)
        return document

    # What a batch reads.

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[Split]:
        """Cut the records between two offsets into splits.

        Raises:
            DataLoss: something of it is gone, and that is an error.
        """
        read = self._options
        if self._is_first(start):
            start = find_first_start(read.start, start, end, self._first)
        self._is_planned = True
        deadline_s = self._clock() + _GRACE_S
        with lease(read.client) as driver:
            while True:
                ranges, losses = resolve_batch(
                    driver, read, start=start, end=end, aligned=self._aligned
                )
                if not any(map(_is_behind_end, losses)) or self._clock() >= deadline_s:
                    break
                self._sleep(_GRACE_PAUSE_S)
            traits = driver.traits
        for loss in losses:
            self._losses.report(loss)
        return cut_ranges(ranges, read, traits)


def _is_behind_end(loss: DataLoss) -> bool:
    return loss.log_end is not None and loss.asked > loss.log_end


def _has_shrunk(states: States, start: StreamOffset) -> bool:
    """Tell whether a log ends before what was seen of it."""
    for partition, state in states.items():
        place = start.get(partition.topic)
        if place is None:
            continue
        # It may be a topic that had the name before, and is back.
        found = place.find(state.log.topic_id, state.log.created_s)
        if found is not None and state.end < found.seen_end(partition.number):
            return True
    return False


# The start of a query without a checkpoint.


def is_moving(bound: Bound) -> bool:
    """Tell whether a bound means another offset with each record that comes."""
    if not isinstance(bound, AtOffsets):
        return True
    return LATEST_OFFSET in (bound.default, *dict(bound.offsets).values())


def needs_pin(bound: Bound, start: StreamOffset, first: int = 0) -> bool:
    """Tell whether the first batch has to be an empty one.

    Spark writes down where batches end, never where the first one starts, and asks
    for that again if the first batch was not finished. Where the answer may be another
    one by then, the first batch ends where it starts, which writes it down. What is
    earliest moves, too, when retention removes records that were to be read; where it
    is the first position of all, that is known without being written down
    (`find_first_start`).
    """
    return is_moving(bound) or any(
        position != first and _is_earliest(bound, Partition(topic, number))
        for topic, place in start.topics
        for number, position in place.positions
    )


def find_first_start(
    bound: Bound, start: StreamOffset, end: StreamOffset, first: int = 0
) -> StreamOffset:
    """Say where the first batch starts, which another process may have planned.

    Args:
        bound: what the user has said.
        start: what that means now.
        end: where the batch ends, as it was written down.
        first: the position of the first record of a new partition.
    """
    if is_moving(bound):
        # It is the pin, also for topics that the options do not name any more.
        return end
    if not any(_is_within(place, end.get(topic)) for topic, place in start.topics):
        return start
    # It has records, so it is no pin, and what was earliest was the first position.
    places = {}
    for topic, place in start.topics:
        for number, _ in place.positions:
            if _is_earliest(bound, Partition(topic, number)):
                place = place.moved(number, first)
        places[topic] = place
    return StreamOffset.of(places)


def _is_earliest(bound: Bound, partition: Partition) -> bool:
    return isinstance(bound, AtOffsets) and bound.get(partition) == EARLIEST_OFFSET


def _is_within(start: TopicPlace, end: TopicPlace | None) -> bool:
    if end is None or not start.same_topic(end.topic_id, end.created_s):
        return False
    return any(at < end.position(number) for number, at in start.positions)


def resolve_start(
    driver: Driver, bound: Bound, topics: Sequence[TopicEntry]
) -> StreamOffset:
    """Say where a stream starts in each of its topics.

    A topic that has no offset where others have one is left out. It came after the
    stream was started, and is read from its beginning as all that come later are;
    `check_offsets` is for those that were there.

    Raises:
        Unsupported: it is a time, and the server has no index of times.
        TopicNotFound, TopicDeleted: a topic was deleted just now.
        DataLoss: the log of a plain server shrinks just now.
    """
    return StreamOffset.of(
        {
            entry.name: _resolve_place(driver, bound, entry)
            for entry in topics
            if not isinstance(bound, AtOffsets) or bound.covers(entry.name)
        }
    )


def _resolve_place(driver: Driver, bound: Bound, entry: TopicEntry) -> TopicPlace:
    positions: dict[int, int] = {}
    marks: dict[int, OffsetMark] = {}
    for log, bounds in find_bounds(driver, entry).items():
        position = resolve_bound(driver, bound, log, bounds, option="startingTimestamp")
        if isinstance(bound, AtOffsets) and bounds.start < position < bounds.end:
            # A position of the user's may be inside a record; a checkpoint's never is.
            position = driver.align(log, position)
        positions[log.partition.number] = position
        # A start behind the log is reported as a loss when the first batch is planned.
        if position <= bounds.end:
            mark = driver.mark_position(log, position, bounds.end)
            if mark is not None:
                marks[log.partition.number] = mark
    return TopicPlace(
        entry.topic_id, entry.created_s, tuple(positions.items()), tuple(marks.items())
    )
