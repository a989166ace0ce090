"""Streaming writes of which a task fails when it has written all its rows.

They live in a module of their own as Spark's workers have to import it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from lance_spark.spark.options import parse_write_options
from lance_spark.spark.source import LanceDataSource
from lance_spark.spark.writer import LanceCommit, LanceStreamWriter


class TroubledStreamSource(LanceDataSource):
    """Writes as `lance` does, but the first attempt of each task fails at its end."""

    @classmethod
    def name(cls) -> str:
        return "troubled-stream"

    def streamWriter(self, schema: StructType, overwrite: bool) -> LanceStreamWriter:
        options = parse_write_options(self.options, is_stream=True)
        return TroubledStreamWriter(options, schema, overwrite)


class TroubledStreamWriter(LanceStreamWriter):
    """Fails in the first attempt of each task, behind its last row."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceCommit:
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("as the test wants it")
        return message
