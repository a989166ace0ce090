"""Programs of Spark that run in processes of their own, and are ended whatever happens.

A daemon is given free ports by the system and says in its log which ones it has.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark

from tests.spark.engine import host
from tests.spark.engine.session import JAVA_OPTIONS, make_environment

# Starting a JVM takes seconds; on a loaded machine, many.
START_S = 120.0
STOP_S = 30.0
SCRIPT_S = 300.0

SPARK_HOME = Path(pyspark.__file__).parent
_SPARK_CLASS = str(SPARK_HOME / "bin" / "spark-class")

# The workers are on hosts of their own, as Spark runs a copy of a task only on another
# host than the task's own; loopback has many addresses.
_HOSTS = ("127.0.0.1", "127.0.0.2")
# Twice what is used, so that an executor can be replaced before its end is noticed.
_WORKER_SIZE = ("--cores", "2", "--memory", "2g")


class Daemon:
    """A child with a log, in a process group of its own with all that it starts."""

    def __init__(
        self,
        name: str,
        command: list[str],
        directory: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command,
                cwd=directory,
                env={**_make_variables(directory), **(variables or {})},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def say(self, line: str) -> None:
        """Give it a line to read."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n".encode())
        self._child.stdin.flush()

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> str:
        """Wait until its log has a line, and give the group of the pattern."""
        deadline = time.monotonic() + timeout_s
        while True:
            is_over = self._child.poll() is not None
            found = re.search(pattern, self.said)
            if found is not None:
                return found.group(1)
            assert not is_over, f"{self.name} has ended:\n{self.said}"
            in_time = time.monotonic() < deadline
            assert in_time, (
                f"not in {timeout_s} s: {pattern} of {self.name}\n{self.said}"
            )
            time.sleep(0.02)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.wait(STOP_S)


class Cluster:
    """A standalone cluster with two workers, and a driver that serves Connect, too.

    Args:
        host: the driver: `host.py`.
    """

    def __init__(self, host: Daemon) -> None:
        self._host = host
        self._asked = 0
        # What clients in other processes are made with.
        self.connect = host.wait_for(r"\nconnect (sc://\S+)\n")

    def run(self, job: ModuleType, *arguments: str) -> Any:
        """Have its driver run the `main` of a module; give what it returns."""
        self._asked += 1
        self._host.say(json.dumps([job.__name__, *arguments]))
        answer = rf"\nanswer {self._asked} (.*)\n"
        is_done, result = json.loads(self._host.wait_for(answer, SCRIPT_S))
        assert is_done, f"{job.__name__}:\n{result}\n{self._host.said}"
        return result


@contextmanager
def run_cluster(directory: Path) -> Iterator[Cluster]:
    """Run a master, two workers and a driver, each in a process of its own."""
    variables = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} -Dspark.master.rest.enabled=false",
    }
    deploy, ports = "org.apache.spark.deploy", ("--port", "0", "--webui-port", "0")
    command = [_SPARK_CLASS, f"{deploy}.master.Master", "--host", _HOSTS[0], *ports]
    with contextlib.ExitStack() as stack:
        daemon = Daemon("master", command, directory, variables)
        master = stack.enter_context(daemon).wait_for(
            r"Starting Spark master at (spark://\S+)"
        )
        for name in _HOSTS:
            work = [*_WORKER_SIZE, "--work-dir", str(directory / name), master]
            command = [_SPARK_CLASS, f"{deploy}.worker.Worker", "--host", name, *ports]
            worker = Daemon(f"worker-{name}", [*command, *work], directory, variables)
            stack.enter_context(worker)
        command = [sys.executable, str(Path(host.__file__)), master]
        # It waits for the workers itself.
        driver = stack.enter_context(Daemon("driver", command, directory))
        yield Cluster(driver)


def run_script(script: Path, *arguments: str, directory: Path) -> str:
    """Run a driver or a client to its end, and give what it has printed."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=directory,
        env=_make_variables(directory),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
    )
    assert done.returncode == 0, f"{script.name}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _make_variables(directory: Path) -> dict[str, str]:
    """Make the environment of a child; its temporary files are in the directory."""
    mine = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(directory / "local")}
    return {**os.environ, **make_environment(), **mine}
