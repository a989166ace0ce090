"""The driver of a standalone cluster, which is a server of Spark Connect, too.

    host.py MASTER

It says where the server is. Each line that it reads then is a JSON array, the name of a
module and what its `main` is given behind the session; it answers with whether that was
done, and what was returned or went wrong. It ends with its input.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tests.spark.engine.session import JAVA_OPTIONS

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Nothing runs before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    # A copy is made of a task that takes long when most of the others are done.
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.quantile": "0.75",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "1s",
    # The server. Its clients are on this machine, and need no token.
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def start_session(gateway: Any, master: str) -> SparkSession:
    """Start a driver, and Connect with it."""
    conf = SparkConf(loadDefaults=False).setAll(list(_SETTINGS.items()))
    conf = conf.setMaster(master).setAppName("lance-cluster")
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    session.sparkContext.setLogLevel("OFF")
    return session


def answer(session: SparkSession, line: str) -> tuple[bool, Any]:
    """Run what a line asks for."""
    name, *arguments = json.loads(line)
    try:
        return True, importlib.import_module(name).main(session, *arguments)
    except Exception:
        return False, traceback.format_exc()


def main(master: str) -> None:
    """Start everything, and answer."""
    launch: Any = launch_gateway
    conf = SparkConf(loadDefaults=False).setAll(list(_SETTINGS.items()))
    gateway = launch(conf)
    session = start_session(gateway, master)
    services = gateway.jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")
    say(f"connect sc://127.0.0.1:{service.localPort()}")
    for number, line in enumerate(sys.stdin, 1):
        say(f"answer {number} {json.dumps(answer(session, line))}")


def say(line: str) -> None:
    """Put a line into the log, whatever others have written there."""
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
