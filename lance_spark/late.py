"""Names of a package that are imported when they are first used.

An import of any module runs the `__init__` of its package first. Where that has names
of modules which most processes do not need, it finds them by this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def find_late(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its name.
        names: the names, and the module that has each of them. A module that has it by
            another name is followed by a colon and that name.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = names[name].partition(":")
        found = getattr(import_module(module), attribute or name)
        # From now on Python finds it by itself.
        setattr(sys.modules[package], name, found)
        return found

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, list_names
