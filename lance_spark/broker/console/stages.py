"""Open stages, as a page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lance_spark.store import Job, Stage

_NS_PER_MS = 1_000_000


def find_activity(stages: Iterable[Stage]) -> dict[Job, int]:
    """Tell when each job was last active, in ns: when any stage of it was."""
    active: dict[Job, int] = {}
    for stage in stages:
        job = stage.metadata.job
        active[job] = max(active.get(job, 0), stage.active_ns)
    return active


def describe_stages(stages: Sequence[Stage], ttl_s: int) -> dict[str, Any]:
    """Describe stages, the one that was opened first at the front.

    Args:
        stages: what to describe.
        ttl_s: how long a job may be idle before its stages go.
    """
    active = find_activity(stages)
    return {
        "stages": [
            {
                "id": stage.metadata.id,
                "topic": stage.metadata.topic,
                "writer": stage.metadata.job.writer,
                # It may be above 2^53, where numbers of JavaScript are not exact.
                "sequence": str(stage.metadata.job.sequence),
                "batches": stage.batches,
                "bytes": stage.size,
                "last_active_ms": stage.active_ns // _NS_PER_MS,
                "expires_ms": active[stage.metadata.job] // _NS_PER_MS + ttl_s * 1000,
            }
            for stage in sorted(stages, key=lambda s: s.metadata.id)
        ]
    }
