"""What the system tests have to know of a protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface
from typing import runtime_checkable

from lance_spark.model import Buffer

MIB = 1024 * 1024
# Makes requests that name a topic, as `Protocol.find` does.
Request = Callable[[str], bytes]


class Broker(Interface):
    """A broker in this process or in another one."""

    def address_of(self, protocol: str) -> str:
        """Say where a protocol is served."""


class Teller(Interface):
    """A connection over which a server tells positions."""

    def produce(self, topic: str, values: Sequence[bytes]) -> int:
        """Append; give the position of the first."""

    def close(self) -> None:
        """End the connection."""


@runtime_checkable
class GroupTeller(Teller, Interface):
    """One over which it also keeps those of groups."""

    def commit(self, topic: str, group: str, position: int) -> None:
        """Have it keep how far a group is."""

    def committed(self, topic: str, group: str) -> int | None:
        """Ask how far a group is."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol under test; what it sends are bytes of whole frames.

    Args:
        name: as in an address.
        listener: where requests go that have records, if the protocol has several.
        find_name: tells what requests call a topic, given an address; by default they
            call it by its name.
        announce: makes the head of an append whose payload has so many bytes.
        payload_bytes_max: the largest that a broker may be announced.
        append: appends values.
        fetch: asks for all that an answer may hold, from the first record on.
        noise: bytes that are not the protocol, or make no sense.
        bombs: appends of which nothing may be stored, as they would take too much.
        requests: what a client at its limits says, again and again. A client that is
            `stalled` says it once and reads no answer, one that has `announced` reads.
        poll: asks to wait for the next record of an empty topic, where it can.
        count_refused: tells how many of such requests were not let wait, given all that
            came back.
        is_conditional: a sole writer stores no batch twice.
        is_checked: all that is sent is under a checksum.
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
    count_refused: Callable[[bytes], int] | None = None
    is_conditional: bool = False
    is_checked: bool = False
    dial: Callable[[str], Teller] | None = None
    listener: str | None = None
    find_name: Callable[[str, str], str] | None = None

    def address_in(self, broker: Broker) -> str:
        """Say where a broker takes requests that have records."""
        return broker.address_of(self.listener or self.name)

    def find(self, broker: Broker, topic: str) -> str:
        """Say what requests call a topic, which is there or is created."""
        if self.find_name is None:
            return topic
        return self.find_name(self.address_in(broker), topic)


def join(buffers: Iterable[Buffer]) -> bytes:
    """Put the buffers of a frame together."""
    return b"".join(map(bytes, buffers))
