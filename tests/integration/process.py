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
from typing import Any

START_S = 60.0
STOP_S = 30.0
# Where it is not, memory and threads of another process can't be told.
HAS_PROC = Path("/proc/self/status").exists()

_READY = re.compile(r"^lance-spark broker listening on (\S+), data in (.*)$")


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write settings of a `BrokerConfig` as the configuration file has them."""
    lines, tls, topics = [], [], []
    for name, value in settings.items():
        if name == "topics":
            for topic, tables in value.items():
                for table, keys in tables.items():
                    topics.append(f"[topics.{json.dumps(topic)}.{table}]")
                    topics += [f"{k} = {json.dumps(v)}" for k, v in keys.items()]
        elif name.startswith("tls_"):
            tls.append(f"{name[4:]} = {json.dumps(value)}")
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    text = "\n".join([*lines, "[tls]", *tls, *topics])
    path.write_text(f"{text}\n", encoding="utf-8")


class BrokerProcess:
    """`lance-spark broker` as a child; its address stays the same over restarts."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.data_dir = data_dir
        self._settings = settings
        self._listen = "127.0.0.1:0"
        self._child: subprocess.Popen[str] | None = None
        self._config = data_dir.with_name(f"{data_dir.name}.toml")
        self._log = data_dir.with_name(f"{data_dir.name}.stderr")

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self._listen

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._child is not None, "the broker is not running"
        return self._child.pid

    @property
    def rss_bytes(self) -> int:
        """How much memory it has in use."""
        return read_status(self.pid, "VmRSS") * 1024

    @property
    def peak_bytes(self) -> int:
        """The most memory that it had in use since the last `reset_peak`."""
        return read_status(self.pid, "VmHWM") * 1024

    def reset_peak(self) -> None:
        """Start to look for the most memory anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="utf-8")

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return read_status(self.pid, "Threads")

    @property
    def said(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def start(self) -> BrokerProcess:
        """Start it; returns when clients can connect."""
        assert self._child is None, "the broker is running already"
        write_settings(self._config, self._settings)
        options = {
            "--config": self._config,
            "--data-dir": self.data_dir,
            "--listen": self._listen,
        }
        command = [sys.executable, "-m", "lance_spark", "broker"]
        for option, value in options.items():
            command += [option, str(value)]
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._child = child
        watchdog = threading.Timer(START_S, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            found = _READY.match(child.stdout.readline().rstrip("\n"))
            if found is None:
                self.kill()
                raise AssertionError(f"the broker did not start: {self.said}")
        finally:
            watchdog.cancel()
            watchdog.join()
        self._listen = found.group(1)
        return self

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to stop; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        child.send_signal(number)
        try:
            return child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise AssertionError("the broker does not stop") from None
        finally:
            assert child.stdout is not None
            child.stdout.close()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        code = self.stop()
        assert code == 0, f"exit code {code}: {self.said}"


def read_status(pid: int, field: str) -> int:
    """Read a number of /proc/PID/status."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    for line in status.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(f"no {field} of process {pid}")


def count_files(pid: int) -> int:
    """Count the open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
