"""`lance-spark check`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lance_spark.cli import check
from lance_spark.store import Store
from lance_spark.wire.lwp import validate
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


def test_a_file_that_goes_while_it_is_measured(run: Run, store_path: Path) -> None:
    with Store(store_path, framing=validate):
        # As if retention had removed it since the directory was listed.
        gone = store_path / "segments" / "1" / "gone.lnc"
        gone.symlink_to("nowhere")
        done = run("check", store_path)
    assert "already in use by process" in done.err


@pytest.mark.usefixtures("terminal")
def test_progress_on_a_terminal(run: Run, store_path: Path) -> None:
    done = run("check", store_path)
    size = done.out.split(" verified")[0]
    assert "checking" in done.err and f"{size}, " in done.err
    assert run("check", "--quiet", store_path).err == ""


# Repair.


def test_nothing_to_repair(run: Run, store_path: Path) -> None:
    assert run("check", "--repair", store_path) == (0, "nothing to repair\n", "")


def test_a_topic_is_repaired_once_all_is_said(
    run: Run, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = store_path / "segments/1/metadata.json"
    made = str(json.loads(file.read_bytes())["created_at"])
    good = file.read_bytes()
    _flip(file, 30)
    damaged = file.read_bytes()
    done = run("check", store_path)
    assert done.code == 1
    assert done.lines[0].startswith("damage: segments/1/metadata.json: the checksum")
    done = run("check", "--repair", "--yes", store_path)
    assert done.code == 1
    assert done.lines == [
        "needs you: segments/1/metadata.json: the checksum does not hold: the topic is "
        "closed; say --name 1=NAME --retention 1=none|AGE,SIZE --auth 1=none|JSON",
        "not repaired: 1 file, see above",
    ]
    said = ("--name", "1=events", "--retention", "1=none", "--auth", "1=none")
    said = (*said, "--created", f"1={made}")
    monkeypatch.setattr(check.click, "confirm", lambda *_, **__: False)
    done = run("check", "--repair", *said, store_path)
    assert done.code == 1
    assert done.lines[0].startswith(
        "will repair: segments/1/metadata.json: the checksum does not hold: write it "
        "anew: name 'events', log start 0 (record 0, segment 0), retention 0 s and 0 "
        f"bytes (0: no limit), no access rule, made at {made} s"
    )
    assert done.lines[1:] == ["nothing was changed"]
    assert file.read_bytes() == damaged
    done = run("check", "--repair", "--yes", *said, store_path)
    assert (done.code, done.lines[1:]) == (
        0,
        [f"repaired: {file.relative_to(store_path)}"],
    )
    assert json.loads(file.read_bytes()) == json.loads(good)
    assert file.with_name("metadata.json.damaged").read_bytes() == damaged
    assert run("check", store_path).code == 0


def test_rules_and_limits_are_said(run: Run, store_path: Path) -> None:
    file = store_path / "segments/1/metadata.json"
    _flip(file, 30)
    rule = {"mtls_enabled": True, "allowed_cns": ["a"]}
    said = ("--retention", "1=24h,10m", "--auth", f"1={json.dumps(rule)}")
    done = run("check", "--repair", "-y", "--name", "1=again", *said, store_path)
    assert done.code == 0, done
    assert "streams that follow it need --created 1=SECONDS" in done.out
    fields = json.loads(file.read_bytes())
    assert fields["name"] == "again"
    assert fields["retention"] == {"max_age_secs": 86400, "max_bytes": 10 << 20}
    assert fields["auth"]["allowed_cns"] == ["a"]


def test_the_number_of_partitions_is_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "partitioned"
    with Store(path, framing=validate) as store:
        ids = [t.metadata.id for t in store.create_topics({"orders": 2})]
    for topic in ids:
        _flip(path / f"segments/{topic}/metadata.json", 30)
    said = [
        part
        for number, topic in enumerate(ids)
        for option, value in (
            ("--name", f"orders/{number}"),
            ("--retention", "none"),
            ("--auth", "none"),
        )
        for part in (option, f"{topic}={value}")
    ]
    done = run("check", "--repair", "--yes", *said, path)
    assert done.code == 1
    assert f"say --partitions {ids[0]}=N" in done.out
    said += [f"--partitions={topic}=2" for topic in ids]
    assert run("check", "--repair", "--yes", *said, path).code == 0
    with Store(path, framing=validate) as store:
        assert store.partitions("orders") == 2


def test_ids_are_made_anew(run: Run, store_path: Path) -> None:
    _flip(store_path / "store.json", 3)
    done = run("check", "--repair", "--yes", store_path)
    assert done.code == 0
    assert done.lines[0].startswith("will repair: store.json: ")
    assert "far above all that can be seen" in done.lines[0]
    with Store(store_path, framing=validate) as store:
        assert store.create_topic("new").metadata.id > 1_000_000
    assert run("check", store_path).code == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--yes"], "goes with --repair only"),
        (["--name", "1=x"], "goes with --repair only"),
        (["--repair", "--name", "x"], "'x' is not ID=NAME"),
        (["--repair", "--retention", "1=7d"], "neither none nor AGE,SIZE"),
        (["--repair", "--auth", "1={"], "neither none nor JSON"),
        (["--repair", "--auth", "1=[]"], "is not an access rule"),
        (["--repair", "--created", "1=now"], "'now' is not a number"),
        (["--repair", "--name", "1=x"], "its metadata.json is not damaged"),
    ],
)
def test_what_can_not_be_said(
    run: Run, store_path: Path, arguments: list[str], reason: str
) -> None:
    done = run("check", *arguments, store_path)
    assert done.code != 0 and done.out == ""
    assert reason in " ".join(done.err.split())


def test_a_store_in_use_is_not_repaired(run: Run, store_path: Path) -> None:
    with Store(store_path, framing=validate):
        done = run("check", "--repair", store_path)
    assert done.code == 1 and "already in use" in done.err
