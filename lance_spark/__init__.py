"""LANCE log topics in and out of Apache Spark.

Importing this package needs neither pyspark nor any other extra.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("lance-spark")
except PackageNotFoundError:  # A source tree that was never installed.
    __version__ = "0.0.0"

__all__ = ["__version__"]
