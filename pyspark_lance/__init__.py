"""Spark looks for a `DefaultSource` in installed modules named `pyspark_*`.

This one makes `format("lance")` work without a call.
"""

from lance_spark.spark.source import LanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
