"""What LWP can do, and how its servers are reached.

Every process that Spark starts reads this, also those that never connect: so nothing of
the protocol's wire is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lance_spark.client.config import ConnectionConfig
from lance_spark.client.driver import Traits
from lance_spark.errors import OptionError
from lance_spark.quantity import refuse_setting

TRAITS = Traits(
    "lance",
    "bytes",
    "located",
    columns=("topic", "offset", "type", "key", "value", "timestamp"),
    waits=True,
    compressions=("none", "lz4"),
    has_stages=True,
    # A header, and no value.
    record_units_min=5,
    split_units=64 * 1024 * 1024,
)
# LWP §1.2.
DEFAULT_PORT = 1992
CHECKSUMS = ("crc32c", "crc32", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(ConnectionConfig):
    """How to reach the servers, and how long to wait for them.

    Args:
        servers: addresses as `host:port`, separated by commas, tried in order.
        checksum: `crc32c` (LWP §9), `crc32` (the server in the field) or `auto`.
        tls: encrypt; the `tls_*` settings are a path or the PEM text itself.
        tls_ca: who signs the servers' certificates; the system's list if not given.
        tls_cert: our own certificate, for servers that ask for one.
        tls_key: its key; not needed if `tls_cert` holds it.
        tls_server_name: the name in the servers' certificates, if not the host.
        auth_token: shown to servers that ask for one.
        connect_timeout_s: for a connection up to its first answer.
        request_timeout_s: for the answer to one request.
        retry_timeout_s: for one call with everything that is tried again.
        keepalive_interval_s: silence after which a keepalive is sent (LWP §2.3).
        backoff_base_s: half of the first delay before a retry (LWP §17.6).
        backoff_max_s: the longest delay, not counting its jitter.
        response_bytes_max: the largest answer that is accepted.

    Raises:
        OptionError: a value can't be used.
    """

    protocol: ClassVar[str] = "lance"
    default_port: ClassVar[int] = DEFAULT_PORT
    # The largest value of a record, and room for what is around it.
    response_bytes_min: ClassVar[int] = 16 * 1024 * 1024 + 64 * 1024

    servers: str = f"127.0.0.1:{DEFAULT_PORT}"
    checksum: str = "crc32c"

    def __post_init__(self) -> None:
        if not isinstance(self.checksum, str):
            refuse_setting("checksum", self.checksum, "a text")
        if self.checksum not in CHECKSUMS:
            raise OptionError(
                f"checksum {self.checksum!r} is unknown; use crc32c, crc32 or auto"
            )
        # With slots, `super()` without arguments means a class that is replaced.
        ConnectionConfig.__post_init__(self)


# By the name that all protocols have it.
Config = ClientConfig
