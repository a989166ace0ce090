"""What a client takes from the world around it. Tests bring their own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lance_spark.net.address import Address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls import TlsContext


class Connect(Protocol):
    """Make a stream to an address, as `lance_spark.net.connect.connect` does."""

    def __call__(
        self,
        address: Address,
        *,
        deadline: Deadline,
        tls: TlsContext | None = None,
        server_name: str | None = None,
    ) -> Stream:
        """Connect, and do the TLS handshake if a context is given."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The network, the time and chance.

    Args:
        connect: makes streams.
        clock: a monotonic clock in seconds.
        pause: waits for an event, but not longer than so many seconds.
        random: gives numbers in [0, 1).
    """

    connect: Connect = connect
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[threading.Event, float], object] = threading.Event.wait
    random: Callable[[], float] = random.random
