"""A crowd of clients that do the worst they may, in a process of its own.

    python -m tests.integration.crowd PROTOCOL ADDRESS KIND COUNT TOPIC

`all` is one connection after the other of each kind. Each of the connections sends a
request at its limits again and again, as fast as the broker takes it, and reads and
drops the answers; `stalled` ones do not read. A connection that the broker ends is made
anew. It prints a line once it is at work, and goes on until its input ends.
"""

from __future__ import annotations

import functools
import itertools
import selectors
import socket
import sys
from collections.abc import Callable
from typing import Any

import lz4.block

from lance_spark.model import Retention
from lance_spark.net.address import parse_address
from lance_spark.wire import lwp
from lance_spark.wire.lwp import LIST_LIMITS, AssignmentStrategy, FetchFlags, LocateKind
from tests.integration.protocol import PROTOCOLS

KIB = 1024
_RANGE = AssignmentStrategy.RANGE
_RECORD = lwp.encode_record(lwp.Record(1, b"x" * 100))
_numbers = itertools.count(1)


def _frame(message: lwp.Message) -> bytes:
    return b"".join(map(bytes, lwp.encode_message(message)))


def _batch(payload: bytes, topic: int, count: int, **fields: bool) -> bytes:
    parts = lwp.encode_ingest(
        [payload],
        batch_id=next(_numbers),
        record_count=count,
        topic_id=topic,
        **fields,  # type: ignore[arg-type]
    )
    return b"".join(map(bytes, parts))


def _name() -> str:
    return f"{next(_numbers)}".rjust(255, "n")


def _join(group: str) -> bytes:
    names = tuple(
        f"{n}".rjust(255, "t") for n in range(LIST_LIMITS["JoinGroup.topics"])
    )
    return _frame(lwp.JoinGroup(group, "", names, _RANGE, 60_000))


def _commit(topic: int) -> bytes:
    stages = LIST_LIMITS["CommitStages.stages"]
    content = tuple(lwp.StageContent(2**31 + n, 1, 1) for n in range(stages))
    return _frame(lwp.CommitStages(_name(), 1, (), content))


def _wait(topic: int) -> bytes:
    most = LIST_LIMITS["Wait.positions"]
    positions = [lwp.TopicPosition(topic, 2**60)]
    positions += [lwp.TopicPosition(10**6 + n, 0) for n in range(most - 1)]
    # A version that is never that of now: it is answered at once, and comes again.
    return _frame(lwp.Wait(1, tuple(positions), 30_000))


def _flags() -> FetchFlags:
    return FetchFlags.EXTENDED | FetchFlags.SNAP


# What each kind sends next, given a topic that the crowd may use.
KINDS: dict[str, Callable[[int], bytes]] = {
    "keepalive": lambda topic: lwp.encode_keepalive() * 1000,
    "ack": lambda topic: lwp.encode_ack(1) * 1000,
    "list": lambda topic: _frame(lwp.ListTopics()) * 10,
    "get": lambda topic: _frame(lwp.GetTopic(topic)) * 10,
    "status": lambda topic: _frame(lwp.GetClusterStatus()) * 10,
    "create": lambda topic: _frame(lwp.CreateTopic("taken")) * 10,
    "retention": lambda topic: _frame(lwp.SetRetention(topic, Retention(0, 0))),
    "delete": lambda topic: _frame(lwp.DeleteTopic(10**6)) * 10,
    "authenticate": lambda topic: _frame(lwp.Authenticate("x" * 60 * KIB)),
    "subscribe": lambda topic: _frame(lwp.Subscribe(topic, 0, 1, next(_numbers))) * 10,
    "unsubscribe": lambda topic: _frame(lwp.Unsubscribe(topic, 1)) * 10,
    "offset": lambda topic: _frame(lwp.CommitOffset(topic, next(_numbers) % 1000, 0)),
    "locate": lambda topic: _frame(lwp.Locate(topic, LocateKind.OFFSET, 100_001)) * 10,
    "fetch": lambda topic: _frame(lwp.Fetch(topic, 1, 2**32 - 1, _flags())),
    "fetch small": lambda topic: _frame(lwp.Fetch(topic, 1, 1, _flags())) * 10,
    "stalled": lambda topic: _frame(lwp.Fetch(topic, 0, 2**32 - 1)) * 8,
    "wait": _wait,
    "open stage": lambda topic: _frame(lwp.OpenStage("staged", _name(), 1)),
    "commit": _commit,
    "abort": lambda topic: _frame(lwp.AbortStages(_name(), 1)),
    "join": lambda topic: _join("group"),
    "heartbeat": lambda topic: _frame(lwp.GroupHeartbeat("group", "no", 1)) * 10,
    "leave": lambda topic: _frame(lwp.LeaveGroup("group", "no")) * 10,
    "small batches": lambda topic: b"".join(
        _batch(_RECORD, topic, 1) for _ in range(100)
    ),
    "batches": lambda topic: _batch(_RECORD * 9000, topic, 9000),
    "bad batches": lambda topic: _batch(_RECORD * 9000, topic, 1),
    "bombs": lambda topic: _batch(
        lz4.block.compress(bytes(16 * KIB * KIB), store_size=False),
        *(topic, 1),
        compressed=True,
    ),
    "announced": lambda topic: (
        lwp.encode_header(
            lwp.FrameFlags.BATCH_MODE, batch_id=1, payload_length=16 * KIB * KIB
        )
        + bytes(16 * KIB)
    ),
}


_LARGE = ("join", "commit", "wait", "batches", "bad batches", "bombs")


def find_kinds(protocol: str) -> dict[str, Callable[[Any], bytes]]:
    """Give what each kind of a protocol's clients sends, given a topic.

    What is made once is sent by all, so that the crowd is quicker than the broker.
    """
    if protocol in PROTOCOLS:
        requests = PROTOCOLS[protocol].requests
        return {kind: functools.cache(make) for kind, make in requests.items()}
    return {k: functools.cache(m) if k in _LARGE else m for k, m in KINDS.items()}


class Member:
    """One connection of the crowd."""

    def __init__(
        self, address: str, kind: str, make: Callable[[Any], bytes], topic: object
    ) -> None:
        target = parse_address(address)
        self.sock = socket.create_connection((target.host, target.port), 30)
        self.sock.setblocking(False)
        self.kind = kind
        self._reads = kind != "stalled"
        self._next = make
        self._topic = topic
        self._left = memoryview(self._next(topic))
        self._again = kind not in ("stalled", "announced")

    @property
    def events(self) -> int:
        wanted = selectors.EVENT_READ if self._reads else 0
        return wanted | (selectors.EVENT_WRITE if self._left else 0)

    def work(self, events: int, drop: bytearray) -> bool:
        """Send and read; False when the broker has ended the connection."""
        try:
            if events & selectors.EVENT_READ and not self.sock.recv_into(drop):
                return False
            if events & selectors.EVENT_WRITE:
                self._left = self._left[self.sock.send(self._left) :]
                if not self._left and self._again:
                    self._left = memoryview(self._next(self._topic))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def main(protocol: str, address: str, kind: str, count: int, topic: object) -> None:
    """Keep a broker busy until the input ends."""
    drop = bytearray(256 * KIB)
    known = find_kinds(protocol)
    kinds = itertools.cycle(known if kind == "all" else [kind])
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)

        def join(kind: str) -> None:
            member = Member(address, kind, known[kind], topic)
            selector.register(member.sock, member.events, member)

        for _ in range(count):
            join(next(kinds))
        sys.stdout.write("at work\n")
        sys.stdout.flush()
        while True:
            for key, events in selector.select():
                if key.data is None:
                    return
                member: Member = key.data
                if not member.work(events, drop):
                    selector.unregister(member.sock)
                    member.sock.close()
                    join(member.kind)
                elif member.events != key.events:
                    # Nothing to wait for: it is registered again when it reads.
                    if member.events:
                        selector.modify(member.sock, member.events, member)
                    else:
                        selector.unregister(member.sock)


if __name__ == "__main__":
    # LWP numbers its topics.
    name = sys.argv[5]
    topic = name if sys.argv[1] in PROTOCOLS else int(name)
    main(*sys.argv[1:4], int(sys.argv[4]), topic)
