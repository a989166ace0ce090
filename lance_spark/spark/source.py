"""The data sources, as Spark finds and pickles them.

Every Python worker that plans or runs something imports this file, also in sessions
that never use a source: it imports nothing that Spark has not loaded already. What
does the work is imported by the methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

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


class LogDataSource(DataSource):
    """Topics of one protocol in batches and streams; subclasses say which."""

    protocol: ClassVar[str]

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        from lance_spark.spark.options import check_options

        check_options(options, self.protocol)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.protocol

    def schema(self) -> StructType:
        """Return the columns of a read for which the user names none."""
        from lance_spark.spark.options import lists_topics
        from lance_spark.spark.schema import make_row_schema, make_topics_schema

        if lists_topics(self.options, self.protocol):
            return make_topics_schema(self.protocol)
        return make_row_schema(self.protocol)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch query."""
        from lance_spark.spark.options import parse_read_options
        from lance_spark.spark.reader import LanceReader, TopicsReader

        options = parse_read_options(self.options, self.protocol)
        return (TopicsReader if options.metadata else LanceReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make the reader of a stream."""
        from lance_spark.spark.options import parse_read_options
        from lance_spark.spark.stream_reader import LanceStreamReader

        options = parse_read_options(self.options, self.protocol, is_stream=True)
        return LanceStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a batch query."""
        from lance_spark.spark.options import parse_write_options
        from lance_spark.spark.writer import LanceWriter

        options = parse_write_options(self.options, self.protocol)
        return LanceWriter(options, schema, overwrite)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Make the writer of a micro-batch."""
        from lance_spark.spark.options import parse_write_options
        from lance_spark.spark.writer import LanceStreamWriter

        options = parse_write_options(self.options, self.protocol, is_stream=True)
        return LanceStreamWriter(options, schema, overwrite)


class LanceDataSource(LogDataSource):
    """LANCE log topics: `format("lance")`."""

    protocol = "lance"


class RustLogDataSource(LogDataSource):
    """Topics of RustLog: `format("rustlog")`."""

    protocol = "rustlog"


class KimberliteDataSource(LogDataSource):
    """Streams of Kimberlite: `format("kimberlite")`."""

    protocol = "kimberlite"


class FluvioDataSource(LogDataSource):
    """Topics of Fluvio: `format("fluvio")`."""

    protocol = "fluvio"


class TankDataSource(LogDataSource):
    """Topics of TANK: `format("tank")`."""

    protocol = "tank"


SOURCES = (
    LanceDataSource,
    RustLogDataSource,
    KimberliteDataSource,
    FluvioDataSource,
    TankDataSource,
)


def register(spark: SparkSession, name: str = LanceDataSource.protocol) -> None:
    """Make all formats known to a session, `lance` on request by another name."""

    class NamedDataSource(LanceDataSource):
        @classmethod
        def name(cls) -> str:
            return name

    is_usual = name == LanceDataSource.protocol
    for source in (LanceDataSource if is_usual else NamedDataSource, *SOURCES[1:]):
        spark.dataSource.register(source)
