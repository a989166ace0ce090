"""What makes `format("fluvio")` work without a call; see `pyspark_lance`."""

from lance_spark.spark.source import FluvioDataSource as DefaultSource

__all__ = ["DefaultSource"]
