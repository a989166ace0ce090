"""`lance-spark produce`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli import produce
from lance_spark.client import LanceClient, Producer, RecordReader
from lance_spark.columnar.decode import decode
from lance_spark.errors import ConnectionLost, Undelivered
from lance_spark.model import RecordType
from tests.child import Child
from tests.cli.conftest import Run

TypeIn = Callable[[bytes], None]
COLUMNS = ("type", "key", "value", "timestamp_ns")
PYTHON = [sys.executable, "-m", "lance_spark"]


def _read(client: LanceClient, topic: str) -> list[dict[str, Any]]:
    reader = RecordReader(client, topic, 0)
    rows: list[dict[str, Any]] = []
    while (chunk := reader.next_chunk()) is not None:
        rows += decode(chunk.data, columns=COLUMNS).batch.to_pylist()
    reader.close()
    return rows


def _values(client: LanceClient, topic: str) -> list[bytes]:
    return [row["value"] for row in _read(client, topic)]


def test_lines_of_stdin(
    ask: Run, client: LanceClient, topic: str, type_in: TypeIn
) -> None:
    type_in(b"one\n\ntwo \xff\nlast")
    done = ask("produce", topic)
    assert done == (0, "", "4 records, 32 bytes acknowledged\n")
    assert _values(client, topic) == [b"one", b"", b"two \xff", b"last"]
    assert {row["type"] for row in _read(client, topic)} == {RecordType.RAW}


def test_nothing_to_send(ask: Run, topic: str, type_in: TypeIn) -> None:
    type_in(b"")
    assert ask("produce", topic, "-") == (0, "", "0 records, 0 bytes acknowledged\n")


def test_standard_input_is_closed(
    ask: Run, client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    why = "lance-spark: standard input is closed: give a FILE to send\n"
    assert ask("produce", topic) == ask("produce", topic, "-") == (1, "", why)
    assert client.bounds(topic).end == 0


def test_lines_of_a_file(
    ask: Run, client: LanceClient, topic: str, tmp_path: Path
) -> None:
    lines = [b"line %d" % n for n in range(100_000)]
    (tmp_path / "in").write_bytes(b"\n".join(lines) + b"\n")
    options = ("--compression", "lz4", "--batch-bytes", "64k")
    done = ask("produce", topic, tmp_path / "in", *options)
    assert done == (0, "", "100,000 records, 1.5 MB acknowledged\n")
    assert _values(client, topic) == lines


def test_keys_and_times(
    ask: Run, client: LanceClient, topic: str, type_in: TypeIn
) -> None:
    before_ns = time.time_ns()
    type_in(b"k1\tv1\nk2\tv\t2\n")
    done = ask("produce", topic, "--key-separator", "\\t", "--timestamp")
    assert done.code == 0
    first, second = _read(client, topic)
    assert (first["key"], first["value"]) == (b"k1", b"v1")
    assert (second["key"], second["value"]) == (b"k2", b"v\t2")
    assert second["type"] == RecordType.KEY_TIMESTAMPED
    assert before_ns <= first["timestamp_ns"] <= time.time_ns()


def test_types(ask: Run, client: LanceClient, topic: str, type_in: TypeIn) -> None:
    for kind in ("json", "0x80"):
        type_in(b"{}\n")
        assert ask("produce", topic, "--type", kind).code == 0
    assert [row["type"] for row in _read(client, topic)] == [RecordType.JSON, 0x80]


def test_other_delimiters(
    ask: Run, client: LanceClient, topic: str, type_in: TypeIn
) -> None:
    type_in(b"a\nb\0c\0")
    assert ask("produce", topic, "--null-delimited").code == 0
    type_in(b"a\nb\0c\0")
    assert ask("produce", topic, "--whole-file").code == 0
    assert _values(client, topic) == [b"a\nb", b"c", b"a\nb\0c\0"]


def test_topic_is_created_when_asked(
    ask: Run, client: LanceClient, type_in: TypeIn
) -> None:
    type_in(b"x\n")
    done = ask("produce", "fresh")
    assert (done.code, done.out) == (1, "")
    assert "no topic is named 'fresh'" in done.err and done.err.count("\n") == 1
    assert ask("produce", "fresh", "--create").code == 0
    client.delete_topic("fresh")


def test_topic_by_number(ask: Run, client: LanceClient, type_in: TypeIn) -> None:
    type_in(b"to nobody in particular\n")
    assert ask("produce", "id:0").code == 0
    assert client.bounds(0).end > 0


def test_rate(
    ask: Run,
    client: LanceClient,
    topic: str,
    type_in: TypeIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portions: list[int] = []

    class Pace:
        def __init__(self, rate: float) -> None:
            assert rate == 20

        def portions(self, rows: Any) -> Any:
            for row in range(rows.num_rows):
                portions.append(row)
                yield rows.slice(row, 1)

    monkeypatch.setattr(produce, "Pace", Pace)
    type_in(b"a\nb\nc\n")
    assert ask("produce", topic, "--rate", 20).code == 0
    assert portions == [0, 1, 2]
    assert _values(client, topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--type", "json", "--timestamp"], "without key and timestamp"),
        (["--type", "json", "--key-separator", ":"], "without key and timestamp"),
        (["--type", "text"], "is no type"),
        (["--whole-file", "-0"], "no lines"),
        (["--whole-file", "--key-separator", ":"], "no lines"),
        (["--key-separator", ""], "can't be empty"),
        (["--rate", "0"], "--rate"),
        (["--compression", "zip"], "--compression"),
        (["--batch-bytes", "big"], "is not a size"),
        (["--batch-bytes", "0"], "Invalid value for '--batch-bytes'"),
        (["--batch-bytes", "1g"], "give 1 to 16448k"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], text: str) -> None:
    done = run("produce", "t", *arguments)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


def test_no_such_file(ask: Run, topic: str) -> None:
    done = ask("produce", topic, "no-such-file")
    assert (done.code, done.out) == (1, "")
    assert "No such file" in done.err and done.err.count("\n") == 1


def test_bad_line_is_named(ask: Run, topic: str, tmp_path: Path) -> None:
    # More than a block, so that what comes before it is on its way.
    path = tmp_path / "in"
    path.write_bytes(b"k:v\n" * 400_000 + b"no key here\n")
    done = ask("produce", topic, path, "--key-separator", ":")
    assert (done.code, done.out) == (1, "")
    acknowledged, error = done.err.splitlines()
    assert acknowledged.endswith(" acknowledged")
    assert error == "lance-spark: line 400001 has no b':' between key and value"


def test_row_that_can_not_be_a_record(ask: Run, topic: str, type_in: TypeIn) -> None:
    type_in(b"a:b\n" + b"k" * 70_000 + b":v\n")
    done = ask("produce", topic, "--key-separator", ":")
    assert done.code == 1
    assert done.err.splitlines() == [
        "0 records, 0 bytes acknowledged",
        "lance-spark: line 2: a key of 70000 bytes, 65535 are the most",
    ]


def test_says_what_was_acknowledged_before_an_error(
    ask: Run, topic: str, type_in: TypeIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(self: Producer, *, abandon: bool = False, **_: object) -> None:
        if abandon:
            real(self, abandon=True)
            return
        self.flush()
        raise Undelivered("t", (2,), 5, 50, ConnectionLost("it has gone"))

    real = Producer.close
    monkeypatch.setattr(Producer, "close", close)
    type_in(b"a\nb\n")
    done = ask("produce", topic)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "2 records, 12 bytes acknowledged",
        "lance-spark: topic 't': 5 records (50 bytes) in batches 2 are not "
        "acknowledged: it has gone",
    ]


@pytest.mark.usefixtures("terminal")
def test_progress_on_a_terminal(ask: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x\n" * 10)
    done = ask("produce", topic, tmp_path / "in")
    assert "producing  [########################] 100%" in done.err
    assert done.err.endswith("\r\x1b[K10 records, 60 bytes acknowledged\n")


def test_lz4_is_refused_by_a_plain_server(
    run: Run, plain_server: EmbeddedBroker, type_in: TypeIn
) -> None:
    type_in(b"x\n")
    to = ("-s", plain_server.address, "--checksum", "crc32")
    done = run("produce", "t", "--create", "--compression", "lz4", *to)
    assert (done.code, done.out) == (1, "")
    assert "compression" in done.err and done.err.count("\n") == 1


def test_interrupt_says_what_was_acknowledged(
    ask: Run, client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stdin:
        """Gives two lines and the start of a third, then comes Ctrl-C."""

        def __init__(self) -> None:
            self.buffer = self
            self._read = 0

        def fileno(self) -> int:
            raise OSError

        def read1(self, size: int) -> bytes:
            self._read += 1
            if self._read > 1:
                raise KeyboardInterrupt
            return b"a\nb\nthe thi"

    def write(self: Producer, columns: Any) -> None:
        real(self, columns)
        self.flush()

    real = Producer.write
    monkeypatch.setattr(Producer, "write", write)
    monkeypatch.setattr(sys, "stdin", Stdin())
    done = ask("produce", topic)
    assert done == (130, "", "\n2 records, 12 bytes acknowledged\n")
    assert _values(client, topic) == [b"a", b"b"]


def test_interrupt_of_a_process(
    server: EmbeddedBroker, client: LanceClient, topic: str
) -> None:
    process = Child(
        [*PYTHON, "produce", topic, "-s", server.address],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None and process.stderr is not None
        # It sends what it has although more is to come.
        process.stdin.write("first\nsecond\nthe thi")
        process.stdin.flush()
        deadline_s = time.monotonic() + 30
        while client.locate_end(topic).record < 2 and time.monotonic() < deadline_s:
            end = client.bounds(topic).end
            client.wait(0, {client.topic_id(topic): end}, 0.05)
        process.send_signal(signal.SIGINT)
        # The answer may not have come to it yet.
        assert process.stderr.read() in (
            "\n2 records, 21 bytes acknowledged\n",
            "\n0 records, 0 bytes acknowledged\n",
        )
        assert process.wait(30) == 130
    assert _values(client, topic) == [b"first", b"second"]
