"""What each writer committed last."""

from __future__ import annotations

import pytest

from lance_spark.errors import StoreError
from lance_spark.store import CommittedRange
from lance_spark.store.decisions import (
    Commit,
    History,
    Job,
    decode_done,
    encode_done,
    encode_expired,
    encode_undone,
)


def commit(writer: str, sequence: int, at_ns: int = 100) -> Commit:
    ranges = (CommittedRange(1, "one", 0, 10), CommittedRange(2, "two", 5, 5))
    return Commit(Job(writer, sequence), at_ns, ranges, 2**31 + 5, frozenset({"two"}))


def test_a_commit_comes_back_from_its_entry() -> None:
    done = commit("w", 3)
    assert decode_done(encode_done(done)) == done
    assert done.topics == {"one", "two"}


def test_the_last_commit_counts() -> None:
    history = History()
    history.replay([encode_done(commit("w", n)) for n in (1, 2)])
    last = history.last("w")
    assert last is not None and last.job == Job("w", 2)
    assert history.last("v") is None


def test_a_commit_that_was_begun() -> None:
    begin = {"kind": "begin", "writer": "w", "sequence": 1}
    job = Job("w", 1)
    old = {"kind": "undone"}  # As lance_spark 0.5 wrote it.
    for ended_by in (encode_undone(job), old, encode_done(commit("w", 1))):
        history = History()
        history.replay([begin])
        assert history.pending == {job: begin}
        history.replay([ended_by])
        assert history.pending == {}


def test_commits_that_were_begun_side_by_side() -> None:
    begun = [
        {"kind": "begin", "writer": writer, "sequence": sequence}
        for writer, sequence in (("v", 1), ("w", 1), ("x", 7))
    ]
    history = History()
    history.replay([*begun, encode_undone(Job("w", 1)), encode_done(commit("x", 7))])
    assert list(history.pending.values()) == begun[:1]
    # A journal that is made shorter meanwhile still says so.
    again = History()
    again.replay(history.entries())
    assert again.pending == history.pending
    assert again.last("x") == commit("x", 7)


def test_expired_stages() -> None:
    history = History()
    history.replay([encode_expired(Job("w", 1), 5, frozenset({8, 9}))])
    assert [history.is_expired(stage) for stage in (7, 8, 9)] == [False, True, True]


def test_a_job_that_expires_twice() -> None:
    history = History()
    history.replay([encode_expired(Job("w", 1), 5, frozenset({8}))])
    history.replay([encode_expired(Job("w", 1), 6, frozenset({9}))])
    again = History()
    again.replay(history.entries())
    for each in (history, again):
        assert each.is_expired(8) and each.is_expired(9)


def test_entries_of_another_kind_are_passed_over() -> None:
    history = History()
    history.replay([{"kind": "later invention"}])
    assert history.entries() == []


@pytest.mark.parametrize(
    "entry", [{}, {"kind": "done"}, {"kind": "expired", "writer": 1}, {"kind": "lost"}]
)
def test_an_entry_of_another_version(entry: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="a journal entry of another version"):
        History().replay([entry])


def test_the_shortest_journal_that_says_the_same() -> None:
    history = History()
    lost = {"kind": "lost", "at_ns": 50}
    expired = encode_expired(Job("v", 1), 60, frozenset({8}))
    done = [encode_done(commit("w", n)) for n in (1, 2)]
    history.replay([lost, *done, expired])
    assert history.entries() == [lost, expired, done[1]]
    again = History()
    again.replay(history.entries())
    assert again.entries() == history.entries()
    assert again.lost_ns == [50]


def test_what_is_old_is_forgotten() -> None:
    history = History()
    history.replay([{"kind": "lost", "at_ns": 50}, {"kind": "lost", "at_ns": 99}])
    history.replay([encode_done(commit("old", 1, at_ns=99))])
    history.replay([encode_done(commit("new", 1, at_ns=100))])
    history.replay([encode_expired(Job("old", 2), 99, frozenset({8}))])
    history.replay([encode_expired(Job("new", 2), 100, frozenset({9}))])
    history.forget_before(100)
    assert history.last("old") is None and history.last("new") is not None
    assert not history.is_expired(8) and history.is_expired(9)
    assert history.lost_ns == []
