"""What can be imported where extras are missing, and what an installed wheel holds."""

from __future__ import annotations

import ast
import compileall
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import lance_spark
from lance_spark.broker import BrokerConfig, EmbeddedBroker
from lance_spark.checksum import crc32c
from lance_spark.client import connect
from lance_spark.kernel import COMPILED
from tests.each import each
from tests.spark.roles import ROLES

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


# What the processes of a query import. Spark starts several for each, and nothing of a
# topic is read before they are ready.

Played = dict[str, tuple[list[str], list[float]]]

# No process of a query needs these; a name stands for what is below it, too.
_NEVER = (
    # `pa.array` imports it where it is installed, which takes longer than all the rest.
    "pandas",
    "pyarrow.compute",
    *("argparse", "asyncio", "difflib", "email", "html", "importlib.metadata"),
    *("lz4", "multiprocessing", "ssl"),
    *(f"lance_spark.{name}" for name in ("broker", "cli", "demo", "html", "store")),
    *(f"lance_spark.client.lwp.{name}" for name in ("consumer", "cursor", "group")),
    *("lance_spark.client.log", "lance_spark.client.lwp.offsets"),
    *("lance_spark.net.tls", "lance_spark.net.tls_stream"),
    "lance_spark.wire.lwp.compression",
    *(["lance_spark.kernel.twin"] if COMPILED else []),
)
# What connects, and so all that is of a protocol but its settings.
_CONNECTING = (
    *("lance_spark.checksum", "lance_spark.client.connection", "lance_spark.wire"),
    *("lance_spark.client.counted", "lance_spark.client.lwp.driver"),
    *("lance_spark.net.connect", "lance_spark.net.stream"),
)
_READING = ("lance_spark.client.lwp.reader", "lance_spark.spark.scan")
_STREAMING = ("lance_spark.spark.stream", "lance_spark.spark.watch")
_FILTERING = ("lance_spark.spark.filters",)
_PLANNING = ("lance_spark.spark.planning", *_FILTERING)
_WRITING = (
    *("lance_spark.client.delivery", "lance_spark.client.outbox"),
    *("lance_spark.client.lwp.writer", "lance_spark.columnar.encode"),
)
_SINK = ("lance_spark.spark.sink", "lance_spark.spark.task_writer")
# By role what it does not need besides.
_ABSENT = {
    "create": (*_CONNECTING, *_READING, *_STREAMING, *_SINK, *_PLANNING),
    "pickle_stream_reader": (*_CONNECTING, *_READING, *_STREAMING, *_SINK, *_PLANNING),
    # A ruler of LWP reads where a server does not know its records.
    "plan_stream": ("lance_spark.spark.scan", *_FILTERING, *_WRITING, *_SINK),
    "read_stream": (*_STREAMING, *_FILTERING, *_WRITING, *_SINK),
    "plan_batch": (*_READING, *_STREAMING, *_WRITING, *_SINK),
    "read_batch": (*_STREAMING, *_WRITING, *_SINK),
    "plan_write": (*_READING, *_STREAMING, *_PLANNING, *_WRITING),
    "write": (*_READING, *_STREAMING, *_PLANNING),
    "commit": (*_READING, *_STREAMING, *_PLANNING, *_WRITING),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Play each role, those of LWP three times; say what it imported and took."""
    # As an installed package has it; where tests run, Python may be told to write none.
    assert compileall.compile_dir(PACKAGE, quiet=1)
    directory = tmp_path_factory.mktemp("roles")
    others = dict.fromkeys(FORMATS[1:], "127.0.0.1:0")
    with EmbeddedBroker(config=BrokerConfig(fsync="none", **others)) as broker:
        servers = {name: broker.address_of(name) for name in others}
        servers["lance"] = broker.address
        for name, address in servers.items():
            with connect(f"{name}://{address}") as client:
                client.append(f"in-{name}", [b"v" * 100] * 1000, create=True)

        def play(rounds: int, *names: str) -> Played:
            command = [sys.executable, "-m", "tests.spark.roles", str(directory)]
            formats = [f"{name}={servers[name]}" for name in names]
            done = subprocess.run(
                [*command, str(rounds), *formats],
                capture_output=True,
                text=True,
                timeout=120,
                cwd=ROOT,
            )
            assert done.returncode == 0, done.stderr
            found: Played = json.loads(done.stdout)
            return found

        return play(1, *others) | play(3, "lance")


@each("format", FORMATS)
def test_processes_import_what_they_use(played: Played, format: str) -> None:
    mine = "lwp" if format == "lance" else format
    others, layers = {"lwp", *FORMATS[1:]} - {mine}, ("client", "wire")
    foreign = [f"lance_spark.{layer}.{name}" for layer in layers for name in others]
    for role in ROLES:
        modules = played[f"{format} {role}"][0]
        absent = (*_NEVER, *_ABSENT[role], *foreign)
        unwanted = [
            module
            for module in modules
            if any(f"{module}.".startswith(f"{name}.") for name in absent)
            # Its compiled module is enough; see `checksum`.
            or module == "crc32c"
        ]
        assert unwanted == [], role
        # Without stages there is nothing to commit.
        is_alone = role == "commit" and format != "lance"
        is_alone = is_alone or _CONNECTING[0] in _ABSENT[role]
        # What connects has done so, or this would say nothing.
        assert (f"lance_spark.client.{mine}.driver" in modules) is not is_alone, role


def test_a_process_is_ready_before_pyarrow_would_be(played: Played) -> None:
    # The least of some rounds: what else a machine does can only add to it.
    pyarrow_s = min(played["pyarrow"][1])
    ratios = {r: min(played[f"lance {r}"][1]) / pyarrow_s for r in ROLES}
    # 0.3 without a connection and 0.7 with one. Pandas alone is more than 1.5.
    assert max(ratios.values()) < 1.2, ratios


def test_late_names_are_those_that_type_checkers_see() -> None:
    for name in ("lance_spark.client", "lance_spark.wire.lwp"):
        package = import_module(name)
        assert package.__file__ is not None
        tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
        (block,) = [node for node in tree.body if isinstance(node, ast.If)]
        seen = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert sorted(seen) == _list_late(name)
        for shown, (module, own) in seen.items():
            assert module is not None
            assert getattr(package, shown) is getattr(import_module(module), own)
        with pytest.raises(AttributeError, match="nothing_such"):
            package.nothing_such  # noqa: B018  # It has to raise.


def _list_late(package: str) -> list[str]:
    """List the names that a package shows and does not have yet."""
    script = f"import {package} as p; print(sorted({{*dir(p)}} - {{*vars(p)}}))"
    names: list[str] = ast.literal_eval(_python(script))
    return names


def test_crc32c_is_that_of_its_package() -> None:
    # Here the compiled module was loaded alone, and the package finds it loaded.
    script = """
import sys
from lance_spark.checksum import crc32c, load
assert "crc32c" not in sys.modules and "crc32c._crc32c" in sys.modules
import crc32c as package
assert package.crc32c is crc32c is load()
print(crc32c(b"123456789"), crc32c(b"789", crc32c(b"123456")))
"""
    assert _python(script).split() == [str(0xE3069283)] * 2
    assert crc32c(b"123456789") == 0xE3069283


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
