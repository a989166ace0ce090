"""The journal."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from crc32c import crc32c

from lance_spark.errors import StoreError
from lance_spark.store.files import read_file
from lance_spark.store.journal import (
    ENTRY_BYTES_MAX,
    Journal,
    Parsed,
    encode_entry,
    encode_file_header,
    parse_journal,
)
from tests.store.disk import DiskFiles
from tests.store.jobs import refusing

PATH = Path("/journal.log")
HEADER = b"LSJOURN0" + (1).to_bytes(4, "little") + bytes(4)
ONE, TWO, THREE = ({"kind": "done", "n": n} for n in (1, 2, 3))


def parsed(files: DiskFiles) -> Parsed:
    data = read_file(files, PATH)
    assert data is not None
    return parse_journal(data)


def test_the_bytes_on_disk() -> None:
    body = b'{"kind":"done","n":1}'
    length, crc = len(body).to_bytes(4, "little"), crc32c(body).to_bytes(4, "little")
    assert encode_entry(ONE) == b"LSJE" + length + crc + body
    assert encode_file_header() == HEADER


def test_entries_come_back_in_order() -> None:
    data = HEADER + b"".join(map(encode_entry, (ONE, TWO, THREE)))
    assert parse_journal(data) == Parsed([ONE, TWO, THREE], len(data), [])


def test_names_of_any_language() -> None:
    entry = {"kind": "done", "writer": "Ωμέγα \U0001f600 LSJE"}
    assert parse_journal(HEADER + encode_entry(entry)).entries == [entry]


def test_an_unfinished_entry_is_left_out() -> None:
    data = HEADER + encode_entry(ONE)
    whole = data + encode_entry(TWO)
    for size in range(len(data), len(whole)):
        assert parse_journal(whole[:size]) == Parsed([ONE], len(data), [])


def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    first, second, third = map(encode_entry, (ONE, TWO, THREE))
    start = len(HEADER + first)
    end = start + len(second)
    for bit in range(len(second) * 8):
        damaged = bytearray(HEADER + first + second + third)
        damaged[start + bit // 8] ^= 1 << bit % 8
        found = parse_journal(bytes(damaged))
        assert found == Parsed([ONE, THREE], end + len(third), [(start, end)]), bit


def test_a_length_over_the_limit() -> None:
    entry = b"LSJE" + (ENTRY_BYTES_MAX + 1).to_bytes(4, "little") + bytes(4)
    assert parse_journal(HEADER + entry) == Parsed([], 16, [])


def test_an_entry_that_is_no_object() -> None:
    assert parse_journal(HEADER + encode_entry([1])).entries == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "0 bytes are no journal"),
        (HEADER[:15], "15 bytes are no journal"),
        (b"X" + HEADER[1:], "not a journal file"),
    ],
)
def test_another_file(data: bytes, fault: str) -> None:
    assert parse_journal(data) == Parsed([], 0, [], fault)


def test_another_version_is_not_touched() -> None:
    with pytest.raises(StoreError, match="version 2, which is not supported"):
        parse_journal(b"LSJOURN0" + (2).to_bytes(4, "little") + bytes(4))


def test_create_append_resume(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [ONE])
    journal.append(TWO)
    assert journal.size == len(read_file(files, PATH) or b"")
    journal.close()
    journal = Journal.resume(files, PATH, journal.size)
    journal.append(THREE)
    assert parsed(files).entries == [ONE, TWO, THREE]


def test_what_a_killed_process_wrote_is_durable_once_it_was_read(
    files: DiskFiles,
) -> None:
    data = HEADER + encode_entry(ONE)
    files.open(PATH, create=True).pwrite(data, 0)
    Journal.resume(files, PATH, len(data))
    left = DiskFiles(files.disk.without_power("drop", random.Random(0)))
    assert parsed(left).entries == [ONE]


def test_resume_cuts_off_what_is_not_whole(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [ONE])
    files.open(PATH).pwrite(b"LSJE torn", journal.size)
    Journal.resume(files, PATH, journal.size).append(TWO)
    assert parsed(files) == Parsed(
        [ONE, TWO], journal.size + len(encode_entry(TWO)), []
    )


def test_an_entry_over_the_limit_is_refused(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_spark.store.journal.ENTRY_BYTES_MAX", 100)
    journal = Journal.create(files, PATH, [])
    with pytest.raises(StoreError, match="commit fewer stages at once"):
        journal.append({"kind": "begin", "stages": list(range(100))})
    journal.append(ONE)
    assert parsed(files).entries == [ONE]


def test_a_refused_write_is_taken_back(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [])
    with refusing(files, "pwrite", "journal.log"), pytest.raises(OSError):
        journal.append(ONE)
    assert not journal.failed
    assert parsed(files).end == len(read_file(files, PATH) or b"")
    journal.append(TWO)
    assert parsed(files).entries == [TWO]


def test_a_write_that_can_not_be_taken_back_is_the_last(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [])
    with (
        refusing(files, "truncate", "journal.log"),
        refusing(files, "pwrite", "journal.log"),
        pytest.raises(OSError),
    ):
        journal.append(ONE)
    assert journal.failed
    with pytest.raises(OSError):
        journal.append(TWO)


def test_a_failed_sync_is_the_last(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [])
    with refusing(files, "sync", "journal.log"), pytest.raises(OSError):
        journal.append(ONE)
    assert journal.failed
    with pytest.raises(OSError):
        journal.append(TWO)


def test_rewrite(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [ONE, TWO])
    journal.rewrite([TWO])
    journal.append(THREE)
    assert parsed(files).entries == [TWO, THREE]
    assert journal.size == parsed(files).end


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync"])
def test_a_rewrite_that_was_not_begun(files: DiskFiles, operation: str) -> None:
    journal = Journal.create(files, PATH, [ONE])
    with refusing(files, operation, "journal.log.tmp"), pytest.raises(OSError):
        journal.rewrite([])
    assert not journal.failed
    journal.append(TWO)
    assert parsed(files).entries == [ONE, TWO]


@pytest.mark.parametrize("operation", ["replace", "sync_dir"])
def test_a_rewrite_that_may_have_happened_is_the_last(
    files: DiskFiles, operation: str
) -> None:
    journal = Journal.create(files, PATH, [ONE])
    with refusing(files, operation, "/"), pytest.raises(OSError):
        journal.rewrite([ONE])
    assert journal.failed
    with pytest.raises(OSError):
        journal.append(TWO)
    assert parsed(files).entries == [ONE]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_rewrite_without_a_descriptor_for_the_directory(
    files: DiskFiles, code: int
) -> None:
    """The next entry waits until the loss of power would leave the new file."""
    journal = Journal.create(files, PATH, [ONE, TWO])
    with refusing(files, "sync_dir", "/", code=code):
        for attempt in (lambda: journal.rewrite([TWO]), lambda: journal.append(THREE)):
            with pytest.raises(OSError):
                attempt()
            assert not journal.failed
    assert parsed(files).entries == [TWO]
    journal.append(THREE)
    left = DiskFiles(files.disk.without_power("drop", random.Random(0)))
    assert parsed(left).entries == [TWO, THREE]


def test_a_rewrite_that_is_not_durable_and_can_not_be_made_so(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [ONE])
    with refusing(files, "sync_dir", "/", code=errno.EMFILE), pytest.raises(OSError):
        journal.rewrite([ONE])
    with refusing(files, "sync_dir", "/"), pytest.raises(OSError):
        journal.append(TWO)
    assert journal.failed and parsed(files).entries == [ONE]
