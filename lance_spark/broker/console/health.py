"""Is the broker well? Notes on what somebody should look at, from what is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lance_spark.broker.console.sampler import Pulse
from lance_spark.store import Finding, Severity

GIB = 1024**3
_FREE_WARNING = 0.05
_FREE_ERROR = 0.01
_FREE_BYTES_WARNING = GIB
# A minute with more than one error per second is not a client's slip.
_ERRORS_PER_MIN = 60
_STAGE_AGE_S = 24 * 3600
# Names in one note.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Signs:
    """What a judgement is made from.

    Args:
        disk_free_bytes: of the disk with the data.
        disk_total_bytes: of the same.
        rules_closed: topics whose rule nobody can fulfil, as TLS is off.
        findings: what the store has found since it was opened.
        pulse: requests and errors.
        idle_stages_s: for each stage, how long its job has been idle.
        passed: consumers that retention has passed, as (consumer, topic).
    """

    disk_free_bytes: int
    disk_total_bytes: int
    rules_closed: int = 0
    findings: Sequence[Finding] = ()
    pulse: Pulse = field(default_factory=Pulse)
    idle_stages_s: Sequence[float] = ()
    passed: Sequence[tuple[int, str]] = ()


def judge(signs: Signs) -> dict[str, Any]:
    """Give the status and the notes."""
    notes = [
        {"level": level, "text": text}
        for make in (_disk, _rules, _damage, _errors, _stages, _consumers)
        for level, text in make(signs)
    ]
    levels = {note["level"] for note in notes}
    status = next((s for s in ("error", "warning") if s in levels), "ok")
    return {"status": status, "notes": notes}


_Notes = Iterable[tuple[str, str]]


def _disk(signs: Signs) -> _Notes:
    free, total = signs.disk_free_bytes, signs.disk_total_bytes
    if not total:
        return  # It could not be asked.
    if free / total < _FREE_WARNING or free < _FREE_BYTES_WARNING:
        level = "error" if free / total < _FREE_ERROR else "warning"
        yield (
            level,
            f"The disk is nearly full: {free / GIB:.1f} GiB are free, "
            f"{100 * free / total:.0f} %. Set retention, or make room.",
        )


def _rules(signs: Signs) -> _Notes:
    if signs.rules_closed:
        yield (
            "warning",
            f"{_count(signs.rules_closed, 'topic has', 'topics have')} an access rule "
            "and TLS is off: nobody may use them. Turn TLS on, or remove the rules.",
        )


def _damage(signs: Signs) -> _Notes:
    damage = [f for f in signs.findings if f.severity is Severity.DAMAGE]
    if damage:
        where = _list(sorted({finding.where for finding in damage}))
        yield (
            "error",
            f"Damage was found in the data directory: {where}. Stop the broker and run "
            "lance-spark check.",
        )


def _errors(signs: Signs) -> _Notes:
    faults, errors = signs.pulse.faults_last_min, signs.pulse.errors_last_min
    if faults:
        yield (
            "error",
            f"{_count(faults, 'request', 'requests')} failed in the last minute for "
            "faults of the broker or its disk. Its log has the reasons.",
        )
    if errors - faults > _ERRORS_PER_MIN:
        yield (
            "warning",
            f"{errors - faults} requests were refused in the last minute. The metrics "
            "count them by code.",
        )


def _stages(signs: Signs) -> _Notes:
    old = sum(idle_s > _STAGE_AGE_S for idle_s in signs.idle_stages_s)
    if old:
        yield (
            "warning",
            f"{_count(old, 'stage has', 'stages have')} been idle for more than a day. "
            "If the job is gone, abort it.",
        )


def _consumers(signs: Signs) -> _Notes:
    if signs.passed:
        named = _list([f"{consumer} in {topic}" for consumer, topic in signs.passed])
        yield (
            "warning",
            f"Retention has passed {_count(len(signs.passed), 'consumer', 'consumers')}"
            f", who will miss records: {named}.",
        )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _list(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
