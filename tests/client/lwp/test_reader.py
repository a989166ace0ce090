"""Whole records out of bytes that are cut anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lance_spark.client.lwp.reader import (
    FETCH_BYTES_MAX,
    OVERLAP_BYTES,
    Chunk,
    RecordReader,
    count_lacking_bytes,
)
from lance_spark.columnar.decode import decode
from lance_spark.errors import (
    ConnectionLost,
    DataLoss,
    OffsetsShifted,
    OptionError,
    RecordError,
    RemoteProtocolError,
    StorageError,
    Timeout,
    TopicDeleted,
    TopicNotFound,
)
from tests.client.kit_flow import FakeLog, record
from tests.each import each

# 10, 11, 12 … bytes long, so that cuts fall everywhere.
RECORDS = [record("x" * (5 + number)) for number in range(40)]
DATA = b"".join(RECORDS)
BOUNDS = [0, *np.cumsum([len(r) for r in RECORDS]).tolist()]


def _reader(log: FakeLog, start: int = 0, **options: Any) -> RecordReader:
    client: Any = log
    return RecordReader(client, "events", start, **options)


def _read_all(reader: RecordReader) -> list[Chunk]:
    chunks = []
    while (chunk := reader.next_chunk()) is not None:
        chunks.append(chunk)
    return chunks


def _check(chunks: list[Chunk], start: int, end: int) -> None:
    """Check that the chunks are whole records and follow each other."""
    assert b"".join(chunk.data for chunk in chunks) == DATA[start:end]
    at = start
    for chunk in chunks:
        assert chunk.start == at
        assert chunk.end == at + len(chunk.data)
        assert chunk.end in BOUNDS
        found = [at + int(position) for position in chunk.starts]
        assert found == [b for b in BOUNDS if chunk.start <= b < chunk.end]
        assert chunk.records == len(found) > 0
        at = chunk.end


# Cuts.


@each("prefetch", [True, False])
@each("whole", [True, False])
@each("size", [1, 2, 3, 4, 5, 6, 7, 9, 10, 31, 64, 500, 100_000])
def test_reads_everything_once(size: int, whole: bool, prefetch: bool) -> None:
    log = FakeLog(DATA, whole=whole)
    reader = _reader(log, fetch_bytes=size, prefetch=prefetch)
    _check(_read_all(reader), 0, len(DATA))
    assert reader.position == len(DATA)
    assert not reader.is_finished, "there may be more later"


def test_random_cuts() -> None:
    chance = random.Random(7)

    class Log(FakeLog):
        def _read(self, start: int, max_bytes: int) -> Any:
            return super()._read(start, chance.randint(1, max_bytes))

    for _ in range(50):
        reader = _reader(Log(DATA), fetch_bytes=chance.randint(1, 200))
        _check(_read_all(reader), 0, len(DATA))


def test_starts_in_the_middle() -> None:
    reader = _reader(FakeLog(DATA), BOUNDS[10], fetch_bytes=100)
    _check(_read_all(reader), BOUNDS[10], len(DATA))


def test_empty_topic() -> None:
    for whole in (True, False):
        log = FakeLog(whole=whole)
        reader = _reader(log)
        assert reader.next_chunk() is None
        log.append(DATA)
        _check(_read_all(reader), 0, len(DATA))


def test_a_partial_record_at_the_end_is_not_there_yet() -> None:
    log = FakeLog(DATA[:-3])
    reader = _reader(log)
    _check(_read_all(reader), 0, BOUNDS[-2])
    assert reader.position == BOUNDS[-2]
    assert reader.next_chunk() is None
    log.append(DATA[-3:])
    _check(_read_all(reader), BOUNDS[-2], len(DATA))


def test_a_record_larger_than_the_fetch_grows_it() -> None:
    data = record("a") + record("x" * 100_000) + record("b")
    log = FakeLog(data)
    chunks = _read_all(_reader(log, fetch_bytes=64, prefetch=False))
    assert b"".join(chunk.data for chunk in chunks) == data
    # One fetch brings the header, the next one the whole rest, and again what came.
    sizes = [size for _, size, _ in log.asked]
    assert sizes[:2] == [64, 64 + 100_005 + 6 - 64]
    # The last one sees that nothing follows what a plain server was asked for again.
    assert len(log.asked) <= 5


def test_the_largest_record_is_more_than_one_answer() -> None:
    data = record(bytes(16 * 1024 * 1024)) + record("end")
    log = FakeLog(data)
    chunks = _read_all(_reader(log, prefetch=False))
    assert sum(chunk.records for chunk in chunks) == 2
    assert max(size for _, size, _ in log.asked) <= FETCH_BYTES_MAX


@each(
    ("start", "end", "lacking", "wanted"),
    [
        (0, None, 0, 1000),
        (0, 400, 0, 400),
        (0, 5000, 0, 1000),
        (500, 501, 0, 5),
        (500, 400, 0, 5),
        (0, None, 30, 1000),
        (0, None, 4000, 4000),
        (0, 400, 4000, 4000),
        (0, None, 2**31, FETCH_BYTES_MAX),
    ],
)
def test_plan_fetch_bytes(start: int, end: Any, lacking: int, wanted: int) -> None:
    reader = _reader(FakeLog(DATA), end=end, fetch_bytes=1000)
    if lacking:
        reader._tail = memoryview(b"\x01" + lacking.to_bytes(4, "little"))
    reader.position = start - len(reader._tail)
    assert reader._plan_size(start) == wanted
    # An answer that is on its way brings some of it.
    assert reader._plan_size(start + 7, 3) <= wanted + 3


@pytest.mark.parametrize(
    ("tail", "lacking"),
    [
        (b"", 0),
        (b"\x01", 4),
        (b"\x01\x0a\0\0", 1),
        (b"\x01\x0a\0\0\0", 10),
        (b"\x01\x0a\0\0\0abc", 7),
        (b"\x01\0\0\0\1", 2**24),
    ],
)
def test_count_lacking_bytes(tail: bytes, lacking: int) -> None:
    assert count_lacking_bytes(memoryview(tail)) == lacking


def test_what_was_found_is_known_to_decode() -> None:
    chunk = _reader(FakeLog(DATA)).next_chunk()
    assert chunk is not None
    assert decode(chunk.data, found=chunk.found).batch == decode(DATA).batch
    first, rest = chunk.split(3)
    assert rest is not None
    assert decode(rest.data, found=rest.found).batch == decode(rest.data).batch
    assert decode(first.data, found=first.found).batch.num_rows == 3


# Ranges.


@each("whole", [True, False])
@each("size", [1, 7, 33, 1000])
def test_range_ends_on_a_boundary(size: int, whole: bool) -> None:
    log = FakeLog(DATA, whole=whole)
    reader = _reader(log, BOUNDS[3], end=BOUNDS[20], fetch_bytes=size)
    _check(_read_all(reader), BOUNDS[3], BOUNDS[20])
    assert reader.is_finished
    assert reader.next_chunk() is None


@pytest.mark.parametrize("size", [1, 7, 33, 1000])
def test_a_record_belongs_to_the_range_it_starts_in(size: int) -> None:
    for end in (BOUNDS[20] - 1, BOUNDS[19] + 1):
        reader = _reader(FakeLog(DATA), BOUNDS[3], end=end, fetch_bytes=size)
        _check(_read_all(reader), BOUNDS[3], BOUNDS[20])


def test_a_server_that_gives_more_than_it_was_asked_for() -> None:
    class Log(FakeLog):
        def _read(self, start: int, max_bytes: int) -> Any:
            return super()._read(start, max_bytes + 100)

    reader = _reader(Log(DATA), BOUNDS[3], end=BOUNDS[20], fetch_bytes=64)
    _check(_read_all(reader), BOUNDS[3], BOUNDS[20])


def test_an_empty_range_asks_for_nothing() -> None:
    log = FakeLog(DATA)
    assert _reader(log, BOUNDS[5], end=BOUNDS[5]).next_chunk() is None
    assert log.asked == []


def test_does_not_read_beyond_the_range() -> None:
    log = FakeLog(DATA)
    _read_all(_reader(log, end=BOUNDS[20], fetch_bytes=100))
    assert max(start + size for start, size, _ in log.asked) <= BOUNDS[20] + 5


def test_a_range_that_is_not_there_yet() -> None:
    log = FakeLog(DATA[: BOUNDS[10]])
    reader = _reader(log, end=BOUNDS[20])
    _check(_read_all(reader), 0, BOUNDS[10])
    assert not reader.is_finished
    log.append(DATA[BOUNDS[10] :])
    _check(_read_all(reader), BOUNDS[10], BOUNDS[20])


# Fetching ahead.


@pytest.mark.parametrize("whole", [True, False])
def test_the_next_fetch_is_sent_before_it_is_asked_for(whole: bool) -> None:
    log = FakeLog(DATA, whole=whole)
    reader = _reader(log, fetch_bytes=BOUNDS[5])
    reader.next_chunk()
    # A plain server is asked again for what was read last.
    again = 0 if whole else BOUNDS[5]
    assert log.asked == [
        (0, BOUNDS[5], "fetch"),
        (BOUNDS[5] - again, BOUNDS[5] + again, "ahead"),
    ]
    reader.next_chunk()
    assert [how for _, _, how in log.asked] == ["fetch", "ahead", "ahead"]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("prefetch", [True, False])
def test_small_at_first(whole: bool, prefetch: bool) -> None:
    log = FakeLog(DATA * 20, whole=whole)
    options = {"fetch_bytes": 5000, "first_fetch_bytes": 100, "prefetch": prefetch}
    chunks = _read_all(_reader(log, **options))
    assert b"".join(chunk.data for chunk in chunks) == DATA * 20
    sizes = [size for _, size, _ in log.asked]
    again = [0, 0, 0, 0, 0] if whole else [0, 100, 500, 2100, 7100]
    assert sizes[:5] == list(
        map(sum, zip([100, 400, 1600, 5000, 5000], again, strict=True))
    )
    if prefetch:
        # Also where only a full answer tells that there is more.
        assert {how for _, _, how in log.asked[1:4]} == {"ahead"}


def test_small_at_first_but_never_more_than_at_last() -> None:
    log = FakeLog(DATA)
    _read_all(_reader(log, fetch_bytes=64, first_fetch_bytes=1000))
    ends = sorted({0, *(start + size for start, size, _ in log.asked)})
    assert max(after - before for before, after in pairwise(ends)) == 64


@pytest.mark.parametrize("size", [0, -1])
def test_first_fetch_of_nothing(size: int) -> None:
    with pytest.raises(OptionError, match=f"first_fetch_bytes={size}: must be a whole"):
        _reader(FakeLog(DATA), first_fetch_bytes=size)


def test_nothing_is_fetched_ahead_at_the_end() -> None:
    for whole in (True, False):
        log = FakeLog(DATA, whole=whole)
        _reader(log, fetch_bytes=len(DATA) + 1).next_chunk()
        assert [how for _, _, how in log.asked] == ["fetch"]


def test_an_empty_answer_from_before_is_not_believed() -> None:
    # The fetch ahead found nothing; what came since must be found all the same.
    log = FakeLog(DATA)
    reader = _reader(log, fetch_bytes=len(DATA))
    assert reader.next_chunk() is not None
    assert log.asked[-1] == (0, 2 * len(DATA), "ahead")
    log.append(record("new"))
    chunk = reader.next_chunk()
    assert chunk is not None
    assert chunk.data == record("new")


def test_seek() -> None:
    log = FakeLog(DATA)
    reader = _reader(log, fetch_bytes=64)
    reader.next_chunk()
    reader.seek(BOUNDS[30])
    assert reader.position == BOUNDS[30]
    assert log.given_up == 1
    _check(_read_all(reader), BOUNDS[30], len(DATA))
    reader.seek(0)
    _check(_read_all(reader), 0, len(DATA))
    reader.close()


# Waiting.


def test_waits_on_the_server_in_pieces() -> None:
    log = FakeLog(whole=True)
    now_s = [0.0]

    def wait_on_the_server() -> None:
        now_s[0] += log.waits_s[-1]

    log.before = wait_on_the_server
    slept: list[float] = []
    reader = _reader(log, clock=lambda: now_s[0], sleep=slept.append)
    assert reader.next_chunk(wait_s=12.0) is None
    assert log.waits_s == [5.0, 5.0, 2.0]
    assert set(slept) <= {0.0}


def test_polls_a_server_that_can_not_wait() -> None:
    log = FakeLog()
    now_s, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    reader = _reader(log, clock=lambda: now_s[0], sleep=sleep)
    assert reader.next_chunk(wait_s=1.0) is None
    assert sum(slept) == pytest.approx(1.0)
    assert slept[:4] == [0.002, 0.004, 0.008, 0.016]
    assert max(slept) <= 0.25


def test_what_comes_while_waiting() -> None:
    log = FakeLog()
    reader = _reader(log, follow_s=10.0, sleep=lambda seconds: log.append(DATA))
    chunk = reader.next_chunk()
    assert chunk is not None
    assert chunk.data == DATA


def test_does_not_wait_unless_told() -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    log = FakeLog()
    assert _reader(log, sleep=sleep).next_chunk() is None
    assert log.waits_s == [0.0]


# Trouble.


@pytest.mark.parametrize("size", [13, 64])
@pytest.mark.parametrize(
    "error", [ConnectionLost("cut"), Timeout("late"), RemoteProtocolError("garbled")]
)
def test_goes_on_behind_the_last_whole_record(size: int, error: Exception) -> None:
    log = FakeLog(DATA)
    # Every third request is lost.
    log.errors = [error if number % 3 == 2 else None for number in range(1000)]
    client: Any = _Retrying(log)
    reader = RecordReader(client, "events", 0, fetch_bytes=size)
    _check(_read_all(reader), 0, len(DATA))
    # What was fetched ahead and lost was asked for again.
    assert [how for _, _, how in log.asked].count("fetch") > 2


class _Retrying:
    """The client's own retries of `fetch`, on top of a log that fails."""

    def __init__(self, log: FakeLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def fetch(self, *arguments: Any, **options: Any) -> Any:
        while True:
            with suppress(ConnectionLost, Timeout, RemoteProtocolError):
                return self._log.fetch(*arguments, **options)


def test_a_fetch_ahead_that_can_not_be_sent_is_sent_later() -> None:
    class Log(FakeLog):
        def submit_fetch(self, *arguments: Any, **options: Any) -> Any:
            raise ConnectionLost("no server can be reached")

    _check(_read_all(_reader(Log(DATA), fetch_bytes=50)), 0, len(DATA))


def test_a_fetch_ahead_that_is_refused_is_told() -> None:
    class Log(FakeLog):
        def submit_fetch(self, *arguments: Any, **options: Any) -> Any:
            raise OptionError("no")

    with pytest.raises(OptionError):
        _reader(Log(DATA), fetch_bytes=50).next_chunk()


def test_what_will_not_pass_is_told() -> None:
    log = FakeLog(DATA)
    reader = _reader(log, fetch_bytes=50)
    log.errors = [None, StorageError("damaged")]
    assert reader.next_chunk() is not None
    with pytest.raises(StorageError):
        reader.next_chunk()


# Lost data.


@pytest.mark.parametrize("ahead", [True, False])
def test_retention_passed_the_position(ahead: bool) -> None:
    log = FakeLog(DATA, whole=True)
    reader = _reader(log, fetch_bytes=BOUNDS[2], prefetch=ahead)
    assert reader.next_chunk() is not None
    log.start = BOUNDS[20]
    if ahead:
        # What was fetched ahead was still there then.
        assert reader.next_chunk() is not None
    asked = reader.position
    with pytest.raises(DataLoss) as caught:
        _read_all(reader)
    loss = caught.value
    assert (loss.topic, loss.log_start, loss.log_end) == (
        "events",
        BOUNDS[20],
        len(DATA),
    )
    assert loss.asked >= asked
    assert loss.missing_bytes == BOUNDS[20] - loss.asked
    # Whoever may lose it goes on from there.
    reader.seek(BOUNDS[20])
    _check(_read_all(reader), BOUNDS[20], len(DATA))


def test_retention_took_everything() -> None:
    log = FakeLog(DATA, whole=True)
    log.start = len(DATA)
    with pytest.raises(DataLoss) as caught:
        _reader(log).next_chunk()
    assert caught.value.missing_bytes == len(DATA)


@pytest.mark.parametrize("whole", [True, False])
def test_the_log_is_shorter_than_the_position(whole: bool) -> None:
    log = FakeLog(DATA, whole=whole)
    reader = _reader(log, len(DATA) + 100)
    with pytest.raises(DataLoss, match="ends before it") as caught:
        reader.next_chunk()
    assert (caught.value.asked, caught.value.log_end) == (len(DATA) + 100, len(DATA))
    assert caught.value.missing_bytes is None


@pytest.mark.parametrize("error", [TopicNotFound("gone"), TopicDeleted("gone")])
@pytest.mark.parametrize("lead", [0, 1])
def test_the_topic_is_gone(error: Exception, lead: int) -> None:
    log = FakeLog(DATA)
    log.errors = [*[None] * lead, error]
    reader = _reader(log, fetch_bytes=50)
    for _ in range(lead):
        reader.next_chunk()
    with pytest.raises(DataLoss, match="deleted") as caught:
        reader.next_chunk()
    assert caught.value.__cause__ is error


def test_a_topic_created_anew_is_not_taken_for_the_old_one() -> None:
    log = FakeLog(DATA)
    reader = _reader(log, fetch_bytes=50, prefetch=False)
    reader.next_chunk()
    log.topic_ids = {"events": 8}
    with pytest.raises(DataLoss, match="topic id 7 is gone"):
        reader.next_chunk()


def test_there_is_no_such_topic() -> None:
    client: Any = FakeLog()
    with pytest.raises(TopicNotFound):
        RecordReader(client, "nothing", 0)


def test_bytes_from_elsewhere() -> None:
    class Log(FakeLog):
        def _read(self, start: int, max_bytes: int) -> Any:
            return super()._read(max(0, start - 10), max_bytes)

    with pytest.raises(RemoteProtocolError, match=r"from 90 came .* from 100"):
        _reader(Log(DATA, whole=True), 100).next_chunk()
    start, asked = 20 * len(DATA), 20 * len(DATA) - OVERLAP_BYTES
    with pytest.raises(RemoteProtocolError, match=f"{asked - 10} came .* {asked}"):
        _reader(Log(DATA * 30), start).next_chunk()


# Offsets that shift.

# All of a size, so that a shift by whole records leads to the start of another one, and
# with more padding than any mark of a few bytes covers.
PADDED_BYTES = 5 + 8 + 187


def _padded(first: int, count: int) -> bytes:
    numbers = range(first, first + count)
    return b"".join(record(b"%08d" % number + bytes(187)) for number in numbers)


def _numbers(chunk: Chunk | None) -> list[int]:
    assert chunk is not None
    data = bytes(chunk.data)
    return [int(data[at + 5 : at + 13]) for at in chunk.starts.tolist()]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("size", [64, 1000, 100_000])
def test_a_shift_is_met_at_the_next_fetch(size: int, ahead: bool) -> None:
    log = FakeLog(_padded(0, 500))
    reader = _reader(log, fetch_bytes=size, prefetch=ahead)
    seen = _numbers(reader.next_chunk())
    seen += _numbers(reader.next_chunk()) if reader.position < 200 else []
    log.shift(300 * PADDED_BYTES)
    log.append(_padded(500, 400))
    # What was fetched ahead before is right; what comes next is not there any more.
    for _ in range(2):
        with pytest.raises(OffsetsShifted) as told:
            for _ in range(100):
                seen += _numbers(reader.next_chunk())
        assert f"data at offset {reader.position} is lost" in str(told.value)
        assert "deleted data and its offsets have shifted" in str(told.value)
    assert seen == list(range(len(seen)))
    reader.seek(0)
    assert _numbers(reader.next_chunk())[0] == 300


def test_a_shift_is_told_until_there_is_a_seek() -> None:
    log = FakeLog(_padded(0, 10))
    reader = _reader(log, fetch_bytes=PADDED_BYTES + 40)
    reader.next_chunk()
    log.shift(5 * PADDED_BYTES)
    for _ in range(3):
        with pytest.raises(OffsetsShifted):
            while reader.next_chunk() is not None:
                pass
        # Not even where nothing is left to compare with.
        reader.before = b""
    reader.seek(PADDED_BYTES)
    assert _numbers(reader.next_chunk())[0] == 6


def test_a_shift_while_there_is_nothing_to_read() -> None:
    """As much is appended as was deleted: where the log ends shows nothing."""
    log = FakeLog(_padded(0, 100))
    reader = _reader(log)
    assert len(_numbers(reader.next_chunk())) == 100
    for _ in range(3):
        assert reader.next_chunk() is None
    log.shift(40 * PADDED_BYTES)
    log.append(_padded(100, 50))
    with pytest.raises(OffsetsShifted):
        reader.next_chunk()


def test_a_shift_between_two_requests_of_one_look() -> None:
    """Nothing new came with what was read last; what comes then is compared too."""
    log = FakeLog(_padded(0, 100))
    reader = _reader(log)
    reader.next_chunk()
    requests = 0

    def shift_at_the_second() -> None:
        nonlocal requests
        requests += 1
        if requests == 2:
            log.shift(40 * PADDED_BYTES)
            log.append(_padded(100, 50))

    log.before = shift_at_the_second
    with pytest.raises(OffsetsShifted):
        reader.next_chunk()


def test_a_shift_before_the_first_record_comes() -> None:
    """A reader that waits at the end has looked at what stands before it."""
    log = FakeLog(_padded(0, 100))
    reader = _reader(log, 100 * PADDED_BYTES)
    assert reader.next_chunk() is None
    log.shift(40 * PADDED_BYTES)
    log.append(_padded(100, 50))
    with pytest.raises(OffsetsShifted):
        reader.next_chunk()


def test_a_shift_that_cuts_what_was_read_last() -> None:
    log = FakeLog(_padded(0, 100))
    reader = _reader(log)
    reader.next_chunk()
    log.shift(PADDED_BYTES)
    with pytest.raises(DataLoss):
        reader.next_chunk()
    # Also where the bytes that are left are the same.
    log = FakeLog(record("x" * 95) * 100)
    reader = _reader(log)
    reader.next_chunk()
    log.shift(100)
    with pytest.raises(DataLoss, match="the log ends before it"):
        reader.next_chunk()


def test_what_stood_before_the_start_can_be_given() -> None:
    data = _padded(0, 100)
    start = 50 * PADDED_BYTES
    reader = _reader(FakeLog(data), start, before=data[:start][-OVERLAP_BYTES:])
    assert _numbers(reader.next_chunk())[0] == 50
    assert reader.before == data[-OVERLAP_BYTES:]
    reader = _reader(FakeLog(data), start, before=data[: start - PADDED_BYTES])
    with pytest.raises(OffsetsShifted):
        reader.next_chunk()


def test_our_own_server_is_asked_for_nothing_twice() -> None:
    log = FakeLog(DATA, whole=True)
    _check(_read_all(_reader(log, fetch_bytes=100)), 0, len(DATA))
    fetched = [start for start, _, _ in log.asked]
    assert fetched == sorted(fetched)
    assert set(fetched) <= set(BOUNDS)


def test_a_plain_server_that_cuts_behind_whole_records() -> None:
    """It may answer with what was read last, although there is more."""

    records = [record(b"x" * size) for size in (1, 50_000, 1, 99_999, 20_000, 1)]
    data = b"".join(records)
    bounds = np.cumsum([len(r) for r in records]).tolist()

    class Log(FakeLog):
        def _read(self, start: int, max_bytes: int) -> Any:
            ends = [end for end in bounds if end > start]
            fitting = [end for end in ends if end <= start + max_bytes] or ends[:1]
            return super()._read(start, fitting[-1] - start if fitting else 0)

    for prefetch in (True, False):
        reader = _reader(Log(data), fetch_bytes=50, prefetch=prefetch)
        chunks = _read_all(reader)
        assert b"".join(chunk.data for chunk in chunks) == data


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_of_a_plain_log(seed: int) -> None:
    """Every record comes, in order, or it is told that one does not."""
    chance = random.Random(seed)
    for _ in range(20):
        _run_history(chance)


def _run_history(chance: random.Random) -> None:
    log, first, count = FakeLog(), 0, 0
    reader = _reader(
        log,
        fetch_bytes=chance.choice([30, 250, 5000, 100_000]),
        prefetch=chance.random() < 0.5,
    )
    due, is_shifted = 0, False
    for _ in range(60):
        step = chance.random()
        if step < 0.4:
            more = chance.choice([1, 7, 60])
            log.append(_padded(count, more))
            count += more
        elif step < 0.5 and count > first:
            gone = chance.randint(1, count - first)
            log.shift(gone * PADDED_BYTES)
            first, is_shifted = first + gone, True
        elif step < 0.55:
            log.errors.append(ConnectionLost("gone"))
        else:
            is_new = reader.position == 0
            try:
                chunk = reader.next_chunk()
            except ConnectionLost:
                continue
            except DataLoss:
                assert is_shifted
                reader.seek(0)
                due, is_shifted = first, False
                continue
            if chunk is None:
                continue
            numbers = _numbers(chunk)
            # Where nothing was read yet, the log starts wherever it starts.
            due = numbers[0] if is_new else due
            assert numbers == list(range(due, due + len(numbers)))
            due += len(numbers)


# Bad records.


@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        (b"\0\1\0\0\0x", RecordError, "'events': type 0"),
        (b"\1\xff\xff\xff\xff", RecordError, "over the limit"),
    ],
)
@pytest.mark.parametrize("size", [1, 64, 10_000])
def test_bad_records_come_behind_the_good_ones(
    bad: bytes, kind: type[RecordError], text: str, size: int
) -> None:
    reader = _reader(FakeLog(DATA + bad + DATA), fetch_bytes=size)
    chunks: list[Chunk] = []
    with pytest.raises(kind, match=text) as caught:
        while (chunk := reader.next_chunk()) is not None:
            chunks.append(chunk)
    _check(chunks, 0, len(DATA))
    assert caught.value.position == len(DATA) == reader.position
    with pytest.raises(kind):
        reader.next_chunk()


@pytest.mark.parametrize("size", [0, FETCH_BYTES_MAX + 1])
def test_bad_fetch_bytes(size: int) -> None:
    with pytest.raises(OptionError, match="fetch_bytes"):
        _reader(FakeLog(), fetch_bytes=size)


# Chunks.


def _chunk(make: Callable[[], Chunk | None]) -> Chunk:
    chunk = make()
    assert chunk is not None
    return chunk


def test_split() -> None:
    chunk = _chunk(_reader(FakeLog(DATA)).next_chunk)
    first, rest = chunk.split(3)
    assert rest is not None
    assert (first.start, first.end, first.records) == (0, BOUNDS[3], 3)
    _check([first, rest], 0, len(DATA))
    _, last = rest.split(36)
    assert last is not None
    _check([last], BOUNDS[39], len(DATA))
    assert chunk.split(40) == (chunk, None)
    assert chunk.split(99) == (chunk, None)
