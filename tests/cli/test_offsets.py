"""`lance-spark offsets`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.summary import Document, summarise
from lance_spark.client import LanceClient, Producer, TopicInfo
from lance_spark.errors import TopicNotFound
from lance_spark.offset import OffsetMark, StreamOffset, TopicPlace
from tests.cli.checkpoint import (
    PLANNED_MS,
    QUERY_ID,
    write_batch,
    write_checkpoint,
)
from tests.cli.conftest import Run

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
CREATED_S = 1_794_803_918
CREATED = "2026-11-16T04:38:38.000000000Z"
OTHER = '{"logOffset":1}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a client connects."""

    def refuse(self: LanceClient) -> None:
        raise AssertionError("nobody asked for a server")

    monkeypatch.setattr(LanceClient, "connect", refuse)


def shown_on_page(number: int) -> str:
    """Return the output of an example on the page."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## lance-spark offsets\n")[
        2
    ]
    block = re.findall(r"```console not run\n\$ .*\n((?:.*\n)*?)```", section)[number]
    assert isinstance(block, str)
    return block


def test_page_shows_what_is_printed(run: Run, path: Path, no_server: None) -> None:
    places = {
        "events": TopicPlace.at(1, CREATED_S, 16),
        "audit": TopicPlace.at(2, CREATED_S, 0),
    }
    write_batch(path, 7, [StreamOffset.of(places), OTHER])
    assert run("offsets", path) == (0, shown_on_page(0), "")


def test_page_shows_what_is_printed_of_a_server(run: Run, path: Path) -> None:
    with EmbeddedBroker(fsync="none") as broker:
        with LanceClient(broker.address) as client:
            infos = [client.create_topic(name) for name in ("events", "audit")]
            with Producer(client, "events") as producer:
                for value in (b"one", b"two", b"three"):
                    producer.send(value)
            client.delete_topic("audit")
        offsets = {"events": 16, "audit": 0}
        places = {
            info.name: TopicPlace.at(info.id, info.created_at_s, offsets[info.name])
            for info in infos
        }
        write_batch(path, 7, [StreamOffset.of(places), OTHER])
        done = run("offsets", path, "--servers", broker.address)
    assert (done.code, done.err) == (0, "")
    shown = done.out
    for info in infos:
        shown = shown.replace(_time(info.created_at_s), CREATED)
    assert shown == shown_on_page(1)


def _time(seconds: int) -> str:
    time = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{time:%Y-%m-%dT%H:%M:%S}.000000000Z"


def test_json(run: Run, path: Path, no_server: None) -> None:
    offset = StreamOffset.of({"é": TopicPlace.at(3, 7, 100, OffsetMark(64, 123))})
    write_batch(path, 0, [None, OTHER, offset], is_committed=False)
    done = run("offsets", path, "--json")
    assert (done.code, done.err, len(done.lines)) == (0, "", 1)
    assert json.loads(done.out) == {
        "query_id": QUERY_ID,
        "batch": 0,
        "planned_at_ms": PLANNED_MS,
        "committed": False,
        "sources": [
            {"lance": False, "offset": None},
            {"lance": False, "offset": {"logOffset": 1}},
            {
                "lance": True,
                "offset": offset.to_document(),
                "topics": [
                    {
                        "topic": "é",
                        "id": 3,
                        "created_at": 7,
                        "offset": 100,
                        "mark": {"bytes": 64, "crc32c": 123},
                    }
                ],
            },
        ],
    }


def test_marks(run: Run, path: Path) -> None:
    offset = StreamOffset.of(
        {
            "a": TopicPlace.at(1, 0, 100, OffsetMark(64, 123)),
            "b": TopicPlace.at(2, 0, 1, OffsetMark(1, 2**32 - 1)),
            "c": TopicPlace.at(3, 0, 0),
        }
    )
    write_batch(path, 0, [offset])
    done = run("offsets", path)
    assert done.lines[-4:] == [
        "topic  id  offset  created  mark",
        "a       1     100  -        64 bytes, crc32c 0000007b",
        "b       2       1  -        1 byte, crc32c ffffffff",
        "c       3       0  -        -",
    ]


def test_batch_that_is_not_committed(run: Run, path: Path) -> None:
    for number in (3, 4):
        write_batch(path, number, [None], is_committed=False)
    newest = run("offsets", path).lines
    assert newest[1].split() == ["batch", "4"]
    assert newest[3:] == [
        "committed  no: it is running, or is run when the query starts again",
        "",
        "source 0: no offset yet",
    ]
    older = run("offsets", path, "--batch", 3).lines
    assert older[1].split() == ["batch", "3"]
    assert older[3] == "committed  no"


def test_no_topics_yet(run: Run, path: Path) -> None:
    write_batch(path, 0, [StreamOffset(())])
    assert run("offsets", path).lines[-1] == "source 0: lance, 0 topics"


def test_what_no_release_writes_can_be_shown(run: Run, path: Path) -> None:
    places = {
        "a\x1b[2J\ud800": TopicPlace.at(1, 2**64 - 1, 3),
        "b": TopicPlace(2, 0, ((0, 5), (1, 6))),
    }
    write_batch(path, 0, [StreamOffset.of(places), json.dumps("\x1b" + "x" * 500)])
    (path / "metadata").write_text('{"id": "\\u001b[2J"}')
    done = run("offsets", path)
    assert done.code == 0 and "\x1b" not in done.out
    rows = [line.split() for line in done.lines]
    assert str(2**64 - 1) in done.out
    assert ["b", "2", "0", "5", "-"] in rows and ["b", "2", "1", "6", "-"] in rows
    assert len(done.lines[-1]) < 130
    done = run("offsets", path, "--json")
    assert done.code == 0 and "\x1b" not in done.out


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("hdfs://host/x", "is not on this machine, and only local paths are read"),
        ("s3a://bucket/x", "is not on this machine"),
        ("dbfs:/x", "is not on this machine"),
        ("file:///tmp/x", "give the path alone, without file:"),
    ],
)
def test_other_file_systems(run: Run, place: str, reason: str) -> None:
    done = run("offsets", place)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err and place in done.err


def test_path_with_a_colon(run: Run, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "a:b")
    write_batch(path, 0, [None])
    assert run("offsets", path).code == 0


@pytest.mark.parametrize("arguments", [[], ["--batch", "-1"], ["--batch", "x"]])
def test_wrong_usage(run: Run, path: Path, arguments: list[str]) -> None:
    done = run("offsets", *([path, *arguments] if arguments else []))
    assert (done.code, done.out) == (2, "")


def test_errors_are_one_line(run: Run, path: Path, no_server: None) -> None:
    done = run("offsets", path, "--servers", "127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert "the query has not planned a batch yet" in done.err
    write_batch(path, 0, [None]).write_text("v2\n{}\n-")
    done = run("offsets", path)
    assert (done.code, done.out) == (1, "")
    assert "the file is v2" in done.err and done.err.count("\n") == 1


# With a server.


@pytest.fixture
def place(client: LanceClient, topic: str) -> TopicPlace:
    """The end of a topic with two records of 10 bytes."""
    with Producer(client, topic) as producer:
        producer.send(b"12345")
        producer.send(b"67890")
    info = client.topic(topic)
    return TopicPlace.at(info.id, info.created_at_s, 20)


def ask_state(ask: Run, path: Path, topic: str, place: TopicPlace) -> dict[str, object]:
    """Return what is said of one topic, and check that people are told the same."""
    write_batch(path, 0, [StreamOffset.of({topic: place})])
    done = ask("offsets", path, "--json")
    assert (done.code, done.err) == (0, "")
    (source,) = json.loads(done.out)["sources"]
    (found,) = source["topics"]
    assert isinstance(found, dict)
    keys = ("log_start", "log_end", "lag_bytes")
    shown = ["-" if found[key] is None else str(found[key]) for key in keys]
    row = ask("offsets", path).lines[-1].split()
    # The topic, its id, the offset and when it was created stand before them.
    assert row[4:7] == shown
    return {**found, "text": " ".join(row[7:])}


def test_same_topic(ask: Run, path: Path, topic: str, place: TopicPlace) -> None:
    behind = TopicPlace.at(place.topic_id, place.created_s, 10)
    for at, lag in ((place, 0), (behind, 10)):
        found = ask_state(ask, path, topic, at)
        assert (found["log_start"], found["log_end"]) == (0, 20)
        assert (found["state"], found["lag_bytes"]) == ("same", lag)
        assert found["text"] == "the same topic"


def test_log_that_ends_before_the_offset(
    ask: Run, path: Path, topic: str, place: TopicPlace
) -> None:
    ahead = TopicPlace.at(place.topic_id, place.created_s, 21)
    found = ask_state(ask, path, topic, ahead)
    assert (found["state"], found["lag_bytes"]) == ("cut", 0)
    assert found["text"] == "1 byte gone from the log's end"


def test_topic_that_was_created_again(
    ask: Run, path: Path, topic: str, place: TopicPlace
) -> None:
    for other in (
        TopicPlace.at(place.topic_id, place.created_s - 1, 10),
        TopicPlace.at(place.topic_id + 1, place.created_s, 10),
    ):
        found = ask_state(ask, path, topic, other)
        assert (found["state"], found["lag_bytes"]) == ("recreated", None)
        assert (found["log_start"], found["log_end"]) == (0, 20)
        now = f"id {place.topic_id}, created {_time(place.created_s)}"
        assert found["text"] == f"another topic of that name: {now}"


def test_topic_that_had_the_name_before(
    ask: Run, path: Path, topic: str, place: TopicPlace
) -> None:
    other = TopicPlace.at(place.topic_id + 1, place.created_s, 10)
    found = ask_state(ask, path, topic, replace(other, earlier=(place,)))
    assert found["state"] == "recreated"
    assert f"created {_time(place.created_s)}, which was read up to 20 before" in str(
        found["text"]
    )


def test_topic_that_is_gone(
    ask: Run, path: Path, client: LanceClient, topic: str, place: TopicPlace
) -> None:
    client.delete_topic(topic)
    found = ask_state(ask, path, topic, place)
    assert (found["state"], found["lag_bytes"]) == ("gone", None)
    assert (found["log_start"], found["log_end"]) == (None, None)
    assert found["text"] == "the topic is gone"


def test_retention_that_was_first(
    ask: Run, path: Path, topic: str, place: TopicPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a server says it that has dropped the first record.
    def drop(client: LanceClient, info: TopicInfo) -> Document:
        return {**summarise(client, info), "log_start": 10}

    monkeypatch.setattr("lance_spark.cli.summary.summarise", drop)
    start = TopicPlace.at(place.topic_id, place.created_s, 0)
    found = ask_state(ask, path, topic, start)
    assert (found["state"], found["lag_bytes"]) == ("dropped", 10)
    assert found["text"] == "10 bytes dropped before read"


def test_plain_server(run: Run, path: Path, plain_server: EmbeddedBroker) -> None:
    server = ["-s", plain_server.address, "--checksum", "crc32"]
    with LanceClient(plain_server.address, checksum="crc32") as client:
        info = client.create_topic("offsets-plain")
        with Producer(client, info.name) as producer:
            producer.send(b"12345")
        place = TopicPlace.at(info.id, info.created_at_s, 0, OffsetMark(0, 0))
        write_batch(path, 0, [StreamOffset.of({info.name: place})])
        done = run("offsets", path, *server)
        client.delete_topic(info.name)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1].split()[-6:] == ["-", "10", "10", "the", "same", "topic"]
    assert "0 bytes, crc32c 00000000" in done.lines[-1]


def test_topic_that_goes_meanwhile(
    ask: Run, path: Path, topic: str, place: TopicPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*_: object) -> None:
        raise TopicNotFound("gone")

    monkeypatch.setattr("lance_spark.cli.summary.summarise", vanish)
    assert ask_state(ask, path, topic, place)["state"] == "gone"


def test_nobody_there(run: Run, path: Path) -> None:
    write_batch(path, 0, [StreamOffset(())])
    done = run("offsets", path, "-s", "127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert "could not connect to 127.0.0.1:1" in done.err
