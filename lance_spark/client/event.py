"""What a server tells a producer: the results of `Connection.receive`."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.errors import BrokerError


@dataclass(frozen=True, slots=True)
class Acked:
    """A batch is stored (LWP §4.2)."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch is not stored, and why.

    `batch_id` is None if the server did not say which; on a server that answers in
    order it is then the oldest that has no answer.
    """

    error: BrokerError
    batch_id: int | None = None


@dataclass(frozen=True, slots=True)
class SlowDown:
    """The server's buffers are full (LWP §4.4)."""


Event = Acked | Refused | SlowDown
