"""What differs between two lists of rows, and how it is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.testing.comparison import Comparison, compare, show_row


def values(*texts: str) -> list[tuple[bytes]]:
    return [(text.encode(),) for text in texts]


def compare_values(
    expected: Sequence[str], found: Sequence[str], *, ordered: bool = False
) -> Comparison:
    return compare(
        values(*expected), values(*found), fields=("value",), ordered=ordered
    )


def describe(
    expected: Sequence[str], found: Sequence[str], *, ordered: bool = False
) -> str:
    result = compare_values(expected, found, ordered=ordered)
    assert not result.is_equal
    return result.describe("t", [10 * n for n in range(len(found))])


def test_equal() -> None:
    assert compare_values("abb", "bab").is_equal
    assert compare_values("abb", "abb", ordered=True).is_equal
    assert compare_values("", "", ordered=True).is_equal


def test_missing() -> None:
    assert describe("abcc", "a") == (
        "topic 't' does not hold what it should: 4 records expected, 1 found\n"
        "  missing (2):\n"
        "    value 'b'\n"
        "    value 'c', 2 times"
    )


def test_too_much() -> None:
    assert describe("a", "axyx") == (
        "topic 't' does not hold what it should: 1 record expected, 4 found\n"
        "  too much (2):\n"
        "    value 'x' at record 1 (offset 10), record 3 (offset 30)\n"
        "    value 'y' at record 2 (offset 20)"
    )


def test_doubled() -> None:
    assert describe("abb", "abbabb") == (
        "topic 't' does not hold what it should: 3 records expected, 6 found\n"
        "  doubled (2):\n"
        "    value 'a': 2 times in place of 1, at record 0 (offset 0), "
        "record 3 (offset 30)\n"
        "    value 'b': 4 times in place of 2, at record 1 (offset 10), "
        "record 2 (offset 20), record 4 (offset 40), record 5 (offset 50)"
    )


def test_out_of_order() -> None:
    assert compare_values("abc", "acb").is_equal
    assert describe("abc", "acb", ordered=True) == (
        "topic 't' does not hold what it should: 3 records expected, 3 found\n"
        "  out of order (2):\n"
        "    record 1 (offset 10) is value 'c', expected value 'b'\n"
        "    record 2 (offset 20) is value 'b', expected value 'c'"
    )


def test_all_at_once() -> None:
    text = describe("abc", "aax", ordered=True)
    titles = [line.strip() for line in text.splitlines() if line.endswith("):")]
    assert titles == ["missing (2):", "too much (1):", "doubled (1):"]


def test_long_lists_are_cut() -> None:
    text = describe([str(n) for n in range(1000)], "")
    assert len(text.splitlines()) == 13
    assert text.endswith("    … and 990 more")
    assert describe("", 15 * "x").endswith("record 9 (offset 90) and 5 more")


@pytest.mark.parametrize(
    ("field", "part", "shown"),
    [
        ("value", b"a'b", '"a\'b"'),
        ("value", "ä\n".encode(), "'ä\\n'"),
        ("value", b"\xff\x00", "b'\\xff\\x00'"),
        ("value", b"", "''"),
        ("value", None, "None"),
        ("key", b"k", "'k'"),
        ("value", 500 * b"x", "'" + 79 * "x" + "… (500 bytes)"),
        # The cut of 320 bytes goes through a character.
        ("value", ("x" + 400 * "ä").encode(), "'x" + 78 * "ä" + "… (801 bytes)"),
        ("timestamp", 1_714_564_800 * 10**9, "2024-05-01 12:00:00Z"),
        ("timestamp", 1_714_564_800_000_000_120, "2024-05-01 12:00:00.00000012Z"),
        ("timestamp", None, "None"),
        ("type", 3, "3"),
    ],
)
def test_parts_are_shown(field: str, part: object, shown: str) -> None:
    assert show_row((field,), (part,)) == f"{field} {shown}"


def test_fields_are_named() -> None:
    assert show_row(("key", "value"), (b"k", b"v")) == "key 'k', value 'v'"


_TEXTS = st.lists(st.sampled_from("abc"), max_size=8)


@given(_TEXTS, _TEXTS, st.booleans())
def test_equal_is_equal(expected: list[str], found: list[str], ordered: bool) -> None:
    same = expected == found if ordered else sorted(expected) == sorted(found)
    result = compare_values(expected, found, ordered=ordered)
    assert result.is_equal is same
    if not same:
        assert len(result.describe("t", list(range(len(found)))).splitlines()) > 2
