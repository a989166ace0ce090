"""The promises that the repository's own files make."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TARGETS = {
    "help",
    "env",
    "demo",
    "soak",
    "test",
    "check",
    "bench",
    "bench-kafka",
    "fuzz",
    "crash",
    "coverage",
    "format",
    "clean",
}


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def _make(*arguments: str) -> str:
    done = subprocess.run(
        [_tool("make"), "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


# The Makefile and CI.


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) >= TARGETS
    listed = dict(re.findall(r"^  make ([\w-]+) +(\S.*)$", _make("help"), re.MULTILINE))
    assert set(listed) == set(phony.split())
    assert _make() == _make("help")


def test_make_does_what_it_says() -> None:
    check = _make("-n", "check")
    for part in (
        "ruff check .",
        "ruff format --check .",
        "mypy",
        "tests/test_layers.py",
    ):
        assert part in check
    assert "-m pytest" in _make("-n", "test")
    assert "lance-spark demo" in _make("-n", "demo")


def _run_ci(tmp_path: Path, make: str) -> tuple[int, list[str]]:
    log = tmp_path / "log"
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\necho "$PWD $*" >>"{log}"\n{make}\n')
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env=environment, cwd=tmp_path, timeout=300
    )
    return done.returncode, log.read_text().splitlines()


def test_ci_runs_check_and_test(tmp_path: Path) -> None:
    code, calls = _run_ci(tmp_path, "exit 0")
    assert (code, calls) == (0, [f"{ROOT} check", f"{ROOT} test"])


def test_ci_stops_at_the_first_failure(tmp_path: Path) -> None:
    code, calls = _run_ci(tmp_path, "exit 3")
    assert (code, calls) == (3, [f"{ROOT} check"])


def test_readme_starts_with_what_to_type() -> None:
    top = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    for command in ("make demo", "make test"):
        assert any(command in line for line in top), f"{command} is not near the top"


# The preflight.

_GOOD_PYTHON = "exit 0"
_OLD_PYTHON = '[ "$1" = --version ] && echo "Python 3.8.10" && exit 0\nexit 1'
_BARE_PYTHON = 'case "$2" in *ensurepip*) exit 1;; esac\nexit 0'


def _java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2024-01-16' >&2"


def _preflight(tmp_path: Path, programs: dict[str, str], **env: str) -> tuple[int, str]:
    """Run the preflight where only these programs and the shell's own tools are."""
    place = tmp_path / "bin"
    for name in ("bash", "env", "sed", "head", "sh"):
        place.mkdir(exist_ok=True)
        (place / name).symlink_to(_tool(name))
    for name, body in programs.items():
        _write_program(place / name, body)
    done = subprocess.run(
        [ROOT / "scripts" / "preflight", "python3"],
        env={"PATH": str(place), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def _write_program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("programs", "texts"),
    [
        ({}, ("no 'python3' found", "Python 3.10 or newer", "make PYTHON=")),
        (
            {"python3": _OLD_PYTHON},
            ("'python3' is Python 3.8.10", "Python 3.10 or newer"),
        ),
        ({"python3": _BARE_PYTHON}, ("has no venv module", "python3-venv")),
        ({"python3": _GOOD_PYTHON}, ("no Java found", "Java 17 or newer")),
        (
            {"python3": _GOOD_PYTHON, "java": _java("1.8.0_402")},
            ("Java is 1.8.0", "Java 17 or newer", "JAVA_HOME"),
        ),
        (
            {"python3": _GOOD_PYTHON, "java": _java("11.0.22")},
            ("Java is 11.0.22", "Java 17 or newer"),
        ),
        (
            {"python3": _GOOD_PYTHON, "java": "echo nonsense >&2"},
            ("Java is unknown", "Java 17 or newer"),
        ),
    ],
)
def test_preflight_says_what_is_missing(
    tmp_path: Path, programs: dict[str, str], texts: tuple[str, ...]
) -> None:
    code, said = _preflight(tmp_path, programs)
    assert code == 1
    assert said.startswith("lance-spark: ") and said.count("\n") == 1
    for text in texts:
        assert text in said


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.2", "22-ea"])
def test_preflight_is_content(tmp_path: Path, version: str) -> None:
    programs = {"python3": _GOOD_PYTHON, "java": _java(version)}
    assert _preflight(tmp_path, programs) == (0, "")


def test_preflight_looks_in_java_home(tmp_path: Path) -> None:
    home = tmp_path / "jdk"
    _write_program(home / "bin" / "java", _java("21.0.2"))
    programs = {"python3": _GOOD_PYTHON, "java": _java("11.0.22")}
    assert _preflight(tmp_path, programs, JAVA_HOME=str(home)) == (0, "")


# What must not be in any file.

# Written in pieces, or this file would be the first one to be found.
_MACHINE_PATHS = re.compile(rb"(?<![\w.])/(?:wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)/")


def _files() -> list[Path]:
    command = [_tool("git"), "ls-files", "-z", "--cached", "--others"]
    done = subprocess.run(
        [*command, "--exclude-standard"], cwd=ROOT, capture_output=True, timeout=300
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    found = [ROOT / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [path for path in found if path.is_file()]


def test_no_machine_paths() -> None:
    files = _files()
    assert ROOT / "pyproject.toml" in files
    found = [path for path in files if _MACHINE_PATHS.search(path.read_bytes())]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"see /wor!k/x", True),
        (b'"/roo!t/.cache"', True),
        (b"=/hom!e/me/x", True),
        (b"a/wor!k/b", False),
        (b"/wor!king/", False),
    ],
)
def test_machine_paths_are_recognised(text: bytes, found: bool) -> None:
    assert bool(_MACHINE_PATHS.search(text.replace(b"!", b""))) is found


# What no file may hold.


def test_no_file_names_a_registry_or_a_machine() -> None:
    """A package is named, not linked; a path is relative, or one that users have."""
    registries = ("pypi", "pythonhosted", "npmjs", "crates", "maven", "debian")
    hosts = rf"//[\w.-]*\b(?:{'|'.join(registries)})\.(?:org|com|io)\b"
    places = r"(?<![\w.])/(?:work|root|home/[a-z]+)/"
    files = subprocess.run(
        [_tool("git"), "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split("\0")
    found = []
    for name in filter(None, files):
        if (ROOT / name).suffix in (".png", ".lnc", ".idx", ".log"):
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        found += [f"{name}: {m[0]}" for m in re.finditer(f"{hosts}|{places}", text)]
    assert found == []
