"""Settings of a store."""

from __future__ import annotations

import pytest

from lance_spark.errors import OptionError
from lance_spark.store import Fsync, StoreConfig
from tests.each import each


def test_the_defaults_are_allowed() -> None:
    config = StoreConfig()
    assert config.fsync is Fsync.BATCH
    assert config.batch_bytes_max > 16 * 1024 * 1024 + 64 * 1024  # LWP's largest.


@each(
    ("name", "value"),
    [
        ("sync_interval_s", -0.1),
        ("segment_bytes", 0),
        ("segment_age_s", -1),
        ("index_bytes_max", 4095),
        ("index_stride_bytes", 63),
        ("batch_bytes_max", 0),
        ("open_segments_max", 3),
        ("index_cache_bytes", -1),
        ("stage_adopt_bytes", 0),
        ("stage_ttl_s", 0),
        ("stages_max", 0),
        ("writer_ttl_s", 0),
        ("journal_bytes_max", 1023),
        ("wait_timeout_s", 0),
        ("segment_bytes", "64 MiB"),
        ("segment_bytes", None),
        ("batch_bytes_max", 2**31),
        ("fsync", "sometimes"),
        ("segment_bytes", 1.5),
        ("stages_max", True),
        ("sync_interval_s", float("nan")),
        ("sync_interval_s", 1e300),
        ("wait_timeout_s", float("inf")),
    ],
)
def test_a_setting_that_is_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"store setting {name}="):
        StoreConfig(**{name: value})  # type: ignore[arg-type]


def test_a_policy_can_be_given_by_its_name() -> None:
    assert StoreConfig(fsync="always").fsync is Fsync.ALWAYS  # type: ignore[arg-type]


def test_the_lowest_values_are_allowed() -> None:
    config = StoreConfig(
        sync_interval_s=0,
        segment_bytes=1,
        segment_age_s=0,
        index_bytes_max=4096,
        index_stride_bytes=64,
        batch_bytes_max=1,
        open_segments_max=4,
        index_cache_bytes=0,
        stage_adopt_bytes=1,
        stage_ttl_s=1,
        stages_max=1,
        writer_ttl_s=1,
        journal_bytes_max=1024,
        wait_timeout_s=0.001,
    )
    assert config.segment_bytes == 1
