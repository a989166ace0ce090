"""The cluster status of our server, of a plain one, and of a broken one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lance_spark.errors import RemoteProtocolError
from lance_spark.wire.lwp import ClusterStatus
from tests.wire.vectors import join


def test_defaults_are_a_single_node() -> None:
    assert ClusterStatus.decode_payload(b"{}") == ClusterStatus()


def test_no_leader_yet() -> None:
    status = ClusterStatus.decode_payload(b'{"leader_id":null}')
    assert status.leader_id is None
    assert status.details == {}
    assert ClusterStatus.decode_payload(join(status.encode_payload())) == status


def test_unknown_fields_are_kept() -> None:
    status = ClusterStatus.decode_payload(b'{"region":"eu"}')
    assert status.details == {"region": "eu"}


@pytest.mark.parametrize(
    "body",
    [
        {"node_id": "0"},
        {"is_leader": 1},
        {"leader_id": -1},
        {"peer_states": []},
        {"mode": 0},
        {"capabilities": "locate"},
        {"capabilities": ["locate", None]},
    ],
)
def test_malformed(body: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="cluster status"):
        ClusterStatus.decode_payload(json.dumps(body).encode())
