"""`lance-spark broker`: serve a data directory until a signal comes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from lance_spark.broker import BrokerConfig, EmbeddedBroker
from lance_spark.broker.config import DEFAULT_PORT, LWP, read_settings
from lance_spark.cli.options import (
    ADDRESS,
    CHECKSUMS,
    PATH,
    SIZE,
    option,
    shown_log,
)
from lance_spark.errors import StoreError
from lance_spark.wire.lwp import PAYLOAD_BYTES_FIRST

# What holds where neither a flag nor the file says something else; all other defaults
# are those of `BrokerConfig`.
DEFAULTS = {"listen": f"127.0.0.1:{DEFAULT_PORT}", "data_dir": "lance-data"}

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long one thread computes while another one could; the default is fifty times that.
# An append waits for the interpreter some twenty times, and each time so long.
_SWITCH_S = 0.0001
# Pieces of memory from this size on are given back to the system when they are freed,
# and so is what has become free at the end of a thread's memory. The buffer of a batch
# of usual size is smaller: to get it anew for each would cost half as much as all that
# is done with the batch.
_MAPPED_BYTES = 2 * PAYLOAD_BYTES_FIRST
_TRIMMED_BYTES = 2 * _MAPPED_BYTES
# The numbers of these settings in malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@click.command("broker")
@option(
    *("--listen", ADDRESS),
    f"Where to listen; port 0 takes a free one.  [default: {DEFAULTS['listen']}]",
)
@option(
    *("--data-dir", str),
    f"Where the data is; made if missing.  [default: ./{DEFAULTS['data_dir']}]",
    metavar="PATH",
)
@option(
    "--config config_file", PATH, "A TOML file with any setting; flags win over it."
)
@option(
    *("--checksum", CHECKSUMS),
    "Checksum of frames; auto follows each client.  "
    "[default: crc32c, or crc32 if plain]",
)
@option(
    *("--fsync", ["none", "batch", "always"]),
    "What an acknowledgement waits for.  [default: batch]",
)
@option("--segment-bytes", SIZE, "Size of a segment.  [default: 64m]")
@option(
    *("--dialect", ["lwp", "plain"]),
    "plain: as the LANCE server in the field behaves.  [default: lwp]",
)
@option("--rustlog", ADDRESS, "Serve RustLog's protocol there, on the same topics.")
@option(
    "--kimberlite", ADDRESS, "Serve Kimberlite's protocol there, on the same topics."
)
@option("--tank", ADDRESS, "Serve TANK's protocol there, on the same topics.")
@option("--fluvio", ADDRESS, "Serve Fluvio's protocol there: the address of its SC.")
@option(
    *("--fluvio-spu", ADDRESS),
    "Where Fluvio's SPU is.  [default: a free port of the same host]",
)
@option(
    *("--fluvio-advertise", ADDRESS),
    "Where Fluvio's clients find the SPU, if that is another address.",
)
@option("--metrics", ADDRESS, "Serve Prometheus metrics there.")
@option("--ui", ADDRESS, "Serve the web console there.")
@option(
    *("--ui-admin", bool, "Let the console change things, not only show them."),
    default=None,
)
@option("--verbose -v", bool, "Log to stderr what happens.")
def command(config_file: Path | None, verbose: bool, **flags: Any) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which stop it cleanly.

    A second signal does not wait for that. One line on standard output says when and
    where clients can connect; warnings are on standard error.
    """
    config = make_config(config_file, flags)
    path = None if config.data_dir is None else Path(config.data_dir)
    if path is not None and path.exists() and not path.is_dir():
        raise StoreError(f"{path}: not a directory: a broker keeps its data in one")
    _prepare_process()
    with shown_log(verbose=verbose), _stop_signals() as wait:
        with EmbeddedBroker(config) as broker:
            where = f"{broker.address}, data in {config.data_dir}"
            print(f"lance-spark broker listening on {where}", flush=True)
            for protocol, address in broker.addresses.items():
                if protocol != LWP:
                    print(f"{protocol} on {address}", flush=True)
            if broker.metrics_address is not None:
                print(f"metrics on http://{broker.metrics_address}/metrics", flush=True)
            if broker.ui_url is not None:
                print(f"console on {broker.ui_url}", flush=True)
            wait()
        print("stopped", flush=True)


def _prepare_process() -> None:
    """Make ready for many threads; this process does nothing else."""
    # A thread that has an answer ready waits shorter for those that compute.
    sys.setswitchinterval(_SWITCH_S)
    # Without this, glibc keeps what a thread has freed for that thread once it has seen
    # a large piece: each of a thousand sessions would keep the largest payload that it
    # has ever decompressed. Other systems have no such call, and no such habit.
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIMMED_BYTES)


def make_config(config_file: Path | None, flags: dict[str, Any]) -> BrokerConfig:
    """Put the settings together: flags before the file before the defaults.

    Raises:
        OptionError: the file or a setting can't be used.
    """
    read = {} if config_file is None else read_settings(config_file)
    given = {name: value for name, value in flags.items() if value is not None}
    return BrokerConfig(**{**DEFAULTS, **read, **given})


@contextmanager
def _stop_signals() -> Iterator[Callable[[], None]]:
    """Turn signals into something that can be waited for.

    Yields:
        A function that waits for the first signal, which may have come before. The
        second one ends the process.
    """
    # Python writes each signal to this pipe, whichever thread it hits. A handler that
    # sets an event could hang: it may run while the main thread holds the event's lock.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            os._exit(128 + number)

    def wait() -> None:
        while os.read(reading, 1)[0] not in _SIGNALS:
            pass  # A signal that another part of the program handles.

    usual_wakeup = signal.set_wakeup_fd(writing)
    # A shell ignores SIGINT for what runs in the background of a script, so that Ctrl-C
    # ends only the foreground. The broker keeps to that.
    usual = {
        number: signal.signal(number, handle)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield wait
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(usual_wakeup)
        os.close(reading)
        os.close(writing)
