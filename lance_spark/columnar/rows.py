"""Moved to `wire.lwp.tlv`; here until all callers ask there."""

from lance_spark.wire.lwp.tlv import check_plain_type

__all__ = ["check_plain_type"]
