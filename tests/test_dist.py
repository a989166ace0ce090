"""What is released: the wheel holds what it needs, and works where nothing else is.

Building and installing take half a minute, so that one build and one environment serve
all tests here. What is installed comes from the package index, as it would for anybody.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tests.spark.test_docs import is_shown
from tests.test_docs import ROOT, blocks, read

pytestmark = [pytest.mark.slow, pytest.mark.spark]

_NO_INDEX = re.compile(
    r"NewConnectionError|ConnectTimeoutError|NameResolutionError|ProxyError"
)
_QUICKSTART = re.compile(
    r"^```python\n([^`]*format\(\"lance\"\)[^`]*)^```\n\n```text\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def run(command: list[str], directory: Path, **variables: str) -> str:
    """Run a program as somebody would who has not got our environment."""
    ours = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "COV_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**clean, **variables},
        capture_output=True,
        text=True,
        # A cold JVM took more than 300 s where three test runs shared two cores.
        timeout=800,
    )
    if done.returncode and _NO_INDEX.search(done.stdout + done.stderr):
        pytest.skip("the package index can't be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both files, the wheel from the source distribution, as `make dist` does."""
    directory = tmp_path_factory.mktemp("dist")
    options = ["--no-isolation", "--outdir", str(directory)]
    run([sys.executable, "-m", "build", *options, str(ROOT)], directory)
    return directory


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """Give the wheel."""
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def variables(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Install the wheel as the quickstart page says; gives what activating sets."""
    directory = tmp_path_factory.mktemp("install")
    _, text = blocks("docs/quickstart.md", "console")[0]
    lines = [line.removeprefix("$ ") for line in text.splitlines()]
    assert lines[-1].startswith("pip install '.[")
    lines[-1] = lines[-1].replace("'.[", f"--no-compile --quiet '{wheel}[")
    # The Python of the tests is the one that the wheel was built for.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "\n".join([*lines, 'echo "$VIRTUAL_ENV"'])
    root = run(["bash", "-euc", script], directory, PATH=path).split()[-1]
    yield {"PATH": f"{root}/bin{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": root}
    # It is large, and pytest would keep it.
    shutil.rmtree(directory)


# What is in them.


def test_wheel_holds_what_is_needed_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    there = {
        str(path.relative_to(ROOT))
        for package in (
            "lance_spark",
            "pyspark_lance",
            "pyspark_rustlog",
            "pyspark_kimberlite",
            "pyspark_fluvio",
            "pyspark_tank",
        )
        for path in (ROOT / package).rglob("*")
        if path.suffix not in (".pyc", ".so", ".c") and path.is_file()
    }
    packed = {name for name in names if ".dist-info/" not in name}
    assert {name for name in packed if not name.endswith(".so")} == there
    assert "lance_spark/py.typed" in packed
    assert "lance_spark/broker/console/page/index.html" in packed
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {Path(name).name: name for name in archive.namelist()}
        metadata = archive.read(found["METADATA"]).decode()
        entries = archive.read(found["entry_points.txt"]).decode()
    fields = HeaderParser().parsestr(metadata)
    assert fields["Name"] == "lance-spark"
    assert f'version = "{fields["Version"]}"' in read("pyproject.toml")
    assert {"spark", "cli", "metrics", "ui"} <= set(fields.get_all("Provides-Extra"))
    assert "lance-spark = lance_spark.cli.main:main" in entries
    assert "lance_spark = lance_spark.testing.plugin" in entries


def test_source_distribution_is_the_repository(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "Makefile",
        "CHANGELOG.md",
        "docs/quickstart.md",
        "examples/batch_etl.py",
        "lance_spark/kernel/_kernel.c",
        "mkdocs.yml",
        "scripts/preflight",
        "tests/test_dist.py",
        "tests/vectors/store-v1/store.json",
    ):
        assert name in names
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


# What it does where nothing else is.


def test_readme_works_word_for_word(variables: dict[str, str], tmp_path: Path) -> None:
    found = _QUICKSTART.search(read("README.md"))
    assert found is not None
    source, shown = found.groups()
    (tmp_path / "quickstart.py").write_text(source, encoding="utf-8")
    # A JVM that does not live long starts sooner like this.
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    quick = {**variables, "JDK_JAVA_OPTIONS": java}
    printed = run(["python", "quickstart.py"], tmp_path, **quick)
    assert is_shown(printed, shown), printed


def test_command_and_console_work(variables: dict[str, str], tmp_path: Path) -> None:
    assert "lance-spark" in run(["lance-spark", "--version"], tmp_path, **variables)
    source = """if True:
        from urllib.request import urlopen
        from lance_spark.broker import EmbeddedBroker
        with EmbeddedBroker(ui=True) as broker:
            page = urlopen(broker.ui_url, timeout=30).read().decode()
            assert "<html" in page, page
        import lance_spark
        print(lance_spark.__file__)
    """
    printed = run(["python", "-c", source], tmp_path, **variables)
    assert printed.startswith(variables["VIRTUAL_ENV"])
