"""The broker and the client, over a loopback socket, against what that socket can do.

Three processes: this one is the client, one is a broker (`lance-spark broker`), one
copies bytes and does nothing else. Everything runs in turns, round by round, and the
median counts, so that a ratio compares two things that met the same machine.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median

import pyarrow as pa

from benchmarks._figures import read_process_s
from benchmarks._frames import FrameSender
from benchmarks._lnc_client import LncClient
from benchmarks._session import run_broker
from benchmarks._turns import MIB, collect
from benchmarks.report import Report, format_rate, format_ratio
from lance_spark.client import Consumer, LanceClient, Producer
from lance_spark.columnar.encode import encode

KIB = 1024
_CONNECTIONS = 16
Clock = Callable[[], float]

# Takes what it is sent, or sends as much as it is asked for, and nothing else.
_COPIER = """
import socket, struct, sys
size = int(sys.argv[1])
buffer = bytearray(size)
with socket.create_server(("127.0.0.1", 0)) as server:
    print("%s:%d" % server.getsockname(), flush=True)
    while True:
        peer, _ = server.accept()
        with peer:
            (wanted,) = struct.unpack("<q", peer.recv(8, socket.MSG_WAITALL))
            if wanted < 0:
                while peer.recv_into(buffer):
                    pass
                peer.sendall(b".")
            while wanted > 0:
                peer.sendall(memoryview(buffer)[:wanted])
                wanted -= size
"""


def run(report: Report) -> None:
    """Measure."""
    with (
        run_broker(checksum="auto") as broker,
        _run_copier() as copier,
        LanceClient(broker.address) as client,
    ):
        bench = _Bench(client, copier, quick=report.quick)
        report.add_table(
            ["records", "records/s", "bytes/s", "raw copy", "to raw copy"],
            [*bench.compare_copies(100), *bench.compare_copies(1000)],
            "One client, batches of 1 MiB:",
        )
        report.add_table(
            ["", "1 connection", f"{_CONNECTIONS} connections", "ratio"],
            bench.compare_connections(),
            "Bytes per second over one connection and over many, records of 1000:",
        )
        report.add_table(
            ["frames of", "1 connection", f"{_CONNECTIONS} connections", "ratio"],
            bench.compare_frames(broker.pid),
            "Processor seconds of the broker per GB of prepared frames, records of 100:",
        )
        report.add_table(
            ["100-byte records", "ours", "`lnc-client`", "ratio"],
            bench.compare_lnc_client(LncClient(broker.address)),
            "Records per second, against `lnc-client` 0.2.9 on the same broker:",
        )


@dataclass
class _Bench:
    client: LanceClient
    copier: str
    quick: bool

    def __post_init__(self) -> None:
        self._names = (f"bench-{number}" for number in count())
        self._rounds = 2 if self.quick else 14
        # Little enough for the page cache, in which a topic that was deleted leaves
        # its pages to the next one.
        self._size = (16 if self.quick else 64) * MIB

    def compare_copies(self, record_bytes: int) -> list[list[str]]:
        """Compare writing and reading with a copy of the same bytes."""
        table = _make_table(record_bytes, self._size)
        payloads = [p.data for p in encode(table, payload_bytes_max=MIB)]
        size = sum(payload.size for payload in payloads)
        copy_in, write_s = self._measure(
            partial(self._copy_in, payloads), partial(self._write, table)
        )
        with self._topic(table) as topic:
            copy_out, read_s, arrow_s = self._measure(
                partial(self._copy_out, size),
                partial(self._read, topic, size),
                partial(self._read_arrow, topic, table.num_rows),
            )
        return [
            [
                f"{record_bytes} bytes, {what}",
                format_rate(table.num_rows / took),
                format_rate(size / took, "B"),
                format_rate(size / copied, "B"),
                format_ratio(copied / took),
            ]
            for what, copied, took in (
                ("Arrow to topic", copy_in, write_s),
                ("topic to bytes", copy_out, read_s),
                ("topic to Arrow", copy_out, arrow_s),
            )
        ]

    def compare_connections(self) -> list[list[str]]:
        """Compare many connections with one: a share each to write, all to read."""
        whole = _make_table(1000, self._size)
        share = _make_table(1000, self._size // _CONNECTIONS)
        frame, frames, one, many = self._measure(
            partial(self._send_frames, whole, 1),
            partial(self._send_frames, share, _CONNECTIONS),
            partial(self._write, whole),
            partial(self._write, share, _CONNECTIONS),
        )
        with self._topic(whole) as topic:
            size = self.client.bounds(topic).end
            read, reads = self._measure(
                partial(self._read, topic, size),
                partial(self._read, topic, size, _CONNECTIONS),
            )
        rows = []
        for what, alone, together in (
            ("write, prepared frames", size / frame, size / frames),
            ("write, `Producer` per thread", size / one, size / many),
            ("read, `Consumer` per thread", size / read, _CONNECTIONS * size / reads),
        ):
            rates = [format_rate(alone, "B"), format_rate(together, "B")]
            rows.append([what, *rates, format_ratio(together / alone)])
        return rows

    def compare_frames(self, broker: int) -> list[list[str]]:
        """Compare small frames with large ones by what the broker spends on them."""
        whole = _make_table(100, self._size)
        share = _make_table(100, self._size // _CONNECTIONS)
        clock = partial(read_process_s, broker)
        rows = []
        for frame_bytes in (64 * KIB, MIB):
            frame, frames = self._measure(
                partial(self._send_frames, whole, 1, frame_bytes, clock),
                partial(self._send_frames, share, _CONNECTIONS, frame_bytes, clock),
            )
            spent = [f"{took * 1e9 / self._size:.2f}" for took in (frame, frames)]
            rows.append(
                [f"{frame_bytes // KIB} KiB", *spent, format_ratio(frames / frame)]
            )
        return rows

    def compare_lnc_client(self, theirs: LncClient) -> list[list[str]]:
        """Compare with the client of the field, in the fastest way it has."""
        table = _make_table(100, self._size // 2)
        records, few = table.num_rows, table.num_rows // 50
        ours_s, batches_s, single_s = self._measure(
            partial(self._write, table),
            partial(self._let_write, theirs.write_batches, records),
            partial(self._let_write, theirs.write_single, few),
        )
        with self._topic(table) as topic:
            topic_id = self.client.topic(topic).id
            read_s, their_read_s = self._measure(
                partial(self._read_arrow, topic, records),
                partial(theirs.read, topic_id, records),
            )
        rows = []
        for what, mine_s, other_s, others in (
            ("produce, against its `send_batch`", ours_s, batches_s, records),
            ("produce, against its `send_async`", ours_s, single_s, few),
            ("consume", read_s, their_read_s, records),
        ):
            mine, other = records / mine_s, others / other_s
            rates = [format_rate(mine), format_rate(other)]
            rows.append([what, *rates, format_ratio(mine / other)])
        return rows

    # What is measured.

    # Connections are made before the clock starts.

    def _copy_in(self, payloads: list[pa.Buffer]) -> float:
        with _connect(self.copier) as peer:
            start = time.perf_counter()
            peer.sendall((-1).to_bytes(8, "little", signed=True))
            for payload in payloads:
                peer.sendall(payload)
            peer.shutdown(socket.SHUT_WR)
            peer.recv(1)
        return time.perf_counter() - start

    def _copy_out(self, size: int) -> float:
        buffer = bytearray(MIB)
        with _connect(self.copier) as peer:
            start = time.perf_counter()
            peer.sendall(size.to_bytes(8, "little"))
            while peer.recv_into(buffer):
                pass
        return time.perf_counter() - start

    def _write(self, table: pa.Table, connections: int = 1) -> float:
        def write(producer: Producer) -> None:
            producer.write(table)
            producer.flush()

        with self._topic() as topic, ExitStack() as stack:
            producers = [
                stack.enter_context(Producer(self.client, topic, batch_bytes=MIB))
                for _ in range(connections)
            ]
            # A connection gets its speed only after some megabytes.
            for producer in producers:
                producer.write(table.slice(0, 4 * MIB // 1000))
                producer.flush()
            return _time_in_threads([partial(write, p) for p in producers])

    def _send_frames(
        self,
        table: pa.Table,
        connections: int,
        frame_bytes: int = MIB,
        clock: Clock = time.perf_counter,
    ) -> float:
        payloads = [
            (payload.data, payload.records)
            for payload in encode(table, payload_bytes_max=frame_bytes)
        ]
        with self._topic() as topic, ExitStack() as stack:
            topic_id = self.client.topic(topic).id
            senders = [
                stack.enter_context(
                    closing(FrameSender(self.client.config.servers, payloads, topic_id))
                )
                for _ in range(connections)
            ]
            for sender in senders:
                sender.warm_up()
            return _time_in_threads([sender.send for sender in senders], clock)

    def _read(self, topic: str, size: int, connections: int = 1) -> float:
        def read(consumer: Consumer) -> None:
            done = 0
            while done < size:
                done += len(consumer.poll_blocking(timeout_s=30).data)

        with ExitStack() as stack:
            consumers = [
                stack.enter_context(Consumer.from_beginning(self.client, topic))
                for _ in range(connections)
            ]
            return _time_in_threads([partial(read, c) for c in consumers])

    def _read_arrow(self, topic: str, rows: int) -> float:
        with Consumer.from_beginning(self.client, topic) as consumer:
            start = time.perf_counter()
            done = 0
            while done < rows:
                result = consumer.poll_blocking(timeout_s=30)
                done += result.to_arrow(columns=["value"]).num_rows
            return time.perf_counter() - start

    def _let_write(self, write: Callable[[int, int], float], records: int) -> float:
        with self._topic() as topic:
            return write(self.client.topic(topic).id, records)

    # How.

    @contextmanager
    def _topic(self, table: pa.Table | None = None) -> Iterator[str]:
        name = next(self._names)
        self.client.create_topic(name)
        if table is not None:
            with Producer(self.client, name) as producer:
                producer.write(table)
        try:
            yield name
        finally:
            self.client.delete_topic(name)

    def _measure(self, *calls: Callable[[], float]) -> list[float]:
        """Make calls in turns; the median of what each returns counts.

        The best would compare the luckiest moments of several processes on few cores.
        """
        named = {str(number): call for number, call in enumerate(calls)}
        return [median(took) for took in collect(named, self._rounds).values()]


def _make_table(record_bytes: int, size: int) -> pa.Table:
    value = b"v" * (record_bytes - 5)
    rows = size // record_bytes
    return pa.table({"value": pa.array([value] * rows, pa.binary())})


@contextmanager
def _run_copier() -> Iterator[str]:
    """Run a child that copies; give its address."""
    command = [sys.executable, "-c", _COPIER, str(MIB)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().strip()
        finally:
            child.terminate()


def _connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def _time_in_threads(
    calls: list[Callable[[], None]], clock: Clock = time.perf_counter
) -> float:
    if len(calls) == 1:
        start = clock()
        calls[0]()
        return clock() - start
    threads = [threading.Thread(target=call) for call in calls]
    start = clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clock() - start
