"""A whole broker in threads of this process: for tests, notebooks and small set-ups."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from lance_spark.broker.access import (
    apply_topics,
    make_policy,
    read_rules,
    read_tokens,
)
from lance_spark.broker.config import LWP, BrokerConfig, check_name
from lance_spark.broker.console import Console
from lance_spark.broker.exchange import Exchange
from lance_spark.broker.fluvio import sc_session_maker, spu_session_maker
from lance_spark.broker.kimberlite import session_maker as kimberlite_session_maker
from lance_spark.broker.lwp import session_maker
from lance_spark.broker.metrics import Exporter, Metrics
from lance_spark.broker.rustlog import session_maker as rustlog_session_maker
from lance_spark.broker.server import Endpoint, Server, SessionMaker
from lance_spark.broker.service import Service
from lance_spark.broker.tank import session_maker as tank_session_maker
from lance_spark.errors import LanceError
from lance_spark.net.address import Address, parse_address
from lance_spark.net.tls import TlsContext, make_server_context
from lance_spark.store import Store
from lance_spark.store.files import Files
from lance_spark.wire.lwp import read_records, scan, write_batch

logger = logging.getLogger(__name__)

# About the memory that an answer takes while it is made.
_KEPT_BYTES = 4 * 1024 * 1024

# The sessions of each protocol, by the name that `address_of` takes. That of all but
# LWP is also the name of the setting that turns the protocol on.
PROTOCOLS: dict[str, SessionMaker] = {
    LWP: session_maker,
    "rustlog": rustlog_session_maker,
    "kimberlite": kimberlite_session_maker,
    "tank": tank_session_maker,
    "fluvio": sc_session_maker,
    "fluvio_spu": spu_session_maker,
}


class EmbeddedBroker:
    """A broker: `with EmbeddedBroker() as broker: …` and clients use `broker.address`.

    Without `data_dir` its data is in a temporary directory and goes when it stops.
    After `stop` it can be started again, at the same address.
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        files: Files | None = None,
        **overrides: Any,
    ) -> None:
        """Make a broker that is not running yet.

        Args:
            config: its settings.
            files: the file operations of its store, for tests that make them fail.
            overrides: settings by name, in place of those of `config`.

        Raises:
            OptionError: a setting is unknown or out of range.
        """
        for name in overrides:
            check_name(name, where="EmbeddedBroker")
        self.config = replace(config or BrokerConfig(), **overrides)
        self.metrics = Metrics()
        self._files = files
        # Where each protocol was served last: the next start takes the same addresses.
        self._addresses: dict[str, Address] = {}
        self._data_dir: Path | None = None
        # Ends what was started, the last one first.
        self._started = ExitStack()
        self._service: Service | None = None
        self._server: Server | None = None
        self._exporter: Exporter | None = None
        self._console: Console | None = None
        self._ui_address: Address | None = None

    # Where it is.

    @property
    def address(self) -> str:
        """`host:port` that clients of LWP connect to.

        Raises:
            LanceError: it was not started yet.
        """
        return self.address_of(LWP)

    def address_of(self, protocol: str) -> str:
        """Give `host:port` that clients of a protocol connect to.

        Raises:
            LanceError: it was not started yet, or does not serve that protocol.
        """
        if not self._addresses:
            raise LanceError("the broker has no address yet: start it first")
        if protocol not in self._addresses:
            served = ", ".join(self._addresses)
            raise LanceError(f"the broker does not serve {protocol!r}, only {served}")
        return str(self._addresses[protocol])

    @property
    def addresses(self) -> dict[str, str]:
        """`host:port` of each protocol that it serves, LWP (`lance`) first."""
        return {protocol: str(at) for protocol, at in self._addresses.items()}

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return parse_address(self.address).port

    @property
    def data_dir(self) -> Path:
        """The data directory.

        Raises:
            LanceError: it was not started yet.
        """
        if self._data_dir is None:
            raise LanceError("the broker has no data directory yet: start it first")
        return self._data_dir

    @property
    def metrics_address(self) -> str | None:
        """`host:port` of the metrics, None if there are none."""
        return None if self._exporter is None else str(self._exporter.address)

    @property
    def ui_address(self) -> str | None:
        """`host:port` of the web console, None if there is none."""
        return None if self._console is None else str(self._console.address)

    @property
    def ui_url(self) -> str | None:
        """What to open in a browser for the console, None if there is none."""
        return None if self._console is None else self._console.url

    @property
    def is_running(self) -> bool:
        """Whether it is started and not stopped."""
        return self._server is not None

    @property
    def service(self) -> Service:
        """Its calls, for code that runs in the same process.

        Raises:
            LanceError: it is not running.
        """
        if self._service is None:
            raise LanceError("the broker is not running: start it first")
        return self._service

    # Starting and stopping.

    def start(self) -> EmbeddedBroker:
        """Open the store and serve; returns when clients can connect.

        Raises:
            OptionError: settings, certificates or the address can't be used.
            StoreLocked: another broker has the data directory.
            StoreError: the data directory can't be used.
        """
        if self.is_running:
            raise LanceError(f"the broker is running already, at {self.address}")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        config, started = self.config, self._started
        self._data_dir = self._find_directory()
        store = started.enter_context(
            Store(
                self._data_dir,
                framing=scan,
                config=config,
                files=self._files,
                observe_sync=self.metrics.observe_sync,
            )
        )
        named = apply_topics(store, config.topics)
        rules = read_rules(store)
        self._service = Service(
            store,
            policy=make_policy(config, rules),
            tokens=read_tokens(config),
            named=named,
            metrics=self.metrics,
            topics_max=config.topics_max,
            partitions_max=config.partitions_max,
            consumers_max=config.consumers_max,
        )
        if rules and not config.tls_enabled:
            logger.warning(
                "%d topics have access rules and TLS is off: no client may use them",
                sum(rule.mtls_enabled for rule in rules.values()),
            )
        authorities = {r.client_ca_path for r in rules.values() if r.mtls_enabled}
        _keep_pages()
        self._server = Server(
            Exchange(
                self._service, read_records=read_records, write_records=write_batch
            ),
            config,
            endpoints=[
                Endpoint(name, self._addresses.get(name, address), maker)
                for name, maker in PROTOCOLS.items()
                if (address := config.address_of(name)) is not None
            ],
            tls=self._make_tls(authorities),
        )
        started.callback(self._server.stop)
        self._addresses = dict(self._server.addresses)
        if config.metrics is not None:
            self._exporter = Exporter(
                self.metrics, self._service.gauges, parse_address(config.metrics)
            )
            started.callback(self._exporter.stop)
            self._exporter.start()
        if config.ui_address is not None:
            self._start_console(self._ui_address or config.ui_address)
        self._server.start()

    def _start_console(self, address: Address) -> None:
        assert self._service is not None and self._server is not None
        settings = self.config.server_tls()
        if settings is not None and not self.config.tls_require_client_cert:
            # A browser that is asked for a certificate asks its user for one.
            settings = replace(settings, client_ca_paths=())
        self._console = Console(
            self._service,
            self.config,
            address=address,
            addresses=self._addresses,
            clients=self._server.clients,
            tls=None if settings is None else make_server_context(settings),
        )
        self._started.callback(self._console.stop)
        self._console.start()
        # Once more at the same address, as browsers know it.
        self._ui_address = replace(address, port=self._console.address.port)

    def _make_tls(self, authorities: set[str | None]) -> TlsContext | None:
        named = tuple(sorted(path for path in authorities if path is not None))
        settings = self.config.server_tls(named)
        return None if settings is None else make_server_context(settings)

    def _find_directory(self) -> Path:
        if self.config.data_dir is not None:
            return Path(self.config.data_dir)
        path = tempfile.mkdtemp(prefix="lance-broker-")
        # Removed at the latest when Python ends.
        self._started.callback(weakref.finalize(self, _remove, path, os.getpid()))
        return Path(path)

    def stop(self) -> None:
        """End all connections, make everything durable, and let go of the directory."""
        try:
            self._started.close()
        finally:
            self._server = self._exporter = self._service = self._console = None

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = f"at {self.address}" if self.is_running else "not running"
        return f"<EmbeddedBroker {where}>"

    def _repr_html_(self) -> str:
        # Late: notebooks show brokers, and other programs do not need it.
        from lance_spark.html import render_facts, render_table, show_bytes, show_span

        config = self.config
        facts = {
            "address": self.address if self.is_running else "not running",
            "data": config.data_dir or "in a temporary directory",
            "fsync": config.fsync.value,
            "TLS": "on" if config.tls_enabled else "off",
        }
        parts = [render_facts(facts, caption="EmbeddedBroker")]
        rows = [
            (
                topic.name or "(default topic)",
                topic.records,
                show_span(topic.log_start, topic.log_end),
                show_bytes(topic.bytes_on_disk),
                topic.stages,
            )
            for topic in (() if self._service is None else self._service.gauges())
            # The default topic has no name, and is rarely used.
            if topic.name or topic.log_end
        ]
        if rows:
            columns = ("topic", "records", "log", "on disk", "open stages")
            parts.append(render_table(columns, rows))
        return "\n".join(parts)


def _remove(path: str, owner: int) -> None:
    """Remove a temporary directory, unless this process is a fork of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _keep_pages() -> None:
    """Let the C library use the pages of large buffers again.

    glibc takes new pages for every buffer above some size, which costs more time than
    to fill them. The size rises to that of the largest such buffer that was freed.
    """
    buffer = bytearray(_KEPT_BYTES)
    del buffer
