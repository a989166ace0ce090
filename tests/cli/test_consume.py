"""`lance-spark consume`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli import consume
from lance_spark.cli.consume import (
    FORMATS,
    find_end,
    find_start,
    parse_end,
    parse_start,
)
from lance_spark.cli.main import main
from lance_spark.client import (
    LanceClient,
    Producer,
    RecordReader,
    SeekPosition,
    consumer_id,
)
from lance_spark.columnar.decode import decode
from lance_spark.columnar.encode import encode
from lance_spark.errors import ConnectionLost, OptionError, Unsupported
from tests.child import Child
from tests.cli.conftest import ROWS, Run

PYTHON = [sys.executable, "-m", "lance_spark"]


@pytest.fixture
def filled(client: LanceClient, topic: str) -> str:
    """Three records of ten bytes."""
    _send(client, topic, b"first", b"seco\xff", b"third")
    return topic


def _send(client: LanceClient, topic: str, *values: bytes) -> None:
    with Producer(client, topic) as producer:
        for value in values:
            producer.send(value)


def test_raw(
    server: EmbeddedBroker,
    filled: str,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert main(["consume", filled, "-s", server.address]) == 0
    assert capsysbinary.readouterr() == (b"first\nseco\xff\nthird\n", b"")


def test_many_records(ask: Run, client: LanceClient, topic: str) -> None:
    values = [b"%d" % n for n in range(3000)]
    _send(client, topic, *values)
    assert ask("consume", topic).out.encode().split() == values


def test_json(ask: Run, client: LanceClient, topic: str) -> None:
    with Producer(client, topic) as producer:
        producer.write(ROWS)
    done = ask("consume", topic, "--output", "json")
    assert (done.code, done.err) == (0, "")
    documents = [json.loads(line) for line in done.lines]
    assert len(documents) == 7
    assert documents[4] == {
        "topic": topic,
        "offset": 60,
        "type": 18,
        "key": "k2",
        "value": "both",
        "timestamp_ns": 1_700_000_000_123_456_789,
    }


def test_json_has_every_timestamp(ask: Run, client: LanceClient, topic: str) -> None:
    stamps = [0, 2**63 - 1, 2**63, 2**64 - 1]
    with Producer(client, topic) as producer:
        for stamp in stamps:
            producer.send(b"x", timestamp_ns=stamp)
    done = ask("consume", topic, "--output", "json")
    assert (done.code, done.err) == (0, "")
    assert [json.loads(line)["timestamp_ns"] for line in done.lines] == stamps


def test_json_has_the_name_of_a_number(
    ask: Run, client: LanceClient, filled: str
) -> None:
    number = client.topic_id(filled)
    done = ask("consume", f"id:{number}", "-o", "json", "--max", 1)
    assert json.loads(done.out)["topic"] == filled


def test_hex_and_keys(ask: Run, client: LanceClient, topic: str) -> None:
    with Producer(client, topic) as producer:
        producer.send(b"v", key=b"k")
    assert ask("consume", topic, "-o", "hex").out == "76\n"
    assert ask("consume", topic, "--key-separator", "\\t").out == "k\tv\n"
    done = ask("consume", topic, "-o", "hex", "--key-separator", ":")
    assert done.out == "6b:76\n"


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["--from", "beginning"], "a b c"),
        (["--from", "end"], ""),
        (["--from", "6"], "b c"),
        (["--to", "6"], "a"),
        (["--to", "7"], "a b"),
        (["--to", "999"], "a b c"),
        (["--from", "6", "--to", "end"], "b c"),
        (["--max", "2"], "a b"),
        (["--max", "0"], ""),
        (["--from", "6", "--max", "1"], "b"),
        (["--from", "1970-01-01"], "a b c"),
        (["--from", "2262-01-01"], ""),
        (["--follow", "--max", "3"], "a b c"),
        (["--follow", "--to", "12"], "a b"),
    ],
)
def test_range(
    ask: Run, client: LanceClient, topic: str, arguments: list[str], out: str
) -> None:
    _send(client, topic, b"a", b"b", b"c")
    done = ask("consume", topic, *arguments)
    assert (done.code, done.out.split(), done.err) == (0, out.split(), "")


def test_start_inside_a_record(ask: Run, client: LanceClient, topic: str) -> None:
    _send(client, topic, b"a", b"b")
    done = ask("consume", topic, "--from", 3)
    note = "lance-spark: offset 3 is inside a record, starting at 6\n"
    assert done == (0, "b\n", note)


def test_empty_topic(ask: Run, topic: str) -> None:
    assert ask("consume", topic) == (0, "", "")


def test_no_such_topic(ask: Run) -> None:
    done = ask("consume", "nowhere")
    assert (done.code, done.out) == (1, "")
    assert "'nowhere'" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--from", "soon"], "is not a time"),
        (["--to", "beginning"], "give end, or an offset"),
        (["--follow", "--to", "end"], "leave one of them out"),
        (["-o", "json", "--key-separator", ":"], "json has the key"),
        (["--max", "-1"], "--max"),
        (["-o", "xml"], "--output"),
        (["--from", "2", "--to", "1"], "--from 2 is behind --to 1: exchange them"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], text: str) -> None:
    done = run("consume", "t", *arguments)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


def test_group_goes_on(ask: Run, client: LanceClient, topic: str) -> None:
    _send(client, topic, b"a", b"b", b"c")
    assert ask("consume", topic, "--group", "g", "--max", 2).out == "a\nb\n"
    assert client.committed_offset(topic, consumer_id("g")) == 12
    assert ask("consume", topic, "--consumer", "g").out == "c\n"
    assert ask("consume", topic, "--group", "g").out == ""
    # Who says where to start starts there.
    done = ask("consume", topic, "--group", "g", "--from", "beginning", "--max", 1)
    assert done.out == "a\n"
    assert client.committed_offset(topic, consumer_id("g")) == 6
    assert client.committed_offset(topic, consumer_id("other")) is None


def test_commits_now_and_then(
    ask: Run, client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send(client, topic, b"a")
    committed: list[int] = []

    def commit(self: LanceClient, topic: str, consumer: int, offset: int) -> int:
        committed.append(offset)
        return offset

    monkeypatch.setattr(LanceClient, "commit_offset", commit)
    monkeypatch.setattr(consume, "_COMMIT_S", 0.0)
    ask("consume", topic, "--group", "g")
    assert committed == [6]  # At once, and not again at the end.
    monkeypatch.setattr(consume, "_COMMIT_S", 3600.0)
    ask("consume", topic, "--group", "g", "--from", "0")
    assert committed == [6, 6]


@pytest.mark.parametrize(
    ("error", "code", "committed"),
    [
        (KeyboardInterrupt(), 130, 6),
        (ConnectionLost("it has gone"), 1, None),
    ],
)
def test_what_is_committed_when_it_is_cut_short(
    ask: Run,
    client: LanceClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    committed: int | None,
) -> None:
    _send(client, topic, b"a")
    real, calls = RecordReader.next_chunk, []

    def next_chunk(self: RecordReader, wait_s: float) -> object:
        calls.append(wait_s)
        if len(calls) > 1:
            raise error
        return real(self, wait_s)

    monkeypatch.setattr(RecordReader, "next_chunk", next_chunk)
    done = ask("consume", topic, "--group", "cut", "--follow")
    assert (done.code, done.out) == (code, "a\n")
    assert client.committed_offset(topic, consumer_id("cut")) == committed


@pytest.mark.usefixtures("terminal")
def test_progress_while_the_output_goes_elsewhere(
    ask: Run, client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send(client, topic, b"a")
    # Both are the same class here; only standard error is to be a terminal.
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: self is not sys.stdout)
    done = ask("consume", topic)
    assert "consuming" in done.err and "1 record, 6 bytes" in done.err
    assert done.err.endswith("\x1b[2K")
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True)
    assert ask("consume", topic).err == ""


def test_plain_server(run: Run, plain_server: EmbeddedBroker) -> None:
    to = ("-s", plain_server.address, "--checksum", "auto")
    with LanceClient(plain_server.address, checksum="crc32") as client:
        client.create_topic("p")
        _send(client, "p", b"a", b"b")
        assert run("consume", "p", *to) == (0, "a\nb\n", "")
        done = run("consume", "p", "--from", "2024-01-01", *to)
        assert done.code == 1 and "does not offer it" in done.err
        client.delete_topic("p")


def test_follow_until_interrupted(
    server: EmbeddedBroker, client: LanceClient, topic: str
) -> None:
    _send(client, topic, b"before")
    process = Child(
        [*PYTHON, "consume", topic, "-s", server.address, "-f", "--group", "f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "before\n"
        _send(client, topic, b"after")
        assert process.stdout.readline() == "after\n"
        # It commits while it waits, too.
        deadline_s = time.monotonic() + 30
        while client.committed_offset(topic, consumer_id("f")) != 21:
            assert time.monotonic() < deadline_s
            client.fetch(topic, 21, 1, wait_s=0.05)
        process.send_signal(signal.SIGINT)
        assert (process.stdout.read(), process.stderr.read()) == ("", "\n")
        assert process.wait(30) == 130


# Buffered or not: an unbuffered write may be short, which must not go unnoticed.
UNBUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"])
# More than a pipe holds, and printed by one write.
LONG = b"x" * 1024 * 1024


def _start(server: EmbeddedBroker, topic: str, unbuffered: str) -> Child:
    """Print to a pipe that is full; who reads a byte knows that the write has begun."""
    return Child(
        [*PYTHON, "consume", topic, "-s", server.address, "--group", "g"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )


@UNBUFFERED
def test_reader_goes_away_within_a_write(
    server: EmbeddedBroker, client: LanceClient, topic: str, unbuffered: str
) -> None:
    _send(client, topic, LONG)
    with _start(server, topic, unbuffered) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141
    # Not all of it was printed, so it comes again.
    assert client.committed_offset(topic, consumer_id("g")) is None


@UNBUFFERED
def test_stopped_within_a_write(
    server: EmbeddedBroker, client: LanceClient, topic: str, unbuffered: str
) -> None:
    _send(client, topic, LONG, b"last")
    with _start(server, topic, unbuffered) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        # As by Ctrl-Z, which makes the system end the write early.
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, b"")
    assert b"x" + out == LONG + b"\nlast\n"


@UNBUFFERED
def test_file_gets_no_longer(
    server: EmbeddedBroker,
    client: LanceClient,
    topic: str,
    unbuffered: str,
    tmp_path: Path,
) -> None:
    _send(client, topic, LONG)
    # As a disk that is full soon: the first write is short, the next one fails.
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh"]
    with (tmp_path / "out").open("wb") as file:
        done = subprocess.run(
            [*limited, *PYTHON, "consume", topic, "-s", server.address, "--group", "g"],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    assert done.returncode == 1
    assert "File too large" in done.stderr and done.stderr.count("\n") == 1
    assert client.committed_offset(topic, consumer_id("g")) is None


def test_reader_goes_away(
    server: EmbeddedBroker, client: LanceClient, topic: str
) -> None:
    _send(client, topic, *[b"x" * 100_000] * 80)  # More than any pipe holds.
    process = Child(
        [*PYTHON, "consume", topic, "-s", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(30) == 141


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", SeekPosition.BEGINNING),
        ("end", SeekPosition.END),
        ("0", SeekPosition.offset(0)),
        ("4096", SeekPosition.offset(4096)),
        ("1970-01-01T00:00:01Z", SeekPosition.time_ns(1_000_000_000)),
    ],
)
def test_start(text: str, position: SeekPosition) -> None:
    assert parse_start(text) == position


@pytest.mark.parametrize("text", ["", "start", "-1", "\u0661", str(2**64)])
def test_no_start(text: str) -> None:
    with pytest.raises(OptionError):
        parse_start(text)
    with pytest.raises(OptionError):
        parse_end(text)


def test_end() -> None:
    assert parse_end("end") is SeekPosition.END
    assert parse_end("7") == SeekPosition.offset(7)
    with pytest.raises(OptionError, match="give end, or an offset"):
        parse_end("2024-05-01")


@pytest.fixture
def two(client: LanceClient, topic: str) -> str:
    """Two records of ten bytes."""
    with Producer(client, topic) as producer:
        producer.send(b"12345")
        producer.send(b"67890")
    return topic


@pytest.mark.parametrize(
    ("position", "start", "note"),
    [
        (SeekPosition.BEGINNING, 0, None),
        (SeekPosition.END, 20, None),
        (SeekPosition.offset(10), 10, None),
        (SeekPosition.offset(20), 20, None),
        (SeekPosition.offset(3), 10, "offset 3 is inside a record, starting at 10"),
        (SeekPosition.offset(99), 20, "offset 99 is not there yet, starting at 20"),
        (SeekPosition.time_ns(0), 0, None),
        (SeekPosition.time_ns(2**63), 20, None),
    ],
)
def test_find_start(
    client: LanceClient,
    two: str,
    position: SeekPosition,
    start: int,
    note: str | None,
) -> None:
    assert find_start(client, two, position) == (start, note)


def test_start_that_is_gone(client: LanceClient, two: str) -> None:
    # An overwrite drops what was there.
    client.open_stage(two, "overwrite", 1)
    client.commit_stages("overwrite", 1, [], overwrite=[two])
    assert find_start(client, two, SeekPosition.BEGINNING) == (20, None)
    found = find_start(client, two, SeekPosition.offset(10))
    assert found == (20, "offset 10 is not there any more, starting at 20")


def test_find_end(client: LanceClient, two: str) -> None:
    assert find_end(client, two, SeekPosition.END) == 20
    assert find_end(client, two, SeekPosition.offset(10)) == 10


def test_places_of_a_plain_server(plain_server: EmbeddedBroker) -> None:
    with LanceClient(plain_server.address, checksum="crc32") as client:
        client.create_topic("places")
        assert find_start(client, "places", SeekPosition.BEGINNING) == (0, None)
        # Nobody can tell whether a record starts there.
        assert find_start(client, "places", SeekPosition.offset(3)) == (3, None)
        with pytest.raises(Unsupported):
            find_start(client, "places", SeekPosition.time_ns(0))
        client.delete_topic("places")


def _print(kind: str, separator: bytes | None = None, rows: pa.Table = ROWS) -> bytes:
    (payload,) = encode(rows)
    columns, encode_lines = FORMATS[kind]
    decoded = decode(payload.data, base_offset=100, columns=columns)
    return bytes(encode_lines(decoded.batch, "events", separator))


def test_raw_lines() -> None:
    assert _print("raw") == (
        b'plain text\n{"a": 1}\nkeyed\ntimed\nboth\n\n\x00\xff\x1b[2J\n'
    )


def test_raw_with_keys() -> None:
    lines = _print("raw", b"\t").split(b"\n")
    assert lines[0] == b"\tplain text"
    assert lines[2] == b"k1\tkeyed"
    assert lines[5] == b"\t"


def test_hex() -> None:
    lines = _print("hex").split(b"\n")
    assert lines[2] == b"keyed".hex().encode()
    assert lines[5:] == [b"", b"00ff1b5b324a", b""]
    assert _print("hex", b":").split(b"\n")[4] == b"6b32:626f7468"


def test_json_lines() -> None:
    documents = [json.loads(line) for line in _print("json").splitlines()]
    assert documents[0] == {
        "topic": "events",
        "offset": 100,
        "type": 1,
        "key": None,
        "value": "plain text",
        "timestamp_ns": None,
    }
    assert documents[4]["key"] == "k2"
    assert documents[4]["timestamp_ns"] == 1_700_000_000_123_456_789
    assert documents[5]["value"] is None
    assert documents[6]["value_base64"] == "AP8bWzJK"
    assert "value" not in documents[6]


def test_json_holds_nothing_that_a_terminal_obeys() -> None:
    rows = pa.table({"value": [b"\x1b[2J\x7f\xc2\x9b\xe2\x80\xae", "é".encode()]})
    first, second = _print("json", rows=rows).decode().splitlines()
    assert first.isprintable()
    assert json.loads(first)["value"] == "\x1b[2J\x7f\x9b\u202e"
    assert '"é"' in second


@pytest.mark.parametrize("kind", FORMATS)
def test_no_rows(kind: str) -> None:
    rows = pa.table({"value": pa.array([b"x"], pa.binary())})
    assert _print(kind, rows=rows).count(b"\n") == 1
    columns, encode_lines = FORMATS[kind]
    empty = decode(b"", columns=columns).batch
    assert bytes(encode_lines(empty, "events", None)) == b""
