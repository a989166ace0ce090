"""What `benchmarks.kafka` needs of Kafka: its packages, a PySpark with them, a broker.

Ivy, which is part of PySpark, fetches the packages from Maven Central. Everything is
kept in .build/kafka, so that a second run downloads nothing. What this machine lacks
ends the program with one line that says so.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".build" / "kafka"

_SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# The newest PySpark that has a Kafka source on Maven Central, if the installed one has
# none. And what stands in where a mirror has no token provider of that version: Spark
# asks it for delegation tokens, of which there are none here.
_PYSPARK = "4.2.0"
_TOKENS_VERSION = "4.1.0-preview1"
BROKER_VERSION = "4.1.1"
# The second is what Kafka's own distribution logs with; it prints errors only.
_BROKER = (
    f"org.apache.kafka:kafka_2.13:{BROKER_VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
# As kafka-server-start.sh starts it.
_BROKER_JVM = (
    *("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
# Settings without which one process is not a cluster. Files of deleted topics go at
# once, as each write that is measured has a topic of its own.
_BROKER_SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={directory}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
log.segment.delete.delay.ms=1000
"""
# Runs a program until standard input ends, which it does with its parent at the latest.
_KEEPER = """\
exec 3<&0
"$@" 3<&- & child=$!
{ cat <&3 >/dev/null; kill "$child"; } & wait "$child"
"""
_DOWNLOAD_S = 1800.0
_START_S = 120.0
_STOP_S = 60.0


@dataclass(frozen=True)
class Kafka:
    """What was found.

    Attributes:
        java: the command.
        pyspark: the version that the source belongs to.
        source_jars: for the class path of Spark.
        broker_jars: the class path of the broker.
    """

    java: str
    pyspark: str
    source_jars: tuple[Path, ...]
    broker_jars: tuple[Path, ...]


def prepare(settings: Path | None = None) -> Kafka:
    """Fetch what is not there yet, and have `import pyspark` find the right version.

    Args:
        settings: those of Ivy, for machines that do not reach Maven Central.

    Raises:
        SystemExit: something is missing; the text says what.
    """
    spark_jars = find_spark_jars()
    ivy = Ivy(find_java(), spark_jars, settings)
    pyspark, jars = _find_source(ivy)
    broker = ivy.resolve(_BROKER)
    if pyspark != metadata.version("pyspark"):
        _use_pyspark(pyspark)
        spark_jars = find_spark_jars()
    # What Spark has must not come twice, and in another version.
    there = {_strip_version(jar) for jar in spark_jars.glob("*.jar")}
    source = [jar for jar in jars if _strip_version(jar) not in there]
    return Kafka(ivy.java, pyspark, tuple(source), tuple(broker))


def find_java() -> str:
    """Find the command as Spark finds it."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise _missing(
            "no Java; Kafka needs Java 17 or newer: install it or set JAVA_HOME"
        )
    return java


def find_spark_jars() -> Path:
    """Find the JARs of the PySpark that would be imported."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise _missing(
            "no PySpark: run `make env`, or pip install 'lance-spark[spark]'"
        )
    return Path(found.origin).parent / "jars"


class Ivy:
    """Fetches packages with all that they depend on.

    Args:
        java: the command.
        spark_jars: the directory with Ivy's own JAR.
        settings: those of Ivy; it asks Maven Central if there are none.
    """

    def __init__(self, java: str, spark_jars: Path, settings: Path | None) -> None:
        self.java = java
        self._spark_jars = spark_jars
        self._settings = settings

    def resolve(
        self, packages: Sequence[str], instead: Sequence[str] = ()
    ) -> list[Path]:
        """Give the files of packages `org:name:version`.

        Args:
            packages: what is wanted.
            instead: versions to take, whatever packages ask for.

        Raises:
            SystemExit: there is no such package, or no way to reach it.
        """
        (jar,) = self._spark_jars.glob("ivy-*.jar")
        with tempfile.TemporaryDirectory() as name:
            wanted, paths = Path(name, "ivy.xml"), Path(name, "paths")
            wanted.write_text(_write_ivy(packages, instead), encoding="utf-8")
            command = [self.java, "-jar", str(jar), "-cache", str(CACHE / "ivy")]
            command += ["-ivy", str(wanted), "-confs", "default"]
            command += ["-cachepath", str(paths)]
            if self._settings is not None:
                command += ["-settings", str(self._settings)]
            said = _run(command)
            if paths.exists():
                found = paths.read_text(encoding="utf-8").strip()
                return [Path(each) for each in found.split(os.pathsep)]
        unresolved = sorted(set(re.findall(r":: (\S+#\S+: .*)", said)))
        reason = "; ".join(unresolved) or said.strip()[-500:]
        raise _missing(
            f"Ivy cannot fetch {', '.join(packages)}: {reason}. A network with Maven "
            "Central is needed, or --ivy-settings FILE that names a mirror of it"
        )


def _write_ivy(packages: Sequence[str], instead: Sequence[str]) -> str:
    lines = ['<ivy-module version="2.0"><info organisation="lance" module="bench"/>']
    lines.append('<configurations><conf name="default"/></configurations>')
    lines.append("<dependencies>")
    for package in packages:
        org, name, version = package.split(":")
        asked = f'org="{org}" name="{name}" rev="{version}"'
        lines.append(f'<dependency {asked} conf="default->default"/>')
    for package in instead:
        org, name, version = package.split(":")
        lines.append(f'<override org="{org}" module="{name}" rev="{version}"/>')
    return "\n".join([*lines, "</dependencies></ivy-module>"])


def _find_source(ivy: Ivy) -> tuple[str, list[Path]]:
    """Find the Kafka source of the installed PySpark, or that of another one."""
    installed = metadata.version("pyspark")
    tries: dict[tuple[str, tuple[str, ...]], None] = {
        (installed, ()): None,
        (_PYSPARK, ()): None,
        (_PYSPARK, (f"{_TOKENS}:{_TOKENS_VERSION}",)): None,
    }
    reasons = []
    for version, instead in tries:
        try:
            jars = ivy.resolve([f"{_SOURCE}:{version}"], instead)
        except SystemExit as missing:
            reasons.append(missing)
            continue
        print("The Kafka source of Spark", version, *(f"with {x}" for x in instead))
        return version, jars
    raise reasons[-1]


def _strip_version(jar: Path) -> str:
    return re.sub(r"-\d.*", "", jar.stem)


def _use_pyspark(version: str) -> None:
    """Put another PySpark before the installed one, also for Spark's workers."""
    directory = CACHE / f"pyspark-{version}"
    if not directory.exists():
        print(f"Fetching PySpark {version} into .build (a minute or two, once) ...")
        new = directory.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(new)]
        said = _run([*pip, f"pyspark=={version}"])
        if not (new / "pyspark").exists():
            raise _missing(f"pip cannot install PySpark {version}: {said.strip()}")
        new.rename(directory)  # An install that was cut short is not used.
    assert "pyspark" not in sys.modules
    sys.path.insert(0, str(directory))
    paths = [str(directory), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.pop("SPARK_HOME", None)


@contextmanager
def run_kafka(kafka: Kafka, directory: Path) -> Iterator[str]:
    """Run a broker that is its own controller; give its address.

    Args:
        kafka: what it is run with.
        directory: an empty one, for its files.

    Raises:
        SystemExit: it does not start.
    """
    port, controller = _find_ports(2)
    config, log = directory / "server.properties", directory / "said"
    settings = {"port": port, "controller": controller, "directory": directory}
    config.write_text(_BROKER_SETTINGS.format(**settings), encoding="utf-8")
    class_path = os.pathsep.join(map(str, kafka.broker_jars))
    java = [kafka.java, "-cp", class_path]
    tool = ["kafka.tools.StorageTool", "format", "-t", "lance", "-c", str(config)]
    said = _run([*java, *tool])
    command = [kafka.java, *_BROKER_JVM, *java[1:], "kafka.Kafka", str(config)]
    with log.open("wb") as output:
        broker = subprocess.Popen(
            ["sh", "-c", _KEEPER, "kafka", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for us, and we end it then.
        )
    with broker:
        try:
            if not _wait_for_port(port, broker):
                said += log.read_text(encoding="utf-8", errors="replace")
                raise _missing(f"Kafka's broker does not start: {said.strip()[-2000:]}")
            yield f"127.0.0.1:{port}"
        finally:
            assert broker.stdin is not None
            broker.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                broker.wait(_STOP_S)
            with suppress(ProcessLookupError):
                os.killpg(broker.pid, 9)  # Whatever is left of it.


def _find_ports(ports: int) -> list[int]:
    """Find free ports; Kafka has to know them before it starts."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(ports)]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def _wait_for_port(port: int, broker: subprocess.Popen[bytes]) -> bool:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return True
        except OSError:
            with suppress(subprocess.TimeoutExpired):
                broker.wait(0.1)
                return False
    return False


def _run(command: Sequence[str]) -> str:
    """Run a program to its end; give all that it said."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_DOWNLOAD_S,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_DOWNLOAD_S:.0f} s"
    return done.stdout


def _missing(text: str) -> SystemExit:
    return SystemExit(f"bench-kafka: {text}")
