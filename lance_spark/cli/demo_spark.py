"""The demo's Spark: a process of its own, because the command line knows no Spark."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable

from lance_spark.cli.demo_broker import held_signals
from lance_spark.cli.demo_live import LiveTable
from lance_spark.errors import LanceError

_MODULE = "lance_spark.spark.demo"
# Starting Spark alone takes ten seconds on a small machine.
_SPARK_S = 300.0


def has_spark() -> bool:
    """Tell whether Spark is installed."""
    return importlib.util.find_spec("pyspark") is not None


def run_spark(
    servers: str,
    topic: str,
    say: Callable[[str, str], None],
    *,
    module: str = _MODULE,
    timeout_s: float = _SPARK_S,
) -> None:
    """Read a topic with Spark and write to another, then stream; tell each step.

    Args:
        servers: the broker's address.
        topic: what to read.
        say: tells a step and what came of it.
        module: what is run.
        timeout_s: when to give up.

    Raises:
        LanceError: it did not go well.
    """
    with held_signals():
        child = subprocess.Popen(
            [sys.executable, "-m", module, servers, topic],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Spark tells much about itself, even when all is well.
            stderr=subprocess.DEVNULL,
            text=True,
        )
    watch = threading.Timer(timeout_s, child.kill)
    watch.daemon = True
    live, failure = LiveTable(), ""
    try:
        watch.start()
        assert child.stdout is not None
        for line in child.stdout:
            step, _, text = line.rstrip("\n").partition("\t")
            if step == "live":
                live.show(json.loads(text))
                continue
            live.leave()
            if step == "error":
                failure = text
            else:
                say(step, text)
        code = child.wait()
    finally:
        live.leave()
        watch.cancel()
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if code != 0:
        reason = failure or f"it ended with {code}"
        raise LanceError(
            f"the demo's Spark: {reason}; to see all that Spark says, run "
            f"python -m {module} with a broker's address and a topic"
        )
