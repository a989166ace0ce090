"""What the parts of an open store share: findings, readers that wait, the context.

A reader that waits on several logs at once can't sleep on the condition of each. It
leaves a function with each log instead (`Watchers`), and the offset behind which it
wants to read. A log calls the function once it has grown past that offset, and not
before: an append costs nothing for readers that wait for a later one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lance_spark.model import Framing
from lance_spark.store.config import StoreConfig
from lance_spark.store.document import Identity
from lance_spark.store.files import LOCK, RESERVE, Files, Reserve, Spare
from lance_spark.store.segment import SegmentCache
from lance_spark.store.stagelog import StageLog

# The name that the documentation gives.
logger = logging.getLogger("lance_spark.store.finding")


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

    def note(self, where: str, text: str, *span: int) -> None:
        """Add something that is in order after a crash."""
        self.add(Finding(Severity.NOTE, where, text, *span))

    def damage(self, where: str, text: str, *span: int) -> None:
        """Add a loss."""
        self.add(Finding(Severity.DAMAGE, where, text, *span))

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self.all.append(finding)
        is_loss = finding.severity is Severity.DAMAGE
        logger.log(logging.ERROR if is_loss else logging.WARNING, "%s", finding)


Wake = Callable[[], None]

# The offset of a reader that any change wakes.
_ANY = -1
# Further than any log grows: no reader waits.
_NEVER = 2**64


class Watchers:
    """Functions to be called on a change. They must be quick and never raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: dict[Wake, int] = {}
        # No reader waits for less. A log that grows looks at this alone, without the
        # lock: a reader that comes at that moment looks at the log behind `add`.
        self._least = _NEVER

    def __len__(self) -> int:
        return len(self._wakes)

    def add(self, wake: Wake, beyond: int = _ANY) -> None:
        """Call a function on every change that reaches beyond an offset."""
        with self._lock:
            self._wakes[wake] = beyond
            self._least = min(self._least, beyond)

    def remove(self, wake: Wake) -> None:
        """Call it no more; it may be called once again by a change under way."""
        with self._lock:
            beyond = self._wakes.pop(wake)
            if beyond <= self._least:
                self._least = min(self._wakes.values(), default=_NEVER)

    def notify(self, end: int = _NEVER) -> None:
        """Tell of a change; `end` is where a log that has grown ends now."""
        if end <= self._least:
            return
        with self._lock:
            woken = [wake for wake, beyond in self._wakes.items() if beyond < end]
        for wake in woken:
            wake()


class Context:
    """What all parts of an open store share.

    Args:
        files: file operations.
        root: the data directory.
        config: settings.
        framing: finds where records start in a batch.
        identity: gives out ids.
        observe_sync: told how many seconds each sync of a log has taken.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        config: StoreConfig,
        framing: Framing,
        identity: Identity,
        observe_sync: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.files = files
        self.root = root
        self.config = config
        self.framing = framing
        self.identity = identity
        self.observe_sync = observe_sync
        self.findings = Findings()
        self.segments = SegmentCache(
            open_max=config.open_segments_max, table_bytes_max=config.index_cache_bytes
        )
        self.spare = Spare(files, root / LOCK)
        self.reserve = Reserve(files, root / RESERVE)
        self.stage_log = StageLog(files, root, self.reserve)

    def topic_directory(self, topic: int) -> Path:
        """Tell where a topic's files are."""
        return self.root / "segments" / str(topic)

    def stage_directory(self, stage: int) -> Path:
        """Tell where a stage's files are."""
        return self.root / "stages" / str(stage)
