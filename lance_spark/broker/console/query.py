"""Which records of a topic are asked for, as a request says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from lance_spark.errors import OptionError

LIMIT_DEFAULT = 50
LIMIT_MAX = 500
# Offsets, record numbers and times are below this.
_NUMBER_END = 2**63


@dataclass(frozen=True, slots=True)
class Query:
    """Which records are asked for.

    Args:
        kind: what `value` is: `start`, `end`, `offset`, `record` or `time` (in ns).
        value: where to start.
        limit: how many records at most.
        key: only records with this key.
        search: only records with this in their key or value.
    """

    kind: str = "start"
    value: int = 0
    limit: int = LIMIT_DEFAULT
    key: bytes | None = None
    search: bytes | None = None

    @property
    def is_search(self) -> bool:
        """Whether records are picked."""
        return self.key is not None or self.search is not None


def parse_query(fields: Mapping[str, str]) -> Query:
    """Read the parameters of a request.

    Raises:
        OptionError: one of them can't be understood.
    """
    kind, value = _parse_from(fields.get("from") or "start")
    limit = _parse_number("limit", fields.get("limit") or str(LIMIT_DEFAULT))
    if not 1 <= limit <= LIMIT_MAX:
        raise OptionError(f"limit={limit}: must be from 1 to {LIMIT_MAX}")
    key, search = (_encode(fields.get(name)) for name in ("key", "search"))
    return Query(kind, value, limit, key or None, search or None)


def _encode(text: str | None) -> bytes | None:
    # What is no UTF-8 in a URL comes as surrogates.
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _parse_from(text: str) -> tuple[str, int]:
    if text in ("start", "end"):
        return text, 0
    kind, colon, value = text.partition(":")
    if colon and kind in ("offset", "record"):
        return kind, _parse_number(f"from={kind}", value)
    if colon and kind == "time":
        return kind, _parse_time_ns(value)
    raise OptionError(
        f"from={text[:80]!r}: must be start, end, offset:N, record:N or time:T"
    )


def _parse_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise OptionError(f"{name}: {text[:80]!r} is not a whole number")
    return min(int(text), _NUMBER_END - 1)


def _parse_time_ns(text: str) -> int:
    if text.isascii() and text.isdecimal():
        return min(_parse_number("from=time", text) * 1_000_000, _NUMBER_END - 1)
    try:
        # Python 3.10 does not know the Z.
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        # Whole microseconds: a float of seconds is not exact.
        since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise OptionError(
            f"from=time: {text[:80]!r} is neither milliseconds since 1970 nor a time "
            "such as 2026-01-31T12:00:00Z"
        ) from None
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return min(max(0, micros * 1000), _NUMBER_END - 1)
