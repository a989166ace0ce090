"""A streaming job, and how it is tested.

    topic payments -> those that are large, as JSON -> topic alerts

The job is `start`. It is given its options and its session and makes neither, so that
tests can. They are in examples/tests/test_testing_a_job.py: what it writes, what it
does with input that is no payment, and that every alert is there once although the
network fails under it. This program runs them, with pytest and the fixtures that come
with the package; broker and Spark are gone afterwards:

    .venv/bin/python examples/testing_a_job.py

The guide to the testing kit is docs/testing.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

LARGE_CENTS = 100_000


def find_large(payments: DataFrame) -> DataFrame:
    """Pick the payments to be looked at; rows that are no payment are left out."""
    payment = F.from_json(F.col("value").cast("string"), "user string, cents bigint")
    parsed = payments.select(payment.alias("payment"))
    large = parsed.where(F.col("payment.cents") >= LARGE_CENTS)
    return large.select(
        F.col("payment.user").alias("key"), F.to_json("payment").alias("value")
    )


def start(
    spark: SparkSession,
    source: Mapping[str, str],
    target: Mapping[str, str],
    checkpoint: str,
) -> StreamingQuery:
    """Start the job; it reads what is there, and ends.

    Args:
        spark: any session.
        source: options of the topic that is read.
        target: options of the topic that is written.
        checkpoint: where the query keeps how far it is.
    """
    payments = (
        spark.readStream.format("lance")
        .options(**source)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        find_large(payments)
        .writeStream.format("lance")
        .options(**target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main() -> int:
    """Run the job's tests."""
    import pytest

    tests = Path(__file__).parent / "tests" / "test_testing_a_job.py"
    print(f"The tests of this job, {tests.name}; Spark takes a while to start:")
    return pytest.main(["-v", str(tests)])


if __name__ == "__main__":
    sys.exit(main())
