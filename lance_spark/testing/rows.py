"""Rows as tests write them, turned into the columns of a write, and compared.

A row is text, bytes, None for a Null record, or a mapping; rows may come as Arrow
columns or as a DataFrame of Spark or pandas, too. Nothing here talks to a broker.
"""

from __future__ import annotations

import codecs
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, SupportsIndex

import numpy as np
import pyarrow as pa

from lance_spark.columnar.inputs import (
    IGNORED_COLUMNS,
    WRITE_COLUMNS,
    check_columns,
    read_columns,
)
from lance_spark.errors import OptionError

# What a row of a test may say, in the order in which it is shown.
FIELDS = ("key", "value", "timestamp", "type")

_TIME = pa.timestamp("ns", tz="UTC")
_BYTES = str, bytes, bytearray, memoryview
_TEXT = _BYTES, "give text or bytes, as json.dumps and str make them"
_NUMBER = (SupportsIndex,), "give a whole number, as the column has"
# Which objects a field of a row may be, in code and in words.
_ACCEPTS: dict[str, tuple[tuple[type, ...], str]] = {
    "key": _TEXT,
    "value": _TEXT,
    "timestamp": (
        (datetime, np.datetime64),
        "give a datetime, or timestamp_ns in nanoseconds since 1970",
    ),
    "timestamp_ns": _NUMBER,
    "type": _NUMBER,
}
# The columns that single rows become.
_COLUMNS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp_ns": pa.int64(),
    "type": pa.int64(),
}

Row = tuple[Any, ...]
Rows = Sequence[Row]


def to_table(rows: Any) -> pa.Table:
    """Turn rows of any kind into the Arrow columns of a write.

    Args:
        rows: texts, bytes, None and mappings with `value`, `key`, `timestamp` or
            `timestamp_ns`, and `type`; an Arrow table, batch or array; a DataFrame of
            Spark or pandas, or of whatever else can give its columns to Arrow; a
            Series, for values.

    Raises:
        OptionError: they can't be the rows of a write.
    """
    if isinstance(rows, pa.RecordBatch):
        table = pa.Table.from_batches([rows])
    elif hasattr(rows, "toArrow"):
        table = rows.toArrow()
    elif isinstance(rows, pa.Array | pa.ChunkedArray):
        table = _gather(rows.to_pylist())
    elif hasattr(rows, "to_list") and not hasattr(rows, "columns"):
        # A Series, of pandas or others.
        table = _gather(rows.to_list())
    elif type(rows).__module__.partition(".")[0] == "pandas":
        # An index is how pandas counts rows, and not a part of them.
        table = pa.Table.from_pandas(rows, preserve_index=False)
    elif hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
    else:
        table = _gather(rows)
    check_columns(table.schema)
    return table


def list_fields(table: pa.Table) -> tuple[str, ...]:
    """Tell which fields the columns of a write say something about."""
    names = {"timestamp" if n == "timestamp_ns" else n for n in table.column_names}
    return tuple(name for name in FIELDS if name in names)


def to_tuples(table: pa.Table, fields: Iterable[str]) -> list[Row]:
    """Give fields of all rows as values that can be compared; times are in ns.

    Args:
        table: columns of a write.
        fields: any of `FIELDS`; what the columns do not say is None.
    """
    rows: list[Row] = []
    for batch in table.combine_chunks().to_batches():
        columns = read_columns(batch)
        stamps = columns.stamp.to_pylist()
        found = {
            "key": columns.key.to_pylist(),
            "value": columns.value.to_pylist(),
            "timestamp": [tick and tick * columns.stamp_unit_ns for tick in stamps],
            "type": columns.type.to_pylist(),
        }
        rows += zip(*(found[name] for name in fields), strict=True)
    return rows


def _gather(rows: Any) -> pa.Table:
    """Make columns of single rows: those that any of them names, and `value`."""
    if isinstance(rows, (*_BYTES, Mapping)):
        raise OptionError(
            f"one row, a {type(rows).__name__}, where rows are wanted: put it in a list"
        )
    if not isinstance(rows, Iterable):
        raise OptionError(
            f"rows of type {type(rows).__name__}: give a list of texts, bytes or "
            "dicts, an Arrow table, or a DataFrame"
        )
    said = [_read_row(number, row) for number, row in enumerate(rows)]
    names = [n for n in _COLUMNS if n == "value" or any(n in row for row in said)]
    return pa.table(
        {n: pa.array([row.get(n) for row in said], _COLUMNS[n]) for n in names}
    )


def _read_row(number: int, row: Any) -> dict[str, Any]:
    """Take a row as fields, with times in ns."""
    fields = dict(row) if isinstance(row, Mapping) else {"value": row}
    if not {"value"} <= fields.keys() <= {*WRITE_COLUMNS, *IGNORED_COLUMNS}:
        others = ", ".join(name for name in _ACCEPTS if name != "value")
        raise OptionError(
            f"row {number} has {', '.join(map(str, fields)) or 'no fields'}: a row is "
            f"text, bytes, or a dict with value and perhaps {others}; for JSON give "
            "json.dumps(row)"
        )
    for name, (kinds, advice) in _ACCEPTS.items():
        given = fields.get(name)
        if given is not None and not isinstance(given, kinds):
            raise OptionError(
                f"row {number}: a {name} of type {type(given).__name__}; {advice}"
            )
        if isinstance(given, SupportsIndex):
            fields[name] = operator.index(given)
    if "timestamp" in fields:
        fields.setdefault("timestamp_ns", _to_ns(fields["timestamp"]))
    return fields


def _to_ns(when: datetime | np.datetime64 | None) -> int | None:
    """Count from 1970; a time without a zone is UTC, as in the columns of a write."""
    if isinstance(when, np.datetime64):
        return int(when.astype("datetime64[ns]").astype(np.int64))
    ns: int | None = pa.scalar(when, _TIME).value
    return ns


# How many rows of a kind are shown, and how much of each.
_ROWS_SHOWN = 10
_TEXT_SHOWN = 80


class Comparison:
    """What a topic should hold against what it does, each row as often as it comes.

    Args:
        expected: what there should be.
        found: what there is.
        fields: what the parts of a row are.
        ordered: whether they have to come in the same order.

    Attributes:
        missing: rows that are not there, or not often enough, with how often.
        surplus: rows that are there too often, with the places where they are.
        misplaced: places that have another row than they should, with what they have
            and should have; only looked for where all rows are there.
    """

    def __init__(
        self, expected: Rows, found: Rows, *, fields: Sequence[str], ordered: bool
    ) -> None:
        self._fields = fields
        self._sizes = len(expected), len(found)
        self._wanted = Counter(expected)
        self.missing = self._wanted - Counter(found)
        surplus = Counter(found) - self._wanted
        self.surplus: dict[Row, list[int]] = {row: [] for row in surplus}
        for number, row in enumerate(found):
            if row in surplus:
                self.surplus[row].append(number)
        self.misplaced: list[tuple[int, Row, Row]] = []
        if ordered and not (self.missing or self.surplus):
            pairs = enumerate(zip(found, expected, strict=True))
            self.misplaced = [(n, is_, due) for n, (is_, due) in pairs if is_ != due]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.surplus or self.misplaced)

    def describe(self, topic: str, offsets: Sequence[int]) -> str:
        """Write what differs, row by row in the order in which they come.

        Args:
            topic: the name of the topic.
            offsets: where each of the rows that were found is.
        """

        def where(places: Sequence[int]) -> str:
            shown = [f"record {n} (offset {offsets[n]})" for n in places[:_ROWS_SHOWN]]
            rest = len(places) - len(shown)
            return ", ".join(shown) + (f" and {rest} more" if rest else "")

        def show(row: Row) -> str:
            return show_row(self._fields, row)

        expected, found = self._sizes
        noun = "record" if expected == 1 else "records"
        head = f"topic {topic!r} does not hold what it should: "
        lists = {
            "missing": [
                show(row) + (f", {times} times" if times > 1 else "")
                for row, times in self.missing.items()
            ],
            "too much": [
                f"{show(row)} at {where(at)}"
                for row, at in self.surplus.items()
                if not self._wanted[row]
            ],
            "doubled": [
                f"{show(row)}: {len(at)} times in place of {self._wanted[row]}, at "
                f"{where(at)}"
                for row, at in self.surplus.items()
                if self._wanted[row]
            ],
            "out of order": [
                f"{where([at])} is {show(row)}, expected {show(due)}"
                for at, row, due in self.misplaced
            ],
        }
        lines = [f"{head}{expected} {noun} expected, {found} found"]
        for title, texts in lists.items():
            if texts:
                lines.append(f"  {title} ({len(texts)}):")
                lines += [f"    {text}" for text in texts[:_ROWS_SHOWN]]
            if len(texts) > _ROWS_SHOWN:
                lines.append(f"    … and {len(texts) - _ROWS_SHOWN} more")
        return "\n".join(lines)


def show_row(fields: Sequence[str], row: Row) -> str:
    """Write a row for people."""
    return ", ".join(
        f"{name} {_show(name, part)}" for name, part in zip(fields, row, strict=True)
    )


def _show(name: str, part: object) -> str:
    if isinstance(part, bytes):
        return _show_bytes(part)
    if name == "timestamp" and isinstance(part, int):
        when = str(np.datetime64(part, "ns")).replace("T", " ")
        return when.rstrip("0").rstrip(".") + "Z"
    return str(part)


def _show_bytes(data: bytes) -> str:
    # A little more than is shown, so that nothing large is decoded for it.
    head = data[: 4 * _TEXT_SHOWN]
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # A character that the cut has divided is left out.
        text = repr(decoder.decode(head, final=len(head) == len(data)))
    except UnicodeDecodeError:
        text = repr(head)
    if len(text) > _TEXT_SHOWN or len(head) < len(data):
        return f"{text[:_TEXT_SHOWN]}… ({len(data)} bytes)"
    return text
