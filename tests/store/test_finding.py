"""Findings."""

from __future__ import annotations

import logging

import pytest

from lance_spark.store import Finding, Severity
from lance_spark.store.context import Findings


def test_text() -> None:
    with_span = Finding(Severity.DAMAGE, "segments/1", "the checksum differs", 10, 20)
    assert str(with_span) == "damage: segments/1 [10, 20): the checksum differs"
    assert str(Finding(Severity.NOTE, "lock", "odd")) == "note: lock: odd"


def test_findings_are_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    findings = Findings()
    with caplog.at_level(logging.WARNING):
        findings.note("a", "mended")
        findings.damage("b", "lost", 1, 2)
    assert findings.all == [
        Finding(Severity.NOTE, "a", "mended"),
        Finding(Severity.DAMAGE, "b", "lost", 1, 2),
    ]
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "note: a: mended"),
        ("ERROR", "damage: b [1, 2): lost"),
    ]
