"""Which server to connect to, and with which checksum."""

from __future__ import annotations

import logging
import threading

from lance_spark.client.attempt import Attempt
from lance_spark.client.config import ClientConfig
from lance_spark.client.connection import Connection
from lance_spark.client.greeting import ConnectionEnded
from lance_spark.client.retry import may_pass_while_connecting
from lance_spark.client.runtime import Runtime
from lance_spark.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    ConnectionLimit,
    ConnectionLost,
    LanceError,
    OptionError,
    RemoteProtocolError,
)
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import Checksum, parse_checksum

logger = logging.getLogger(__name__)

# Another server would say the same: it is the settings that are wrong.
_HOPELESS = (OptionError, AuthenticationFailed, AuthenticationRequired, AccessDenied)


class Dialer:
    """Connect to the leader if one is known, else to the first server that answers.

    Several clients may share one, and with it what was learnt: the leader, and the
    checksum of each server where it is `auto`.

    Args:
        config: the settings.
        runtime: the network and the time.
    """

    def __init__(self, config: ClientConfig, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self._servers = config.addresses
        self._checksum = parse_checksum(config.checksum)
        # Guards what follows.
        self._lock = threading.Lock()
        self._leader: Address | None = None
        self._first = 0
        self._learnt: dict[Address, Checksum] = {}

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
            BrokerError, RemoteProtocolError: none wants us, and this is what the last
                one said.
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
                self._forget_leader(address)
                if deadline.expired or attempt.is_cancelled:
                    break
            else:
                with self._lock:
                    self._first = 0
                return connection
        raise _sum_up(failures)

    def _forget_leader(self, address: Address) -> None:
        with self._lock:
            if self._leader == address:
                self._leader = None

    def _open(
        self, address: Address, deadline: Deadline, attempt: Attempt
    ) -> Connection:
        if self._checksum is not None:
            return self._open_with(self._checksum, address, deadline, attempt)
        # What was learnt may be wrong by now: another server may be there.
        checksum = self._learnt.get(address, Checksum.CRC32C)
        try:
            connection = self._open_with(checksum, address, deadline, attempt)
        except (ConnectionEnded, RemoteProtocolError):
            connection = self._open_with(_other(checksum), address, deadline, attempt)
        with self._lock:
            self._learnt[address] = connection.checksum
        return connection

    def _open_with(
        self,
        checksum: Checksum,
        address: Address,
        deadline: Deadline,
        attempt: Attempt,
    ) -> Connection:
        attempt.check()
        return Connection.open(
            self._config,
            address,
            checksum=checksum,
            deadline=deadline.sooner(self._config.connect_timeout_s),
            connect=self._runtime.connect,
            clock=self._runtime.clock,
            attempt=attempt,
        )


def _other(checksum: Checksum) -> Checksum:
    return Checksum.CRC32 if checksum is Checksum.CRC32C else Checksum.CRC32C


def _sum_up(failures: list[tuple[Address, LanceError]]) -> LanceError:
    # One that may pass is the one to act on: it is worth another round.
    passing = [error for _, error in failures if may_pass_while_connecting(error)]
    if len(failures) == 1 or not passing:
        return failures[-1][1]
    if all(isinstance(error, ConnectionLimit) for error in passing):
        return passing[-1]
    reasons = "; ".join(f"{address}: {error}" for address, error in failures)
    return ConnectionLost(f"no server can be reached: {reasons}")
