"""Moved to `net.listener`; here until all callers ask there."""

from lance_spark.net.listener import raise_file_limit

__all__ = ["raise_file_limit"]
