"""ClusterStatus (0x81): who leads, and what the server can do beyond LWP.

LWP names the question (§16.5) and not the answer; the fields are those of the server
in the field. `capabilities` is ours: a server that lists none is a plain one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lance_spark.errors import RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.lwp.command import Command
from lance_spark.wire.lwp.document import (
    DocumentReader,
    decode_document,
    encode_document,
)
from lance_spark.wire.lwp.message import Message


@dataclass(frozen=True, slots=True)
class ClusterStatus(Message):
    """The state of a cluster as one node sees it; the defaults are a single node's.

    `leader_id` is None while there is no leader. Unknown fields are in `details`.
    """

    COMMAND = Command.CLUSTER_STATUS
    NAME = "cluster status"

    node_id: int = 0
    is_leader: bool = True
    leader_id: int | None = 0
    current_term: int = 0
    node_count: int = 1
    healthy_nodes: int = 1
    quorum_available: bool = True
    peer_states: Mapping[str, Any] = field(default_factory=dict, hash=False)
    mode: str = "standalone"
    capabilities: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def encode_payload(self) -> list[Buffer]:
        """Return the payload."""
        body = {
            **self.details,
            "node_id": self.node_id,
            "is_leader": self.is_leader,
            "leader_id": self.leader_id,
            "current_term": self.current_term,
            "node_count": self.node_count,
            "healthy_nodes": self.healthy_nodes,
            "quorum_available": self.quorum_available,
            "peer_states": dict(self.peer_states),
            "mode": self.mode,
            "capabilities": list(self.capabilities),
        }
        return [encode_document(body)]

    @classmethod
    def decode_payload(cls, payload: Buffer) -> ClusterStatus:
        """Read a payload; what is missing is as on a single node."""
        reader = DocumentReader(decode_document(payload, cls.NAME), cls.NAME)
        capabilities = reader.take("capabilities", list, [])
        if not all(isinstance(name, str) for name in capabilities):
            raise RemoteProtocolError(f"{cls.NAME}: a capability is not a text")
        return cls(
            node_id=reader.take_uint("node_id", 64, 0),
            is_leader=reader.take("is_leader", bool, True),
            leader_id=_take_leader(reader),
            current_term=reader.take_uint("current_term", 64, 0),
            node_count=reader.take_uint("node_count", 64, 1),
            healthy_nodes=reader.take_uint("healthy_nodes", 64, 1),
            quorum_available=reader.take("quorum_available", bool, True),
            peer_states=reader.take("peer_states", dict, {}),
            mode=reader.take("mode", str, "standalone"),
            capabilities=tuple(capabilities),
            details=reader.rest,
        )


def _take_leader(reader: DocumentReader) -> int | None:
    if reader.rest.get("leader_id", 0) is None:
        del reader.rest["leader_id"]
        return None
    return reader.take_uint("leader_id", 64, 0)
