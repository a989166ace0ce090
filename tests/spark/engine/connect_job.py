"""A client of Spark Connect; prints what it has found as JSON.

    connect_job.py REMOTE SERVERS TOPIC FORMAT=SERVERS …

Nothing here knows the data source: the server finds it, until it is registered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

ROWS = 1000


def main(remote: str, servers: str, topic: str, *others: str) -> dict[str, Any]:
    """Do what tests look at, in order."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    there = {"servers": servers, "topic": topic}
    rows = spark.range(0, ROWS, numPartitions=3).selectExpr("cast(id as string) value")
    reader = spark.read.format("lance").options(**there)
    view = f"CREATE TEMPORARY VIEW rows USING lance OPTIONS ({_list(there)})"
    sums = "SELECT count(*), sum(cast(cast(value as string) as bigint)) FROM {}"
    try:
        rows.write.format("lance").mode("append").options(**there).save()
        read = tuple(spark.sql(sums.format("{frame}"), frame=reader.load()).first())
        spark.sql(view)
        viewed = tuple(spark.sql(sums.format("rows")).first())
        named = reader.schema("offset long, value string").load()
        return {
            "read": read,
            "viewed": viewed,
            "columns": named.columns,
            "first": named.orderBy("offset").first().asDict(),
            # A client asks nothing of the server before it has to.
            "misspelt": _fail(lambda: _read(spark, {**there, "topci": "x"}).schema),
            "missing": _fail(lambda: _read(spark, {**there, "topic": "gone"}).count()),
            "no value": _fail(lambda: _write(spark.range(1), there)),
            "others": [_copy(rows, topic, *each.split("=")) for each in others],
            "registered": _register(spark, there),
        }
    finally:
        spark.stop()


def _list(options: dict[str, str]) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in options.items())


def _read(spark: SparkSession, there: dict[str, str]) -> DataFrame:
    return spark.read.format("lance").options(**there).load()


def _write(frame: DataFrame, there: dict[str, str]) -> None:
    frame.write.format("lance").mode("append").options(**there).save()


def _copy(rows: DataFrame, topic: str, name: str, servers: str) -> int:
    """Write rows in another format, and count those that are read.

    Only different ones: these formats write at least once, and this cluster runs a copy
    of a task that takes long (`spark.speculation`), which then writes its rows, too.
    """
    there = {"servers": servers, "topic": f"{topic}-{name}"}
    writer = rows.write.format(name).mode("append").options(**there)
    if name != "kimberlite":
        writer = writer.option("partitions", "2")
    writer.save()
    found = rows.sparkSession.read.format(name).options(**there).load()
    return found.select("value").distinct().count()


def _register(spark: SparkSession, there: dict[str, str]) -> int:
    import lance_spark

    lance_spark.register(spark)
    return _read(spark, there).count()


def _fail(call: Callable[[], object]) -> str:
    try:
        call()
    except PySparkException as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(main(*sys.argv[1:]))}\n")
