"""The testing kit's relay, under the name that these tests have for it."""

from __future__ import annotations

from lance_spark.testing.relay import CLEAR, ByteFilter, Fate, Flow
from lance_spark.testing.relay import Relay as Proxy

__all__ = ["CLEAR", "ByteFilter", "Fate", "Flow", "Proxy"]
