"""Processes that end with the test that started them."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any


class Child(subprocess.Popen[Any]):
    """A process that is killed when its `with` is left, however the test ends.

    The one of the standard library waits there: after a failure that may be for ever.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        super().__exit__(kind, value, traceback)
