"""The accounts at the end: what has come out, compared with what was fed.

The output of one query is the transform of its input, each record once; order is a
promise, too: a query without a shuffle keeps it. Copies from format to format lose
nothing, and double only where they do not promise otherwise. Spark has no part in this.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from lance_spark.client import LanceClient
from lance_spark.wire.lwp import Record, decode_records
from tests.spark.campaign.feed import make_record, read_number
from tests.spark.campaign.hop import FORMATS, Hop

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


def count_records(client: LanceClient) -> Counter[str]:
    """Say how many records each topic has, all its partitions together."""
    counts: Counter[str] = Counter()
    for info in client.topics():
        counts[info.name.partition("/")[0]] += client.locate_end(info.id).record
    return counts


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


def check_output(client: LanceClient, hops: Sequence[Hop]) -> None:
    """Check that what has come out of the only query is the transform of its input."""
    [hop] = hops
    source, target = hop.source, hop.target
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


@dataclass(frozen=True)
class Carried:
    """What the records of a topic still have of those that were fed."""

    columns: frozenset[str] = frozenset(("key", "timestamp", "value"))
    # The parts of a second of their times.
    unit_ns: int = 1

    def behind(self, hop: Hop) -> Carried:
        """Say what is left behind a query."""
        units = (FORMATS[name].unit_ns for name in hop.formats)
        return Carried(
            self.columns.intersection(hop.columns), max(self.unit_ns, *units)
        )

    def check(self, record: Record) -> int:
        """Check that a record has all of it; say which one it is."""
        number = read_number(record)
        fed = make_record(number)
        key = fed.key if "key" in self.columns else None
        assert (record.value, record.key) == (fed.value, key), f"{number} is not whole"
        # Formats whose records all have times give one to those that have none.
        if "timestamp" in self.columns and fed.timestamp_ns is not None:
            time_ns = fed.timestamp_ns // self.unit_ns * self.unit_ns
            assert record.timestamp_ns == time_ns, f"{number} is of another time"
        return number


def check_copies(client: LanceClient, hops: Sequence[Hop]) -> dict[str, int]:
    """Check that queries have copied all; say how much of it each has doubled.

    A record that is in its source twice is two: both have to arrive.
    """
    carried = {hops[0].source: Carried()}
    for hop in hops:
        carried[hop.target] = carried[hop.source].behind(hop)
    found = {
        topic: Counter(
            left.check(record)
            for info in client.topics()
            if info.name.partition("/")[0] == topic
            for record in read_topic(client, info.name)
        )
        for topic, left in carried.items()
    }
    doubled = {}
    for hop in hops:
        given, came = found[hop.source], found[hop.target]
        lost, more = (given - came).total(), (came - given).total()
        told = f"{hop.name}: of {given.total()} records {lost} are lost, {more} doubled"
        assert not lost, told
        assert not (more and hop.is_once), told
        doubled[hop.name] = more
    return doubled
