"""Offsets of streams, as checkpoints keep them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import CheckpointError
from lance_spark.offset import (
    EARLIER_MAX,
    MARK_BYTES_MAX,
    OFFSET_VERSION,
    OffsetMark,
    StreamOffset,
    TopicPlace,
    is_offset_document,
)
from tests.each import each

# Written by release 1 and read for ever: these texts are not to be changed.
PLAIN_TEXT = (
    '{"version": 1, "topics": {"a": {"epoch": 0, "id": 1, "marks": '
    '{"0": {"bytes": 64, "crc32c": 4294967295}}, "partitions": {"0": 4096}}, '
    '"b": {"epoch": 1706918400, "id": 2, "marks": '
    '{"0": {"bytes": 0, "crc32c": 0}}, "partitions": {"0": 0}}}}'
)
PLAIN = StreamOffset.of(
    {
        "b": TopicPlace.at(2, 1706918400, 0, OffsetMark(0, 0)),
        "a": TopicPlace.at(1, 0, 4096, OffsetMark(64, 2**32 - 1)),
    }
)
MARK = {"bytes": 9, "crc32c": 1}
# Release 0.6 has these as well: where the log ended, and what its head was.
MARKED_TEXT = (
    '{"version": 1, "topics": {"a": {"epoch": 1, "id": 2, "marks": '
    '{"0": {"bytes": 16384, "crc32c": 7, "end": 90000, '
    '"head": {"bytes": 16384, "crc32c": 8}}}, "partitions": {"0": 70000}}, '
    '"b": {"epoch": 1, "id": 3, "marks": '
    '{"0": {"bytes": 500, "crc32c": 9, "end": 600}}, "partitions": {"0": 500}}}}'
)
MARKED = StreamOffset.of(
    {
        "a": TopicPlace.at(2, 1, 70_000, OffsetMark(16384, 7, 16384, 8, 90_000)),
        "b": TopicPlace.at(3, 1, 500, OffsetMark(500, 9, end=600)),
    }
)
TEXTS = {
    '{"version": 1, "topics": {}}': StreamOffset(()),
    '{"version": 1, "topics": {"events": '
    '{"epoch": 1706918400, "id": 3, "partitions": {"0": 4096}}}}': StreamOffset.of(
        {"events": TopicPlace.at(3, 1706918400, 4096)}
    ),
    PLAIN_TEXT: PLAIN,
    MARKED_TEXT: MARKED,
    '{"version": 1, "topics": {"\\u00e9": {"epoch": 1, "id": 7, "partitions": '
    '{"0": 5, "10": 9223372036854775807, "2": 6}}}}': StreamOffset.of(
        {"é": TopicPlace(7, 1, ((2, 6), (10, 2**63 - 1), (0, 5)))}
    ),
    # Since release 0.6; earlier ones read the place and pass over what is new in it.
    '{"version": 1, "topics": {"a": {"away": true, "earlier": [{"epoch": 4, "id": 5, '
    '"marks": {"0": {"bytes": 1, "crc32c": 2}}, "partitions": {"0": 6}}, '
    '{"epoch": 1, "id": 2, "partitions": {"0": 3}}], '
    '"epoch": 7, "id": 8, "partitions": {"0": 9}}}}': StreamOffset.of(
        {
            "a": replace(
                TopicPlace.at(8, 7, 9),
                is_away=True,
                earlier=(
                    TopicPlace.at(5, 4, 6, OffsetMark(1, 2)),
                    TopicPlace.at(2, 1, 3),
                ),
            )
        }
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text: str) -> None:
    assert json.dumps(TEXTS[text].to_document()) == text
    assert StreamOffset.from_document(json.loads(text)) == TEXTS[text]


def test_version() -> None:
    assert OFFSET_VERSION == 1


def test_order_is_no_difference() -> None:
    mark = OffsetMark(1, 2)
    one = TopicPlace(1, 2, ((0, 3), (1, 4)), ((0, mark), (1, mark)))
    other = TopicPlace(1, 2, ((1, 4), (0, 3)), ((1, mark), (0, mark)))
    assert one == other and hash(one) == hash(other)
    left = StreamOffset((("a", one), ("b", one)))
    right = StreamOffset((("b", other), ("a", other)))
    assert left == right and hash(left) == hash(right)
    assert json.dumps(left.to_document()) == json.dumps(right.to_document())


def test_place() -> None:
    place = TopicPlace.at(3, 1706918400, 4096)
    assert (place.offset, place.mark) == (4096, None)
    assert place.positions == ((0, 4096),) and place.marks == ()
    assert place.same_topic(3, 1706918400)
    assert not place.same_topic(4, 1706918400)
    assert not place.same_topic(3, 1706918401)
    assert TopicPlace.at(3, 0, 9, OffsetMark(9, 1)).mark == OffsetMark(9, 1)


def test_other_topics_of_a_name() -> None:
    first = replace(TopicPlace.at(1, 10, 100, OffsetMark(2, 3)), is_away=True)
    assert first.find(1, 10) is first and first.find(1, 11) is None
    second = first.turn_to(2, 20)
    assert (second.topic_id, second.offset, second.is_away) == (2, 0, False)
    [kept] = second.earlier
    assert kept == replace(first, is_away=False) == second.find(1, 10)
    second = replace(second, positions=((0, 50),))
    back = second.turn_to(1, 10)
    assert (back.offset, back.mark) == (100, OffsetMark(2, 3))
    assert [(place.topic_id, place.offset) for place in back.earlier] == [(2, 50)]
    assert back.turn_to(2, 20) == second
    for number in range(100):
        back = back.turn_to(number + 3, 0)
    assert [place.topic_id for place in back.earlier] == [
        number + 2 for number in range(99, 99 - EARLIER_MAX, -1)
    ]
    assert not any(place.earlier for place in back.earlier)


def test_where_a_log_ended() -> None:
    assert TopicPlace.at(3, 0, 9).seen_end(0) == 9
    assert TopicPlace.at(3, 0, 9, OffsetMark(9, 1)).seen_end(0) == 9
    assert TopicPlace.at(3, 0, 9, OffsetMark(9, 1, end=20)).seen_end(0) == 20


def test_place_of_a_topic() -> None:
    places = {name: TopicPlace.at(n, n, n) for n, name in enumerate("dacb")}
    offset = StreamOffset.of(places)
    assert [name for name, _ in offset.topics] == ["a", "b", "c", "d"]
    assert {name: offset.get(name) for name in "abcd"} == places
    assert [offset.get(name) for name in ("", "aa", "e")] == [None] * 3
    assert StreamOffset(()).get("a") is None


def test_offsets_travel() -> None:
    for offset in TEXTS.values():
        assert pickle.loads(pickle.dumps(offset)) == offset


def test_what_progress_adds_is_ignored() -> None:
    document = json.loads(PLAIN_TEXT)
    document["more"] = document["topics"]["a"]["bytesBehind"] = {"0": -1.5}
    document["topics"]["a"]["marks"]["0"]["more"] = None
    assert StreamOffset.from_document(document) == PLAIN


def test_newer_version() -> None:
    with pytest.raises(CheckpointError) as told:
        StreamOffset.from_document({"version": 2, "anything": []})
    assert str(told.value) == (
        "stream offset: version 2 was written by a newer release of "
        "lance_spark (this one reads version 1); upgrade lance_spark"
    )


def test_text_of_an_error() -> None:
    with pytest.raises(CheckpointError) as told:
        StreamOffset.from_document(change("id", True))
    assert str(told.value) == (
        "stream offset, topic 'a': 'id' is true and has to be a whole number from 0 to "
        "18446744073709551615; restore the checkpoint from a copy, or start the query "
        "with a new one and startingOffsets"
    )
    copy = pickle.loads(pickle.dumps(told.value))
    assert (str(copy), copy.where) == (str(told.value), told.value.where)
    assert not copy.retriable


@each(
    ("document", "reason"),
    [
        (None, "null is not an offset of this source"),
        ([1], "a list is not an offset of this source"),
        ("x" * 999, "x… is not an offset of this source"),
        ({}, "there is no 'version', so it is not an offset"),
        ({"events": 4096}, "there is no 'version'"),
        ({"version": 0, "topics": {}}, "'version' is 0 and has to be a number from 1"),
        ({"version": True, "topics": {}}, "'version' is true and"),
        ({"version": 1.0, "topics": {}}, "'version' is 1.0 and"),
        ({"version": "1", "topics": {}}, "'version' is '1' and"),
        ({"version": None, "topics": {}}, "'version' is null and"),
        ({"version": 10**5000}, "version a number of too many digits was written by"),
        ({"version": 1}, "'topics' is missing and has to be an object"),
        ({"version": 1, "topics": []}, "'topics' is a list and has to be an object"),
        ({"version": 1, "topics": {3: {}}}, "3 is not the name of a topic"),
        ({"version": 1, "topics": {"a": 7}}, "7 is not a place in a topic"),
    ],
)
def test_damaged(document: object, reason: str) -> None:
    with pytest.raises(CheckpointError) as told:
        StreamOffset.from_document(document)
    assert reason in told.value.reason
    assert len(str(told.value)) < 300


def change(key: str, value: object) -> dict[str, Any]:
    """Put a value into the place of topic `a`."""
    document: dict[str, Any] = json.loads(PLAIN_TEXT)
    document["topics"]["a"][key] = value
    return document


@each("key", ["id", "epoch"])
@each("value", [-1, 2**64, 1.0, True, None, "1", [], {}])
def test_damaged_number(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"topic 'a': '{key}' is .* and has to"):
        StreamOffset.from_document(change(key, value))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("away", None, "'away' is null and has to be true or false"),
        ("away", 1, "'away' is 1 and has to be true or false"),
        ("earlier", {}, "'earlier' is an object and has to be a list"),
        ("earlier", [3], "3 is not a place in a topic"),
        ("earlier", [{"id": 1}], "'partitions' is missing and has to be an object"),
    ],
)
def test_damaged_memory_of_topics(key: str, value: object, reason: str) -> None:
    with pytest.raises(CheckpointError) as told:
        StreamOffset.from_document(change(key, value))
    assert reason in told.value.reason


def test_topics_that_had_the_name_have_none_before_them() -> None:
    nested: dict[str, Any] = {"epoch": 1, "id": 2, "partitions": {"0": 3}}
    for _ in range(5000):
        nested = {**nested, "earlier": [nested]}
    place = StreamOffset.from_document(change("earlier", [nested] * 99)).get("a")
    assert (
        place is not None and place.earlier == (TopicPlace.at(2, 1, 3),) * EARLIER_MAX
    )


@pytest.mark.parametrize("key", ["id", "epoch", "partitions"])
def test_missing(key: str) -> None:
    document = json.loads(PLAIN_TEXT)
    del document["topics"]["a"][key]
    with pytest.raises(CheckpointError, match=f"topic 'a': '{key}' is missing and"):
        StreamOffset.from_document(document)


@each(
    ("partitions", "reason"),
    [
        ({}, "there is no partition '0'"),
        ({"1": 7}, "there is no partition '0'"),
        (4096, "'partitions' is 4096 and has to be an object"),
        (None, "'partitions' is null and"),
        ({"0": -1}, "'0' is -1 and has to be a whole number"),
        ({"0": 2**63}, "'0' is 9223372036854775808 and"),
        ({"0": 10**5000}, "'0' is a number of too many digits and"),
        ({"0": 1.5}, "'0' is 1.5 and"),
        ({"0": False}, "'0' is false and"),
        ({"0": 0, "00": 1}, "'00' is not the number of a partition"),
        ({"0": 0, "-1": 1}, "'-1' is not the number"),
        ({"0": 0, " 1": 1}, "' 1' is not the number"),
        ({"0": 0, "1\n": 1}, r"'1\n' is not the number"),
        ({"0": 0, "٣": 1}, "'٣' is not the number"),
        ({"0": 0, "9" * 5000: 1}, "… is not the number"),
        ({"0": 0, 1: 1}, "1 is not the number"),
    ],
)
def test_damaged_partitions(partitions: object, reason: str) -> None:
    with pytest.raises(CheckpointError) as told:
        StreamOffset.from_document(change("partitions", partitions))
    assert reason in told.value.reason
    assert "topic 'a'" in told.value.where
    assert len(str(told.value)) < 300


@each(
    ("marks", "reason"),
    [
        (None, "'marks' is null and has to be an object"),
        ({"1": {"bytes": 1, "crc32c": 1}}, "there is no partition '1' to mark"),
        ({"x": {"bytes": 1, "crc32c": 1}}, "'x' is not the number of a partition"),
        ({"0": 64}, "'0' is 64 and has to be an object"),
        ({"0": {"bytes": 16385, "crc32c": 1}}, "'bytes' is 16385 and has to be"),
        ({"0": {**MARK, "head": 5}}, "'head' is 5 and has to be an object"),
        ({"0": {**MARK, "head": None}}, "'head' is null and has to be an object"),
        ({"0": {**MARK, "head": {"bytes": 9}}}, "'crc32c' is missing and has to be"),
        (
            {"0": {**MARK, "head": {"bytes": 16385, "crc32c": 1}}},
            "'bytes' is 16385 and has to be",
        ),
        ({"0": {**MARK, "end": -1}}, "'end' is -1 and has to be"),
        ({"0": {**MARK, "end": None}}, "'end' is null and has to be"),
        ({"0": {"bytes": -1, "crc32c": 1}}, "'bytes' is -1 and"),
        ({"0": {"crc32c": 1}}, "'bytes' is missing and"),
        ({"0": {"bytes": 1}}, "'crc32c' is missing and"),
        ({"0": {"bytes": 1, "crc32c": 2**32}}, "'crc32c' is 4294967296 and"),
        ({"0": {"bytes": 1, "crc32c": True}}, "'crc32c' is true and"),
    ],
)
def test_damaged_marks(marks: object, reason: str) -> None:
    with pytest.raises(CheckpointError) as told:
        StreamOffset.from_document(change("marks", marks))
    assert reason in told.value.reason


def test_mark_before_the_beginning() -> None:
    document = change("partitions", {"0": 10})
    with pytest.raises(CheckpointError, match=r"'bytes' is 64 and .* from 0 to 10;"):
        StreamOffset.from_document(document)


def test_empty_marks_are_none() -> None:
    place = StreamOffset.from_document(change("marks", {})).get("a")
    assert place is not None and place.marks == ()


@each(
    ("document", "is_one"),
    [
        (json.loads(PLAIN_TEXT), True),
        ({"version": 2, "topics": {}}, True),
        ({"version": "?", "topics": {"a": 1}}, True),
        ({"version": 1, "topics": 2}, False),
        ({"version": 1}, False),
        ({"topics": {"0": 5}}, False),
        ({"logOffset": 3}, False),
        (None, False),
        (7, False),
        (["version", "topics"], False),
    ],
)
def test_is_offset_document(document: object, is_one: bool) -> None:
    assert is_offset_document(document) is is_one


# Hypothesis.

NUMBERS = st.integers(0, 2**64 - 1)
CRCS = st.integers(0, 2**32 - 1)


@st.composite
def places(draw: st.DrawFn) -> TopicPlace:
    partitions = {0} | draw(st.sets(st.integers(0, 999_999_999), max_size=3))
    offsets = st.one_of(st.integers(0, 100), st.integers(0, 2**63 - 1))
    positions = {partition: draw(offsets) for partition in partitions}
    marks = {
        partition: OffsetMark(
            draw(st.integers(0, min(offset, MARK_BYTES_MAX))), draw(CRCS)
        )
        for partition, offset in positions.items()
        if draw(st.booleans())
    }
    return TopicPlace(
        draw(NUMBERS), draw(NUMBERS), tuple(positions.items()), tuple(marks.items())
    )


# With surrogates: JSON can hold them, so that a checkpoint can.
NAMES = st.text(st.characters(), max_size=8)
PLACES = st.dictionaries(NAMES, places(), max_size=4)


@given(PLACES)
def test_round_trip(places: dict[str, TopicPlace]) -> None:
    offset = StreamOffset.of(places)
    text = json.dumps(offset.to_document())
    again = StreamOffset.from_document(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_document()) == text
    assert {name: again.get(name) for name in places} == places


@given(PLACES, st.randoms(use_true_random=False))
def test_same_value_has_the_same_text(
    places: dict[str, TopicPlace], random: Any
) -> None:
    def mix(items: Any) -> Any:
        items = list(items)
        random.shuffle(items)
        return items

    mixed = {
        name: TopicPlace(p.topic_id, p.created_s, mix(p.positions), mix(p.marks))
        for name, p in mix(places.items())
    }
    one, other = StreamOffset.of(places), StreamOffset.of(mixed)
    assert one == other
    assert json.dumps(one.to_document()) == json.dumps(other.to_document())


@given(PLACES)
def test_keys_are_sorted(places: dict[str, TopicPlace]) -> None:
    document = StreamOffset.of(places).to_document()
    assert list(document) == ["version", "topics"]
    topics = document["topics"]
    assert json.dumps(topics) == json.dumps(topics, sort_keys=True)


KEYS = (
    *("version", "topics", "id", "epoch", "partitions", "marks"),
    *("bytes", "crc32c"),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([0, 1, 2, 2**63, 2**64]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.sampled_from(["0", "1", "00", "x"]), inner, max_size=3),
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(KEYS, inner),
        ),
    ),
    max_leaves=20,
)


def check_only_checkpoint_errors(document: object) -> None:
    try:
        offset = StreamOffset.from_document(document)
    except CheckpointError as error:
        # A name may be half a character, and a text has to be printed all the same.
        assert str(error).encode()
        return
    assert StreamOffset.from_document(offset.to_document()) == offset
    assert all(place.offset >= 0 for _, place in offset.topics)


@given(JSON)
def test_any_json(document: object) -> None:
    check_only_checkpoint_errors(document)


@given(PLACES, JSON, st.data())
def test_any_damage(
    places: dict[str, TopicPlace], damage: object, data: st.DataObject
) -> None:
    document = StreamOffset.of(places).to_document()
    spot: dict[str, Any] = document
    key = data.draw(st.sampled_from(sorted(spot)))
    while isinstance(spot[key], dict) and spot[key] and data.draw(st.booleans()):
        spot = spot[key]
        key = data.draw(st.sampled_from(sorted(spot)))
    spot[key] = damage
    check_only_checkpoint_errors(document)
