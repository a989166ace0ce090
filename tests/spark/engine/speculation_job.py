"""The driver of jobs of which a task is run twice at a time; prints JSON.

    speculation_job.py SERVERS DIRECTORY

Spark runs a copy only on another host than the task's own. So there is a cluster of
two: loopback has many addresses. Master and workers are in the driver's JVM, as those
of `local-cluster` are, which has one host only; executors are processes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tests.spark.engine.session import JAVA_OPTIONS
from tests.spark.troubled import Trouble, TroubledSource

ROWS = 400
PARTITIONS = 4
DELIVERIES = ("exactly-once", "at-least-once")

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.master.rest.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    # Nothing runs before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    # A copy is made soon after most of the tasks are done.
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


def start_session(directory: Path) -> SparkSession:
    """Start master and workers, each on a host of its own, and a session on them."""
    conf = SparkConf(loadDefaults=False).setAll(list(_SETTINGS.items()))
    launch: Any = launch_gateway
    gateway = launch(conf)
    jvm = gateway.jvm
    settings = jvm.org.apache.spark.SparkConf()
    for name, value in _SETTINGS.items():
        settings.set(name, value)
    deploy = jvm.org.apache.spark.deploy
    started = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, settings)
    master = started._1().address().toSparkURL()
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = master
    some, none = jvm.scala.Option.apply, jvm.scala.Option.empty()
    for number in (1, 2):
        where = f"127.0.0.{number}", 0, 0
        size = 1, 1024
        rest = masters, str(directory), some(number), settings, none
        deploy.worker.Worker.startRpcEnvAndEndpoint(*where, *size, *rest)
    conf = conf.setMaster(master).setAppName("lance-speculation")
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def main(servers: str, directory: Path) -> list[str]:
    """Write the same rows with each delivery; give the topics."""
    spark = start_session(directory)
    try:
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(TroubledSource)
        rows = spark.range(0, ROWS, numPartitions=PARTITIONS)
        for delivery in DELIVERIES:
            met = str(directory / delivery)
            trouble = Trouble(what="meet", ready=met, at_end=True)
            options = {"delivery": delivery, "servers": servers, "topic": delivery}
            writer = rows.selectExpr("string(id) value").write.format("troubled")
            writer.mode("append").options(**options, trouble=str(trouble)).save()
    finally:
        spark.stop()
    return list(DELIVERIES)


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(main(sys.argv[1], Path(sys.argv[2])))}\n")
