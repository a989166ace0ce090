"""Where a micro-batch ends, given where it starts and what there is.

Each topic is first settled: is it the one that was read before, with the position still
in its log and at a record? Losses are reported here. Then the limits of a batch are
shared among the partitions (`admission`), and Spark writes the ends that come out into
the checkpoint.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lance_spark.client.driver import Driver, LogRef, Range
from lance_spark.errors import DataLoss, RecordError, TopicNotFound
from lance_spark.model import Bounds, Partition
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.admission import Backlog, BatchLimit, admit
from lance_spark.spark.bound import AtOffsets
from lance_spark.spark.options import ReadOptions, describe_missing
from lance_spark.spark.planning import (
    check_range,
    find_cut,
    is_marked_right,
    make_gone,
    make_recreated,
    make_shifted,
    plan_range,
    report_loss,
)
from lance_spark.spark.watch import SeenLog, States

# So many reported losses of a topic are remembered. A slow query meets new ones for
# ever, and one that it meets again is one of the last few.
_REPORTED_MAX = 16


class LossLog:
    """Reports each loss once and counts what is lost.

    A stream meets a loss several times: when it looks, when it plans, and again after
    each look until it is past it.

    Args:
        is_error: raise losses, instead of going on.
        unit: what offsets count.
    """

    def __init__(self, is_error: bool, unit: str = "bytes") -> None:
        self._is_error = is_error
        self._unit = unit
        self._reported: defaultdict[int | str, deque[tuple[int, str]]] = defaultdict(
            lambda: deque(maxlen=_REPORTED_MAX)
        )
        self._lost: Counter[int | str] = Counter()
        # Up to where the losses of a topic are counted, because they overlap.
        self._counted: dict[int | str, int] = {}

    def report(self, loss: DataLoss) -> None:
        """Raise a loss with its remedy, or log it the first time.

        Raises:
            DataLoss: losses are errors.
        """
        if self._is_error:
            report_loss(loss, is_error=True, unit=self._unit)
        # The bounds of the log go on changing for the same loss.
        reported, key = self._reported[loss.topic], (loss.asked, loss.reason)
        if key not in reported:
            reported.append(key)
            report_loss(loss, is_error=False, unit=self._unit)
        if loss.log_start is not None:
            first = max(loss.asked, self._counted.get(loss.topic, 0))
            self._lost[loss.topic] += max(0, loss.log_start - first)
            self._counted[loss.topic] = max(first, loss.log_start)

    def begin_anew(self, topic: str) -> None:
        """Note that a topic was created anew, so that its positions start over."""
        self._counted.pop(topic, None)

    def lost(self, log: str) -> int:
        """Say how much of a log is known to be lost since the query was started."""
        return self._lost[log]


class LostMeanwhile(DataLoss):
    """Something was there at the look and is gone; another look tells why."""


class BatchEnd:
    """Finds the end of one batch.

    Args:
        driver: asks.
        options: what the user has said.
        losses: is told what is lost.
        target: where `Trigger.AvailableNow` ends; None without it.
        turn: one higher for each batch, so that partitions take turns.
        is_limited: whether the limits of the options hold.
    """

    def __init__(
        self,
        driver: Driver,
        options: ReadOptions,
        losses: LossLog,
        *,
        target: States | None,
        turn: int,
        is_limited: bool,
    ) -> None:
        self._driver = driver
        self._first = driver.traits.first_position
        self._options = options
        self._losses = losses
        self._target = target
        self._turn = turn
        self._is_limited = is_limited
        # Whether anything waits. Otherwise turns would count looks and not batches, and
        # it might be the same topic's turn whenever there is something to read.
        self.is_worth_a_turn = False
        # Where records were seen to start; the plan of the batch need not look again.
        self.aligned: dict[Partition, int] = {}

    def find(self, start: StreamOffset, states: States) -> dict[str, TopicPlace]:
        """Say where the batch ends in each topic, if nothing shifts meanwhile.

        An end that was found while a server deletes may be inside a record by now, and
        would stay in the checkpoint for ever.

        Args:
            start: where the batch starts.
            states: what there was at the last look.

        Raises:
            LostMeanwhile: it is not there any more; look again.
            TopicNotFound, TopicDeleted: a topic was deleted since; look again.
            DataLoss: something that was to be read is gone, and that is an error.
            RecordError: what a plain server has is no record.
        """
        with _noting_loss():
            unread = self._mark_unread(start, states)
        try:
            places = self._find_ends(start, states)
        except RecordError:
            # If offsets have shifted, that error explains it better.
            self._check_unread(unread)
            raise
        self._check_unread(unread)
        return places

    def _mark_unread(self, start: StreamOffset, states: States) -> list[Range]:
        """Mark what is unread, to tell later whether its positions have shifted."""
        unread = []
        for state in states.values():
            place, first = start.get(state.log.topic), self._first
            if place is not None and _is_same(place, state):
                first = self._position(place, state.log)
            if first < state.end:
                piece = Range(state.log, first, state.end)
                unread.append(self._driver.mark_range(piece, state.end))
        return unread

    def _check_unread(self, unread: Sequence[Range]) -> None:
        with _noting_loss():
            for piece in unread:
                check_range(self._driver, piece)

    def _find_ends(self, start: StreamOffset, states: States) -> dict[str, TopicPlace]:
        settled, away = self._settle_all(start, states)
        backlogs = []
        for partition, state in states.items():
            place = settled[partition.topic]
            first = self._position(place, state.log)
            stop = self._find_stop(state, place)
            if stop > first:
                first = self._find_first(state, first)
            # Those with nothing to read are among them, because all take turns.
            ruler = self._driver.make_ruler(
                state.log, fetch_bytes=self._options.fetch_bytes
            )
            backlogs.append(Backlog(partition, first, max(first, stop), ruler))
        waiting = {b.partition: b.start for b in backlogs if b.start < b.end}
        self.is_worth_a_turn = bool(waiting)
        try:
            with _noting_loss():
                ends = admit(backlogs, self._make_limit(), turn=self._turn)
        except RecordError as fault:
            raise self._explain(fault) from fault
        for partition, end in ends.items():
            topic = partition.topic
            settled[topic] = self._move(settled[topic], states[partition], end)
        # A topic is not worth a batch before it has a record. One that has to wait is
        # noted in a batch of others: it is a loss if it is deleted meanwhile.
        is_worth_it = any(ends[each] > first for each, first in waiting.items())
        waits = {partition.topic for partition in waiting} if is_worth_it else set()
        known = {
            topic: place
            for topic, place in settled.items()
            if any(position > self._first for _, position in place.positions)
            or start.get(topic) is not None
            or topic in waits
        }
        return {**known, **away}

    # Where to go on.

    def _settle_all(
        self, start: StreamOffset, states: States
    ) -> tuple[dict[str, TopicPlace], dict[str, TopicPlace]]:
        """Say where to go on in the topics that are there, and in those that are not.

        A server that answers for another one, or has not opened all topics, looks like
        one where they were deleted: a topic that comes back must not be read again.
        """
        logs: defaultdict[str, list[SeenLog]] = defaultdict(list)
        for state in states.values():
            logs[state.log.topic].append(state)
        settled, away = {}, {}
        for topic in sorted({*logs, *(name for name, _ in start.topics)}):
            place = start.get(topic)
            if topic in logs:
                settled[topic] = self._settle(place, logs[topic])
                continue
            assert place is not None
            is_read = self._options.reads(topic)
            if not place.is_away:
                self._losses.report(self._make_gone(topic, place, is_read))
            if is_read:
                away[topic] = replace(place, is_away=True)
        return settled, away

    def _make_gone(self, topic: str, place: TopicPlace, is_read: bool) -> DataLoss:
        if is_read:
            return make_gone(LogRef(Partition(topic), place.topic_id), place.offset)
        reason = "the checkpoint has it, and the options do not name it any more"
        return DataLoss(topic, place.offset, None, None, reason)

    def _settle(self, place: TopicPlace | None, states: list[SeenLog]) -> TopicPlace:
        """Say where to go on in a topic, after a loss if need be."""
        log = states[0].log
        if place is None:
            return TopicPlace.at(log.topic_id, log.created_s, self._first)
        if not _is_same(place, states[0]):
            # That the old one is gone was reported when it went.
            if not place.is_away:
                bounds = self._find_bounds(states[0])
                loss = make_recreated(log, place, log.topic_id, bounds)
                self._losses.report(loss)
            self._losses.begin_anew(log.topic)
            place = place.turn_to(log.topic_id, log.created_s, self._first)
        place = replace(place, is_away=False)
        for state in states:
            place = self._settle_log(place, state)
        return place

    def _settle_log(self, place: TopicPlace, state: SeenLog) -> TopicPlace:
        log, position = state.log, self._position(place, state.log)
        unit = self._driver.traits.unit
        if state.end < position:
            reason = (
                f"the log ends {position - state.end} {unit} before it: the server has "
                "deleted data, or the log was cut or restored from a copy"
            )
            bounds = self._find_bounds(state)
            loss = DataLoss(log.name, position, bounds.start, bounds.end, reason)
        elif is_marked_right(self._driver, log, place):
            # Also where nothing seems to be unread: as much may have come as was
            # deleted.
            cuts = list(find_cut(log, place, Bounds(0, state.end), unit))
            for cut in cuts:
                self._losses.report(cut)
            # A loss that was reported is settled: it must not be met again.
            return self._mark(place, state, position) if cuts else place
        else:
            loss = make_shifted(log, place, self._find_bounds(state), unit)
        self._losses.report(loss)
        # Positions tell nothing any more, so the stream goes on with what comes now.
        return self._move(place, state, state.end)

    def _find_bounds(self, state: SeenLog) -> Bounds:
        """Say where a log starts that ends where it was seen to."""
        found = self._driver.bounds([state.log]).get(state.log.partition)
        if found is None:
            text = describe_missing(self._options.client, [state.log.topic])
            raise TopicNotFound(text)
        return Bounds(found.start, state.end)

    def _position(self, place: TopicPlace, log: LogRef) -> int:
        return place.position(log.partition.number, self._first)

    def _move(self, place: TopicPlace, state: SeenLog, position: int) -> TopicPlace:
        if (state.log.partition.number, position) in place.positions:
            return place
        return self._mark(place, state, position)

    def _mark(self, place: TopicPlace, state: SeenLog, position: int) -> TopicPlace:
        with _noting_loss():
            mark = self._driver.mark_position(state.log, position, state.end)
        return place.moved(state.log.partition.number, position, mark)

    def _find_stop(self, state: SeenLog, place: TopicPlace) -> int:
        """Say how far a partition may be read."""
        if self._target is None:
            return state.end
        target = self._target.get(state.log.partition)
        if target is None or not _is_same(place, target):
            # It came later, and is read by the next run.
            return self._position(place, state.log)
        return min(state.end, target.end)

    def _find_first(self, state: SeenLog, position: int) -> int:
        """Say where the first record is, behind what is removed."""
        log = state.log
        found = self._driver.align(log, position)
        if found == position:
            self.aligned[log.partition] = position
            return found
        log_start = self._find_bounds(state).start
        if log_start <= position:
            # A log that grows again hides that it was shorter than the position.
            reason = (
                "no record starts there any more: the log was cut or restored from a "
                "copy, and something else was appended since"
            )
            self._losses.report(
                DataLoss(log.name, position, log_start, state.end, reason)
            )
            return found
        bounds = Bounds(log_start, max(log_start, state.end))
        planned = plan_range(log.name, position, state.end, bounds)
        for loss in planned.losses:
            self._losses.report(loss)
        return planned.start

    # How much.

    def _make_limit(self) -> BatchLimit:
        if not self._is_limited:
            return BatchLimit()
        options = self._options
        limit = BatchLimit(
            options.max_bytes_per_trigger, options.max_records_per_trigger
        )
        if limit == BatchLimit():
            return BatchLimit(self._driver.traits.batch_units_max)
        return limit

    def _explain(self, fault: RecordError) -> RecordError:
        """Say what to do about bytes that a plain server has and that are no record."""
        bound = self._options.start
        given = bound.offsets if isinstance(bound, AtOffsets) else ()
        if any(offset == fault.position for _, offset in given):
            remedy = "startingOffsets has to name an offset at which a record starts"
        else:
            remedy = (
                "nothing tells where the next record starts, so the stream can't go "
                "on: start a new query behind it, with startingOffsets"
            )
        return RecordError(f"{fault.reason}; {remedy}", fault.position)


def _is_same(place: TopicPlace, state: SeenLog) -> bool:
    return place.same_topic(state.log.topic_id, state.log.created_s)


@contextmanager
def _noting_loss() -> Iterator[None]:
    """Let another look tell what was lost since the last one."""
    try:
        yield
    except DataLoss as loss:
        raise LostMeanwhile(*loss.args) from loss
