from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lance_spark.broker.console.health import GIB, Signs, judge
from lance_spark.broker.console.sampler import Pulse
from lance_spark.store import Finding, Severity

WELL = Signs(disk_free_bytes=500 * GIB, disk_total_bytes=1000 * GIB)
DAMAGE = Finding(Severity.DAMAGE, "segments/1", "bytes are gone", 0, 5)
NOTE = Finding(Severity.NOTE, "segments/1", "cut behind the last record")
DAY_S = 24 * 3600


@pytest.mark.parametrize(
    "signs",
    [
        {},
        {"findings": [NOTE]},
        {"disk_free_bytes": 0, "disk_total_bytes": 0},  # It could not be asked.
        {"pulse": Pulse(errors_last_min=60)},
        {"idle_stages_s": [0.0, DAY_S - 1.0]},
    ],
)
def test_well(signs: dict[str, Any]) -> None:
    assert judge(replace(WELL, **signs)) == {"status": "ok", "notes": []}


@pytest.mark.parametrize(
    ("signs", "level", "text"),
    [
        ({"disk_free_bytes": 49 * GIB}, "warning", "49.0 GiB are free, 5 %"),
        ({"disk_free_bytes": 9 * GIB}, "error", "9.0 GiB are free, 1 %"),
        (
            {"disk_free_bytes": GIB - 1, "disk_total_bytes": 2 * GIB},
            "warning",
            "1.0 GiB are free, 50 %",
        ),
        ({"rules_closed": 1}, "warning", "1 topic has an access rule and TLS is off"),
        ({"rules_closed": 2}, "warning", "2 topics have an access rule"),
        ({"findings": [NOTE, DAMAGE]}, "error", "data directory: segments/1."),
        ({"pulse": Pulse(faults_last_min=2)}, "error", "2 requests failed"),
        ({"pulse": Pulse(errors_last_min=61)}, "warning", "61 requests were refused"),
        ({"idle_stages_s": [DAY_S + 1.0] * 2}, "warning", "2 stages have been idle"),
        ({"passed": [(7, "events")]}, "warning", "passed 1 consumer, who will miss"),
        (
            {"passed": [(n, "t") for n in range(7)]},
            "warning",
            "0 in t, 1 in t, 2 in t, 3 in t, 4 in t and 2 more",
        ),
    ],
)
def test_notes(signs: dict[str, Any], level: str, text: str) -> None:
    health = judge(replace(WELL, **signs))
    assert health["status"] == level
    (note,) = health["notes"]
    assert note["level"] == level and text in note["text"]


def test_the_worst_counts() -> None:
    health = judge(replace(WELL, findings=[DAMAGE], rules_closed=1))
    assert health["status"] == "error"
    assert [note["level"] for note in health["notes"]] == ["warning", "error"]
