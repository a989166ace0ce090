"""`lance-spark demo`: that it works, and that it would notice if it did not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.cli import demo
from lance_spark.cli.demo_record import CYCLE, make_records
from lance_spark.cli.demo_writer import Ack, write_records
from lance_spark.columnar.decode import decode
from lance_spark.columnar.encode import encode
from lance_spark.columnar.layout import validate
from lance_spark.errors import LanceError, StoreLocked
from lance_spark.model import RecordType
from lance_spark.store import Store, check_store
from tests.cli.conftest import Run

COLUMNS = ("type", "key", "value", "timestamp_ns")


def test_whole_demo(run: Run, tmp_path: Path) -> None:
    done = run("demo", "--records", 4000, "--dir", tmp_path / "kept")
    assert (done.code, done.err) == (0, "")
    assert len(done.lines) <= 16
    steps = [line.split()[0] for line in done.lines[1:-1] if line[2] != " "]
    assert " ".join(steps) == "write crash recover write commit check read compare"
    assert "killed by signal 9" in done.out
    assert "NULL 400" in done.out and "user 0x80 400" in done.out
    assert done.lines[-1].startswith("all of it as promised")
    # What it leaves behind is a sound store with exactly these records.
    check = run("check", tmp_path / "kept")
    assert check.code == 0 and "3 topics" in check.out
    with Store(tmp_path / "kept", framing=validate) as store:
        (events, *others) = store.topics()
        assert store.view(events.metadata.id).locate_end().record == 4000
        ends = [store.view(t.metadata.id).locate_end().record for t in others]
        assert ends == [1000, 1000]


def test_directory_must_be_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = run("demo", "--records", 100, "--dir", tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "must not exist or be an empty directory" in done.err


def test_records_are_a_function_of_their_numbers() -> None:
    whole = make_records(0, 100)
    parts = [make_records(0, 13), make_records(13, 14), make_records(14, 100)]
    assert pa.Table.from_batches(parts).combine_chunks().to_batches()[0].equals(whole)
    assert make_records(5, 5).num_rows == 0
    types = whole.column("type").to_pylist()
    assert types == list(CYCLE) * 10
    assert set(RecordType) <= set(types) and max(types) < 256
    values = [v for v in whole.column("value").to_pylist() if v is not None]
    assert len(values) == len(set(values)) == 90


def test_records_survive_the_codec() -> None:
    (payload,) = encode(make_records(0, 1000))
    decoded = decode(payload.data, columns=COLUMNS)
    assert decoded.batch.equals(make_records(0, 1000))


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[Path, list[Ack]]]:
    path = tmp_path / "store"
    with Store(path, framing=validate) as store:
        topic = store.create_topic("events").metadata.id
        acks = list(write_records(store, topic, 0, 200, total=200))
    yield path, acks


def test_acknowledgements(written: tuple[Path, list[Ack]]) -> None:
    path, acks = written
    assert [ack.records for ack in acks] == list(range(5, 201, 5))
    with Store(path, framing=validate) as store:
        for ack in acks:
            demo._check_acknowledged(store, 1, ack)


@pytest.mark.parametrize(
    "change", [{"crc": 1}, {"end": 10**6}, {"end": 1}], ids=["bytes", "lost", "place"]
)
def test_loss_is_noticed(
    written: tuple[Path, list[Ack]], change: dict[str, int]
) -> None:
    path, acks = written
    with (
        Store(path, framing=validate) as store,
        pytest.raises(LanceError, match="were acknowledged"),
    ):
        demo._check_acknowledged(store, 1, acks[-1]._replace(**change))


def test_read_back_accepts_what_was_written(written: tuple[Path, list[Ack]]) -> None:
    path, acks = written
    demo._read_back(path, 200, acks[-1].crc)


@pytest.mark.parametrize(("records", "crc"), [(201, 0), (199, 0), (200, 1)])
def test_read_back_notices_counts_and_checksums(
    written: tuple[Path, list[Ack]], records: int, crc: int
) -> None:
    path, acks = written
    with pytest.raises(LanceError, match="were read back"):
        demo._read_back(path, records, acks[-1].crc ^ crc)


def test_read_back_notices_order(tmp_path: Path) -> None:
    records = make_records(0, 200)
    swapped = records.take(pa.array(np.r_[10:20, 0:10, 20:200]))
    (payload,) = encode(swapped)
    with Store(tmp_path / "s", framing=validate) as store:
        topic = store.create_topic("events").metadata.id
        store.append(topic, payload.data)
    with pytest.raises(LanceError, match=r"records \[0, 200\) are not what"):
        demo._read_back(tmp_path / "s", 200, 0)


def test_writer_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_WRITER", ("/bin/true",))
    with pytest.raises(LanceError, match="ended before it was killed"):
        demo._write_and_kill(tmp_path, 1000)


def test_writer_never_closes_but_ends_with_its_parent(tmp_path: Path) -> None:
    child = [sys.executable, "-m", "lance_spark.cli.demo_writer"]
    with subprocess.Popen(
        [*child, str(tmp_path), "50", "100"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        acks = [Ack(*json.loads(process.stdout.readline())) for _ in range(25)]
        assert [ack.records for ack in acks] == list(range(2, 51, 2))
        # All is written, but it does not end, and the store is still in use.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        with pytest.raises(StoreLocked):
            check_store(tmp_path, framing=validate)
        process.stdin.close()
        assert process.wait(30) == 0
