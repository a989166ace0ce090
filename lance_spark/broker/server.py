"""The server: accepts connections and runs a session for each in its own thread.

Store and sockets block, so a thread per connection keeps one client's disk, network
and silence from being another's. How many there are is bounded by `connections_max`,
over all protocols.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lance_spark.broker.budget import Budget
from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.exchange import Exchange
from lance_spark.broker.session import Session, Shared
from lance_spark.broker.turn import Turns
from lance_spark.errors import ConnectionLimit, LanceError
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener, raise_file_limit
from lance_spark.net.stream import SocketStream, Stream
from lance_spark.net.tls import TlsContext, handshake

logger = logging.getLogger(__name__)

# Clients over the limit that are told so at the same time; more are just closed.
_REFUSALS_MAX = 16
# How long such a client may take to send its first frame.
_REFUSAL_S = 2.0
# How long `stop` waits for sessions, which end at once unless the disk holds them.
_STOP_TIMEOUT_S = 10.0
# How much of that is for sessions that take leave of their clients.
_LEAVE_TIMEOUT_S = 1.0
# Descriptors of a connection: its socket, and a waker when it has waited for data.
_CONNECTION_FILES = 3
# Requests that wait for data hold their memory for long: they get this part of it.
_WAITING_SHARE = 4
# What is open besides connections and segments: journal, listeners, logs, spare ones.
_OTHER_FILES = 64

MakeSession = Callable[[Stream], Session[Any]]


SessionMaker = Callable[[Shared], MakeSession]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one protocol is served, and by which sessions.

    Args:
        protocol: its name; `lance` is LWP.
        address: where to listen; port 0 takes a free one.
        session_maker: is given what the sessions share, once, and gives the function
            that makes the session of a connection.
    """

    protocol: str
    address: Address
    session_maker: SessionMaker


@dataclass(frozen=True, slots=True)
class _Door:
    """Where connections of a protocol come in, and what makes their sessions."""

    protocol: str
    listener: Listener
    make_session: MakeSession


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A connection, for those who look after the broker.

    Args:
        peer: where it comes from.
        protocol: what it speaks.
        name: that of its verified certificate, if it has shown one.
        since_ns: when it was let in.
        standing: how many of its requests wait: long polls, subscriptions, watches.
    """

    peer: str
    protocol: str
    name: str | None
    since_ns: int
    standing: int


class Server:
    """Serves some protocols, each at its own address, until it is stopped."""

    def __init__(
        self,
        exchange: Exchange,
        config: BrokerConfig,
        *,
        endpoints: Sequence[Endpoint],
        tls: TlsContext | None = None,
    ) -> None:
        """Listen, so that the addresses are known; serve after `start`.

        Raises:
            OptionError: an address can't be had.
        """
        self._service = exchange.service
        self._config = config
        self._tls = tls
        self._shared = Shared(
            exchange,
            config,
            Budget(config.memory_bytes_max),
            Budget(config.write_queue_bytes_max),
            Budget(config.memory_bytes_max // _WAITING_SHARE),
            Turns(),
        )
        _make_room(config)
        self._lock = threading.Lock()
        self._streams: dict[threading.Thread, Stream] = {}
        self._sessions: dict[threading.Thread, Session[Any]] = {}
        # Those that may not have presented their token yet, the oldest one first.
        self._strangers: dict[threading.Thread, Session[Any] | None] = {}
        self._refusals: set[threading.Thread] = set()
        self._stopping = threading.Event()
        self._threads = [_make_thread("maintain", self._maintain)]
        self._doors: list[_Door] = []
        try:
            for endpoint in endpoints:
                self._listen(endpoint)
        except BaseException:
            self._stop_listening()
            raise

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Where each protocol is served, with the real port."""
        return self._shared.addresses

    def clients(self) -> list[ConnectedClient]:
        """List the clients that are served, the oldest connection first."""
        with self._lock:
            sessions = list(self._sessions.values())
        return [
            ConnectedClient(s.peer, s.protocol, s.client_name, s.since_ns, s.standing)
            for s in sessions
        ]

    def start(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop accepting, end all connections, and wait for their threads."""
        self._stopping.set()
        for door in self._doors:
            door.listener.stop()
        deadline = Deadline.after(_STOP_TIMEOUT_S)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(deadline.remaining())
        self._stop_listening()
        with self._lock:
            streams, sessions = dict(self._streams), dict(self._sessions)
        leave = Deadline.after(_LEAVE_TIMEOUT_S)
        for thread in [each for each, session in sessions.items() if session.stop()]:
            thread.join(leave.remaining())
        for stream in streams.values():
            stream.abort()
        # A session that waits for memory or the disk does not notice the end of its
        # stream.
        self._shared.memory.close()
        self._shared.queue.close()
        self._shared.waiting.close()
        for thread in streams:
            thread.join(deadline.remaining())
        late = [thread.name for thread in streams if thread.is_alive()]
        if late:
            logger.warning("sessions did not end in time: %s", ", ".join(late))

    # Accepting.

    def _listen(self, endpoint: Endpoint) -> None:
        protocol = endpoint.protocol
        make_session = endpoint.session_maker(replace(self._shared, protocol=protocol))
        door = _Door(protocol, Listener(endpoint.address), make_session)
        self._doors.append(door)
        self._shared.addresses[protocol] = door.listener.address
        self._threads.append(_make_thread(f"accept-{protocol}", self._accept, door))

    def _stop_listening(self) -> None:
        for door in self._doors:
            door.listener.close()

    def _accept(self, door: _Door) -> None:
        while (stream := door.listener.accept()) is not None:
            try:
                self._admit(stream, door)
            except RuntimeError as error:
                # No more threads: this client has to try again, the others go on.
                logger.error("%s: no thread for it: %s", stream.peer, error)
                stream.close()

    def _admit(self, stream: SocketStream, door: _Door) -> None:
        with self._lock:
            if self._stopping.is_set():
                stream.close()
                return
            served = len(self._streams) - len(self._refusals)
            refused = served >= self._config.connections_max
            if refused:
                self._service.metrics.count(door.protocol, "connections_refused")
                if len(self._refusals) >= _REFUSALS_MAX:
                    stream.close()
                    return
            name = f"session-{stream.peer}"
            thread = _make_thread(name, self._serve, stream, door, refused)
            # Known before it runs: `stop` must not miss it.
            self._streams[thread] = stream
            if refused:
                self._refusals.add(thread)
            elif self._service.gate.policy.token_required:
                self._strangers[thread] = None
                self._drop_stranger(door.protocol)
            try:
                thread.start()
            except RuntimeError:
                self._forget(thread)
                raise

    def _drop_stranger(self, protocol: str) -> None:
        """End the oldest connection without a token, if there are too many of them.

        An honest client presents its token with its first frame, so that the one that
        has been without for longest is the least likely to be one. The newest is never
        dropped: clients that connect and send nothing can't lock it out.
        """
        for thread, session in list(self._strangers.items()):
            if session is not None and session.is_admitted:
                del self._strangers[thread]
        if len(self._strangers) > max(1, self._config.connections_max // 2):
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self._service.metrics.count(protocol, "connections_refused")
            self._streams[oldest].abort()

    def _serve(self, stream: Stream, door: _Door, refused: bool) -> None:
        thread, metrics = threading.current_thread(), self._service.metrics
        if not refused:
            metrics.count(door.protocol, "connections_opened")
        try:
            stream = self._shake_hands(stream)
            session = door.make_session(stream)
            if refused:
                limit = self._config.connections_max
                text = f"Connection limit reached: {limit} connections"
                session.refuse(ConnectionLimit(text), _REFUSAL_S)
                return
            with self._lock:
                self._sessions[thread] = session
                if thread in self._strangers:
                    self._strangers[thread] = session
            session.run()
        except LanceError as error:
            logger.info("%s: %s", stream.peer, error)
        except Exception:
            # A bug ends this connection and no other.
            logger.exception("%s: session failed", stream.peer)
        finally:
            stream.close()
            with self._lock:
                self._forget(thread)
            if not refused:
                metrics.count(door.protocol, "connections_closed")

    def _shake_hands(self, stream: Stream) -> Stream:
        if self._tls is None:
            return stream
        assert isinstance(stream, SocketStream)
        deadline = Deadline.after(self._config.handshake_timeout_s)
        secure = handshake(stream, self._tls, deadline)
        with self._lock:
            # What `stop` has to abort from now on.
            self._streams[threading.current_thread()] = secure
        return secure

    def _forget(self, thread: threading.Thread) -> None:
        self._streams.pop(thread, None)
        self._sessions.pop(thread, None)
        self._strangers.pop(thread, None)
        self._refusals.discard(thread)

    # Housekeeping.

    def _maintain(self) -> None:
        while not self._stopping.wait(self._config.maintenance_interval_s):
            try:
                self._service.maintain()
            except Exception:
                # The next round may succeed; the operator finds the reason in the log.
                logger.exception("maintenance failed")


def _make_thread(
    name: str, target: Callable[..., None], *arguments: object
) -> threading.Thread:
    return threading.Thread(
        target=target, args=arguments, name=f"lance-{name}", daemon=True
    )


def _make_room(config: BrokerConfig) -> None:
    """Raise the limit of open files to what the settings may need, or warn."""
    segments = 2 * config.open_segments_max
    wanted = _CONNECTION_FILES * config.connections_max + segments + _OTHER_FILES
    limit = raise_file_limit(wanted)
    if limit < wanted:
        logger.warning(
            "%d open files are allowed, up to %d may be needed: %s; raise ulimit -n, "
            "or lower these settings",
            limit,
            wanted,
            f"{_CONNECTION_FILES} for each of connections_max="
            f"{config.connections_max}, 2 for each of open_segments_max="
            f"{config.open_segments_max}, and {_OTHER_FILES} more",
        )
