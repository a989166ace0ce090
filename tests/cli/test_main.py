"""How the command line starts and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lance_spark import __version__
from lance_spark.cli import main as main_module
from lance_spark.cli.group import COMMANDS
from lance_spark.errors import LanceError
from tests.child import Child
from tests.cli.conftest import Run

PYTHON = [sys.executable, "-m", "lance_spark"]
# With its output buffered, as a user has it.
BUFFERED = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}

_WITHOUT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from lance_spark.cli.main import main
sys.exit(main(["check", "nowhere"]))
"""


@pytest.mark.parametrize("name", ["click", "rich"])
def test_library_missing(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"lance-spark: the command line needs {name}: pip install 'lance-spark[cli]'\n",
    )


def test_what_click_itself_lacks_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "click":
                raise ModuleNotFoundError("No module named 'colours'", name="colours")

    monkeypatch.delitem(sys.modules, "click", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="colours"):
        main_module.main(["--help"])


def test_warnings_are_left_to_commands() -> None:
    script = (
        "import logging\n"
        "from lance_spark.cli.main import main\n"
        "main(['--version'])\n"
        "logging.getLogger('lance_spark.store').warning('found something')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from lance_spark.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "print(sorted({'numpy', 'pyarrow', 'crc32c', 'lz4'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for name, text in COMMANDS.items():
        assert f"{name}  " in done.stdout
        assert text in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: lance-spark {name} ")
    assert len(COMMANDS[name]) <= 60


def test_version(run: Run) -> None:
    assert run("--version").out == f"lance-spark {__version__}\n"


def test_module_runs() -> None:
    done = subprocess.run(
        [*PYTHON, "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"lance-spark {__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["check"], ["inspect", "x", "--limit", "-1"]]
)
def test_wrong_usage(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "Usage: lance-spark" in done.err


def test_nothing_asked(run: Run) -> None:
    # The exit code is 0 or 2, by the version of click.
    done = run()
    assert "Commands:" in done.out + done.err


def _make_failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("lance_spark.cli.check.check_store", fail)


@pytest.mark.parametrize("kind", [LanceError, OSError])
def test_errors_are_one_line(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    store_path: Path,
    kind: type[Exception],
) -> None:
    _make_failing(monkeypatch, kind("it is\n  broken"))
    assert run("check", store_path) == (1, "", "lance-spark: it is broken\n")


def test_our_mistakes_keep_their_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, store_path: Path
) -> None:
    _make_failing(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run("check", store_path)


def test_interrupt(run: Run, monkeypatch: pytest.MonkeyPatch, store_path: Path) -> None:
    _make_failing(monkeypatch, KeyboardInterrupt())
    assert run("check", store_path) == (130, "", "\n")


def test_interrupt_of_a_process(tmp_path: Path) -> None:
    # More records than anybody waits for; the child it started must go, too.
    process = Child(
        [*PYTHON, "demo", "--records", "100000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**BUFFERED, "TMPDIR": str(tmp_path)},
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("100,000,000 records")
        process.send_signal(signal.SIGINT)
        # The end of the pipe comes when the last process that has it is gone.
        assert process.stderr.read() == "\n"
        assert process.wait(30) == 130
    assert list(tmp_path.iterdir()) == []


def test_reader_goes_away(segment: Path) -> None:
    with segment.open("r+b") as file:
        content = file.read()
        for _ in range(500):
            file.write(content)
    process = Child(
        [*PYTHON, "inspect", str(segment), "--limit", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=BUFFERED,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(30) == 141


def test_reader_was_never_there() -> None:
    # So little is written that it is met by the last flush only.
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PYTHON, "--version"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=BUFFERED,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_disk_is_full(unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PYTHON, "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_standard_output_is_closed() -> None:
    shell = ["sh", "-c", 'exec "$@" >&-', "sh"]
    done = subprocess.run(
        [*shell, *PYTHON, "--version"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == (
        b"lance-spark: standard output is closed: say >/dev/null if you want none\n"
    )


def test_standard_error_is_closed() -> None:
    # Python would print to standard output instead, where the data is.
    shell = ["sh", "-c", 'exec "$@" 2>&-', "sh"]
    done = subprocess.run(
        [*shell, *PYTHON, "check", "nowhere"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_output_that_the_terminal_cannot_show(segment: Path) -> None:
    done = subprocess.run(
        [*PYTHON, "inspect", str(segment), "--limit", "1"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=60,
    )
    assert done.returncode == 0
    assert b"\\u2026 more records follow" in done.stdout


_HEAD = """
import os, sys
from lance_spark.cli.main import prepare_streams, settle_output
prepare_streams()
"""


def _command(script: str, redirect: str = "") -> list[str]:
    """Make a command that a shell starts, with streams closed or files limited."""
    shell = ["sh", "-c", f'ulimit -f 64; exec "$@" {redirect}', "sh"]
    return [*shell, sys.executable, "-c", _HEAD + script]


def _environment(unbuffered: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": unbuffered}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_text_that_is_cut_short_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    # The first write is short, the next one fails. Nothing is said of it at the exit.
    script = """
try:
    sys.stdout.write("x" * 2**20 + "\\n")  # At once; print would write twice.
    sys.stdout.flush()
except OSError:
    settle_output()
    sys.stderr.write("noticed")
"""
    with (tmp_path / "out").open("wb") as file:
        done = subprocess.run(
            _command(script),
            stdout=file,
            stderr=subprocess.PIPE,
            env=_environment(unbuffered),
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, b"noticed")
    assert 0 < (tmp_path / "out").stat().st_size < 2**20


def test_lines_still_come_at_once() -> None:
    # Who asks for no buffer does not want to wait for the end of the process.
    with Child(
        _command("print('line \\u2026')\nsys.stdin.read()"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**_environment("1"), "PYTHONIOENCODING": "ascii"},
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"line \\u2026\n"
        process.stdin.close()
        assert process.wait(30) == 0


def test_files_do_not_take_the_place_of_closed_streams() -> None:
    script = """
print("for nobody", file=sys.stderr)
os.write(2, b"nor this")
print(os.open(os.devnull, os.O_RDONLY) > 2, sys.stdin)
"""
    done = subprocess.run(
        _command(script, "<&- 2>&-"), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True None\n", "")
