"""Stages: writes that become visible all at once, exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from lance_spark.client.caller import Caller
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
        """
        message = CommitStages(writer_id, sequence, tuple(overwrite), tuple(stages))
        return self._ask(message, StagesCommitted, needs=_NEEDS)

    def abort_stages(self, writer_id: str, sequence: int) -> int:
        """Drop all stages of a job that were not committed; return how many."""
        message = AbortStages(writer_id, sequence)
        return self._ask(message, StagesAborted, needs=_NEEDS).dropped
