"""The accounts at the end: the output is the transform of the input, each record once.

Spark has no part in this. Order is a promise, too: a query without a shuffle keeps it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from lance_spark.client import LanceClient
from lance_spark.wire.lwp import Record, decode_records
from tests.spark.campaign.feed import make_record, read_number

_FETCH_BYTES = 4 * 1024 * 1024


def transform(record: Record) -> Record:
    """Do what the query does."""
    value = bytes(record.value)
    return replace(record, value=value + hashlib.sha256(value).digest())


def read_topic(client: LanceClient, topic: str) -> Iterator[Record]:
    """Read what a topic holds, a piece at a time."""
    start = 0
    while len((fetched := client.fetch(topic, start, _FETCH_BYTES)).data):
        assert fetched.start == start, "something is gone"
        yield from decode_records(bytes(fetched.data))
        start = fetched.end


def count_records(client: LanceClient, topic: str) -> int:
    """Say how many records a topic has; none if it is not there."""
    ids = [info.id for info in client.topics() if info.name == topic]
    return client.locate_end(ids[0]).record if ids else 0


def check_input(client: LanceClient, topic: str, acked: int) -> int:
    """Check that all is there that was acknowledged; say how many records there are."""
    seen, count = 0, 0
    for record in read_topic(client, topic):
        number = read_number(record)
        # A burst that had no answer may be there twice.
        assert number <= seen, f"record {seen} is not there"
        assert record == make_record(number), f"record {number} is not whole"
        seen, count = max(seen, number + 1), count + 1
    assert seen == acked
    return count


def check_output(client: LanceClient, source: str, target: str) -> None:
    """Check that a topic is the transform of another one."""
    pairs = zip_longest(read_topic(client, source), read_topic(client, target))
    for index, (given, found) in enumerate(pairs):
        if given is None or found is None or transform(given) != found:
            told = describe(client, source, target)
            raise AssertionError(f"record {index} is the first that differs; {told}")


def describe(client: LanceClient, source: str, target: str) -> str:
    """Say what is wrong with a topic."""
    given = Counter(map(transform, read_topic(client, source)))
    found = Counter(read_topic(client, target))
    lost, more = (given - found).total(), (found - given).total()
    torn = sum(count for each, count in found.items() if each not in given)
    return (
        f"of {given.total()} records {lost} are lost, {more - torn} are there too "
        f"often, and {torn} are none of them"
    )
