"""What the package shows, and what it may import."""

from __future__ import annotations

import ast
from pathlib import Path

from lance_spark.wire import lwp

# Nothing that could read a socket, a file or the clock, or start a thread.
ALLOWED = {
    "__future__",
    "abc",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "inspect",
    "itertools",
    "json",
    "lance_spark",
    "lz4",
    "math",
    "mmap",  # Memory without a name: no file.
    "numpy",
    "re",
    "struct",
    "typing",
    "zlib",
}
OURS = {
    "lance_spark",
    "lance_spark.checksum",
    "lance_spark.errors",
    "lance_spark.late",
    "lance_spark.model",
    "lance_spark.records",
    "lance_spark.wire.assembler",
}


def test_all_is_sorted_and_true() -> None:
    assert len(set(lwp.__all__)) == len(lwp.__all__)
    for name in lwp.__all__:
        assert hasattr(lwp, name)


def test_imports() -> None:
    assert lwp.__file__ is not None
    for path in Path(lwp.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                assert module.split(".")[0] in ALLOWED, (path.name, module)
                if module.startswith("lance_spark"):
                    own = module.startswith("lance_spark.wire.lwp")
                    assert own or module in OURS, (path.name, module)
