"""The checker: reads a whole store and says what is wrong with it, changing nothing.

It shares the formats with the rest of `store` and nothing of its logic, so that a
mistake there is not repeated here. A store that was killed has loose ends that the next
opening ties up; those are notes. Everything else is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lance_spark.checksum import crc32c
from lance_spark.errors import DamagedFile, RecordError, StoreError
from lance_spark.model import Framing
from lance_spark.store.consumers import parse_consumers
from lance_spark.store.context import Finding, Severity
from lance_spark.store.decisions import JOURNAL, History
from lance_spark.store.document import IDENTITY, Identity
from lance_spark.store.files import LOCK, File, Files, OsFiles, list_ids, read_file
from lance_spark.store.format import (
    HEADER_BYTES,
    IndexHeader,
    IndexMark,
    Kind,
    Rows,
    decode_header,
    decode_mark,
    decode_rows,
    has_lost_mark,
    valid_rows,
)
from lance_spark.store.journal import parse_journal
from lance_spark.store.log import Point
from lance_spark.store.recovery import Found, find_promise, list_segments
from lance_spark.store.stage import STAGE_METADATA, decode_stage
from lance_spark.store.stagelog import STAGE_LOG, parse_stage_log
from lance_spark.store.store import CONSUMERS
from lance_spark.store.topic import (
    TOPIC_METADATA,
    TopicMetadata,
    decode_topic,
    name_partitions,
)

# A reader of long logs wants to know how far the checker is.
Progress = Callable[[int], None]


def check_store(
    path: Path | str,
    *,
    framing: Framing,
    files: Files | None = None,
    progress: Progress = lambda verified: None,
) -> list[Finding]:
    """Verify a store that no process has open.

    Args:
        path: the data directory.
        framing: finds where records start; may raise RecordError for bad records.
        files: file operations.
        progress: told the number of bytes each time some were verified.

    Raises:
        StoreLocked: a process has the store open.
        StoreError: there is no store, or it can't be read.
    """
    path = Path(path)
    files = files or OsFiles()
    try:
        if not (files.exists(path / IDENTITY) or files.exists(path / "segments")):
            raise StoreError(f"{path}: there is no store here")
        # A store that was never opened where it is now has no lock to take.
        locked = files.exists(path / LOCK)
        lock = files.lock(path / LOCK, write=False) if locked else None
        try:
            return list(_Checker(path, files, framing, progress).check())
        finally:
            if lock is not None:
                lock.close()
    except OSError as error:
        raise StoreError(f"{path}: could not check: {error}") from error


_REPAIR = "`lance-spark check --repair` says what to do"


def _note(where: str, text: str, *span: int) -> Finding:
    return Finding(Severity.NOTE, where, text, *span)


def _damage(where: str, text: str, *span: int) -> Finding:
    return Finding(Severity.DAMAGE, where, text, *span)


@dataclass(frozen=True, slots=True)
class _Checker:
    root: Path
    files: Files
    framing: Framing
    progress: Progress

    def check(self) -> Iterator[Finding]:
        identity = None
        try:
            identity = Identity.read(self.files, self.root / IDENTITY)
            if identity is None:
                yield _damage(IDENTITY, "missing")
        except DamagedFile as error:
            yield _damage(IDENTITY, f"{error.reason}; {_REPAIR}")
        except StoreError as error:
            yield _damage(IDENTITY, str(error))
        # Without the file nothing says that format 1 is over.
        identity = identity or Identity.derive(self.files, self.root, is_new=False)
        yield from self._whole(JOURNAL, self._journal)
        yield from self._whole(CONSUMERS, self._consumers)
        yield from self._whole(STAGE_LOG, self._stage_log)
        yield from self._topics(identity)
        for stage in list_ids(self.files, self.root / "stages"):
            yield from self._stage(f"stages/{stage}", stage, identity)

    @staticmethod
    def _whole(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
        try:
            yield from check()
        except StoreError as error:
            yield _damage(name, str(error))

    def _journal(self) -> Iterator[Finding]:
        data = read_file(self.files, self.root / JOURNAL)
        if data is None:
            yield _damage(JOURNAL, "missing: earlier commits are forgotten")
            return
        parsed = parse_journal(data)
        if parsed.lost is not None:
            yield _damage(JOURNAL, f"{parsed.lost}: earlier commits are forgotten")
            return
        for fault in parsed.faults:
            yield _damage(JOURNAL, f"{fault}; the next opening writes it anew")
        for start, end in parsed.damaged:
            yield _damage(JOURNAL, "not an entry", start, end)
        if parsed.torn:
            yield _note(JOURNAL, "a mark is not finished; the next opening sets it")
        if len(data) > max(parsed.end, parsed.mark.end):
            text = "an entry is not finished; the next opening cuts it off"
            yield _note(JOURNAL, text, parsed.end, len(data))
        history = History.of(parsed)
        for _ in history.pending:
            yield _note(JOURNAL, "a commit is begun; the next opening ends it")
        for topics in sorted(history.removals):
            text = "were being made or deleted; the next opening removes them"
            yield _note(JOURNAL, f"topics {list(topics)} {text}")
        if parsed.is_begun_unread:
            text = f"a commit is begun, and its entry can't be read; {_REPAIR}"
            yield _damage(JOURNAL, text)
        for at_ns in history.lost_ns:
            text = f"it was lost at {at_ns} ns; commits before that are forgotten"
            yield _damage(JOURNAL, text)

    def _consumers(self) -> Iterator[Finding]:
        data = read_file(self.files, self.root / CONSUMERS)
        if data is None:
            yield _note(CONSUMERS, "missing: no consumer has committed anything")
            return
        parsed = parse_consumers(data)
        if parsed.lost is not None:
            yield _damage(CONSUMERS, parsed.lost)
        for fault in parsed.faults:
            yield _damage(CONSUMERS, f"{fault}; the next opening writes it anew")
        for start, end in parsed.damaged:
            yield _damage(CONSUMERS, "an entry is damaged", start, end)
        if parsed.torn is not None:
            text = "an entry is not finished; the next opening leaves it out"
            yield _note(CONSUMERS, text, parsed.torn, len(data))

    def _stage_log(self) -> Iterator[Finding]:
        data = read_file(self.files, self.root / STAGE_LOG)
        if data is None:
            return  # No stage was small so far.
        parsed = parse_stage_log(data)
        if parsed.lost is not None:
            yield _damage(STAGE_LOG, f"{parsed.lost}: the stages in it are gone")
            return
        for fault in parsed.faults:
            yield _damage(STAGE_LOG, f"{fault}; the next opening writes it anew")
        for start, end, fault in parsed.damaged:
            yield _damage(STAGE_LOG, fault, start, end)
        if parsed.torn:
            yield _note(STAGE_LOG, "a mark is not finished; the next opening sets it")
        if len(data) > max(parsed.end, parsed.mark.end):
            text = "an entry is not finished; the next opening cuts it off"
            yield _note(STAGE_LOG, text, parsed.end, len(data))
        for stage in parsed.stages.values():
            self.progress(stage.size)

    def _pending(self) -> tuple[dict[int, int], frozenset[int]]:
        """Find what the next opening changes.

        Returns:
            The topics that commits are at work on, with their last segments: what is
            behind those is set back. And the topics that are removed.
        """
        data = read_file(self.files, self.root / JOURNAL)
        try:
            history = History.of(parse_journal(data or b""))
            topics = [topic for plan in history.plans() for topic in plan.topics]
        except StoreError:
            return {}, frozenset()  # Reported with the journal.
        return {topic.id: topic.end.segment for topic in topics}, history.doomed

    def _topics(self, identity: Identity) -> Iterator[Finding]:
        pending, doomed = self._pending()
        found: list[TopicMetadata] = []
        closed = False
        for topic in list_ids(self.files, self.root / "segments"):
            if topic in doomed:
                continue
            where = f"segments/{topic}"
            name, start = f"{where}/{TOPIC_METADATA}", None
            try:
                path = self.root / name
                metadata = identity.read_metadata(path, "topic", decode_topic)
                if metadata is not None:
                    start = metadata.start
                    found.append(metadata)
                elif list_segments(self.files, path.parent):
                    closed = True
                    yield _damage(name, f"missing; {_REPAIR}")
                else:
                    yield _note(where, "half-made topic; the next opening removes it")
                    continue
            except StoreError as error:
                closed = True
                yield _damage(name, f"{error}; the topic is closed: {_REPAIR}")
            yield from self._log(where, topic, start, pending.get(topic))
        if not closed:  # Else it may be the one that is missing.
            yield from self._partitions({metadata.name: metadata for metadata in found})

    @staticmethod
    def _partitions(topics: Mapping[str, TopicMetadata]) -> Iterator[Finding]:
        counts = {(m.partition.topic, m.partitions) for m in topics.values()}
        for topic, count in sorted((t, n) for t, n in counts if n is not None):
            for name in name_partitions(topic, count):
                if name not in topics:
                    yield _damage("segments", f"partition {name!r} is missing")
            if topic in topics:
                text = f"topic {topic!r} has partitions, and a log of its own name"
                yield _damage("segments", text)

    def _stage(self, where: str, stage: int, identity: Identity) -> Iterator[Finding]:
        name = f"{where}/{STAGE_METADATA}"
        try:
            path = self.root / name
            if identity.read_metadata(path, "stage", decode_stage) is None:
                yield _note(where, "half-made or dropped; the next opening removes it")
                return
        except StoreError as error:
            yield _damage(name, f"{error}; the stage can't be used: {_REPAIR}")
        yield from self._log(where, stage, Point())

    def _log(
        self,
        where: str,
        topic: int,
        start: Point | None,
        last_segment: int | None = None,
    ) -> Iterator[Finding]:
        found = list_segments(self.files, self.root / where)
        if last_segment is not None:
            found = [s for s in found if s.name.number <= last_segment]
        if start is not None:
            old = [s for s in found if s.name.number < start.segment]
            if old:
                yield _note(where, "segments before the start; the next opening drops")
            found = found[len(old) :]
        end = (start.offset, start.record) if start else None
        for number, segment in enumerate(found):
            check = _SegmentChecker(self, where, topic, segment)
            yield from check.check(end, last=number == len(found) - 1)
            end = check.end


@dataclass(slots=True)
class _SegmentChecker:
    """Checks one segment; `end` says afterwards where it ends."""

    _store: _Checker
    _where: str
    _topic: int
    _found: Found
    _base: int = 0
    _is_uncounted: bool = False
    end: tuple[int, int] | None = None

    def _open(self, name: str) -> File:
        return self._store.files.open(
            self._store.root / self._where / name, write=False
        )

    def check(
        self, expected: tuple[int, int] | None, *, last: bool
    ) -> Iterator[Finding]:
        found, name = self._found, f"{self._where}/{self._found.name.index_file}"
        if found.index_bytes is None:
            if found.data_bytes == 0 and last:
                yield _note(name, "half-made segment; the next opening mends it")
            else:
                yield _damage(name, "missing; the next opening rebuilds it")
            return
        index = self._open(found.name.index_file)
        head = index.pread(HEADER_BYTES, 0)
        header = decode_header(head, of=(self._topic, found.name))
        if isinstance(header, str):
            if last and not found.data_bytes and found.index_bytes < HEADER_BYTES:
                yield _note(name, "half-made segment; the next opening mends it")
            else:
                yield _damage(name, header)
            return
        self._base = header.base_offset
        base = (header.base_offset, header.base_record)
        if expected is not None and base != expected:
            text = f"starts at {base}, the log before it ends at {expected}"
            yield _damage(name, text, *sorted((base[0], expected[0])))
        rows = decode_rows(index.pread(index.size() - HEADER_BYTES, HEADER_BYTES))
        mark = decode_mark(head)
        if found.data_bytes is None:
            if mark.rows or len(rows):
                text = f"the data file {found.name.data_file} is missing"
                yield _damage(self._where, text, self._base, self._base + mark.position)
            else:
                yield _note(name, "half-made segment; the next opening removes it")
            return
        damaged = 0
        if last and (header.lazy or has_lost_mark(head)):
            mark, damaged = find_promise(mark, rows)
        yield from self._check_rows(header, mark, rows, damaged, last=last)

    def _check_rows(
        self,
        header: IndexHeader,
        mark: IndexMark,
        rows: Rows,
        damaged: int,
        *,
        last: bool,
    ) -> Iterator[Finding]:
        name = f"{self._where}/{self._found.name.index_file}"
        data_bytes = self._found.data_bytes or 0
        durable = mark.position if last else max(mark.position, data_bytes)
        promised = mark.rows + damaged if last else len(rows)
        if len(rows) < mark.rows:
            text = f"{mark.rows - len(rows)} rows are missing"
            yield _damage(name, text, self._base, self._base + mark.position)
        sound = valid_rows(rows)
        for number in np.flatnonzero(~sound[:promised]):
            yield _damage(name, f"row {number} is damaged")
        if not sound[:promised].all():
            return
        if not sound.all():
            rows = rows[: int(np.argmin(sound))]
        position, record, last_ns = 0, 0, 0
        data = self._open(self._found.name.data_file)
        heads = np.flatnonzero(rows["kind"] != Kind.INNER)
        for number in heads:
            group = rows[number : number + 1 + int(rows[number]["inner"])]
            if self._is_uncounted:
                # How many records were lost is known by the row behind them.
                record = max(record, int(group[0]["record"]))
            fault = self._check_batch(data, group, position, record, last_ns)
            length, records = int(group[0]["length"]), int(group[0]["records"])
            start = self._base + position
            if fault and last and position >= durable:
                known = "" if header.lazy else "not acknowledged, "
                text = f"{fault}; {known}the next opening cuts it off"
                yield _note(self._where, text, start, start + length)
                return
            if fault:
                yield _damage(self._where, fault, start, start + length)
            elif records == 1 and not self._is_framed(data, position, length):
                text = "a batch of one record that does not follow the framing"
                yield _note(self._where, text, start, start + length)
            position, record = position + length, record + records
            self._is_uncounted = bool(group[0]["kind"] == Kind.LOST and not records)
            last_ns = max(last_ns, int(group[0]["append_ns"]))
            self._store.progress(length)
        if not self._is_uncounted:
            self.end = (self._base + position, header.base_record + record)
        if data_bytes > position:
            text = "bytes without index rows"
            span = (self._base + position, self._base + data_bytes)
            if last and durable <= position:
                yield _note(self._where, f"{text}; the next opening cuts them", *span)
            else:
                yield _damage(self._where, text, *span)

    def _check_batch(
        self, data: File, group: Rows, position: int, record: int, last_ns: int
    ) -> str | None:
        head = group[0]
        if head["kind"] == Kind.LOST:
            return "missing, or could not be framed, when the index was rebuilt"
        if head["position"] != position or head["record"] != record:
            return f"the row is for position {head['position']}, not {position}"
        if head["append_ns"] < last_ns:
            return "the append time goes back"
        length = int(head["length"])
        payload = data.pread(length, position)
        if len(payload) < length:
            return f"{length - len(payload)} bytes are missing from the file"
        if crc32c(payload) != head["data_crc"]:
            return "the checksum differs"
        if head["records"] == 1:
            return None  # It may hold anything; see `_is_framed`.
        return self._check_framing(payload, group, position, record)

    def _is_framed(self, data: File, position: int, length: int) -> bool:
        try:
            return self._store.framing(data.pread(length, position)).fault is None
        except RecordError:
            return False

    def _check_framing(
        self, payload: bytes, group: Rows, position: int, record: int
    ) -> str | None:
        try:
            scan = self._store.framing(payload)
        except RecordError as error:
            return str(error)
        if scan.fault is not None:
            return str(scan.fault)
        if len(scan.starts) != group[0]["records"]:
            return f"{len(scan.starts)} records, not {group[0]['records']}"
        inner = group[1:]
        if not (inner["kind"] == Kind.INNER).all() or len(inner) != group[0]["inner"]:
            return "inner rows are missing"
        numbers = (inner["record"] - record).astype(np.int64)
        starts = (inner["position"] - position).astype(np.int64)
        outside = (numbers < 0) | (numbers >= len(scan.starts))
        if outside.any() or (scan.starts[numbers] != starts).any():
            return "an inner row is not at a record's start"
        return None
