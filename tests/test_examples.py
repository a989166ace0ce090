"""The programs in examples/ do what they say.

They run in the session that all tests share; what makes their own broker and Spark is
in their `main`, which differs from the tests' in settings alone.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(ROOT.glob("examples/*.py"))


def load(name: str) -> ModuleType:
    """Import a program as nobody else can, so that Spark sends its functions along."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def count_records(servers: str) -> dict[str, int]:
    """Return how many records each topic has."""
    with LanceClient(servers) as client:
        return {info.name: info.details["record_count"] for info in client.topics()}


def test_batch_etl(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedBroker(fsync="none") as broker:
        load("batch_etl").run(spark, broker.address, str(tmp_path))
        # Five minutes of clicks, and three pages.
        assert count_records(broker.address) == {"clicks": 30_000, "per-minute": 15}
    said = capsys.readouterr().out
    assert "in 3 folders: page=help, page=home, page=shop\n" in said
    assert re.search(r'\|0 +\|help\|{"clicks":2000,"slowest_ms":\d+}\|', said)


def test_routing(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker(fsync="none") as broker:
        load("routing").run(spark, broker.address)
        countries = ("at", "ch", "de", "fr")
        expected = {f"orders-{country}": 4000 for country in countries}
        assert count_records(broker.address) == expected
    said = capsys.readouterr().out
    assert re.findall(r"orders-at\| +(\d+)", said) == ["2000", "4000", "4000"]
    assert "16,000 rows, 16,000 different orders\n" in said


def test_stream_etl(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedBroker(fsync="none") as broker:
        load("stream_etl").run(spark, broker.address, str(tmp_path))
        # The last of six minutes is not over, as far as anybody knows.
        assert count_records(broker.address) == {"clicks": 18_000, "per-minute": 15}
    said = capsys.readouterr().out
    minutes = re.findall(r"\| *(\d\d:00)\| +3\| +(\d+)\|", said)
    assert len(minutes) == 2 + 5
    assert {clicks for _, clicks in minutes} == {"3000"}


def test_stream_to_parquet(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedBroker(fsync="none") as broker:
        load("stream_to_parquet").run(spark, broker.address, str(tmp_path))
    said = capsys.readouterr().out
    for number in (1, 2):
        assert f"Run {number}: batches of 15,000, 5,000 records\n" in said
    assert "40,000 rows of 40,000 different records\n" in said


def test_replay(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker(fsync="none") as broker:
        load("replay").run(spark, broker.address)
        assert count_records(broker.address) == {"payments": 6000}
    said = capsys.readouterr().out
    assert re.findall(r"\| *(before|during|after)\| +(\d+)\|", said) == [
        ("during", "2000")
    ]
    assert "And what came from then on is 2,000 payments\n" in said


def test_protocols(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    others = ("rustlog", "kimberlite", "fluvio", "tank")
    places = dict.fromkeys(others, "127.0.0.1:0")
    with EmbeddedBroker(fsync="none", **places) as broker:
        load("protocols").run(spark, broker.addresses)
        partitions = {f"orders/{number}": 500 for number in range(4)}
        assert count_records(broker.address) == {**partitions, "totals": 4}
    said = capsys.readouterr().out
    assert re.findall(r"\| +(\d)\| +(\d+)\|", said) == [
        (f"{n}", "500") for n in range(4)
    ]
    found = re.findall(r"^   (\w+): 500 orders, (\d+) in all$", said, re.MULTILINE)
    assert [country for country, _ in found] == ["at", "ch", "de", "fr"]
    assert sum(int(total) for _, total in found) == 20 * sum(range(1, 101))
    assert "5. By RustLog and Kimberlite: the same" in said


def test_foreach_batch(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedBroker(fsync="none") as broker:
        load("foreach_batch").run(spark, broker.address, str(tmp_path))
    said = capsys.readouterr().out
    # Of the batch that failed, the first write is there and the second is not.
    assert re.findall(r"large-orders +(\d+) records", said) == ["600", "600"]
    assert re.findall(r"totals +(\d+) records", said) == ["4", "6"]
    assert "2. The query has failed in batch 2" in said


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_mtls(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("mtls").run(spark, tmp_path)
    said = capsys.readouterr().out
    assert "billing writes and reads 100 payments\n" in said
    assert re.search(r"guest reads: TopicNotFound: .*payments", said)
    assert re.search(r"without a certificate: TlsRefused: .*certificate", said)
    assert "PRIVATE KEY" not in said


def test_readme_names_every_example() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert EXAMPLES
    for path in EXAMPLES:
        assert f"python examples/{path.name} " in readme
        assert f"python examples/{path.name}\n" in path.read_text(encoding="utf-8")


def test_list_names_every_example() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[`(\w+\.py)`\]\(\1\) \| \S", listed, re.MULTILINE)
    assert sorted(linked) == [path.name for path in EXAMPLES]
