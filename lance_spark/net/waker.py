"""Moved to `net.deadline`; here until all callers ask there."""

from lance_spark.net.deadline import Waker

__all__ = ["Waker"]
