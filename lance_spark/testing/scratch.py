"""Brokers for tests: fresh ones, whose data goes with them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lance_spark.broker import BrokerConfig, EmbeddedBroker
from lance_spark.broker.access import read_tokens
from lance_spark.broker.config import check_name
from lance_spark.client import LanceClient
from lance_spark.errors import OptionError
from lance_spark.testing.faults import Faults, ScratchDisk
from lance_spark.testing.process import BrokerProcess
from lance_spark.testing.relay import Relay
from lance_spark.testing.topic import ScratchTopic

# Making a store syncs the disk, which is most of what a small test would wait for.
_MEMORY = Path("/dev/shm")
# Containers often have 64 MB there, which a test may well fill.
_MEMORY_BYTES_MIN = 512 * 1024 * 1024
# A kit's client waits no longer for a broker that is gone.
_PATIENCE_S = 60.0


class ScratchBroker:
    """A broker for one test: its address, its topics and its faults.

    `run_broker` and `run_broker_process` make one.

    Args:
        broker: what serves.
        relay: what clients connect to in its place, if anything.
        faults: what can go wrong with it.
        access: options that clients need, as Spark spells them.

    Attributes:
        address: `host:port` that clients connect to.
        direct_address: `host:port` of the broker itself, where no fault of the network
            is met.
        client: a client of the broker itself, which is closed with it.
    """

    def __init__(
        self,
        broker: EmbeddedBroker | BrokerProcess,
        *,
        relay: Relay | None,
        faults: Faults,
        access: Mapping[str, str],
    ) -> None:
        self.broker = broker
        self.faults = faults
        self.direct_address = broker.address
        self.address = broker.address if relay is None else relay.address
        self._access = dict(access)
        names: Any = {_CLIENT_NAMES[name]: text for name, text in access.items()}
        # Connected to the broker itself, when it is first used.
        self.client = LanceClient(
            self.direct_address, retry_timeout_s=_PATIENCE_S, **names
        )

    @property
    def options(self) -> dict[str, str]:
        """What a Spark reader or writer needs to connect."""
        return {"servers": self.address, **self._access}

    def topic(self, name: str) -> ScratchTopic:
        """Give a topic by its name; it is created when it is first filled."""
        return ScratchTopic(self, name)

    def close(self) -> None:
        """End all faults and close the kit's client; the broker goes on."""
        try:
            self.faults.clear()
        finally:
            self.client.close()

    def __repr__(self) -> str:
        return f"<ScratchBroker at {self.address}>"


# Names of options that clients need, as Spark spells them and as the client does.
_CLIENT_NAMES = {"authToken": "auth_token", "checksum": "checksum"}


def run_broker(
    *, relay: bool = True, **settings: Any
) -> AbstractContextManager[ScratchBroker]:
    """Run a broker in threads of this process, for as long as a `with` block.

    Args:
        relay: put a relay between it and its clients, which faults of the network
            need.
        settings: those of `BrokerConfig`, by name.

    Raises:
        OptionError: a setting is unknown or can't be used.
    """
    disk = ScratchDisk()
    return _run(partial(EmbeddedBroker, files=disk), relay, settings, disk=disk)


def run_broker_process(
    *, relay: bool = True, **settings: Any
) -> AbstractContextManager[ScratchBroker]:
    """Run a broker in a process of its own, which can be killed.

    Args:
        relay: put a relay between it and its clients, which faults of the network
            need.
        settings: those of `BrokerConfig`, by name.

    Raises:
        OptionError: a setting is unknown or can't be used.
        LanceError: it does not start, or ended by itself.
    """
    return _run(BrokerProcess, relay, settings)


@contextmanager
def _run(
    make: Callable[..., EmbeddedBroker | BrokerProcess],
    has_relay: bool,
    settings: Mapping[str, Any],
    *,
    disk: ScratchDisk | None = None,
) -> Iterator[ScratchBroker]:
    where = _MEMORY if _has_room(_MEMORY) else None
    with (
        tempfile.TemporaryDirectory(prefix="lance-test-", dir=where) as directory,
        ExitStack() as stack,
    ):
        given = {"fsync": "none", "data_dir": f"{directory}/data", **settings}
        access = _find_access(given)
        broker = make(**given)
        stack.enter_context(broker)
        relay = stack.enter_context(Relay(broker.address)) if has_relay else None
        process = broker if isinstance(broker, BrokerProcess) else None
        faults = Faults(relay=relay, disk=disk, process=process)
        scratch = ScratchBroker(broker, relay=relay, faults=faults, access=access)
        stack.callback(scratch.close)
        yield scratch


def _has_room(directory: Path) -> bool:
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        return False
    return shutil.disk_usage(directory).free >= _MEMORY_BYTES_MIN


def _find_access(settings: Mapping[str, Any]) -> dict[str, str]:
    """Tell which options clients of a broker with these settings need."""
    # Before any process is started.
    for name in settings:
        check_name(name, where="run_broker")
    config = BrokerConfig(**settings)
    if config.tls_enabled:
        raise OptionError(
            "tls_enabled: brokers of the testing kit speak no TLS; use EmbeddedBroker "
            "for a test of certificates"
        )
    access = {}
    tokens = read_tokens(config)
    if tokens:
        access["authToken"] = tokens[0]
    if config.frame_checksum == "crc32":
        access["checksum"] = config.frame_checksum
    return access
