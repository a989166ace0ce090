"""The columns of reads and writes in Spark's types, and what users may ask of them.

Names are taken in any case, as Spark takes them, and are shown as users write them. No
session is needed for any of it. How Arrow columns are built is `columnar`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from lance_spark.client.driver import find_protocol
from lance_spark.columnar import IGNORED_COLUMNS, WRITE_COLUMNS, make_schema
from lance_spark.errors import OptionError

# What each column of a read may be; the first is what it is by default. Which of them
# a format has, the traits of its protocol say.
_READABLE: Mapping[str, tuple[DataType, ...]] = {
    "topic": (t.StringType(),),
    "partition": (t.IntegerType(),),
    "offset": (t.LongType(),),
    "type": (t.ShortType(),),
    "key": (t.BinaryType(), t.StringType()),
    "value": (t.BinaryType(), t.StringType()),
    "timestamp": (t.TimestampType(),),
    "timestamp_ns": (t.LongType(),),
    "next_offset": (t.LongType(),),
}
# Records without key, value or timestamp have nothing to put there.
_CAN_BE_NULL = ("key", "value", "timestamp", "timestamp_ns")

# What a read with `metadata=topics` gives. Where topics have partitions, each of them
# has a row, with its number behind the name.
TOPICS_SCHEMA = (
    StructType()
    .add("id", t.LongType())
    .add("name", t.StringType())
    .add("log_start", t.LongType())
    .add("log_end", t.LongType())
    .add("records", t.LongType())
    .add("created", t.TimestampType())
    .add("retention", StructType().add("max_age_s", "long").add("max_bytes", "long"))
)


def make_topics_schema(protocol: str = "lance") -> StructType:
    """Make the schema of a read that lists topics."""
    if "partition" not in find_protocol(protocol).TRAITS.columns:
        return TOPICS_SCHEMA
    fields = [*TOPICS_SCHEMA]
    return StructType(
        [*fields[:2], StructField("partition", t.IntegerType()), *fields[2:]]
    )


def make_arrow_schema(schema: StructType) -> pa.Schema:
    """Make the Arrow schema that Spark compares batches of a schema with."""
    return to_arrow_schema(schema, timezone="UTC")


_TEXT_OR_BYTES = (t.BinaryType, t.StringType)
# Types by column, and in words. A timestamp without a zone is taken as UTC.
_WRITABLE: Mapping[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (_TEXT_OR_BYTES, "binary or string"),
    "key": (_TEXT_OR_BYTES, "binary or string"),
    "timestamp": ((t.TimestampType, t.TimestampNTZType), "timestamp"),
    "timestamp_ns": ((t.IntegralType,), "bigint"),
    "type": ((t.IntegralType,), "smallint"),
    "topic": ((t.StringType,), "string"),
    "partition": ((t.IntegralType,), "int"),
}
_NESTED = (t.ArrayType, t.MapType, StructType, t.VariantType)


def make_row_schema(protocol: str = "lance") -> StructType:
    """Make the schema of a read for which the user names no columns."""
    columns = find_protocol(protocol).TRAITS.columns
    return StructType([StructField(name, _READABLE[name][0]) for name in columns])


def _list_readable(protocol: str) -> dict[str, tuple[DataType, ...]]:
    """List the columns that a format can be asked for."""
    traits = find_protocol(protocol).TRAITS
    names = [*traits.columns]
    if "timestamp" in names:
        names.append("timestamp_ns")
    if traits.unit == "bytes":
        # Elsewhere it is the offset plus one.
        names.append("next_offset")
    return {name: _READABLE[name] for name in names}


@dataclass(frozen=True)
class Projection:
    """The columns that a read builds.

    Args:
        columns: their schema as `columnar` has it.
        arrow: the same as Spark wants it: with the user's spelling, and what can't be
            null.
    """

    columns: pa.Schema
    arrow: pa.Schema


def project(schema: StructType, protocol: str = "lance") -> Projection:
    """Find out what a user's schema asks of a read.

    Raises:
        OptionError: a column is unknown, named twice, of another type or never null
            where it can be; lists what there is.
    """
    _check_fields(schema, _list_readable(protocol), _CAN_BE_NULL)
    arrow = make_arrow_schema(schema)
    kinds = {field.name.lower(): field.type for field in arrow}
    texts = {f"{name}_type": kinds[name] for name in ("key", "value") if name in kinds}
    return Projection(make_schema(tuple(kinds), **texts), arrow)


def project_topics(schema: StructType, protocol: str = "lance") -> dict[str, str]:
    """Find out which columns of the topics a user's schema asks for.

    Returns:
        Their names, and how the user writes each of them.

    Raises:
        OptionError: as `project` does; every column can be null here.
    """
    there = {f.name: (f.dataType,) for f in make_topics_schema(protocol)}
    _check_fields(schema, there, tuple(there))
    return {name.lower(): name for name in schema.fieldNames()}


def _check_fields(
    schema: StructType,
    known: Mapping[str, tuple[DataType, ...]],
    can_be_null: tuple[str, ...],
) -> None:
    there = f"there are {_list_columns(known)}"
    if not schema.fieldNames():
        raise OptionError(f"the schema names no column; {there}")
    seen: dict[str, str] = {}
    for field in schema:
        name = field.name.lower()
        kinds = known.get(name)
        if kinds is None:
            hint = _suggest(name, known)
            raise OptionError(f"there is no column {field.name}{hint}; {there}")
        if name in seen:
            spelt = f", as {seen[name]} and {field.name}"
            raise OptionError(
                f"the schema names column {name} twice"
                f"{spelt if seen[name] != field.name else ''}: name it once"
            )
        seen[name] = field.name
        if field.dataType not in kinds:
            raise OptionError(
                f"column {name} is {_list_types(kinds)}, not "
                f"{field.dataType.simpleString()}: change the schema, and cast what is "
                f"read; {there}"
            )
        if not field.nullable and name in can_be_null:
            raise OptionError(
                f"column {name} can be null: leave out NOT NULL in the schema"
            )


def _suggest(name: str, known: Iterable[str]) -> str:
    import difflib  # Only a name that is wrong needs it.

    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _list_columns(known: Mapping[str, tuple[DataType, ...]]) -> str:
    return ", ".join(f"{name} {_list_types(kinds)}" for name, kinds in known.items())


def _list_types(kinds: Iterable[DataType]) -> str:
    return " or ".join(kind.simpleString() for kind in kinds)


@dataclass(frozen=True, slots=True)
class Carried:
    """What of a row a protocol's records can't hold.

    Args:
        refused: columns that have to be null.
        ignored: columns that are passed over, so that rows of other formats can be
            written.
        needs_value: a value can't be null.
    """

    refused: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    needs_value: bool = False


ALL_CARRIED = Carried()


def find_carried(protocol: str) -> Carried:
    """Tell what of a row a format can't carry."""
    written = {*list_written(protocol)}
    return Carried(
        refused=frozenset({*WRITE_COLUMNS} - {"type"} - written),
        ignored=frozenset({"type"} - written),
        # Only LWP's types tell a null from a value of no bytes.
        needs_value="type" not in written,
    )


def list_written(protocol: str) -> list[str]:
    """List the columns of a write that end up in records."""
    carried = _list_readable(protocol)
    return [name for name in _WRITABLE if name in carried]


def check_write_schema(
    schema: StructType, protocol: str = "lance", *, topic_option: bool
) -> None:
    """Check that rows can be written as records, and that it is known where to.

    Args:
        schema: of the rows.
        protocol: the format that they are written to.
        topic_option: the option `topic` says where, whatever a column says.

    Raises:
        OptionError: a column is missing, unknown, there twice or of another type; says
            what to do with it.
    """
    names = schema.fieldNames()
    written = list_written(protocol)
    _check_names(names, written)
    if not topic_option and "topic" not in map(str.lower, names):
        raise OptionError(
            "no topic to write to: name it with option topic, or add a column topic"
        )
    for field in schema:
        name = field.name.lower()
        if name in written and not (name == "topic" and topic_option):
            _check_written(field)


def _check_names(names: list[str], written: list[str]) -> None:
    lowered = [name.lower() for name in names]
    there = dict(zip(names, lowered, strict=True))
    known = {*written, *WRITE_COLUMNS, *IGNORED_COLUMNS}
    others = [name for name in there if there[name] not in known]
    if others:
        raise OptionError(
            f"can't write {_name_columns(others)}: drop what is not needed, or put it "
            "into value, as in to_json(struct(*)) AS value; the columns of a write are "
            f"{', '.join(written)}"
        )
    twice = [name for name in there if lowered.count(there[name]) > 1]
    if len(twice) > 1:
        raise OptionError(
            f"{_name_columns(twice)} differ only in case: drop or rename all but one"
        )
    if twice:
        raise OptionError(f"{_name_columns(twice)} is there twice: drop or rename one")
    if "value" not in lowered:
        raise OptionError(
            f"no column value to write; there are {', '.join(names) or 'none'}: rename "
            "one, or make one as in to_json(struct(*)) AS value"
        )
    if "timestamp" in lowered and "timestamp_ns" in lowered:
        raise OptionError(
            "columns timestamp and timestamp_ns are both there: drop one of them"
        )


def _name_columns(names: list[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _check_written(field: StructField) -> None:
    name, kind = field.name, field.dataType
    accepted, wanted = _WRITABLE[name.lower()]
    # A column of nothing but nulls is as good as none, except where a topic is needed.
    may_be_null = name.lower() != "topic"
    if isinstance(kind, accepted) or (isinstance(kind, t.NullType) and may_be_null):
        return
    remedy = f"cast it, as in CAST({name} AS {wanted.split()[-1].upper()})"
    if isinstance(kind, _NESTED) and accepted == _TEXT_OR_BYTES:
        remedy = f"write it as text, as in to_json({name}) AS {name}"
    raise OptionError(
        f"column {name} must be {wanted}, not {kind.simpleString()}: {remedy}"
    )
