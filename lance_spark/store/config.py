"""Settings of a store: one frozen value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from lance_spark.quantity import check_choice, check_number, refuse_setting

KIB = 1024
MIB = 1024 * KIB
DAY_S = 24 * 3600

# Settings that may have a fraction, and the largest value that makes sense.
_SECONDS = ("sync_interval_s", "wait_timeout_s")
_SECONDS_MAX = 3600


def _setting(default: float, *, least: float) -> Any:
    return field(default=default, metadata={"least": least})


class Fsync(str, Enum):
    """When an append counts as durable."""

    NONE = "none"  # Written: survives the process, not the power.
    BATCH = "batch"  # After a sync that many appends share.
    ALWAYS = "always"  # After a sync of its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of a store.

    Args:
        fsync: when an append is durable, and so acknowledged and readable.
        sync_interval_s: the shortest time between two shared syncs. Appends that come
            during a sync share the next one; a longer time lets more of them share
            it, and each of them wait longer.
        segment_bytes: a segment is closed before it grows past this.
        segment_age_s: a segment is closed when its first batch is older than this, so
            that retention by age can drop it; 0 turns it off.
        index_bytes_max: a segment is closed when its index reaches this, which bounds
            the memory that many small batches take.
        index_stride_bytes: the shortest distance of the record boundaries that are
            indexed inside a batch; a large batch has about 16.
        batch_bytes_max: the largest batch that is accepted; above the largest payload
            of the wire protocol (16 MiB + 64 KiB).
        open_segments_max: how many segments keep their files open.
        index_cache_bytes: how much index is kept in memory, over all segments.
        stage_adopt_bytes: a stage of at least this size becomes segments of its topic
            as it is; a smaller one is copied behind the topic's last record.
        stage_inline_bytes: a stage that stays below this, and that would be copied,
            has no files of its own, but rides in `stages.log`; 0 gives all stages
            files.
        stage_ttl_s: a stage is dropped after this time without activity of its job.
        stages_max: how many stages may be open at once.
        overwrite_max: how many topics one commit may replace.
        writer_ttl_s: how long the last sequence of a writer is remembered.
        journal_bytes_max: the journal is compacted when it grows past this.
        wait_timeout_s: how long an append waits for the disk, a commit for another one,
            and closing for a commit, before it fails.
    """

    fsync: Fsync = Fsync.BATCH
    sync_interval_s: float = _setting(0.0, least=0)
    segment_bytes: int = _setting(64 * MIB, least=1)
    segment_age_s: int = _setting(DAY_S, least=0)
    index_bytes_max: int = _setting(16 * MIB, least=4 * KIB)
    index_stride_bytes: int = _setting(8 * KIB, least=64)
    batch_bytes_max: int = _setting(64 * MIB, least=1)
    open_segments_max: int = _setting(256, least=4)
    index_cache_bytes: int = _setting(64 * MIB, least=0)
    stage_adopt_bytes: int = _setting(4 * MIB, least=1)
    stage_inline_bytes: int = _setting(256 * KIB, least=0)
    stage_ttl_s: int = _setting(DAY_S, least=1)
    stages_max: int = _setting(10_000, least=1)
    overwrite_max: int = _setting(100, least=1)
    writer_ttl_s: int = _setting(7 * DAY_S, least=1)
    journal_bytes_max: int = _setting(4 * MIB, least=KIB)
    wait_timeout_s: float = _setting(30.0, least=0.001)

    def __post_init__(self) -> None:
        check_choice("store setting fsync", self.fsync, [each.value for each in Fsync])
        object.__setattr__(self, "fsync", Fsync(self.fsync))
        for setting in fields(StoreConfig)[1:]:
            name, least = setting.name, setting.metadata["least"]
            most = _SECONDS_MAX if name in _SECONDS else None
            check_number(f"store setting {name}", getattr(self, name), least, most)
        if self.batch_bytes_max >= 2**31:
            what = "store setting batch_bytes_max"
            refuse_setting(what, self.batch_bytes_max, "below 2 GiB")
