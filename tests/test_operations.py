"""The page on running a broker: commands run, files can be used, numbers are true."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lance_spark.broker import BrokerConfig
from lance_spark.broker.config import parse_settings
from lance_spark.broker.metrics import METRICS
from lance_spark.cli.broker import command
from lance_spark.wire.lwp import ERROR_CODES
from tests.test_docs import blocks, read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = "docs/operations.md"


def find_free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_shell(source: str, *, port: int, where: Path) -> None:
    """Run a block as somebody would who has activated the environment."""
    # The port of the page may be in use; commands ask there by default.
    source = source.replace("127.0.0.1:1992", f"127.0.0.1:{port}")
    source = re.sub(
        r"(lance-spark (?:topics list|produce|consume)\b)",
        rf"\1 --servers localhost:{port}",
        source,
    )
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        done = subprocess.run(
            ["bash", "-euxc", source],
            cwd=where,
            env={**os.environ, "PATH": tools},
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired as late:
        # The last command that it shows is the one that hung.
        raise AssertionError((source, late.stdout, late.stderr)) from late
    assert done.returncode == 0, (source, done.stdout, done.stderr)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_commands_run(tmp_path: Path) -> None:
    port = find_free_port()
    for page in ("docs/security.md", PAGE):
        for _, source in blocks(page, "sh"):
            run_shell(source, port=port, where=tmp_path)
    assert (tmp_path / "tokens").stat().st_mode & 0o077 == 0


def read_settings() -> dict[str, Any]:
    """Read the configuration file of the page."""
    [(_, text)] = blocks(PAGE, "toml")
    return parse_settings(tomllib.loads(text), where=PAGE)


def test_configuration_file_can_be_used() -> None:
    config = BrokerConfig(**read_settings())
    assert config.tls_require_client_cert and config.token_file


def test_service_starts_the_broker_that_the_page_configures() -> None:
    [(_, text)] = blocks(PAGE, "ini")
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    program, name, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, name) == ("lance-spark", "broker")
    given = command.make_context("broker", arguments).params
    assert str(given["config_file"]) in read(PAGE).partition("```toml")[0]
    data = Path(read_settings()["data_dir"])
    assert str(data.parent) == unit["Service"]["ReadWritePaths"]
    assert int(unit["Service"]["LimitNOFILE"]) > count_descriptors(BrokerConfig())


def count_descriptors(config: BrokerConfig) -> int:
    """Count as the page says."""
    return 3 * config.connections_max + 2 * config.open_segments_max + 64


def test_alerts_are_about_metrics_that_there_are() -> None:
    [(_, text)] = blocks(PAGE, "yaml")
    [group] = yaml.safe_load(text)["groups"]
    names = {metric.name for metric in METRICS}
    labels = {metric.name: set(metric.labels) for metric in METRICS}
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 5
    for rule in group["rules"]:
        assert rule["expr"] and rule["annotations"]["summary"].endswith(".")
        for name, label in re.findall(r"(lance_\w+)(?:{(\w+))?", rule["expr"]):
            metric = name.removesuffix("_bucket")
            assert metric in names, name
            assert not label or label in labels[metric], rule
        for code in re.findall(r"0x[0-9A-F]{2}", rule["expr"]):
            assert int(code, 16) in ERROR_CODES


def test_numbers_are_the_defaults() -> None:
    config = BrokerConfig()
    page = read(PAGE)
    assert f"{count_descriptors(config)} with the defaults" in page
    limits = page.partition("\n## Limits\n")[2]
    for name, value in re.findall(r"`(\w+_max)`, (\d[\d ]*\d)\b(?! MiB)", limits):
        assert getattr(config, name) == int(value.replace(" ", "")), name
    sizes = re.findall(r"`(\w+)`,? \(?(\d+) MiB", page)
    assert len(sizes) >= 4
    for name, mebibytes in sizes:
        assert getattr(config, name) >> 20 == int(mebibytes), name
    assert f"`maintenance_interval_s` ({config.maintenance_interval_s:.0f} s)" in page
