"""`lance-spark bench`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lance_spark.cli import bench
from lance_spark.cli.bench import make_rows
from lance_spark.client import LanceClient, RecordReader
from tests.cli.conftest import Run

RATE = r"\d+\.\d\d s: [\d,]+ records/s, [\d,]+ MB/s"


def _check(lines: list[str]) -> None:
    _, produce, consume = lines
    assert re.fullmatch(f"  produce  {RATE}", produce)
    assert re.fullmatch(f"  consume  {RATE}", consume)


def test_embedded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = run("bench", "--records", 2000, "--size", "1k", "--compression", "lz4")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == "2,000 records of 1.0 kB, a broker in this process"
    _check(done.lines)
    assert list(tmp_path.iterdir()) == []


def test_server(ask: Run, client: LanceClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_WRITE_BYTES", 1000)  # Several writes, the last short.
    before = [info.id for info in client.topics()]
    done = ask("bench", "--records", 95, "--size", 100, "--batch-bytes", 300)
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == f"95 records of 100 bytes, {client.config.servers}"
    _check(done.lines)
    assert [info.id for info in client.topics()] == before


@pytest.mark.parametrize("size", ["0", "3"])
def test_tiny(ask: Run, size: str) -> None:
    assert ask("bench", "--records", 10, "--size", size).code == 0


def test_too_large(ask: Run) -> None:
    done = ask("bench", "--size", "1g")
    assert (done.code, done.out) == (2, "")
    assert "--size" in done.err


def test_missing_records_are_noticed(
    ask: Run, client: LanceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordReader, "next_chunk", lambda _: None)
    done = ask("bench", "--records", 10)
    assert done.code == 1
    assert done.err == "lance-spark: 10 records were acknowledged and 0 read back\n"
    assert not [i for i in client.topics() if i.name.startswith("lance-bench-")]


@pytest.mark.usefixtures("terminal")
def test_progress(ask: Run) -> None:
    done = ask("bench", "--records", 10)
    assert "producing" in done.err and "consuming" in done.err


def test_rows() -> None:
    rows = make_rows(3, 5)
    assert [len(value) for value in rows.column("value").to_pylist()] == [5, 5, 5]
    assert make_rows(2, 0).column("value").to_pylist() == [b"", b""]
