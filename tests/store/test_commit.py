"""The plan of a commit."""

from __future__ import annotations

import json

import pytest

from lance_spark.errors import StoreError
from lance_spark.store import CommittedRange, LogStart
from lance_spark.store.commit import (
    CommitPlan,
    TopicPlan,
    decode_begin,
    encode_begin,
    is_same_commit,
)
from lance_spark.store.extent import LogEnd
from lance_spark.store.writers import Commit, Job

ONE = TopicPlan(
    1,
    "one",
    created=False,
    overwrite=True,
    start=LogStart(100, 10, 2),
    end=LogEnd(400, 40, 5, 50, 3, 6),
    stages=(2**31, 2**31 + 2),
    bytes=70,
)
TWO = TopicPlan(
    2,
    "two",
    created=True,
    overwrite=False,
    start=LogStart(),
    end=LogEnd(0, 0, -1, 0, 0, 0),
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
    assert ONE.new_start == LogStart(400, 40, 6)
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
