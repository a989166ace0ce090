"""Values that layers share."""

from __future__ import annotations

import pytest

from lance_spark.model import TOPIC_NAME_BYTES_MAX, find_name_fault
from tests.each import each


@pytest.mark.parametrize(
    "name", ["a", "orders.v2", "größe", "x" * TOPIC_NAME_BYTES_MAX, "...", " a b "]
)
def test_topic_names(name: str) -> None:
    assert find_name_fault(name) is None


@each(
    ("name", "fault"),
    [
        ("", "has 0 bytes"),
        ("ü" * 128, "has 256 bytes: give 1 to 255"),
        (".", "directories"),
        ("..", "directories"),
        ("a/b", "slash"),
        ("a\\b", "backslash"),
        ("a\n", "control"),
        ("\x7f", "control"),
        ("\x9f", "control"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_is_no_topic_name(name: str, fault: str) -> None:
    assert fault in (find_name_fault(name) or "")
