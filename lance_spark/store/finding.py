"""What recovery and the checker have to say about a store."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

logger = logging.getLogger(__name__)


class Severity(str, Enum):
    """How bad a finding is."""

    NOTE = "note"  # In order after a crash: mended, or mended by the next opening.
    DAMAGE = "damage"  # Bytes or facts that were promised are gone.


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Args:
        severity: whether something was lost.
        where: topic, stage or file, relative to the data directory.
        text: what was found and what was done.
        start: first offset concerned, where there is one.
        end: offset behind it.
    """

    severity: Severity
    where: str
    text: str
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        span = "" if self.start is None else f" [{self.start}, {self.end})"
        return f"{self.severity.value}: {self.where}{span}: {self.text}"


class Findings:
    """Collects findings and logs each as it comes."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def note(
        self, where: str, text: str, start: int | None = None, end: int | None = None
    ) -> None:
        """Add something that is in order after a crash."""
        self._add(Finding(Severity.NOTE, where, text, start, end), logging.WARNING)

    def damage(
        self, where: str, text: str, start: int | None = None, end: int | None = None
    ) -> None:
        """Add a loss."""
        self._add(Finding(Severity.DAMAGE, where, text, start, end), logging.ERROR)

    def _add(self, finding: Finding, level: int) -> None:
        self.all.append(finding)
        logger.log(level, "%s", finding)
