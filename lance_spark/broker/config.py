"""Settings of a broker: one frozen value, checked when it is made, and its TOML file.

Every setting of the store is one of the broker too. The same names are the keywords of
`EmbeddedBroker` and the keys of the configuration file, where the settings that begin
with `tls_` have a table of their own:

    listen = "0.0.0.0:1992"
    data_dir = "/var/lib/lance"

    [tls]                       # The table of LWP §7.1; each key is a `tls_` setting.
    enabled = true
    cert_path = "/etc/lance/server.crt"

    [topics.events.auth]        # LWP §7.2, written to the topic's metadata.
    mtls_enabled = true
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from lance_spark.errors import OptionError
from lance_spark.model import Retention
from lance_spark.net.address import Address, parse_address
from lance_spark.net.tls import ServerTls
from lance_spark.quantity import check_choice, check_number, refuse_setting
from lance_spark.store import StoreConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PORT = 1992
MIB = 1024 * 1024

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "dialect": ("lwp", "plain"),
    "checksum": ("default", "crc32c", "crc32", "auto"),
    "payload_validation": ("strict", "off"),
    "error_format": ("json", "text"),
}
# The least that makes sense.
_LOWEST: Mapping[str, float] = {
    "payload_bytes_max": 1024,
    "connections_max": 1,
    "idle_timeout_s": 0.01,
    "idle_timeout_other_s": 0.01,
    "handshake_timeout_s": 0.01,
    "fetch_bytes_max": 1024,
    "wait_s_max": 0,
    "fetch_rate_limit": 0,
    "keepalive_rate": 0.1,
    "keepalive_burst": 1,
    "dedup_window": 0,
    "memory_bytes_max": MIB,
    "write_queue_bytes_max": 1,
    "maintenance_interval_s": 0.01,
    "topics_max": 1,
    "partitions_max": 1,
    "consumers_max": 1,
    "kimberlite_tenant": 0,
    "query_memory_bytes_max": 64 * MIB,
    "query_timeout_s": 0.01,
}
# Tenants of Kimberlite are smaller: with a log's id they make the id of a stream.
_TENANT_LIMIT = 2**32
# Settings that may be given as paths are called so.
_PATHS = ("_dir", "_file", "_path")
# poll(2) can't wait much longer than this, and no setting needs to.
_FRACTION_MAX = 30 * 24 * 3600
_TLS = "tls_"
# The protocol that is always served.
LWP = "lance"
# Marks the settings that are addresses. A protocol besides LWP is one of them,
# `str | None`, and an entry in `embedded.PROTOCOLS`.
_IS_ADDRESS = "is_address"
ADDRESS: Mapping[str, Any] = {_IS_ADDRESS: True}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(StoreConfig):
    """Settings of a broker, those of its store among them.

    Args:
        listen: `host:port` to listen on; port 0 takes a free one.
        data_dir: the data directory; without one a temporary directory is used, which
            is removed when the broker stops.
        dialect: `lwp`, or `plain` to behave as the LANCE server in the field does.
        checksum: of frames: `crc32c`, `crc32`, or `auto` to follow each connection's
            first frame. `default` is `crc32c`, and `crc32` in the plain dialect.
        payload_validation: `strict` refuses batches that are not whole records; `off`
            stores any bytes.
        error_format: `json` (LWP §12.1) or `text` (LWP §5.7).
        payload_bytes_max: the largest payload of a frame.
        connections_max: how many connections are served; further ones get error 0x32.
        idle_timeout_s: a connection of LWP that is silent for so long is closed.
        idle_timeout_other_s: the same for all other protocols. Their clients send no
            keepalives.
        handshake_timeout_s: how long a TLS handshake may take, and a client to present
            its token where one is needed.
        fetch_bytes_max: the most that one Fetch returns, apart from a single record
            that is larger.
        wait_s_max: the longest that a Fetch or Wait is held back for new data.
        fetch_rate_limit: Fetches per second and connection; 0 sets no limit.
        keepalive_rate: keepalives per second that are answered on a connection.
        keepalive_burst: how many are answered at once before that rate holds.
        dedup_window: how many batch ids of a connection are remembered, so that a
            repeated batch is stored once; 0 turns it off.
        memory_bytes_max: how much all connections together may hold of payloads that
            are not stored yet.
        write_queue_bytes_max: how much may be written and not yet durable before
            clients are asked to slow down.
        backpressure: whether the broker sends Backpressure frames.
        maintenance_interval_s: how often retention and expiry are applied.
        tls_enabled: speak TLS, and nothing else.
        tls_cert_path: the server's certificate chain, PEM.
        tls_key_path: its private key, PEM.
        tls_client_ca_path: the CA that client certificates are verified against.
        tls_require_client_cert: refuse clients without a certificate.
        tokens: the tokens that are accepted; none means that no token is needed.
        token_file: a file with one more token per line.
        metrics: `host:port` for Prometheus metrics; port 0 takes a free one.
        rustlog: `host:port` where RustLog is served; not at all if not given.
        kimberlite: the same for Kimberlite.
        tank: the same for TANK.
        fluvio: the same for Fluvio: where its SC is.
        fluvio_spu: where Fluvio's SPU is, which has the records; by default a free port
            of the same host.
        fluvio_advertise: `host:port` where clients find the SPU, if that is not where
            it listens: behind a proxy, or in a container.
        kimberlite_tenant: the tenant of Kimberlite that knows topics by their own
            names; those of tenant 42 are called `42:…`.
        query_memory_bytes_max: how much memory a query in SQL may take. It runs in a
            process of its own, and no more than two run at a time.
        query_timeout_s: how long a query may take.
        ui: `host:port` for the web console; port 0 takes a free one. True is a free
            port of the loopback interface.
        ui_admin: the console may also change things.
        topics_max: how many topics clients may make.
        partitions_max: how many partitions a topic may have.
        consumers_max: how many offsets of consumers are kept, over all topics.
        topics: topics that are made or changed at the start, by name. Each is a table
            with `auth` (LWP §7.2), `retention` (`max_age_secs`, `max_bytes`) and
            `partitions`, the number of them.
    """

    listen: str = field(default="127.0.0.1:0", metadata=ADDRESS)
    data_dir: str | None = None
    dialect: str = "lwp"
    checksum: str = "default"
    payload_validation: str = "strict"
    error_format: str = "json"
    # A record of 16 MiB (LWP §8.7) in a batch with others.
    payload_bytes_max: int = 16 * MIB + 64 * 1024
    connections_max: int = 1024
    idle_timeout_s: float = 30.0
    idle_timeout_other_s: float = 600.0
    handshake_timeout_s: float = 10.0
    fetch_bytes_max: int = 16 * MIB
    wait_s_max: float = 30.0
    fetch_rate_limit: float = 0.0
    keepalive_rate: float = 5.0
    keepalive_burst: int = 30
    dedup_window: int = 4096
    memory_bytes_max: int = 256 * MIB
    write_queue_bytes_max: int = 64 * MIB
    backpressure: bool = True
    maintenance_interval_s: float = 10.0
    tls_enabled: bool = False
    tls_cert_path: str | None = None
    tls_key_path: str | None = None
    tls_client_ca_path: str | None = None
    tls_require_client_cert: bool = False
    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_file: str | None = None
    metrics: str | None = field(default=None, metadata=ADDRESS)
    rustlog: str | None = field(default=None, metadata=ADDRESS)
    kimberlite: str | None = field(default=None, metadata=ADDRESS)
    tank: str | None = field(default=None, metadata=ADDRESS)
    fluvio: str | None = field(default=None, metadata=ADDRESS)
    fluvio_spu: str | None = field(default=None, metadata=ADDRESS)
    fluvio_advertise: str | None = field(default=None, metadata=ADDRESS)
    kimberlite_tenant: int = 1
    query_memory_bytes_max: int = 512 * MIB
    query_timeout_s: float = 10.0
    ui: str | bool | None = None
    ui_admin: bool = False
    topics_max: int = 10_000
    partitions_max: int = 256
    consumers_max: int = 100_000
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Not `super()`: a dataclass with slots is another class than the one here.
        StoreConfig.__post_init__(self)
        for name, choices in _CHOICES.items():
            check_choice(_of_broker(name), getattr(self, name), choices)
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name.endswith(_PATHS) and isinstance(value, os.PathLike):
                value = os.fspath(value)
                object.__setattr__(self, setting.name, value)
            _check_type(setting.name, str(setting.type), value)
            if value is not None and setting.metadata.get(_IS_ADDRESS):
                parse_address(value)
        object.__setattr__(self, "tokens", _check_tokens(self.tokens))
        self._check_ui()
        self._check_fluvio()
        if self.kimberlite_tenant >= _TENANT_LIMIT:
            _refuse("kimberlite_tenant", self.kimberlite_tenant, "below 2^32")
        if self.payload_bytes_max > self.batch_bytes_max:
            _refuse(
                "payload_bytes_max",
                self.payload_bytes_max,
                f"at most batch_bytes_max ({self.batch_bytes_max})",
            )
        self._check_tls()
        if not isinstance(self.topics, Mapping):
            _refuse("topics", self.topics, "a table, with one for each topic in it")
        for name, table in self.topics.items():
            check_topic_table(name, table, self.partitions_max)

    def _check_ui(self) -> None:
        if not isinstance(self.ui, str | bool | None):
            _refuse("ui", self.ui, "host:port, true or false")
        if self.ui_address is None and self.ui_admin:
            raise OptionError("ui_admin is set: set ui too, where the console listens")

    def _check_fluvio(self) -> None:
        for name in ("fluvio_spu", "fluvio_advertise"):
            if getattr(self, name) is not None and self.fluvio is None:
                raise OptionError(
                    f"{name} is set: set fluvio too, where the SC listens"
                )
        told = self.fluvio_advertise
        if told is not None and not parse_address(told).port:
            _refuse("fluvio_advertise", told, "host:port that clients can connect to")

    def _check_tls(self) -> None:
        given = [f.name for f in fields(self) if f.name.startswith("tls_")]
        given = [n for n in given if n != "tls_enabled" and getattr(self, n)]
        if given and not self.tls_enabled:
            _refuse("tls_enabled", False, f"true when {', '.join(given)} is set")
        if self.tls_enabled and not (self.tls_cert_path and self.tls_key_path):
            raise OptionError("TLS is enabled: set tls cert_path and key_path too")
        if self.tls_require_client_cert and not self.tls_client_ca_path:
            raise OptionError(
                "tls require_client_cert is set: set client_ca_path too, the CA that "
                "clients are verified against"
            )

    def address_of(self, protocol: str) -> Address | None:
        """Tell where a protocol is to be served; None if it is not.

        The setting of a protocol has its name; `listen` is that of LWP.
        """
        if protocol == "fluvio_spu" and self.fluvio and self.fluvio_spu is None:
            return replace(parse_address(self.fluvio), port=0)
        text = getattr(self, "listen" if protocol == LWP else protocol)
        return None if text is None else parse_address(text)

    @property
    def ui_address(self) -> Address | None:
        """Where the console listens; None without one."""
        if isinstance(self.ui, str):
            return parse_address(self.ui)
        return Address("127.0.0.1", 0) if self.ui else None

    @property
    def frame_checksum(self) -> str:
        """The checksum of frames: `crc32c`, `crc32`, or `auto`: the client's own."""
        if self.checksum != "default":
            return self.checksum
        return "crc32" if self.dialect == "plain" else "crc32c"

    @property
    def errors_as_text(self) -> bool:
        """Whether errors of LWP are bare texts, as they are in the plain dialect."""
        return self.error_format == "text" or self.dialect == "plain"

    def server_tls(self, topic_authorities: tuple[str, ...] = ()) -> ServerTls | None:
        """Give what a TLS server needs, None without TLS.

        Args:
            topic_authorities: CA files that single topics name besides.
        """
        if not self.tls_enabled:
            return None
        assert self.tls_cert_path and self.tls_key_path
        own = (self.tls_client_ca_path,) if self.tls_client_ca_path else ()
        return ServerTls(
            self.tls_cert_path,
            self.tls_key_path,
            (*own, *topic_authorities),
            self.tls_require_client_cert,
        )


def parse_retention(name: str, table: Mapping[str, Any]) -> Retention:
    """Read the `retention` table of a topic in the configuration.

    Raises:
        OptionError: for unknown keys and values that are not whole numbers.
    """
    keys = ("max_age_secs", "max_bytes")
    for key, value in table.items():
        if key not in keys or type(value) is not int or value >= 2**64:
            raise OptionError(
                f"topic {name!r}: retention {key} = {value!r}; there are "
                f"{' and '.join(keys)}, whole numbers of 64 bits"
            )
    return Retention(table.get(keys[0], 0), table.get(keys[1], 0))


def check_topic_table(name: str, table: Mapping[str, Any], partitions_max: int) -> None:
    """Check the table of a topic in the configuration, except for its rule.

    Raises:
        OptionError: with the topic and the key.
    """
    if not isinstance(name, str) or not isinstance(table, Mapping):
        raise OptionError(f"topic {name!r}: {table!r} is not a table with a name")
    for key, value in table.items():
        if key == "partitions":
            check_number(f"topic {name!r}: partitions", value, 1)
            if value > partitions_max:
                most = f"at most partitions_max ({partitions_max})"
                refuse_setting(f"topic {name!r}: partitions", value, most)
        elif key not in ("auth", "retention") or not isinstance(value, Mapping):
            raise OptionError(
                f"topic {name!r}: {key} = {value!r}; there are the tables auth and "
                "retention, and the number partitions"
            )
    parse_retention(name, table.get("retention", {}))


def _check_type(name: str, annotation: str, value: Any) -> None:
    """Hold a value to its type and range, as a file may have anything there."""
    if annotation == "bool" and type(value) is not bool:
        _refuse(name, value, "true or false")
    elif annotation in ("str", "str | None"):
        if not isinstance(value, str) and (value is not None or annotation == "str"):
            _refuse(name, value, "a text")
    elif name in _LOWEST:
        most = None if annotation == "int" else _FRACTION_MAX
        check_number(_of_broker(name), value, _LOWEST[name], most)


def _check_tokens(tokens: Any) -> tuple[str, ...]:
    # The values stay out of the text: they are secrets.
    listed = isinstance(tokens, list | tuple)
    if not listed or not all(isinstance(token, str) and token for token in tokens):
        raise OptionError("tokens: must be a list of texts that are not empty")
    return tuple(tokens)


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    refuse_setting(_of_broker(name), value, wanted)


def _of_broker(name: str) -> str:
    return f"broker setting {name}"


# The configuration file.

NAMES = tuple(setting.name for setting in fields(BrokerConfig))


def read_settings(path: Path) -> dict[str, Any]:
    """Read a configuration file as settings of a `BrokerConfig`.

    Raises:
        OptionError: it can't be read, or has an unknown key.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path}: could not be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: is not TOML: {error}") from error
    return parse_settings(document, where=str(path))


def parse_settings(document: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Turn a document into settings; see `read_settings`."""
    settings = dict(document)
    table = settings.pop("tls", {})
    if not isinstance(table, Mapping):
        raise OptionError(f"{where}: tls = {table!r}: must be a table, [tls]")
    settings.update({f"{_TLS}{key}": value for key, value in table.items()})
    for key in settings:
        check_name(key, where=where, spell=_spell)
    return settings


def check_name(key: str, *, where: str, spell: Callable[[str], str] = str) -> None:
    """Refuse an unknown setting, and name the one that is spelt most like it.

    Args:
        key: the name.
        where: who was given it.
        spell: says how names are written there.

    Raises:
        OptionError: there is no setting of that name.
    """
    if key in NAMES:
        return
    near = difflib.get_close_matches(key, NAMES, n=1)
    hint = f"did you mean {spell(near[0])}?" if near else "see docs/broker.md"
    raise OptionError(f"{where}: there is no setting {spell(key)}; {hint}")


def _spell(name: str) -> str:
    return f"[tls] {name[len(_TLS) :]}" if name.startswith(_TLS) else name
