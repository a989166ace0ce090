from __future__ import annotations

import pytest

from lance_spark.broker.console.query import LIMIT_MAX, Query, parse_query
from lance_spark.errors import OptionError

SECOND_NS = 1_000_000_000


def test_parameters() -> None:
    assert parse_query({}) == Query("start", 0, 50, None, None)
    fields = {"from": "offset:12", "limit": "500", "key": "ü", "search": "x y"}
    assert parse_query(fields) == Query("offset", 12, 500, "ü".encode(), b"x y")
    assert parse_query({"from": "record:3"}).value == 3
    assert parse_query({"from": "", "limit": "", "key": "", "search": ""}) == Query()
    assert parse_query({"from": f"offset:{10**19 - 1}"}).value == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123_000_000),
        ("9999999999999999999", 2**63 - 1),
        ("2026-01-31T12:00:00Z", 1_769_860_800 * SECOND_NS),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800 * SECOND_NS),
        ("2026-01-31T12:00:00.000001", 1_769_860_800 * SECOND_NS + 1000),
        ("2026-01-31", 1_769_817_600 * SECOND_NS),
        ("1900-01-01", 0),
    ],
)
def test_times(text: str, ns: int) -> None:
    assert parse_query({"from": f"time:{text}"}) == Query("time", ns)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"from": "middle"}, "start, end, offset:N"),
        ({"from": "offset"}, "start, end, offset:N"),
        ({"from": "offset:-1"}, "not a whole number"),
        ({"from": "offset:1e3"}, "not a whole number"),
        ({"from": "offset:٣"}, "not a whole number"),
        ({"from": "record:" + "9" * 20}, "not a whole number"),
        ({"from": "time:yesterday"}, "neither milliseconds"),
        ({"from": "time:"}, "neither milliseconds"),
        ({"from": "time:" + "9" * 5000}, "not a whole number"),
        ({"from": "x" * 5000}, "start, end"),
        ({"limit": "0"}, f"from 1 to {LIMIT_MAX}"),
        ({"limit": "501"}, f"from 1 to {LIMIT_MAX}"),
        ({"limit": "many"}, "not a whole number"),
    ],
)
def test_parameters_that_can_not_be(fields: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text) as error:
        parse_query(fields)
    assert len(str(error.value)) < 300
