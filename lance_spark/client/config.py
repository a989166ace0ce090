"""The settings that connections of every protocol have, and what they run on.

Settings are plain values, checked once, that can be pickled to executors. A `Runtime`
is the world around a client; tests bring their own.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from lance_spark.errors import OptionError
from lance_spark.net.address import Address, parse_addresses
from lance_spark.quantity import check_number, refuse_setting

if TYPE_CHECKING:
    from lance_spark.net.stream import Stream
    from lance_spark.net.tls import ClientTls

# A server that waits can't be told to wait longer than a u32 of milliseconds, and
# locks and polls take no more either.
DURATION_S_MAX = 1_000_000.0

_DURATIONS = (
    "connect_timeout_s",
    "request_timeout_s",
    "retry_timeout_s",
    "keepalive_interval_s",
    "backoff_base_s",
    "backoff_max_s",
)
_TEXTS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name", "auth_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """How to reach the servers, and how long to wait for them.

    Each protocol has a subclass that says what the settings mean there, as LWP's
    `ClientConfig` does, and sets the class variables.

    Raises:
        OptionError: a value can't be used.
    """

    # What the servers speak, and Spark's name of it.
    protocol: ClassVar[str]
    # Where a server listens that is named without a port.
    default_port: ClassVar[int]
    # The largest answer that the protocol can have, so that no setting refuses it.
    response_bytes_min: ClassVar[int] = 1

    servers: str
    tls: bool = False
    tls_ca: str | None = None
    # A PEM text may hold the key beside the certificate, so neither is ever shown.
    tls_cert: str | None = field(default=None, repr=False)
    tls_key: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    auth_token: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    retry_timeout_s: float = 120.0
    keepalive_interval_s: float = 10.0
    backoff_base_s: float = 0.1
    backoff_max_s: float = 30.0
    response_bytes_max: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        self._check_types()
        parse_addresses(self.servers, default_port=self.default_port)
        for name in _DURATIONS:
            _check_duration(name, getattr(self, name))
        if self.backoff_base_s > self.backoff_max_s:
            raise OptionError(
                f"backoff_base_s {self.backoff_base_s} is more than backoff_max_s "
                f"{self.backoff_max_s}; lower the one or raise the other"
            )
        least = self.response_bytes_min
        check_number("response_bytes_max", self.response_bytes_max, least)
        self._check_tls()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The servers, in the order in which they are tried."""
        return parse_addresses(self.servers, default_port=self.default_port)

    @property
    def finds_by_id(self) -> bool:
        """Whether the settings say which topic is meant, whatever it is called."""
        return False

    def describe_missing(self, topic: str) -> str:
        """Say that a topic does not exist."""
        return f"there is no topic {topic!r}"

    @property
    def tls_settings(self) -> ClientTls | None:
        """What the network layer needs for TLS; None without it."""
        if not self.tls:
            return None
        from lance_spark.net.tls import ClientTls

        return ClientTls(self.tls_ca, self.tls_cert, self.tls_key)

    def _check_types(self) -> None:
        if not isinstance(self.servers, str):
            refuse_setting("servers", self.servers, "a text")
        if not isinstance(self.tls, bool):
            refuse_setting("tls", self.tls, "True or False")
        for name in _TEXTS:
            value = getattr(self, name)
            # Not the value itself, which may be a secret.
            if value is not None and (not isinstance(value, str) or not value):
                raise OptionError(f"{name} has to be a text that is not empty")

    def _check_tls(self) -> None:
        given = [name for name in _TEXTS if name.startswith("tls_")]
        given = [name for name in given if getattr(self, name) is not None]
        if given and not self.tls:
            raise OptionError(
                f"{', '.join(given)} given without tls; set tls=True, or leave it out"
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise OptionError("tls_key given without tls_cert; give both or neither")


def _check_duration(name: str, value: float) -> None:
    # Not true of NaN either.
    if type(value) not in (int, float) or not 0 < value <= DURATION_S_MAX:
        wanted = f"a number of seconds above 0, at most {DURATION_S_MAX:.0f}"
        refuse_setting(name, value, wanted)


def _connect(*arguments: Any, **settings: Any) -> Stream:
    # Late, as some processes of Spark read settings and never connect.
    from lance_spark.net.connect import connect

    return connect(*arguments, **settings)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The network, the time and chance.

    Args:
        connect: makes streams, as `lance_spark.net.connect.connect` does.
        clock: a monotonic clock in seconds.
        pause: waits for an event, but not longer than so many seconds.
        random: gives numbers in [0, 1).
    """

    connect: Callable[..., Stream] = _connect
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[threading.Event, float], object] = threading.Event.wait
    random: Callable[[], float] = random.random
