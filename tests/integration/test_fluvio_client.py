"""A client that others wrote: `fluvio` 0.21.0 of PyPI, against a broker's process.

It announces client 0.15.2, asks the SC at version 19 and the SPU at version 24, and
opens its three watches twice. A record without a key has an empty one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lance_spark.client import connect
from lance_spark.testing import BrokerProcess

fluvio = pytest.importorskip(
    "fluvio", reason="fluvio 0.21.0 has no wheel for this machine"
)

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parent.parent.parent
HERE = "127.0.0.1:0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker that serves the protocol."""
    directory = tmp_path_factory.mktemp("fluvio") / "data"
    with BrokerProcess(directory, fluvio=HERE, fsync="none") as running:
        yield running


@pytest.fixture(scope="module")
def config(broker: BrokerProcess) -> Any:
    """Say where the SC is."""
    found = fluvio.FluvioConfig.new(broker.address_of("fluvio"))
    found.disable_tls()
    return found


@pytest.fixture(scope="module")
def client(config: Any) -> Any:
    """Connect."""
    return fluvio.Fluvio.connect_with_config(config)


@pytest.fixture(scope="module")
def admin(config: Any) -> Any:
    """Connect to look after topics."""
    return fluvio.FluvioAdmin.connect_with_config(config)


_names = itertools.count()


@pytest.fixture
def topic(admin: Any, client: Any) -> str:
    """Create a topic with one partition, and wait until another client knows it."""
    name = f"topic-{next(_names)}"
    admin.create_topic(name)
    wait_for(client, name)
    return name


def wait_for(client: Any, topic: str) -> None:
    """Wait until a client's watches have told it of a topic, and of its partitions.

    Consumers look at what one watch has told, producers at what the other has.
    """
    ends_s = time.monotonic() + 60
    while True:
        try:
            client.partition_consumer(topic, 0).stream(fluvio.Offset.beginning())
            client.topic_producer(topic)
            return
        except Exception as error:
            # Its errors have no public class.
            if "not found" not in str(error) or time.monotonic() > ends_s:
                raise


def consume(
    client: Any, topic: str, count: int, start: int = 0, partition: int = 0
) -> list[tuple[int, bytes, bytes]]:
    """Read so many records: offset, key and value of each."""
    consumer = client.partition_consumer(topic, partition)
    stream = consumer.stream(fluvio.Offset.absolute(start))
    return [
        (record.offset(), bytes(record.key()), bytes(record.value()))
        for record in itertools.islice(stream, count)
    ]


def test_plain_keyed_and_batched(
    client: Any, topic: str, broker: BrokerProcess
) -> None:
    producer = client.topic_producer(topic)
    sent = producer.send_string("plain").wait()
    assert (sent.partition_id(), sent.offset()) == (0, 0)
    producer.send(b"key", b"keyed")
    producer.send_all([(b"k%d" % n, b"batched %d" % n) for n in range(10)])
    producer.flush()
    expected = [
        (0, b"", b"plain"),
        (1, b"key", b"keyed"),
        *((n + 2, b"k%d" % n, b"batched %d" % n) for n in range(10)),
    ]
    assert consume(client, topic, 12) == expected
    assert consume(client, topic, 5, 7) == expected[7:]
    with connect(f"lance://{broker.address}") as other:
        rows = [row for batch in other.read(topic) for row in batch.to_pylist()]
    found = [(row["key"], row["value"]) for row in rows]
    assert found == [(key, value) for _, key, value in expected]


@pytest.mark.parametrize("codec", ["None_", "Gzip", "Snappy", "Lz4", "Zstd"])
def test_each_codec(client: Any, topic: str, codec: str) -> None:
    kind = getattr(fluvio.Compression, codec)
    config = fluvio.TopicProducerConfigBuilder().compression(kind).build()
    producer = client.topic_producer_with_config(topic, config)
    values = [b"a value that repeats itself " * 40 for _ in range(50)]
    producer.send_all([(b"", value) for value in values])
    producer.flush()
    assert [value for _, _, value in consume(client, topic, 50)] == values


def test_from_the_end(client: Any, topic: str) -> None:
    producer = client.topic_producer(topic)
    producer.send_all([(b"", b"%d" % n) for n in range(5)])
    producer.flush()
    consumer = client.partition_consumer(topic, 0)
    stream = consumer.stream(fluvio.Offset.from_end(2))
    found = [bytes(record.value()) for record in itertools.islice(stream, 2)]
    assert found == [b"3", b"4"]


def test_a_stream_goes_on_while_records_come(client: Any, topic: str) -> None:
    stream = client.partition_consumer(topic, 0).stream(fluvio.Offset.beginning())
    producer = client.topic_producer(topic)
    for number in range(20):
        producer.send_string(f"{number}").wait()
        assert next(stream).value_string() == f"{number}"


def test_topics_and_partitions(client: Any, admin: Any, topic: str) -> None:
    spec = fluvio.TopicSpec.create().with_partitions(3).build()
    admin.create_topic(f"{topic}-many", spec)
    names = {found.name() for found in admin.all_topics()}
    assert {topic, f"{topic}-many"} <= names
    wait_for(client, f"{topic}-many")
    producer = client.topic_producer(f"{topic}-many")
    outputs = producer.send_all([(b"k%d" % n, b"%d" % n) for n in range(30)])
    producer.flush()
    places = [output.wait() for output in outputs]
    by_partition = [0, 0, 0]
    for place in places:
        by_partition[place.partition_id()] += 1
    assert sum(by_partition) == 30
    found = [
        value
        for partition, count in enumerate(by_partition)
        for _, _, value in consume(client, f"{topic}-many", count, 0, partition)
    ]
    assert sorted(found) == sorted(b"%d" % n for n in range(30))


def test_a_topic_that_is_there(admin: Any, topic: str) -> None:
    with pytest.raises(Exception, match="already"):
        admin.create_topic(topic)


def test_watches_see_a_topic_that_appears(
    admin: Any, topic: str, broker: BrokerProcess
) -> None:
    updates = admin.watch_topic()
    first = next(updates)
    assert topic in {found.name() for found in first.all()}
    with connect(f"lance://{broker.address}") as other:
        other.append(f"{topic}-new", [b"one"], create=True)
    for update in updates:
        changes = update.changes()
        if f"{topic}-new" in {one.metadata_topic_spec().name() for one in changes}:
            assert all(one.is_update() for one in changes)
            break


def test_the_page(broker: BrokerProcess) -> None:
    """The example on the page runs."""
    page = (ROOT / "docs" / "fluvio.md").read_text(encoding="utf-8")
    source = page.partition("```python not run\n")[2].partition("```")[0]
    assert source.count("127.0.0.1:9003") == 1
    source = source.replace("127.0.0.1:9003", broker.address_of("fluvio"))
    exec(compile(source, "fluvio.md", "exec"), {})
