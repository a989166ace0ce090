"""Where `consume` starts and ends, as typed and as offsets."""

from __future__ import annotations

from lance_spark.cli.quantity import Parsed
from lance_spark.client import LanceClient, SeekKind, SeekPosition
from lance_spark.errors import OptionError
from lance_spark.quantity import parse_time
from lance_spark.wire.lwp import Capability


def parse_start(text: str) -> SeekPosition:
    """Read `beginning`, `end`, an offset, or a time.

    Raises:
        OptionError: it is none of them.
    """
    if text == "beginning":
        return SeekPosition.BEGINNING
    if text == "end":
        return SeekPosition.END
    if text.isascii() and text.isdecimal():
        return SeekPosition.offset(int(text))
    try:
        return SeekPosition.time_ns(parse_time(text))
    except OptionError as error:
        raise OptionError(f"{error}; or beginning, end, or an offset") from None


def parse_end(text: str) -> SeekPosition:
    """Read `end` or an offset.

    Raises:
        OptionError: it is neither.
    """
    if text == "end":
        return SeekPosition.END
    if text.isascii() and text.isdecimal():
        return SeekPosition.offset(int(text))
    raise OptionError(f"{text!r} is no end: give end, or an offset")


START = Parsed("place", parse_start)
END = Parsed("place", parse_end)


def find_start(
    client: LanceClient, topic: int | str, position: SeekPosition
) -> tuple[int, str | None]:
    """Find the record to start with.

    Returns:
        Its offset, and a note if that is not what was asked for.

    Raises:
        Unsupported: a time, and the server can't find it.
    """
    if position.kind is SeekKind.BEGINNING:
        return client.bounds(topic).start or 0, None
    if position.kind is SeekKind.END:
        return client.bounds(topic).end, None
    if position.kind is SeekKind.TIME:
        return client.locate_time(topic, position.value).offset, None
    asked = position.value
    if not client.supports(Capability.LOCATE):
        return asked, None
    found = client.locate_offset(topic, asked).offset
    if found == asked:
        return found, None
    bounds = client.bounds(topic)
    if bounds.start is not None and asked < bounds.start:
        return found, f"offset {asked} is not there any more, starting at {found}"
    if asked > bounds.end:
        return found, f"offset {asked} is not there yet, starting at {found}"
    return found, f"offset {asked} is inside a record, starting at {found}"


def find_end(client: LanceClient, topic: int | str, position: SeekPosition) -> int:
    """Find the offset to stop at."""
    if position.kind is SeekKind.OFFSET:
        return position.value
    return client.bounds(topic).end
