"""The client: every call that a server takes, over one connection that heals itself.

The calls are in parts by subject (`topic`, `fetch`, `subscription`, `staging`,
`membership`); how they get to a server is in `link`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from types import TracebackType
from typing import Any

from lance_spark.client.caller import check_capability
from lance_spark.client.config import ClientConfig
from lance_spark.client.connection import Connection
from lance_spark.client.dialer import Dialer
from lance_spark.client.fetch import FetchCalls
from lance_spark.client.link import Link, Request
from lance_spark.client.membership import MembershipCalls
from lance_spark.client.runtime import Runtime
from lance_spark.client.staging import StagingCalls
from lance_spark.client.subscription import SubscriptionCalls
from lance_spark.client.topic import TopicCalls
from lance_spark.errors import OptionError
from lance_spark.net.address import Address
from lance_spark.wire.lwp import Capability, ClusterStatus, GetClusterStatus, Message


class LanceClient(
    TopicCalls, FetchCalls, SubscriptionCalls, StagingCalls, MembershipCalls
):
    """A client of a LANCE server or cluster; any number of threads may use it.

    It connects when first needed and reconnects when it has to, follows redirects to
    the leader and repeats what is safe to repeat. Requests of several threads share
    one connection and are answered in order, so that a call that waits on the server
    holds up the others; `dedicated` gives a client with a connection of its own.

    Args:
        servers: addresses as `host:port`, separated by commas.
        config: all settings; instead, or changed by `servers` and `options`.
        runtime: the network, the time and chance.
        options: fields of `ClientConfig`.

    Raises:
        OptionError: a setting can't be used.
    """

    def __init__(
        self,
        servers: str | None = None,
        *,
        config: ClientConfig | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        if servers is not None:
            options["servers"] = servers
        config = _change(config or ClientConfig(), options)
        runtime = runtime or Runtime()
        self._set_up(config, runtime, Dialer(config, runtime))

    def _set_up(self, config: ClientConfig, runtime: Runtime, dialer: Dialer) -> None:
        super().__init__(Link(config, runtime, dialer), config)
        self._runtime = runtime
        self._dialer = dialer

    @property
    def config(self) -> ClientConfig:
        """The settings."""
        return self._config

    # The connection.

    def connect(self) -> LanceClient:
        """Connect now, trying each server once, and return the client.

        Raises:
            LanceError: no server can be reached or wants us.
        """
        self._link.connect_once()
        return self

    def connection(self) -> Connection:
        """Return the live connection, made if needed and with the usual retries."""
        return self._link.connection()

    def disconnect(self) -> None:
        """Drop the connection; the next call makes a new one."""
        self._link.drop()

    def redirect(self, leader: Address) -> None:
        """Go to another server from now on, for as long as it can be reached."""
        self._dialer.prefer(leader)
        self._link.drop()

    def avoid(self, server: Address) -> None:
        """Go to the servers behind this one first, as it does not know the leader."""
        self._dialer.avoid(server)
        self._link.drop()

    def dedicated(self) -> LanceClient:
        """Make a client with the same settings and a connection of its own."""
        client = LanceClient.__new__(LanceClient)
        client._set_up(self._config, self._runtime, self._dialer)
        return client

    def close(self) -> None:
        """Close the connection; calls under way end, later ones are refused."""
        self._link.close()

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed."""
        return self._link.is_closed

    def __enter__(self) -> LanceClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        return f"<LanceClient {self._config.servers}{state}>"

    # The server.

    def call(
        self,
        message: Message,
        *,
        retry: bool = True,
        extended: bool = False,
        timeout_s: float | None = None,
    ) -> Message:
        """Send any request and return its answer.

        Args:
            message: the request.
            retry: whether it may be sent again when it may have arrived before.
            extended: it is a Fetch that asks for the extended header.
            timeout_s: for the whole call; `retry_timeout_s` if not given.

        Raises:
            BrokerError: the server refused.
            ConnectionLost, Timeout: there was no answer, and time is up or `retry`
                is off.
            RemoteProtocolError: the answer made no sense.
        """
        request = Request(message, extended)
        return self._link.ask(lambda _: request, retry=retry, timeout_s=timeout_s)

    def status(self) -> ClusterStatus:
        """Ask who leads and what the server can do."""
        return self._ask(GetClusterStatus(), ClusterStatus)

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server offers beyond LWP."""
        return self.connection().capabilities

    @property
    def is_plain(self) -> bool:
        """Whether the server offers nothing beyond LWP."""
        return not self.capabilities

    def supports(self, capability: Capability) -> bool:
        """Tell whether the server offers something."""
        return capability.value in self.capabilities

    def require(self, capability: Capability, what: str) -> None:
        """Check that the server offers something.

        Args:
            capability: what it has to offer.
            what: what that is needed for, for the error.

        Raises:
            Unsupported: it does not.
        """
        check_capability(self.connection(), capability, what)

    def ping(self) -> float:
        """Tell how many seconds a keepalive takes to the server and back."""
        return self._link.ping()


def _change(config: ClientConfig, options: dict[str, Any]) -> ClientConfig:
    known = [field.name for field in fields(ClientConfig)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise OptionError(
            f"no such setting: {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return replace(config, **options)
