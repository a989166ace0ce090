"""What each writer committed last. A fold over the journal; no file is touched here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lance_spark.errors import StageError, StoreError
from lance_spark.store.journal import Entry


class Job(NamedTuple):
    """What is committed or aborted as one: a writer and its sequence number."""

    writer: str
    sequence: int


# A writer's name is kept for days: it has a limit.
WRITER_BYTES_MAX = 1024


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


def encode_done(commit: Commit) -> Entry:
    """Make the journal entry of a commit."""
    return {
        "kind": "done",
        "writer": commit.job.writer,
        "sequence": commit.job.sequence,
        "at_ns": commit.at_ns,
        "ranges": [[r.topic, r.name, r.start, r.end] for r in commit.ranges],
        "next_stage": commit.next_stage,
        "overwritten": sorted(commit.overwritten),
    }


def decode_done(entry: Entry) -> Commit:
    """Read the journal entry of a commit."""
    return Commit(
        Job(entry["writer"], entry["sequence"]),
        entry["at_ns"],
        tuple(CommittedRange(*r) for r in entry["ranges"]),
        entry["next_stage"],
        frozenset(entry["overwritten"]),
    )


@dataclass(frozen=True, slots=True)
class Expiry:
    """Stages that were dropped for want of activity."""

    job: Job
    at_ns: int
    stages: frozenset[int]


class Writers:
    """The last commit of each writer, and the jobs that expired."""

    def __init__(self) -> None:
        self._last: dict[str, Commit] = {}
        self._expired: dict[Job, Expiry] = {}
        # When the journal was lost, as long as that matters.
        self._lost_ns: list[int] = []
        # The commits that are begun and not ended. They write different topics.
        self.pending: dict[Job, Entry] = {}

    def replay(self, entries: Iterable[Entry]) -> None:
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

    def _replay(self, entry: Entry) -> None:
        kind = entry["kind"]
        if kind == "begin":
            self.pending[Job(entry["writer"], entry["sequence"])] = entry
        elif kind == "undone":
            if "writer" in entry:
                self.pending.pop(Job(entry["writer"], entry["sequence"]), None)
            else:
                # Of lance_spark 0.5, which had one at a time.
                self.pending.clear()
        elif kind == "done":
            commit = decode_done(entry)
            self.pending.pop(commit.job, None)
            self.committed(commit)
        elif kind == "expired":
            job = Job(entry["writer"], entry["sequence"])
            stages = frozenset(entry["stages"])
            self.expired(Expiry(job, entry["at_ns"], stages))
        elif kind == "lost":
            self._lost_ns.append(entry["at_ns"])

    def last(self, writer: str) -> Commit | None:
        """Give a writer's last commit."""
        return self._last.get(writer)

    def committed(self, commit: Commit) -> None:
        """Remember a commit."""
        self._last[commit.job.writer] = commit

    def expired(self, expiry: Expiry) -> None:
        """Remember that a job expired, perhaps not for the first time."""
        before = self._expired.get(expiry.job)
        if before is not None:
            expiry = replace(expiry, stages=expiry.stages | before.stages)
        # Replaced rather than changed: `is_expired` is asked by other threads.
        self._expired = {**self._expired, expiry.job: expiry}

    def is_expired(self, stage: int) -> bool:
        """Tell whether a stage was dropped for want of activity."""
        return any(stage in expiry.stages for expiry in self._expired.values())

    @property
    def lost_ns(self) -> list[int]:
        """When the journal was lost, if it was."""
        return self._lost_ns

    def forget_before(self, oldest_ns: int) -> None:
        """Forget what is older than a time."""
        self._last = {w: c for w, c in self._last.items() if c.at_ns >= oldest_ns}
        self._expired = {j: e for j, e in self._expired.items() if e.at_ns >= oldest_ns}
        self._lost_ns = [at for at in self._lost_ns if at >= oldest_ns]

    def entries(self) -> list[Entry]:
        """Make the shortest journal that says the same."""
        lost: list[Entry] = [{"kind": "lost", "at_ns": at} for at in self._lost_ns]
        done = [encode_done(commit) for commit in self._last.values()]
        expired = [encode_expired(e) for e in self._expired.values()]
        return lost + expired + done + list(self.pending.values())


def encode_undone(job: Job) -> Entry:
    """Make the journal entry of a commit that was begun and is taken back."""
    return {"kind": "undone", "writer": job.writer, "sequence": job.sequence}


def encode_expired(expiry: Expiry) -> Entry:
    """Make the journal entry of an expiry."""
    return {
        "kind": "expired",
        "writer": expiry.job.writer,
        "sequence": expiry.job.sequence,
        "at_ns": expiry.at_ns,
        "stages": sorted(expiry.stages),
    }
