"""How topics are shared out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations, product
from random import Random
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.broker import assignment
from lance_spark.broker.assignment import Strategy, assign
from tests.each import each

# A busy machine is no failure.
relaxed = settings(deadline=None)

RANGE = Strategy.RANGE
ROUND_ROBIN = Strategy.ROUND_ROBIN
STICKY = Strategy.STICKY

Shares = Mapping[str, tuple[str, ...]]


def share(strategy: Strategy, previous: str = "", **wanted: str) -> str:
    """Share topics of one letter out: `share(RANGE, A="xy", B="y") == "A=x B=y"`."""
    had = dict(part.split("=") for part in previous.split())
    return show(assign(strategy, wanted, had))


def show(shares: Shares) -> str:
    return " ".join(f"{member}={''.join(topics)}" for member, topics in shares.items())


# Range and round-robin.


@each(
    ("wanted", "by_range", "by_turn"),
    [
        ({}, "", ""),
        ({"A": ""}, "A=", "A="),
        ({"A": "tuv"}, "A=tuv", "A=tuv"),
        ({"A": "tuvw", "B": "tuvw"}, "A=tu B=vw", "A=tv B=uw"),
        ({"A": "tuvwx", "B": "tuvwx"}, "A=tuv B=wx", "A=tvx B=uw"),
        (
            {"A": "tuvwx", "B": "tuvwx", "C": "tuvwx"},
            "A=tu B=vw C=x",
            "A=tw B=ux C=v",
        ),
        ({"A": "t", "B": "t", "C": "t"}, "A=t B= C=", "A=t B= C="),
        ({"A": "tu", "B": ""}, "A=tu B=", "A=tu B="),
        # Subscriptions that differ.
        ({"A": "tu", "B": "vw"}, "A=tu B=vw", "A=tu B=vw"),
        ({"A": "tuv", "B": "v"}, "A=tuv B=", "A=tu B=v"),
        ({"A": "t", "B": "tuv", "C": "uv"}, "A=t B=u C=v", "A=t B=u C=v"),
    ],
)
def test_shares(wanted: dict[str, str], by_range: str, by_turn: str) -> None:
    assert share(RANGE, **wanted) == by_range
    assert share(ROUND_ROBIN, **wanted) == by_turn


# Sticky.


@each(
    ("previous", "wanted", "expected"),
    [
        # From nothing it is even.
        ("", {"A": "tuvw", "B": "tuvw"}, "A=tv B=uw"),
        # Nothing changes when nothing has to.
        ("A=tw B=uv", {"A": "tuvw", "B": "tuvw"}, "A=tw B=uv"),
        ("A=t B=uv", {"A": "tuv", "B": "tuv"}, "A=t B=uv"),
        # A newcomer gets his part, and only that moves.
        ("A=tuvw", {"A": "tuvw", "B": "tuvw"}, "A=tu B=vw"),
        ("A=tuv B=wxy", dict.fromkeys("ABC", "tuvwxy"), "A=tu B=wx C=vy"),
        ("A=tu B=vw", dict.fromkeys("ABC", "tuvw"), "A=t B=vw C=u"),
        # What the others of one who left get is spread.
        ("A=tu B=vw C=xy", dict.fromkeys("AC", "tuvwxy"), "A=tuv C=wxy"),
        # A subscription that ended.
        ("A=tu B=vw", {"A": "tuvw", "B": "uvw"}, "A=tu B=vw"),
        ("A=tu B=vw", {"A": "vw", "B": "tuvw"}, "A=vw B=tu"),
        # A topic that nobody wants any more, and one that is new.
        ("A=tu B=vw", {"A": "tvx", "B": "tvx"}, "A=tx B=v"),
        # Two claim the same topic.
        ("A=t B=t", {"A": "tu", "B": "tu"}, "A=t B=u"),
        # Members that are gone and topics that were never wanted are passed over.
        ("A=t Z=u", {"A": "tu", "B": "tu"}, "A=t B=u"),
        ("A=tz", {"A": "t"}, "A=t"),
        # What few want is placed first, what many want makes up for it.
        ("", {"A": "stu", "B": "tu", "C": "t"}, "A=s B=u C=t"),
        # Subscriptions that differ: who has much gives what the other wants.
        ("A=tuvw", {"A": "tuvw", "B": "v"}, "A=tuw B=v"),
        ("A=tuvw", {"A": "tuvw", "B": "x"}, "A=tuvw B=x"),
        # A gives to C, and only then has room for what B has too much.
        ("A=t B=suv", {"A": "stuw", "B": "suv", "C": "t"}, "A=uw B=sv C=t"),
    ],
)
def test_sticky(previous: str, wanted: dict[str, str], expected: str) -> None:
    assert share(STICKY, previous, **wanted) == expected


# How much work it is.


def count_calls(work: Callable[[], object]) -> int:
    """Count the functions that are called, which no busy machine changes."""
    calls = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def differing(members: int, size: int, of: int) -> dict[str, frozenset[str]]:
    """Make subscriptions that are all different, so that each topic is of a kind."""
    random = Random(1)
    names = [f"t{n}" for n in range(of)]
    return {f"m{n:03}": frozenset(random.sample(names, size)) for n in range(members)}


@pytest.mark.parametrize(
    "wanted", [differing(10, 500, 600), differing(100, 50, 500), differing(3, 900, 999)]
)
def test_sticky_with_many_subscriptions(wanted: dict[str, frozenset[str]]) -> None:
    pairs = sum(map(len, wanted.values()))
    first, *others = wanted
    one = {first: tuple(wanted[first])}
    newcomer = assign(STICKY, {m: wanted[m] for m in others}, {})
    for previous in ({}, one, newcomer):
        assert count_calls(partial(assign, STICKY, wanted, previous)) < 12 * pairs


def test_evening_out_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = differing(20, 50, 60)
    had: Shares = {"m000": tuple(wanted["m000"])}
    even = {m: len(t) for m, t in assign(STICKY, wanted, had).items()}
    assert max(even.values()) == 3
    monkeypatch.setattr(assignment, "STEPS_MAX", 100)
    shares = assign(STICKY, wanted, had)
    assert len(shares["m000"]) > 3
    assert sorted(t for s in shares.values() for t in s) == sorted(
        frozenset().union(*wanted.values())
    )
    # The next ones go on.
    for _ in range(100):
        shares = assign(STICKY, wanted, shares)
    assert max(map(len, shares.values())) == 3


# What holds always.

topics = st.sampled_from("tuvwxyz")
members = st.sampled_from("ABCDE")
subscriptions = st.dictionaries(members, st.frozensets(topics))
alike = st.builds(dict.fromkeys, st.frozensets(members), st.frozensets(topics))
# Who had what: each topic with one member, as it comes out of an assignment.
owners = st.dictionaries(topics, members)
strategies = st.sampled_from(Strategy)

Wanted = Mapping[str, frozenset[str]]


def by_member(owned: Mapping[str, str]) -> dict[str, list[str]]:
    had: dict[str, list[str]] = {}
    for topic, member in owned.items():
        had.setdefault(member, []).append(topic)
    return had


def count_moves(owned: Mapping[str, str], wanted: Wanted, shares: Shares) -> int:
    """Count the topics that leave a member that is there and still wants them."""
    return sum(
        topic in wanted.get(member, ()) and topic not in shares[member]
        for topic, member in owned.items()
    )


@relaxed
@given(strategies, subscriptions, owners)
def test_each_topic_goes_to_one_that_wants_it(
    strategy: Strategy, wanted: Wanted, owned: dict[str, str]
) -> None:
    shares = assign(strategy, wanted, by_member(owned))
    assert list(shares) == sorted(wanted)
    given_out = [topic for topics in shares.values() for topic in topics]
    assert sorted(given_out) == sorted(frozenset().union(*wanted.values()))
    for member, of_member in shares.items():
        assert wanted[member].issuperset(of_member)
        assert list(of_member) == sorted(of_member)


@relaxed
@given(strategies, subscriptions, owners, st.randoms())
def test_the_order_of_the_arguments_does_not_matter(
    strategy: Strategy, wanted: Wanted, owned: dict[str, str], random: object
) -> None:
    def shuffle(items: list[tuple[str, object]]) -> dict[str, object]:
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    had = by_member(owned)
    first = assign(strategy, wanted, had)
    again = assign(
        strategy,
        {m: sorted(t, reverse=True) for m, t in shuffle(list(wanted.items())).items()},
        {m: list(reversed(t)) for m, t in shuffle(list(had.items())).items()},
    )
    assert list(first.items()) == list(again.items())


@relaxed
@given(strategies, alike, owners)
def test_equal_subscriptions_give_equal_shares(
    strategy: Strategy, wanted: Wanted, owned: dict[str, str]
) -> None:
    sizes = [len(t) for t in assign(strategy, wanted, by_member(owned)).values()]
    assert not sizes or max(sizes) - min(sizes) <= 1


@relaxed
@given(subscriptions, owners)
def test_sticky_is_even_among_those_with_equal_subscriptions(
    wanted: Wanted, owned: dict[str, str]
) -> None:
    shares = assign(STICKY, wanted, by_member(owned))
    for one, other in permutations(wanted, 2):
        if wanted[one] == wanted[other]:
            assert abs(len(shares[one]) - len(shares[other])) <= 1


@relaxed
@given(subscriptions, owners)
def test_sticky_leaves_no_move_that_would_help(
    wanted: Wanted, owned: dict[str, str]
) -> None:
    shares = assign(STICKY, wanted, by_member(owned))
    for one, other in permutations(wanted, 2):
        if len(shares[one]) - len(shares[other]) >= 2:
            assert not wanted[other].intersection(shares[one])


@relaxed
@given(subscriptions, owners)
def test_sticky_is_stable(wanted: Wanted, owned: dict[str, str]) -> None:
    shares = assign(STICKY, wanted, by_member(owned))
    assert assign(STICKY, wanted, shares) == shares


def fewest_moves(owned: Mapping[str, str], wanted: Wanted) -> int:
    """Find by trying everything how few moves an even assignment needs."""
    everything = sorted(frozenset().union(*wanted.values()))
    best = len(everything)
    for choice in product(sorted(wanted), repeat=len(everything)):
        sizes = [choice.count(member) for member in wanted]
        if max(sizes) - min(sizes) > 1:
            continue
        shares = {
            member: tuple(
                t for t, m in zip(everything, choice, strict=True) if m == member
            )
            for member in wanted
        }
        best = min(best, count_moves(owned, wanted, shares))
    return best


few_topics = st.sampled_from("tuvwx")
few_alike = st.builds(
    dict.fromkeys, st.frozensets(st.sampled_from("ABC"), min_size=1), st.just("tuvwx")
)


@relaxed
@given(few_alike, st.frozensets(few_topics), st.dictionaries(few_topics, members))
def test_sticky_moves_no_more_than_needed(
    names: dict[str, str], some: frozenset[str], owned: dict[str, str]
) -> None:
    wanted = dict.fromkeys(names, some)
    shares = assign(STICKY, wanted, by_member(owned))
    assert count_moves(owned, wanted, shares) == fewest_moves(owned, wanted)


@relaxed
@given(alike, members)
def test_sticky_moves_only_to_a_newcomer(wanted: Wanted, newcomer: str) -> None:
    before = {m: t for m, t in wanted.items() if m != newcomer}
    shares = assign(STICKY, before, {})
    some = frozenset().union(*wanted.values())
    after = assign(STICKY, {**before, newcomer: some}, shares)
    for member in before:
        assert set(after[member]) <= set(shares[member])
