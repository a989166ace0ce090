"""A broker in a process of its own, which tests can kill and start again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_spark.broker.config import LWP
from lance_spark.broker.embedded import PROTOCOLS
from lance_spark.errors import LanceError

if TYPE_CHECKING:
    from typing_extensions import Self

# A busy machine takes its time to start a process.
_START_S = 60.0
_STOP_S = 30.0
# What the child runs. Its standard input is a pipe that only its parent writes to: the
# pipe ends when the parent does, also one that is killed, and so does the child.
_PROGRAM = """
import os, sys, threading
from lance_spark.cli.main import main

end_with_parent = lambda: os.read(0, 1) or os.kill(os.getpid(), 9)
threading.Thread(target=end_with_parent, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""
_READY = re.compile(r"^lance-spark broker listening on (\S+), data in ")
_SERVED = re.compile(r"^(\S+) on (\S+)$")


class BrokerProcess:
    """`lance-spark broker` as a child; its addresses stay the same over restarts.

    It ends with the process that started it, also if that is killed. Files with its
    settings and with its standard error are put beside the data directory.

    Args:
        data_dir: the data directory.
        settings: those of `BrokerConfig`, by name.

    Attributes:
        address: where clients connect to, known once it has started.
    """

    def __init__(self, data_dir: str | Path, **settings: Any) -> None:
        self.data_dir = data_dir = Path(data_dir)
        self._settings = settings
        self.address = str(settings.pop("listen", "127.0.0.1:0"))
        self._protocols = [name for name in PROTOCOLS if settings.get(name)]
        self._child: subprocess.Popen[str] | None = None
        self._config = data_dir.with_name(f"{data_dir.name}.toml")
        self._log = data_dir.with_name(f"{data_dir.name}.stderr")

    def address_of(self, protocol: str) -> str:
        """Give `host:port` that clients of a protocol connect to.

        Raises:
            LanceError: it does not serve that protocol.
        """
        if protocol == LWP:
            return self.address
        if protocol not in self._protocols:
            raise LanceError(f"the broker's process does not serve {protocol!r}")
        return str(self._settings[protocol])

    @property
    def is_running(self) -> bool:
        """Whether it is started and not stopped or killed."""
        return self._child is not None

    @property
    def pid(self) -> int:
        """The process that runs now.

        Raises:
            LanceError: there is none.
        """
        if self._child is None:
            raise LanceError("the broker's process is not running: start it first")
        return self._child.pid

    @property
    def said(self) -> str:
        """What it has written to standard error."""
        if not self._log.exists():
            return ""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def start(self) -> Self:
        """Start it; returns when clients can connect.

        Raises:
            LanceError: it runs already, or ended instead of starting.
        """
        if self._child is not None:
            raise LanceError(f"the broker's process is running already: {self.pid}")
        self._config.parent.mkdir(parents=True, exist_ok=True)
        write_settings(self._config, self._settings)
        command = [sys.executable, "-c", _PROGRAM, "broker"]
        command += ["--config", str(self._config), "--data-dir", str(self.data_dir)]
        command += ["--listen", self.address]
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent, which ends it then.
            )
        self._child = child
        # One that hangs is killed, which ends the wait for its words.
        watchdog = threading.Timer(_START_S, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            found = _READY.match(child.stdout.readline())
            if found is None:
                self.kill()  # All that it said is in the file then.
                raise LanceError(f"the broker's process did not start: {self.said}")
            self.address = found[1]
            # It names the others next, in lines of their own. The next start takes the
            # same ports.
            for _ in self._protocols:
                served = _SERVED.match(child.stdout.readline())
                if served is None:
                    self.kill()
                    raise LanceError(f"the broker's process did not start: {self.said}")
                self._settings[served[1]] = served[2]
        except BaseException:
            # Ctrl-C, too: a `with` that was not entered does not end it.
            self.kill()
            raise
        finally:
            watchdog.cancel()
            watchdog.join(_STOP_S)
        return self

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to stop; return its exit code.

        Raises:
            LanceError: it does not stop, and was killed.
        """
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        with child:  # Its end closes the pipes.
            child.send_signal(number)
            try:
                return child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(_STOP_S)
                text = f"the broker's process does not stop in {_STOP_S:.0f} s"
                raise LanceError(f"{text}: {self.said}") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        code = self.stop()
        if code and error is None:
            raise LanceError(f"the broker's process ended with {code}: {self.said}")

    def __repr__(self) -> str:
        state = f"process {self.pid}" if self.is_running else "not running"
        return f"<BrokerProcess at {self.address}, {state}>"


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write settings of a `BrokerConfig` as the configuration file has them."""
    lines = [
        # Settings of TLS are in a table of their own.
        f"{re.sub('^tls_', 'tls.', name)} = {_to_toml(value)}\n"
        for name, value in settings.items()
    ]
    path.write_text("".join(lines), encoding="utf-8")


def _to_toml(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_to_toml(key)} = {_to_toml(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    # Texts, numbers, switches and lists are written the same way in JSON, apart from
    # characters that JSON writes as two halves. What else there is are paths.
    return json.dumps(value, ensure_ascii=False, default=os.fspath)
