"""Losses that a stream meets: an error, or a warning and a number to watch."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

from lance_spark.errors import DataLoss
from lance_spark.spark.topics import report_loss

# So many losses of a topic are known to be told. A slow query meets new ones for ever,
# and one that it meets again is one of the last few.
_TOLD_MAX = 16


class LossLog:
    """Reports each loss once and counts what is lost.

    A stream meets a loss several times: when it looks, when it plans, and again after
    each look until it is past it.

    Args:
        is_error: raise it, instead of going on.
    """

    def __init__(self, is_error: bool) -> None:
        self._is_error = is_error
        self._told: defaultdict[int | str, deque[tuple[int, str]]] = defaultdict(
            lambda: deque(maxlen=_TOLD_MAX)
        )
        self._lost_bytes: Counter[int | str] = Counter()
        # Up to where the losses of a topic are counted, as they overlap.
        self._counted: dict[int | str, int] = {}

    def report(self, loss: DataLoss) -> None:
        """Raise a loss with its remedy, or say it in the log for the first time.

        Raises:
            DataLoss: that is what was asked for.
        """
        if self._is_error:
            report_loss(loss, is_error=True)
        # Where the log starts and ends goes on changing for the same loss.
        told, key = self._told[loss.topic], (loss.asked, loss.reason)
        if key not in told:
            told.append(key)
            report_loss(loss, is_error=False)
        if loss.log_start is not None:
            first = max(loss.asked, self._counted.get(loss.topic, 0))
            self._lost_bytes[loss.topic] += max(0, loss.log_start - first)
            self._counted[loss.topic] = max(first, loss.log_start)

    def begin_anew(self, topic: str) -> None:
        """Note that a topic was created anew, so that its offsets start over."""
        self._counted.pop(topic, None)

    def lost_bytes(self, topic: str) -> int:
        """Say how much of a topic is known to be lost since the query was started."""
        return self._lost_bytes[topic]
