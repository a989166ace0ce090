"""What can be imported where extras are missing, and what an installed wheel holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lance_spark

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lance_spark"
FORMATS = ("lance", "rustlog", "kimberlite", "fluvio", "tank")
SHIMS = [ROOT / f"pyspark_{name}" for name in FORMATS]

_BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""

_IMPORT_ALL = """
import importlib, json
failures = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        failures[name] = error.name
print(json.dumps(failures))
"""

_LIST_LOADED = """
import lance_spark, sys
print(sorted({"numpy", "pyarrow", "pandas", "pyspark", "click"} & set(sys.modules)))
"""


def _python(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _modules() -> list[str]:
    files = [file.relative_to(ROOT) for file in PACKAGE.rglob("*.py")]
    outside = [file for file in files if file.parts[1] != "spark"]
    names = [".".join(file.with_suffix("").parts) for file in outside]
    return sorted(name.removesuffix(".__init__") for name in names)


def _fail_without(*blocked: str) -> dict[str, str]:
    """Import every module and say which ones fail, for want of what."""
    script = _BLOCK.format(blocked=blocked) + _IMPORT_ALL
    failures: dict[str, str] = json.loads(_python(script, json.dumps(_modules())))
    return failures


def test_all_modules_without_extras() -> None:
    modules = _modules()
    assert {"lance_spark", "lance_spark.__main__", "lance_spark.cli.main"} <= {*modules}
    failures = _fail_without("pyspark", "pandas", "click")
    # uvicorn is made with click as well; only a console imports this.
    assert failures.pop("lance_spark.net.web") == "click"
    # The commands are made of click; `main` has to say so, and can.
    assert set(failures.values()) == {"click"}
    assert all(name.startswith("lance_spark.cli.") for name in failures)
    assert "lance_spark.cli.main" not in failures


def test_all_modules_without_the_console() -> None:
    failures = _fail_without("starlette", "uvicorn")
    assert set(failures.values()) == {"starlette", "uvicorn"}
    parts = ("app", "guard", "stream")
    console = [f"lance_spark.broker.console.{part}" for part in parts]
    assert sorted(failures) == [*console, "lance_spark.net.web"]


def test_all_modules_without_pytest() -> None:
    assert _fail_without("pytest") == {"lance_spark.testing.plugin": "pytest"}


def test_all_modules_with_click() -> None:
    assert _fail_without("pyspark", "pandas") == {}


def test_the_blocker_blocks() -> None:
    assert "lance_spark.model" not in _fail_without("numpy")
    assert _fail_without("numpy")["lance_spark.store"] == "numpy"


def test_package_is_quick_to_import() -> None:
    assert _python(_LIST_LOADED) == "[]\n"


def test_typed() -> None:
    assert (Path(lance_spark.__file__).parent / "py.typed").is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy: the checkout may hold what earlier builds left."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for package in (PACKAGE, *SHIMS):
        shutil.copytree(package, source / package.name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    # The environment has what the build needs, so that no network is.
    pip.append("--no-build-isolation")
    done = subprocess.run(
        [*pip, "--no-deps", "-w", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (path,) = target.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_content(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (scripts,) = [n for n in names if n.endswith(".dist-info/entry_points.txt")]
        assert b"lance-spark = lance_spark.cli.main:main" in archive.read(scripts)
    files = [f for top in (PACKAGE, *SHIMS) for f in top.rglob("*.py")]
    assert {str(file.relative_to(ROOT)) for file in files} <= names
    assert "lance_spark/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"lance_spark", *(shim.name for shim in SHIMS)}


@pytest.mark.slow
def test_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run(
        [*pip, "--no-deps", "--target", str(site), str(wheel)], check=True, timeout=300
    )
    # Found before the checkout that this interpreter has installed.
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import lance_spark; print(lance_spark.__file__)"
    assert run(sys.executable, "-c", where).startswith(str(site))
    assert "demo" in run(str(site / "bin" / "lance-spark"), "--help")
    assert "as promised" in run(
        *(sys.executable, "-m", "lance_spark", "demo", "--no-spark"),
        *("--records", "1000"),
    )
