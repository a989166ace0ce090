"""The testing kit's relay, under the name that these tests have for it."""

from __future__ import annotations

from lance_spark.testing.flow import CLEAR, Fate, Flow, Gate
from lance_spark.testing.relay import Relay as Proxy

__all__ = ["CLEAR", "Fate", "Flow", "Gate", "Proxy"]
