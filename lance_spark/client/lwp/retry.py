"""When to ask again for a commit of stages, and when its outcome is known."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark import errors
from lance_spark.client.retry import Retry
from lance_spark.errors import CommitUnknownError, LanceError
from lance_spark.net.address import Address
from lance_spark.wire.lwp import code_of

# Answers that hold for every request of the same commit, also for one that was sent
# before and is still on its way to the server.
_SETTLED = (
    errors.CommitConflictError,
    errors.InvalidTopicName,
    errors.PayloadTooLarge,
    errors.StageExpiredError,
    errors.StageMismatchError,
    errors.StageNotFound,
)
# Answers that hold for the one request: it has done nothing, another one may.
_REFUSED = (
    errors.AccessDenied,
    errors.AuthenticationFailed,
    errors.AuthenticationRequired,
    errors.Backpressure,
    errors.ClusterNotReady,
    errors.ConnectionLimit,
    errors.InvalidPayload,
    errors.LeaderUnknown,
    errors.NotLeader,
    errors.RateLimited,
    errors.StorageError,
    errors.TopicNotFound,
)


@dataclass(eq=False, kw_only=True)
class CommitRetry(Retry):
    """Ask for a commit until its outcome is known, or time is up.

    A request that was sent and not answered may have been carried out, or may be yet:
    a server reads what is left of a connection that its client has closed. From then
    on a refusal that another request need not meet, as of a full disk, proves nothing,
    and the commit is asked for again: a server carries it out once.

    Args:
        commit: names the commit in the error.
    """

    commit: str
    _is_in_doubt: bool = False

    def note(self, error: LanceError, asked: Address | None) -> None:
        """Note whether a server may have carried out the commit."""
        if asked is not None and not isinstance(error, (*_SETTLED, *_REFUSED)):
            self._is_in_doubt = True

    def conclude(self, error: LanceError) -> LanceError:
        """Say that the outcome is not known, if it is not."""
        if not self._is_in_doubt or isinstance(error, _SETTLED):
            return error
        unknown = CommitUnknownError(
            f"the outcome of {self.commit} is not known: its rows may be there, now or "
            "when the broker is started again, or not at all. Commit again with the "
            "same writer id and sequence, which writes them once. The last failure: "
            f"{error}",
            code_of(CommitUnknownError),
        )
        unknown.__cause__ = error
        return unknown

    def _may_pass(self, error: LanceError, asked: Address | None) -> bool:
        if self._is_in_doubt and isinstance(error, _REFUSED):
            return True
        return super()._may_pass(error, asked)
