"""A broker and splits of its topics, as the tests of tasks without Spark read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.driver import Driver, Split
from lance_spark.client.lwp.driver import TRAITS, make_driver
from lance_spark.spark.filters import Pushed
from lance_spark.spark.planning import choose_topics, plan_splits, resolve_ranges
from lance_spark.spark.scan import ReadTask, SplitReader
from lance_spark.spark.schema import project
from tests.spark.reading import (
    EVERY_COLUMN,
    connect,
    parse,
    run_broker,
    to_rows,
)

Rows = list[dict[str, Any]]


class Server:
    """A broker, a client of it, and splits of its topics."""

    def __init__(self, broker: EmbeddedBroker, client: LanceClient) -> None:
        self.broker = broker
        self.client = client

    @property
    def driver(self) -> Driver:
        return make_driver(self.client)

    @property
    def is_plain(self) -> bool:
        return self.broker.config.dialect == "plain"

    def plan(self, parts: int = 1, **given: Any) -> list[Split]:
        """Cut the one topic that is read into so many parts."""
        options = parse(self.broker, **{"topic": "a", **given})
        topics = choose_topics(options, self.driver.topics())
        [piece] = resolve_ranges(self.driver, options, topics)
        return plan_splits([piece], TRAITS, min_partitions=parts)

    def start(
        self, split: Split, schema: StructType = EVERY_COLUMN, **given: Any
    ) -> Iterator[pa.RecordBatch]:
        """Begin to read a split."""
        pushed = given.pop("pushed", Pushed())
        options = parse(self.broker, **{"topic": "a", **given})
        task = ReadTask(options, project(schema), pushed)
        return SplitReader(self.driver, task, split).read()

    def read(
        self, splits: list[Split], schema: StructType = EVERY_COLUMN, **given: Any
    ) -> Rows:
        """Read splits, one after the other."""
        rows: Rows = []
        for split in splits:
            rows += to_rows(self.start(split, schema, **given), schema)
        return rows


def serve(dialect: str, **settings: Any) -> Iterator[Server]:
    """Run a broker and connect to it, for a fixture."""
    with run_broker(dialect, **settings) as broker, connect(broker) as client:
        yield Server(broker, client)
