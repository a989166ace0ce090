"""What makes `format("tank")` work without a call; see `pyspark_lance`."""

from lance_spark.spark.source import TankDataSource as DefaultSource

__all__ = ["DefaultSource"]
