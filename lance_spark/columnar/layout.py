"""Moved to `wire.lwp.tlv`; here until all callers ask there."""

from lance_spark.wire.lwp.tlv import check_records, validate

__all__ = ["check_records", "validate"]
