"""Stages and their commits: exactly-once for writers that may fail and retry.

What waits for what, in the order in which these are taken:

- A writer ends one job at a time (`_turn`), whether by commit, abort or expiry.
- A commit freezes its stages, then claims the names of its topics, all at once
  (`Catalog.claimed`), then takes their logs. Commits to different topics run side by
  side, and other topics are made, deleted, read and written meanwhile.
- `Decisions` lets one entry of the journal be written at a time.

What a commit does to files is in `commit`, what the journal proves in `decisions`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy

from lance_spark.errors import (
    CommitConflict,
    CommitUnknown,
    Corrupt,
    DamagedFile,
    LanceError,
    LimitReached,
    StageError,
    StageExpired,
    StageMismatch,
    StageUnknown,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    Timeout,
)
from lance_spark.model import CommitStatus
from lance_spark.store.catalog import Catalog
from lance_spark.store.commit import (
    CommitResult,
    NamedStage,
    Outcome,
    carry_out,
    is_same_commit,
    settle,
    show,
)
from lance_spark.store.context import Context
from lance_spark.store.decisions import (
    JOURNAL,
    CommitPlan,
    Decisions,
    Job,
    TopicPlan,
    check_job,
    encode_begin,
    encode_done,
    encode_expired,
    encode_undone,
)
from lance_spark.store.files import is_full, list_ids, make_directories
from lance_spark.store.log import Point, Tail
from lance_spark.store.recovery import reset_files
from lance_spark.store.segment import DamagedIndex
from lance_spark.store.stage import (
    STAGE_METADATA,
    Stage,
    StageMetadata,
    decode_stage,
    read_stage,
    remove_stage,
)
from lance_spark.store.stagelog import STAGE_LOG
from lance_spark.store.topic import Topic, TopicMetadata, check_log_name

logger = logging.getLogger(__name__)


class Staging:
    """The stages of a store, and how they are committed, aborted and expired."""

    def __init__(
        self, context: Context, catalog: Catalog, decisions: Decisions
    ) -> None:
        self._context = context
        self._directory = context.root / "stages"
        self._catalog = catalog
        self._decisions = decisions
        self._history = decisions.history
        # The writers whose jobs are being ended, and threads that wait for them.
        self._turns = threading.Condition()
        self._busy: set[str] = set()
        self._stages_lock = threading.Lock()
        self._stages: dict[int, Stage] = {}
        self._damaged: dict[int, StoreError] = {}
        # Commits that the last process did not end, and what to do about them.
        self._unsettled: list[tuple[CommitPlan, Outcome]] = []

    # Opening.

    def settle(self) -> None:
        """Decide about commits that a crash has interrupted, before topics open."""
        self._open_stage_log()
        for plan in self._history.plans():
            if not self._hold(plan):
                outcome = settle(self._context, plan)
                self._unsettled.append((plan, outcome))

    def _open_stage_log(self) -> None:
        context = self._context
        found = context.stage_log.read()
        if found.lost is not None:
            text = f"{found.lost}: the small stages are gone; kept as .damaged"
            context.findings.damage(STAGE_LOG, text)
        for fault in found.faults:
            context.findings.damage(STAGE_LOG, f"{fault}; it is written anew")
        for start, end, fault in found.damaged:
            text = f"{fault}: a stage that needs it can't be committed"
            context.findings.damage(STAGE_LOG, text, start, end)
        context.reserve.spend(lambda: context.stage_log.resume(found))

    def _hold(self, plan: CommitPlan) -> bool:
        """Let a commit wait, if one of its topics can't be opened.

        It stays in the journal as it is, and all its topics stay closed: some may have
        a part of it that must not be seen, and is set back once all can be opened.
        """
        for there in (planned.id for planned in plan.topics if not planned.created):
            error = self._catalog.read_metadata(there)
            if isinstance(error, DamagedFile):
                effect = f"{plan.job} waits, and its topics are closed"
                waiting = DamagedFile(error.root, error.file, error.reason, effect)
                for planned in plan.topics:
                    self._catalog.hold(planned.id, waiting, planned.name)
                self._decisions.hold(str(waiting), plan.job)
                return True
        return False

    def load(self) -> None:
        """Open all stages, and end the commits that were begun."""
        files = self._context.files
        make_directories(files, self._directory)
        files.sync_dir(self._directory)  # As for topics: see `Catalog.load`.
        for stage_id in list_ids(files, self._directory):
            self._load_stage(stage_id)
        self._load_inline()
        for plan, outcome in self._unsettled:
            self._end_unsettled(plan, outcome)
        self._unsettled = []

    def _load_stage(self, stage_id: int) -> None:
        try:
            metadata = self._read_stage(stage_id)
            # A stage that a crash left over behind its commit is not even opened: its
            # files may be a topic's by now, and are not to be mended as a stage's.
            if metadata is None or self._is_over(metadata):
                remove_stage(self._context, stage_id)
                return
            stage = Stage.open(self._context, metadata)
        except StoreError as error:
            # Kept until a person drops it: a commit that names it is refused.
            self._damaged[stage_id] = error
            self._context.findings.damage(f"stages/{stage_id}", str(error))
            return
        self._stages[stage_id] = stage

    def _load_inline(self) -> None:
        stage_log, over = self._context.stage_log, []
        for stage_id, inline in stage_log.stages.items():
            metadata = decode_stage(stage_log.metadata(inline))
            has_files = stage_id in self._stages or stage_id in self._damaged
            if has_files or self._is_over(metadata):
                over.append(stage_id)
            else:
                stage = Stage(self._context, metadata, inline=inline)
                self._stages[stage_id] = stage
        try:
            stage_log.drop(over)
        except (OSError, StoreError) as error:
            logger.warning("stages that are over are still there: %s", error)

    def _read_stage(self, stage_id: int) -> StageMetadata | None:
        try:
            return read_stage(self._context, stage_id)
        except StoreError as error:
            for plan, _ in self._unsettled:
                for planned in plan.topics:
                    if stage_id in planned.stages:
                        # The journal knows what the stage is for.
                        return StageMetadata(
                            stage_id, planned.name, plan.job, plan.at_ns
                        )
            file = f"stages/{stage_id}/{STAGE_METADATA}"
            effect = f"stage {stage_id} can't be used"
            raise DamagedFile(self._context.root, file, str(error), effect) from error

    def _is_over(self, stage: StageMetadata) -> bool:
        last = self._history.last(stage.job.writer)
        if last is None or stage.job.sequence > last.job.sequence:
            return False
        return stage.job.sequence < last.job.sequence or stage.id < last.next_stage

    def _end_unsettled(self, plan: CommitPlan, outcome: Outcome) -> None:
        findings = self._context.findings
        if outcome is Outcome.UNDONE:
            self._decisions.note_end(encode_undone(plan.job))
            findings.damage(JOURNAL, f"{plan.job} {outcome.value}")
            return
        if outcome is Outcome.AGAIN:
            try:
                created = self._carry_out(plan)
            except (Corrupt, DamagedIndex, StageError) as error:
                # Its stages are kept, for a person to look at. If it is only that the
                # disk refuses, the store does not open and nothing is given up.
                self._undo(plan, error)
                findings.damage(JOURNAL, f"{plan.job} is undone: {error}")
                return
            except (StoreWriteFailed, OSError) as error:
                cause = error if isinstance(error, OSError) else error.__cause__
                if not (isinstance(cause, OSError) and is_full(cause)):
                    raise
                # A full disk must not keep the store from opening. The stages stay, so
                # that the writer can commit again once there is room.
                self._undo(plan, error)
                findings.note(JOURNAL, f"{plan.job} is undone: {error}")
                return
            self._show(plan, created)
        else:
            self._decisions.note_end(encode_done(plan.commit))
        self._drop(self._job(plan.job))
        findings.note(JOURNAL, f"{plan.job} {outcome.value}")

    # Stages.

    def open(self, topic: str, writer: str, sequence: int, *, now_ns: int) -> Stage:
        """Open a stage for a topic, which need not exist yet."""
        check_job(writer, sequence)
        self._catalog.check_target(topic)
        with self._stages_lock:
            if len(self._stages) >= self._context.config.stages_max:
                raise StageError(
                    f"{len(self._stages)} stages are open, no more are allowed "
                    "(stages_max); commit or abort some, or wait until they expire"
                )
        with self._decisions.writing("open a stage"):
            stage_id = self._context.identity.new_stage()
            metadata = StageMetadata(stage_id, topic, Job(writer, sequence), now_ns)
            try:
                stage = Stage.create(self._context, metadata)
            except OSError:
                remove_stage(self._context, stage_id)
                raise
        with self._stages_lock:
            self._stages[stage_id] = stage
        return stage

    def get(self, stage_id: int) -> Stage:
        """Find a stage.

        Raises:
            StageExpired, StageUnknown: it is not there.
            DamagedFile: nothing says what it is for.
        """
        with self._stages_lock:
            stage = self._stages.get(stage_id)
        if stage is None:
            if stage_id in self._damaged:
                raise copy(self._damaged[stage_id])
            if self._history.is_expired(stage_id):
                raise StageExpired(
                    f"stage {stage_id} expired: nothing was written to its job for "
                    f"{self._context.config.stage_ttl_s} s; write it again"
                )
            raise StageUnknown(f"stage {stage_id} is not open")
        return stage

    def all(self) -> list[Stage]:
        """List the open stages."""
        with self._stages_lock:
            return list(self._stages.values())

    def writer_topics(self, writer: str) -> frozenset[str] | None:
        """Tell which topics a writer's last commit wrote; None if it is unknown."""
        last = self._history.last(writer)
        return None if last is None else last.topics

    def abort(self, writer: str, sequence: int) -> int:
        """Drop all stages of a job; tell how many there were."""
        with self._turn(writer, self._context.config.wait_timeout_s):
            self._decisions.check_writable()
            return self._forget(self._job(Job(writer, sequence)))

    def expire(self, now_ns: int) -> None:
        """Drop the stages of jobs that were not active for too long."""
        oldest_ns = now_ns - self._context.config.stage_ttl_s * 1_000_000_000
        self._decisions.check_writable()
        for job in dict.fromkeys(stage.metadata.job for stage in self.all()):
            try:
                with self._turn(job.writer, 0):
                    self._expire_job(job, oldest_ns, now_ns)
            except Timeout:
                continue  # Its writer is ending a job right now.

    def _expire_job(self, job: Job, oldest_ns: int, now_ns: int) -> None:
        self._decisions.check_writable()
        stages = self._job(job)
        if max((stage.active_ns for stage in stages), default=now_ns) >= oldest_ns:
            return
        ids = [stage.metadata.id for stage in stages]
        with self._decisions.writing("note an expiry"):
            self._decisions.note(encode_expired(job, now_ns, ids))
        logger.info("%d stages of %s expired", self._forget(stages), job)

    def _job(self, job: Job) -> list[Stage]:
        return [stage for stage in self.all() if stage.metadata.job == job]

    def _drop(self, stages: list[Stage]) -> None:
        for stage in stages:
            with self._stages_lock:
                self._stages.pop(stage.metadata.id, None)
            try:
                stage.drop()
            except (OSError, StoreReadOnly) as error:
                # It is removed when the store is next opened, or expires.
                logger.warning(
                    "stage %d: could not remove: %s", stage.metadata.id, error
                )

    def _forget(self, stages: list[Stage]) -> int:
        """Drop stages whose end no entry tells: they must not come back."""
        self._drop(stages)
        with self._decisions.writing("forget stages for good"):
            self._context.files.sync_dir(self._directory)
            self._context.stage_log.sync()
        return len(stages)

    # Committing.

    @contextmanager
    def _turn(self, writer: str, timeout_s: float) -> Iterator[None]:
        """Let one thread at a time end a writer's jobs.

        Raises:
            Timeout: another one is at it for too long.
        """
        with self._turns:
            if not self._turns.wait_for(lambda: writer not in self._busy, timeout_s):
                raise Timeout(
                    f"a commit or abort of writer {writer!r} is still under way after "
                    f"{timeout_s} s; ask again"
                )
            self._busy.add(writer)
        try:
            yield
        finally:
            with self._turns:
                self._busy.discard(writer)
                self._turns.notify_all()

    def commit(
        self,
        writer: str,
        sequence: int,
        named: Sequence[NamedStage],
        overwrite: Sequence[str],
        *,
        topics_max: int | None,
        now_ns: int,
    ) -> CommitResult:
        """Commit stages, all or nothing; see `Store.commit_stages`."""
        config = self._context.config
        check_job(writer, sequence)
        if len(overwrite) > config.overwrite_max:
            raise LimitReached(
                f"the commit replaces {len(overwrite)} topics; {config.overwrite_max} "
                "are the most (overwrite_max): replace them in several commits"
            )
        for name in overwrite:
            check_log_name(name)
        job, replaced = Job(writer, sequence), frozenset(overwrite)
        with self._turn(writer, config.wait_timeout_s):
            last = self._history.last(writer)
            if last is not None and sequence <= last.job.sequence:
                # Also when nothing can be committed any more: it is known to be done.
                return self._repeat(job, named, replaced)
            self._decisions.check_writable(job)
            stages = [self._find_named(job, stage) for stage in named]
            with ExitStack() as locks:
                for stage in sorted(set(stages), key=lambda s: s.metadata.id):
                    # From here on a stage holds what is compared with its name.
                    locks.enter_context(stage.frozen())
                for stage, said in zip(stages, named, strict=True):
                    _check_content(stage, said)
                if len(set(stages)) < len(stages):
                    raise StageMismatch("the commit names a stage twice")
                names = [stage.metadata.topic for stage in stages]
                names = list(dict.fromkeys([*names, *overwrite]))
                with self._catalog.claimed(names, topics_max) as targets:
                    topics = [topic for topic in targets.values() if topic is not None]
                    with self._ready(stages, topics):
                        plan = self._plan(job, stages, targets, replaced, now_ns)
                        with self._decisions.deciding("a commit", job):
                            self._decide(plan)
                for stage in stages:
                    stage.retire()
            self._drop(self._job(job))
            return CommitResult(CommitStatus.COMMITTED, plan.commit.ranges)

    def _repeat(
        self, job: Job, named: Sequence[NamedStage], overwrite: frozenset[str]
    ) -> CommitResult:
        last = self._history.last(job.writer)
        assert last is not None
        result = CommitResult(CommitStatus.STALE)
        if job.sequence == last.job.sequence:
            with self._stages_lock:
                there = [self._stages[s.id] for s in named if s.id in self._stages]
            topics = frozenset(stage.metadata.topic for stage in there)
            whole = 0 < len(there) == len(named)
            if not is_same_commit(last, topics, overwrite, whole=whole):
                raise CommitConflict(
                    f"writer {job.writer!r} has committed sequence {job.sequence} "
                    f"with topics {sorted(last.topics)}; it can't be committed again "
                    f"with {sorted(topics | overwrite)}"
                )
            result = CommitResult(CommitStatus.REPEATED, last.ranges)
        if self._decisions.failure is None:
            # Else the files may be another process's by now.
            self._forget(self._job(job))
        return result

    def _find_named(self, job: Job, named: NamedStage) -> Stage:
        stage = self.get(named.id)
        if stage.metadata.job != job:
            # To which one stays out of the text: another client may have opened it.
            raise StageMismatch(f"stage {named.id} belongs to another job")
        return stage

    @contextmanager
    def _ready(self, stages: list[Stage], topics: list[Topic]) -> Iterator[None]:
        """Keep other writers from topics that are durable, as the stages are."""
        with ExitStack() as locks:
            with self._decisions.writing("make ready for a commit"):
                for topic in sorted(topics, key=lambda t: t.metadata.id):
                    locks.enter_context(topic.log.exclusive())
                    topic.log.sync()
                for stage in stages:
                    stage.sync()
                # What is begun can be undone also when others take all descriptors.
                self._context.spare.keep()
            yield

    def _decide(self, plan: CommitPlan) -> None:
        """Begin a commit, and carry it out or undo it."""
        with self._decisions.writing("begin a commit", plan.job):
            self._decisions.note(encode_begin(plan))
        try:
            created = self._carry_out(plan)
        except Exception as error:
            # Whatever it is, even a bug: the topics are not left half written.
            self._undo(plan, error)
            if isinstance(error, (LanceError, OSError)):
                raise StoreWriteFailed(
                    f"the commit could not be carried out and was undone: {error}"
                ) from error
            raise
        self._show(plan, created)

    def _plan(
        self,
        job: Job,
        stages: list[Stage],
        targets: dict[str, Topic | None],
        overwrite: frozenset[str],
        now_ns: int,
    ) -> CommitPlan:
        planned = []
        by_topic: dict[str, list[Stage]] = {}
        for stage in stages:
            by_topic.setdefault(stage.metadata.topic, []).append(stage)
        with self._decisions.writing("reserve ids of topics"):
            new = sum(topic is None for topic in targets.values())
            new_ids = iter(self._context.identity.new_topics(new))
        for name, topic in targets.items():
            own = by_topic.get(name, [])
            if topic is None:
                topic_id = next(new_ids)
                start, end = Point(), Tail(0, 0, -1, 0, 0, 0)
            else:
                topic_id = topic.metadata.id
                start, end = topic.metadata.start, topic.log.end()
            planned.append(
                TopicPlan(
                    topic_id,
                    name,
                    created=topic is None,
                    overwrite=name in overwrite,
                    start=start,
                    end=end,
                    stages=tuple(stage.metadata.id for stage in own),
                    bytes=sum(stage.size for stage in own),
                )
            )
        next_stage = self._context.identity.next_stage
        return CommitPlan(job, now_ns, next_stage, tuple(planned))

    def _carry_out(self, plan: CommitPlan) -> list[Topic]:
        """Carry out a plan that is in the journal; give the topics that are new."""
        created_at = plan.at_ns // 1_000_000_000
        created = self._catalog.prepare(
            [
                TopicMetadata(planned.id, planned.name, created_at)
                for planned in plan.topics
                if planned.created and not self._catalog.has(planned.id)
            ]
        )
        new = {topic.metadata.id: topic for topic in created}
        carry_out(plan, {**self._catalog.topics, **new}, self._stages)
        self._decisions.note(encode_done(plan.commit))
        return created

    def _show(self, plan: CommitPlan, created: list[Topic]) -> None:
        """Show a commit that is done; nothing here can fail."""
        self._catalog.add(created)
        show(plan, self._catalog.topics)

    def _undo(self, plan: CommitPlan, cause: Exception) -> None:
        """Leave nothing of a commit that could not be carried out."""
        try:
            if self._decisions.journal.failed:
                raise StoreError("the journal can't be written")
            reserve = self._context.reserve
            self._context.spare.insist(
                lambda: reserve.spend(lambda: self._set_back(plan))
            )
            self._decisions.note_end(encode_undone(plan.job))
        except Exception as error:
            # Whether the commit counts is decided by the next opening, which sets
            # its topics back: nothing may be appended to them until then.
            reason = f"a commit failed ({cause}) and could not be undone ({error})"
            self._decisions.fail(reason, plan.job)
            raise CommitUnknown(*plan.job, reason) from error

    def _set_back(self, plan: CommitPlan) -> None:
        """Bring the topics of a plan back to where it found them; may be repeated."""
        self._catalog.discard([each.id for each in plan.topics if each.created])
        for planned in plan.topics:
            if planned.created:
                continue
            topic = self._catalog.get(planned.id)
            if topic.log.failure is not None:
                raise StoreError(topic.log.failure)
            with topic.log.going_back():
                self._context.segments.drop_topic(planned.id)
                reset_files(self._context, topic.log.directory, planned.end)
            if planned.overwrite:
                topic.update(start=planned.start)

    # Closing.

    def drain(self) -> None:
        """Refuse commits from now on, and wait for those under way.

        Raises:
            Timeout: one takes too long; the files must not get another owner yet.
        """
        timeout_s = self._context.config.wait_timeout_s
        with self._turns:
            self._decisions.hold("the store was closed")
            if not self._turns.wait_for(lambda: not self._busy, timeout_s):
                raise Timeout(
                    f"a commit or abort of writer {min(self._busy)!r} is still under "
                    f"way after {timeout_s} s: {self._context.root} stays locked until "
                    "it has ended and the store is closed once more, or the process "
                    "ends"
                )

    def close(self) -> None:
        """Make the stages durable, once nothing is under way."""
        try:
            for stage in self.all():
                if stage.log is not None:
                    stage.log.close()
        finally:
            self._context.stage_log.close()


def _check_content(stage: Stage, named: NamedStage) -> None:
    if (stage.batches, stage.size) != (named.batches, named.bytes):
        raise StageMismatch(
            f"stage {named.id} holds {stage.batches} batches of {stage.size} "
            f"bytes; the commit says {named.batches} of {named.bytes}"
        )
