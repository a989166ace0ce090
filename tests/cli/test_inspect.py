"""`lance-spark inspect`: every kind of file, whole, cut off and damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lance_spark.cli.inspect_store import SHOWN_CHARACTERS, InspectedFile, Selection
from lance_spark.store import Store, StoreConfig
from lance_spark.wire.lwp import (
    RECORD_VALUE_BYTES_MAX,
    Authenticate,
    AuthenticateResponse,
    Checksum,
    CreateTopic,
    ExtendedFetchResponse,
    Fetch,
    FetchResponse,
    Record,
    encode_ack,
    encode_control,
    encode_ingest,
    encode_message,
    encode_record,
    validate,
)
from tests.cli.conftest import CONSUMER, Run
from tests.each import each


def _join(*frames: list[object]) -> bytes:
    return b"".join(bytes(part) for frame in frames for part in frame)  # type: ignore[call-overload]


# Segments.


def test_segment(run: Run, segment: Path) -> None:
    done = run("inspect", segment)
    assert (done.code, done.err) == (0, "")
    head, titles, *rows = done.lines
    assert (
        head == f"segment of {segment.stat().st_size} bytes, topic 1, offsets from 0 on"
    )
    assert " ".join(titles.split()) == "record offset type length key timestamp value"
    assert len(rows) == 21
    assert [row.split() for row in rows[:7]] == [
        ["0", "0", "RAW", "10", "-", "-", "'plain", "text'"],
        ["1", "15", "JSON", "8", "-", "-", '\'{"a":', "1}'"],
        ["2", "28", "KEY_VALUE", "9", "'k1'", "-", "'keyed'"],
        [
            "3",
            "42",
            "TIMESTAMPED",
            "13",
            "-",
            "1970-01-01T00:00:00.000001000Z",
            "'timed'",
        ],
        [
            *("4", "60", "KEY_TIMESTAMPED", "16", "'k2'"),
            *("2023-11-14T22:13:20.123456789Z", "'both'"),
        ],
        ["5", "81", "NULL", "0", "-", "-", "-"],
        ["6", "86", "user", "0x80", "6", "-", "-", "00ff1b5b324a"],
    ]
    # All columns start in the same place.
    assert rows[0].index("RAW") == rows[1].index("JSON") == titles.index("type")


def test_limit_and_skip(run: Run, segment: Path) -> None:
    done = run("inspect", segment, "--skip", 5, "--limit", 3)
    assert [line.split()[0] for line in done.lines[2:-1]] == ["5", "6", "7"]
    assert done.lines[-1] == "… more records follow: --skip 8"
    done = run("inspect", segment, "--skip", 20, "--limit", 1)
    assert [line.split()[0] for line in done.lines[2:]] == ["20"]
    assert len(run("inspect", segment, "--skip", 1000).lines) == 1
    assert run("inspect", segment, "--limit", 0).lines[-1].endswith("--skip 0")


def test_hex_and_full(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.lnc"
    path.write_bytes(encode_record(Record(1, b"abc" * 100)))
    assert run("inspect", path).lines[-1].endswith("…")
    assert run("inspect", path, "--full").lines[-1].endswith(f"'{'abc' * 100}'")
    assert run("inspect", path, "--hex", "--full").lines[-1].endswith("616263" * 100)


def test_offsets_are_the_topics(run: Run, tmp_path: Path) -> None:
    record = encode_record(Record(1, b"x" * 95))
    config = StoreConfig(segment_bytes=250)
    with Store(tmp_path / "s", framing=validate, config=config) as store:
        topic = store.create_topic("t").metadata.id
        for _ in range(5):
            store.append(topic, record)
    last = max(tmp_path.glob("s/segments/1/*.lnc"))
    done = run("inspect", last)
    assert done.lines[0] == "segment of 100 bytes, topic 1, offsets from 400 on"
    assert done.lines[2].split()[:2] == ["4", "400"]
    index = run("inspect", last.with_suffix(".idx"))
    assert index.lines[-1].split()[:6] == ["0", "BATCH", "400", "4", "100", "1"]
    last.write_bytes(record + record[:50])
    done = run("inspect", last)
    assert done.code == 1
    assert "malformed record at byte 100:" in done.err and "(offset 500)" in done.err
    last.with_suffix(".idx").write_bytes(b"garbage")
    done = run("inspect", last)
    assert "from the file's start: index header has 7 of 128 bytes" in done.lines[0]
    last.with_suffix(".idx").unlink()
    done = run("inspect", last)
    assert done.lines[0].endswith("from the file's start: index missing")
    assert done.lines[2].split()[:2] == ["0", "0"]


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"\x01\x05", "the data ends inside the header, 2 bytes of it are there"),
        (
            b"\x01\x05\0\0\0abc",
            "the data ends inside the value, 3 of 5 bytes are there",
        ),
        (b"\0\0\0\0\0", "type 0 is reserved"),
        (b"\x01\xff\xff\xff\x7f", "length 2147483647 is over the limit"),
        (b"\x10\x02\0\0\0\xff\0", "too short for a key of 255 bytes"),
    ],
)
def test_malformed_segment(run: Run, tmp_path: Path, tail: bytes, reason: str) -> None:
    path = tmp_path / "x.lnc"
    good = encode_record(Record(1, b"good"))
    path.write_bytes(good * 3 + tail)
    done = run("inspect", path)
    assert done.code == 1
    assert len(done.lines) == 2 + 3
    assert done.err.startswith(f"lance-spark: {path}: malformed record at byte 27: ")
    assert reason in done.err and done.err.count("\n") == 1
    # What lies behind the part that was asked for is nobody's business.
    assert run("inspect", path, "--limit", 3).code == 0


@pytest.mark.parametrize("size", [1024 * 1024 - 5, 1024 * 1024, RECORD_VALUE_BYTES_MAX])
def test_records_larger_than_a_window(run: Run, tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.lnc"
    small = encode_record(Record(2, b"small"))
    large = encode_record(Record(1, bytes(size)))
    path.write_bytes(small + large + small + large + small)
    done = run("inspect", path)
    assert (done.code, done.err) == (0, "")
    assert [row.split()[:4] for row in done.lines[2:]] == [
        ["0", "0", "JSON", "5"],
        ["1", "10", "RAW", f"{size}"],
        ["2", f"{10 + len(large)}", "JSON", "5"],
        ["3", f"{20 + len(large)}", "RAW", f"{size}"],
        ["4", f"{20 + 2 * len(large)}", "JSON", "5"],
    ]
    path.write_bytes(small + large + small + large[:-1])
    done = run("inspect", path)
    assert done.code == 1
    assert len(done.lines) == 2 + 3
    assert f"malformed record at byte {20 + len(large)}: " in done.err


def test_large_files_are_not_read_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lnc"
    with path.open("wb") as file:
        file.write(encode_record(Record(1, b"x" * 95)) * 100_000)
        os.truncate(file.fileno(), 8 * 1024**3)
    read = 0
    real = InspectedFile.read

    def measured(self: InspectedFile, position: int, length: int) -> bytes:
        nonlocal read
        data = real(self, position, length)
        read += len(data)
        return data

    monkeypatch.setattr(InspectedFile, "read", measured)
    done = run("inspect", path, "--skip", 99_998)
    assert len(done.lines) == 2 + 2
    assert "at byte 10000000: type 0 is reserved" in done.err
    assert read < 20_000_000


def test_segment_by_content_alone(run: Run, tmp_path: Path, segment: Path) -> None:
    path = tmp_path / "unnamed"
    path.write_bytes(segment.read_bytes())
    done = run("inspect", path)
    assert done.code == 0
    assert done.lines[0].startswith("segment of ")
    assert done.lines[0].endswith("offsets count from the file's start")


# Indexes.


def test_index(run: Run, segment: Path) -> None:
    done = run("inspect", segment.with_suffix(".idx"))
    assert (done.code, done.err) == (0, "")
    size = segment.stat().st_size
    assert done.lines[0] == f"index of {segment.name}, 3 rows"
    assert done.lines[1].split() == ["topic", "1"]
    marks = [line for line in done.lines if "mark" in line]
    assert len(marks) == 2
    (counts,) = [line for line in marks if line.endswith("<- counts")]
    assert f"durable up to position {size}, 3 rows" in counts
    rows = [line.split() for line in done.lines[-3:]]
    third = size // 3
    assert [row[:6] for row in rows] == [
        [f"{n}", "BATCH", f"{n * third}", f"{n * 7}", f"{third}", "7"] for n in range(3)
    ]
    assert run("inspect", segment.with_suffix(".idx"), "--limit", 1).lines[-1] == (
        "… more rows follow: --skip 1"
    )


def test_damaged_index(run: Run, segment: Path) -> None:
    index = segment.with_suffix(".idx")
    sound = index.read_bytes()
    data = bytearray(sound)
    data[128 + 48 + 8] ^= 1
    index.write_bytes(data)
    done = run("inspect", index)
    assert done.code == 1
    assert "BATCH DAMAGED" in done.lines[-2]
    assert done.err == (
        f"lance-spark: {index}: 1 damaged row, the first is row 1 at byte 176\n"
    )
    assert run("inspect", index, "--limit", 1).code == 0
    index.write_bytes(sound + b"half a row")
    done = run("inspect", index)
    assert done.code == 1
    assert done.err.endswith(f"10 of 48 bytes are there, at byte {len(sound)}\n")
    index.write_bytes(sound[:100])
    assert "header has 100 of 128 bytes (byte 0)" in run("inspect", index).err
    index.write_bytes(b"?" + sound[1:])
    assert "not an index file (byte 0)" in run("inspect", index).err


def test_torn_mark(run: Run, segment: Path) -> None:
    index = segment.with_suffix(".idx")
    data = bytearray(index.read_bytes())
    data[64:128] = bytes(64)
    index.write_bytes(data)
    marks = [line for line in run("inspect", index).lines if "mark" in line]
    assert [line.split(maxsplit=2)[2] for line in marks] == ["empty or torn"] * 2


# Journal, consumers, JSON.


def test_journal(run: Run, store_path: Path) -> None:
    journal = store_path / "journal.log"
    sound = journal.read_bytes()
    done = run("inspect", journal, "--full")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == f"journal of {len(sound)} bytes, 2 entries"
    assert [line.split()[:2] for line in done.lines[2:]] == [
        ["0", "begin"],
        ["1", "done"],
    ]
    assert '"writer": "writer", "sequence": 5' in done.lines[2]
    journal.write_bytes(sound[:-3])
    done = run("inspect", journal)
    assert done.code == 1
    assert len(done.lines) == 2 + 1
    at = sound.rindex(b"LSJE")
    text = f"no entry in the bytes [{at}, {len(sound)}) that is whole"
    assert done.err == f"lance-spark: {journal}: {text}\n"
    journal.write_bytes(sound + b"LSJE")
    text = f"an entry is not finished at byte {len(sound)}"
    assert run("inspect", journal).err == f"lance-spark: {journal}: {text}\n"
    journal.write_bytes(sound[:8] + b"!" + sound[9:])
    text = "its head is damaged (byte 0)"
    assert run("inspect", journal).err == f"lance-spark: {journal}: {text}\n"
    journal.write_bytes(sound[:64] + b"junk" + sound[64:])
    done = run("inspect", journal)
    assert (done.code, len(done.lines)) == (1, 4)
    assert "no entry in the bytes [64, 68)" in done.err
    journal.write_bytes(b"short")
    assert "5 bytes are no journal (byte 0)" in run("inspect", journal).err


def test_consumers(run: Run, store_path: Path) -> None:
    path = store_path / "consumers.log"
    sound = path.read_bytes()
    done = run("inspect", path)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1].split() == [f"{CONSUMER}", "1", "16"]
    path.write_bytes(sound + sound[64:-1] + b"!" + sound[64:])
    done = run("inspect", path)
    assert done.code == 1
    assert done.lines[-1].split() == [f"{CONSUMER}", "1", "16"]
    assert "1 damaged entry, the first at byte 88" in done.err
    path.write_bytes(sound[:-1])
    assert "1 damaged entry, the first at byte 64" in run("inspect", path).err
    path.write_bytes(sound + b"cut")
    assert "the last entry is cut off at byte 88" in run("inspect", path).err
    path.write_bytes(sound[:8] + b"!" + sound[9:])
    assert "its head is damaged (byte 0)" in run("inspect", path).err
    path.write_bytes(b"x" * 40)
    assert "not a file of consumer offsets (byte 0)" in run("inspect", path).err


def test_documents(run: Run, store_path: Path) -> None:
    done = run("inspect", store_path / "store.json")
    assert done.lines[0].startswith("identity of a store, ")
    assert '  "next_topic": 3,' in done.lines
    metadata = store_path / "segments/1/metadata.json"
    done = run("inspect", metadata)
    assert done.lines[0].startswith("metadata of a topic, ")
    assert '  "name": "events",' in done.lines
    assert run("inspect", metadata, "--limit", 2).lines[-1].endswith("--skip 2")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": "\xc3\xa9", }', "not JSON at byte 12: "),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"format": 1, "log_start": {}}', "it has other fields than auth, "),
        (b'{"format": 9, "opened_ns": 1}', "the checksum does not hold"),
        (b"", "not JSON at byte 0: "),
    ],
)
def test_bad_document(run: Run, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    done = run("inspect", path)
    assert done.code == 1
    assert done.err.startswith(f"lance-spark: {path}: {reason}")
    assert done.err.count("\n") == 1


def test_other_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(b"[1, 2]")
    assert run("inspect", path).lines[0] == "JSON, 6 bytes"


# Frames.

BATCH = encode_record(Record(1, b"abc"))
FRAMES = [
    encode_message(CreateTopic("events")),
    encode_message(Authenticate("top secret")),
    encode_message(AuthenticateResponse(True)),
    encode_ingest([BATCH], batch_id=9, topic_id=3, record_count=1, timestamp_ns=1),
    [encode_ack(9)],
    encode_message(Fetch(3, 0, 4096), checksum=Checksum.CRC32),
    encode_message(FetchResponse(8, 1, BATCH)),
    encode_message(ExtendedFetchResponse(0, 8, 8, BATCH)),
    encode_control(0x7777, [b"what"]),
    encode_control(0x02, [b"short"]),
]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "capture"
    path.write_bytes(_join(*FRAMES))
    return path


def test_frames(run: Run, capture: Path) -> None:
    done = run("inspect", capture, "--full")
    assert (done.code, done.err) == (0, "")
    rows = [line.split(maxsplit=9) for line in done.lines[2:]]
    starts = [len(_join(*FRAMES[:n])) for n in range(len(FRAMES))]
    assert [int(row[0]) for row in rows] == starts
    kinds = " ".join(row[1] for row in rows)
    assert kinds == "control " * 3 + "ingest ack" + " control" * 5
    assert " ".join(done.lines[2].split()) == (
        "0 control control - 0 0 6 crc32c ok - 0x01 CREATE_TOPIC name='events'"
    )
    assert " batch_mode " in done.lines[5]
    assert done.lines[5].split()[3:9] == ["9", "3", "1", "8", "crc32c", "ok"]
    assert "1970-01-01T00:00:00.000000001Z" in done.lines[5]
    assert done.lines[5].endswith(BATCH.hex())
    assert " crc32 ok " in done.lines[7]
    assert "0x10 FETCH topic_id=3 start=0 max_bytes=4096" in done.lines[7]
    assert done.lines[8].endswith("next_offset=8 record_count=1 data=8 bytes")
    assert done.lines[9].endswith("start=0 end=8 high_water_mark=8 data=8 bytes")
    assert "unknown command 0x7777 'what'" in done.lines[10]
    assert "0x02 DELETE_TOPIC malformed: " in done.lines[11]


def test_secrets_are_not_shown(run: Run, capture: Path) -> None:
    for options in ((), ("--full",), ("--hex", "--full")):
        done = run("inspect", capture, *options)
        assert "0x08 AUTHENTICATE\n" in done.out
        assert "top secret" not in done.out
        assert b"top secret".hex() not in done.out


def test_frames_limit_and_skip(run: Run, capture: Path) -> None:
    done = run("inspect", capture, "--skip", 3, "--limit", 2)
    assert [line.split()[1] for line in done.lines[2:-1]] == ["ingest", "ack"]
    assert done.lines[-1] == "… more frames follow: --skip 5"


def test_wrong_payload_checksum(run: Run, capture: Path) -> None:
    data = bytearray(capture.read_bytes())
    start = len(_join(*FRAMES[:3]))
    data[start + 44] ^= 1
    capture.write_bytes(data)
    done = run("inspect", capture)
    # Its length is still good, so the frames behind it are shown.
    assert len(done.lines) == 2 + len(FRAMES)
    assert done.out.count("WRONG") == 1 and "WRONG" in done.lines[5]
    assert done.code == 1
    assert done.err == (
        f"lance-spark: {capture}: wrong payload CRC in 1 frame, the first at byte "
        f"{start}\n"
    )


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (0, "bad magic"),
        (4, "unsupported version"),
        (5, "header CRC"),
        (34, "the payload is cut off"),
    ],
)
def test_wrong_header(run: Run, capture: Path, position: int, reason: str) -> None:
    data = bytearray(capture.read_bytes())
    start = len(_join(*FRAMES[:3]))
    data[start + position] ^= 0x02
    capture.write_bytes(data)
    done = run("inspect", capture)
    assert (done.code, len(done.lines)) == (1, 2 + 3)
    assert done.err.startswith(f"lance-spark: {capture}: no frame at byte {start}: ")
    assert reason in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("cut", [1, 40, 50])
def test_capture_cut_off(run: Run, capture: Path, cut: int) -> None:
    data = capture.read_bytes()
    last = len(_join(*FRAMES[:-1]))
    capture.write_bytes(data[: len(data) - cut] if cut < 49 else data[: last + 3])
    done = run("inspect", capture)
    assert (done.code, len(done.lines)) == (1, 2 + len(FRAMES) - 1)
    assert f"no frame at byte {last}: " in done.err and "is cut off" in done.err


def test_frames_of_another_version(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(b"LANC\x02" + bytes(39))
    assert "no frame at byte 0: unsupported version 2" in run("inspect", path).err
    path.write_bytes(b"LANC")
    assert "the header is cut off, 4 of 44 bytes" in run("inspect", path).err


# What it is not.


def test_content_counts_more_than_the_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "0_1.lnc"
    path.write_bytes(_join(FRAMES[0]))
    assert run("inspect", path).lines[0] == "LWP frames, 50 bytes"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"# Read me", "not a segment, index, journal"),
        (bytes(100), "not a segment, index, journal"),
    ],
)
def test_something_else(run: Run, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "something"
    path.write_bytes(content)
    done = run("inspect", path)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"lance-spark: {path}: {reason}")


def test_no_file(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = run("inspect", missing)
    assert done == (1, "", f"lance-spark: {missing}: No such file or directory\n")
    assert "a directory; `lance-spark check`" in run("inspect", tmp_path).err
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in run("inspect", tmp_path / "pipe").err


def test_small_files_have_a_bound(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(b"LSJOURN0")
    os.truncate(path, 1024**3)
    assert "1,073,741,824 bytes are too many" in run("inspect", path).err


# Values.


@each(
    ("value", "text"),
    [
        (b"", "''"),
        (b"text", "'text'"),
        (b'{"a": 1}', "'{\"a\": 1}'"),
        ("né\n\t".encode(), "'né\\n\\t'"),
        (b"\x00\x01", "0001"),
        (b"\x1b[2J", "1b5b324a"),
        ("\u202e".encode(), "e280ae"),
        # The value ends inside a character: that is no text.
        ("né".encode()[:-1], "6ec3"),
        (memoryview(b"view"), "'view'"),
    ],
)
def test_show_bytes(value: bytes, text: str) -> None:
    assert Selection().show_bytes(value) == text
    assert Selection(full=True).show_bytes(value) == text


def test_show_bytes_cuts() -> None:
    limit = SHOWN_CHARACTERS
    exact = b"x" * (limit - 2)
    assert Selection().show_bytes(exact) == f"'{exact.decode()}'"
    assert Selection().show_bytes(exact + b"x") == "'" + "x" * (limit - 2) + "…"
    assert Selection().show_bytes(b"\x00" * 10**6) == "0" * (limit - 1) + "…"
    assert Selection(full=True).show_bytes(b"x" * 500) == f"'{'x' * 500}'"
    assert Selection(as_hex=True).show_bytes(b"text") == "74657874"


def test_show_bytes_cuts_inside_a_character() -> None:
    # The head that is looked at ends in the middle of the last character.
    value = b"x" + "é".encode() * 1000
    assert Selection().show_bytes(value) == "'x" + "é" * (SHOWN_CHARACTERS - 3) + "…"
