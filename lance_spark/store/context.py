"""What all logs of a store share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lance_spark.model import Framing
from lance_spark.store.cache import SegmentCache
from lance_spark.store.config import StoreConfig
from lance_spark.store.files import Files
from lance_spark.store.finding import Findings
from lance_spark.store.identity import Identity
from lance_spark.store.spare import Reserve, Spare


def _ignore(seconds: float) -> None:
    """Take note of nothing."""


@dataclass(frozen=True, slots=True)
class Context:
    """Files, settings, framing, open segments, findings, what is kept back, ids.

    `observe_sync` is told how long each sync of a log has taken.
    """

    files: Files
    config: StoreConfig
    framing: Framing
    segments: SegmentCache
    findings: Findings
    spare: Spare
    reserve: Reserve
    identity: Identity
    observe_sync: Callable[[float], None] = _ignore
