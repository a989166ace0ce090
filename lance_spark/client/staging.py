"""Stages: writes that become visible all at once, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lance_spark.client.caller import Caller
from lance_spark.client.retry import Retry
from lance_spark.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    Backpressure,
    ClusterNotReady,
    CommitConflictError,
    CommitUnknownError,
    ConnectionLimit,
    InvalidPayload,
    InvalidTopicName,
    LanceError,
    LeaderUnknown,
    NotLeader,
    PayloadTooLarge,
    RateLimited,
    StageExpiredError,
    StageMismatchError,
    StageNotFound,
    StorageError,
    TopicNotFound,
)
from lance_spark.net.address import Address
from lance_spark.wire.lwp import (
    AbortStages,
    Capability,
    CommitStages,
    OpenStage,
    StageContent,
    StageOpened,
    StagesAborted,
    StagesCommitted,
)

_NEEDS = (Capability.STAGED_COMMIT, "writing exactly once")

# Answers that hold for every request of the same commit, also for one that was sent
# before and is still on its way to the server.
_SETTLED = (
    CommitConflictError,
    InvalidTopicName,
    PayloadTooLarge,
    StageExpiredError,
    StageMismatchError,
    StageNotFound,
)
# Answers that hold for the one request: it has done nothing, another one may.
_REFUSED = (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    Backpressure,
    ClusterNotReady,
    ConnectionLimit,
    InvalidPayload,
    LeaderUnknown,
    NotLeader,
    RateLimited,
    StorageError,
    TopicNotFound,
)


class CommitRetry(Retry):
    """Ask for a commit until its outcome is known, or time is up.

    A request that was sent and not answered may have been carried out, or may be yet:
    a server reads what is left of a connection that its client has closed. From then
    on a refusal that another request need not meet, as of a full disk, proves nothing,
    and the commit is asked for again: a server carries it out once.

    Args:
        writer_id: who commits.
        sequence: which of the writer's commits it is.
        rules: what `Retry` is given.
    """

    def __init__(self, writer_id: str, sequence: int, **rules: Any) -> None:
        super().__init__(**rules)
        self._name = f"commit {sequence} of {writer_id!r}"
        self._is_in_doubt = False

    def note(self, error: LanceError, *, asked: Address | None) -> None:
        """Note whether a server may have carried out the commit."""
        if asked is not None and not isinstance(error, (*_SETTLED, *_REFUSED)):
            self._is_in_doubt = True

    def conclude(self, error: LanceError) -> LanceError:
        """Say that the outcome is not known, if it is not."""
        if not self._is_in_doubt or isinstance(error, _SETTLED):
            return error
        unknown = CommitUnknownError(
            f"the outcome of {self._name} is not known: its rows may be there, now or "
            "when the broker is started again, or not at all. Commit again with the "
            "same writer id and sequence, which writes them once. The last failure: "
            f"{error}"
        )
        unknown.__cause__ = error
        return unknown

    def _may_pass(self, error: LanceError, asked: Address | None) -> bool:
        if self._is_in_doubt and isinstance(error, _REFUSED):
            return True
        return super()._may_pass(error, asked)


class StagingCalls(Caller):
    """The client's calls for stages.

    All are safe to repeat and are repeated: a stage that was opened and never named
    goes with the job, a commit is known by writer and sequence.
    """

    def open_stage(self, topic_name: str, writer_id: str, sequence: int) -> int:
        """Open a stage for a topic that need not exist yet; return the stage's id.

        Raises:
            Unsupported: the server is a plain one; so do the other calls.
        """
        message = OpenStage(topic_name, writer_id, sequence)
        return self._ask(message, StageOpened, needs=_NEEDS).stage_id

    def commit_stages(
        self,
        writer_id: str,
        sequence: int,
        stages: Sequence[StageContent],
        *,
        overwrite: Sequence[str] = (),
    ) -> StagesCommitted:
        """Append stages to their topics, in this order, all or nothing.

        Args:
            writer_id: who writes.
            sequence: which of the writer's commits this is; it has to rise.
            stages: the stages and what they hold; all others of the job are dropped.
            overwrite: names of topics whose content is replaced.

        Raises:
            StageMismatchError: the server holds other data than `stages` says.
            StageNotFound, StageExpiredError: a stage is gone.
            CommitConflictError: the sequence was committed with other topics.
            CommitUnknownError: time is up, and whether the commit was carried out is
                still not known. Any other error means that it was not, nor will be.
        """
        message = CommitStages(writer_id, sequence, tuple(overwrite), tuple(stages))
        return self._ask(
            message,
            StagesCommitted,
            needs=_NEEDS,
            make_rules=partial(CommitRetry, writer_id, sequence),
        )

    def abort_stages(self, writer_id: str, sequence: int) -> int:
        """Drop all stages of a job that were not committed; return how many."""
        message = AbortStages(writer_id, sequence)
        return self._ask(message, StagesAborted, needs=_NEEDS).dropped
