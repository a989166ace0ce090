"""Rows as tests write them, and the columns that they become."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lance_spark.errors import OptionError
from lance_spark.testing.rows import list_fields, to_table, to_tuples

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


@pytest.mark.parametrize(
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
