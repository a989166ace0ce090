"""The quickstart page: somebody types all of it and sees what it shows."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lance_spark.cli.main import main
from tests.child import Child
from tests.spark.test_docs import is_shown
from tests.test_docs import parse_session, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/quickstart.md"
# Where the page's broker and its console are; here they are at free ports.
LISTEN, CONSOLE = "127.0.0.1:1992", "127.0.0.1:8080"

# A block, and what it prints if a text block comes right behind it.
_BLOCK = re.compile(
    r"^```(console|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


class Newcomer:
    """Has a terminal with a broker, another one for commands, and Python."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.addresses: dict[str, str] = {}
        self.broker: Child | None = None

    def type(self, kind: str, text: str) -> Iterator[tuple[str, str]]:
        """Type a block; gives what is printed, and for commands what is shown."""
        if kind == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(self._find(text), PAGE, "exec"), self.names)
            yield printed.getvalue(), ""
            return
        for command, shown in parse_session(text):
            yield self._run(command), shown

    def _run(self, command: str) -> str:
        program, *arguments = re.findall(r"'([^']*)'|(\S+)", command)
        assert "".join(program) == "lance-spark", command
        words = ["".join(pair) for pair in arguments]
        if words[0] == "broker":
            return self._start(words)
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with redirect_stdout(printed):
            assert main([*words, "--servers", self.addresses[LISTEN]]) == 0
        assert isinstance(printed.buffer, io.BytesIO)
        return printed.buffer.getvalue().decode()

    def _start(self, words: list[str]) -> str:
        words = ["127.0.0.1:0" if word == CONSOLE else word for word in words]
        self.broker = Child(
            [sys.executable, "-m", "lance_spark", *words, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.broker.stdout is not None
        lines = [self.broker.stdout.readline() for _ in range(2)]
        found = [re.search(r"127\.0\.0\.1:\d+", line) for line in lines]
        assert all(found), lines
        for name, address in zip((LISTEN, CONSOLE), found, strict=True):
            assert address is not None
            self.addresses[name] = address[0]
        return "".join(
            line.replace(address, name)
            for line, (name, address) in zip(lines, self.addresses.items(), strict=True)
        )

    def _find(self, text: str) -> str:
        return text.replace(LISTEN, self.addresses[LISTEN])

    def leave(self) -> str:
        """Press Ctrl-C in the broker's terminal."""
        if self.broker is None:
            return ""
        self.broker.send_signal(signal.SIGINT)
        said, _ = self.broker.communicate(timeout=30)
        assert self.broker.returncode == 0
        return said


@contextmanager
def newcomer() -> Iterator[Newcomer]:
    """Let somebody in, and close what is left open."""
    somebody = Newcomer()
    try:
        yield somebody
    finally:
        assert somebody.leave() in ("", "stopped\n")


def test_every_step_works_and_prints_what_is_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = _BLOCK.findall(read(PAGE))
    # tests/test_dist.py types the first one, which installs.
    assert "pip install" in blocks[0][1]
    kinds = [kind for kind, _, _ in blocks]
    assert kinds.count("python") >= 5 and kinds.count("console") >= 3
    with newcomer() as somebody:
        for kind, text, output in blocks[1:]:
            for printed, shown in somebody.type(kind, text):
                expected = output or shown
                if expected:
                    assert is_shown(printed, expected), printed
                else:
                    assert printed == ""
