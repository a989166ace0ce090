"""`lnc-client` doing the same work, in the fastest way it has."""

from __future__ import annotations

import asyncio
import time

from lnc_client import Producer, StandaloneConsumer
from lnc_client.config import ProducerConfig, StandaloneConfig
from lnc_client.tlv import TlvRecord

_VALUE = b"v" * 95
# As many 100-byte records as a batch of 1 MiB takes.
_BATCH_RECORDS = 10_000


class LncClient:
    """Writes and reads 100-byte records; each call connects and gives its seconds."""

    def __init__(self, address: str) -> None:
        self._address = address

    def write_batches(self, topic_id: int, records: int) -> float:
        """Write batches of 1 MiB, each acknowledged before the next."""
        return asyncio.run(self._write_batches(topic_id, records))

    def write_single(self, topic_id: int, records: int) -> float:
        """Write a frame per record, pipelined, and wait for all of them."""
        return asyncio.run(self._write_single(topic_id, records))

    def read(self, topic_id: int, records: int) -> float:
        """Read records with fetches of 1 MiB."""
        return asyncio.run(self._read(topic_id, records))

    async def _write_batches(self, topic_id: int, records: int) -> float:
        producer = await Producer.connect(self._address, ProducerConfig())
        start = time.perf_counter()
        for done in range(0, records, _BATCH_RECORDS):
            count = min(_BATCH_RECORDS, records - done)
            batch = [TlvRecord.raw(_VALUE) for _ in range(count)]
            await producer.send_batch(topic_id, batch)
        took = time.perf_counter() - start
        await producer.close()
        return took

    async def _write_single(self, topic_id: int, records: int) -> float:
        producer = await Producer.connect(self._address, ProducerConfig())
        start = time.perf_counter()
        for _ in range(records):
            await producer.send_async(topic_id, _VALUE)
        await producer.flush()
        took = time.perf_counter() - start
        await producer.close()
        return took

    async def _read(self, topic_id: int, records: int) -> float:
        config = StandaloneConfig("bench", topic_id=topic_id)
        consumer = await StandaloneConsumer.connect(self._address, config)
        start = time.perf_counter()
        done = 0
        while done < records:
            result = await consumer.poll(timeout=30)
            assert result is not None
            done += len(result.records)
        took = time.perf_counter() - start
        await consumer.close()
        return took
