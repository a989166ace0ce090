"""A process that measures when it is asked to, and what such a process does.

It prints what it can measure, as JSON, then answers a question per line with a line.
The child's side is `open_answers` and `answer` of `_figures`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

_ANSWER_S = 600.0


class Child:
    """Another Python that measures.

    Args:
        arguments: of the interpreter.
        directory: where it runs.
        environment: variables besides those of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with ExitStack() as stack:
            self._stderr = stack.enter_context(tempfile.TemporaryFile())
            self._child = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
            )
            self._files = stack.pop_all()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, question: str) -> Any:
        """Have something measured."""
        assert self._child.stdin is not None
        print(json.dumps(question), file=self._child.stdin, flush=True)
        return self.read()

    def read(self) -> Any:
        """Wait for what it says next.

        Raises:
            SystemExit: it ended instead; the text is what it wrote to standard error.
        """
        assert self._child.stdout is not None
        # A process that hangs is killed, which ends the wait for its answer.
        watchdog = threading.Timer(_ANSWER_S, self._child.kill)
        watchdog.start()
        try:
            line = self._child.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._child.wait(_ANSWER_S)
            self._stderr.seek(0)
            text = self._stderr.read().decode(errors="replace")
            raise SystemExit(f"a process ended instead of answering:\n{text[-4000:]}")
        return json.loads(line)

    def close(self) -> None:
        """End the process, which stops its brokers."""
        with self._files:
            self._child.communicate(timeout=_ANSWER_S)
