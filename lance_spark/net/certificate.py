"""Moved to `net.tls`; here until all callers ask there."""

from lance_spark.net.tls import fingerprints

__all__ = ["fingerprints"]
