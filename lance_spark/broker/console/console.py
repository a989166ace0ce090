"""A console that runs: its web server, its sampler, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.console.sampler import Sampler
from lance_spark.broker.server import ConnectedClient
from lance_spark.broker.service import Service
from lance_spark.errors import OptionError
from lance_spark.net.address import Address
from lance_spark.net.tls import TlsContext

if TYPE_CHECKING:
    from lance_spark.net.web import WebServer


class Console:
    """Serves the web console of a broker.

    Args:
        service: the broker.
        config: its settings.
        address: where to listen; port 0 takes a free one.
        addresses: where the broker's clients connect to, by protocol, LWP first.
        clients: lists those that are connected.
        tls: to speak HTTPS, and nothing else.
    """

    def __init__(
        self,
        service: Service,
        config: BrokerConfig,
        *,
        address: Address,
        addresses: Mapping[str, Address],
        clients: Callable[[], Sequence[ConnectedClient]] = tuple,
        tls: TlsContext | None = None,
    ) -> None:
        self._service = service
        self._config = config
        self._address = address
        self._addresses = addresses
        self._clients = clients
        self._tls = tls
        self._sampler = Sampler(service)
        self._server: WebServer | None = None

    @property
    def address(self) -> Address:
        """Where it listens; once started with the port it got."""
        return self._address if self._server is None else self._server.address

    @property
    def url(self) -> str:
        """What to open in a browser."""
        # By the name that was given: certificates are for names.
        where = replace(self._address, port=self.address.port)
        if where.host in ("0.0.0.0", "::"):
            where = replace(where, host="127.0.0.1")
        return f"{'http' if self._tls is None else 'https'}://{where}/"

    def start(self) -> None:
        """Listen, and serve on threads of its own.

        Raises:
            OptionError: a library is not installed, or the address can't be used.
        """
        if self._server is not None:
            return
        try:
            from lance_spark.broker.console.app import Requests
            from lance_spark.net.web import WebServer
        except ImportError as error:
            raise OptionError(
                f"the console needs the package {error.name}, which is not installed: "
                "pip install 'lance-spark[ui]'"
            ) from error
        requests = Requests(
            self._service, self._config, self._sampler, self._addresses, self._clients
        )
        app, ending = requests.make_app(self._address.host), requests.streams.end
        try:
            server = WebServer(app, self._address, tls=self._tls, ending=ending)
        except OptionError as error:
            raise OptionError(f"console: {error}") from error
        self._server = server
        self._sampler.start()
        server.start()

    def stop(self) -> None:
        """Stop listening, end all answers that are under way; may be called again."""
        if self._server is not None:
            self._server.stop()
        self._sampler.stop()
        self._server = None
