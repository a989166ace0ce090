"""Pushed bounds of offsets in the formats whose positions are record numbers."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import connect
from lance_spark.spark.options import parse_read_options
from lance_spark.spark.reader import LanceReader
from lance_spark.spark.schema import make_row_schema

HERE = "127.0.0.1:0"


@pytest.mark.parametrize("protocol", ["rustlog", "fluvio", "tank"])
@pytest.mark.parametrize(
    ("pushed", "offsets"),
    [
        (LessThan(("offset",), 50), range(50)),
        (GreaterThanOrEqual(("offset",), 50), range(50, 101)),
        (EqualTo(("offset",), 7), [7]),
    ],
)
def test_an_end_that_a_filter_names(
    protocol: str, pushed: Filter, offsets: list[int]
) -> None:
    """The mark of the range is one of its own end, and not of the one that is read."""
    with EmbeddedBroker(**{protocol: HERE}) as broker:
        at = broker.address_of(protocol)
        with connect(f"{protocol}://{at}") as client:
            client.append("t", [b"v%d" % n for n in range(100)], create=True)
            bounds = client.bounds("t")[0]
        given = {"servers": at, "topic": "t", "pushFilters": "true"}
        options = parse_read_options(given, protocol)
        reader = LanceReader(options, make_row_schema(protocol))
        list(reader.push([pushed]))
        batches = [b for p in reader.partitions() for b in reader.read(p)]
        found = [n for batch in batches for n in batch.column("offset").to_pylist()]
    assert found == [n for n in offsets if bounds.start <= n < bounds.end]
