"""Options that contradict each other, as far as they tell without a server.

Whether an offset or a time is there is for `planning` to find out.
"""

from __future__ import annotations

import re

from lance_spark.errors import OptionError
from lance_spark.spark.bound import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    Bound,
    Earliest,
    Latest,
)
from lance_spark.spark.setting import Values

_WORDS: dict[int | None, str] = {EARLIEST_OFFSET: "earliest", LATEST_OFFSET: "latest"}
_TLS = ("tlsCa", "tlsCert", "tlsKey", "tlsServerName")
_BOUNDS = (
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
)


def check_conflicts(values: Values) -> None:
    """Check that options go together.

    Raises:
        OptionError: they do not; names two of them and says what to change.
    """
    _check_tls(values)
    _check_topics(values)
    _check_metadata(values)
    _check_bounds(values)
    _check_transaction(values)


def pick_start(values: Values) -> Bound:
    """Say where a read starts."""
    return _pick(values, *_BOUNDS[0])


def pick_end(values: Values) -> Bound:
    """Say where a read ends."""
    return _pick(values, *_BOUNDS[1])


def _pick(values: Values, offsets: str, timestamp: str) -> Bound:
    bound: Bound = values[timestamp] or values[offsets]
    return bound


def _check_tls(values: Values) -> None:
    given = [name for name in _TLS if name in values]
    if given and not values["tls"]:
        raise OptionError(
            f"option {given[0]} is given without tls: set option tls to true, or leave "
            f"out {', '.join(given)}"
        )
    if "tlsKey" in values and "tlsCert" not in values:
        raise OptionError(
            "option tlsKey is given without tlsCert: give the certificate too"
        )


def _check_topics(values: Values) -> None:
    if "topic" in values and "topicPattern" in values:
        raise OptionError(
            "options topic and topicPattern are both given: leave out the one or the "
            "other"
        )


def _check_metadata(values: Values) -> None:
    names = (*(name for pair in _BOUNDS for name in pair), "pushFilters")
    given = [name for name in names if name in values]
    if given and "metadata" in values:
        raise OptionError(
            f"option {given[0]} is given with metadata, which reads no records: leave "
            "out the one or the other"
        )


def _check_bounds(values: Values) -> None:
    for offsets, timestamp in _BOUNDS:
        given = [name for name in (offsets, timestamp) if name in values]
        if len(given) > 1:
            raise OptionError(
                f"options {offsets} and {timestamp} are both given: leave out the one "
                "or the other"
            )
        if isinstance(values[offsets], AtOffsets):
            _check_named(values, offsets)
    _check_order(values)


def _check_named(values: Values, name: str) -> None:
    """Check that a JSON of offsets names the topics that are read."""
    topics, pattern = values["topic"], values["topicPattern"]
    named = values[name].topics
    for topic in named:
        if topics is not None and topic not in topics:
            raise OptionError(
                f"option {name} names topic {topic!r}, which option topic does not: "
                "add it there, or leave it out here"
            )
        if pattern is not None and re.fullmatch(pattern, topic) is None:
            raise OptionError(
                f"option {name} names topic {topic!r}, which option topicPattern "
                f"{pattern!r} does not match: change the pattern, or leave it out here"
            )
    # Which topics a pattern matches, the server tells when the read is planned.
    values[name].check_complete(name, topics or ())


def _check_order(values: Values) -> None:
    start, end = pick_start(values), pick_end(values)
    if isinstance(start, AtTime) and isinstance(end, AtTime):
        if start.time_ns > end.time_ns:
            raise OptionError(
                "option startingTimestamp is later than endingTimestamp: exchange them"
            )
        return
    named = [b.topics for b in (start, end) if isinstance(b, AtOffsets)]
    # Two words mean the same for every topic.
    for topic in sorted({name for names in named for name in names} or {""}):
        first, last = _offset_in(start, topic), _offset_in(end, topic)
        if _is_after(first, last):
            where = f" for topic {topic!r}" if topic else ""
            given = " and ".join(str(_WORDS.get(at, at)) for at in (first, last))
            raise OptionError(
                f"option startingOffsets is behind endingOffsets{where} ({given}): "
                "exchange them"
            )


def _offset_in(bound: Bound, topic: str) -> int | None:
    if isinstance(bound, Earliest):
        return EARLIEST_OFFSET
    if isinstance(bound, Latest):
        return LATEST_OFFSET
    return bound.get(topic) if isinstance(bound, AtOffsets) else None


def _is_after(start: int | None, end: int | None) -> bool:
    """Tell what is certain without a look at the log."""
    if start is None or end is None:
        return False
    if start == LATEST_OFFSET:
        return end == EARLIEST_OFFSET
    return start > end >= 0


def _check_transaction(values: Values) -> None:
    given = [name for name in ("txnAppId", "txnVersion") if name in values]
    if not given:
        return
    if len(given) == 1:
        other = "txnVersion" if given[0] == "txnAppId" else "txnAppId"
        raise OptionError(
            f"option {given[0]} is given without {other}: give both or neither"
        )
    if values["delivery"] == "at-least-once":
        raise OptionError(
            "options txnAppId and txnVersion are given with delivery at-least-once, "
            "which can't tell a repeated write: leave out delivery, or them"
        )
