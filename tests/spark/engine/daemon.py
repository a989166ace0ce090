"""Programs of Spark that run in processes of their own, and are ended whatever happens.

A daemon is given free ports by the system and says in its log which ones it has.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.spark.engine.session import JAVA_OPTIONS, MASTER, make_environment

# Starting a JVM takes seconds; on a loaded machine, many.
START_S = 120.0
STOP_S = 30.0
SCRIPT_S = 300.0

SPARK_HOME = Path(pyspark.__file__).parent
_SPARK_CLASS = str(SPARK_HOME / "bin" / "spark-class")
_SPARK_SUBMIT = str(SPARK_HOME / "bin" / "spark-submit")


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
                env=_make_variables(directory, variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Wait until its log has a line, and give the group of the pattern."""
        deadline = time.monotonic() + START_S
        while True:
            is_over = self._child.poll() is not None
            found = re.search(pattern, self.said)
            if found is not None:
                return found.group(1)
            assert not is_over, f"{self.name} has ended:\n{self.said}"
            in_time = time.monotonic() < deadline
            assert in_time, f"not in {START_S} s: {pattern} of {self.name}\n{self.said}"
            time.sleep(0.02)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(STOP_S)


@contextmanager
def run_cluster(directory: Path) -> Iterator[str]:
    """Run a master and two workers of one core each; give the master's address."""
    variables = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} -Dspark.master.rest.enabled=false",
    }
    network = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    deploy = "org.apache.spark.deploy"
    command = [_SPARK_CLASS, f"{deploy}.master.Master", *network]
    with (
        contextlib.ExitStack() as stack,
        Daemon("master", command, directory, variables) as master,
    ):
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")
        size = ["--cores", "1", "--memory", "1g"]
        command = [_SPARK_CLASS, f"{deploy}.worker.Worker", *network, *size]
        workers = []
        for name in ("worker-1", "worker-2"):
            work = ["--work-dir", str(directory / name), address]
            worker = Daemon(name, [*command, *work], directory, variables)
            workers.append(stack.enter_context(worker))
        for worker in workers:
            worker.wait_for("(Successfully registered with master)")
        yield address


@contextmanager
def run_connect(directory: Path) -> Iterator[str]:
    """Run a server of Spark Connect; give the address that a session is made with."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    command = [_SPARK_SUBMIT, "--master", MASTER]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with Daemon("connect", command, directory) as server:
        address = server.wait_for(r"Spark Connect server started at: (\S+)")
        yield f"sc://{address}"


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


def _make_variables(
    directory: Path, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Make the environment of a child; its temporary files are in the directory."""
    mine = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(directory / "local")}
    return {**os.environ, **make_environment(), **mine, **(more or {})}
