"""Where a micro-batch ends, given where it starts and what there is.

Each topic is first settled: is it the one that was read before, with the offset still
in its log and at a record? Whatever is lost is told here. Then the limits of a batch
are shared among the topics (`admission`), and the ends that come out are what Spark
writes into the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from lance_spark.client import Capability, LanceClient
from lance_spark.errors import DataLoss, RecordError
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.admission import Backlog, Budget, admit
from lance_spark.spark.batch_range import make_recreated
from lance_spark.spark.bound import AtOffsets
from lance_spark.spark.loss import LossLog
from lance_spark.spark.marking import (
    check_unread,
    find_cut,
    is_marked_right,
    make_shifted,
    mark_unread,
    take_offset_mark,
)
from lance_spark.spark.options import StreamOptions
from lance_spark.spark.planning import Limits, plan_range
from lance_spark.spark.ruler import LocatedRuler, Ruler, WalkedRuler
from lance_spark.spark.topics import make_gone
from lance_spark.spark.watch import Head

# How much a batch has at most on a server that can't tell where records end, so that
# all of it goes through the driver, if nobody says otherwise.
PLAIN_BATCH_BYTES = 64 * 1024 * 1024


class LostMeanwhile(DataLoss):
    """What was there at the look is not there any more; another look tells why."""


class BatchEnd:
    """Finds the end of one batch.

    Args:
        client: asks.
        options: what the user has said.
        losses: is told what is lost.
        target: where `Trigger.AvailableNow` ends; None without it.
        turn: one higher for each batch, so that topics take turns.
        is_limited: whether the limits of the options hold.
    """

    def __init__(
        self,
        client: LanceClient,
        options: StreamOptions,
        losses: LossLog,
        *,
        target: Mapping[str, Head] | None,
        turn: int,
        is_limited: bool,
    ) -> None:
        self._client = client
        self._options = options
        self._losses = losses
        self._target = target
        self._turn = turn
        self._is_limited = is_limited
        # Whether anything waits. Otherwise turns would count looks and not batches, and
        # it might be the same topic's turn whenever there is something to read.
        self.is_worth_a_turn = False

    def find(
        self, start: StreamOffset, heads: Mapping[str, Head]
    ) -> dict[str, TopicPlace]:
        """Say where the batch ends in each topic, if nothing shifts meanwhile.

        An end that was found while a server deletes may be inside a record by now, and
        would be written down for ever.

        Args:
            start: where the batch starts.
            heads: what there was at the last look.

        Raises:
            LostMeanwhile: it is not there any more; look again.
            TopicNotFound, TopicDeleted: a topic was deleted since; look again.
            DataLoss: something that was to be read is gone, and that is an error.
            RecordError: what a plain server has is no record.
        """
        client = self._client
        if not is_plain(client):
            return self._find_still(start, heads)
        with _noting_loss():
            unread = mark_unread(client, start, heads)
        try:
            places = self._find_still(start, heads)
        except RecordError:
            # Offsets that have shifted explain it better.
            with _noting_loss():
                check_unread(client, unread)
            raise
        with _noting_loss():
            check_unread(client, unread)
        return places

    def _find_still(
        self, start: StreamOffset, heads: Mapping[str, Head]
    ) -> dict[str, TopicPlace]:
        settled, away = self._settle_all(start, heads)
        backlogs = []
        for topic, place in settled.items():
            first, stop = place.offset, self._find_stop(topic, heads[topic], place)
            if stop > first:
                first = self._find_first(topic, place, heads[topic])
            # Those with nothing to read are among them, as all take turns.
            ruler = self._make_ruler(topic, place)
            backlogs.append(Backlog(topic, first, max(first, stop), ruler))
        waiting = {b.topic: b.start for b in backlogs if b.start < b.end}
        self.is_worth_a_turn = bool(waiting)
        try:
            with _noting_loss():
                ends = admit(backlogs, self._make_budget(), turn=self._turn)
        except RecordError as fault:
            raise self._explain(fault) from fault
        for topic, end in ends.items():
            log_end = heads[topic].end
            settled[topic] = _move(self._client, topic, settled[topic], end, log_end)
        # A topic is not worth a batch before it has a record. One that has to wait is
        # noted in a batch of others: it is a loss if it is deleted meanwhile.
        is_worth_it = any(ends[topic] > first for topic, first in waiting.items())
        known = {
            topic: place
            for topic, place in settled.items()
            if place.offset
            or start.get(topic) is not None
            or (is_worth_it and topic in waiting)
        }
        return {**known, **away}

    def _settle_all(
        self, start: StreamOffset, heads: Mapping[str, Head]
    ) -> tuple[dict[str, TopicPlace], dict[str, TopicPlace]]:
        """Say where to go on in the topics that are there, and in those that are not.

        A server that answers for another one, or has not opened all topics, looks like
        one where they were deleted: a topic that comes back must not be read again.
        """
        settled, away = {}, {}
        for topic in sorted({*heads, *(name for name, _ in start.topics)}):
            head, place = heads.get(topic), start.get(topic)
            if head is not None:
                settled[topic] = self._settle(topic, place, head)
                continue
            assert place is not None
            is_read = self._options.read.reads(topic)
            if not place.is_away:
                self._losses.report(self._make_gone(topic, place, is_read))
            if is_read:
                away[topic] = replace(place, is_away=True)
        return settled, away

    def _make_gone(self, topic: str, place: TopicPlace, is_read: bool) -> DataLoss:
        if is_read:
            return make_gone(topic, place.topic_id, place.offset)
        reason = "the checkpoint has it, and the options do not name it any more"
        return DataLoss(topic, place.offset, None, None, reason)

    def _settle(self, topic: str, place: TopicPlace | None, head: Head) -> TopicPlace:
        """Say where to go on in a topic, after a loss if need be."""
        client = self._client
        if place is None:
            return TopicPlace.at(head.topic_id, head.created_s, 0)
        if not place.same_topic(head.topic_id, head.created_s):
            # That the old one is gone was told when it went.
            if not place.is_away:
                log = _find_log(client, head)
                self._losses.report(make_recreated(topic, place, head.topic_id, log))
            self._losses.begin_anew(topic)
            place = place.turn_to(head.topic_id, head.created_s)
        place = replace(place, is_away=False)
        if head.end < place.offset:
            reason = (
                f"the log ends {place.offset - head.end} bytes before it: the server "
                "has deleted data, or the log was cut or restored from a copy"
            )
            log = _find_log(client, head)
            loss = DataLoss(topic, place.offset, log.start, log.end, reason)
        elif is_marked_right(client, topic, place):
            # Also where nothing seems to be unread: as much may have come as was
            # deleted.
            cuts = list(find_cut(topic, place, Limits(0, head.end)))
            for cut in cuts:
                self._losses.report(cut)
            # A loss that was told is settled: it must not be met again.
            return _mark(client, topic, place, head.end) if cuts else place
        else:
            loss = make_shifted(topic, place, _find_log(client, head))
        self._losses.report(loss)
        # What comes from now on is all that can be told from what was read before.
        return _move(client, topic, place, head.end, head.end)

    def _find_stop(self, topic: str, head: Head, place: TopicPlace) -> int:
        """Say how far a topic may be read."""
        if self._target is None:
            return head.end
        target = self._target.get(topic)
        if target is None or not place.same_topic(target.topic_id, target.created_s):
            # It came later, which is for the next run.
            return place.offset
        return min(head.end, target.end)

    def _find_first(self, topic: str, place: TopicPlace, head: Head) -> int:
        """Say where the first record is, behind what is removed."""
        client = self._client
        if is_plain(client):
            return place.offset
        found = client.locate_offset(place.topic_id, place.offset).offset
        if found == place.offset:
            return found
        log_start = client.locate_start(place.topic_id).offset
        if log_start <= place.offset:
            # A log that grows again hides that it was shorter than the offset.
            reason = (
                "no record starts there any more: the log was cut or restored from a "
                "copy, and something else was appended since"
            )
            loss = DataLoss(topic, place.offset, log_start, head.end, reason)
            self._losses.report(loss)
            return found
        planned = plan_range(
            topic, place.offset, head.end, Limits(log_start, max(log_start, head.end))
        )
        for loss in planned.losses:
            self._losses.report(loss)
        return planned.start

    def _make_ruler(self, topic: str, place: TopicPlace) -> Ruler:
        if is_plain(self._client):
            fetch_bytes = self._options.read.fetch_bytes
            return WalkedRuler(self._client, topic, place.topic_id, fetch_bytes)
        return LocatedRuler(self._client, place.topic_id)

    def _make_budget(self) -> Budget:
        if not self._is_limited:
            return Budget()
        max_bytes = self._options.max_bytes
        if max_bytes is None and self._options.max_records is None:
            max_bytes = PLAIN_BATCH_BYTES if is_plain(self._client) else None
        return Budget(max_bytes, self._options.max_records)

    def _explain(self, fault: RecordError) -> RecordError:
        """Say what to do about bytes that a plain server has and that are no record."""
        bound = self._options.read.start
        given = bound.offsets if isinstance(bound, AtOffsets) else ()
        if any(offset == fault.position for _, offset in given):
            remedy = "startingOffsets has to name an offset at which a record starts"
        else:
            remedy = (
                "where the next one starts can't be told, so the stream can't go on: "
                "start a new query behind it, with startingOffsets"
            )
        return RecordError(f"{fault.reason}; {remedy}", fault.position)


def is_plain(client: LanceClient) -> bool:
    """Tell whether a server can't tell where records end."""
    return not client.supports(Capability.LOCATE)


def _find_log(client: LanceClient, head: Head) -> Limits:
    """Say where a log starts that ends where it was seen to."""
    log_start = 0 if is_plain(client) else client.locate_start(head.topic_id).offset
    return Limits(log_start, head.end)


@contextmanager
def _noting_loss() -> Iterator[None]:
    """Let another look tell what was lost since the last one."""
    try:
        yield
    except DataLoss as loss:
        raise LostMeanwhile(*loss.args) from loss


def _move(
    client: LanceClient, topic: str, place: TopicPlace, offset: int, log_end: int
) -> TopicPlace:
    """Give the place at another offset of the same topic."""
    if offset == place.offset:
        return place
    moved = replace(place, positions=((0, offset),), marks=())
    return _mark(client, topic, moved, log_end) if is_plain(client) else moved


def _mark(
    client: LanceClient, topic: str, place: TopicPlace, log_end: int
) -> TopicPlace:
    """Give a place with a new mark."""
    with _noting_loss():
        mark = take_offset_mark(client, topic, place, log_end)
    return replace(place, marks=((0, mark),))
