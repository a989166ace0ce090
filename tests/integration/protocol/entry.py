"""What the system tests have to know of a protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

from lance_spark.model import Buffer

MIB = 1024 * 1024
# Makes requests that name a topic.
Request = Callable[[str], bytes]


class Teller(Interface):
    """A connection over which a server tells positions, and keeps those of groups."""

    def produce(self, topic: str, values: Sequence[bytes]) -> int:
        """Append; give the position of the first."""

    def commit(self, topic: str, group: str, position: int) -> None:
        """Have it keep how far a group is."""

    def committed(self, topic: str, group: str) -> int | None:
        """Ask how far a group is."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol under test; what it sends are bytes of whole frames.

    Args:
        name: as in an address.
        announce: makes the head of an append whose payload has so many bytes.
        payload_bytes_max: the largest that a broker may be announced.
        append: appends values.
        fetch: asks for all that an answer may hold, from the first record on.
        noise: bytes that are not the protocol, or make no sense.
        bombs: appends of which nothing may be stored, as they would take too much.
        requests: what a client at its limits says, again and again. A client that is
            `stalled` says it once and reads no answer, one that has `announced` reads.
        poll: asks to wait for the next record, where the protocol can.
        is_conditional: a sole writer stores no batch twice.
        dial: makes a `Teller`, where the protocol has one.
    """

    name: str
    announce: Callable[[int], bytes]
    payload_bytes_max: int
    append: Callable[[str, Sequence[bytes]], bytes]
    fetch: Request
    noise: Mapping[str, bytes]
    bombs: Mapping[str, Request]
    requests: Mapping[str, Request]
    poll: Request | None = None
    is_conditional: bool = False
    dial: Callable[[str], Teller] | None = None


def join(buffers: Iterable[Buffer]) -> bytes:
    """Put the buffers of a frame together."""
    return b"".join(map(bytes, buffers))
