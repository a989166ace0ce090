"""LANCE log topics in and out of Apache Spark.

Importing this package needs neither pyspark nor any other extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    __version__: str

__all__ = ["__version__", "register"]


def __getattr__(name: str) -> str:
    # Late, as Spark imports this package in every session of its machine, and looking
    # for the version takes longer than all the rest.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("lance-spark")
    except PackageNotFoundError:  # A source tree that was never installed.
        return "0.0.0"


def register(spark: SparkSession, name: str = "lance") -> None:
    """Make the formats known to a session, `lance` on request by another name.

    Not needed where the package is installed: Spark finds it by itself there. Another
    name is for sessions with LanceDB's connector, which has this one.

    Raises:
        ImportError: pyspark is not installed.
    """
    from lance_spark.spark.source import register as register_source

    register_source(spark, name)
