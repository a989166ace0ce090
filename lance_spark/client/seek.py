"""Where to read from: a value, resolved to an offset by who has a connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import ClassVar

from lance_spark.errors import OptionError

_U64_MAX = 2**64 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NS_PER_US = 1000


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
        _check(offset, "an offset")
        return cls(SeekKind.OFFSET, offset)

    @classmethod
    def time_ns(cls, time_ns: int) -> SeekPosition:
        """Make the position of the first record appended at or after a time.

        Args:
            time_ns: nanoseconds since 1970 on the broker's clock.

        Raises:
            OptionError: if the time is before 1970 or beyond what LWP can say.
        """
        _check(time_ns, "a time in ns")
        return cls(SeekKind.TIME, time_ns)

    @classmethod
    def time(cls, when: datetime) -> SeekPosition:
        """Make the same from a `datetime`, which must have a time zone.

        Raises:
            OptionError: if it has none, or is before 1970.
        """
        if not isinstance(when, datetime):
            raise OptionError(
                f"time {when!r} is no datetime: give one with a time zone"
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
        f"{place!r} is no position: give an offset, or one of SeekPosition.BEGINNING, "
        "END, offset(…), time(…)"
    )


def _check(value: int, what: str) -> None:
    if not isinstance(value, int) or not 0 <= value <= _U64_MAX:
        raise OptionError(f"{value} is not {what}: it must be 0 to {_U64_MAX}")
