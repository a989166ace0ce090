"""The columns of reads and writes in Spark's types."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lance_spark.columnar import make_schema, write_records
from lance_spark.columnar.columns import TYPES
from lance_spark.columnar.encode import encode
from lance_spark.errors import OptionError
from lance_spark.spark.schema import (
    TOPICS_SCHEMA,
    check_write_schema,
    make_topics_schema,
    project,
    project_topics,
)
from lance_spark.wire.lwp import read_records
from tests.each import each
from tests.spark.reading import ROW_COLUMNS, ROW_SCHEMA

# Every column that a read may have.
ALL = StructType(
    [
        *ROW_SCHEMA,
        StructField("timestamp_ns", LongType()),
        StructField("next_offset", LongType()),
    ]
)
STRUCT = StructType([StructField("a", LongType())])


def make(**columns: DataType) -> StructType:
    """Make a schema of columns that can be null."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def refused(schema: StructType) -> str:
    """Return the text of the error that a schema of a read gives."""
    with pytest.raises(OptionError) as told:
        project(schema)
    return str(told.value)


# Reads.


def test_row_schema_is_that_of_the_design() -> None:
    assert ROW_SCHEMA.simpleString() == (
        "struct<topic:string,offset:bigint,type:smallint,key:binary,value:binary,"
        "timestamp:timestamp>"
    )
    assert tuple(ROW_SCHEMA.fieldNames()) == ROW_COLUMNS
    assert all(field.nullable for field in ROW_SCHEMA)


def test_topics_schema_is_that_of_the_design() -> None:
    assert TOPICS_SCHEMA.simpleString() == (
        "struct<id:bigint,name:string,log_start:bigint,log_end:bigint,records:bigint,"
        "created:timestamp,retention:struct<max_age_s:bigint,max_bytes:bigint>>"
    )
    assert make_topics_schema() == TOPICS_SCHEMA
    assert make_topics_schema("tank").names[:3] == ["id", "name", "partition"]


def test_no_session_is_needed() -> None:
    script = (
        "from lance_spark.spark.schema import make_row_schema, project\n"
        "from pyspark import SparkContext\n"
        "project(make_row_schema())\n"
        "assert SparkContext._gateway is None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("schema", [ROW_SCHEMA, ALL], ids=["default", "all"])
def test_arrow_types_are_those_that_are_built(schema: StructType) -> None:
    projection = project(schema)
    assert projection.columns == make_schema(schema.fieldNames())
    assert projection.arrow == to_arrow_schema(schema, timezone="UTC")
    assert {field.name: field.type for field in projection.arrow} == {
        name: TYPES[name] for name in projection.columns.names
    }


def test_all_columns_can_be_asked_for() -> None:
    assert {*ALL.fieldNames(), "partition"} == {*TYPES}


def test_subset_in_any_order() -> None:
    projection = project(make(value=BinaryType(), offset=LongType()))
    assert projection.columns == make_schema(["value", "offset"])
    assert projection.arrow.names == ["value", "offset"]


@pytest.mark.parametrize("column", ["key", "value"])
def test_bytes_as_text(column: str) -> None:
    projection = project(make(**{column: StringType()}))
    assert projection.columns.field(column).type == pa.string()
    assert projection.arrow.field(column).type == pa.string()


def test_what_is_projected_can_be_decoded() -> None:
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("offset", LongType(), nullable=False),
            StructField("timestamp", TimestampType(), metadata={"comment": "when"}),
        ]
    )
    projection = project(schema)
    (payload,) = encode(pa.table({"value": ["x", "y"]}))
    built = write_records(read_records(payload.data), projection.columns)
    batch = pa.RecordBatch.from_arrays(built.columns, schema=projection.arrow)
    assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)
    assert batch.column("value").to_pylist() == ["x", "y"]


@pytest.mark.parametrize("name", ["topic", "offset", "type", "next_offset"])
def test_columns_that_are_never_null(name: str) -> None:
    field = StructField(name, ALL[name].dataType, nullable=False)
    assert not project(StructType([field])).arrow.field(name).nullable


@pytest.mark.parametrize("name", ["key", "value", "timestamp", "timestamp_ns"])
def test_columns_that_can_be_null(name: str) -> None:
    said = refused(StructType([StructField(name, ALL[name].dataType, nullable=False)]))
    assert said == f"column {name} can be null: leave out NOT NULL in the schema"


THERE = (
    "there are topic string, offset bigint, type smallint, key binary or string, value "
    "binary or string, timestamp timestamp, timestamp_ns bigint, next_offset bigint"
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("valu", " (did you mean value?)"),
        ("Valu", " (did you mean value?)"),
        ("partition", ""),
    ],
)
def test_unknown_column(name: str, hint: str) -> None:
    said = refused(make(offset=LongType(), **{name: BinaryType()}))
    assert said == f"there is no column {name}{hint}; {THERE}"


@each(
    ("name", "kind", "shown"),
    [
        ("topic", BinaryType(), "string, not binary"),
        ("topic", StringType("UTF8_LCASE"), "string, not string collate UTF8_LCASE"),
        ("offset", IntegerType(), "bigint, not int"),
        ("type", ByteType(), "smallint, not tinyint"),
        ("key", LongType(), "binary or string, not bigint"),
        ("value", STRUCT, "binary or string, not struct<a:bigint>"),
        ("timestamp", TimestampNTZType(), "timestamp, not timestamp_ntz"),
        ("timestamp", LongType(), "timestamp, not bigint"),
        ("timestamp_ns", TimestampType(), "bigint, not timestamp"),
        ("next_offset", DoubleType(), "bigint, not double"),
    ],
)
def test_column_of_another_type(name: str, kind: DataType, shown: str) -> None:
    said = refused(make(**{name: kind}))
    assert said == (
        f"column {name} is {shown}: change the schema, and cast what is read; {THERE}"
    )


def test_column_twice() -> None:
    schema = StructType([*ROW_SCHEMA, StructField("offset", LongType())])
    said = refused(schema)
    assert said == "the schema names column offset twice: name it once"
    schema = StructType([*ROW_SCHEMA, StructField("OffSet", LongType())])
    assert refused(schema) == (
        "the schema names column offset twice, as offset and OffSet: name it once"
    )


def test_names_in_any_case_keep_their_spelling() -> None:
    schema = make(
        Next_Offset=LongType(), VALUE=StringType(), key=BinaryType(), Topic=StringType()
    )
    found = project(schema)
    assert found.columns == make_schema(
        ["next_offset", "value", "key", "topic"], value_type=pa.string()
    )
    assert found.arrow.names == ["Next_Offset", "VALUE", "key", "Topic"]
    said = refused(make(OFFSET=IntegerType()))
    assert said.startswith("column offset is bigint, not int: change the schema")
    with pytest.raises(OptionError, match="column value can be null"):
        project(StructType([StructField("VALUE", BinaryType(), False)]))


def test_no_column() -> None:
    assert refused(StructType([])) == f"the schema names no column; {THERE}"


def test_projection_travels() -> None:
    projection = project(ALL)
    assert pickle.loads(pickle.dumps(projection)) == projection


# Reads of topics.


def test_topics_in_any_order() -> None:
    whole = {name: name for name in TOPICS_SCHEMA.fieldNames()}
    assert project_topics(TOPICS_SCHEMA) == whole
    schema = StructType(
        [
            TOPICS_SCHEMA["retention"],
            TOPICS_SCHEMA["id"],
            StructField("NAME", StringType()),
        ]
    )
    found = project_topics(schema)
    assert list(found.items()) == [
        ("retention", "retention"),
        ("id", "id"),
        ("name", "NAME"),
    ]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ([], r"^the schema names no column; there are id bigint, name string, log_"),
        (
            [StructField("names", StringType())],
            r"^there is no column names \(did you mean name\?\); there are id bigint, ",
        ),
        ([StructField("value", BinaryType())], "^there is no column value; there are"),
        ([StructField("id", IntegerType())], "^column id is bigint, not int: change"),
        ([StructField("retention", STRUCT)], "max_bytes:bigint>, not struct<a:bigint>"),
        ([StructField("id", LongType())] * 2, "column id twice: name it once"),
        ([StructField("id", LongType(), False)], "column id can be null: leave out"),
    ],
)
def test_topics_that_are_refused(fields: list[StructField], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        project_topics(StructType(fields))


# Writes.


@each(
    "schema",
    [
        make(value=BinaryType()),
        make(value=StringType()),
        make(value=StringType("UTF8_LCASE"), key=StringType()),
        make(key=BinaryType(), value=BinaryType(), timestamp=TimestampType()),
        make(value=BinaryType(), timestamp=TimestampNTZType(), type=ShortType()),
        make(value=BinaryType(), timestamp_ns=LongType(), type=IntegerType()),
        make(value=NullType(), key=NullType(), timestamp=NullType(), type=NullType()),
        make(VALUE=StringType(), Key=BinaryType(), TimeStamp=TimestampType()),
        make(Value=StringType(), TYPE=NullType(), Offset=LongType(), TOPIC=LongType()),
        # What the option says makes the column worth nothing.
        make(value=BinaryType(), topic=LongType()),
        # Whatever they are, they are ignored.
        make(value=BinaryType(), offset=StringType(), next_offset=STRUCT),
        ROW_SCHEMA,
    ],
    ids=lambda schema: schema.simpleString(),
)
def test_what_can_be_written(schema: StructType) -> None:
    check_write_schema(schema, topic_option=True)


def test_topics_by_column() -> None:
    check_write_schema(ROW_SCHEMA, topic_option=False)
    for name in ("topic", "Topic"):
        schema = make(VALUE=BinaryType(), **{name: StringType()})
        check_write_schema(schema, topic_option=False)


@each(
    ("schema", "said"),
    [
        (
            make(value=BinaryType(), id=LongType(), name=StringType()),
            "can't write columns id, name: drop what is not needed, or put it into "
            "value, as in to_json(struct(*)) AS value; the columns of a write are "
            "value, key, timestamp, timestamp_ns, type, topic",
        ),
        (
            make(Value=BinaryType(), Id=BinaryType()),
            "can't write column Id: drop what is not needed, or put it into value, "
            "as in to_json(struct(*)) AS value; the columns of a write are value, key, "
            "timestamp, timestamp_ns, type, topic",
        ),
        (
            make(value=BinaryType(), KEY=BinaryType(), Value=StringType()),
            "columns value, Value differ only in case: drop or rename all but one",
        ),
        (
            make(
                Value=BinaryType(), Timestamp=TimestampType(), TIMESTAMP_NS=LongType()
            ),
            "columns timestamp and timestamp_ns are both there: drop one of them",
        ),
        (
            make(key=BinaryType(), offset=LongType()),
            "no column value to write; there are key, offset: rename one, or make one "
            "as in to_json(struct(*)) AS value",
        ),
        (
            StructType([]),
            "no column value to write; there are none: rename one, or make one as in "
            "to_json(struct(*)) AS value",
        ),
        (
            StructType([StructField("value", BinaryType())] * 2),
            "column value is there twice: drop or rename one",
        ),
        (
            make(
                value=BinaryType(), timestamp=TimestampType(), timestamp_ns=LongType()
            ),
            "columns timestamp and timestamp_ns are both there: drop one of them",
        ),
    ],
)
@each("topic_option", [True, False])
def test_columns_that_are_refused(
    schema: StructType, said: str, topic_option: bool
) -> None:
    with pytest.raises(OptionError) as told:
        check_write_schema(schema, topic_option=topic_option)
    assert str(told.value) == said


@each(
    ("name", "kind", "said"),
    [
        (
            "value",
            LongType(),
            "binary or string, not bigint: cast it, as in CAST(value",
        ),
        (
            "value",
            STRUCT,
            "binary or string, not struct<a:bigint>: write it as text, as",
        ),
        ("value", VariantType(), "binary or string, not variant: write it as text, as"),
        ("key", ArrayType(StringType()), "not array<string>: write it as text, as in "),
        ("key", MapType(StringType(), StringType()), "in to_json(key) AS key"),
        ("key", BooleanType(), "not boolean: cast it, as in CAST(key AS STRING)"),
        (
            "timestamp",
            StringType(),
            "timestamp, not string: cast it, as in CAST(timest",
        ),
        (
            "timestamp",
            DateType(),
            "not date: cast it, as in CAST(timestamp AS TIMESTAMP",
        ),
        ("timestamp", LongType(), "timestamp, not bigint: cast it"),
        ("timestamp_ns", TimestampType(), "bigint, not timestamp: cast it"),
        ("timestamp_ns", DoubleType(), "CAST(timestamp_ns AS BIGINT)"),
        (
            "type",
            StringType(),
            "smallint, not string: cast it, as in CAST(type AS SMALL",
        ),
        ("type", STRUCT, "smallint, not struct<a:bigint>: cast it"),
    ],
)
def test_column_that_has_to_be_cast(name: str, kind: DataType, said: str) -> None:
    columns: dict[str, DataType] = {"value": BinaryType(), name: kind}
    with pytest.raises(OptionError) as told:
        check_write_schema(make(**columns), topic_option=True)
    assert str(told.value).startswith(f"column {name} must be ")
    assert said in str(told.value)


@pytest.mark.parametrize("kind", [BinaryType(), NullType(), LongType()])
def test_topics_that_are_no_names(kind: DataType) -> None:
    with pytest.raises(
        OptionError, match=r"^column topic must be string, not .*: cast"
    ):
        check_write_schema(make(value=BinaryType(), topic=kind), topic_option=False)


def test_nowhere_to_write() -> None:
    with pytest.raises(OptionError, match="no topic to write to: name it with option"):
        check_write_schema(make(value=BinaryType()), topic_option=False)
