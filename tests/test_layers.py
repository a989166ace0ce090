"""The layer rule of the design: who may import whom.

    errors, model, records <- kernel <- wire, net, store, columnar <- client | broker
                                                                    <- spark | cli
                                                                    <- testing

and beside the values: `quantity`, what people type and how settings are checked;
`offset`, what a checkpoint of Spark says; `html`, what notebooks show.

The rule is the table `ALLOWED`; everything else here reads imports and compares. Local
imports inside functions count. Those under `TYPE_CHECKING` count as far as they are of
this package: a reader follows them as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.each import each

ROOT = Path(__file__).parent.parent
PACKAGE = "lance_spark"
# What Spark finds: one per format.
SHIMS = (
    *("pyspark_lance", "pyspark_rustlog", "pyspark_kimberlite", "pyspark_fluvio"),
    "pyspark_tank",
)

# Each layer may import itself and these.
_VALUES = {"late", "checksum", "errors", "model", "records"}
_BASE = {*_VALUES, "wire", "net", "store", "columnar"}
ALLOWED: dict[str, set[str]] = {
    "late": set(),
    "checksum": set(),
    "errors": set(),
    "model": {"errors"},
    "records": {"errors", "model"},
    "kernel": {"checksum", "errors", "model"},
    "quantity": _VALUES,
    "offset": _VALUES,
    "html": {*_VALUES, "quantity"},
    "wire": {*_VALUES, "kernel"},
    "net": _VALUES,
    "store": {*_VALUES, "quantity"},
    "columnar": {*_VALUES, "kernel"},
    "client": {*_BASE, "quantity", "html", "__init__"},
    "broker": {*_BASE, "quantity", "html", "__init__"},
    "spark": {*_VALUES, "quantity", "offset", "html", "columnar", "client", "__init__"},
    "cli": {*_BASE, "quantity", "offset", "client", "broker", "demo", "__init__"},
    # A program like those of users, which the command line starts.
    "demo": {*_VALUES, "quantity", "wire", "client", "store", "spark", "testing"},
    # Sees both sides, as tests do; only the demo sees it.
    "testing": {*_BASE, "quantity", "client", "broker", "spark"},
    "__init__": {*_VALUES, "spark"},  # `register` is in spark, and imported late.
    "__main__": {"cli"},
    **{shim: {"spark"} for shim in SHIMS},
}

# What puts two layers together that do not know each other: LWP's bytes and Arrow. A
# layer that may not see the one can't reach it through these.
BRIDGES = {f"{PACKAGE}.columnar.{name}": "wire" for name in ("decode", "encode")}

# Of another layer these may import one module alone: Spark knows no protocol.
NARROW = {("spark", "client"): f"{PACKAGE}.client.driver"}

# One package per protocol, in each of these layers. A protocol's package sees its own
# packages in the layers below, and no other protocol's. The other modules of these
# layers see no protocol at all.
SEPARATE = ("wire", "client", "broker")
PROTOCOLS = ("lwp", "rustlog", "kimberlite", "fluvio", "tank")
# These put protocols together, each with its reason.
COMPOSERS = {
    # The public names of the package, most of which are LWP's.
    f"{PACKAGE}.client.__init__",
    # A broker is made of its settings: one entry per protocol, and LWP's framing.
    f"{PACKAGE}.broker.embedded",
    # Shows the records of the store, which are LWP's.
    f"{PACKAGE}.broker.console.records",
}

# Foreign packages that only some layers may know.
RESERVED: dict[str, set[str]] = {
    "pyspark": {"spark", "demo", *SHIMS},
    "click": {"cli"},
    "rich": {"cli"},
    "pytest": {"testing"},
    "socket": {"net"},
    "ssl": {"net"},
    "socketserver": {"net"},
    "asyncio": {"net"},
}


def find_faults(module: str, source: str) -> list[str]:
    """Say which imports of a module break the rule.

    Args:
        module: its dotted name; that of a package ends in `.__init__`.
        source: its text.
    """
    layer = _layer(module)
    if layer not in ALLOWED:
        return [f"{module}: layer {layer!r} is not in the table"]
    faults = []
    tree = ast.parse(source)
    unrun = _unrun_lines(tree)
    for line, target in _imports(module, tree):
        # What is never run needs no foreign package, and may name its types.
        if line in unrun and target.split(".")[0] != PACKAGE:
            continue
        problem = _judge(module, layer, target)
        if problem:
            faults.append(f"{module}:{line}: imports {target}: {problem}")
    return faults


def _judge(module: str, layer: str, target: str) -> str | None:
    top = target.split(".")[0]
    if top not in (PACKAGE, *SHIMS):
        if layer in RESERVED.get(top, {layer}):
            return None
        return f"only {', '.join(sorted(RESERVED[top]))} may"
    other = _layer(target)
    allowed = {layer, *ALLOWED[layer], BRIDGES.get(module)}
    if other not in allowed:
        return f"{layer} may not import {other}"
    for bridge, reached in BRIDGES.items():
        if f"{target}.".startswith(f"{bridge}.") and reached not in allowed:
            return f"{layer} may not import {reached}"
    only = NARROW.get((layer, other))
    if only is not None and not f"{target}.".startswith(f"{only}."):
        return f"{layer} may import {only} alone"
    if layer in SEPARATE and other in SEPARATE and module not in COMPOSERS:
        mine, theirs = _protocol(module), _protocol(target)
        if theirs is not None and mine != theirs:
            return "protocols do not know each other" if mine else "it has no protocol"
    return None


def _protocol(module: str) -> str | None:
    name = module.split(".")[2:3]
    return name[0] if name and name[0] in PROTOCOLS else None


def _layer(module: str) -> str:
    top, _, rest = module.partition(".")
    return top if top != PACKAGE else rest.split(".")[0] or "__init__"


def _imports(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give the line and the absolute name of everything that is imported.

    `from a import b` gives `a.b`: whether b is a module or a name inside of a, its
    layer is the same, except that names of the top package itself are its version only.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                is_name = base == PACKAGE and alias.name.startswith("__")
                yield node.lineno, base if is_name else whole
        elif isinstance(node, ast.Call) and _is_import_call(node):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def _unrun_lines(tree: ast.AST) -> set[int]:
    """Find the lines that only a type checker reads."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"
        for part in node.body
        for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".")[: -node.level]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _is_import_call(node: ast.Call) -> bool:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    return name in ("import_module", "__import__")


def _modules() -> dict[str, Path]:
    files = [f for top in (PACKAGE, *SHIMS) for f in (ROOT / top).rglob("*.py")]
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files
    }


@each("module", sorted(_modules()))
def test_layers(module: str) -> None:
    source = _modules()[module].read_text(encoding="utf-8")
    assert find_faults(module, source) == []


def test_the_walk_finds_the_package() -> None:
    modules = _modules()
    assert {"lance_spark.errors", "lance_spark.__init__"} <= set(modules)
    assert {_layer(m) for m in modules} >= {"wire", "store", "columnar", "cli"}


# The walk has to see real imports, or it would pass anything.
def test_the_walk_sees_real_imports() -> None:
    file = _modules()["lance_spark.cli.check"]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = {target for _, target in _imports("lance_spark.cli.check", tree)}
    assert {"click", "lance_spark.store.check_store"} <= found


@each(
    ("module", "source"),
    [
        ("errors", "from lance_spark.model import Scan"),
        ("model", "from lance_spark.records import Records"),
        ("errors", "import lance_spark.model"),
        ("errors", "from lance_spark import __version__"),
        ("wire.lwp.frame", "import lance_spark"),
        ("cli.check", "from lance_spark import *"),
        ("model", "from lance_spark.wire import lwp"),
        ("offset", "import pyspark"),
        ("offset", "from lance_spark.client import LanceClient"),
        ("client.reader", "from lance_spark.offset import StreamOffset"),
        ("wire.lwp.frame", "from lance_spark.store import Store"),
        ("wire.lwp.frame", "from lance_spark.net import stream"),
        ("wire.lwp.frame", "from lance_spark.wire.tank import frame"),
        ("wire.lwp.frame", "from lance_spark.wire import tank"),
        ("wire.lwp.frame", "from ..tank import frame"),
        ("wire.lwp.__init__", "from ..tank import frame"),
        ("wire.assembler", "from lance_spark.wire.lwp import Frame"),
        ("wire.lwp.frame", "import socket"),
        ("wire.lwp.frame", "import asyncio.streams"),
        ("store.store", "from lance_spark.wire.lwp import scan"),
        ("store.store", "from lance_spark import columnar"),
        ("store.store", "def f():\n    from lance_spark.wire import lwp"),
        ("store.store", "import ssl"),
        ("columnar.decode", "import lance_spark.store.store as s"),
        ("columnar.columns", "from lance_spark.wire.lwp import scan"),
        ("columnar.columns", "import pyspark.sql"),
        ("kernel.twin", "from lance_spark.wire.lwp import scan"),
        ("records", "from lance_spark.kernel import weave"),
        ("net.stream", "from lance_spark.wire.lwp import FrameParser"),
        ("client.producer", "from lance_spark.broker import EmbeddedBroker"),
        ("client.producer", "import socket"),
        ("broker.server", "from lance_spark.client import LanceClient"),
        ("broker.server", "from socketserver import TCPServer"),
        ("spark.reader", "from lance_spark.store import Store"),
        ("spark.reader", "from lance_spark.wire.lwp import Fetch"),
        ("spark.reader", "from lance_spark.broker import EmbeddedBroker"),
        ("spark.reader", "from lance_spark.client import LanceClient"),
        ("spark.reader", "from lance_spark.client.lwp.driver import make_driver"),
        ("spark.reader", "import lance_spark.client.lwp"),
        ("spark.reader", "from lance_spark.columnar.decode import decode"),
        ("cli.check", "from lance_spark.spark import source"),
        ("cli.check", "def f():\n    import lance_spark.spark"),
        ("cli.check", 'import_module("lance_spark.spark")'),
        ("cli.check", "import pyspark"),
        ("broker.server", "import click"),
        ("broker.server", "import pytest"),
        ("broker.server", "from lance_spark.testing import run_broker"),
        ("cli.check", "from lance_spark.testing.scratch import run_broker"),
        ("testing.relay", "import socket"),
        ("testing.plugin", "import pyspark"),
        ("testing.scratch", "from lance_spark.cli.main import main"),
        ("__init__", "from lance_spark.store import Store"),
        ("__init__", "import pyspark"),
        ("__main__", "from lance_spark.store import Store"),
        ("utils", "import os"),
        ("store.store", "if TYPE_CHECKING:\n    pass\nelse:\n    import ssl"),
        ("store.store", "if TYPE_CHECKING:\n    from lance_spark.broker import server"),
        ("client.link", "from lance_spark.wire.lwp import Frame"),
        ("client.link", "from lance_spark.client.lwp import dialect"),
        ("client.tank.driver", "from lance_spark.wire.lwp import Frame"),
        ("client.tank.driver", "from lance_spark.client.lwp import dialect"),
        ("broker.session", "from lance_spark.broker.lwp.session import LwpSession"),
        ("broker.service", "if TYPE_CHECKING:\n    from lance_spark.wire import lwp"),
        ("broker.tank.session", "from lance_spark.broker.lwp import session"),
        ("store.store", "try:\n    import ssl\nexcept ImportError:\n    pass"),
    ],
)
def test_violation_is_found(module: str, source: str) -> None:
    assert len(find_faults(f"lance_spark.{module}", source)) == 1


@each(
    ("module", "source"),
    [
        ("model", "from lance_spark.errors import RecordError"),
        ("wire.lwp.frame", "from lance_spark.wire.lwp.message import U8"),
        ("wire.lwp.frame", "from .message import U8"),
        ("wire.lwp.frame", "import os, struct\nfrom lance_spark import errors"),
        ("wire.lwp.tlv", "from lance_spark import kernel"),
        ("wire.lwp.frame", "from lance_spark.wire.assembler import Assembler"),
        ("columnar.decode", "from lance_spark.wire.lwp import scan"),
        ("store.store", "from lance_spark.store.log import Log\nimport numpy"),
        ("net.stream", "import socket, ssl"),
        ("client.lwp.dialect", "from lance_spark.wire.lwp import FrameParser"),
        ("client.lwp.dialect", "from lance_spark.client.link import Link"),
        ("client.link", "from lance_spark.wire.assembler import Assembler"),
        ("broker.lwp.session", "from lance_spark.broker.session import Session"),
        ("broker.embedded", "from lance_spark.broker.lwp import session_maker"),
        ("broker.server", "from lance_spark.store import Store"),
        (
            "spark.reader",
            "import pyspark\nfrom lance_spark.client.driver import Driver",
        ),
        ("cli.check", "import click\nfrom lance_spark.broker import EmbeddedBroker"),
        ("cli.group", "from lance_spark import __version__"),
        ("testing.plugin", "import pytest\nfrom lance_spark.spark import local"),
        ("testing.plugin", "if TYPE_CHECKING:\n    from pyspark.sql import Row"),
        ("testing.scratch", "from lance_spark.broker import EmbeddedBroker"),
        ("testing.topic", "from lance_spark.client import LanceClient"),
        ("cli.offsets", "from lance_spark.offset import StreamOffset"),
        ("spark.stream", "from lance_spark.offset import StreamOffset"),
        ("__init__", "def register():\n    from lance_spark.spark import source"),
        ("__main__", "from lance_spark.cli.main import main"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert find_faults(f"lance_spark.{module}", source) == []


def test_shim_sees_spark_alone() -> None:
    assert (
        find_faults("pyspark_lance", "from lance_spark.spark import LanceSource") == []
    )
    assert find_faults("pyspark_lance", "from lance_spark.store import Store") != []
