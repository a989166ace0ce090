"""Streams over sockets: what is sent arrives, and every wait ends."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.errors import ConnectionLost, Corrupt, StoreError, Timeout
from lance_spark.net import stream
from lance_spark.net.deadline import HUNG_UP, Deadline, Waker
from lance_spark.net.stream import (
    FILE_PIECE_BYTES,
    SocketStream,
    Stream,
    advance,
    byte_views,
    read_pieces,
)
from tests.each import each
from tests.net.conftest import FILE_CONTENT, LONG_S, Spawn, soon

Pair = tuple[Stream, Stream]

# More than all buffers on the way hold, so that a send has to wait for its reader.
LARGE = random.Random(1).randbytes(1024 * 1024) * 32


def recv(end: Stream, size: int) -> bytes:
    """Read that many bytes, less only if the stream ends."""
    data = memoryview(bytearray(size))
    got = 0
    while got < size:
        count = end.recv_into(data[got:], soon())
        if not count:
            break
        got += count
    return bytes(data[:got])


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tell when a thread is about to wait for the peer."""
    event = threading.Event()
    wait_ready = stream.wait_ready

    def wait_ready_and_tell(*args: Any) -> bool:
        event.set()
        return wait_ready(*args)

    monkeypatch.setattr(stream, "wait_ready", wait_ready_and_tell)
    return event


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


class TestSendAndReceive:
    def test_all_at_once(self, pair: Pair) -> None:
        for sender, receiver in (pair, pair[::-1]):
            sender.send([b"hello"], soon())
            assert recv(receiver, 5) == b"hello"

    def test_byte_at_a_time(self, pair: Pair) -> None:
        sender, receiver = pair
        for number in range(200):
            sender.send([bytes([number])], soon())
        assert [recv(receiver, 1) for _ in range(200)] == [
            bytes([number]) for number in range(200)
        ]

    def test_read_byte_at_a_time(self, pair: Pair) -> None:
        pair[0].send([bytes(range(200))], soon())
        assert b"".join(recv(pair[1], 1) for _ in range(200)) == bytes(range(200))

    def test_reads_what_is_there(self, pair: Pair) -> None:
        pair[0].send([b"abc"], soon())
        buffer = memoryview(bytearray(1000))
        # A deadline that has passed does not matter: nothing has to be waited for.
        assert pair[1].wait_readable(soon())
        count = pair[1].recv_into(buffer, Deadline.after(0))
        assert bytes(buffer[:count]) == b"abc"[:count] and count

    def test_several_buffers_in_order(self, pair: Pair, spawn: Spawn) -> None:
        buffers = [b"a" * 5000, b"", b"b", bytearray(b"c" * 300_000), b"d", b"e"]
        sending = spawn(pair[0].send, buffers, soon())
        assert recv(pair[1], 305_003) == b"".join(buffers)
        sending.result(LONG_S)

    def test_many_small_buffers(self, pair: Pair, spawn: Spawn) -> None:
        # More than one call of the system takes, and than one piece of TLS holds.
        buffers = [b"%07d" % number for number in range(20_000)]
        sending = spawn(pair[0].send, buffers, soon())
        assert recv(pair[1], 140_000) == b"".join(buffers)
        sending.result(LONG_S)

    @pytest.mark.parametrize("buffers", [[], [b""], [b"", np.empty(0, np.uint8)]])
    def test_nothing_at_all(self, pair: Pair, buffers: list[Any]) -> None:
        pair[0].send(buffers, Deadline.after(0))
        pair[0].send([b"x"], soon())
        assert recv(pair[1], 1) == b"x"

    def test_any_kind_of_buffer(self, pair: Pair) -> None:
        numbers = np.arange(5, dtype="<u4")
        buffers = [
            memoryview(b"xabcx")[1:4],
            pa.py_buffer(b"def"),
            numbers,
            np.frombuffer(b"ghi", dtype=np.uint8),
            bytearray(b"jkl"),
        ]
        expected = b"abcdef" + numbers.tobytes() + b"ghijkl"
        pair[0].send(buffers, soon())
        assert recv(pair[1], len(expected)) == expected

    def test_large_both_ways_at_once(self, pair: Pair, spawn: Spawn) -> None:
        other = LARGE[::-1]
        work = [
            spawn(pair[0].send, [LARGE], soon()),
            spawn(pair[1].send, [other], soon()),
        ]
        received = [spawn(recv, end, len(LARGE)) for end in pair]
        assert received[0].result(LONG_S) == other
        assert received[1].result(LONG_S) == LARGE
        for future in work:
            future.result(LONG_S)

    def test_a_waiting_reader_does_not_keep_the_writer(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event
    ) -> None:
        reading = spawn(recv, pair[0], 1)
        assert blocked.wait(LONG_S)
        pair[0].send([b"question"], soon())
        assert recv(pair[1], 8) == b"question"
        pair[1].send([b"!"], soon())
        assert reading.result(LONG_S) == b"!"


class TestDeadlines:
    @pytest.mark.parametrize("seconds", [0.0, 0.02])
    def test_nothing_comes(self, pair: Pair, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        with pytest.raises(Timeout, match="nothing came before the deadline") as caught:
            pair[0].recv_into(memoryview(bytearray(1)), deadline)
        assert deadline.expired
        assert pair[0].peer in str(caught.value)
        # Nothing is lost by it.
        pair[1].send([b"late"], soon())
        assert recv(pair[0], 4) == b"late"

    @pytest.mark.parametrize("seconds", [0.0, 0.02])
    def test_peer_does_not_read(self, pair: Pair, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        with pytest.raises(Timeout, match="did not read before the deadline") as caught:
            pair[0].send([LARGE], deadline)
        assert deadline.expired
        assert pair[0].peer in str(caught.value)

    def test_nothing_is_sent_behind_half_a_message(self, pair: Pair) -> None:
        with pytest.raises(Timeout):
            pair[0].send([LARGE], Deadline.after(0))
        with pytest.raises(ConnectionLost, match="earlier send did not finish"):
            pair[0].send([b"more"], soon())
        # The other direction is as good as before.
        pair[1].send([b"ok"], soon())
        assert recv(pair[0], 2) == b"ok"

    def test_a_peer_that_reads_slowly_gets_no_more_time(
        self, pair: Pair, spawn: Spawn
    ) -> None:
        done = threading.Event()

        def read_slowly() -> None:
            buffer = memoryview(bytearray(4096))
            while not done.is_set():
                if pair[1].wait_readable(Deadline.after(0.01)):
                    pair[1].recv_into(buffer, soon())

        # Time passes with every look at the clock, so that each wait is a short one.
        ticks = iter(range(10_000_000))
        deadline = Deadline.after(50, lambda: float(next(ticks)))
        reading = spawn(read_slowly)
        try:
            with pytest.raises(Timeout):
                while True:
                    pair[0].send([LARGE], deadline)
        finally:
            done.set()
        reading.result(LONG_S)


class TestAbort:
    def test_wakes_a_reader(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event
    ) -> None:
        reading = spawn(pair[0].recv_into, memoryview(bytearray(1)), soon())
        assert blocked.wait(LONG_S)
        pair[0].abort()
        with pytest.raises(ConnectionLost, match="aborted here"):
            reading.result(LONG_S)

    def test_wakes_a_writer(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event
    ) -> None:
        writing = spawn(pair[0].send, [LARGE], soon())
        assert blocked.wait(LONG_S)
        pair[0].abort()
        with pytest.raises(ConnectionLost, match="aborted here"):
            writing.result(LONG_S)

    def test_wakes_a_sender_of_files(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event, file: int
    ) -> None:
        def send_files() -> None:
            while True:
                pair[0].send_file(file, 0, len(FILE_CONTENT), soon())

        sending = spawn(send_files)
        assert blocked.wait(LONG_S)
        pair[0].abort()
        with pytest.raises(ConnectionLost, match="aborted here"):
            sending.result(LONG_S)

    def test_wakes_who_waits(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event, waker: Waker
    ) -> None:
        waiting = spawn(pair[0].wait_readable, soon(), waker)
        assert blocked.wait(LONG_S)
        pair[0].abort()
        with pytest.raises(ConnectionLost, match="aborted here"):
            waiting.result(LONG_S)

    @pytest.mark.parametrize("end", ["abort", "close"])
    def test_later_calls_fail(self, pair: Pair, file: int, end: str) -> None:
        pair[1].send([b"not read"], soon())
        assert pair[0].wait_readable(soon())
        getattr(pair[0], end)()
        calls: list[Callable[[], object]] = [
            lambda: pair[0].recv_into(memoryview(bytearray(1)), soon()),
            lambda: pair[0].wait_readable(soon()),
            lambda: pair[0].is_peer_gone(),
            lambda: pair[0].send([b"x"], soon()),
            lambda: pair[0].send_file(file, 0, 1, soon()),
        ]
        for call in calls:
            with pytest.raises(ConnectionLost, match="ed here"):
                call()

    def test_peer_sees_it(self, pair: Pair) -> None:
        pair[0].abort()
        assert pair[1].wait_readable(soon())
        assert recv(pair[1], 1) == b""
        with pytest.raises(ConnectionLost):
            while True:
                pair[1].send([LARGE], soon())

    def test_everything_may_be_called_again(self, pair: Pair) -> None:
        for _ in range(2):
            pair[0].abort()
            pair[0].shutdown_write()
            pair[0].close()
        pair[1].close()
        pair[1].abort()

    def test_the_first_end_is_the_one_that_is_named(self, pair: Pair) -> None:
        pair[0].close()
        pair[0].abort()
        with pytest.raises(ConnectionLost, match="closed here"):
            recv(pair[0], 1)


class TestEnd:
    def test_end_after_the_data(self, pair: Pair) -> None:
        pair[0].send([b"last"], soon())
        pair[0].close()
        assert recv(pair[1], 100) == b"last"
        for _ in range(2):
            assert pair[1].wait_readable(soon())
            assert recv(pair[1], 1) == b""

    @pytest.mark.skipif(not HUNG_UP, reason="this system does not tell")
    @pytest.mark.parametrize("end", ["close", "abort", "shutdown_write"])
    def test_it_is_known_before_the_data_is_read(self, pair: Pair, end: str) -> None:
        assert not pair[1].is_peer_gone()
        pair[0].send([b"last"], soon())
        assert pair[1].wait_readable(soon())
        assert not pair[1].is_peer_gone()
        getattr(pair[0], end)()
        deadline = soon()
        while not pair[1].is_peer_gone():
            assert not deadline.expired
        assert recv(pair[1], 100) == b"last"

    def test_half_close(self, pair: Pair) -> None:
        pair[0].send([b"question"], soon())
        pair[0].shutdown_write()
        assert recv(pair[1], 100) == b"question"
        pair[1].send([b"answer"], soon())
        assert recv(pair[0], 6) == b"answer"
        pair[1].shutdown_write()
        assert recv(pair[0], 1) == b"" == recv(pair[1], 1)

    def test_half_close_keeps_what_has_come(self, pair: Pair) -> None:
        # Of one message a part is read, of the next one nothing, and a third comes.
        pair[1].send([b"first"], soon())
        assert recv(pair[0], 1) == b"f"
        pair[1].send([b"second"], soon())
        assert pair[0].wait_readable(soon())
        pair[0].shutdown_write()
        pair[1].send([LARGE[:50_000]], soon())
        pair[1].close()
        assert recv(pair[0], 100_000) == b"irstsecond" + LARGE[:50_000]

    def test_nothing_is_sent_after_half_close(self, pair: Pair) -> None:
        pair[0].shutdown_write()
        with pytest.raises(ConnectionLost):
            pair[0].send([b"x"], soon())
        assert recv(pair[1], 1) == b""

    def test_half_close_under_a_writer(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event
    ) -> None:
        writing = spawn(pair[0].send, [LARGE], soon())
        assert blocked.wait(LONG_S)
        pair[0].shutdown_write()
        with pytest.raises(ConnectionLost):
            writing.result(LONG_S)
        # What did arrive is a beginning of what was sent.
        assert LARGE.startswith(recv(pair[1], len(LARGE)))


class TestWaitReadable:
    def test_false_at_the_deadline(self, pair: Pair) -> None:
        deadline = Deadline.after(0.02)
        assert pair[0].wait_readable(deadline) is False
        assert deadline.expired

    def test_true_when_something_comes(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event
    ) -> None:
        waiting = spawn(pair[0].wait_readable, soon())
        assert blocked.wait(LONG_S)
        pair[1].send([b"x"], soon())
        assert waiting.result(LONG_S) is True
        assert pair[0].wait_readable(Deadline.after(0)) is True
        assert recv(pair[0], 1) == b"x"
        assert pair[0].wait_readable(Deadline.after(0)) is False

    def test_true_while_a_part_is_unread(self, pair: Pair) -> None:
        pair[1].send([b"abc"], soon())
        for byte in (b"a", b"b", b"c"):
            assert pair[0].wait_readable(soon()) is True
            assert recv(pair[0], 1) == byte
        assert pair[0].wait_readable(Deadline.after(0)) is False

    def test_waker(
        self, pair: Pair, spawn: Spawn, blocked: threading.Event, waker: Waker
    ) -> None:
        waiting = spawn(pair[0].wait_readable, soon(), waker)
        assert blocked.wait(LONG_S)
        waker.set()
        assert waiting.result(LONG_S) is False
        # It stays set until it is cleared.
        assert pair[0].wait_readable(soon(), waker) is False
        waker.clear()
        assert pair[0].wait_readable(Deadline.after(0.01), waker) is False
        waker.set()
        pair[1].send([b"x"], soon())
        assert pair[0].wait_readable(soon()) is True
        assert pair[0].wait_readable(soon(), waker) is True


class TestSendFile:
    @pytest.mark.parametrize(
        ("position", "length"),
        [(0, len(FILE_CONTENT)), (5, 3), (1000, 300_000), (len(FILE_CONTENT) - 1, 1)],
    )
    def test_part_of_a_file(
        self, pair: Pair, spawn: Spawn, file: int, position: int, length: int
    ) -> None:
        sending = spawn(pair[0].send_file, file, position, length, soon())
        received = recv(pair[1], length)
        sending.result(LONG_S)
        assert received == FILE_CONTENT[position : position + length]

    @pytest.mark.parametrize("position", [0, 5, len(FILE_CONTENT)])
    def test_nothing(self, pair: Pair, file: int, position: int) -> None:
        pair[0].send_file(file, position, 0, Deadline.after(0))
        pair[0].send([b"x"], soon())
        assert recv(pair[1], 1) == b"x"

    def test_between_buffers(self, pair: Pair, file: int) -> None:
        pair[0].send([b"head"], soon())
        pair[0].send_file(file, 0, 100, soon())
        pair[0].send([b"tail"], soon())
        assert recv(pair[1], 108) == b"head" + FILE_CONTENT[:100] + b"tail"

    @pytest.mark.parametrize("missing", [1, 1000])
    def test_file_too_short(self, pair: Pair, file: int, missing: int) -> None:
        size = len(FILE_CONTENT)
        with pytest.raises(Corrupt, match="shorter than it was") as caught:
            pair[0].send_file(file, size - 10, 10 + missing, soon())
        assert (caught.value.start, caught.value.end) == (size, size + missing)
        with pytest.raises(ConnectionLost, match="earlier send did not finish"):
            pair[0].send([b"x"], soon())

    def test_position_behind_the_end(self, pair: Pair, file: int) -> None:
        with pytest.raises(Corrupt):
            pair[0].send_file(file, len(FILE_CONTENT) + 5, 1, soon())

    def test_descriptor_that_is_closed(self, pair: Pair) -> None:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        with pytest.raises(StoreError, match="can't be read: Bad file descriptor"):
            pair[0].send_file(descriptor, 0, 1, soon())

    def test_peer_does_not_read(self, pair: Pair, file: int) -> None:
        deadline = Deadline.after(0.02)
        with pytest.raises(Timeout, match="did not read"):
            while True:
                pair[0].send_file(file, 0, len(FILE_CONTENT), deadline)

    def test_peer_is_gone(self, pair: Pair, file: int) -> None:
        pair[1].abort()
        with pytest.raises(ConnectionLost):
            while True:
                pair[0].send_file(file, 0, len(FILE_CONTENT), soon())


def test_names_its_peer(pair: Pair) -> None:
    for end in pair:
        assert end.peer.startswith("127.0.0.1:")
        assert repr(end) == f"<{type(end).__name__} with {end.peer}>"


def test_certificate_of_the_peer(pair: Pair, kind: str) -> None:
    names = [end.certificate and end.certificate.common_name for end in pair]
    is_tls = kind.startswith("tls")
    assert names == (["localhost", "alice"] if is_tls else [None, None])


class TestSocketStream:
    def test_no_delay(self, tcp_pair: Pair) -> None:
        for end in tcp_pair:
            assert isinstance(end, SocketStream)
            sock = end._sock
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not sock.getblocking()

    def test_sockets_without_no_delay(self) -> None:
        left, right = (SocketStream(s, "pair") for s in socket.socketpair())
        left.send([b"x"], soon())
        assert recv(right, 1) == b"x"
        left.close()
        right.close()

    def test_reset_by_the_peer(self, tcp_pair: Pair) -> None:
        client, server = tcp_pair
        client.send([b"never read"], soon())
        assert server.wait_readable(soon())
        # With something unread the system resets the connection.
        server.close()
        assert client.wait_readable(soon())
        with pytest.raises(ConnectionLost, match="lost: Connection reset by peer"):
            client.recv_into(memoryview(bytearray(1)), soon())

    def test_deadline_holds_though_the_peer_reads(
        self, tcp_pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        buffer = memoryview(bytearray(1024 * 1024))

        def wait_for_the_peer(*args: Any) -> bool:
            tcp_pair[1].recv_into(buffer, soon())
            return True

        monkeypatch.setattr(stream, "wait_ready", wait_for_the_peer)
        with pytest.raises(Timeout):
            tcp_pair[0].send([LARGE], Deadline.after(0))

    @pytest.mark.parametrize("call", ["recv_into", "sendmsg"])
    def test_abort_is_named_whatever_the_socket_says(
        self, tcp_pair: Pair, call: str
    ) -> None:
        """The abort comes right before the call, after the last look for one."""
        client = tcp_pair[0]
        assert isinstance(client, SocketStream)
        sock = client._sock

        class Aborting:
            def __getattr__(self, name: str) -> Any:
                if name == call:
                    client.abort()
                return getattr(sock, name)

        client._sock = Aborting()  # type: ignore[assignment]
        with pytest.raises(ConnectionLost, match="aborted here"):
            if call == "sendmsg":
                client.send([b"x"], soon())
            else:
                recv(client, 1)

    def test_reset(self, tcp_pair: Pair) -> None:
        """Whoever waits is woken, and the peer sees no proper end."""
        client, server = tcp_pair
        assert isinstance(client, SocketStream)
        client.reset()
        with pytest.raises(ConnectionLost, match="reset here"):
            recv(client, 1)
        client.close()
        with pytest.raises(ConnectionLost, match="reset by peer"):
            recv(server, 1)

    def test_file_goes_by_the_kernel(
        self, tcp_pair: Pair, file: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "pread")
        tcp_pair[0].send_file(file, 3, 100, soon())
        assert recv(tcp_pair[1], 100) == FILE_CONTENT[3:103]

    @pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
    def test_files_that_the_kernel_can_not_send(
        self, tcp_pair: Pair, file: int, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sendfile = os.sendfile
        calls: list[int] = []

        def fail_later(to: int, source: int, position: int, count: int) -> int:
            calls.append(position)
            if len(calls) > 1:
                raise OSError(code, os.strerror(code))
            return sendfile(to, source, position, min(count, 10))

        monkeypatch.setattr(os, "sendfile", fail_later)
        tcp_pair[0].send_file(file, 3, 100, soon())
        assert calls == [3, 13]
        assert recv(tcp_pair[1], 100) == FILE_CONTENT[3:103]

    def test_disk_that_fails(
        self, tcp_pair: Pair, file: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: int) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "sendfile", fail)
        with pytest.raises(StoreError, match="can't be read: Input/output error"):
            tcp_pair[0].send_file(file, 0, 1, soon())
        with pytest.raises(ConnectionLost, match="earlier send did not finish"):
            tcp_pair[0].send([b"x"], soon())


@pytest.mark.parametrize(
    "buffer",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"xabcdx")[1:5],
        pa.py_buffer(b"abcd"),
        np.frombuffer(b"abcd", dtype=np.uint8),
        np.frombuffer(b"abcd", dtype="<u4"),
        np.frombuffer(b"abcd", dtype="<u2").reshape(2, 1),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_any_buffer_as_bytes(buffer: object) -> None:
    (view,) = byte_views([buffer])
    assert (view.format, view.ndim, bytes(view)) == ("B", 1, b"abcd")


def test_nothing_is_copied() -> None:
    data = bytearray(b"abc")
    (view,) = byte_views([data])
    data[0:1] = b"x"
    assert bytes(view) == b"xbc"


def test_empty_buffers_are_left_out() -> None:
    empty = [b"", pa.py_buffer(b""), np.empty(0, np.uint8), np.empty((0, 4), np.int64)]
    assert byte_views(empty) == []
    assert byte_views([b"", b"a", bytearray()]) == [b"a"]


@each(
    ("first", "sent", "expected", "rest"),
    [
        (0, 0, 0, [b"ab", b"c", b"def"]),
        (0, 1, 0, [b"b", b"c", b"def"]),
        (0, 2, 1, [b"ab", b"c", b"def"]),
        (0, 3, 2, [b"ab", b"c", b"def"]),
        (0, 5, 2, [b"ab", b"c", b"f"]),
        (0, 6, 3, [b"ab", b"c", b"def"]),
        (1, 2, 2, [b"ab", b"c", b"ef"]),
        (2, 3, 3, [b"ab", b"c", b"def"]),
    ],
)
def test_advance(first: int, sent: int, expected: int, rest: list[bytes]) -> None:
    views = byte_views([b"ab", b"c", b"def"])
    assert advance(views, first, sent) == expected
    assert views == rest


@pytest.mark.parametrize(
    ("position", "length"),
    [
        (0, 0),
        (0, 1),
        (5, 1000),
        (0, FILE_PIECE_BYTES),
        (7, FILE_PIECE_BYTES + 1),
        (0, len(FILE_CONTENT)),
        (len(FILE_CONTENT), 0),
    ],
)
def test_file_in_pieces(file: int, position: int, length: int) -> None:
    pieces = list(read_pieces(file, position, length))
    assert b"".join(pieces) == FILE_CONTENT[position : position + length]
    assert all(len(piece) <= FILE_PIECE_BYTES for piece in pieces)


def test_file_too_short(file: int) -> None:
    size = len(FILE_CONTENT)
    pieces = read_pieces(file, size - 10, 11)
    assert next(pieces) == FILE_CONTENT[-10:]
    with pytest.raises(Corrupt, match="shorter than it was") as caught:
        next(pieces)
    assert (caught.value.start, caught.value.end) == (size, size + 1)


def test_unreadable_file() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(StoreError, match="can't be read: Illegal seek"):
            list(read_pieces(reader, 0, 1))
    finally:
        os.close(reader)
        os.close(writer)
