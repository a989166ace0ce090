"""`lance-spark topics`: list, create, delete, retention."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.errors import TopicNotFound
from lance_spark.model import Retention
from tests.cli.conftest import ROWS, Run


@pytest.fixture
def no_terminal(type_in: Callable[[bytes], None]) -> None:
    type_in(b"y\n")


def _fill(client: LanceClient, topic: str) -> int:
    with Producer(client, topic, allow_null_records=True) as producer:
        producer.write(ROWS)
    return producer.acked_bytes


def test_list(run: Run) -> None:
    with EmbeddedBroker(fsync="none") as broker, LanceClient(broker.address) as client:
        done = run("topics", "list", "-s", broker.address)
        assert done == (0, "", "no topics\n")
        assert run("topics", "list", "-s", broker.address, "--json") == (0, "", "")
        client.create_topic("events", retention=Retention(604800, 10 * 1024**3))
        client.create_topic("zebra")
        size = _fill(client, "events")
        done = run("topics", "list", "-s", broker.address)
        listed = run("topics", "list", "-s", broker.address, "--json")
    assert (done.code, done.err) == (0, "")
    assert [" ".join(line.split()) for line in done.lines] == [
        "id name records bytes log start log end retention",
        f"1 events 7 {size} bytes 0 {size} 7d, 10g",
        "2 zebra 0 0 bytes 0 0 no limit",
    ]
    first, second = (json.loads(line) for line in listed.lines)
    assert first.pop("created_at") > 1_700_000_000
    assert first == {
        "id": 1,
        "name": "events",
        "records": 7,
        "bytes": size,
        "log_start": 0,
        "log_end": size,
        "max_age_secs": 604800,
        "max_bytes": 10 * 1024**3,
    }
    assert second["name"] == "zebra"


def test_list_of_a_plain_server(run: Run, plain_server: EmbeddedBroker) -> None:
    to = ("-s", plain_server.address, "--checksum", "crc32")
    assert run("topics", "create", "p", *to).code == 0
    with LanceClient(plain_server.address, checksum="crc32") as client:
        size = _fill(client, "p")
    done = run("topics", "list", *to)
    assert done.code == 0
    row = next(line for line in done.lines if " p " in line).split()
    # What it does not say is not made up.
    assert row[1:6] == ["p", "-", "-", "-", str(size)]
    done = run("topics", "describe", "p", *to)
    assert done.code == 0 and f"log end    {size}" in done.lines
    assert run("topics", "delete", "p", "--yes", *to).code == 0


def test_create(ask: Run, client: LanceClient) -> None:
    done = ask("topics", "create", "made", "--max-age", "90s", "--max-bytes", "1k")
    info = client.topic("made")
    assert done == (0, f"topic made created, id {info.id}\n", "")
    assert info.retention == Retention(90, 1024)
    done = ask("topics", "create", "made")
    assert (done.code, done.out) == (1, "")
    assert "already exists" in done.err and done.err.count("\n") == 1
    client.delete_topic("made")


def test_create_with_one_limit(ask: Run, client: LanceClient) -> None:
    ask("topics", "create", "aged", "--max-age", "1d")
    assert client.topic("aged").retention == Retention(86400, 0)
    client.delete_topic("aged")


@pytest.mark.parametrize("age", ["500ms", "soon"])
def test_age_is_whole_seconds(ask: Run, age: str) -> None:
    done = ask("topics", "create", "never", "--max-age", age)
    assert (done.code, done.out) == (2, "")
    assert "Error: " in done.err


@pytest.mark.parametrize("command", ["create", "retention"])
def test_limit_that_no_number_holds(ask: Run, command: str) -> None:
    done = ask("topics", command, "never", "--max-bytes", "999999999999999999g")
    assert (done.code, done.out) == (2, "")
    assert "Invalid value for '--max-bytes'" in done.err
    assert "give less than 8589934592g" in done.err


def test_largest_limits(ask: Run, client: LanceClient, topic: str) -> None:
    limits = ("--max-age", "999999999999d", "--max-bytes", "8589934591g")
    assert ask("topics", "retention", topic, *limits).code == 0
    assert client.topic(topic).retention == Retention(
        999999999999 * 86400, 8589934591 * 1024**3
    )


def test_bad_name(ask: Run) -> None:
    done = ask("topics", "create", "../up")
    assert (done.code, done.out) == (1, "")
    # The client warns of the name before the server refuses it.
    assert done.err.splitlines()[-1].startswith("lance-spark: ")
    assert "slash" in done.err.splitlines()[-1]


def test_names_are_harmless(ask: Run, client: LanceClient) -> None:
    client.create_topic("tr\u202eick")
    done = ask("topics", "list")
    assert "'tr\\u202eick'" in done.out and "\u202e" not in done.out
    client.delete_topic("tr\u202eick")


def test_delete(ask: Run, client: LanceClient, topic: str) -> None:
    info = client.topic(topic)
    done = ask("topics", "delete", topic, "--yes")
    assert done == (0, f"topic {topic} deleted, id {info.id}\n", "")
    with pytest.raises(TopicNotFound):
        client.topic(topic)
    done = ask("topics", "delete", topic, "--yes")
    assert (done.code, done.out) == (1, "")
    assert "no topic is named" in done.err and done.err.count("\n") == 1


@pytest.mark.usefixtures("no_terminal")
def test_delete_in_a_pipe_needs_yes(ask: Run, client: LanceClient, topic: str) -> None:
    done = ask("topics", "delete", topic)
    assert (done.code, done.out) == (2, "")
    assert "say --yes" in done.err
    assert client.topic(topic).name == topic


def test_delete_without_standard_input(
    ask: Run, client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    done = ask("topics", "delete", topic)
    assert (done.code, done.out) == (2, "")
    assert "say --yes" in done.err
    assert client.topic(topic).name == topic
    assert ask("topics", "delete", topic, "--yes").code == 0


@pytest.mark.parametrize("agreed", [True, False])
def test_delete_asks_on_a_terminal(
    ask: Run,
    client: LanceClient,
    topic: str,
    agreed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _fill(client, topic)
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return agreed

    monkeypatch.setattr(type(sys.stdin), "isatty", lambda _: True, raising=False)
    monkeypatch.setattr(click, "confirm", confirm)
    done = ask("topics", "delete", topic)
    size = sum(len(v or b"") for v in ROWS["value"].to_pylist())
    assert asked[0].startswith(f"Delete topic {topic} with 7 records (")
    assert size > 0
    if agreed:
        assert (done.code, done.err) == (0, "")
    else:
        assert done == (1, "", "nothing was deleted\n")
        assert client.topic(topic).name == topic


def test_delete_by_number(ask: Run, client: LanceClient, topic: str) -> None:
    info = client.topic(topic)
    assert ask("topics", "delete", f"id:{info.id}", "-y").code == 0
    assert topic not in [info.name for info in client.topics()]


def test_retention(ask: Run, client: LanceClient, topic: str) -> None:
    assert ask("topics", "retention", topic) == (0, "no limit\n", "")
    done = ask("topics", "retention", topic, "--max-age", "2h", "--max-bytes", "5m")
    assert done == (0, "2h, 5m\n", "")
    # What is not given stays.
    assert ask("topics", "retention", topic, "--max-bytes", "7").out == "2h, 7\n"
    assert ask("topics", "retention", topic, "--max-age", "0").out == "7\n"
    assert client.topic(topic).retention == Retention(0, 7)
    assert ask("topics", "retention", topic) == (0, "7\n", "")


def test_retention_where_the_server_says_nothing(
    ask: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        retention = None

    monkeypatch.setattr(LanceClient, "topic", lambda *_: Silent())
    assert ask("topics", "retention", topic).out == "-\n"
    done = ask("topics", "retention", topic, "--max-age", "1h")
    assert done.code == 2 and "give --max-age and --max-bytes" in done.err
    done = ask("topics", "retention", topic, "--max-age", "1h", "--max-bytes", "0")
    assert done == (0, "1h\n", "")


def test_group_has_help(run: Run) -> None:
    done = run("topics", "--help")
    for name in ("list", "create", "delete", "describe", "retention", "auth"):
        assert f"  {name} " in done.out
        assert run("topics", name, "--help").code == 0
