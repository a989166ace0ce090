"""Damaged input: no exception outside the tree, no hang, no runaway memory.

50 000 inputs by default, always the same. `make fuzz` runs for as long as it is told,
from a seed that it prints; LANCE_CAMPAIGN_SEED repeats such a run.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType as StackFrame

import pytest

from lance_spark.errors import LanceError, LocalProtocolError
from lance_spark.wire.lwp import (
    HEADER_BYTES,
    Checksum,
    ErrorResponse,
    ExtendedFetchResponse,
    Frame,
    FrameParser,
    FrameType,
    Message,
    decode_fetch_response,
    decode_records,
    decode_request,
    decode_response,
    decompress,
    encode_record,
)
from tests.campaign import Tally
from tests.wire.mutation import Mutator
from tests.wire.vectors import join, load

INPUTS = 50_000
# An input is some hundred bytes; even on a loaded machine this is a thousand times
# what it takes.
INPUT_SECONDS_MAX = 5.0
# The block of a parser, the first buffer of a payload, and the objects of a message.
TRACED_BYTES_MAX = 1024 * 1024
TRACED_EVERY = 50
RSS_GROWTH_BYTES_MAX = 256 * 1024 * 1024
DECOMPRESSED_BYTES_MAX = 64 * 1024


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Break out of a loop that does not end."""

    def give_up(signum: int, stack: StackFrame | None) -> None:
        raise AssertionError(f"no end after {seconds} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    # The alarm may have been set already, for the test as a whole.
    began_s = time.monotonic()
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if left_s:
            left_s -= time.monotonic() - began_s
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.001))


def feed(parser: FrameParser, data: bytes, chance: random.Random) -> list[Frame]:
    """Feed in one of the ways that a caller may, and take out what came."""
    frames: list[Frame] = []
    chunk = chance.choice((len(data), 1 + chance.randrange(64)))
    by_value = chance.random() < 0.5
    position = 0
    try:
        while position < len(data):
            piece = data[position : position + chunk]
            if by_value:
                parser.receive_data(piece)
            else:
                room = parser.buffer_for_read()
                piece = piece[: len(room)]
                room[: len(piece)] = piece
                parser.bytes_written(len(piece))
            # Without progress this loop would not end.
            assert piece
            position += len(piece)
            frames.extend(parser.frames())
    except LanceError as error:
        assert repr(parser.error) == repr(error)
    return frames


def use(frame: Frame, seen: Counter[str]) -> None:
    """Decode a frame in every way that there is."""
    assert str(frame)
    if frame.type is FrameType.INGEST:
        attempt(lambda: check_records(frame.payload), seen, "records")
        attempt(
            lambda: decompress(frame.payload, bytes_max=DECOMPRESSED_BYTES_MAX),
            seen,
            "lz4",
        )
        return
    for decode in (
        decode_request,
        decode_response,
        lambda f: decode_response(f, extended=True),
        lambda f: decode_fetch_response(f.payload),
    ):
        try:
            message: Message = decode(frame)
        except LanceError:
            continue
        seen[type(message).__name__] += 1
        check_message(message)


def attempt(action: Callable[[], object], seen: Counter[str], name: str) -> None:
    """Run something that may fail in the peer's ways, and in no other."""
    try:
        action()
    except LocalProtocolError:
        raise
    except LanceError:
        return
    seen[name] += 1


def check_records(payload: memoryview) -> None:
    """Check that records cover their payload without gap or overlap."""
    assert b"".join(map(encode_record, decode_records(payload))) == payload


def check_message(message: Message) -> None:
    """Check that what was read can be written, and then reads the same."""
    payload = join(message.encode_payload())
    assert type(message).decode_payload(payload) == message
    assert repr(message)
    if isinstance(message, ErrorResponse):
        assert str(message.to_exception())


def examine(data: bytes, chance: random.Random, seen: Counter[str]) -> None:
    """Run one input through everything."""
    checksum = chance.choice((Checksum.CRC32C, Checksum.CRC32, None, None))
    parser = FrameParser(checksum=checksum, payload_bytes_first=256 * 1024)
    frames = feed(parser, data, chance)
    assert len(frames) * HEADER_BYTES <= len(data)
    seen["frames"] += len(frames)
    for frame in frames:
        use(frame, seen)
    parser.receive_eof()


def run(mutator: Mutator, number: int, seen: Counter[str]) -> None:
    """Make and examine one input, measuring the memory of some."""
    data = mutator.next_input()
    traced = number % TRACED_EVERY == 0
    if traced:
        tracemalloc.start()
    try:
        with deadline(INPUT_SECONDS_MAX):
            examine(data, mutator.random, seen)
        if traced:
            peak = tracemalloc.get_traced_memory()[1]
            assert peak <= TRACED_BYTES_MAX + 64 * len(data), f"{peak} bytes"
    except Exception as error:
        raise AssertionError(f"input {number}: {error!r}\n{data.hex()}") from error
    finally:
        if traced:
            tracemalloc.stop()


def rss_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.fuzz
@pytest.mark.campaign("codec")
def test_mutations(tally: Tally) -> None:
    mutator = Mutator(tally.seed)
    seen: Counter[str] = Counter()
    rss_before = rss_bytes()
    number = 0
    while tally.goes_on(INPUTS):
        run(mutator, number, seen)
        number += 1
    tally.counts.update({"inputs": number, "whole frames": seen["frames"]})
    assert rss_bytes() - rss_before < RSS_GROWTH_BYTES_MAX
    # A fuzz run that never gets past the checksums would prove nothing.
    expected = {row["message"] for row in load("messages") + load("extensions")}
    expected |= {"records", "lz4", ExtendedFetchResponse.__name__}
    assert expected <= seen.keys()
    assert seen["frames"] > number / 4


def test_the_deadline_works() -> None:
    with pytest.raises(AssertionError, match="no end"), deadline(0.01):
        while True:
            pass


def test_a_failure_names_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mutator, "next_input", lambda self: b"\xab")
    monkeypatch.setattr(f"{__name__}.examine", lambda *_: 1 / 0)
    with pytest.raises(AssertionError, match=r"input 7: ZeroDivisionError.*\nab"):
        run(Mutator(""), 7, Counter())
