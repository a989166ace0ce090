"""The one way to the servers: a connection that is made when needed and made again.

`ask` is what every call of the client goes through: connect, send, and on trouble
decide by `Retry` whether to wait, follow a redirect, or give up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from lance_spark.client.attempt import Attempt
from lance_spark.client.backoff import Backoff
from lance_spark.client.config import ClientConfig
from lance_spark.client.connection import Connection, PingUnanswered
from lance_spark.client.dialer import Dialer
from lance_spark.client.keepalive import Keepalive
from lance_spark.client.retry import Retry
from lance_spark.client.runtime import Runtime
from lance_spark.errors import LanceError, LeaderUnknown, NotLeader, Timeout
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import Message

logger = logging.getLogger(__name__)

# How long `close` waits for the keepalive thread, which a send may hold up.
_STOP_TIMEOUT_S = 2.0


class Request(NamedTuple):
    """A request as it suits one server."""

    message: Message
    # It is a Fetch that asks for the extended header.
    extended: bool = False


# Given the connection, makes the request that its server understands, or raises
# Unsupported. It is asked again for each try: the next server may be another kind.
Build = Callable[[Connection], Request]


class Link:
    """A connection to whichever server is right; any number of threads may use it.

    Args:
        config: the settings.
        runtime: the network, the time and chance.
        dialer: knows the servers; one may serve several links.
    """

    def __init__(self, config: ClientConfig, runtime: Runtime, dialer: Dialer) -> None:
        self._config = config
        self._runtime = runtime
        self._dialer = dialer
        # One thread connects, the others wait for what it brings.
        self._dialing = threading.Lock()
        # Guards what follows, and is never held while waiting.
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._keepalive: Keepalive | None = None
        self._closed = threading.Event()
        self._attempt = Attempt()

    def ask(
        self,
        build: Build,
        *,
        retry: bool = True,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
        make_rules: Callable[..., Retry] = Retry,
    ) -> Message:
        """Send a request to a server and return its answer, with all retries.

        Args:
            build: makes the request.
            retry: whether it may be sent again when it may have arrived before.
            timeout_s: for the whole call; `retry_timeout_s` if not given.
            wait_s: how long the server may take on purpose, on top of the timeouts.
            make_rules: makes the rules of when to try again, as `Retry` does.

        Raises:
            BrokerError: the server refused.
            ConnectionLost, Timeout: there was no answer, and time is up or `retry`
                is off.
            RemoteProtocolError: the answer made no sense.
            LanceError: the client is closed.
        """
        rules = self._make_retry(timeout_s, wait_s, resend=retry, make=make_rules)
        patience_s = self._config.request_timeout_s + wait_s
        while True:
            connection: Connection | None = None
            asked: Address | None = None
            try:
                connection = self._connect(rules.deadline)
                message, extended = build(connection)
                deadline = rules.deadline.sooner(patience_s)
                pending = connection.submit(
                    message, extended=extended, deadline=deadline
                )
                # Up to here no whole request was sent that a server could act on.
                asked = connection.address
                return pending.conclude(deadline)
            except LanceError as error:
                self._recover(error, rules, connection, asked)

    def connection(self, *, timeout_s: float | None = None) -> Connection:
        """Return the live connection, made if needed with all retries.

        Raises:
            ConnectionLost, Timeout: no server can be reached.
            LanceError: the client is closed.
        """
        rules = self._make_retry(timeout_s)
        while True:
            try:
                return self._connect(rules.deadline)
            except LanceError as error:
                self._recover(error, rules, None, None)

    def connect_once(self) -> Connection:
        """Return the live connection, made if needed without any retry."""
        return self._connect(self._make_retry(None).deadline)

    def ping(self) -> float:
        """Tell how many seconds a keepalive takes to come back."""
        rules = self._make_retry(None)
        while True:
            connection: Connection | None = None
            try:
                connection = self._connect(rules.deadline)
                deadline = rules.deadline.sooner(self._config.request_timeout_s)
                return connection.ping(deadline)
            except LanceError as error:
                if isinstance(error, PingUnanswered):
                    # If its answer never comes, the next ping would wait for it too.
                    self.drop(connection)
                self._recover(error, rules, connection, None)

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
        self._closed.set()
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
        interval_s = self._config.keepalive_interval_s
        with self._lock:
            connection = self._connection
        if connection is None:
            return interval_s
        # Old answers must not fill the buffers of a client that is idle for days.
        connection.drain()
        due_s = interval_s - connection.idle_s()
        if due_s > 0:
            return due_s
        try:
            if connection.is_open:
                connection.send_keepalive(Deadline.after(interval_s))
        except LanceError as error:
            logger.debug("%s: keepalive failed: %s", connection.address, error)
        return interval_s

    # Inside.

    def _make_retry(
        self,
        timeout_s: float | None,
        wait_s: float = 0.0,
        *,
        resend: bool = True,
        make: Callable[..., Retry] = Retry,
    ) -> Retry:
        self._check_open()
        config = self._config
        total_s = config.retry_timeout_s if timeout_s is None else timeout_s
        return make(
            deadline=Deadline.after(total_s + wait_s, self._runtime.clock),
            backoff=Backoff(
                config.backoff_base_s, config.backoff_max_s, self._runtime.random
            ),
            resend=resend,
        )

    def _connect(self, deadline: Deadline) -> Connection:
        self._check_open()
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.drain()
            if connection.is_open:
                return connection
        patience_s = min(deadline.remaining(), threading.TIMEOUT_MAX)
        if not self._dialing.acquire(timeout=patience_s):
            raise Timeout(f"no connection to {self._config.servers} in time")
        try:
            return self._connect_alone(deadline)
        finally:
            self._dialing.release()

    def _connect_alone(self, deadline: Deadline) -> Connection:
        """Connect, unless another thread just has; only one is in here at a time."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            if connection.is_open:
                return connection
            self.drop(connection)
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
                    interval_s = self._config.keepalive_interval_s
                    self._keepalive = Keepalive(self, interval_s)
        if is_closed:
            connection.close()
        self._check_open()
        return connection

    def _recover(
        self,
        error: LanceError,
        rules: Retry,
        connection: Connection | None,
        asked: Address | None,
    ) -> None:
        """Wait for the next try, or raise the error."""
        rules.note(error, asked=asked)
        if connection is not None and not connection.is_open:
            self.drop(connection)
        self._check_open(error, rules)
        step = rules.next_step(error, asked=asked)
        if isinstance(error, (NotLeader, LeaderUnknown)) and connection is not None:
            if step.leader is not None:
                self._dialer.prefer(step.leader)
            else:
                self._dialer.avoid(connection.address)
            self.drop(connection)
        if step.delay_s:
            logger.warning("%s; trying again in %.1f s", error, step.delay_s)
            self._runtime.pause(self._closed, step.delay_s)
        self._check_open(error, rules)

    def _check_open(
        self, cause: LanceError | None = None, rules: Retry | None = None
    ) -> None:
        if self._closed.is_set():
            error = LanceError(
                f"the client of {self._config.servers} is closed; make a new one"
            )
            raise (rules.conclude(error) if rules is not None else error) from cause
