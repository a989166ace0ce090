"""What a topic should hold against what it does, in words that help.

Pure: rows in, a text out. Rows are tuples that can be compared; where a row is found
is told by its number and its offset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from lance_spark.testing.rows import Row

_Item = TypeVar("_Item")

# How many rows of a kind are shown, and how much of each.
_ROWS_SHOWN = 10
_TEXT_SHOWN = 80

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs; rows are shown in the order in which they come.

    Args:
        fields: what was compared.
        expected: how many rows there should be.
        found: how many there are.
        missing: rows that are not there, or not often enough, with how often.
        surplus: rows that nobody expects, with the places where they are.
        doubled: rows that are there too often, with how often they should be and the
            places where they are.
        misplaced: places that have another row than they should, with what they have
            and should have; only looked for where all rows are there.
    """

    fields: tuple[str, ...]
    expected: int
    found: int
    missing: tuple[tuple[Row, int], ...]
    surplus: tuple[tuple[Row, tuple[int, ...]], ...]
    doubled: tuple[tuple[Row, int, tuple[int, ...]], ...]
    misplaced: tuple[tuple[int, Row, Row], ...]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.has_surplus or self.misplaced)

    @property
    def has_surplus(self) -> bool:
        """Whether there is something that more rows would not mend."""
        return bool(self.surplus or self.doubled)

    def describe(self, topic: str, offsets: Sequence[int]) -> str:
        """Say what differs.

        Args:
            topic: the name of the topic.
            offsets: where each of the rows that were found is.
        """

        def where(places: Sequence[int]) -> str:
            shown = [f"record {n} (offset {offsets[n]})" for n in places[:_ROWS_SHOWN]]
            rest = len(places) - len(shown)
            return ", ".join(shown) + (f" and {rest} more" if rest else "")

        def show(row: Row) -> str:
            return show_row(self.fields, row)

        lines = [
            f"topic {topic!r} does not hold what it should: "
            f"{self.expected} {'record' if self.expected == 1 else 'records'} "
            f"expected, {self.found} found"
        ]
        lines += _list(
            "missing",
            self.missing,
            lambda item: show(item[0]) + (f", {item[1]} times" if item[1] > 1 else ""),
        )
        lines += _list(
            "too much",
            self.surplus,
            lambda item: f"{show(item[0])} at {where(item[1])}",
        )
        lines += _list(
            "doubled",
            self.doubled,
            lambda item: (
                f"{show(item[0])}: {len(item[2])} times in place of {item[1]}, at "
                f"{where(item[2])}"
            ),
        )
        lines += _list(
            "out of order",
            self.misplaced,
            lambda item: (
                f"{where([item[0]])} is {show(item[1])}, expected {show(item[2])}"
            ),
        )
        return "\n".join(lines)


def compare(
    expected: Sequence[Row],
    found: Sequence[Row],
    *,
    fields: tuple[str, ...],
    ordered: bool,
) -> Comparison:
    """Compare rows, each as often as it comes.

    Args:
        expected: what there should be.
        found: what there is.
        fields: what the parts of a row are.
        ordered: whether they have to come in the same order.
    """
    wanted = Counter(expected)
    places: dict[Row, list[int]] = defaultdict(list)
    for number, row in enumerate(found):
        places[row].append(number)
    missing, surplus, doubled = [], [], []
    for row, count in wanted.items():
        there = len(places.get(row, ()))
        if there < count:
            missing.append((row, count - there))
        elif there > count:
            doubled.append((row, count, tuple(places[row])))
    for row, numbers in places.items():
        if row not in wanted:
            surplus.append((row, tuple(numbers)))
    misplaced = []
    if ordered and not (missing or surplus or doubled):
        pairs = enumerate(zip(found, expected, strict=True))
        misplaced = [(n, is_, should) for n, (is_, should) in pairs if is_ != should]
    return Comparison(
        fields,
        len(expected),
        len(found),
        tuple(missing),
        tuple(surplus),
        tuple(doubled),
        tuple(misplaced),
    )


def show_row(fields: Sequence[str], row: Row) -> str:
    """Write a row for people."""
    return ", ".join(
        f"{name} {_show(name, part)}" for name, part in zip(fields, row, strict=True)
    )


def _list(
    title: str, items: Sequence[_Item], show: Callable[[_Item], str]
) -> list[str]:
    if not items:
        return []
    lines = [f"  {title} ({len(items)}):"]
    lines += [f"    {show(item)}" for item in items[:_ROWS_SHOWN]]
    rest = len(items) - _ROWS_SHOWN
    return [*lines, f"    … and {rest} more"] if rest > 0 else lines


def _show(name: str, part: object) -> str:
    if isinstance(part, bytes):
        return _show_bytes(part)
    if name == "timestamp" and isinstance(part, int):
        seconds, rest_ns = divmod(part, _NS_PER_S)
        when = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")
        return f"{when}.{rest_ns:09d}".rstrip("0").rstrip(".") + "Z"
    return str(part)


def _show_bytes(data: bytes) -> str:
    # A little more than is shown, so that nothing large is decoded for it.
    head = data[: 4 * _TEXT_SHOWN]
    try:
        text = repr(head.decode())
    except UnicodeDecodeError as error:
        # A character that the cut has divided is not the data's fault.
        is_cut = len(head) < len(data) and error.start > len(head) - 4
        text = repr(head[: error.start].decode()) if is_cut else repr(head)
    if len(text) > _TEXT_SHOWN or len(head) < len(data):
        return f"{text[:_TEXT_SHOWN]}… ({len(data)} bytes)"
    return text
