"""`lance-spark produce`."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli import produce
from lance_spark.cli.produce import SteadyRate, make_columns, read_lines, read_whole
from lance_spark.client import LanceClient, Producer, RecordReader
from lance_spark.columnar.decode import decode
from lance_spark.errors import ConnectionLost, LanceError, Undelivered
from lance_spark.wire.lwp import RecordType
from tests.child import Child
from tests.cli.conftest import Run
from tests.each import each

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

    class SteadyRate:
        def __init__(self, rate: float) -> None:
            assert rate == 20

        def portions(self, rows: Any) -> Any:
            for row in range(rows.num_rows):
                portions.append(row)
                yield rows.slice(row, 1)

    monkeypatch.setattr(produce, "SteadyRate", SteadyRate)
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
def test_no_progress_over_what_a_person_types(
    ask: Run, client: LanceClient, topic: str
) -> None:
    keyboard, terminal = os.openpty()
    try:
        # A line, and Ctrl-D.
        os.write(keyboard, b"typed\n\x04")
        done = ask("produce", topic, os.ttyname(terminal))
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done == (0, "", "1 record, 10 bytes acknowledged\n")
    assert _values(client, topic) == [b"typed"]


@pytest.mark.usefixtures("terminal")
def test_progress_on_a_terminal(ask: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x\n" * 10)
    done = ask("produce", topic, tmp_path / "in")
    assert "producing" in done.err
    # The line of the progress is gone by then.
    assert done.err.endswith("\x1b[2K10 records, 60 bytes acknowledged\n")


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

        def isatty(self) -> bool:
            return False

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


class Pipe:
    """A pipe that gives what it has been given, piece by piece."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def _read_lines(*pieces: bytes, delimiter: bytes = b"\n") -> list[list[bytes]]:
    stream = cast(BinaryIO, Pipe(*pieces))
    return [block.to_pylist() for block in read_lines(stream, delimiter)]


@each(
    ("pieces", "blocks"),
    [
        ([], []),
        ([b"\n"], [[b""]]),
        ([b"a"], [[b"a"]]),
        ([b"a\n"], [[b"a"]]),
        ([b"a\nb"], [[b"a"], [b"b"]]),
        ([b"a\nb\n"], [[b"a", b"b"]]),
        ([b"\n\na\n"], [[b"", b"", b"a"]]),
        ([b"a\r\n\xff\x00\n"], [[b"a\r", b"\xff\x00"]]),
        # A line goes on in the next pieces.
        ([b"a", b"b", b"c\nd", b"\n"], [[b"abc"], [b"d"]]),
        ([b"a\nb", b"", b"never read"], [[b"a"], [b"b"]]),
    ],
)
def test_lines(pieces: list[bytes], blocks: list[list[bytes]]) -> None:
    ended = pieces[: pieces.index(b"")] if b"" in pieces else pieces
    assert _read_lines(*ended) == blocks


def test_other_delimiter() -> None:
    assert _read_lines(b"a\nb\0c\0", delimiter=b"\0") == [[b"a\nb", b"c"]]


def test_cut_anywhere() -> None:
    data = b"one\ntwo\n\nthree"
    for cut in range(1, len(data)):
        blocks = _read_lines(data[:cut], data[cut:])
        assert list(chain(*blocks)) == [b"one", b"two", b"", b"three"]


def test_real_file_is_read_in_blocks() -> None:
    lines = [b"%d" % n for n in range(400_000)]
    stream = io.BufferedReader(cast(Any, io.BytesIO(b"\n".join(lines) + b"\n")))
    blocks = [block.to_pylist() for block in read_lines(stream)]
    assert len(blocks) > 1
    assert list(chain(*blocks)) == lines


def test_endless_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "LINE_BYTES_MAX", 10)
    stream = cast(BinaryIO, Pipe(b"ok\n12345", b"67890", b"1"))
    with pytest.raises(LanceError, match="line 2 is longer than 16777216 bytes"):
        list(read_lines(stream))


def test_whole() -> None:
    for data in (b"a\nb\n", b""):
        (lines,) = read_whole(io.BytesIO(data))
        assert lines.to_pylist() == [data]


def test_whole_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "RECORD_VALUE_BYTES_MAX", 3)
    (lines,) = read_whole(io.BytesIO(b"abc"))
    assert lines.to_pylist() == [b"abc"]
    with pytest.raises(LanceError, match="the input is longer than 16777216 bytes"):
        list(read_whole(io.BytesIO(b"abcd")))


def _columns(lines: list[bytes], **options: Any) -> list[dict[str, Any]]:
    usual: dict[str, Any] = {"separator": None, "stamped": False, "first_line": 1}
    array = pa.array(lines, pa.binary())
    rows: list[dict[str, Any]] = make_columns(array, **{**usual, **options}).to_pylist()
    return rows


def test_values_alone() -> None:
    assert _columns([b"a", b""]) == [{"value": b"a"}, {"value": b""}]


def test_keys() -> None:
    assert _columns([b"k=v", b"=", b"a=b=c"], separator=b"=") == [
        {"key": b"k", "value": b"v"},
        {"key": b"", "value": b""},
        {"key": b"a", "value": b"b=c"},
    ]
    assert _columns([b"k, v"], separator=b", ") == [{"key": b"k", "value": b"v"}]


def test_line_without_key() -> None:
    with pytest.raises(LanceError, match="line 12 has no b':' between key and value"):
        _columns([b"a:b", b"c:d", b"none", b""], separator=b":", first_line=10)


def test_stamps() -> None:
    rows = _columns([b"a", b"b"], stamped=True, clock_ns=lambda: 77)
    assert [row["timestamp_ns"] for row in rows] == [77, 77]


class Time:
    """A clock that only moves while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def _rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"x"] * count})


def test_portions_come_when_they_are_due() -> None:
    time = Time()
    pace = SteadyRate(100, clock=time.clock, sleep=time.sleep)
    sizes = [portion.num_rows for portion in pace.portions(_rows(25))]
    assert sizes == [10, 10, 5]
    assert time.slept == pytest.approx([0.1, 0.1])
    # The next ones wait for those before them.
    assert sum(p.num_rows for p in pace.portions(_rows(1))) == 1
    assert time.slept[2:] == pytest.approx([0.05])


def test_pause_is_not_caught_up() -> None:
    time = Time()
    pace = SteadyRate(10, clock=time.clock, sleep=time.sleep)
    list(pace.portions(_rows(1)))
    time.now_s += 1000
    list(pace.portions(_rows(3)))
    assert time.slept == pytest.approx([0.1, 0.1])


def test_slow_rate() -> None:
    time = Time()
    pace = SteadyRate(0.5, clock=time.clock, sleep=time.sleep)
    assert [p.num_rows for p in pace.portions(_rows(2))] == [1, 1]
    assert time.slept == pytest.approx([2.0])
