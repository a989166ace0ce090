"""What Kimberlite can do, and how its servers are reached.

Every process that Spark starts reads this, also those that never connect: so nothing of
the protocol's wire is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lance_spark.client.config import ConnectionConfig
from lance_spark.client.driver import Traits
from lance_spark.errors import OptionError
from lance_spark.quantity import check_number, refuse_setting

TRAITS = Traits(
    "kimberlite",
    "records",
    "counted",
    columns=("topic", "offset", "value"),
    lists_topics=False,
    creates_to_find=True,
)
# The forms of the releases that a user may ask for.
WIRES = ("v5", "v3", "v1-postcard", "v1-bincode")
_U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ConnectionConfig):
    """How Kimberlite's servers are reached.

    Args:
        tenant: whose streams they are.
        wire: the form of the messages: `v5` (releases from 0.6.2 on), `v3` (0.4.2 to
            0.5.1), `v1-postcard` (0.4.0 and 0.4.1) or `v1-bincode` (0.1).
        stream_id: the id of the only stream. Whatever name it is called by, it is not
            looked up, and so not created.

    Raises:
        OptionError: a value can't be used.
    """

    protocol: ClassVar[str] = "kimberlite"
    default_port: ClassVar[int] = 5432

    servers: str = "127.0.0.1"
    tenant: int = 1
    wire: str = "v5"
    stream_id: int | None = None

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one named here.
        ConnectionConfig.__post_init__(self)
        for name in ("tenant", "stream_id"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, 0)
                if value > _U64_MAX:
                    refuse_setting(name, value, "a number of 64 bits")
        if self.wire not in WIRES:
            raise OptionError(
                f"wire {self.wire!r} is unknown: give one of {', '.join(WIRES)}"
            )

    @property
    def finds_by_id(self) -> bool:
        """Whether the id is given."""
        return self.stream_id is not None

    def describe_missing(self, topic: str) -> str:
        """Say that a stream does not exist."""
        if self.finds_by_id:
            return f"tenant {self.tenant} has no stream with the id {self.stream_id}"
        return ConnectionConfig.describe_missing(self, topic)
