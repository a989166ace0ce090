"""Every command of RustLog in both dialects, and the conversations of the field."""

from __future__ import annotations

import json
import struct

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.config import LWP
from lance_spark.model import Retention
from lance_spark.wire import rustlog as wire
from tests.broker.kit import Dial, StartBroker
from tests.broker.kit import record as make_tlv
from tests.broker.rustlog.conftest import DialRustlog
from tests.broker.rustlog.kit import MIB, RustlogClient, make, values_of
from tests.wire.rustlog.plain import VECTORS

BINARY = {row["name"]: bytes.fromhex(row["hex"]) for row in VECTORS}
# Where our contract is another than the field's, by the name of the request.
DIFFERENT = {
    # Nothing is read there; here the asked offset counts.
    "fetch_group_nocommit",
    # There a commit is not checked.
    "commit_unknown_topic",
    # There JSON is not known.
    "json",
}
CONVERSATION = [
    row["name"].removesuffix("_request")
    for row in VECTORS
    if row["name"].endswith("_request")
    and row["name"].replace("_request", "_response") in BINARY
    and not row["name"].startswith("json_")
]


def test_the_conversation_of_the_field(
    broker: EmbeddedBroker, dial_rustlog: DialRustlog
) -> None:
    """What RustLog's broker was asked and has answered, in that order."""
    client = dial_rustlog(broker)
    compared = 0
    for name in CONVERSATION:
        if name in DIFFERENT:
            continue
        client.send(BINARY[f"{name}_request"])
        payload, expected = client.next_payload(), BINARY[f"{name}_response"][4:]
        assert payload is not None
        if expected[0] == 0xFE:
            # Code and kind; the words are our own.
            assert payload[:3] == expected[:3], name
        else:
            assert payload == expected, name
        compared += 1
    assert compared > 20


def test_where_the_field_differs(
    broker: EmbeddedBroker, dial_rustlog: DialRustlog
) -> None:
    client = dial_rustlog(broker)
    client.create("orders", 2)
    client.produce("orders", [b"bytes", b"more", b"third"])
    client.send(BINARY["fetch_group_nocommit_request"])
    answer = client.next()
    assert values_of(answer.records) == [b"bytes", b"more", b"third"]
    assert answer.next_offset == 3
    client.send(BINARY["commit_unknown_topic_request"])
    assert client.next().code == 5
    client.send(BINARY["json_request"])
    payload = client.next_payload()
    assert payload is not None and "Fetch" in json.loads(payload)


def test_the_json_of_the_specification(
    broker: EmbeddedBroker, dial_rustlog: DialRustlog
) -> None:
    client = dial_rustlog(broker)
    client.create("orders", 2)

    def ask(name: str) -> object:
        client.send(BINARY[name])
        payload = client.next_payload()
        assert payload is not None
        return json.loads(payload)

    for base in (0, 2):
        assert ask("json_produce_request") == {"Produce": {"offsets": [base, base + 1]}}
    payload = {"offset": 2, "payload": [98, 121, 116, 101, 115]}
    client.send_payload(
        b' {"Fetch":{"max_bytes":1,"offset":2,"topic":"orders","partition":0,"x":1}}'
    )
    found = client.next_payload()
    assert found is not None
    assert json.loads(found) == {"Fetch": {"records": [payload], "next_offset": 3}}
    # Both ask past the end: of a group without a commit, and of none.
    assert ask("json_fetch_request") == {"Fetch": {"records": [], "next_offset": 4}}
    assert ask("json_fetch_request_nogroup") == {
        "Fetch": {"records": [], "next_offset": 4}
    }
    assert ask("json_offset_fetch_request") == {"OffsetFetch": {"offset": None}}
    refused = ask("json_offset_commit_request")
    assert "Record 1500 is beyond the end 4" in str(refused) and "Error" in str(refused)


# Topics.


def test_topics(client: RustlogClient) -> None:
    assert client.ask(wire.Ping()) == wire.PingResponse()
    assert client.ask(wire.ListTopics()).topics == ()
    client.create("orders", 3)
    client.create("events")
    assert client.ask(wire.ListTopics()).topics == (("events", 1), ("orders", 3))
    answer = client.ask(wire.DescribeTopic("orders"))
    assert (answer.topic, answer.partition_count) == ("orders", 3)
    assert answer.partitions == ((0, 0), (1, 0), (2, 0))
    assert client.ask(wire.DescribeTopic("events")).partitions == ((0, 0),)
    answer = client.ask(wire.DescribePartition("orders", 2))
    assert answer == wire.DescribePartitionResponse("orders", 2, 0)


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (wire.CreateTopic("orders", 2), 11, "already exists"),
        (wire.CreateTopic("orders", 1), 11, "already exists"),
        (wire.CreateTopic("a/b", 1), 12, "slash"),
        (wire.CreateTopic("..", 1), 12, "directories"),
        (wire.CreateTopic("", 1), 12, "required"),
        (wire.CreateTopic("x" * 256, 1), 12, "256 bytes"),
        (wire.CreateTopic("z", 0), 12, "1 to 256"),
        (wire.CreateTopic("z", 257), 12, "1 to 256"),
        (wire.CreateTopic("z", 2**32 - 1), 12, "1 to 256"),
        (wire.DescribeTopic("no"), 13, "no"),
        (wire.DescribeTopic("orders/0"), 13, "orders/0"),
        (wire.DescribePartition("no", 0), 14, "no"),
        (wire.DescribePartition("orders", 2), 14, "orders/2"),
        (wire.DescribePartition("orders/1", 0), 14, "orders/1"),
        (wire.Produce("no", 0, make([b"x"])), 10, "no"),
        (wire.Produce("orders", 2**32 - 1, make([b"x"])), 10, "orders"),
        (wire.Fetch("no", 0, 0, 100), 10, "no"),
        (wire.Fetch("orders", 2, 0, 100, "g"), 10, "orders/2"),
        (wire.OffsetFetch("no", 0, "g"), 10, "no"),
        (wire.OffsetCommit("no", 0, "g", 0), 5, "no"),
        (wire.OffsetCommit("orders", 9, "g", 0), 5, "orders/9"),
        (wire.OffsetCommit("orders", 0, "g", 1), 5, "beyond the end"),
        (wire.OffsetCommit("orders", 0, "", 0), 5, "1 to 255"),
        (wire.OffsetCommit("orders", 0, "x" * 256, 0), 5, "1 to 255"),
    ],
    ids=lambda value: value.NAME if isinstance(value, wire.Message) else None,
)
def test_refusals(
    client: RustlogClient, message: wire.Message, code: int, text: str
) -> None:
    client.create("orders", 2)
    found, message_text = client.refused(message)
    assert found == (None if client.as_json else code)
    assert text in message_text
    # The connection goes on, and nothing was made.
    assert client.ask(wire.ListTopics()).topics == (("orders", 2),)


def test_limits_of_topics(start: StartBroker, dial_rustlog: DialRustlog) -> None:
    client = dial_rustlog(start(rustlog="127.0.0.1:0", topics_max=3, partitions_max=2))
    assert client.refused(wire.CreateTopic("wide", 3))[0] == 12
    client.create("two", 2)
    code, text = client.refused(wire.CreateTopic("more", 2))
    assert code == 12 and "topics_max" in text
    client.create("one")


# Records.


def test_records(client: RustlogClient) -> None:
    client.create("orders", 2)
    assert client.produce("orders", [b"a", b"", bytes(range(256))]) == 0
    assert client.produce("orders", [b"d"]) == 3
    assert client.produce("orders", [b"other"], partition=1) == 0
    assert client.produce("orders", []) == 0
    everything = [b"a", b"", bytes(range(256)), b"d"]
    for start in range(4):
        assert client.fetch("orders", start) == (everything[start:], 4)
    assert client.fetch("orders", 0, partition=1) == ([b"other"], 1)
    # A record costs 12 bytes more than its value; one is always given, for 0 none is.
    assert client.fetch("orders", 0, 1) == ([b"a"], 1)
    assert client.fetch("orders", 0, 24) == ([b"a"], 1)
    assert client.fetch("orders", 0, 25) == ([b"a", b""], 2)
    assert client.fetch("orders", 2, 1) == ([everything[2]], 3)


def test_a_fetch_of_nothing_never_moves_the_reader(client: RustlogClient) -> None:
    """A client that goes on at the next offset would lose what is before it."""
    client.create("orders")
    client.produce("orders", [b"a", b"b", b"c"])
    assert client.fetch("orders", 1, 0) == ([], 1)
    assert client.fetch("orders", 0, 0) == ([], 0)


def test_past_the_end(client: RustlogClient) -> None:
    client.create("orders")
    client.produce("orders", [b"a", b"b", b"c"])
    for asked in (3, 4, 1003, 2**63, 2**64 - 1):
        expected = 3 if client.as_json else asked
        if client.as_json or asked < 2**63:
            assert client.fetch("orders", asked) == ([], expected)
        else:
            client.submit(wire.Fetch("orders", 0, asked, 100))
            payload = client.next_payload()
            assert payload == struct.pack(">BIQ", 2, 0, asked)


def test_records_before_the_start_are_lost_loudly(
    start: StartBroker, dial_rustlog: DialRustlog
) -> None:
    broker = start(rustlog="127.0.0.1:0", segment_bytes=200)
    client = dial_rustlog(broker)
    broker.service.create_topics(Principal(), "orders", 2, Retention(0, 1))
    for n in range(20):
        client.produce("orders", [b"%020d" % n], partition=1)
    client.ask(wire.OffsetCommit("orders", 1, "g", 2))
    broker.service.maintain()
    answer = client.ask(wire.DescribePartition("orders", 1))
    assert 0 < answer.base_offset < 20
    assert client.ask(wire.DescribeTopic("orders")).partitions == (
        (0, 0),
        (1, answer.base_offset),
    )
    for group in ("", "g"):
        code, text = client.refused(wire.Fetch("orders", 1, 0, 100, group))
        assert code == 4 and "which has [" in text
    found, following = client.fetch("orders", answer.base_offset, 1, partition=1)
    assert found == [b"%020d" % answer.base_offset]
    assert following == answer.base_offset + 1


def test_groups(client: RustlogClient) -> None:
    client.create("orders", 2)
    client.produce("orders", [b"a", b"b", b"c"])
    assert client.ask(wire.OffsetFetch("orders", 0, "g")).offset is None
    # Without a commit at the asked offset, with one at its commit, also a lower one.
    assert client.fetch("orders", 1, group="g") == ([b"b", b"c"], 3)
    for committed, asked, found in ((2, 0, [b"c"]), (0, 2, [b"a", b"b", b"c"])):
        assert client.ask(wire.OffsetCommit("orders", 0, "g", committed)).success
        assert client.ask(wire.OffsetFetch("orders", 0, "g")).offset == committed
        assert client.fetch("orders", asked, group="g") == (found, 3)
    assert client.ask(wire.OffsetFetch("orders", 1, "g")).offset is None
    assert client.fetch("orders", 1, group="other") == ([b"b", b"c"], 3)
    assert client.ask(wire.OffsetFetch("orders", 0, "")).offset is None


def test_a_large_log_comes_in_pieces(client: RustlogClient) -> None:
    client.create("orders")
    expected = [b"%d" % n * 2500 for n in range(1000)]
    client.produce("orders", expected[:200])
    for first in range(200, 1000, 100):
        client.produce("orders", expected[first : first + 100])
    assert client.read("orders") == expected


def test_one_log_for_both_protocols(
    broker: EmbeddedBroker, dial: Dial, client: RustlogClient
) -> None:
    """Keys and times are not carried, nulls become empty values."""
    lwp = dial(broker)
    topic = lwp.create("orders")
    lwp.write(topic, make_tlv(b"plain") + make_tlv(b"", 0xFF), 1, count=2)
    keyed = make_tlv(b"\x03\x00keyvalue", 3)
    lwp.write(topic, keyed, 2, count=1)
    values, following = client.fetch("orders")
    assert values[:2] == [b"plain", b""]
    assert following == 3
    client.produce("orders", [b"back"])
    assert lwp.read(topic).endswith(make_tlv(b"back"))


def test_metrics(start: StartBroker, dial_rustlog: DialRustlog, dial: Dial) -> None:
    auth = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    broker = start(rustlog="127.0.0.1:0", topics={"hidden": {"auth": auth}})
    for as_json in (False, True):
        client = dial_rustlog(broker, as_json=as_json)
        if not as_json:
            client.create("orders")
            client.produce("orders", [b"a", b"b"])
            client.refused(wire.DescribeTopic("no"))
        text = client.ask(wire.MetricsFetch()).text
        assert 'lance_broker_topic_records_in_total{topic="orders"} 2.0' in text
        assert "hidden" not in text
        assert 'protocol_requests_refused_total{protocol="rustlog"} 1.0' in text
        assert 'protocol_requests_refused_total{protocol="lance"}' not in text
        assert 'count{command="rustlog.Produce"} 1.0' in text
    # Those that were sent count, and not those that were looked at.
    client.fetch("orders", 0, 14)
    assert broker.metrics.snapshot().traffic.records_out == 1
    lwp = dial(broker)
    lwp.alive()
    counts = broker.metrics.snapshot()
    assert counts.protocols["rustlog"].connections == 2
    assert counts.protocols[LWP].connections == 1
    assert counts.requests["rustlog.DescribeTopic"].count == 1


def test_one_request_behind_the_other(client: RustlogClient) -> None:
    """Pipelined requests are answered in order, and see what is before them."""
    client.create("orders")
    for n in range(300):
        client.submit(wire.Produce("orders", 0, make([b"%d" % n])))
        if n % 7 == 0:
            client.submit(wire.Fetch("orders", 0, n, 100))
        if n % 11 == 0:
            client.submit(wire.Produce("no", 0, make([b"x"])))
        if n % 13 == 0:
            client.submit(wire.Produce("orders", 0, make([])))
    for n in range(300):
        answer = client.next()
        assert (answer.base_offset, answer.count) == (n, 1)
        if n % 7 == 0:
            answer = client.next()
            assert values_of(answer.records)[0] == b"%d" % n
        if n % 11 == 0:
            assert isinstance(client.next(), wire.ErrorResponse)
        if n % 13 == 0:
            assert client.next().count == 0


def test_the_dialects_on_one_connection(
    broker: EmbeddedBroker, dial_rustlog: DialRustlog
) -> None:
    client = dial_rustlog(broker)
    client.create("orders")
    for n in range(6):
        client.as_json = n % 2 == 1
        assert client.produce("orders", [b"x"]) == n
    assert len(client.read("orders")) == 6


def test_the_largest_record(broker: EmbeddedBroker, dial_rustlog: DialRustlog) -> None:
    client = dial_rustlog(broker)
    client.create("t")
    large = b"x" * (wire.VALUE_BYTES_MAX - len("t"))
    assert client.produce("t", [large]) == 0
    assert client.fetch("t", 0, 1) == ([large], 1)
    client.produce("t", [b"y" * (4 * MIB), b"z" * (4 * MIB)])
    assert client.fetch("t", 1, 2**32 - 1) == ([b"y" * (4 * MIB)], 2)
