"""What all logs of a store share."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.model import Framing
from lance_spark.store.cache import SegmentCache
from lance_spark.store.config import StoreConfig
from lance_spark.store.files import Files
from lance_spark.store.finding import Findings


@dataclass(frozen=True, slots=True)
class Context:
    """Files, settings, framing, open segments, and what was found when opening."""

    files: Files
    config: StoreConfig
    framing: Framing
    segments: SegmentCache
    findings: Findings
