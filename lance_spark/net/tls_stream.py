"""TLS on top of a stream, and what the certificate of a peer has proved.

OpenSSL sees two buffers in memory and never a socket. So each of its calls is short and
made under one lock, as one connection can't be used by two threads at once, and all
waiting is done by the stream below, outside of the lock: a reader that waits does not
keep the writer from writing.

    send -> SSL_write -> outgoing -> stream below -> incoming -> SSL_read -> recv_into
"""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import cast

from lance_spark.errors import ConnectionLost, LanceError, Timeout, TlsRefused
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline, Waker
from lance_spark.net.stream import Stream, byte_views, lost
from lance_spark.value import dataclass

# How much is read from the stream below at a time, and so how much of what came is
# held here at most.
_READ_BYTES = 128 * 1024
# How much is encrypted before it is sent. Buffers that are small beside it are joined,
# as each would become a TLS record of its own.
_WRITE_BYTES = 128 * 1024
_SMALL_BYTES = 4 * 1024
# The most that TLS puts into one record.
_RECORD_BYTES = 16 * 1024
# What is still taken from a peer after this side is done with it, and for how long
# after a handshake that failed.
_DRAIN_BYTES_MAX = 64 * 1024
_DRAIN_S = 1.0
_NOT_TLS = "the peer does not speak TLS"
_HINTS = {
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "HTTP_REQUEST": _NOT_TLS,
    "UNSUPPORTED_PROTOCOL": "TLS 1.2 or later is needed",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer wants another version of TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has to present a certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer wants a client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust our certificate's issuer",
}


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The certificate of a peer, verified.

    Args:
        common_name: of its subject; None if it has none, or more than one.
        chain: SHA-256 of the DER of every certificate of the verified chain, from
            the peer's own to the root.
    """

    common_name: str | None
    chain: frozenset[bytes]


def read_peer(connection: ssl.SSLObject) -> PeerCertificate | None:
    """Give the peer's certificate of a finished handshake, None if there is none."""
    leaf = connection.getpeercert(binary_form=True)
    # The fields are empty for a certificate that was not verified.
    fields = connection.getpeercert()
    if not leaf or not fields:
        return None
    subject = cast(tuple[tuple[tuple[str, str], ...], ...], fields.get("subject", ()))
    names = [text for part in subject for key, text in part if key == "commonName"]
    chain = frozenset(digest(der) for der in (leaf, *_verified_chain(connection)))
    return PeerCertificate(names[0] if len(names) == 1 else None, chain)


def _verified_chain(connection: ssl.SSLObject) -> list[bytes]:
    if hasattr(connection, "get_verified_chain"):  # Python 3.13 and later.
        return list(connection.get_verified_chain())
    # The same call, before it was made public. A resumed session has no chain.
    chain = connection._sslobj.get_verified_chain()  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain or ()]


def digest(der: bytes) -> bytes:
    """Give the SHA-256 of a certificate, by which it is known."""
    return hashlib.sha256(der).digest()


class TlsStream(Stream):
    """A stream that is encrypted.

    Args:
        transport: the stream below, which this one takes over.
        context: settings of OpenSSL.
        server_name: what the server's certificate has to say; None on a server.
    """

    def __init__(
        self, transport: Stream, context: ssl.SSLContext, server_name: str | None
    ) -> None:
        self.peer, self.host = transport.peer, transport.host
        self._transport = transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        # Around everything that touches the three above.
        self._lock = threading.Lock()
        # Around a whole send: a close alert must not come between its parts.
        self._sending = threading.Lock()
        # Decrypted and not read yet.
        self._ahead = b""
        # Why nothing can be decrypted any more, and why this side has ended the stream.
        self._failure: ConnectionLost | None = None
        self._is_at_end = False
        self._ended: str | None = None
        self._scratch = memoryview(bytearray(_READ_BYTES))

    def handshake(self, deadline: Deadline) -> None:
        """Agree with the peer on keys, and learn who it is.

        Raises:
            ConnectionLost: the sides do not agree, or the peer went away.
            Timeout: the peer did not answer.
        """
        try:
            while not self._step():
                self._flush(deadline)
                self._fill(deadline)
            self._flush(deadline)
            self.certificate = read_peer(self._tls)
        except ssl.SSLError as error:
            self._part(deadline)
            text = str(lost(self.peer, f"the TLS handshake failed: {describe(error)}"))
            gone = isinstance(error, ssl.SSLEOFError)
            raise (ConnectionLost if gone else TlsRefused)(text) from error
        except (ConnectionLost, Timeout) as error:
            text = f"{error} (in the TLS handshake; does the peer speak TLS?)"
            raise type(error)(text) from error

    def _step(self) -> bool:
        with self._lock:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            return True

    def _part(self, deadline: Deadline) -> None:
        """Let the peer know why the handshake failed."""
        with suppress(LanceError):
            self._flush(deadline.sooner(_DRAIN_S))
            self._transport.shutdown_write()
        self._drain(deadline.sooner(_DRAIN_S))

    def _drain(self, deadline: Deadline) -> None:
        """Take what the peer still sends, up to a limit, and drop it.

        A socket that is closed with something unread resets the connection, which can
        take away what was sent last before the peer has seen it.
        """
        left = _DRAIN_BYTES_MAX
        with suppress(LanceError):
            while left > 0:
                count = self._transport.recv_into(self._scratch, deadline)
                left -= count or left

    def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
        while True:
            self._check()
            count = self._decrypt(buffer)
            if count is not None:
                return count
            self._fill(deadline)

    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        views = byte_views(buffers)
        self._check()
        with self._sending:
            self._begin_send()
            for piece in _pieces(views):
                self._transport.send([self._encrypt(piece)], deadline)
            self._torn = False

    def wait_readable(self, deadline: Deadline, waker: Waker | None = None) -> bool:
        self._check()
        while not self._look():
            # What comes need not be data: tickets and key updates are nothing to read.
            if not self._transport.wait_readable(deadline, waker):
                return False
            with suppress(Timeout):
                self._fill(Deadline.after(0))
        return True

    def shutdown_write(self) -> None:
        """Send a close alert and the end of the stream; reading goes on."""
        # While another thread is sending, the alert would damage what it sends.
        if self._sending.acquire(blocking=False):
            try:
                with suppress(LanceError):
                    self._transport.send([self._goodbye()], Deadline.after(0))
            finally:
                self._sending.release()
        self._transport.shutdown_write()

    def abort(self) -> None:
        self._ended = self._ended or "it was aborted here"
        self._transport.abort()

    def close(self) -> None:
        """Close the stream below, with a close alert if there is room for one."""
        if self._ended is None:
            self.shutdown_write()
            # The peer's close alert may be there, unread.
            self._drain(Deadline.after(0))
        self._ended = self._ended or "it was closed here"
        self._transport.close()

    def _check(self) -> None:
        if self._ended is not None:
            raise lost(self.peer, self._ended)

    def _decrypt(self, buffer: memoryview) -> int | None:
        """Read what has come; 0 at the end, None if more has to come first."""
        with self._lock:
            got = min(len(self._ahead), len(buffer))
            buffer[:got] = self._ahead[:got]
            self._ahead = self._ahead[got:]
            while got < len(buffer):
                count = self._read(buffer[got:])
                if count is None:
                    return got or None
                if not count:
                    # The reason, if there is one, waits for the next call.
                    if not got and self._failure is not None:
                        raise copy(self._failure)
                    break
                got += count
            return got

    def _read(self, buffer: memoryview) -> int | None:
        """Read from one TLS record; 0 when there will be no more."""
        if self._is_at_end:
            return 0
        try:
            count = int(self._tls.read(len(buffer), buffer))
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # An end without an alert is common. A frame that it cuts off is noticed
            # by its length, so that nothing is lost with accepting it.
            count = 0
        except ssl.SSLError as error:
            self._failure = _explain(self.peer, error)
            count = 0
        self._is_at_end = not count
        return count

    def _look(self) -> bool:
        """Tell whether there is something to read, the end of the stream included."""
        with self._lock:
            if not self._ahead:
                first = memoryview(bytearray(1))
                if self._read(first):
                    self._ahead = bytes(first)
            return bool(self._ahead) or self._is_at_end

    def _fill(self, deadline: Deadline) -> None:
        """Take what has come from the stream below, waiting until something has."""
        count = self._transport.recv_into(self._scratch, deadline)
        with self._lock:
            if count:
                self._incoming.write(self._scratch[:count])
            else:
                self._incoming.write_eof()

    def _encrypt(self, piece: memoryview) -> bytes:
        try:
            with self._lock:
                while piece:
                    piece = piece[self._tls.write(piece) :]
                return self._outgoing.read()
        except ssl.SSLError as error:
            raise _explain(self.peer, error) from error

    def _flush(self, deadline: Deadline) -> None:
        with self._lock:
            data = self._outgoing.read()
        self._transport.send([data], deadline)

    def _goodbye(self) -> bytes:
        """Make a close alert without losing what has come and is not read yet.

        Python's call does not only make the alert, it also looks for the peer's, and
        drops the data that it finds before it. So nothing is left for it to find.
        """
        with self._lock:
            piece = memoryview(bytearray(_RECORD_BYTES))
            while count := self._read(piece):
                self._ahead += piece[:count]
            # Without the peer's alert the call always fails in the end.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            return self._outgoing.read()


# Alerts that come after the client's part of the handshake is done, as the server of
# TLS 1.3 looks at a certificate only then. All others are trouble on the way.
_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")


def _explain(peer: str, error: ssl.SSLError) -> ConnectionLost:
    """Make the error for what OpenSSL says, and tell whether another try may help."""
    reason: str = getattr(error, "reason", None) or ""
    text = str(lost(peer, describe(error)))
    refused = "ALERT" in reason and any(word in reason for word in _REFUSALS)
    return TlsRefused(text) if refused else ConnectionLost(text)


def describe(error: ssl.SSLError) -> str:
    """Put an error of OpenSSL into words, with its usual cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the peer ended the connection; does it speak TLS?"
    code: str = getattr(error, "reason", None) or ""
    text = code.replace("_", " ").lower() or "".join(map(str, error.args[-1:]))
    return f"{text} ({_HINTS[code]})" if code in _HINTS else text


def _pieces(views: list[memoryview]) -> Iterator[memoryview]:
    """Cut large buffers and join small ones."""
    small: list[memoryview] = []
    size = 0
    for view in views:
        is_small = len(view) < _SMALL_BYTES
        if small and (not is_small or size >= _WRITE_BYTES):
            yield memoryview(b"".join(small))
            small, size = [], 0
        if is_small:
            small.append(view)
            size += len(view)
        else:
            for start in range(0, len(view), _WRITE_BYTES):
                yield view[start : start + _WRITE_BYTES]
    if small:
        yield memoryview(b"".join(small))
