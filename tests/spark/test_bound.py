"""Where a read starts or ends, as typed."""

from __future__ import annotations

import json
import pickle

import pytest

from lance_spark.errors import OptionError
from lance_spark.model import Partition
from lance_spark.offset import OffsetMark, StreamOffset, TopicPlace
from lance_spark.spark.bound import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    Bound,
    parse_bound,
    parse_time,
)
from tests.each import each


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", EARLIEST),
        (" LATEST ", LATEST),
        ('{"events": 4096}', AtOffsets(((Partition("events"), 4096),))),
        (' {"b": 0, "a": 7}', AtOffsets(((Partition("a"), 7), (Partition("b"), 0)))),
        ('{"é": -2, "x": -1}', AtOffsets(((Partition("x"), -1), (Partition("é"), -2)))),
        ('{"a": 9223372036854775807}', AtOffsets(((Partition("a"), 2**63 - 1),))),
    ],
)
def test_bound(text: str, bound: Bound) -> None:
    assert parse_bound(text) == bound


STREAM_OFFSET = StreamOffset.of(
    {
        "events": TopicPlace.at(3, 1706918400, 4096),
        "audit": TopicPlace.at(4, 0, 2**63 - 1, OffsetMark(64, 5)),
    }
)


def test_offset_of_a_stream() -> None:
    text = json.dumps(STREAM_OFFSET.to_document())
    expected = AtOffsets(((Partition("audit"), 2**63 - 1), (Partition("events"), 4096)))
    assert parse_bound(text) == expected
    # As `query.lastProgress` shows it, with more keys and in lines.
    document = STREAM_OFFSET.to_document()
    document["topics"]["events"]["bytesBehind"] = 17
    assert parse_bound(json.dumps(document, indent=2)) == expected


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ('{"version": 1, "topics": 2}', {"topics": 2, "version": 1}),
        ('{"version": 1}', {"version": 1}),
        ('{"topics": 2, "events": -1}', {"events": -1, "topics": 2}),
    ],
)
def test_topics_that_are_named_as_keys_are(text: str, offsets: dict[str, int]) -> None:
    expected = tuple((Partition(topic), at) for topic, at in offsets.items())
    assert parse_bound(text) == AtOffsets(expected)


def test_topic_that_is_named_as_a_key_in_the_offset_of_a_stream() -> None:
    names = ("topics", "version")
    offset = StreamOffset.of({name: TopicPlace.at(1, 2, 3) for name in names})
    bound = parse_bound(json.dumps(offset.to_document()))
    assert bound == AtOffsets(((Partition("topics"), 3), (Partition("version"), 3)))


@each(
    ("text", "match"),
    [
        ('{"version": 2, "topics": {}}', "version 2 was written by a newer release"),
        ('{"version": true, "topics": {}}', "'version' is true and has to be"),
        (
            '{"version": 1, "topics": {"a": 7}}',
            "topic 'a': 7 is not a place in a topic; c",
        ),
        ('{"version": 1, "topics": {"a": {"id": 1}}}', "topic 'a': 'partitions' is mi"),
        ('{"version": 1, "topics": {}}', "no topic is named in"),
        ('{"version": 1, "topics": {"a": 7, "a": 7}}', "'a' is named twice: name it"),
        ('{"version": 1, "version": 1, "topics": {}}', "'version' is named twice"),
        (
            '{"topics": {"a": 7}}',
            "topic 'topics': 'a' is not the number of a partition",
        ),
    ],
)
def test_no_offset_of_a_stream(text: str, match: str) -> None:
    with pytest.raises(OptionError, match=match) as told:
        parse_bound(text)
    assert len(str(told.value)) < 300


def test_offset_of_a_stream_with_partitions() -> None:
    offset = StreamOffset.of({"a": TopicPlace(1, 2, ((0, 3), (1, 4)))})
    bound = parse_bound(json.dumps(offset.to_document()))
    assert bound == AtOffsets(((Partition("a", 0), 3), (Partition("a", 1), 4)))
    assert bound.by_partition == ("a",)


def test_ends_have_the_numbers_of_kafka() -> None:
    assert (EARLIEST_OFFSET, LATEST_OFFSET) == (-2, -1)


@pytest.mark.parametrize("text", ["", "first", "4096", "[1]", '"latest"', "null"])
def test_no_bound(text: str) -> None:
    with pytest.raises(
        OptionError, match="is neither earliest, latest nor JSON: give e"
    ):
        parse_bound(text)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{'a': 1}",
        '{"a": 1} 2',
        '{"a": 1,}',
        f'{{"a": {"9" * 5000}}}',
        '{"a": ' + "[" * 100_000,
    ],
)
def test_no_json(text: str) -> None:
    with pytest.raises(OptionError, match=r"can't be read as JSON \(.*\): give earl"):
        parse_bound(text)


@each(
    "offset",
    ["-3", "9223372036854775808", "1.0", "1e3", '"7"', "true", "null", "[1]", "NaN"],
)
def test_no_offset(offset: str) -> None:
    with pytest.raises(OptionError, match="is not an offset for topic 'a': give a wh"):
        parse_bound(f'{{"a": {offset}}}')


def test_offsets_of_partitions() -> None:
    bound = parse_bound('{"b": 3, "a": {"10": 7, "2": -1}}')
    offsets = ((Partition("a", 2), -1), (Partition("a", 10), 7), (Partition("b"), 3))
    assert bound == AtOffsets(offsets)
    assert (bound.by_partition, bound.topics) == (("a",), ("a", "b"))
    bound.check_complete("startingOffsets", ["a", "b"])
    for topic, numbers in ("a", [10, 2]), ("b", [0]), ("c", [0, 1]):
        bound.check_partitions("startingOffsets", topic, numbers)
    with pytest.raises(OptionError) as told:
        bound.check_partitions("startingOffsets", "b", [0, 1])
    assert str(told.value) == (
        "option startingOffsets has offsets for the partitions [0] of topic 'b', which "
        'has [0, 1]: give one for each, as in {"b": {"0": -2, "1": -2}}'
    )


@pytest.mark.parametrize("number", ["", "00", "-1", "x", "1.0", "9" * 10])
def test_no_partition(number: str) -> None:
    with pytest.raises(OptionError, match=r"'a': .* is not the number of a partition"):
        parse_bound(json.dumps({"a": {number: 7}}))


def test_partition_that_is_named_twice() -> None:
    with pytest.raises(OptionError, match="' is named twice: name it once"):
        parse_bound('{"a": {"0": 7, "0": 8}}')


def test_offset_of_a_stream_of_another_protocol() -> None:
    bound = parse_bound(json.dumps(STREAM_OFFSET.to_document("tank")))
    assert bound.protocol == "tank"


def test_empty_offsets() -> None:
    with pytest.raises(OptionError, match=r"no topic is named in '\{ \}'"):
        parse_bound("{ }")


def test_topic_that_is_named_twice() -> None:
    with pytest.raises(OptionError, match="' is named twice: name it once"):
        parse_bound('{"a": 1, "b": 1, "a": 2}')


def test_errors_repeat_no_long_text() -> None:
    text = json.dumps({f"topic-{n}": n for n in range(1000)})
    for wrong in (text[:-1], text.replace("{", "(", 1), f'{{"a": [{text}]}}'):
        with pytest.raises(OptionError) as told:
            parse_bound(wrong)
        assert len(str(told.value)) < 300


def test_offset_of_a_topic() -> None:
    bound = parse_bound('{"b": 5, "a": -2}')
    assert isinstance(bound, AtOffsets)
    assert [bound.get(Partition(topic)) for topic in "abc"] == [-2, 5, None]
    assert bound.topics == ("a", "b")


@each(
    ("text", "time_ns"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123_000_000),
        (" 0001 ", 1_000_000),
        ("0" * 5000 + "1", 1_000_000),
        ("9223372036854", 9_223_372_036_854_000_000),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123_456_789),
        ("2023-11-14 22:13:20", 1_700_000_000_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000_000_000),
        ("2023-11-14", 1_699_920_000_000_000_000),
    ],
)
def test_time(text: str, time_ns: int) -> None:
    assert parse_time(text) == AtTime(time_ns)


@pytest.mark.parametrize("text", ["", "now", "-1", "1.5", "1e3", "2024-13-01", "٣"])
def test_no_time(text: str) -> None:
    match = r"is not a time: give one as .*, or milliseconds since 1970"
    with pytest.raises(OptionError, match=match):
        parse_time(text)


def test_time_before_1970() -> None:
    with pytest.raises(OptionError, match="is before 1970"):
        parse_time("1969-12-31")


@pytest.mark.parametrize(
    "text", ["9223372036855", "9" * 5000, "2262-04-12", "9999-12-31T23:59:59Z"]
)
def test_time_that_no_number_holds(text: str) -> None:
    with pytest.raises(OptionError, match="is too late: times end in the year 2262"):
        parse_time(text)


@pytest.mark.parametrize(
    "bound", [EARLIEST, LATEST, AtOffsets(((Partition("é"), 1),)), AtTime(5)]
)
def test_bounds_travel(bound: Bound) -> None:
    assert pickle.loads(pickle.dumps(bound)) == bound
    assert len({bound, bound}) == 1


def test_what_has_no_offset() -> None:
    bound = AtOffsets(((Partition("a"), 1), (Partition("ż"), -1)))
    bound.check_complete("endingOffsets", ["ż", "a"])
    bound.check_complete("endingOffsets", [])
    with pytest.raises(OptionError) as told:
        bound.check_complete("endingOffsets", ["a", "ó"])
    assert str(told.value) == (
        "option endingOffsets has no offset for topic 'ó': add one, as in "
        '{"ó": -2}, where -2 is earliest and -1 is latest'
    )
    with pytest.raises(OptionError, match="'t0007' and 992 more: add one for") as told:
        bound.check_complete("endingOffsets", [f"t{n:04}" for n in range(1000)])
    assert len(str(told.value)) < 400
