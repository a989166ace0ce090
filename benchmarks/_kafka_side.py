"""The sides that `benchmarks.kafka` compares: `format("lance")`, and Kafka, twice.

A side makes topics, and says how Spark reads and writes them. Kafka's topics are made,
and its records for streams sent, by Kafka's own client in the JVM of Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks._stream_lane import TopicFeed, make_rows
from benchmarks._turns import MIB
from lance_spark.client import LanceClient, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ADMIN_S = 60

# What an expert sets for throughput. A reader asks for much at once, gets all of it in
# one poll, and does not wait for more where there is little. Checksums stay on.
TUNED_SOURCE = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": str(16 * MIB),
    "kafka.fetch.max.bytes": str(64 * MIB),
    "kafka.receive.buffer.bytes": str(MIB),
}
# A writer fills batches of 1 MiB, which is the most that a broker takes by default, and
# has several of them on their way. They are not compressed, as ours are not.
TUNED_SINK = {
    "kafka.batch.size": str(MIB),
    "kafka.linger.ms": "20",
    "kafka.buffer.memory": str(128 * MIB),
    "kafka.max.request.size": str(8 * MIB),
    "kafka.send.buffer.bytes": str(MIB),
}


class Side(ABC):
    """One way to have a log in Spark.

    Args:
        spark: the session, the same for all sides.
        format: of source and sink.
        source: options of the source.
        sink: options of the sink.
    """

    def __init__(
        self,
        spark: SparkSession,
        format: str,
        source: Mapping[str, str],
        sink: Mapping[str, str],
    ) -> None:
        self.format = format
        self._spark = spark
        self._source = source
        self._sink = sink

    @abstractmethod
    def create(self, topic: str) -> None:
        """Make a topic."""

    @abstractmethod
    def delete(self, topic: str) -> None:
        """Delete a topic."""

    @abstractmethod
    def load_values(self, topic: str) -> DataFrame:
        """Load the column `value` alone, in the best way that there is."""

    @abstractmethod
    def open_feed(self, topic: str) -> Any:
        """Give a context with a call that appends so many rows, all of them at once."""

    def load(self, topic: str) -> DataFrame:
        """Load all columns of a topic."""
        return self._spark.read.format(self.format).options(**self._read(topic)).load()

    def load_stream(self, topic: str) -> DataFrame:
        """Load all columns of a topic as a stream, from its start."""
        reader = self._spark.readStream.format(self.format)
        options = {**self._read(topic), "startingOffsets": "earliest"}
        return reader.options(**options).load()

    def make_sink(self, topic: str) -> dict[str, str]:
        """Make the options of a sink."""
        return {**self._sink, "topic": topic}

    def _read(self, topic: str) -> dict[str, str]:
        return {**self._source, "topic": topic}


class LanceSide(Side):
    """`format("lance")`, with every option as it is by default.

    Args:
        spark: the session.
        client: makes topics.
        address: where the broker is.
    """

    def __init__(self, spark: SparkSession, client: LanceClient, address: str) -> None:
        super().__init__(spark, "lance", {"servers": address}, {"servers": address})
        self._client = client

    def create(self, topic: str) -> None:
        """Make a topic."""
        self._client.create_topic(topic)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._client.delete_topic(topic)

    def load_values(self, topic: str) -> DataFrame:
        """Load the column `value`; the schema says that no other one is needed."""
        reader = self._spark.read.format("lance").options(**self._read(topic))
        return reader.schema("value binary").load()

    @contextmanager
    def open_feed(self, topic: str) -> Iterator[Callable[[int], None]]:
        """Append with a producer, which makes one batch of them."""
        with Producer(self._client, topic, linger_s=0) as producer:
            yield TopicFeed(producer, self._read(topic)).add


class KafkaSide(Side):
    """`format("kafka")`.

    Args:
        spark: the session.
        cluster: makes topics.
        source: options beyond those that are needed.
        sink: the same for the sink.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: KafkaCluster,
        source: Mapping[str, str],
        sink: Mapping[str, str],
    ) -> None:
        there = {"kafka.bootstrap.servers": cluster.address}
        super().__init__(spark, "kafka", {**there, **source}, {**there, **sink})
        self._cluster = cluster

    def create(self, topic: str) -> None:
        """Make a topic."""
        self._cluster.create(topic)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._cluster.delete(topic)

    def load_values(self, topic: str) -> DataFrame:
        """Load the column `value`."""
        return self.load(topic).select("value")

    def open_feed(self, topic: str) -> Any:
        """Append with a producer that has one batch of them."""
        return self._cluster.open_feed(topic)

    def _read(self, topic: str) -> dict[str, str]:
        return {**self._source, "subscribe": topic}


class KafkaCluster:
    """A broker of Kafka, seen by the client in the JVM of Spark.

    Args:
        spark: has the client on its class path.
        address: where the broker is.
        partitions: of each topic.
    """

    def __init__(self, spark: SparkSession, address: str, partitions: int) -> None:
        jvm: Any = spark._jvm
        self.address = address
        self._partitions = partitions
        self._java = jvm.java
        self._kafka = jvm.org.apache.kafka.clients
        self._admin = self._kafka.admin.Admin.create(self._make_properties())

    def create(self, topic: str) -> None:
        """Make a topic."""
        new = self._kafka.admin.NewTopic(topic, self._partitions, 1)
        self._wait(self._admin.createTopics([new]))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._wait(self._admin.deleteTopics([topic]))

    @contextmanager
    def open_feed(self, topic: str) -> Iterator[Callable[[int], None]]:
        """Append records that readers see all at once: they are one batch."""
        bytes_of = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = {"batch.size": str(MIB), "linger.ms": "60000"}
        settings |= {"key.serializer": bytes_of, "value.serializer": bytes_of}
        # Where the batches end is for a flush to say, not for the clock.
        producer = self._kafka.producer.KafkaProducer(self._make_properties(**settings))
        value = make_rows(1)["value"][0].as_py()
        record = self._kafka.producer.ProducerRecord(topic, value)

        def add(rows: int) -> None:
            for _ in range(rows):
                producer.send(record)
            producer.flush()

        try:
            yield add
        finally:
            producer.close()

    def close(self) -> None:
        """Close the client."""
        self._admin.close()

    def _make_properties(self, **settings: str) -> Any:
        properties = self._java.util.Properties()
        properties.setProperty("bootstrap.servers", self.address)
        for name, value in settings.items():
            properties.setProperty(name, value)
        return properties

    def _wait(self, result: Any) -> None:
        result.all().get(_ADMIN_S, self._java.util.concurrent.TimeUnit.SECONDS)
