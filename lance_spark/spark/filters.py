"""Filters that Spark leaves to us: a range of offsets, some topics, the rest in Arrow.

Spark does not check a filter again that is taken here, so a filter is taken only if it
means exactly what Spark means by it, nulls included: a comparison with null is neither
true nor false, and neither is its negation; only `<=>` and `is null` know nulls. Spark
casts a literal to the type of its column before it sends it. One of another type, and
everything else that is not known here, stays with Spark.

Strings and bytes are compared as unsigned bytes, timestamps as microseconds, by Spark
and by Arrow alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds

# Filters, and Arrow's functions for them. The functions are found where filters are
# applied: `pyarrow.compute` makes them when it is imported, and most reads push none.

# Each compares a column with a literal; null where the column is null.
_COMPARE: dict[type[ds.Filter], str] = {
    ds.EqualTo: "equal",
    ds.EqualNullSafe: "equal",
    ds.GreaterThan: "greater",
    ds.GreaterThanOrEqual: "greater_equal",
    ds.LessThan: "less",
    ds.LessThanOrEqual: "less_equal",
}
_MATCH: dict[type[ds.Filter], str] = {
    ds.StringStartsWith: "starts_with",
    ds.StringEndsWith: "ends_with",
    ds.StringContains: "match_substring",
}
_NULLNESS: dict[type[ds.Filter], str] = {
    ds.IsNull: "is_null",
    ds.IsNotNull: "is_valid",
}
_EQUAL = (ds.EqualTo, ds.EqualNullSafe)

_INT_BITS = {"partition": 32, "type": 16} | dict.fromkeys(
    ("offset", "next_offset", "timestamp_ns"), 64
)
_HALF = re.compile("[\ud800-\udfff]")
_TEXT = ("topic", "key", "value")
_COLUMNS = {*_INT_BITS, *_TEXT, "timestamp"}


@dataclass(frozen=True, slots=True)
class Pushed:
    """What filters ask for; the reader that accepts them has to do all of it.

    Args:
        start: no record that starts before this offset is wanted.
        end: no record that starts here or behind is wanted.
        topics: the only topics that are wanted; None means all.
        predicates: what `select` does.
    """

    start: int | None = None
    end: int | None = None
    topics: frozenset[str] | None = None
    predicates: tuple[ds.Filter, ...] = ()

    def keeps_topic(self, topic: str) -> bool:
        """Say whether records of a topic can be wanted, so that others are not read."""
        if self.topics is not None and topic not in self.topics:
            return False
        mine = [test for test in self.predicates if _column(test) == "topic"]
        if not mine:
            return True
        name = pa.record_batch({"topic": pa.array([topic])})
        return all(_test(test, name)[0].as_py() for test in mine)

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the rows that fulfil the predicates; it has the columns they name."""
        if not self.predicates or not batch.num_rows:
            return batch
        import pyarrow.compute as pc

        # Null and not null is null or false, and a row of either is dropped.
        wanted = reduce(pc.and_, (_test(test, batch) for test in self.predicates))
        if wanted.true_count == batch.num_rows:
            return batch
        return batch.filter(wanted)


def push_filters(
    filters: Iterable[ds.Filter], *, narrow: bool
) -> tuple[Pushed, list[ds.Filter]]:
    """Take the filters that can be fulfilled exactly.

    Args:
        filters: what Spark offers; all of them have to hold for a row.
        narrow: turn filters on offset into a range of offsets, for a server that finds
            the first record in it. Otherwise they are predicates like others.

    Returns:
        What is taken, and the filters that Spark must still apply.
    """
    pushed, left = Pushed(), []
    for each in filters:
        if not _is_exact(each):
            left.append(each)
        elif narrow and _column(each) == "offset":
            pushed = _narrow_offsets(pushed, each)
        elif _column(each) == "topic" and isinstance(each, (*_EQUAL, ds.In)):
            names = frozenset(_literals(each)) - {None}
            topics = names if pushed.topics is None else names & pushed.topics
            pushed = replace(pushed, topics=topics)
        else:
            pushed = _add(pushed, each)
    return pushed, left


# What can be taken.


def _is_exact(test: ds.Filter) -> bool:
    negated = isinstance(test, ds.Not)
    inner = test.child if isinstance(test, ds.Not) else test
    kind = type(inner)
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or _column(inner) not in _COLUMNS:
        return False
    if kind in _NULLNESS:
        return True
    literals = _literals(inner)
    if kind is ds.In and not negated:
        # A null in the list makes nothing true.
        literals = [value for value in literals if value is not None]
    elif kind in _MATCH:
        literals = [v if isinstance(v, str) else None for v in literals]
    elif kind is not ds.In and kind not in _COMPARE:
        return False
    column = _column(inner)
    return bool(literals) and all(_is_literal(column, value) for value in literals)


def _is_literal(column: str, value: object) -> bool:
    """Say whether a literal is of the type that the column has."""
    if column in _INT_BITS:
        limit = 1 << (_INT_BITS[column] - 1)
        return type(value) is int and -limit <= value < limit
    if column in _TEXT:
        if isinstance(value, bytes):
            return column != "topic"
        # Arrow takes no half of a surrogate pair.
        return isinstance(value, str) and not _HALF.search(value)
    return isinstance(value, datetime) and value.utcoffset() is not None


def _column(test: ds.Filter) -> str:
    """Name the column of a filter, which has the name that the user's schema gives."""
    inner = test.child if isinstance(test, ds.Not) else test
    path: tuple[str, ...] = inner.attribute  # type: ignore[attr-defined]  # But ds.Not.
    return path[0].lower()


def _literals(test: ds.Filter) -> list[Any]:
    value: Any = getattr(test, "value", None)
    return list(value) if isinstance(test, ds.In) else [value]


# Taking it.


def _narrow_offsets(pushed: Pushed, test: ds.Filter) -> Pushed:
    values = [value for value in _literals(test) if value is not None]
    if isinstance(test, (*_EQUAL, ds.In)):
        narrowed = _intersect(pushed, min(values), max(values) + 1)
        return narrowed if len(values) == 1 else _add(narrowed, test)
    if isinstance(test, (ds.GreaterThan, ds.GreaterThanOrEqual)):
        start = values[0] + isinstance(test, ds.GreaterThan)
        return _intersect(pushed, start, None)
    if isinstance(test, (ds.LessThan, ds.LessThanOrEqual)):
        end = values[0] + isinstance(test, ds.LessThanOrEqual)
        return _intersect(pushed, None, end)
    return _add(pushed, test)


def _intersect(pushed: Pushed, start: int | None, end: int | None) -> Pushed:
    starts = [value for value in (pushed.start, start) if value is not None]
    ends = [value for value in (pushed.end, end) if value is not None]
    return replace(pushed, start=max(starts, default=None), end=min(ends, default=None))


def _add(pushed: Pushed, test: ds.Filter) -> Pushed:
    return replace(pushed, predicates=(*pushed.predicates, test))


# Doing it.


def _test(test: ds.Filter, batch: pa.RecordBatch) -> pa.Array:
    """Say for each row whether a filter holds; null where Spark has null."""
    import pyarrow.compute as pc

    negated = isinstance(test, ds.Not)
    inner = test.child if isinstance(test, ds.Not) else test
    column = batch.column(_column(inner))
    found = _evaluate(inner, column)
    if not negated:
        return found
    found = pc.invert(found)
    # Arrow says that null is in no list; for Spark that is not known.
    return pc.and_(found, column.is_valid()) if isinstance(inner, ds.In) else found


def _evaluate(test: ds.Filter, column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    kind = type(test)
    if kind in _NULLNESS:
        return getattr(pc, _NULLNESS[kind])(column)
    literals = [value for value in _literals(test) if value is not None]
    if kind in _MATCH:
        return getattr(pc, _MATCH[kind])(column, pattern=literals[0])
    if kind is ds.In:
        return pc.is_in(column, value_set=pa.array(literals, column.type))
    compare = getattr(pc, _COMPARE[kind])
    found = compare(column, pa.scalar(literals[0], column.type))
    return found.fill_null(False) if kind is ds.EqualNullSafe else found
