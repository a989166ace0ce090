"""The protocols besides LWP, and what the system tests have to know of each.

A protocol joins the suites of faults by an entry here: `test_protocol_network`,
`test_protocol_restart`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol as Interface

from lance_spark.errors import ConnectionLost
from lance_spark.wire import rustlog
from tests.broker.rustlog.kit import RustlogClient


class Teller(Interface):
    """A connection over which a server tells positions, and keeps those of groups."""

    def produce(self, topic: str, values: list[bytes]) -> int:
        """Append; give the position of the first."""

    def commit(self, topic: str, group: str, position: int) -> None:
        """Have it keep how far a group is."""

    def committed(self, topic: str, group: str) -> int | None:
        """Ask how far a group is."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True)
class Protocol:
    """A protocol under test.

    Args:
        name: as in an address.
        is_conditional: a sole writer stores no batch twice.
        dial: makes a `Teller`, where the protocol has one.
    """

    name: str
    is_conditional: bool = False
    dial: Callable[[str], Teller] | None = None


class RustlogTeller(RustlogClient):
    """RustLog's: Produce tells a number, and 03 and 04 are commits."""

    def next_payload(self) -> bytes:
        """Read the payload of a frame."""
        payload = super().next_payload()
        if payload is None:
            raise ConnectionLost("the broker closed the connection")
        return payload

    def commit(self, topic: str, group: str, position: int) -> None:
        """Have it keep how far a group is."""
        assert self.ask(rustlog.OffsetCommit(topic, 0, group, position)).success

    def committed(self, topic: str, group: str) -> int | None:
        """Ask how far a group is."""
        found: int | None = self.ask(rustlog.OffsetFetch(topic, 0, group)).offset
        return found

    def close(self) -> None:
        """End the connection."""
        self.stream.close()


PROTOCOLS = {
    one.name: one
    for one in (
        Protocol("rustlog", dial=RustlogTeller),
        Protocol("tank", is_conditional=True),
    )
}
# Where a broker listens for all of them.
LISTENERS = dict.fromkeys(PROTOCOLS, "127.0.0.1:0")
