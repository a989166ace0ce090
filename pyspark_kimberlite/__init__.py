"""What makes `format("kimberlite")` work without a call; see `pyspark_lance`."""

from lance_spark.spark.source import KimberliteDataSource as DefaultSource

__all__ = ["DefaultSource"]
