"""What makes `format("rustlog")` work without a call; see `pyspark_lance`."""

from lance_spark.spark.source import RustLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
