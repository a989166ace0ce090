"""`lance-spark topics describe`."""

from __future__ import annotations

import json

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer, consumer_id
from tests.cli.conftest import ROWS, Run


def _prepare(client: LanceClient, topic: str) -> int:
    with Producer(client, topic) as producer:
        producer.write(ROWS)
    client.commit_offset(topic, consumer_id("etl"), 15)
    client.subscribe(topic, 5)
    client.join_group("etl", [topic], member="me")
    client.open_stage(topic, "writer", 1)
    return producer.acked_bytes


def _clean_up(client: LanceClient) -> None:
    client.leave_group("etl", "me")
    client.abort_stages("writer", 1)


def test_everything(ask: Run, client: LanceClient, topic: str) -> None:
    size = _prepare(client, topic)
    done = ask("topics", "describe", topic)
    listed = ask("topics", "describe", topic, "--json")
    _clean_up(client)
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.lines]
    info = client.topic(topic)
    assert lines[:2] == [f"name {topic}", f"id {info.id}"]
    assert lines[2].startswith("created 20") and lines[2].endswith("Z")
    assert lines[3:10] == [
        "records 7",
        f"bytes {size} bytes",
        "log start 0",
        f"log end {size}",
        "retention no limit",
        "stages 1",
        "consumers 2",
    ]
    assert lines[10:] == [
        "",
        "consumer committed lag group",
        f"5 - {size} -",
        f"{consumer_id('etl')} 15 {size - 15} etl",
    ]
    document = json.loads(listed.out)
    assert document["stages"] == 1 and document["records"] == 7
    assert document["consumers"] == [
        {
            "consumer_id": 5,
            "group": None,
            "committed_offset": None,
            "lag_bytes": size,
        },
        {
            "consumer_id": consumer_id("etl"),
            "group": "etl",
            "committed_offset": 15,
            "lag_bytes": size - 15,
        },
    ]


def test_default_topic_by_number(ask: Run) -> None:
    done = ask("topics", "describe", "id:0")
    assert done.code == 0
    assert "id         0" in done.lines and "consumers  0" in done.lines
    assert done.lines[0] == "name       (default)"


def test_a_plain_server_knows_little(run: Run, plain_server: EmbeddedBroker) -> None:
    """What it does not say is not said to be none."""
    to = ("-s", plain_server.address, "--checksum", "crc32")
    with LanceClient(plain_server.address, checksum="crc32") as client:
        topic_id = client.create_topic("described").id
        with Producer(client, "described") as producer:
            producer.write(ROWS.filter(ROWS["value"].is_valid()))
        client.commit_offset("described", consumer_id("etl"), 15)
    done = run("topics", "describe", "described", *to)
    lines = [" ".join(line.split()) for line in done.lines]
    assert lines[:2] == ["name described", f"id {topic_id}"]
    unknown = ("records", "bytes", "log start", "retention", "stages", "consumers")
    shown = [*lines[3:6], *lines[7:]]
    assert shown == [f"{name} -" for name in unknown]
    assert lines[6] == f"log end {producer.acked_bytes}"
    document = json.loads(run("topics", "describe", "described", "--json", *to).out)
    known = {name for name, value in document.items() if value is not None}
    assert known == {"id", "name", "created_at", "log_end"}


def test_no_such_topic(ask: Run) -> None:
    done = ask("topics", "describe", "nowhere")
    assert (done.code, done.out) == (1, "")
    assert "'nowhere'" in done.err and done.err.count("\n") == 1
