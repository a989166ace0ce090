"""What the store's tests share: records, stores, and what can be seen of a store."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from lance_spark.errors import Corrupt
from lance_spark.store import Finding, Severity, Store, StoreConfig, View, check_store
from lance_spark.store.files import Files
from lance_spark.store.log import Log
from lance_spark.store.stage import Stage
from lance_spark.wire.lwp import scan

ROOT = Path("/data")
# Small enough that a few batches roll segments, need inner rows and adopt stages.
SMALL = {
    "segment_bytes": 1500,
    "index_stride_bytes": 64,
    "stage_adopt_bytes": 500,
    "open_segments_max": 8,
}
# Gives also small stages files.
IN_FILES = StoreConfig(**SMALL, stage_inline_bytes=0)  # type: ignore[arg-type]


def record(value: bytes, kind: int = 1) -> bytes:
    """Make one TLV record."""
    return bytes((kind,)) + len(value).to_bytes(4, "little") + value


def batch(tag: str, records: int = 3, size: int = 40) -> bytes:
    """Make a batch whose every record says which one it is."""
    values = (f"{tag}/{n}".encode().ljust(size, b".") for n in range(records))
    return b"".join(map(record, values))


def ticking(start_ns: int = 1_700_000_000_000_000_000, step_ns: int = 1_000_000):
    """Make a clock that goes on by a step each time it is read."""
    ticks = itertools.count(start_ns, step_ns)
    return lambda: next(ticks)


def open_store(
    path: Path | str = ROOT,
    files: Files | None = None,
    config: StoreConfig | None = None,
    **options: object,
) -> Store:
    """Open a store with the TLV framing, without threads."""
    config = config or StoreConfig(**SMALL)  # type: ignore[arg-type]
    options = {"background": False, "clock_ns": ticking(), **options}
    return Store(path, framing=scan, config=config, files=files, **options)  # type: ignore[arg-type]


def read_all(log: Log, max_bytes: int = 1 << 20) -> bytes:
    """Read everything that is visible of a log."""
    view = View.of(log)
    parts, offset = [], view.start.offset
    while offset < view.end.offset:
        piece = view.read(offset, max_bytes)
        assert piece.start == offset < piece.end
        parts.append(piece.read())
        offset = piece.end
    return b"".join(parts)


def read_stage(stage: Stage) -> bytes:
    """Read all that a stage holds, wherever it is."""
    if stage.log is not None:
        return read_all(stage.log)
    assert stage._inline is not None
    return b"".join(b.data for b in stage.home.batches(stage._inline))  # type: ignore[union-attr]


@dataclass(frozen=True)
class Seen:
    """All that a user can see of a store."""

    topics: tuple[tuple[int, str, int, int, int, int, bytes], ...]
    offsets: tuple[tuple[int, int, int], ...]
    writers: tuple[tuple[str, int], ...]


def look(store: Store) -> Seen:
    """Look at everything a user can see."""
    topics = []
    for topic in store.topics(default=True):
        log, meta = topic.log, topic.metadata
        view = View.of(log)
        topics.append(
            (
                meta.id,
                meta.name,
                view.start.offset,
                view.start.record,
                view.end.offset,
                view.end.record,
                read_all(log),
            )
        )
    offsets = [(*key, offset) for key, offset in store._consumers.all().items()]
    writers = [
        (writer, commit.job.sequence)
        for writer, commit in store._decisions.history._last.items()
    ]
    return Seen(tuple(topics), tuple(sorted(offsets)), tuple(sorted(writers)))


def newer(document: bytes) -> bytes:
    """Make a small file what a later release might write: format 99, well sealed."""
    body = document[: document.rindex(b",\n")]
    body = body.replace(b'"format": 2', b'"format": 99', 1)
    return body + f',\n  "crc32c": "{crc32c(body):08x}"\n}}\n'.encode()


def damage(findings: list[Finding]) -> list[Finding]:
    """Take the findings that are losses."""
    return [finding for finding in findings if finding.severity is Severity.DAMAGE]


def check_clean(path: Path | str = ROOT, files: Files | None = None) -> None:
    """Fail unless the checker finds nothing at all."""
    findings = check_store(path, framing=scan, files=files)
    assert findings == [], [str(finding) for finding in findings]


def corrupt_ranges(log: Log) -> list[tuple[int, int]]:
    """List the ranges of a log that answer with an error."""
    view = View.of(log)
    ranges, offset = [], view.start.offset
    while offset < view.end.offset:
        try:
            offset = view.read(offset, 1 << 20).end
        except Corrupt as error:
            ranges.append((error.start, error.end))
            offset = error.end
    return ranges
