"""What the tests of reads share: topics whose rows are known, readers without Spark."""

from __future__ import annotations

import itertools
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.client.driver import LogRef, Split
from lance_spark.model import Partition, Retention
from lance_spark.spark.options import ReadOptions, parse_read_options
from lance_spark.spark.schema import make_row_schema
from lance_spark.spark.source import LanceDataSource
from lance_spark.wire.lwp import Record, RecordType, encode_record

DIALECTS = ("lwp", "plain")

# What a read of format lance gives if no columns are named.
ROW_SCHEMA = make_row_schema()
ROW_COLUMNS = tuple(ROW_SCHEMA.fieldNames())

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MEMORY = Path("/dev/shm")

# A client that is quick to try again, as the server comes back at once.
QUICK: dict[str, Any] = {
    "backoff_base_s": 0.001,
    "backoff_max_s": 0.002,
    "retry_timeout_s": 60.0,
}

# One record of each type and of each way to be empty.
EVERY_TYPE = [
    Record(RecordType.RAW, b"raw"),
    Record(RecordType.JSON, b'{"a": 1}'),
    Record(RecordType.MESSAGE_PACK, b"\x93\x01\x02\x03"),
    Record(RecordType.PROTOBUF, b"\x08\x96\x01"),
    Record(RecordType.AVRO, b"\x06foo"),
    Record(RecordType.KEY_VALUE, b"value", b"key"),
    Record(RecordType.TIMESTAMPED, b"timed", None, 1_700_000_000_123_456_789),
    Record(RecordType.KEY_TIMESTAMPED, b"both", b"k", 1_700_000_000_000_000_001),
    Record(0x80, b"of an application"),
    Record(0xFE, b"\x00\xff"),
    Record(RecordType.NULL),
    Record(RecordType.RAW, b""),
    Record(RecordType.KEY_VALUE, b"", b""),
    Record(RecordType.KEY_VALUE, b"", b"key alone"),
    Record(RecordType.TIMESTAMPED, b"", None, 0),
    Record(RecordType.KEY_TIMESTAMPED, b"", b"", 999),
    Record(RecordType.RAW, "żółw 🐢\u0000".encode()),
    Record(RecordType.KEY_VALUE, "ключ".encode(), "значение".encode()),
]


def make_rows(
    topic: str, records: Iterable[Record], start: int = 0
) -> list[dict[str, Any]]:
    """Say which rows a read gives for records, with all columns there are."""
    rows = []
    for record in records:
        end = start + len(encode_record(record))
        time_ns = record.timestamp_ns
        is_null = record.type == RecordType.NULL
        rows.append(
            {
                "topic": topic,
                "offset": start,
                "type": int(record.type),
                "key": None if record.key is None else bytes(record.key),
                "value": None if is_null else bytes(record.value),
                "timestamp": None if time_ns is None else to_time(time_ns),
                "timestamp_ns": time_ns,
                "next_offset": end,
            }
        )
        start = end
    return rows


def to_time(time_ns: int) -> datetime:
    """Give a time as rows have it, cut to microseconds."""
    return _EPOCH + timedelta(microseconds=time_ns // 1000)


def make_records(count: int, size: int = 20) -> list[Record]:
    """Make keyed records that differ, each of so many bytes behind its header."""
    return [
        Record(
            RecordType.KEY_VALUE, b"%06d" % n + b"v" * (size - 11), b"%03d" % (n % 1000)
        )
        for n in range(count)
    ]


# Brokers and topics.


@contextmanager
def run_broker(
    dialect: str = "lwp", *, where: Path | None = None, **settings: Any
) -> Iterator[EmbeddedBroker]:
    """Run a broker whose data is in memory, or in another place if one is given."""
    if where is None and _MEMORY.is_dir():
        where = _MEMORY
    with (
        tempfile.TemporaryDirectory(prefix="lance-test-", dir=where) as path,
        EmbeddedBroker(
            dialect=dialect, data_dir=path, **{"fsync": "none", **settings}
        ) as broker,
    ):
        yield broker


def connect(broker: EmbeddedBroker) -> LanceClient:
    """Make a client of a broker."""
    return LanceClient(broker.address, checksum=_checksum(broker), **QUICK)


def _checksum(broker: EmbeddedBroker) -> str:
    return "crc32" if broker.config.dialect == "plain" else "crc32c"


def log_at(client: LanceClient, topic: str) -> LogRef:
    """Name the log of a topic, as plans do."""
    info = client.topic(topic)
    return LogRef(Partition(topic), info.id, info.created_at_s)


def fill(
    broker: EmbeddedBroker,
    topic: str,
    records: Sequence[Record] = (),
    *,
    batch_bytes: int = 1024 * 1024,
) -> list[dict[str, Any]]:
    """Append records to a topic, made if need be; give the rows of what it holds."""
    with connect(broker) as client:
        start = client.bounds(client.ensure_topic(topic).id).end
        # Their size alone decides where batches end: on a busy machine time would, too.
        with Producer(
            client,
            topic,
            batch_bytes=batch_bytes,
            linger_s=60.0,
            allow_null_records=True,
        ) as producer:
            for record in records:
                is_null = record.type == RecordType.NULL
                plain = record.key is None and record.timestamp_ns is None
                producer.send(
                    None if is_null else record.value,
                    key=record.key,
                    timestamp_ns=record.timestamp_ns,
                    type=int(record.type) if plain and not is_null else None,
                )
    return make_rows(topic, records, start)


def append_bytes(broker: EmbeddedBroker, topic: str, data: bytes) -> None:
    """Append bytes that need not be whole records, as a plain server takes them."""
    import numpy as np

    with connect(broker) as client:
        topic_id = client.ensure_topic(topic).id
    broker.service.store.append(topic_id, data, np.zeros(1, np.int64))


def drop_old(broker: EmbeddedBroker, topic: str, max_bytes: int) -> None:
    """Let retention cut a topic now; what is left is whole segments."""
    with connect(broker) as client:
        client.set_retention(topic, Retention(0, max_bytes))
    broker.service.maintain()


def log_of(broker: EmbeddedBroker, topic: str) -> tuple[int, int]:
    """Say where a log starts and ends in the broker's own offsets."""
    found = broker.service.store.find_topic(topic)
    assert found is not None
    view = broker.service.store.view(found.metadata.id)
    return view.start.offset, view.end.offset


# What a broker is asked for.


class Fetches:
    """Counts what is fetched of a broker, and does something after so many bytes.

    The bytes of the fetch that reaches them are read already; what is done is seen by
    the next one.
    """

    def __init__(self, broker: EmbeddedBroker, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.bytes = 0
        # Called for each of them.
        self.gate: Callable[[], None] = lambda: None
        self._limit = 0
        self._do: Callable[[], None] | None = None
        self._fetched = broker.metrics.fetched
        patch.setattr(broker.metrics, "fetched", self._note)

    def after(self, size: int, do: Callable[[], None]) -> None:
        """Do something once, when so many bytes were fetched from now on."""
        self._limit, self._do = self.bytes + size, do

    def _note(self, topic_id: int, records: int, size: int) -> None:
        self._fetched(topic_id, records, size)
        self.count += 1
        self.bytes += size
        if self._do is not None and self.bytes >= self._limit:
            do, self._do = self._do, None
            do()
        self.gate()


# Readers without Spark.


def make_options(broker: EmbeddedBroker, **given: Any) -> dict[str, str]:
    """Give options as Spark does: names in lower case, all values texts."""
    options = {"servers": broker.address, "checksum": _checksum(broker), **given}
    return {name.lower(): str(value) for name, value in options.items()}


def parse(broker: EmbeddedBroker, **given: Any) -> ReadOptions:
    """Parse the options of a read."""
    return parse_read_options(make_options(broker, **given))


def make_schema(text: str) -> StructType:
    """Parse a schema in the form that users give, which Spark does with a JVM."""
    schema = StructType()
    for part in text.split(", "):
        name, kind = part.split(" ", 1)
        schema = schema.add(name, kind)
    return schema


# All columns, and the values as texts.
EVERY_COLUMN = make_schema(
    "next_offset long, timestamp_ns long, timestamp timestamp, value binary, "
    "key binary, type short, offset long, topic string"
)


def make_reader(
    broker: EmbeddedBroker, schema: StructType | None = None, **given: Any
) -> DataSourceReader:
    """Make a reader as Spark does."""
    source = LanceDataSource(make_options(broker, **given))
    source = pickle.loads(pickle.dumps(source))
    return source.reader(schema=source.schema() if schema is None else schema)


def plan(reader: DataSourceReader) -> list[Split]:
    """Give the splits of a reader."""
    return [partition.value for partition in reader.partitions()]


def read(
    broker: EmbeddedBroker, schema: StructType | None = None, **given: Any
) -> list[dict[str, Any]]:
    """Read rows as Spark does: plan here, and read what was pickled meanwhile."""
    reader = make_reader(broker, schema, **given)
    return read_planned(reader, reader.partitions(), schema)


def read_planned(
    reader: DataSourceReader,
    partitions: Sequence[InputPartition],
    schema: StructType | None = None,
) -> list[dict[str, Any]]:
    """Read the rows of partitions, each of them as a task does."""
    pickled = pickle.dumps(reader)
    batches = itertools.chain.from_iterable(
        pickle.loads(pickled).read(pickle.loads(pickle.dumps(partition)))
        for partition in partitions
    )
    return to_rows(batches, schema)


def to_rows(
    batches: Iterable[pa.RecordBatch], schema: StructType | None = None
) -> list[dict[str, Any]]:
    """Give the rows of batches; check that Spark would take them."""
    rows = []
    for batch in batches:
        if schema is not None:
            assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
        batch.validate(full=True)
        rows.extend(batch.to_pylist())
    return rows


def pick(rows: Iterable[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Keep some columns of rows."""
    return [{name: row[name] for name in columns} for row in rows]


def make_payload(records: Iterable[Record]) -> bytes:
    """Give the bytes of records."""
    return b"".join(map(encode_record, records))


# Reads with Spark.


def load(
    spark: SparkSession,
    broker: EmbeddedBroker,
    schema: str | StructType | None = None,
    **given: Any,
) -> DataFrame:
    """Make a DataFrame of what a broker has."""
    reader = spark.read.format("lance").options(**make_options(broker, **given))
    return (reader if schema is None else reader.schema(schema)).load()


def collect(frame: DataFrame) -> list[dict[str, Any]]:
    """Give the rows of a DataFrame, times with their zone."""
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


def plan_now(frame: DataFrame) -> int:
    """Let Spark plan a DataFrame, and say into how many partitions."""
    partitions: int = frame._jdf.queryExecution().toRdd().getNumPartitions()
    return partitions


def fail_to(do: Callable[[], Any]) -> str:
    """Do what fails; give the text of Spark's error."""
    with pytest.raises(PySparkException) as told:
        do()
    return str(told.value)
