"""The data source `lance`, as Spark finds and pickles it.

Every Python worker that plans or runs something imports this file, also in sessions
that never use the source: it imports nothing that Spark has not loaded already. What
does the work is imported by the methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT = "lance"


class LanceDataSource(DataSource):
    """LANCE log topics in batches and streams: `format("lance")`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        from lance_spark.spark.options import check_options

        check_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of a read for which the user names none."""
        from lance_spark.spark.options import lists_topics
        from lance_spark.spark.schema import ROW_SCHEMA, TOPICS_SCHEMA

        return TOPICS_SCHEMA if lists_topics(self.options) else ROW_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch query."""
        from lance_spark.spark.options import parse_read_options
        from lance_spark.spark.reader import LanceReader, TopicsReader

        options = parse_read_options(self.options)
        if options.metadata:
            return TopicsReader(options, schema)
        return LanceReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make the reader of a stream."""
        from lance_spark.spark.options import parse_stream_options
        from lance_spark.spark.stream_reader import LanceStreamReader

        return LanceStreamReader(parse_stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a batch query."""
        from lance_spark.spark.options import parse_write_options
        from lance_spark.spark.writer import LanceWriter

        return LanceWriter(parse_write_options(self.options), schema, overwrite)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Make the writer of a micro-batch."""
        from lance_spark.spark.options import parse_stream_write_options
        from lance_spark.spark.writer import LanceStreamWriter

        options = parse_stream_write_options(self.options)
        return LanceStreamWriter(options, schema, overwrite)


def register(spark: SparkSession, name: str = FORMAT) -> None:
    """Make the source known to a session, on request by another name."""
    spark.dataSource.register(_make_source(name))


def _make_source(name: str) -> type[LanceDataSource]:
    if name == FORMAT:
        return LanceDataSource

    class NamedDataSource(LanceDataSource):
        @classmethod
        def name(cls) -> str:
            return name

    return NamedDataSource
