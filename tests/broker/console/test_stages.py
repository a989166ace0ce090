from __future__ import annotations

from lance_spark.broker import EmbeddedBroker
from tests.broker.console.visit import Visitor
from tests.broker.kit import records


def test_stages(broker: EmbeddedBroker, visitor: Visitor) -> None:
    assert visitor.get("/api/stages") == {"stages": []}
    store = broker.service.store
    first = store.open_stage("new topic", "writer", 5)
    second = store.open_stage("other", "writer", 5)
    third = store.open_stage("other", "writer", 6)
    store.append_stage(second, 1, records("x", 3))
    store.stage(first).active_ns = 1_000_000_000
    store.stage(second).active_ns = 5_000_000_000
    store.stage(third).active_ns = 2_000_000_000
    ttl_ms = broker.config.stage_ttl_s * 1000
    found = visitor.get("/api/stages")["stages"]
    assert found == [
        {
            "id": first,
            "topic": "new topic",
            "writer": "writer",
            "sequence": "5",
            "batches": 0,
            "bytes": 0,
            "last_active_ms": 1000,
            # With the last activity of its job.
            "expires_ms": 5000 + ttl_ms,
        },
        {
            "id": second,
            "topic": "other",
            "writer": "writer",
            "sequence": "5",
            "batches": 1,
            "bytes": 75,
            "last_active_ms": 5000,
            "expires_ms": 5000 + ttl_ms,
        },
        {
            "id": third,
            "topic": "other",
            "writer": "writer",
            "sequence": "6",
            "batches": 0,
            "bytes": 0,
            "last_active_ms": 2000,
            "expires_ms": 2000 + ttl_ms,
        },
    ]
    health = visitor.get("/api/overview")["health"]
    assert health["status"] == "warning"
    assert "3 stages have been idle" in health["notes"][0]["text"]


def test_sequences_are_exact(broker: EmbeddedBroker, visitor: Visitor) -> None:
    store = broker.service.store
    for sequence in (2**64 - 2, 2**64 - 1):
        store.open_stage("t", "writer", sequence)
    found = visitor.get("/api/stages")["stages"]
    assert [stage["sequence"] for stage in found] == [str(2**64 - 2), str(2**64 - 1)]
    body = {"writer": "writer", "sequence": found[0]["sequence"]}
    assert visitor.ask("POST", "/api/stages/abort", body).json == {"dropped": 1}
    assert [s.metadata.job.sequence for s in store.stages()] == [2**64 - 1]
    for wrong in ("", "-1", "1.0", "²", "x", str(2**64), "9" * 30):
        body = {"writer": "writer", "sequence": wrong}
        assert visitor.ask("POST", "/api/stages/abort", body).status == 400, wrong
