"""Jobs of which a task is run twice at a time, on a cluster that makes such copies."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.troubled import Trouble, TroubledSource

ROWS = 400
PARTITIONS = 4
DELIVERIES = ("exactly-once", "at-least-once")


def main(spark: SparkSession, servers: str, directory: str) -> list[str]:
    """Write the same rows with each delivery; give the topics."""
    spark.dataSource.register(TroubledSource)
    rows = spark.range(0, ROWS, numPartitions=PARTITIONS)
    for delivery in DELIVERIES:
        met = str(Path(directory) / delivery)
        trouble = Trouble(what="meet", ready=met, at_end=True)
        options = {"delivery": delivery, "servers": servers, "topic": delivery}
        writer = rows.selectExpr("string(id) value").write.format("troubled")
        writer.mode("append").options(**options, trouble=str(trouble)).save()
    return list(DELIVERIES)
