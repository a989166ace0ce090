"""What the journal proves: commits, expiries, and topics that come or go together.

`History` is what the entries of a journal add up to; no file is touched for it.
`Decisions` has the journal open: it mends the file when the store is opened, writes
entries, and knows whether any more can be written. An entry is taken in right behind
its sync, so that a rewritten journal says what the old one did, neither less nor more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from lance_spark.errors import (
    CommitUnknown,
    DamagedFile,
    StageError,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
)
from lance_spark.store.context import Context
from lance_spark.store.entrylog import NO_MARK
from lance_spark.store.files import is_full, keep_copy, read_file
from lance_spark.store.journal import (
    Journal,
    JournalContent,
    JournalEntry,
    encode_entry,
    parse_journal,
)
from lance_spark.store.log import NotSynced, Point, Tail

JOURNAL = "journal.log"
# A writer's name is kept for days: it has a limit.
WRITER_BYTES_MAX = 1024


class Job(NamedTuple):
    """What is committed or aborted as one: a writer and its sequence number."""

    writer: str
    sequence: int

    def __str__(self) -> str:
        return f"commit {self.sequence} of {self.writer!r}"


def check_job(writer: str, sequence: int) -> None:
    """Refuse what can't be a job.

    Raises:
        StageError: with the reason.
    """
    try:
        length = len(writer.encode())
    except UnicodeEncodeError:
        raise StageError(f"writer id {writer!r} is not valid Unicode") from None
    if not 1 <= length <= WRITER_BYTES_MAX:
        raise StageError(f"a writer id has 1 to {WRITER_BYTES_MAX} bytes")
    if not 0 <= sequence < 2**64:
        raise StageError(f"sequence {sequence} is not a u64")


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """What a commit added to one topic."""

    topic: int
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that was carried out.

    Args:
        job: whose it was.
        at_ns: when.
        ranges: what it added, by topic.
        next_stage: the lowest stage id that was not given out then. Stages of the job
            with lower ids are over; with higher ones it has been staged once more.
        overwritten: names of the topics whose content it replaced.
    """

    job: Job
    at_ns: int
    ranges: tuple[CommittedRange, ...]
    next_stage: int
    overwritten: frozenset[str]

    @property
    def topics(self) -> frozenset[str]:
        """Names of the topics concerned."""
        return frozenset(r.name for r in self.ranges)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What a commit does to one topic.

    Args:
        id: the topic's id, already given out if the topic is new.
        name: its name.
        created: the commit creates it.
        overwrite: its old content goes.
        start: where its log started before.
        end: where it ended before.
        stages: the stages that are added, in order.
        bytes: how much they hold together.
    """

    id: int
    name: str
    created: bool
    overwrite: bool
    start: Point
    end: Tail
    stages: tuple[int, ...]
    bytes: int

    @property
    def range(self) -> CommittedRange:
        """What the topic gains."""
        start = self.end.offset
        return CommittedRange(self.id, self.name, start, start + self.bytes)

    @property
    def new_start(self) -> Point:
        """Where the log starts if the old content goes."""
        return Point(self.end.offset, self.end.record, self.end.next_segment)


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """All that has to be known to carry out a commit, again if need be."""

    job: Job
    at_ns: int
    next_stage: int
    topics: tuple[TopicPlan, ...]

    @property
    def stages(self) -> frozenset[int]:
        """All stages that are used."""
        return frozenset(stage for topic in self.topics for stage in topic.stages)

    @property
    def commit(self) -> Commit:
        """What is remembered of it."""
        overwritten = frozenset(t.name for t in self.topics if t.overwrite)
        ranges = tuple(topic.range for topic in self.topics)
        return Commit(self.job, self.at_ns, ranges, self.next_stage, overwritten)


def encode_done(commit: Commit) -> JournalEntry:
    """Make the entry of a commit that is carried out."""
    return {
        "kind": "done",
        **commit.job._asdict(),
        "at_ns": commit.at_ns,
        "ranges": [[r.topic, r.name, r.start, r.end] for r in commit.ranges],
        "next_stage": commit.next_stage,
        "overwritten": sorted(commit.overwritten),
    }


def decode_done(entry: JournalEntry) -> Commit:
    """Read the entry of a commit that is carried out."""
    return Commit(
        _job(entry),
        entry["at_ns"],
        tuple(CommittedRange(*r) for r in entry["ranges"]),
        entry["next_stage"],
        frozenset(entry["overwritten"]),
    )


def encode_undone(job: Job) -> JournalEntry:
    """Make the entry of a commit that was begun and is taken back."""
    return {"kind": "undone", **job._asdict()}


def encode_expired(job: Job, at_ns: int, stages: Iterable[int]) -> JournalEntry:
    """Make the entry of stages that were dropped for want of activity."""
    fields = {"at_ns": at_ns, "stages": sorted(stages)}
    return {"kind": "expired", **job._asdict(), **fields}


def encode_remove(topics: Iterable[int], *, making: bool = False) -> JournalEntry:
    """Make the entry that condemns topics: the next opening removes them.

    Topics that are made together stand in one until all of them are there, and topics
    that are deleted together until all of them are gone.
    """
    entry = {"kind": "remove", "topics": sorted(topics)}
    return {**entry, "making": True} if making else entry


def encode_settled(topics: Iterable[int]) -> JournalEntry:
    """Make the entry that takes an `encode_remove` back: there is nothing to remove."""
    return {"kind": "settled", "topics": sorted(topics)}


def _job(entry: JournalEntry) -> Job:
    return Job(entry["writer"], entry["sequence"])


def encode_begin(plan: CommitPlan) -> JournalEntry:
    """Make the journal entry of a plan."""
    return {
        "kind": "begin",
        **plan.job._asdict(),
        "at_ns": plan.at_ns,
        "next_stage": plan.next_stage,
        "topics": [asdict(topic) for topic in plan.topics],
    }


def decode_begin(entry: JournalEntry) -> CommitPlan:
    """Read the journal entry of a plan.

    Raises:
        StoreError: it is not one that this version writes.
    """
    try:
        topics = tuple(
            replace(
                TopicPlan(**topic),
                start=Point(*topic["start"]),
                end=Tail(**topic["end"]),
                stages=tuple(topic["stages"]),
            )
            for topic in entry["topics"]
        )
        return CommitPlan(_job(entry), entry["at_ns"], entry["next_stage"], topics)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"a commit of another version is begun: {error!r}") from error


def find_end(parsed: JournalContent) -> JournalEntry | None:
    """Make up for a damaged entry that ended something, where the mark tells of it."""
    if parsed.ended is None:
        return None
    begin = parsed.ended.begin
    if begin["kind"] == "remove":
        return encode_settled(begin["topics"])
    plan = decode_begin(begin)
    return encode_done(plan.commit) if parsed.ended.is_done else encode_undone(plan.job)


def complete(parsed: JournalContent) -> list[JournalEntry]:
    """Give the entries of a journal, with the one that its mark makes up for.

    It goes right behind what it ends: the writer may have committed since,
    and its last entry counts.
    """
    entries = list(parsed.entries)
    end = find_end(parsed)
    if end is not None:
        assert parsed.ended is not None
        # The same commit may have been begun before, with an entry that is equal.
        numbers = (n for n, e in enumerate(entries) if e is parsed.ended.begin)
        entries.insert(next(numbers) + 1, end)
    if parsed.is_begun_unread or parsed.mark == NO_MARK:
        # No mark proves that these are not settled. Topics that are half made do less
        # harm than the loss of topics that have been in use ever since.
        seen = History()
        seen.replay(entries)
        entries += map(encode_settled, sorted(seen.removals))
    return entries


class History:
    """What entries add up to: the last commit of each writer, and what is not ended."""

    def __init__(self) -> None:
        self._last: dict[str, Commit] = {}
        self._expired: dict[Job, JournalEntry] = {}
        # When the journal was lost, as long as that matters.
        self.lost_ns: list[int] = []
        # The commits that are begun and not ended. They write different topics.
        self.pending: dict[Job, JournalEntry] = {}
        # Topics that are half made or half deleted, and whether they are being made.
        self.removals: dict[tuple[int, ...], bool] = {}

    @classmethod
    def of(cls, parsed: JournalContent) -> History:
        """Add up the entries of a journal, with what its mark makes up for."""
        history = cls()
        history.replay(complete(parsed))
        return history

    def plans(self) -> list[CommitPlan]:
        """Read the plans of the commits that are not ended."""
        return [decode_begin(entry) for entry in self.pending.values()]

    @property
    def doomed(self) -> frozenset[int]:
        """All topics that the next opening removes."""
        return frozenset[int]().union(*self.removals)

    def replay(self, entries: Iterable[JournalEntry]) -> None:
        """Take in the entries of a journal, in order.

        Raises:
            StoreError: an entry is whole, but not one that this version writes.
        """
        for entry in entries:
            try:
                self._replay(entry)
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(
                    f"a journal entry of another version: {error!r} in "
                    f"{str(entry)[:200]}"
                ) from error

    def _replay(self, entry: JournalEntry) -> None:
        kind = entry["kind"]
        if kind == "begin":
            self.pending[_job(entry)] = entry
        elif kind == "undone" and "writer" not in entry:
            self.pending.clear()  # Of lance_spark 0.5, which had one at a time.
        elif kind == "undone":
            self.pending.pop(_job(entry), None)
        elif kind == "done":
            commit = decode_done(entry)
            self.pending.pop(commit.job, None)
            self._last[commit.job.writer] = commit
        elif kind == "expired":
            job = _job(entry)
            before = self._expired.get(job, {"stages": ()})
            stages = {*entry["stages"], *before["stages"]}
            expired = encode_expired(job, entry["at_ns"], stages)
            # Replaced rather than changed: `is_expired` is asked by other threads.
            self._expired = {**self._expired, job: expired}
        elif kind == "remove":
            self.removals[tuple(entry["topics"])] = bool(entry.get("making"))
        elif kind == "settled":
            self.removals.pop(tuple(entry["topics"]), None)
        elif kind == "lost":
            self.lost_ns.append(entry["at_ns"])

    def last(self, writer: str) -> Commit | None:
        """Give a writer's last commit."""
        return self._last.get(writer)

    def is_expired(self, stage: int) -> bool:
        """Tell whether a stage was dropped for want of activity."""
        return any(stage in entry["stages"] for entry in self._expired.values())

    def forget_before(self, oldest_ns: int) -> None:
        """Forget what is older than a time."""
        self._last = {w: c for w, c in self._last.items() if c.at_ns >= oldest_ns}
        expired = self._expired.items()
        self._expired = {j: e for j, e in expired if e["at_ns"] >= oldest_ns}
        self.lost_ns = [at for at in self.lost_ns if at >= oldest_ns]

    def entries(self) -> list[JournalEntry]:
        """Make the shortest journal that says the same."""
        return [
            *({"kind": "lost", "at_ns": at} for at in self.lost_ns),
            *self._expired.values(),
            *map(encode_done, self._last.values()),
            *self.pending.values(),
            *(encode_remove(t, making=m) for t, m in sorted(self.removals.items())),
        ]


class Decisions:
    """The journal of an open store."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.history = History()
        self.journal: Journal  # Made by `open`, before anything else.
        # Held while an entry is written and taken in.
        self._lock = threading.Lock()
        # Why nothing is decided any more until the next opening, which acts on what
        # the journal says, and the commits that it finishes or undoes.
        self.failure: str | None = None
        self._doubtful: set[Job] = set()
        # Told of the failure: nothing may be written to topics, nor any be deleted.
        self.on_failure: Callable[[str], None] = lambda reason: None
        # A journal that can't be made much shorter is not rewritten again and again.
        self._worth_bytes = 0

    # Opening.

    def open(self, *, is_new: bool, now_ns: int) -> None:
        """Read the journal, or make one."""
        files, path = self._context.files, self._context.root / JOURNAL
        findings = self._context.findings
        data = None if is_new else read_file(files, path)
        found = parse_journal(data or b"")
        if found.lost is not None:
            if data is not None:
                files.replace(path, path.with_name(path.name + ".damaged"))
            if not is_new:
                reason = "it is missing" if data is None else found.lost
                text = f"the journal is lost ({reason}): earlier commits are forgotten"
                findings.damage(JOURNAL, text)
                self.history.replay([{"kind": "lost", "at_ns": now_ns}])
            self.journal = Journal.create(files, path, self.history.entries())
            return
        size = len(data or b"")
        if found.torn:
            findings.note(JOURNAL, "a mark was not finished; set anew")
        if size > max(found.end, found.mark.end):
            text = "an entry was not finished; cut off"
            findings.note(JOURNAL, text, found.end, size)
        entries = found.entries if found.current else self._mend(found, now_ns)
        self.history.replay(entries)
        if found.current:
            self.journal = Journal.resume(files, path, found)
            return
        prepare = self._context.identity.prepare
        try:
            prepare()
            if found.damaged or found.faults:
                keep_copy(files, path)
            self.journal = Journal.create(files, path, entries)
        except OSError as error:
            if not is_full(error):
                raise
            self.journal = Journal.outdated(files, path, entries, prepare=prepare)

    def _mend(self, found: JournalContent, now_ns: int) -> list[JournalEntry]:
        """Report what is damaged; give the entries, with those that make up for it.

        Raises:
            DamagedFile: a commit is begun, and nothing says which one. Parts of it may
                be in its topics: they must not be shown.
        """
        findings = self._context.findings
        for fault in found.faults:
            findings.damage(JOURNAL, f"{fault}; it is written anew")
        if found.is_begun_unread:
            reason = "a commit is begun, and its entry can't be read"
            raise DamagedFile(self._context.root, JOURNAL, reason)
        entries, forgotten, known = complete(found), False, find_end(found)
        for start, end in found.damaged:
            # Other entries may be in the same range: only one of that size is known.
            if known is not None and end - start == len(encode_entry(known)):
                who = _job(known) if "writer" in known else f"{known['topics']}"
                text, known = f"an entry is damaged; {who} was ended, by the mark", None
            else:
                text = "an entry is damaged; the commit in it is forgotten"
                forgotten = True
            findings.damage(JOURNAL, text, start, end)
        return [*entries, {"kind": "lost", "at_ns": now_ns}] if forgotten else entries

    # Deciding.

    def note(self, entry: JournalEntry) -> None:
        """Write an entry to the journal, and take it in.

        Raises:
            OSError: it is not there; or, if the journal has failed, may be there.
        """
        with self._lock:
            self.journal.append(entry)
            self.history.replay([entry])

    def note_end(self, entry: JournalEntry) -> None:
        """Write that something is over, on a full disk too: all else depends on it."""
        self._context.reserve.spend(lambda: self.note(entry))

    def check_writable(self, job: Job | None = None) -> None:
        """Refuse to decide anything after a failure.

        Raises:
            CommitUnknown: the next opening decides about this job.
            StoreReadOnly: it does about others.
        """
        if self.failure is not None:
            if job in self._doubtful:
                raise CommitUnknown(*job, self.failure)
            raise StoreReadOnly(
                f"no commits since {self.failure}; mend the disk and reopen the store"
            )

    def fail(self, reason: str, job: Job | None = None) -> None:
        """Leave everything as it is for the next opening, which ends the job's commit.

        It does so by what it finds: nothing may be written to a topic, and none may be
        deleted or made under a name that the commit creates.
        """
        self.hold(reason, job)
        self.on_failure(reason)

    def hold(self, reason: str, job: Job | None = None) -> None:
        """Accept no commit until the next opening; topics are read and written."""
        if job is not None:
            self._doubtful.add(job)
        self.failure = self.failure or reason

    @contextmanager
    def writing(self, doing: str, job: Job | None = None) -> Iterator[None]:
        """Turn what the disk says into an error of the store.

        Raises:
            StoreWriteFailed: nothing was decided.
            CommitUnknown: whether a job's entry is there is for the next opening.
            StoreReadOnly: the same of another entry.
        """
        try:
            yield
        except NotSynced as error:
            raise StoreWriteFailed(f"could not {doing}: {error}") from error
        except OSError as error:
            if not self.journal.failed:
                raise StoreWriteFailed(f"could not {doing}: {error}") from error
            reason = f"the journal could not be written ({error})"
            self.fail(reason, job)
            if job is not None:
                raise CommitUnknown(*job, reason) from error
            raise StoreReadOnly(f"{reason}; reopen the store") from error

    @contextmanager
    def deciding(self, what: str, job: Job | None = None) -> Iterator[None]:
        """Leave to the next opening what is interrupted, by a signal.

        The interrupt may come right behind any entry: what is begun is never left
        alone, and what is done must not be undone.
        """
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.fail(f"{what} was interrupted", job)
            raise

    def compact(self, now_ns: int) -> None:
        """Forget old writers, and rewrite the journal when it has grown."""
        config = self._context.config
        with self._lock, self.writing("compact the journal"):
            self.check_writable()
            self.history.forget_before(now_ns - config.writer_ttl_s * 1_000_000_000)
            if self.journal.size > max(config.journal_bytes_max, self._worth_bytes):
                self.journal.rewrite(self.history.entries())
                self._worth_bytes = 2 * self.journal.size

    def close(self) -> None:
        """Close the file, once nothing is under way."""
        with self._lock:
            self.journal.close()
