"""Rows as tests write them, and the columns that they become."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import OptionError
from lance_spark.testing.rows import (
    Comparison,
    list_fields,
    show_row,
    to_table,
    to_tuples,
)
from tests.each import each

NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
NOON_NS = 1_714_564_800 * 10**9


def read(rows: Any, *fields: str) -> list[tuple[Any, ...]]:
    return to_tuples(to_table(rows), fields or ("value",))


@pytest.mark.parametrize(
    "given", ["a", b"a", bytearray(b"a"), memoryview(b"a"), {"value": "a"}]
)
def test_a_row_is_text_bytes_or_a_dict(given: object) -> None:
    assert read([given]) == [(b"a",)]


def test_a_row_may_be_null() -> None:
    assert read([None, {"value": None}]) == [(None,), (None,)]


def test_what_some_rows_say_is_none_in_the_others() -> None:
    rows = ["a", {"key": "k", "value": "b"}, {"value": "c", "timestamp": NOON}]
    table = to_table(rows)
    assert list_fields(table) == ("key", "value", "timestamp")
    assert to_tuples(table, list_fields(table)) == [
        (None, b"a", None),
        (b"k", b"b", None),
        (None, b"c", NOON_NS),
    ]


@pytest.mark.parametrize(
    "when",
    [
        {"timestamp": NOON},
        {"timestamp": NOON.replace(tzinfo=None)},
        {"timestamp": NOON.astimezone(timezone(timedelta(hours=2)))},
        {"timestamp": np.datetime64("2024-05-01T12:00:00")},
        {"timestamp": pd.Timestamp(NOON)},
        {"timestamp_ns": NOON_NS},
    ],
)
def test_times(when: dict[str, Any]) -> None:
    assert read([{"value": "a", **when}], "timestamp") == [(NOON_NS,)]


def test_times_keep_their_nanoseconds() -> None:
    rows = [{"value": "a", "timestamp_ns": NOON_NS + 1}]
    assert read(rows, "timestamp") == [(NOON_NS + 1,)]


def test_no_rows() -> None:
    table = to_table([])
    assert (table.num_rows, list_fields(table)) == (0, ("value",))
    assert to_tuples(table, ("value",)) == []


def test_rows_of_a_generator() -> None:
    assert read(str(n) for n in range(3)) == [(b"0",), (b"1",), (b"2",)]


@pytest.mark.parametrize(
    "columns",
    [
        pa.table({"key": ["k", "l"], "value": [b"a", b"b"]}),
        pa.record_batch({"key": ["k", "l"], "value": [b"a", b"b"]}),
        pa.concat_tables(2 * [pa.table({"key": ["k"], "value": ["a"]})]),
        # Filtered, so that its index has a hole.
        pd.DataFrame({"key": ["k", "x", "l"], "value": ["a", "x", "b"]}).iloc[[0, 2]],
    ],
    ids=["table", "batch", "chunks", "pandas"],
)
def test_columns(columns: Any) -> None:
    first, _ = read(columns, "key", "value")
    assert first == (b"k", b"a")
    assert list_fields(to_table(columns)) == ("key", "value")


@pytest.mark.parametrize(
    "values",
    [pd.Series(["a", None]), pa.array(["a", None]), pa.chunked_array([["a"], [None]])],
    ids=["series", "array", "chunks"],
)
def test_a_single_column_is_values(values: Any) -> None:
    assert read(values) == [(b"a",), (None,)]


def test_a_frame_that_arrow_can_take() -> None:
    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"value": ["a"]}).__arrow_c_stream__(requested_schema)

    class Spark:
        def toArrow(self) -> pa.Table:
            return pa.table({"value": ["b"]})

    assert read(Frame()) == [(b"a",)]
    assert read(Spark()) == [(b"b",)]


@each(
    ("rows", "text"),
    [
        ("abc", "one row, a str, where rows are wanted: put it in a list"),
        (b"abc", "one row, a bytes"),
        ({"value": "a"}, "one row, a dict"),
        (7, "rows of type int: give a list"),
        (["a", 7], "row 1: a value of type int; give text or bytes"),
        ([{"value": "a", "key": 7}], "row 0: a key of type int"),
        ([{"user": 1, "page": "x"}], "row 0 has user, page: a row is text"),
        ([{"value": "a", "ts": 1}], "for JSON give json.dumps(row)"),
        ([{}], "row 0 has no fields"),
        ([{"value": "a", "timestamp": 7}], "row 0: a timestamp of type int"),
        ([{"value": "a", "timestamp_ns": 1.5}], "row 0: a timestamp_ns of type float"),
        ([{"value": "a", "type": "json"}], "row 0: a type of type str; give a whole"),
        (pa.table({"user": [1]}), "can't write user"),
    ],
)
def test_what_is_no_row(rows: Any, text: str) -> None:
    with pytest.raises(OptionError) as told:
        to_table(rows)
    assert text in str(told.value)


def values(*texts: str) -> list[tuple[bytes]]:
    return [(text.encode(),) for text in texts]


def compare_values(
    expected: Sequence[str], found: Sequence[str], *, ordered: bool = False
) -> Comparison:
    return Comparison(
        values(*expected), values(*found), fields=("value",), ordered=ordered
    )


def describe(
    expected: Sequence[str], found: Sequence[str], *, ordered: bool = False
) -> str:
    result = compare_values(expected, found, ordered=ordered)
    assert not result.is_equal
    return result.describe("t", [10 * n for n in range(len(found))])


def test_equal() -> None:
    assert compare_values("abb", "bab").is_equal
    assert compare_values("abb", "abb", ordered=True).is_equal
    assert compare_values("", "", ordered=True).is_equal


def test_missing() -> None:
    assert describe("abcc", "a") == (
        "topic 't' does not hold what it should: 4 records expected, 1 found\n"
        "  missing (2):\n"
        "    value 'b'\n"
        "    value 'c', 2 times"
    )


def test_too_much() -> None:
    assert describe("a", "axyx") == (
        "topic 't' does not hold what it should: 1 record expected, 4 found\n"
        "  too much (2):\n"
        "    value 'x' at record 1 (offset 10), record 3 (offset 30)\n"
        "    value 'y' at record 2 (offset 20)"
    )


def test_doubled() -> None:
    assert describe("abb", "abbabb") == (
        "topic 't' does not hold what it should: 3 records expected, 6 found\n"
        "  doubled (2):\n"
        "    value 'a': 2 times in place of 1, at record 0 (offset 0), "
        "record 3 (offset 30)\n"
        "    value 'b': 4 times in place of 2, at record 1 (offset 10), "
        "record 2 (offset 20), record 4 (offset 40), record 5 (offset 50)"
    )


def test_out_of_order() -> None:
    assert compare_values("abc", "acb").is_equal
    assert describe("abc", "acb", ordered=True) == (
        "topic 't' does not hold what it should: 3 records expected, 3 found\n"
        "  out of order (2):\n"
        "    record 1 (offset 10) is value 'c', expected value 'b'\n"
        "    record 2 (offset 20) is value 'b', expected value 'c'"
    )


def test_all_at_once() -> None:
    text = describe("abc", "aax", ordered=True)
    titles = [line.strip() for line in text.splitlines() if line.endswith("):")]
    assert titles == ["missing (2):", "too much (1):", "doubled (1):"]


def test_long_lists_are_cut() -> None:
    text = describe([str(n) for n in range(1000)], "")
    assert len(text.splitlines()) == 13
    assert text.endswith("    … and 990 more")
    assert describe("", 15 * "x").endswith("record 9 (offset 90) and 5 more")


@each(
    ("field", "part", "shown"),
    [
        ("value", b"a'b", '"a\'b"'),
        ("value", "ä\n".encode(), "'ä\\n'"),
        ("value", b"\xff\x00", "b'\\xff\\x00'"),
        ("value", b"", "''"),
        ("value", None, "None"),
        ("key", b"k", "'k'"),
        ("value", 500 * b"x", "'" + 79 * "x" + "… (500 bytes)"),
        # The cut of 320 bytes goes through a character.
        ("value", ("x" + 400 * "ä").encode(), "'x" + 78 * "ä" + "… (801 bytes)"),
        ("timestamp", 1_714_564_800 * 10**9, "2024-05-01 12:00:00Z"),
        ("timestamp", 1_714_564_800_000_000_120, "2024-05-01 12:00:00.00000012Z"),
        ("timestamp", None, "None"),
        ("type", 3, "3"),
    ],
)
def test_parts_are_shown(field: str, part: object, shown: str) -> None:
    assert show_row((field,), (part,)) == f"{field} {shown}"


def test_fields_are_named() -> None:
    assert show_row(("key", "value"), (b"k", b"v")) == "key 'k', value 'v'"


_TEXTS = st.lists(st.sampled_from("abc"), max_size=8)


@given(_TEXTS, _TEXTS, st.booleans())
def test_equal_is_equal(expected: list[str], found: list[str], ordered: bool) -> None:
    same = expected == found if ordered else sorted(expected) == sorted(found)
    result = compare_values(expected, found, ordered=ordered)
    assert result.is_equal is same
    if not same:
        assert len(result.describe("t", list(range(len(found)))).splitlines()) > 2
