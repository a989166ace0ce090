"""`lance-spark check`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from lance_spark.cli import check
from lance_spark.columnar.layout import validate
from lance_spark.store import Store
from tests.cli.conftest import Run


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_sound_store(run: Run, store_path: Path) -> None:
    size = sum(p.stat().st_size for p in store_path.glob("segments/*/*.lnc"))
    done = run("check", store_path)
    assert done == (0, f"{size} bytes verified, 2 topics, 0 notes, no damage\n", "")
    assert run("check", "--quiet", store_path) == (0, "", "")
    assert run("check", "--json", "--quiet", store_path) == (0, "", "")


def test_damage(run: Run, store_path: Path, segment: Path) -> None:
    _flip(segment, 7)
    end = segment.stat().st_size // 3
    done = run("check", store_path)
    assert done.code == 1
    assert done.lines == [
        f"damage: segments/1 [0, {end}): the checksum differs",
        done.lines[1],
    ]
    assert done.lines[1].endswith("2 topics, 0 notes, damage in 1 place")
    assert run("check", "-q", store_path) == (1, done.lines[0] + "\n", "")


def test_json(run: Run, store_path: Path, segment: Path) -> None:
    _flip(segment, 7)
    (store_path / "consumers.log").unlink()
    done = run("check", "--json", store_path)
    found = [json.loads(line) for line in done.lines]
    assert done.code == 1
    assert [(f["severity"], f["where"]) for f in found] == [
        ("note", "consumers.log"),
        ("damage", "segments/1"),
    ]
    assert set(found[1]) == {"severity", "where", "text", "start", "end"}
    assert found[0]["start"] is None and found[1]["start"] == 0
    assert "1 note, damage in 1 place" in done.err


def test_notes_alone_are_no_failure(run: Run, store_path: Path, segment: Path) -> None:
    with segment.open("ab") as file:
        file.write(b"\x01\x05\x00\x00\x00torn")
    done = run("check", store_path)
    assert done.code == 0
    assert done.out.startswith("note: segments/1 [")
    assert done.lines[-1].endswith("1 note, no damage")


def test_records_are_looked_into(run: Run, tmp_path: Path) -> None:
    # The chain of records is whole; the second one's key is longer than the record.
    data = b"\x01\x01\x00\x00\x00x" + b"\x10\x03\x00\x00\x00\xff\x00k"
    with Store(tmp_path / "s", framing=validate) as store:
        topic = store.create_topic("t").metadata.id
        # The starts are given, so that the store does not look at the bytes.
        store.append(topic, data, starts=np.array([0, 6]))
    done = run("check", tmp_path / "s")
    assert done.code == 1
    assert "a key of 255 bytes where 1 are left in the record" in done.out


def test_no_store(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert run("check", missing) == (
        1,
        "",
        f"lance-spark: {missing}: no such directory\n",
    )
    (tmp_path / "file").write_text("x")
    done = run("check", tmp_path)
    assert done.code == 1
    assert done.err.startswith(f"lance-spark: {tmp_path}: there is no store here")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # And no lock was left.
    done = run("check", tmp_path / "file")
    assert done.code == 1
    assert "not a directory" in done.err and done.err.count("\n") == 1


def test_store_in_use(run: Run, store_path: Path) -> None:
    with Store(store_path, framing=validate):
        done = run("check", store_path)
    assert (done.code, done.out) == (1, "")
    assert "already in use by process" in done.err and done.err.count("\n") == 1


def test_progress_only_on_a_terminal(
    run: Run, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Bar:
        def __init__(self, **options: object) -> None:
            seen.append(int(str(options["length"])))

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            seen.append(-1)

        def update(self, size: int) -> None:
            seen.append(size)

    monkeypatch.setattr(check.click, "progressbar", Bar)
    run("check", store_path)
    assert seen == []
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    done = run("check", store_path)
    assert seen[0] == sum(seen[1:-1]) > 0
    assert seen[-1] == -1
    assert done.out.startswith(f"{seen[0]} bytes verified")
    seen.clear()
    run("check", "--quiet", store_path)
    assert seen == []
