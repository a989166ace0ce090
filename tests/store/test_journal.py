"""The journal."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from lance_spark.errors import StoreError
from lance_spark.store.entrylog import HEAD_BYTES
from lance_spark.store.files import read_file
from lance_spark.store.journal import (
    ENTRY_BYTES_MAX,
    Ended,
    Journal,
    JournalContent,
    JournalEntry,
    OpenDecisions,
    encode_entry,
    parse_journal,
)
from tests.store.disk import DiskFiles
from tests.store.jobs import encode_journal, refusing

PATH = Path("/journal.log")
HEADER = b"LSJOURN0" + (1).to_bytes(4, "little") + bytes(4)
ONE, TWO, THREE = ({"kind": "done", "n": n} for n in (1, 2, 3))
BEGIN, DONE, UNDONE = (
    {"kind": kind, "writer": "w", "sequence": 1} for kind in ("begin", "done", "undone")
)


def of_version_1(
    entries: list[JournalEntry], end: int, damaged: Any = ()
) -> JournalContent:
    return JournalContent(entries, end, list(damaged), current=False)


def parsed(files: DiskFiles) -> JournalContent:
    data = read_file(files, PATH)
    assert data is not None
    return parse_journal(data)


def test_the_bytes_on_disk() -> None:
    body = b'{"kind":"done","n":1}'
    length, crc = len(body).to_bytes(4, "little"), crc32c(body).to_bytes(4, "little")
    assert encode_entry(ONE) == b"LSJE" + length + crc + body


def test_entries_come_back_in_order() -> None:
    data = HEADER + b"".join(map(encode_entry, (ONE, TWO, THREE)))
    assert parse_journal(data) == of_version_1([ONE, TWO, THREE], len(data))


def test_names_of_any_language() -> None:
    entry = {"kind": "done", "writer": "Ωμέγα \U0001f600 LSJE"}
    assert parse_journal(HEADER + encode_entry(entry)).entries == [entry]


def test_an_unfinished_entry_is_left_out() -> None:
    data = HEADER + encode_entry(ONE)
    full = data + encode_entry(TWO)
    for size in range(len(data), len(full)):
        assert parse_journal(full[:size]) == of_version_1([ONE], len(data))


def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    first, second, third = map(encode_entry, (ONE, TWO, THREE))
    start = len(HEADER + first)
    end = start + len(second)
    for bit in range(len(second) * 8):
        damaged = bytearray(HEADER + first + second + third)
        damaged[start + bit // 8] ^= 1 << bit % 8
        found = parse_journal(bytes(damaged))
        expected = of_version_1([ONE, THREE], end + len(third), [(start, end)])
        assert found == expected, bit


def test_a_length_over_the_limit() -> None:
    entry = b"LSJE" + (ENTRY_BYTES_MAX + 1).to_bytes(4, "little") + bytes(4)
    assert parse_journal(HEADER + entry) == of_version_1([], 16)


def test_zeros_where_a_header_was() -> None:
    data = HEADER + b"".join(map(encode_entry, (ONE, TWO)))
    start, end = len(HEADER), len(HEADER) + len(encode_entry(ONE))
    data = data[: start + 4] + bytes(end - start - 4) + data[end:]
    assert parse_journal(data) == of_version_1([TWO], len(data), [(start, end)])


def test_an_entry_that_is_no_object() -> None:
    assert parse_journal(HEADER + encode_entry([1])).entries == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "0 bytes are no journal"),
        (HEADER[:15], "15 bytes are no journal"),
        (b"X" + HEADER[1:], "not a journal file"),
        (bytes(100), "not a journal file"),
    ],
)
def test_another_file(data: bytes, fault: str) -> None:
    assert parse_journal(data) == JournalContent([], 0, [], lost=fault)


def test_another_version_is_not_touched() -> None:
    head = b"LSJOURN0" + (3).to_bytes(4, "little")
    with pytest.raises(StoreError, match="version 3, which is not supported"):
        parse_journal(head + crc32c(head).to_bytes(4, "little"))


# Version 2: a head that is checked, and marks.


@pytest.mark.parametrize("end", [DONE, UNDONE])
def test_no_flipped_bit_makes_version_2_another_journal(end: JournalEntry) -> None:
    """Entries that were answered for are there, or missed; the mark knows the end."""
    good = encode_journal(ONE, BEGIN, end)
    expected = parse_journal(good)
    assert expected.current and expected.entries == [ONE, BEGIN, end]
    for bit in range(len(good) * 8):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        found = parse_journal(bytes(flipped))
        assert found.lost is None
        missing = len(expected.entries) - len(found.entries)
        assert missing == (bit // 8 >= HEAD_BYTES), bit
        assert missing == len(found.damaged), bit
        assert found.damaged or found.faults or found.torn, bit
        lost_end = missing and end not in found.entries
        assert found.ended == (Ended(BEGIN, end is DONE) if lost_end else None)
        assert not found.is_begun_unread


def test_no_cut_makes_version_2_another_journal() -> None:
    good = encode_journal(ONE, BEGIN, DONE)
    for size in range(len(good)):
        found = parse_journal(good[:size])
        assert found.lost or found.damaged or found.faults, size
        assert found.entries == [ONE, BEGIN, DONE][: len(found.entries)]


def test_an_entry_behind_the_mark_may_be_torn() -> None:
    good = encode_journal(ONE, TWO, marked=1)
    for size in range(len(encode_journal(ONE)), len(good)):
        found = parse_journal(good[:size])
        assert (found.entries, found.damaged, found.current) == ([ONE], [], True)


def spoil(data: bytes, *entries: JournalEntry) -> JournalContent:
    """Damage the last byte of some entries, each the first of its kind in the data."""
    spoiled = bytearray(data)
    for entry in entries:
        encoded = encode_entry(entry)
        spoiled[data.index(encoded) + len(encoded) - 1] ^= 1
    return parse_journal(bytes(spoiled))


def job(kind: str, sequence: int) -> JournalEntry:
    return {"kind": kind, "writer": "w", "sequence": sequence}


def test_a_commit_that_is_begun_and_can_not_be_read() -> None:
    assert spoil(encode_journal(ONE, BEGIN), BEGIN).is_begun_unread
    # An entry behind the mark says that it ended, all the same.
    assert not spoil(encode_journal(ONE, BEGIN, DONE, marked=2), BEGIN).is_begun_unread
    # One of several.
    others = (job("begin", 2), BEGIN, job("done", 2), job("begin", 3))
    assert spoil(encode_journal(*others), BEGIN).is_begun_unread
    assert not spoil(encode_journal(*others, DONE), BEGIN).is_begun_unread


@pytest.mark.parametrize("kind", ["done", "undone"])
def test_the_damaged_end_of_one_of_several_commits(kind: str) -> None:
    """Its topics may hold more by now: it must not be taken for one under way."""
    entries = [job("begin", n) for n in (1, 2, 3)]
    entries += [job("undone", 1), job(kind, 2), ONE, job("begin", 4)]
    for marked in (5, 6, 7):
        found = spoil(encode_journal(*entries, marked=marked), job(kind, 2))
        assert found.ended == Ended(job("begin", 2), kind == "done")
        assert not found.is_begun_unread
    # One that was begun again behind it is under way.
    again = spoil(encode_journal(*entries, job("begin", 2), marked=7), job(kind, 2))
    assert (again.ended, again.is_begun_unread) == (None, False)
    # An entry that has nothing to do with it explains nothing.
    assert spoil(encode_journal(*entries), ONE).ended is None
    # Two at once can't be told apart: a person has to look.
    assert spoil(
        encode_journal(*entries), job("undone", 1), job(kind, 2)
    ).is_begun_unread


def test_an_undone_commit_of_0_5_is_not_under_way() -> None:
    """An upgraded journal has its entries: it must not miss a begin that is over."""
    entries = [BEGIN, {"kind": "undone"}, ONE]
    assert not spoil(encode_journal(*entries), BEGIN).is_begun_unread
    found = spoil(encode_journal(*entries), {"kind": "undone"})
    assert found.ended == Ended(BEGIN, is_done=False)


def test_the_mark_follows_the_entries(files: DiskFiles) -> None:
    journal, standing = Journal.create(files, PATH, [ONE]), OpenDecisions()
    for entry in (BEGIN, job("begin", 2), DONE, job("undone", 2), {"kind": "expired"}):
        journal.append(entry)
        standing.add(entry)
        found = parsed(files)
        assert found.mark.end == len(read_file(files, PATH) or b"")
        assert (found.mark.state, found.torn) == (standing.state, False)
    assert standing.begun == {}
    # Nothing is known any more of what was undone before.
    journal.rewrite([DONE])
    assert parsed(files).mark.state == 0


def test_a_refused_mark_is_no_refused_entry(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [])
    with refusing(files, "pwrite", "journal.log", skip=1):
        journal.append(ONE)
    assert parsed(files).entries == [ONE]
    journal.append(TWO)
    assert parsed(files).entries == [ONE, TWO] and parsed(files).current


def test_a_torn_mark_is_set_anew(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [ONE])
    for entry in (TWO, THREE):
        files.open(PATH).pwrite(b"torn", 16 if entry is TWO else 40)
        found = parsed(files)
        assert found.torn and found.current
        journal = Journal.resume(files, PATH, found)
        assert not parsed(files).torn
        journal.append(entry)
    assert parsed(files).entries == [ONE, TWO, THREE]


def test_version_1_is_written_anew_when_there_is_room(files: DiskFiles) -> None:
    files.open(PATH, create=True).pwrite(HEADER + encode_entry(ONE), 0)
    prepared: list[int] = []
    journal = Journal.outdated(files, PATH, [ONE], prepare=lambda: prepared.append(1))
    assert journal.is_outdated and not prepared
    with refusing(files, "pwrite", "journal.log.tmp"), pytest.raises(OSError):
        journal.append(TWO)
    assert parse_journal(read_file(files, PATH) or b"").entries == [ONE]
    journal.append(TWO)
    assert prepared and not journal.is_outdated
    assert parsed(files).entries == [ONE, TWO] and parsed(files).current
    journal.close()


# The file.


def test_create_append_resume(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [ONE])
    journal.append(TWO)
    assert journal.size == len(read_file(files, PATH) or b"")
    journal.close()
    journal = Journal.resume(files, PATH, parsed(files))
    journal.append(THREE)
    assert parsed(files).entries == [ONE, TWO, THREE]


def test_what_a_killed_process_wrote_is_durable_once_it_was_read(
    files: DiskFiles,
) -> None:
    files.open(PATH, create=True).pwrite(encode_journal(ONE, marked=0), 0)
    Journal.resume(files, PATH, parsed(files))
    left = DiskFiles(files.disk.without_power("drop", random.Random(0)))
    assert parsed(left).entries == [ONE]


def test_resume_cuts_off_what_is_not_encode_journal(files: DiskFiles) -> None:
    journal = Journal.create(files, PATH, [ONE])
    files.open(PATH).pwrite(b"LSJE torn", journal.size)
    Journal.resume(files, PATH, parsed(files)).append(TWO)
    found = parsed(files)
    assert found.entries == [ONE, TWO] and found.current
    assert found.end == journal.size + len(encode_entry(TWO))


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
