"""The standard streams, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child import Child

_HEAD = """
import os, sys
from lance_spark.cli.stream import prepare_streams, settle_output
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
