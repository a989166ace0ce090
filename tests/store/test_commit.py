"""The plan of a commit."""

from __future__ import annotations

import json
import random

import pytest

from lance_spark.errors import StoreError
from lance_spark.store import CommittedRange, Point
from lance_spark.store.commit import is_same_commit
from lance_spark.store.decisions import (
    Commit,
    CommitPlan,
    History,
    Job,
    TopicPlan,
    complete,
    decode_begin,
    encode_begin,
    encode_done,
    encode_undone,
)
from lance_spark.store.document import FIRST_STAGE_ID
from lance_spark.store.entrylog import HEAD_BYTES
from lance_spark.store.journal import (
    JournalContent,
    JournalEntry,
    encode_entry,
    parse_journal,
)
from lance_spark.store.log import Tail
from tests.store.jobs import encode_journal

ONE = TopicPlan(
    1,
    "one",
    created=False,
    overwrite=True,
    start=Point(100, 10, 2),
    end=Tail(400, 40, 5, 50, 3, 6),
    stages=(2**31, 2**31 + 2),
    bytes=70,
)
TWO = TopicPlan(
    2,
    "two",
    created=True,
    overwrite=False,
    start=Point(),
    end=Tail(0, 0, -1, 0, 0, 0),
    stages=(2**31 + 1,),
    bytes=30,
)
PLAN = CommitPlan(Job("w", 7), 1_700, 2**31 + 9, (ONE, TWO))


def test_a_plan_comes_back_from_the_journal() -> None:
    entry = json.loads(json.dumps(encode_begin(PLAN)))
    assert entry["kind"] == "begin"
    assert decode_begin(entry) == PLAN


def test_a_plan_of_another_version() -> None:
    for name in encode_begin(PLAN):
        entry = {k: v for k, v in encode_begin(PLAN).items() if k != name}
        if name != "kind":
            with pytest.raises(StoreError, match="of another version is begun"):
                decode_begin(entry)
    odd = {**encode_begin(PLAN), "topics": [{"later": "invention"}]}
    with pytest.raises(StoreError, match="of another version is begun"):
        decode_begin(odd)


def test_what_a_topic_gains() -> None:
    assert ONE.range == CommittedRange(1, "one", 400, 470)
    assert ONE.new_start == Point(400, 40, 6)
    assert TWO.range == CommittedRange(2, "two", 0, 30)


def test_the_stages_of_a_plan() -> None:
    assert PLAN.stages == {2**31, 2**31 + 1, 2**31 + 2}


def test_what_is_remembered_of_it() -> None:
    assert PLAN.commit == Commit(
        Job("w", 7),
        1_700,
        (ONE.range, TWO.range),
        2**31 + 9,
        frozenset({"one"}),
    )


def test_which_repetition_is_the_same() -> None:
    last, one = PLAN.commit, frozenset({"one"})
    both, none = frozenset({"one", "two"}), frozenset[str]()
    assert is_same_commit(last, both, one, whole=True)
    assert is_same_commit(last, none, one, whole=False)
    assert not is_same_commit(last, frozenset({"three"}), one, whole=True)
    assert not is_same_commit(last, none, none, whole=False)
    assert not is_same_commit(last, none, both, whole=False)
    # Fewer topics are other topics, unless stages are missing that would tell.
    assert is_same_commit(last, one, one, whole=False)
    assert not is_same_commit(last, one, one, whole=True)


def make_history(rng: random.Random) -> list[JournalEntry]:
    """Jobs of some writers, side by side; each is begun until it is done."""
    entries: list[JournalEntry] = []
    sequences = dict.fromkeys("uvw", 0)
    begun: dict[str, CommitPlan] = {}
    for at_ns in range(rng.randrange(1, 14)):
        writer = rng.choice("uvw")
        plan = begun.pop(writer, None)
        if plan is None:
            # The clock may stand still: a plan may be equal to an earlier one.
            job = Job(writer, sequences[writer])
            begun[writer] = CommitPlan(job, at_ns // 4, FIRST_STAGE_ID, ())
            entries.append(encode_begin(begun[writer]))
        elif rng.random() < 0.4:
            entries.append(encode_undone(plan.job))
        else:
            entries.append(encode_done(plan.commit))
            sequences[writer] += 1
    return entries


def fold(entries: list[JournalEntry]) -> tuple[dict[str, Commit], set[Job]]:
    writers = History()
    writers.replay(entries)
    return writers._last, set(writers.pending)


@pytest.mark.parametrize("seed", range(100))
def test_no_damaged_entry_changes_what_was_committed(seed: int) -> None:
    """The mark makes up for it, or a commit that is begun is known to be unreadable."""
    rng = random.Random(seed)
    history = make_history(rng)
    last, pending = fold(history)
    for marked in range(len(history) + 1):
        data = encode_journal(*history, marked=marked)
        for number in range(marked):
            parsed = spoil(data, *history, number=number)
            entry = history[number]
            job = Job(entry["writer"], entry["sequence"])
            begins = [e for e in history if e["kind"] == "begin" and is_of(e, job)]
            if job in pending and entry is begins[-1]:
                assert parsed.is_begun_unread, (marked, number)
            else:
                assert not parsed.is_begun_unread, (marked, number)
                assert fold(complete(parsed)) == (last, pending), (marked, number)


def is_of(entry: JournalEntry, job: Job) -> bool:
    return (entry["writer"], entry["sequence"]) == job


def spoil(data: bytes, *entries: JournalEntry, number: int) -> JournalContent:
    """Damage the last byte of one entry."""
    sizes = [len(encode_entry(entry)) for entry in entries[: number + 1]]
    spoiled = bytearray(data)
    spoiled[HEAD_BYTES + sum(sizes) - 1] ^= 1
    return parse_journal(bytes(spoiled))
