"""What only TLS has; the contract of streams is in test_stream.py."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from lance_spark.errors import ConnectionLost
from lance_spark.net import tls_stream
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream, byte_views
from lance_spark.net.tls_stream import TlsStream, describe
from tests.net.conftest import LONG_S, Certificates, Spawn, secure, soon
from tests.streams import make_pair

Pair = tuple[Stream, Stream]


def recv(end: Stream, size: int = 1000) -> bytes:
    buffer = memoryview(bytearray(size))
    return bytes(buffer[: end.recv_into(buffer, soon())])


@pytest.fixture
def transports() -> Pair:
    return make_pair()


@pytest.fixture(params=["TLSv1_2", "TLSv1_3"])
def ends(
    transports: Pair,
    certs: Certificates,
    spawn: Spawn,
    request: pytest.FixtureRequest,
) -> Iterator[Pair]:
    """Make a connection in memory, so that a test can lay hands on what is sent."""
    client, server = certs.client_context(certs.client), certs.server_context()
    client.maximum_version = ssl.TLSVersion[request.param]
    client_end, server_end = secure(transports, (client, server), spawn)
    yield client_end, server_end
    client_end.close()
    server_end.close()


def test_nothing_is_sent_in_plain(ends: Pair, transports: Pair) -> None:
    ends[0].send([b"very secret" * 10], soon())
    assert b"secret" not in recv(transports[1], 4096)


def test_damage_on_the_way(ends: Pair, transports: Pair) -> None:
    ends[0].send([b"first"], soon())
    ends[0].send([b"second"], soon())
    wire = bytearray(recv(transports[1], 4096))
    wire[-1] ^= 1
    transports[0].send([wire], soon())
    # What came before the damage is good; nothing of what comes after it is given.
    assert recv(ends[1]) == b"first"
    for _ in range(2):
        assert ends[1].wait_readable(soon())
        with pytest.raises(ConnectionLost, match="bad record mac"):
            recv(ends[1])


def test_end_without_an_alert(ends: Pair, transports: Pair) -> None:
    ends[0].send([b"last"], soon())
    transports[0].shutdown_write()
    assert recv(ends[1]) == b"last"
    for _ in range(2):
        assert ends[1].wait_readable(soon())
        assert recv(ends[1]) == b""


def test_end_with_an_alert_alone(ends: Pair) -> None:
    # The stream below goes on; it is the alert that ends this one.
    tls = ends[0]
    assert isinstance(tls, TlsStream)
    tls._transport.send([tls._goodbye()], soon())
    assert recv(ends[1]) == b""


def test_alert_of_the_peer(ends: Pair, transports: Pair) -> None:
    transports[0].send([b"no TLS record at all, and long enough for a header"], soon())
    with pytest.raises(ConnectionLost):
        recv(ends[1])


def test_records_without_data_are_nothing_to_read(
    ends: Pair, transports: Pair, spawn: Spawn
) -> None:
    ends[0].send([b"x"], soon())
    wire = recv(transports[1], 4096)
    # The header of a record alone makes the stream below readable.
    transports[0].send([wire[:5]], soon())
    assert ends[1].wait_readable(Deadline.after(0.02)) is False
    waiting = spawn(ends[1].wait_readable, soon())
    transports[0].send([wire[5:]], soon())
    assert waiting.result(LONG_S) is True
    assert recv(ends[1]) == b"x"


def test_lookahead_and_the_rest_come_together(ends: Pair) -> None:
    ends[0].send([b"abcdef"], soon())
    assert ends[1].wait_readable(soon())
    assert recv(ends[1]) == b"abcdef"


def test_half_close_with_whole_records_unread(ends: Pair) -> None:
    # More than is read ahead, so that some of it is still encrypted.
    data = bytes(range(256)) * 200
    ends[1].send([data], soon())
    assert recv(ends[0], 10) == data[:10]
    ends[0].shutdown_write()
    assert recv(ends[1]) == b""
    ends[1].send([b"end"], soon())
    ends[1].close()
    received = b""
    while piece := recv(ends[0], 7000):
        received += piece
    assert received == data[10:] + b"end"


def test_half_close_does_not_overtake_a_send(
    ends: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert comes between the encryption of a piece and its sending."""
    tls = ends[0]
    assert isinstance(tls, TlsStream)
    encrypt = tls._encrypt

    def encrypt_and_shut_down(piece: memoryview) -> bytes:
        data = encrypt(piece)
        tls.shutdown_write()
        return data

    monkeypatch.setattr(tls, "_encrypt", encrypt_and_shut_down)
    with pytest.raises(ConnectionLost):
        tls.send([b"x"], soon())
    # Out of order, the alert could not even be decrypted.
    assert recv(ends[1]) == b""


def test_close_takes_the_alert_of_the_peer_with_it(
    certs: Certificates, spawn: Spawn, tcp_pair: Pair
) -> None:
    contexts = certs.client_context(), certs.server_context()
    client, server = secure(tcp_pair, contexts, spawn)
    client.shutdown_write()
    server.send([b"answer"], soon())
    # The client's alert is unread. Left there, it would reset the connection, and the
    # answer with it.
    assert tcp_pair[1].wait_readable(soon())
    server.close()
    assert recv(client) == b"answer"
    assert recv(client) == b""
    client.close()


def test_draining_has_a_limit(ends: Pair, transports: Pair) -> None:
    # The peer has sent much that nobody has read; closing does not read all of it.
    ends[0].send([bytes(150_000)], soon())
    with transports[1]._sock.dup() as sock:  # type: ignore[attr-defined]
        ends[1].close()
        left = len(sock.recv(1_000_000))
    assert 1_000 < left < 100_000


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1], [1]),
        ([1, 2, 3], [6]),
        ([10], [10]),
        ([25], [10, 10, 5]),
        ([1, 10, 2, 2, 12, 1], [1, 10, 4, 10, 2, 1]),
        ([3] * 7, [12, 9]),
        ([4, 4, 4, 4], [12, 4]),
        ([3, 3, 3, 3, 10], [12, 10]),
    ],
)
def test_pieces(
    sizes: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_stream, "_WRITE_BYTES", 10)
    monkeypatch.setattr(tls_stream, "_SMALL_BYTES", 5)
    content = iter(range(256))
    buffers = [bytes(next(content) for _ in range(size)) for size in sizes]
    pieces = list(tls_stream._pieces(byte_views(buffers)))
    assert [len(piece) for piece in pieces] == expected
    assert b"".join(pieces) == b"".join(buffers)


def test_describe_with_and_without_a_reason() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(ssl.SSLError) as caught:
        context.set_ciphers("nonsense")
    assert describe(caught.value) == "No cipher can be selected."
    error = ssl.SSLError(1, "[SSL: SOME_THING] some thing (_ssl.c:1)")
    assert describe(error) == "[SSL: SOME_THING] some thing (_ssl.c:1)"
    error.reason = "SOME_THING"
    assert describe(error) == "some thing"
    error.reason = "HTTP_REQUEST"
    assert describe(error) == "http request (the peer does not speak TLS)"
