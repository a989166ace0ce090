"""CRC-32C, by which frames, records and files are checked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any


def load() -> Callable[..., int]:
    """Load the compiled function without the package around it.

    The package asks for its own version and makes a command line when it is imported.
    That takes some forty modules of Python, and longer than everything else that a
    connection to a broker needs.
    """
    package, name = "crc32c", "crc32c._crc32c"
    found = None if package in sys.modules else find_spec(package)
    spec = found and PathFinder.find_spec(name, found.submodule_search_locations)
    if spec is None or spec.loader is None:
        # Loaded already, or laid out in another way.
        from crc32c import crc32c

        return crc32c
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    # For the package, in case that another library imports it.
    sys.modules[name] = module
    function: Callable[..., int] = module.crc32c
    return function


if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:
    crc32c = load()
