"""Spark shows its certificate to a broker that lets in nobody without one.

    certificates -> a broker with TLS and a rule for topic payments -> who may read it?

With *mutual TLS* both sides prove who they are. The broker knows a client by the common
name of its certificate, and the rule of a topic says which names may use it. Options
`tlsCert` and `tlsKey` take the PEM text itself, so that no file has to be on executors.

It needs the program `openssl` to make certificates. It starts a broker and a local
Spark of its own and removes all of it at the end:

    .venv/bin/python examples/mtls.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker

PAYMENTS = 100


def run(spark: SparkSession, directory: Path) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: any session.
        directory: an empty one, where certificates go.
    """
    make_certificates(directory, clients=("billing", "guest"))
    print(
        "1. There are certificates for a broker and for the clients billing and guest"
    )

    with start_broker(directory) as broker:
        print("2. A broker lets in clients with a certificate, and billing to payments")
        billing = options(broker.address, directory, "billing")
        rows = spark.range(PAYMENTS).selectExpr("concat('payment ', id) AS value")
        rows.write.format("lance").options(**billing).mode("append").save()
        print(f"   billing writes and reads {count(spark, billing)} payments")

        guest = options(broker.address, directory, "guest")
        print(f"   guest reads: {refuse(spark, guest)}")

        anonymous = {k: v for k, v in billing.items() if k not in ("tlsCert", "tlsKey")}
        print(f"   somebody without a certificate: {refuse(spark, anonymous)}")


def make_certificates(directory: Path, *, clients: tuple[str, ...]) -> None:
    """Make an authority, and certificates that it has signed.

    Args:
        directory: where they go, as `NAME.crt` and `NAME.key`.
        clients: the names of clients.
    """
    subject = ["-subj", "/CN=Example CA", "-days", "2"]
    openssl(directory, "req -x509 -keyout ca.key -out ca.crt", *NEW_KEY, *subject)
    host = "subjectAltName = DNS:localhost, IP:127.0.0.1\n"
    sign(directory, "broker", f"extendedKeyUsage = serverAuth\n{host}")
    for name in clients:
        sign(directory, name, "extendedKeyUsage = clientAuth\n")


# A small key of a modern kind. It has no passphrase, as nobody is there to type it.
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def sign(directory: Path, name: str, purpose: str) -> None:
    """Make a key and have the authority sign a certificate for it."""
    (directory / "purpose").write_text(f"basicConstraints = CA:FALSE\n{purpose}")
    request = f"req -keyout {name}.key -out request"
    openssl(directory, request, *NEW_KEY, "-subj", f"/CN={name}")
    authority = "-CA ca.crt -CAkey ca.key -CAcreateserial"
    how = f"-req -in request {authority} -days 2 -extfile purpose -out {name}.crt"
    openssl(directory, f"x509 {how}")


def openssl(directory: Path, command: str, *arguments: str) -> None:
    """Run openssl in a directory."""
    line = ["openssl", *command.split(), *arguments]
    subprocess.run(line, cwd=directory, check=True, capture_output=True, timeout=60)


def start_broker(directory: Path) -> EmbeddedBroker:
    """Make a broker that wants certificates, and whose payments are for billing."""
    rule = {"mtls_enabled": True, "allowed_cns": ["billing"]}
    return EmbeddedBroker(
        tls_enabled=True,
        tls_cert_path=str(directory / "broker.crt"),
        tls_key_path=str(directory / "broker.key"),
        tls_client_ca_path=str(directory / "ca.crt"),
        tls_require_client_cert=True,
        topics={"payments": {"auth": rule}},
    )


def options(servers: str, directory: Path, name: str) -> dict[str, str]:
    """Give what a client needs, with the certificates as text."""
    return {
        "servers": servers,
        "topic": "payments",
        "tls": "true",
        "tlsCa": (directory / "ca.crt").read_text(),
        "tlsCert": (directory / f"{name}.crt").read_text(),
        "tlsKey": (directory / f"{name}.key").read_text(),
    }


def count(spark: SparkSession, client: dict[str, str]) -> int:
    """Count the payments, as some client."""
    return spark.read.format("lance").options(**client).load().count()


def refuse(spark: SparkSession, client: dict[str, str]) -> str:
    """Try to read as a client that must not, and say what it is told."""
    try:
        count(spark, client)
    except PySparkException as error:
        # Spark shows where in Python it was, and in the end what.
        told = re.findall(r"^lance_spark\.errors\.(\w+: .*)$", str(error), re.MULTILINE)
        # A port that nobody can guess, and that nobody wants to know.
        return re.sub(r"127\.0\.0\.1:\d+", "the broker", told[-1])
    raise AssertionError("the broker has let in somebody whom it must not")


def main() -> None:
    """Run it with a broker, a Spark and certificates that are gone afterwards."""
    # Spark's workers are to be this Python, whatever is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as directory:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            # A JVM that starts quickly, and would be slow in the long run.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .getOrCreate()
        )
        # Spark would show the refusals that are part of this.
        spark.sparkContext.setLogLevel("OFF")
        try:
            run(spark, Path(directory))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
