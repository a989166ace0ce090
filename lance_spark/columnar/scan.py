"""Moved to `wire.lwp.tlv`; here until all callers ask there."""

from lance_spark.kernel import COMPILED as KERNEL
from lance_spark.wire.lwp.tlv import scan

__all__ = ["KERNEL", "scan"]
