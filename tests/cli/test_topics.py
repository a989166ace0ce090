"""`lance-spark topics`: list, create, delete, retention."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import trustme

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer, consumer_id
from lance_spark.errors import TopicNotFound
from lance_spark.model import Retention
from lance_spark.store import Store
from lance_spark.wire.lwp import scan
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
def test_a_topic_with_partitions_is_deleted_as_a_whole(run: Run) -> None:
    with EmbeddedBroker(fsync="none", tank="127.0.0.1:0") as broker:
        tank, lance = f"tank://{broker.address_of('tank')}", broker.address
        assert run("topics", "create", "o", "--partitions=3", "-s", tank).code == 0
        done = run("topics", "delete", "o/1", "--yes", "-s", lance)
        assert done.code == 1 and "partition of topic 'o', which has 3" in done.err
        done = run("consume", "o", "-s", lance)
        assert done.code == 1 and "name one, as in 'o/0', or use a prot" in done.err
        done = run("topics", "delete", "o", "--yes", "-s", lance)
        assert done == (0, "topic o deleted, 3 partitions\n", "")
        assert broker.service.store.topics() == []
        done = run("topics", "delete", "o", "--yes", "-s", lance)
        assert done.code == 1 and "no topic is named 'o'" in done.err


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


def test_a_group_can_not_command_the_terminal(
    ask: Run, client: LanceClient, topic: str
) -> None:
    name = "etl\x1b]0;owned\x07"
    client.commit_offset(topic, consumer_id(name), 0)
    client.join_group(name, [topic], member="me")
    done = ask("topics", "describe", topic)
    client.leave_group(name, "me")
    assert "\x1b" not in done.out
    assert ascii(name) in done.out


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


NO_RULE = "topic events, id 1\nno rule: every client that may connect may use it\n"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return path


def _stored(path: Path) -> object:
    with Store(path, framing=scan) as store:
        return store.topic(1).metadata.auth


def test_set_show_change_clear(run: Run, store_path: Path, authority: Path) -> None:
    command = ("topics", "auth", "--data-dir", store_path, "events")
    assert run(*command) == (0, NO_RULE, "")
    names = ("--allow", "b.example", "--allow", "a.example")
    done = run(*command, "--mtls", *names, "--client-ca", authority)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [
        "topic events, id 1",
        "certificate     required",
        f"client CA       {authority}",
        "allowed names   a.example, b.example",
        "allowed topics  any",
    ]
    assert _stored(store_path) == {
        "mtls_enabled": True,
        "client_ca_path": str(authority),
        "allowed_cns": ["a.example", "b.example"],
        "allowed_topics": [],
    }
    assert run(*command) == done
    # What is not given stays.
    done = run(*command, "--allow-topic", 1, "--allow-topic", 7, "--allow", "c")
    assert done.lines[1:] == [
        "certificate     required",
        f"client CA       {authority}",
        "allowed names   c",
        "allowed topics  1, 7",
    ]
    done = run(*command, "--no-mtls")
    assert done.lines[1] == "certificate     not required"
    assert done.lines[3] == "allowed names   c"
    assert run(*command, "--clear") == (0, NO_RULE, "")
    assert _stored(store_path) is None


def test_path_of_the_authority_is_absolute(
    run: Run, store_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(authority.parent)
    command = ("topics", "auth", "--data-dir", store_path, "events", "--mtls")
    assert str(authority) in run(*command, "--client-ca", "ca.pem").out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["events", "--allow", "x"], 2, "say --mtls or --no-mtls too"),
        (["events", "--clear", "--mtls"], 2, "--clear goes with no other change"),
        (["events", "--mtls", "--client-ca", "missing.pem"], 1, "missing.pem"),
        (["events", "--mtls", "--allow", ""], 1, "not empty"),
        (["events", "--mtls", "--allow-topic", "x"], 2, "--allow-topic"),
        (["nowhere", "--mtls"], 1, "topic 'nowhere' not found"),
        (["id:99", "--mtls"], 1, "topic 99 not found"),
    ],
)
def test_mistakes_change_nothing(
    run: Run, store_path: Path, arguments: list[str], code: int, text: str
) -> None:
    done = run("topics", "auth", "--data-dir", store_path, *arguments)
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert code == 2 or done.err.count("\n") == 1
    assert _stored(store_path) is None


def test_default_topic(run: Run, store_path: Path) -> None:
    done = run("topics", "auth", "--data-dir", store_path, "id:0")
    assert done.lines[0] == "the default topic (id 0)"


def test_broker_has_the_directory(run: Run, store_path: Path) -> None:
    with Store(store_path, framing=scan):
        done = run("topics", "auth", "--data-dir", store_path, "events", "--mtls")
    assert (done.code, done.out) == (1, "")
    assert "already in use by process" in done.err and done.err.count("\n") == 1


def test_no_directory_is_made(run: Run, tmp_path: Path) -> None:
    done = run("topics", "auth", "--data-dir", tmp_path / "typo", "events")
    assert (done.code, done.out) == (1, "")
    assert "no such directory" in done.err
    assert list(tmp_path.iterdir()) == []
