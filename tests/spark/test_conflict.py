"""Options that contradict each other."""

from __future__ import annotations

import pytest

from lance_spark.spark.bound import AtOffsets, AtTime
from lance_spark.spark.options import (
    check_options,
    parse_read_options,
)
from tests.each import each
from tests.spark.given import (
    GOOD,
    PARSERS,
    READ_PARSERS,
    WRITE_PARSERS,
    Parse,
    parse_stream_options,
    refused,
)


@pytest.mark.parametrize("parse", [*READ_PARSERS, parse_stream_options])
def test_topic_and_pattern(parse: Parse) -> None:
    said = refused(parse, {"topic": "a", "topicPattern": "a"})
    assert said.startswith("options topic and topicPattern are both given: leave out")


def test_start_of_a_stream_and_time() -> None:
    given = {"topic": "a", "startingOffsets": "earliest", "startingTimestamp": "0"}
    said = refused(parse_stream_options, given)
    assert said.startswith("options startingOffsets and startingTimestamp are both")


def test_offsets_of_a_stream() -> None:
    given = {"topic": "a,b", "startingOffsets": '{"a": 1}'}
    said = refused(parse_stream_options, given)
    assert said.startswith("option startingOffsets has no offset for topic 'b'")
    given["startingOffsets"] = '{"a": 1, "b": -1, "c": 1}'
    said = refused(parse_stream_options, given)
    assert said.startswith("option startingOffsets names topic 'c', which option")


@pytest.mark.parametrize(
    ("batch", "stream"),
    [
        ("endingOffsets", "maxBytesPerTrigger"),
        ("endingTimestamp", "maxRecordsPerTrigger"),
        ("metadata", "consumerGroup"),
    ],
)
@pytest.mark.parametrize("parse", READ_PARSERS[:2])
def test_options_of_batches_and_streams(parse: Parse, batch: str, stream: str) -> None:
    said = refused(parse, {stream: GOOD[stream], batch: GOOD[batch]})
    assert said == (
        f"option {batch} is for batches and {stream} for streams: leave out one of them"
    )


def test_options_of_three_kinds() -> None:
    # What reads and what writes is said first: it is the larger mistake.
    names = ("maxBytesPerTrigger", "endingOffsets", "txnAppId")
    said = refused(check_options, {name: GOOD[name] for name in names})
    assert said.startswith("option maxBytesPerTrigger is for reads and txnAppId for wr")


@pytest.mark.parametrize("parse", READ_PARSERS)
@pytest.mark.parametrize("end", ["starting", "ending"])
def test_offsets_and_time(parse: Parse, end: str) -> None:
    given = {"topic": "a", f"{end}Offsets": "earliest", f"{end}Timestamp": "0"}
    said = refused(parse, given)
    assert said.startswith(f"options {end}Offsets and {end}Timestamp are both given: ")


@each("parse", READ_PARSERS)
@each(
    "name",
    [
        *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
        "pushFilters",
    ],
)
def test_what_is_for_records_where_topics_are_listed(parse: Parse, name: str) -> None:
    said = refused(parse, {"topic": "a", "metadata": "topics", name: GOOD[name]})
    assert said.startswith(f"option {name} is given with metadata, which reads no")


@pytest.mark.parametrize("parse", READ_PARSERS)
@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offset_of_a_topic_that_is_not_read(parse: Parse, name: str) -> None:
    offsets = '{"a": 1, "b": 1}'
    said = refused(parse, {"topic": "a,c", name: offsets})
    assert said.startswith(f"option {name} names topic 'b', which option topic does")
    said = refused(parse, {"topicPattern": "[ac]", name: offsets})
    assert said.startswith(f"option {name} names topic 'b', which option topicPattern")
    assert "'[ac]' does not match: change the pattern" in said


@pytest.mark.parametrize("parse", READ_PARSERS)
@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_topic_that_has_no_offset(parse: Parse, name: str) -> None:
    said = refused(parse, {"topic": "a,b", name: '{"a": 1}'})
    assert said == (
        f"option {name} has no offset for topic 'b': add one, as in "
        '{"b": -2}, where -2 is earliest and -1 is latest'
    )
    # What a pattern will find is not known before the server is asked.
    parse({"topicPattern": "[ab]", name: '{"a": 1}'})


@each("parse", READ_PARSERS)
@each(
    ("start", "end", "shown"),
    [
        ('{"a": 5}', '{"a": 4}', " for topic 'a' (5 and 4)"),
        ('{"a": 5, "b": 1}', '{"a": 5, "b": 0}', " for topic 'b' (1 and 0)"),
        ("latest", "earliest", " (latest and earliest)"),
        ('{"a": -1}', "earliest", " for topic 'a' (latest and earliest)"),
        ("latest", '{"a": -2}', " for topic 'a' (latest and earliest)"),
    ],
)
def test_start_behind_the_end(parse: Parse, start: str, end: str, shown: str) -> None:
    given = {"topicPattern": "[ab]", "startingOffsets": start, "endingOffsets": end}
    assert refused(parse, given) == (
        f"option startingOffsets is behind endingOffsets{shown}: exchange them"
    )


@each(
    ("start", "end"),
    [
        ('{"a": 5}', '{"a": 5}'),
        ('{"a": 5}', '{"b": 4}'),
        ('{"a": 5}', '{"a": -1}'),
        # Only the log can tell.
        ('{"a": 5}', '{"a": -2}'),
        ('{"a": -1}', '{"a": 5}'),
        ('{"a": -2}', '{"a": 0}'),
        ("latest", "latest"),
        ("earliest", "earliest"),
        ("earliest", '{"a": 0}'),
    ],
)
def test_start_that_may_be_before_the_end(start: str, end: str) -> None:
    parse_read_options(
        {"topicPattern": "[ab]", "startingOffsets": start, "endingOffsets": end}
    )


@pytest.mark.parametrize("parse", READ_PARSERS)
def test_start_later_than_the_end(parse: Parse) -> None:
    given = {"topic": "a", "startingTimestamp": "2", "endingTimestamp": "1"}
    said = refused(parse, given)
    assert said.startswith("option startingTimestamp is later than endingTimestamp: ex")
    parse({**given, "endingTimestamp": "2"})


def test_time_and_offset_are_not_compared() -> None:
    made = parse_read_options(
        {"topic": "a", "startingTimestamp": "2024-05-01", "endingOffsets": '{"a": 0}'}
    )
    assert isinstance(made.start, AtTime) and isinstance(made.end, AtOffsets)


@each("parse", PARSERS)
@each("name", ["tlsCa", "tlsCert", "tlsKey", "tlsServerName"])
@each("off", [{}, {"tls": "false"}])
def test_tls_option_without_tls(parse: Parse, name: str, off: dict[str, str]) -> None:
    said = refused(parse, {"topic": "a", name: GOOD[name], **off})
    assert said.startswith(
        f"option {name} is given without tls: set option tls to true"
    )


@pytest.mark.parametrize("parse", PARSERS)
def test_key_without_certificate(parse: Parse) -> None:
    said = refused(parse, {"topic": "a", "tls": "true", "tlsKey": "key.pem"})
    assert said.startswith("option tlsKey is given without tlsCert: give the cert")


@pytest.mark.parametrize("parse", WRITE_PARSERS)
@pytest.mark.parametrize(
    ("name", "other"), [("txnAppId", "txnVersion"), ("txnVersion", "txnAppId")]
)
def test_half_a_transaction(parse: Parse, name: str, other: str) -> None:
    said = refused(parse, {name: GOOD[name]})
    assert said == f"option {name} is given without {other}: give both or neither"


@pytest.mark.parametrize("parse", WRITE_PARSERS)
def test_transaction_at_least_once(parse: Parse) -> None:
    given = {"txnAppId": "job", "txnVersion": "1", "delivery": "at-least-once"}
    said = refused(parse, given)
    assert "with delivery at-least-once, which can't tell a repeated write" in said
    parse({**given, "delivery": "exactly-once"})
