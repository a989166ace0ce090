"""The way to the servers: a connection that is made when needed, and made again.

`Dialer` knows which server to connect to. `Link.ask` is what every call of a client
goes through: connect, send, and after a failure do what `Retry` decides: wait, follow a
redirect, or give up.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from lance_spark.client.config import ConnectionConfig, Runtime
from lance_spark.client.connection import Attempt, Connection
from lance_spark.client.dialect import Candidates, ConnectionEnded
from lance_spark.client.retry import Backoff, Decision, Retry, may_pass_while_connecting
from lance_spark.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    ConnectionLimit,
    ConnectionLost,
    LanceError,
    OptionError,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline

logger = logging.getLogger(__name__)

# Another server would say the same: it is the settings that are wrong.
_HOPELESS = (OptionError, AuthenticationFailed, AuthenticationRequired, AccessDenied)
# How long `close` waits for the keepalive thread, which a send may hold up.
_STOP_TIMEOUT_S = 2.0

# Given the connection, makes the request that its server understands, or raises
# Unsupported. It is called again for each try: the next server may be another kind.
Build = Callable[[Connection], Any]
# Gives the connection for a try, made if needed without any retry.
Connect = Callable[[Deadline], Connection]


class Dialer:
    """Connect to the leader if one is known, else to the first server that answers.

    Several links may share one, and with it what was learnt: the leader, and the
    dialect of each server.

    Args:
        config: the settings.
        runtime: the network and the time.
        candidates: lists the dialects to try with a server.
    """

    def __init__(
        self, config: ConnectionConfig, runtime: Runtime, candidates: Candidates
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._candidates = candidates
        self._servers = config.addresses
        # Guards what follows.
        self._lock = threading.Lock()
        self._leader: Address | None = None
        self._first = 0

    def prefer(self, leader: Address) -> None:
        """Try this server before all others, until it can't be reached."""
        with self._lock:
            self._leader = leader

    def avoid(self, server: Address) -> None:
        """Start with the server behind this one, which does not know the leader."""
        with self._lock:
            self._leader = None
            if server in self._servers:
                self._first = (self._servers.index(server) + 1) % len(self._servers)

    def plan(self) -> list[Address]:
        """List the servers in the order in which to try them."""
        with self._lock:
            order = [*self._servers[self._first :], *self._servers[: self._first]]
            if self._leader is None:
                return order
            return [self._leader, *(s for s in order if s != self._leader)]

    def dial(self, deadline: Deadline, attempt: Attempt | None = None) -> Connection:
        """Connect to one server, trying each once.

        Args:
            deadline: for all of them.
            attempt: lets another thread end it.

        Raises:
            ConnectionLost: none can be reached; the text has every server's reason.
            BrokerError, RemoteProtocolError: none takes this client, and this is what
                the last one said.
        """
        attempt = attempt or Attempt()
        failures: list[tuple[Address, LanceError]] = []
        for address in self.plan():
            try:
                connection = self._open(address, deadline, attempt)
            except _HOPELESS:
                raise
            except LanceError as error:
                logger.debug("could not connect to %s: %s", address, error)
                failures.append((address, error))
                with self._lock:
                    if self._leader == address:
                        self._leader = None
                if deadline.expired or attempt.cancelled.is_set():
                    break
            else:
                with self._lock:
                    self._first = 0
                return connection
        raise _sum_up(failures)

    def _open(
        self, address: Address, deadline: Deadline, attempt: Attempt
    ) -> Connection:
        failure: LanceError | None = None
        for dialect in self._candidates(address):
            attempt.enter()
            try:
                return Connection.open(
                    self._config,
                    address,
                    dialect,
                    deadline=deadline.sooner(self._config.connect_timeout_s),
                    runtime=self._runtime,
                    attempt=attempt,
                )
            except (ConnectionEnded, RemoteProtocolError) as error:
                failure = error
        assert failure is not None, "there is no dialect to try"
        raise failure


def _sum_up(failures: list[tuple[Address, LanceError]]) -> LanceError:
    # One that may pass is the one to act on: it is worth another round.
    passing = [error for _, error in failures if may_pass_while_connecting(error)]
    if len(failures) == 1 or not passing:
        return failures[-1][1]
    if all(isinstance(error, ConnectionLimit) for error in passing):
        return passing[-1]
    reasons = "; ".join(f"{address}: {error}" for address, error in failures)
    return ConnectionLost(f"no server can be reached: {reasons}")


class Repeater:
    """A thread that calls a method from time to time, for as long as its object lives.

    It holds the object by a weak reference only, so that an object without other users
    is collected, and the thread ends.

    Args:
        method: does what is due, and returns the seconds until the next call.
        first_s: seconds until the first call.
        name: the thread's.
    """

    def __init__(
        self, method: Callable[[], float], first_s: float, *, name: str
    ) -> None:
        self._stop = threading.Event()
        # Wakes the thread at once when the object is collected.
        owner = method.__self__  # type: ignore[attr-defined]
        weakref.finalize(owner, self._stop.set).atexit = False
        self._thread = threading.Thread(
            target=_repeat,
            args=(self._stop, weakref.WeakMethod(method), first_s),
            name=name,
            daemon=True,
        )
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread, and wait up to so long for its end."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def _repeat(
    stop: threading.Event,
    reference: weakref.WeakMethod[Callable[[], float]],
    delay_s: float,
) -> None:
    while not stop.wait(delay_s):
        method = reference()
        if method is None:
            return
        delay_s = method()
        # Held over the wait, its object could never be collected.
        del method


class Link:
    """A connection to the server that is right now; any number of threads may use it.

    Args:
        config: the settings.
        runtime: the network, the time and chance.
        dialer: knows the servers; one may serve several links.
    """

    def __init__(
        self, config: ConnectionConfig, runtime: Runtime, dialer: Dialer
    ) -> None:
        self.config = config
        self._runtime = runtime
        self._dialer = dialer
        # One thread connects, the others wait for what it brings.
        self._dialing = threading.Lock()
        # Guards what follows, and is never held while waiting.
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._keepalive: Repeater | None = None
        self._attempt = Attempt()
        self._closed = self._attempt.cancelled

    # Requests.

    def ask(
        self,
        build: Build,
        *,
        retry: bool = True,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
        make_rules: Callable[..., Retry] = Retry,
        connect: Connect | None = None,
    ) -> Any:
        """Send a request to a server and return its answer, with all retries.

        Args:
            build: makes the request.
            retry: whether it may be sent again when it may have arrived before.
            timeout_s: for the whole call; `retry_timeout_s` if not given.
            wait_s: how long the server may take on purpose, on top of the timeouts.
            make_rules: makes the rules of when to try again, as `Retry` does.
            connect: gives the connection to ask over, of another link; that of this
                one if not given.

        Raises:
            BrokerError: the server refused.
            ConnectionLost, Timeout: there was no answer, and time is up or `retry`
                is off.
            RemoteProtocolError: the answer made no sense.
            LanceError: the client is closed.
        """
        deadline = self._make_deadline(timeout_s, wait_s)
        patience_s = self.config.request_timeout_s + wait_s
        rules: Retry | None = None
        while True:
            connection: Connection | None = None
            asked: Address | None = None
            try:
                connection = (connect or self._connect)(deadline)
                request = build(connection)
                sooner = deadline.sooner(patience_s)
                pending = connection.submit(request, deadline=sooner)
                # Up to here no whole request was sent that a server could act on.
                asked = connection.address
                return pending.conclude(sooner)
            except LanceError as error:
                rules = rules or make_rules(backoff=self.make_backoff(), resend=retry)
                self._recover(error, rules, deadline, connection, asked)

    def make_backoff(self) -> Backoff:
        """Make the delays between tries, as the settings say."""
        config = self.config
        random = self._runtime.random
        return Backoff(config.backoff_base_s, config.backoff_max_s, random)

    # The connection.

    def connection(self) -> Connection:
        """Return the live connection, made if needed with all retries.

        Raises:
            ConnectionLost, Timeout: no server can be reached.
            LanceError: the client is closed.
        """
        deadline = self._make_deadline()
        rules: Retry | None = None
        while True:
            try:
                return self._connect(deadline)
            except LanceError as error:
                rules = rules or Retry(backoff=self.make_backoff())
                self._recover(error, rules, deadline, None, None)

    def live(self) -> Connection | None:
        """Return the connection if there is one that the server has not closed."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.drain()
            if connection.is_open:
                return connection
        return None

    def connect_once(self, deadline: Deadline | None = None) -> Connection:
        """Return the live connection, made if needed without any retry."""
        return self._connect(deadline or self._make_deadline())

    def follow(self, decision: Decision, connection: Connection | None = None) -> None:
        """Go to another server, if a decision about this connection says so."""
        if decision.leader is not None:
            self._dialer.prefer(decision.leader)
        elif decision.avoids is not None:
            self._dialer.avoid(decision.avoids)
        else:
            return
        self.drop(connection)

    def pause(self, delay_s: float) -> None:
        """Wait, but not longer than until the link is closed."""
        self._runtime.pause(self._closed, delay_s)

    def drop(self, connection: Connection | None = None) -> None:
        """Close a connection, or the present one; the next call makes a new one."""
        with self._lock:
            if connection is None:
                connection = self._connection
            if connection is self._connection:
                self._connection = None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connection and end every call that is under way."""
        self._attempt.cancel()
        with self._lock:
            keepalive, self._keepalive = self._keepalive, None
        self.drop()
        if keepalive is not None:
            keepalive.stop(_STOP_TIMEOUT_S)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def keep_alive(self) -> float:
        """Send a keepalive if it is time; the keepalive thread calls this.

        Returns:
            Seconds until the next one may be due.
        """
        interval_s = self.config.keepalive_interval_s
        with self._lock:
            connection = self._connection
        if connection is None:
            return interval_s
        # Old answers must not fill the buffers of a client that is idle for days.
        connection.drain()
        due_s = interval_s - connection.idle_s()
        if due_s > 0:
            return due_s
        keepalive = connection.dialect.keepalive
        try:
            if connection.is_open and keepalive is not None:
                sent = connection.submit(keepalive, deadline=Deadline.after(interval_s))
                # No thread waits for the answer; another one may read it.
                sent.is_given_up = True
        except LanceError as error:
            logger.debug("%s: keepalive failed: %s", connection.address, error)
        return interval_s

    # Inside.

    def _make_deadline(
        self, timeout_s: float | None = None, wait_s: float = 0.0
    ) -> Deadline:
        self._check_open()
        total_s = self.config.retry_timeout_s if timeout_s is None else timeout_s
        return Deadline.after(total_s + wait_s, self._runtime.clock)

    def _connect(self, deadline: Deadline) -> Connection:
        self._check_open()
        connection = self.live()
        if connection is not None:
            return connection
        patience_s = min(deadline.remaining(), threading.TIMEOUT_MAX)
        if not self._dialing.acquire(timeout=patience_s):
            raise Timeout(f"no connection to {self.config.servers} in time")
        try:
            return self._connect_alone(deadline)
        finally:
            self._dialing.release()

    def _connect_alone(self, deadline: Deadline) -> Connection:
        """Connect, unless another thread just has; only one is in here at a time."""
        connection = self.live()
        if connection is not None:
            return connection
        self.drop()
        try:
            connection = self._dialer.dial(deadline, self._attempt)
        except LanceError as error:
            # It may be `close` that has ended it.
            self._check_open(error)
            raise
        with self._lock:
            is_closed = self._closed.is_set()
            if not is_closed:
                self._connection = connection
                if self._keepalive is None:
                    interval_s = self.config.keepalive_interval_s
                    name = "lance-keepalive"
                    self._keepalive = Repeater(self.keep_alive, interval_s, name=name)
        if is_closed:
            connection.close()
        self._check_open()
        return connection

    def _recover(
        self,
        error: LanceError,
        rules: Retry,
        deadline: Deadline,
        connection: Connection | None,
        asked: Address | None,
    ) -> None:
        """Wait for the next try, or raise the error."""
        rules.note(error, asked)
        if connection is not None and not connection.is_open:
            self.drop(connection)
        self._check_open(error, rules)
        decision = rules.decide(error, asked=asked, left_s=deadline.remaining())
        self.follow(decision, connection)
        if decision.delay_s:
            logger.warning("%s; trying again in %.1f s", error, decision.delay_s)
            self.pause(decision.delay_s)
        self._check_open(error, rules)

    def _check_open(
        self, cause: LanceError | None = None, rules: Retry | None = None
    ) -> None:
        if self._closed.is_set():
            error = LanceError(
                f"the client of {self.config.servers} is closed; make a new one"
            )
            raise (rules.conclude(error) if rules is not None else error) from cause
