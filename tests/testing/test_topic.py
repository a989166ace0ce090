"""Topics as tests use them: filled, read, compared."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from lance_spark.errors import OptionError, RowError
from lance_spark.testing import ScratchBroker, ScratchTopic, run_broker

NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(params=["lwp", "plain"])
def topic(request: pytest.FixtureRequest) -> Iterator[ScratchTopic]:
    """A topic that is not there yet, of each kind of server."""
    with run_broker(dialect=request.param) as broker:
        yield broker.topic("t")


def told(topic: ScratchTopic, rows: Any, **how: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        topic.assert_holds(rows, **how)
    return str(raised.value)


def test_a_topic_that_is_not_there(topic: ScratchTopic) -> None:
    assert not topic.exists
    assert (topic.rows(), topic.values(), topic.table().num_rows) == ([], [], 0)
    topic.assert_holds([])
    assert told(topic, ["a"]).endswith("value 'a'\n  there is no such topic")


def test_create(topic: ScratchTopic) -> None:
    assert topic.create() is topic
    assert topic.create().exists
    assert topic.rows() == []
    assert "there is no such topic" not in told(topic, ["a"])


def test_fill_and_read(topic: ScratchTopic) -> None:
    rows = ["a", {"key": "k", "value": b"b", "timestamp": NOON}, None]
    assert topic.fill(rows) == 3
    assert topic.values() == [b"a", b"b", None]
    assert topic.values(bytes.decode) == ["a", "b", None]
    first, second, third = topic.rows()
    assert first == {"offset": 0, "key": None, "value": b"a", "timestamp": None}
    assert second == {"offset": 6, "key": b"k", "value": b"b", "timestamp": NOON}
    assert third["value"] is None
    topic.assert_holds(rows, ordered=True)
    assert topic.table().column_names[0] == "offset"


def test_fill_appends(topic: ScratchTopic) -> None:
    topic.fill(["a"])
    topic.fill([])
    topic.fill(pa.table({"value": ["b"]}))
    topic.fill(pd.DataFrame({"value": ["c"]}))
    topic.assert_holds(["a", "b", "c"], ordered=True)


def test_rows_of_one_topic_fill_another(lance_broker: ScratchBroker) -> None:
    one, other = lance_broker.topic("one"), lance_broker.topic("other")
    one.fill([{"key": "k", "value": "a", "timestamp": NOON}, "b"])
    other.fill(one.rows())
    other.assert_holds(one.rows(), ordered=True)
    other.assert_holds(one.table())
    other.fill(one.table())
    assert other.values() == 2 * [b"a", b"b"]


def test_many_rows(lance_topic: ScratchTopic) -> None:
    values = [f"{n:0100d}" for n in range(50_000)]
    assert lance_topic.fill(values) == len(values)
    assert lance_topic.values(bytes.decode) == values
    lance_topic.assert_holds(reversed(values))


def test_decoded_values(lance_topic: ScratchTopic) -> None:
    lance_topic.fill([json.dumps({"n": n}) for n in range(2)])
    assert lance_topic.values(json.loads) == [{"n": 0}, {"n": 1}]


def test_what_is_no_row_is_refused(lance_topic: ScratchTopic) -> None:
    with pytest.raises(OptionError, match="row 0 has user"):
        lance_topic.fill([{"user": 1}])
    with pytest.raises(RowError, match="a key but no value"):
        lance_topic.fill(["a", {"key": "k", "value": None}])
    lance_topic.assert_holds([])


def test_topic_that_is_made_anew(lance_broker: ScratchBroker) -> None:
    topic = lance_broker.topic("t")
    topic.fill(["old"])
    lance_broker.client.delete_topic("t")
    assert not topic.exists
    topic.fill(["new"])
    topic.assert_holds(["new"])


# Comparing.


def test_only_what_is_said_is_compared(lance_topic: ScratchTopic) -> None:
    lance_topic.fill([{"key": "k", "value": "a", "timestamp": NOON}])
    lance_topic.assert_holds(["a"])
    lance_topic.assert_holds([{"value": "a", "timestamp": NOON}])
    text = told(lance_topic, [{"key": "l", "value": "a"}])
    assert "missing (1):\n    key 'l', value 'a'\n" in text
    assert "too much (1):\n    key 'k', value 'a' at record 0 (offset 0)" in text


def test_what_one_row_says_the_others_should_not_have(
    lance_topic: ScratchTopic,
) -> None:
    lance_topic.fill([{"key": "k", "value": "a"}, {"key": "l", "value": "b"}])
    text = told(lance_topic, [{"key": "k", "value": "a"}, "b"])
    assert "key None, value 'b'" in text


def test_types_are_compared_where_they_are_said(lance_topic: ScratchTopic) -> None:
    lance_topic.fill([{"value": "{}", "type": 2}])
    lance_topic.assert_holds(["{}"])
    lance_topic.assert_holds([{"value": "{}", "type": 2}])
    assert "type 1" in told(lance_topic, [{"value": "{}", "type": 1}])


def test_order_matters_where_it_is_asked_for(lance_topic: ScratchTopic) -> None:
    lance_topic.fill(["b", "a"])
    lance_topic.assert_holds(["a", "b"])
    text = told(lance_topic, ["a", "b"], ordered=True)
    assert "record 0 (offset 0) is value 'b', expected value 'a'" in text


def test_times_are_compared_to_the_nanosecond(lance_topic: ScratchTopic) -> None:
    lance_topic.fill([{"value": "a", "timestamp_ns": 1}])
    lance_topic.assert_holds([{"value": "a", "timestamp_ns": 1}])
    (row,) = lance_topic.rows()
    assert row["timestamp"] == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert "00:00:00.000000002Z" in told(
        lance_topic, [{"value": "a", "timestamp_ns": 2}]
    )


# Waiting.


def test_waiting_for_rows(topic: ScratchTopic) -> None:
    def fill() -> None:
        for value in ("a", "b", "c"):
            topic.fill([value])

    # The first look is certain to come before the last row does.
    filler = threading.Timer(0.1, fill)
    filler.start()
    topic.assert_holds(["a", "b", "c"], ordered=True, within_s=60)
    filler.join(60)


def test_waiting_ends(topic: ScratchTopic) -> None:
    topic.fill(["a"])
    assert "missing (1)" in told(topic, ["a", "b"], within_s=0.1)


def test_what_is_too_much_is_not_waited_for(topic: ScratchTopic) -> None:
    """No more rows can mend it: a test that waited would hang here."""
    topic.fill(["a", "a"])
    text = told(topic, ["a", "b"], within_s=3600)
    assert "missing (1)" in text and "doubled (1)" in text


def test_wrong_order_is_not_waited_for(topic: ScratchTopic) -> None:
    topic.fill(["b", "a"])
    assert "out of order" in told(topic, ["a", "b"], ordered=True, within_s=3600)


def test_repr(lance_topic: ScratchTopic) -> None:
    assert repr(lance_topic).startswith("<ScratchTopic 'test-repr' of 127.0.0.1:")
