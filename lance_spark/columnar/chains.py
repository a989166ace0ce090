"""Moved to `wire.lwp.chains`; here until all callers ask there."""

from lance_spark.wire.lwp.chains import find_meeting, follow_chains

__all__ = ["find_meeting", "follow_chains"]
