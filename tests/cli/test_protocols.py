"""The commands with other protocols than LWP, on the topics of one broker."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.log import connect
from lance_spark.errors import TopicAlreadyExists, Unsupported
from lance_spark.model import Buffer
from lance_spark.offset import OffsetMark, StreamOffset, TopicPlace
from lance_spark.wire import fluvio, kimberlite, rustlog, tank
from tests.broker.kit import eventually, make_records
from tests.child import Child
from tests.cli.checkpoint import write_batch, write_checkpoint
from tests.cli.conftest import Run
from tests.cli.test_broker import ENVIRONMENT
from tests.client.rustlog.field import FieldServer

ROOT = Path(__file__).parent.parent.parent
PROTOCOLS = ("rustlog", "tank", "fluvio")
TypeIn = Callable[[bytes], None]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    served = dict.fromkeys([*PROTOCOLS, "kimberlite"], "127.0.0.1:0")
    with EmbeddedBroker(fsync="none", **served) as broker:
        yield broker


def _url(broker: EmbeddedBroker, protocol: str) -> str:
    return f"{protocol}://{broker.address_of(protocol)}"


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ask(run: Run, broker: EmbeddedBroker, protocol: str) -> Run:
    """Run a command against the broker, by one of the protocols."""

    def call(*arguments: object) -> object:
        return run(*arguments, "--servers", _url(broker, protocol))

    return call  # type: ignore[return-value]


def test_broker_says_where_each_protocol_is(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(
        'tank = "127.0.0.1:0"\npartitions_max = 2\nidle_timeout_other_s = 9.5\n'
    )
    program = [sys.executable, "-m", "lance_spark", "broker"]
    places = ["--listen", "127.0.0.1:0", "--rustlog", "127.0.0.1:0"]
    places += ["--fluvio", "127.0.0.1:0"]
    files = ["--data-dir", tmp_path / "data", "--config", tmp_path / "broker.toml"]
    with Child(
        [*program, *places, *map(str, files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        lines = [process.stdout.readline() for _ in range(5)]
        served = dict(line.rstrip("\n").split(" on ", 1) for line in lines)
        assert list(served) == [
            *("lance-spark broker listening", *PROTOCOLS, "fluvio_spu")
        ]
        for name in PROTOCOLS:
            with connect(f"{name}://{served[name]}") as client:
                assert client.topics() == []
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30) == ("stopped\n", "")


def test_topics(ask: Run, protocol: str) -> None:
    assert ask("topics", "list") == (0, "", "no topics\n")
    done = ask("topics", "create", "orders", "--partitions", 2)
    assert done == (0, "topic orders created, 2 partitions\n", "")
    assert ask("topics", "create", "alone").out == "topic alone created, 1 partition\n"
    first = 1 if protocol == "tank" else 0
    rows = [line.split() for line in ask("topics", "list").lines]
    assert rows == [
        ["name", "partition", "log", "start", "log", "end"],
        *(["alone", "0", str(first), str(first)],),
        *(["orders", str(n), str(first), str(first)] for n in (0, 1)),
    ]
    (listed,) = ask("topics", "describe", "orders", "--json").lines
    assert json.loads(listed) == {
        "name": "orders",
        "partitions": [
            {"partition": n, "log_start": first, "log_end": first} for n in (0, 1)
        ],
    }
    done = ask("topics", "create", "orders")
    assert (done.code, done.out) == (1, "") and "exists" in done.err
    done = ask("topics", "describe", "nope")
    assert done.code == 1 and "there is no topic 'nope'" in done.err


def test_produce_and_consume(ask: Run, type_in: TypeIn, protocol: str) -> None:
    type_in(b"one\ntwo\n")
    done = ask("produce", "lines", "--create", "--partitions", 2, "--partition", 1)
    assert done == (0, "", "2 records, 6 bytes acknowledged\n")
    assert ask("consume", "lines").out == "one\ntwo\n"
    assert ask("consume", "lines", "--partition", 0).out == ""
    assert ask("consume", "lines", "-o", "hex", "--max", 1).out == "6f6e65\n"
    first = 1 if protocol == "tank" else 0
    found = [json.loads(line) for line in ask("consume", "lines", "-o", "json").lines]
    for number, (row, value) in enumerate(zip(found, ["one", "two"], strict=True)):
        if protocol in ("tank", "fluvio"):
            assert row.pop("key") is None and row.pop("timestamp_ns") > 10**18
        at = {"topic": "lines", "partition": 1, "offset": first + number}
        assert row == {**at, "value": value}
    at = ("consume", "lines", "--partition", 1)
    assert ask(*at, "--from", first + 1).out == "two\n"
    assert ask(*at, "--to", first + 1).out == "one\n"
    assert ask(*at, "--from", "end") == (0, "", "")
    done = ask(*at, "--from", 9)
    assert done.err == (
        f"lance-spark: offset 9 is not there yet, starting at {first + 2}\n"
    )


def test_follow(ask: Run, broker: EmbeddedBroker, protocol: str) -> None:
    with connect(_url(broker, protocol)) as client:
        client.append("t", [b"a"], 0, create=True, partitions=2)
        client.append("t", [b"b", b"c"], 1)
    done = ask("consume", "t", "--follow", "--max", 3)
    assert done.code == 0 and sorted(done.lines) == ["a", "b", "c"]
    one = ask("consume", "t", "--follow", "--partition", 1, "--max", 2)
    assert (one.code, one.lines) == (0, ["b", "c"])


@pytest.mark.parametrize("bounds", [("--from", "end"), ("--from", 1, "--to", 99)])
def test_follow_a_server_that_forgets(run: Run, bounds: tuple[object, ...]) -> None:
    """It must not wait for a number that is far away by now."""
    with FieldServer() as field, ThreadPoolExecutor(1) as pool:
        field.fill("t", [b"a"] * 10)
        servers = ("--servers", f"rustlog://{field.address}")
        followed = pool.submit(run, "consume", "t", "--follow", *bounds, *servers)
        assert eventually(lambda: field.asked["Fetch"] > 12)
        with field.lock:
            field.topics["t"] = [[b"b"] * 2]
        field.drop()
        done = followed.result(60)
    assert done.code == 1 and "b" not in done.lines
    assert "is not the one that was read there" in done.err


def test_keys_choose_the_partition(
    run: Run, broker: EmbeddedBroker, type_in: TypeIn
) -> None:
    to = ("--servers", broker.address_of("tank"), "--protocol", "tank")
    type_in(b"a=1\nb=2\nc=3\na=4\n")
    arguments = ("--create", "--partitions", 3, "--compression", "snappy")
    done = run("produce", "t", "--key-separator", "=", *arguments, *to)
    assert done.code == 0, done.err
    with connect(_url(broker, "tank")) as client:
        tables = {
            n: pa.Table.from_batches(client.read("t", n)).to_pylist()
            for n, at in client.bounds("t").items()
            if at.end > at.start
        }
    homes = {row["key"]: n for n, rows in tables.items() for row in rows}
    (rows,) = (rows for n, rows in tables.items() if n == homes[b"a"])
    assert [r["value"] for r in rows if r["key"] == b"a"] == [b"1", b"4"]
    assert len(homes) == 3 and len(set(homes.values())) > 1
    done = run("consume", "t", "--key-separator", ":", *to)
    assert sorted(done.lines) == ["a:1", "a:4", "b:2", "c:3"]


def test_rows_that_a_protocol_does_not_take(
    run: Run, broker: EmbeddedBroker, type_in: TypeIn
) -> None:
    to = ("--servers", _url(broker, "tank"))
    type_in(b"k=v\n" + b"x" * 256 + b"=v\n")
    done = run("produce", "t", "--create", "--key-separator", "=", *to)
    assert done.code == 1
    # The text behind it is the driver's.
    assert "lance-spark: a line from 1 to 2: " in done.err
    assert "256 bytes" in done.err and "255" in done.err
    to = ("--servers", _url(broker, "rustlog"))
    for flags, said in (
        (["--key-separator", "="], "keys"),
        (["--timestamp"], "times"),
        (["--type", "json"], "types"),
        (["--compression", "snappy"], "snappy compression"),
    ):
        type_in(b"x\n")
        done = run("produce", "t", *flags, *to)
        text = f"{flags[0]}: rustlog has no {said}: leave it out"
        assert done.code == 1 and text in done.err, flags
    done = run("consume", "t", "--key-separator", "=", *to)
    assert done.code == 1 and "rustlog has no keys" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topics", "delete", "t", "--yes"], "has no request for this"),
        (["topics", "retention", "t"], "`lance-spark topics retention` needs LWP"),
        (["groups"], "`lance-spark groups` needs LWP"),
        (["bench", "--records", 1], "needs LWP"),
        (["consume", "t", "--group", "g"], "committed by LWP only"),
        (["topics", "create", "q", "--max-age", "1d"], "can't be told what to drop"),
        (["consume", "id:1"], "has no topic ids"),
    ],
)
def test_what_only_lwp_has(ask: Run, arguments: list[object], said: str) -> None:
    done = ask(*arguments)
    assert (done.code, done.out) == (2, "") and said in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["consume", "t", "--from", 3], "give --partition, too"),
        (["consume", "t", "--from", "2024-05-01T12:00:00Z"], "can't look for a time"),
        (["consume", "t", "--partition", 7], "has no partition 7, only 0 to 1"),
        (["produce", "t", "--partition", 7], "has no partition 7, only 0 to 1"),
        (["produce", "nope"], "there is no topic 'nope': create it with --create"),
        (["topics", "list", "--token", "x"], "has no place for --token"),
        (["topics", "list", "--checksum", "crc32"], "has no place for --checksum"),
        (["topics", "list", "--protocol", "lance"], "is not that of --servers"),
    ],
)
def test_errors(ask: Run, type_in: TypeIn, arguments: list[object], said: str) -> None:
    ask("topics", "create", "t", "--partitions", 2)
    type_in(b"x\n")
    done = ask(*arguments)
    assert (done.code, done.out) == (1, "") and said in done.err


def test_positions_that_a_protocol_has_not(run: Run, broker: EmbeddedBroker) -> None:
    with connect(_url(broker, "tank")) as client:
        client.append("t", [b"a"], create=True)
    for option in ("--from", "--to"):
        done = run("consume", "t", option, 0, "--servers", _url(broker, "tank"))
        text = f"lance-spark: {option} 0: positions of tank begin at 1\n"
        assert (done.code, done.out, done.err) == (1, "", text)
    for place in (("--from", 0), ("--to", 0)):
        done = run("consume", "t", *place, "--servers", _url(broker, "rustlog"))
        assert done.code == 0 and done.lines == ["a"] * (place[0] == "--from")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("protocol", "served"),
    [("tank", "rustlog"), ("rustlog", "tank"), ("lance", "tank")],
)
def test_port_of_another_protocol(
    run: Run, broker: EmbeddedBroker, protocol: str, served: str
) -> None:
    address = broker.address_of(served)
    done = run("topics", "list", "--servers", f"{protocol}://{address}")
    assert (done.code, done.out) == (1, "")
    assert f"{address}: the answer is not {protocol} (" in done.err
    assert "another protocol may be spoken there" in done.err


def test_lwp_has_no_partitions(
    run: Run, broker: EmbeddedBroker, type_in: TypeIn
) -> None:
    to = ("--servers", f"lance://{broker.address}")
    assert run("topics", "create", "t", *to).code == 0
    type_in(b"x\n")
    for command in (
        ["topics", "create", "u", "--partitions", 2],
        ["produce", "t", "--partition", 0],
        ["consume", "t", "--partition", 0],
    ):
        done = run(*command, *to)
        assert (done.code, done.out) == (2, "") and "partition" in done.err
    # What one protocol has written another one reads.
    type_in(b"x\n")
    assert run("produce", "t", *to).code == 0
    for protocol in PROTOCOLS:
        assert run("consume", "t", "-s", _url(broker, protocol)).out == "x\n"


def test_every_driver_creates_topics(broker: EmbeddedBroker) -> None:
    for protocol in ("lance", *PROTOCOLS):
        with connect(_url(broker, protocol)) as client:
            client.driver.create_topic(f"by-{protocol}")
            with pytest.raises(TopicAlreadyExists):
                client.driver.create_topic(f"by-{protocol}")
            names = [topic.name for topic in client.topics()]
            assert f"by-{protocol}" in names
    with (
        connect(_url(broker, "lance")) as client,
        pytest.raises(Unsupported, match="a topic with 2 partitions"),
    ):
        client.driver.create_topic("more", 2)


def test_token_of_the_environment_is_for_lwp(
    ask: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANCE_TOKEN", "secret")
    assert ask("topics", "list").code == 0


def test_port_is_the_protocols(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("topics", "list", "-s", "tank://127.0.0.2", "--timeout", "1s")
    assert done.code == 1 and "127.0.0.2:11011" in done.err


def test_no_server_at_the_start_is_an_error_at_once(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    for protocol in (*PROTOCOLS, "kimberlite"):
        done = run("consume", "t", "-s", f"{protocol}://{address}")
        text = f"lance-spark: could not connect to {address}: Connection refused\n"
        assert (done.code, done.out, done.err) == (1, "", text), protocol


# Checkpoints.


def test_offsets(run: Run, broker: EmbeddedBroker, tmp_path: Path) -> None:
    with connect(_url(broker, "tank")) as client:
        client.append("orders", [b"a", b"b", b"c"], 0, create=True, partitions=2)
    mark = OffsetMark(1, 0xABC)
    places = {
        "orders": TopicPlace(0, 0, ((0, 2), (1, 5)), ((0, mark),)),
        "away": TopicPlace.at(0, 0, 1),
    }
    path = write_checkpoint(tmp_path / "checkpoint")
    document = StreamOffset.of(places).to_document("tank")
    write_batch(path, 0, [json.dumps(document)])
    done = run("offsets", path)
    assert done.code == 0 and "source 0: tank, 2 topics" in done.lines
    rows = [" ".join(line.split()) for line in done.lines[-4:]]
    assert rows == [
        "topic partition offset mark",
        "away 0 1 -",
        "orders 0 2 1 record, crc32c 00000abc",
        "orders 1 5 -",
    ]
    to = ("--servers", _url(broker, "tank"))
    rows = [" ".join(line.split()) for line in run("offsets", path, *to).lines[-4:]]
    assert rows[0] == "topic partition offset mark log start log end behind state"
    assert rows[1] == "away 0 1 - - - - the topic is gone"
    assert rows[2].endswith("00000abc 1 4 2 the same topic")
    assert rows[3].endswith("1 1 0 4 records gone from the log's end")
    (source,) = json.loads(run("offsets", path, "--json", *to).out)["sources"]
    assert (source["lance"], source["protocol"]) == (False, "tank")
    assert source["offset"] == document
    assert source["topics"][1] == {
        "topic": "orders",
        "partition": 0,
        "offset": 2,
        "mark": mark.to_document(),
        "log_start": 1,
        "log_end": 4,
        "lag_records": 2,
        "state": "same",
    }
    # It was longer when the position was written down.
    marked = {"orders": TopicPlace(0, 0, ((0, 2),), ((0, replace(mark, end=9)),))}
    write_batch(path, 0, [json.dumps(StreamOffset.of(marked).to_document("tank"))])
    state = run("offsets", path, *to).lines[-1]
    assert state.endswith("2  5 records gone from the log's end")
    done = run("offsets", path, "--servers", broker.address)
    assert done.code == 2 and "the query reads tank, not lance" in done.err


@pytest.mark.parametrize("protocol", ["fluvio", "kimberlite"])
def test_offsets_by_others(
    run: Run, broker: EmbeddedBroker, tmp_path: Path, protocol: str
) -> None:
    to = ("--servers", _url(broker, protocol))
    with connect(_url(broker, protocol)) as client:
        client.append("orders", [b"a", b"b", b"c"], create=True)
    mark = OffsetMark(2, 0xABC, end=2)
    places = {
        "away": TopicPlace.at(0, 0, 1),
        "orders": TopicPlace(0, 0, ((0, 2),), ((0, mark),)),
    }
    path = write_checkpoint(tmp_path / "checkpoint")
    document = StreamOffset.of(places).to_document(protocol)
    write_batch(path, 0, [json.dumps(document)])
    done = run("offsets", path)
    assert done.code == 0 and f"source 0: {protocol}, 2 topics" in done.lines
    last = " ".join(done.lines[-1].split())
    assert last == "orders 0 2 2 records, crc32c 00000abc"
    done = run("offsets", path, *to)
    rows = [" ".join(line.split()) for line in done.lines[-2:]]
    assert rows[1] == "orders 0 2 2 records, crc32c 00000abc 0 3 1 the same topic"
    # Kimberlite's servers have every stream that they are asked for, and it is empty.
    is_found = protocol == "kimberlite"
    gone = (
        "0 0 0 1 record gone from the log's end" if is_found else "- - - the topic is"
    )
    assert rows[0].startswith(f"away 0 1 - {gone}")
    assert ("stream 'away' is empty, and may be new" in done.err) is is_found
    (source,) = json.loads(run("offsets", path, "--json", *to).out)["sources"]
    assert source["offset"] == document and source["protocol"] == protocol
    states = [topic["state"] for topic in source["topics"]]
    assert states == ["cut" if is_found else "gone", "same"]
    other = "rustlog" if is_found else "kimberlite"
    done = run("offsets", path, "--servers", _url(broker, other))
    assert done.code == 2 and f"the query reads {protocol}, not {other}" in done.err


# Captures.


def _join(*messages: Sequence[Buffer]) -> bytes:
    return b"".join(bytes(part) for parts in messages for part in parts)


EVENTS = make_records(b"one", b"two")
BATCH = fluvio.write_records(EVENTS, codec=fluvio.Codec.NONE)
# What a client has sent; the page has these captures, too.
CAPTURES = {
    "rustlog": _join(
        rustlog.encode_message(rustlog.CreateTopic("orders", 2), as_json=False),
        rustlog.encode_message(rustlog.ListTopics(), as_json=False),
    ),
    "kimberlite": _join(
        *(
            kimberlite.encode_message(kimberlite.Request(n, 1, body), kimberlite.V5)
            for n, body in (
                (1, kimberlite.Handshake(5, "sesame")),
                (2, kimberlite.CreateStream("orders")),
                (
                    3,
                    kimberlite.AppendEvents(
                        1 << 32 | 1, make_records(b"one", b"two"), 0
                    ),
                ),
            )
        )
    ),
    "fluvio": _join(
        fluvio.encode_message(fluvio.List("Topic", correlation_id=1)),
        fluvio.encode_message(
            fluvio.Produce(
                timeout_ms=30_000,
                topics=(fluvio.WriteTopic("orders", (fluvio.Write(0, BATCH),)),),
                correlation_id=2,
            )
        ),
    ),
}


@pytest.mark.parametrize("protocol", CAPTURES)
def test_inspect(run: Run, tmp_path: Path, protocol: str) -> None:
    file, capture = tmp_path / "capture", CAPTURES[protocol]
    file.write_bytes(capture)
    flags = ("--protocol", protocol)
    done = run("inspect", *flags, "--full", file)
    assert (done.code, done.err) == (0, "")
    assert "sesame" not in done.out
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert f"--full capture\n{done.out}```\n" in page
    # Nothing but a magic tells frames from other bytes.
    bare = run("inspect", "--full", file)
    assert bare == done if protocol == "kimberlite" else bare.code == 1
    # What is cut off is shown as far as it goes.
    last = int(done.lines[-1].split()[0])
    file.write_bytes(capture[:-1])
    cut = run("inspect", *flags, "--full", file)
    assert cut.code == 1 and cut.lines[2:] == done.lines[2:-1]
    assert f"no frame at byte {last}: stream ended in a frame" in cut.err


def test_inspect_keeps_to_a_direction(run: Run, tmp_path: Path) -> None:
    """A frame of version 1 may fit both; it is what the one before it was."""
    wire = kimberlite.WIRES["v1-postcard"]
    answer = kimberlite.ReadEventsResponse(make_records(b"a"), 1)
    capture = _join(
        *(
            kimberlite.encode_message(kimberlite.Response(n, body), wire)
            for n, body in ((1, kimberlite.HandshakeResponse(1)), (3, answer))
        )
    )
    (tmp_path / "capture").write_bytes(capture)
    done = run("inspect", "--full", tmp_path / "capture")
    assert "ReadEventsResponse(events=1 records" in done.lines[-1]
    done = run("inspect", "--full", "--skip", 1, tmp_path / "capture")
    assert "Request(id=3 tenant_id=6 body=CreateStream(name='a'" in done.lines[-1]


def test_inspect_tank(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "capture"
    parts = tank.encode_message(tank.CreateTopic(7, "orders", 2))
    file.write_bytes(b"".join(map(bytes, parts)) + b"\x04\0\0\0\0")
    done = run("inspect", "--protocol", "tank", file)
    assert done.code == 1 and "no frame at byte " in done.err
    assert "CreateTopic(request_id=7" in done.out
    assert "unknown message 0x04" in done.err


def test_kimberlite(run: Run, broker: EmbeddedBroker, type_in: TypeIn) -> None:
    to = ("--servers", _url(broker, "kimberlite"))
    # Nothing tells whether a stream was there before.
    for _ in range(2):
        done = run("topics", "create", "s", *to)
        assert (done.code, done.out) == (0, "topic s is there, 1 partition\n")
    type_in(b"x\ny\n")
    done = run("produce", "s", *to)
    assert done.code == 0 and "stream 's' is empty, and may be new" in done.err
    done = run("consume", "s", *to)
    assert (done.lines, done.err) == (["x", "y"], "")
    for command in (["consume", "t"], ["topics", "describe", "u"], ["produce", "v"]):
        type_in(b"x\n")
        done = run(*command, *to)
        assert done.code == 0 and f"{command[-1]!r} is empty, and may" in done.err
        assert "check the name, or give the stream's id" in done.err
    type_in(b"x\n")
    assert run("produce", "w", "--create", *to).err == "1 record, 1 byte acknowledged\n"
    for command in (["consume", "s"], ["topics", "describe", "s"], ["produce", "s"]):
        type_in(b"x\n")
        done = run(*command, "--stream-id", 77, *to)
        text = "tenant 1 has no stream with the id 77"
        assert done.code == 1 and text in done.err
    for command in (["topics", "create", "p"], ["produce", "p", "--create"]):
        type_in(b"x\n")
        done = run(*command, "--partitions", 2, *to)
        assert done.code == 1 and "kimberlite has no" in done.err
    assert run("consume", "s", "--tenant", 1, "--wire", "v3", *to).lines == ["x", "y"]
    assert run("consume", "s", "-s", _url(broker, "fluvio")).lines == ["x", "y"]
    done = run("topics", "list", *to)
    assert (done.code, done.out) == (2, "")
    assert "kimberlite can't list its topics: name one" in " ".join(done.err.split())
    assert "there is no" not in run("topics", "describe", "s", *to).err
    for flags, said in (
        (["--isolation", "read_committed"], "has no place for --isolation"),
        (["--wire", "v9"], "wire 'v9' is unknown"),
    ):
        done = run("consume", "s", *flags, *to)
        assert done.code == 1 and said in done.err
    done = run("consume", "s", "--tenant", 1, "-s", _url(broker, "fluvio"))
    assert done.code == 1 and "fluvio has no place for --tenant" in done.err


def test_compressions_and_isolation_of_fluvio(
    run: Run, broker: EmbeddedBroker, type_in: TypeIn
) -> None:
    to = ("--servers", _url(broker, "fluvio"))
    for codec in ("none", "gzip", "lz4", "snappy", "zstd"):
        type_in(b"v\n" * 3)
        assert run("produce", codec, "--create", "--compression", codec, *to).code == 0
        done = run("consume", codec, "--isolation", "read_committed", *to)
        assert done.lines == ["v"] * 3
    done = run("consume", "none", "--isolation", "maybe", *to)
    assert done.code == 1 and "isolation 'maybe' is unknown" in done.err
