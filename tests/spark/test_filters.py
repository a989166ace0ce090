"""Filters: what is taken, that it means what Spark means, and what is left to Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from lance_spark.spark.filters import Pushed, push_filters
from tests.each import each
from tests.spark.engine.filtered import SCHEMA, FilteredSource, apply, make_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OFFSET, TOPIC, KEY, VALUE = ("offset",), ("topic",), ("key",), ("value",)
INT64_MAX = 2**63 - 1
DAY = datetime(2024, 1, 1, tzinfo=timezone.utc)


def take(*filters: Filter, narrow: bool = True) -> Pushed:
    """Push filters that all have to be taken."""
    pushed, left = push_filters(filters, narrow=narrow)
    assert left == []
    return pushed


def keep(column: str, values: list[Any], kind: pa.DataType, test: Filter) -> list[Any]:
    """Push one filter on one column and give the values that are kept."""
    batch = pa.record_batch({column: pa.array(values, kind)})
    kept: list[Any] = take(test, narrow=False).select(batch)[column].to_pylist()
    return kept


# Offsets.


@each(
    ("filters", "start", "end"),
    [
        ([GreaterThan(OFFSET, 5)], 6, None),
        ([GreaterThanOrEqual(OFFSET, 5)], 5, None),
        ([LessThan(OFFSET, 5)], None, 5),
        ([LessThanOrEqual(OFFSET, 5)], None, 6),
        ([EqualTo(OFFSET, 5)], 5, 6),
        ([EqualNullSafe(OFFSET, 5)], 5, 6),
        ([In(OFFSET, [5])], 5, 6),
        ([In(OFFSET, [5, None])], 5, 6),
        ([GreaterThan(OFFSET, 5), LessThan(OFFSET, 9)], 6, 9),
        ([GreaterThan(OFFSET, 5), GreaterThan(OFFSET, 2)], 6, None),
        ([LessThan(OFFSET, 5), LessThan(OFFSET, 9)], None, 5),
        ([EqualTo(OFFSET, 5), EqualTo(OFFSET, 6)], 6, 6),
        ([GreaterThan(OFFSET, INT64_MAX)], INT64_MAX + 1, None),
        ([GreaterThan(OFFSET, -(2**63))], -(2**63) + 1, None),
    ],
)
def test_offsets_become_a_range(
    filters: list[Filter], start: int | None, end: int | None
) -> None:
    assert take(*filters) == Pushed(start, end)


def test_a_list_of_offsets_is_a_range_and_a_predicate() -> None:
    listed = In(OFFSET, [9, 5, None])
    assert take(listed) == Pushed(5, 10, None, (listed,))


@pytest.mark.parametrize(
    "test", [Not(EqualTo(OFFSET, 5)), Not(In(OFFSET, [5])), IsNotNull(OFFSET)]
)
def test_what_is_no_range_is_a_predicate(test: Filter) -> None:
    assert take(test) == Pushed(predicates=(test,))


@pytest.mark.parametrize("test", [GreaterThan(OFFSET, 5), EqualTo(OFFSET, 5)])
def test_offsets_narrow_nothing_where_the_server_finds_no_record(test: Filter) -> None:
    assert take(test, narrow=False) == Pushed(predicates=(test,))


# Topics.


def test_topics_are_selected_by_name() -> None:
    assert take(EqualTo(TOPIC, "a")).topics == {"a"}
    assert take(EqualNullSafe(TOPIC, "a")).topics == {"a"}
    assert take(In(TOPIC, ["a", None, "b"])).topics == {"a", "b"}
    assert take(In(TOPIC, ["a", "b"]), In(TOPIC, ["b", "c"])).topics == {"b"}
    assert take(EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b")).topics == frozenset()
    assert take(GreaterThan(OFFSET, 5)).topics is None


def test_topics_that_nobody_wants_are_not_read() -> None:
    assert Pushed().keeps_topic("a")
    some = take(In(TOPIC, ["a", "ab"]), Not(StringEndsWith(TOPIC, "b")))
    assert [name for name in ("a", "ab", "c") if some.keeps_topic(name)] == ["a"]


def test_predicates_on_topics_are_done_again_by_select() -> None:
    batch = pa.record_batch({"topic": ["a", "b"]})
    assert take(StringStartsWith(TOPIC, "b")).select(batch).to_pylist() == [
        {"topic": "b"}
    ]


# Rows, against Spark's logic of three values in plain Python.

COMPARE: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    StringStartsWith: lambda a, b: a.startswith(b),
    StringEndsWith: lambda a, b: a.endswith(b),
    StringContains: lambda a, b: b in a,
}


def judge(test: Filter, value: Any) -> bool | None:
    """Say what Spark says of a value."""
    if isinstance(test, Not):
        found = judge(test.child, value)
        return None if found is None else not found
    if isinstance(test, IsNull):
        return value is None
    if isinstance(test, IsNotNull):
        return value is not None
    if isinstance(test, EqualNullSafe):
        return bool(value == test.value)
    if value is None:
        return None
    if isinstance(test, In):
        if value in test.value:
            return True
        return None if None in test.value else False
    # Strings are ordered by their bytes.
    mine, other = (
        v.encode() if isinstance(v, str) else v
        for v in (value, test.value)  # type: ignore[attr-defined]
    )
    return COMPARE[type(test)](mine, other)


TEXT = st.text(st.sampled_from("ab\x00ä\uffff\U0001f600"), max_size=3)
BYTES = st.binary(max_size=2) | st.sampled_from([b"\x7f", b"\x80", b"\xff\x00"])
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "offset": (pa.int64(), st.integers(0, 5) | st.just(INT64_MAX)),
    "next_offset": (pa.int64(), st.integers(0, 5)),
    "type": (pa.int16(), st.integers(0, 3) | st.just(255)),
    "timestamp_ns": (pa.int64(), st.integers(-2, 2)),
    "key": (pa.binary(), BYTES),
    "value": (pa.string(), TEXT),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.integers(-2, 2).map(lambda us: DAY + timedelta(microseconds=us)),
    ),
}
MATCHES = (StringStartsWith, StringEndsWith, StringContains)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Any], Filter]:
    """Draw a column, values for it with nulls, and a filter on it."""
    column = draw(st.sampled_from(sorted(KINDS)))
    _, literals = KINDS[column]
    values = draw(st.lists(st.none() | literals, max_size=8))
    kinds = [*COMPARE, EqualNullSafe, In, IsNull, IsNotNull]
    if column != "value":
        kinds = [kind for kind in kinds if kind not in MATCHES]
    kind = draw(st.sampled_from(kinds))
    negated = draw(st.booleans())
    test: Filter
    if kind in (IsNull, IsNotNull):
        test = kind((column,))
    elif kind is In:
        listed = draw(st.lists(literals, min_size=1, max_size=3))
        if not negated and draw(st.booleans()):
            listed.append(None)
        test = In((column,), listed)  # type: ignore[arg-type]  # Spark sends a list.
    else:
        test = kind((column,), draw(literals))
    return column, values, Not(test) if negated else test


@given(cases())
def test_rows_are_those_that_spark_keeps(case: tuple[str, list[Any], Filter]) -> None:
    column, values, test = case
    expected = [value for value in values if judge(test, value)]
    assert keep(column, values, KINDS[column][0], test) == expected


def test_all_predicates_have_to_hold() -> None:
    batch = pa.record_batch(
        {"type": pa.array([1, 16, 16, 18], pa.int16()), "key": [None, b"a", b"b", None]}
    )
    pushed = take(EqualTo(("type",), 16), Not(EqualTo(KEY, b"a")))
    assert pushed.select(batch)["key"].to_pylist() == [b"b"]


@pytest.mark.parametrize("stamp", [datetime.min, datetime.max])
def test_timestamps_at_the_ends_of_time(stamp: datetime) -> None:
    literal = stamp.replace(tzinfo=timezone.utc)
    test = LessThanOrEqual(("timestamp",), literal)
    kept = keep("timestamp", [DAY], pa.timestamp("us", "UTC"), test)
    assert kept == ([DAY] if literal > DAY else [])


def test_a_zone_other_than_utc_is_the_same_moment() -> None:
    literal = DAY.astimezone(timezone(timedelta(hours=-5)))
    test = EqualTo(("timestamp",), literal)
    assert keep("timestamp", [DAY], pa.timestamp("us", "UTC"), test) == [DAY]


def test_select_keeps_the_schema_and_copies_nothing_if_all_rows_stay() -> None:
    batch = make_rows()
    some = take(EqualTo(("type",), 16)).select(batch)
    assert some.schema.equals(batch.schema, check_metadata=True)
    assert some.num_rows == 1
    assert take(IsNotNull(("type",))).select(batch) is batch
    assert Pushed().select(batch) is batch
    none = take(EqualTo(("type",), 99)).select(batch)
    assert none.schema == batch.schema and none.num_rows == 0
    assert take(EqualTo(("type",), 1)).select(none) is none


# What is left to Spark.


@each(
    "test",
    [
        EqualTo(OFFSET, None),
        EqualTo(OFFSET, 5.0),
        EqualTo(OFFSET, Decimal(5)),
        EqualTo(OFFSET, True),
        EqualTo(OFFSET, "5"),
        EqualTo(OFFSET, 2**63),
        EqualTo(("type",), 2**15),
        In(OFFSET, []),
        In(OFFSET, [None]),
        In(OFFSET, [5, 5.0]),
        Not(In(OFFSET, [5, None])),
        EqualNullSafe(KEY, None),
        EqualTo(("timestamp",), datetime(2024, 1, 1)),
        EqualTo(("timestamp",), date(2024, 1, 1)),
        EqualTo(("timestamp",), 5),
        EqualTo(TOPIC, b"a"),
        EqualTo(VALUE, "\ud800"),
        EqualTo(VALUE, 5),
        StringStartsWith(VALUE, b"a"),
        StringContains(OFFSET, "a"),
        EqualTo(("offset", "inner"), 5),
        IsNull(("unknown",)),
        Not(Not(EqualTo(OFFSET, 5))),
        Filter(),
    ],
    ids=repr,
)
@each("narrow", [True, False])
def test_what_is_not_certain_is_left_to_spark(test: Filter, narrow: bool) -> None:
    pushed, left = push_filters([test], narrow=narrow)
    assert pushed == Pushed()
    # By identity: Spark compares nothing else.
    assert len(left) == 1 and left[0] is test


def test_the_rest_is_taken_all_the_same() -> None:
    strange = EqualTo(OFFSET, 5.5)
    pushed, left = push_filters([strange, LessThan(OFFSET, 5)], narrow=True)
    assert left == [strange]
    assert pushed == Pushed(end=5)


# Travelling and telling.


def test_pushed_filters_travel() -> None:
    pushed = take(GreaterThan(OFFSET, 5), In(KEY, [b"a"]), EqualTo(TOPIC, "a"))
    assert pickle.loads(pickle.dumps(pushed)) == pushed


# What Spark really sends.

CONDITIONS = [
    "offset >= 5 and offset < 14",
    "offset < 5.5",
    "offset in (0, 14, null)",
    "offset not in (0, 14)",
    "type between 16 and 18",
    "type != 16",
    "key > X'7F'",
    "key in (X'', X'80')",
    "key is null",
    "not (key <=> X'80')",
    "timestamp > timestamp'2024-01-01 00:00:00Z'",
    "timestamp <= '2023-12-31 19:00:00-05:00'",
    "timestamp_ns > 1704067200000000000",
    "topic in ('ab', 'ä', 'other')",
    "not (topic like 'a%')",
    "topic = 'a' and offset > 5 and key is not null and length(value) = 1",
    "topic = 'a' or offset > 5",
    "value > 'b'",
    "value like '%ä%'",
]


@pytest.fixture
def pushing(spark: SparkSession) -> Any:
    """A session that pushes filters."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.dataSource.register(FilteredSource)
    spark.conf.set(setting, "true")
    yield spark
    spark.conf.unset(setting)


@pytest.mark.parametrize("narrow", ["true", "false"])
def test_spark_gets_the_rows_that_it_would_keep(
    pushing: SparkSession, narrow: str
) -> None:
    rows = make_rows()
    plain = pushing.createDataFrame(rows.to_pandas(), SCHEMA)
    kept = plain.selectExpr(
        "topic",
        "offset",
        *(f"coalesce({each}, false) as c{n}" for n, each in enumerate(CONDITIONS)),
    ).collect()
    expected = {
        (n, row["topic"], row["offset"])
        for row in kept
        for n in range(len(CONDITIONS))
        if row[f"c{n}"]
    }
    source = pushing.read.format("filtered").option("narrow", narrow)
    # One of its own for each: Spark remembers but one set of filters per `load`.
    parts = [
        source.load().where(each).selectExpr(f"{n} as n", "topic", "offset")
        for n, each in enumerate(CONDITIONS)
    ]
    found = reduce(lambda a, b: a.unionAll(b), parts).collect()
    assert sorted(map(tuple, found)) == sorted(expected)
    assert {n for n, _, _ in expected} == set(range(len(CONDITIONS)))


def test_explain_shows_what_was_pushed(
    pushing: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    source = pushing.read.format("filtered").option("narrow", "true").load()
    source.where("offset > 5 and key is null and length(value) = 1").explain(
        "formatted"
    )
    shown = capsys.readouterr().out
    assert "GreaterThan(offset,5)" in shown.partition("PushedFilters: ")[2]
    assert "IsNull(key)" in shown.partition("PushedFilters: ")[2]
    assert "Condition : (length(value" in shown


def test_the_reader_of_these_tests_narrows() -> None:
    batch = make_rows()
    found = apply(take(GreaterThan(OFFSET, 5), EqualTo(TOPIC, "a")), batch)
    assert found["offset"].to_pylist() == [9, 14]
