"""What the system tests share: records that say who they are, raw clients, waiting."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lance_spark.client import LanceClient
from lance_spark.errors import ConnectionLost, Timeout
from lance_spark.model import Buffer
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.tls import ClientTls, make_client_context
from lance_spark.wire import lwp
from lance_spark.wire.lwp import Checksum, Frame, Message

_ROOT = Path(__file__).parent.parent.parent
_PUSH_BYTES = 1024 * 1024
# Long enough for a loaded machine: nothing waits so long unless it hangs.
PATIENCE_S = 60.0

# A client that is quick to try again. The network of these tests comes back at once.
QUICK: dict[str, Any] = {
    "backoff_base_s": 0.001,
    "backoff_max_s": 0.002,
    "retry_timeout_s": PATIENCE_S,
}


def make_client(address: str, **options: Any) -> LanceClient:
    """Make a client that does not wait long between tries."""
    return LanceClient(address, **{**QUICK, **options})


def wait_for(is_true: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    """Wait until something holds that nobody can tell us about."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.005)


def record(value: Buffer, kind: int = 1) -> bytes:
    """Make one record."""
    return lwp.encode_record(lwp.Record(kind, value))


def read_bytes(client: LanceClient, topic: int | str, start: int = 0) -> bytes:
    """Read all bytes of a topic."""
    parts: list[bytes] = []
    while True:
        fetched = client.fetch(topic, start, 4 * 1024 * 1024)
        if not len(fetched.data):
            return b"".join(parts)
        assert fetched.start == start
        parts.append(bytes(fetched.data))
        start = fetched.end


def read_values(client: LanceClient, topic: int | str) -> list[bytes]:
    """Read the values of all records of a topic."""
    data = read_bytes(client, topic)
    return [bytes(found.value) for found in lwp.decode_records(data)]


def name_value(producer: str, sequence: int) -> bytes:
    """Make a value that says which one it is."""
    return f"{producer} {sequence}".encode()


def by_producer(values: Iterable[bytes | None]) -> dict[str, list[int]]:
    """Sort values of `name_value` by producer, in their order."""
    found: dict[str, list[int]] = defaultdict(list)
    for value in values:
        assert value is not None, "a Null record that nobody sent"
        producer, sequence = value.decode().rsplit(" ", 1)
        found[producer].append(int(sequence))
    return found


def first_occurrences(sequences: Iterable[int]) -> list[int]:
    """Drop what comes a second time, keeping the order."""
    return list(dict.fromkeys(sequences))


class Raw:
    """A connection that says whatever a test wants it to say."""

    def __init__(
        self,
        address: str,
        *,
        checksum: Checksum = Checksum.CRC32C,
        tls: ClientTls | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.checksum = checksum
        self._timeout_s = timeout_s
        self._parser = lwp.FrameParser(checksum=checksum)
        self._stream = connect(
            parse_address(address),
            deadline=self._deadline(),
            tls=None if tls is None else make_client_context(tls),
        )

    def _deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)

    def send(self, *buffers: Buffer) -> None:
        """Send bytes."""
        self._stream.send(buffers, self._deadline())

    def try_send(self, *buffers: Buffer) -> None:
        """Send bytes to a server that may have gone already."""
        with contextlib.suppress(ConnectionLost):
            self.send(*buffers)

    def frame(self) -> Frame | None:
        """Give the next frame, None at the end of the connection."""
        while True:
            frame = self._parser.next_frame()
            if frame is not None:
                return frame
            try:
                size = self._stream.recv_into(
                    self._parser.buffer_for_read(), self._deadline()
                )
            except ConnectionLost:
                return None  # A reset is an end too.
            if not size:
                return None
            self._parser.bytes_written(size)

    def answer(self, *, extended: bool = False) -> Message:
        """Give the next frame as a message."""
        frame = self.frame()
        assert frame is not None, "the connection ended"
        return lwp.decode_response(frame, extended=extended)

    def ask(self, message: Message, *, extended: bool = False) -> Message:
        """Send a request and give its answer."""
        self.send(*lwp.encode_message(message, checksum=self.checksum))
        return self.answer(extended=extended)

    def ingest(self, payload: bytes, batch_id: int = 1, **fields: Any) -> None:
        """Send a batch."""
        fields = {"record_count": 1, "checksum": self.checksum, **fields}
        self.send(*lwp.encode_ingest([payload], batch_id=batch_id, **fields))

    def is_ended(self) -> bool:
        """Wait for the end of the connection; False if a frame comes first."""
        try:
            return self.frame() is None
        except Timeout:
            return False

    def shutdown_write(self) -> None:
        """Say that nothing more will come."""
        self._stream.shutdown_write()

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker(ABC):
    """Somebody who works in a thread until told to stop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        # What it has to give back, also after a failure.
        self._stack = contextlib.ExitStack()
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stop.is_set():
                self._step()
                self.steps += 1
            self._end()
        except Exception as error:
            self._failure = error
        finally:
            self._stack.close()

    def abandon(self) -> None:
        """End it after a failure; does nothing if it has ended."""
        self._stop.set()
        self._thread.join(5.0)

    def finish(self) -> None:
        """Let it end what it has begun."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        self.check_alive()

    def check_alive(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"{self.name} failed") from self._failure

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _step(self) -> None: ...

    def _end(self) -> None:  # noqa: B027 - Not everybody has something to finish.
        pass


def wait_for_steps(workers: Sequence[Worker]) -> None:
    """Wait until each of them has done something more, and none has failed."""
    for worker in workers:
        before = worker.steps

        def has_gone_on(worker: Worker = worker, before: int = before) -> bool:
            worker.check_alive()
            return worker.steps > before

        wait_for(has_gone_on, worker.name)


# Crowds.


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    """Let this process, and those that it starts, have so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{wanted} files are more than this system gives ({hard})")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def crowd(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    target = parse_address(address)
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(count):
            sock = socket.create_connection((target.host, target.port), 30)
            stack.callback(sock.close)
            socks.append(sock)
        yield socks


def push(socks: list[socket.socket], data: bytes) -> None:
    """Send to all of them until none takes any more."""
    left = {sock: memoryview(data) for sock in socks}
    for sock in socks:
        sock.setblocking(False)
    quiet = 0
    while quiet < 20:
        quiet += 1
        for sock, rest in left.items():
            with contextlib.suppress(OSError):
                size = sock.send(rest[:_PUSH_BYTES]) if rest else 0
                left[sock] = rest[size:]
                quiet = 0 if size else quiet
        # Whatever can still be taken is taken within this time.
        time.sleep(0.005)


@contextlib.contextmanager
def crowded(
    address: str, protocol: str, kind: str, count: int, topic: object
) -> Iterator[None]:
    """Have a crowd at work, in a process of its own."""
    command = [sys.executable, "-m", "tests.integration.crowd"]
    command += [protocol, address, kind, str(count), str(topic)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            assert child.stdout.readline() == b"at work\n"
            yield
        finally:
            child.stdin.close()
            child.wait(60)
