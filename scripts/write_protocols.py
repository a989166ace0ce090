"""Write the tables on protocols of the docs anew, from the tables in the code.

usage: python scripts/write_protocols.py

A table stands between `<!-- protocols:NAME -->` and the next `<!-- /protocols -->`,
where NAME is one of `TABLES`. Everything between them is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from lance_spark.client.driver import find_protocol, protocols
from lance_spark.wire import fluvio, kimberlite, lwp, rustlog, tank
from lance_spark.wire.rustlog.error import _ROWS as RUSTLOG_ERRORS

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("protocols.md", "rustlog.md", "kimberlite.md", "fluvio.md", "tank.md")
_TABLE = re.compile(
    r"(<!-- protocols:([\w-]+) -->\n).*?(<!-- /protocols -->)", re.DOTALL
)

_NONE = "\N{EN DASH}"


def _render(*lines: Iterable[object]) -> str:
    head, *rows = [[str(cell) for cell in line] for line in lines]
    return "\n".join(
        f"| {' | '.join(cells)} |" if cells else f"|{'---|' * len(head)}"
        for cells in [head, [], *rows]
    )


def render_traits() -> str:
    """Write what the drivers say of their protocols."""
    rows = []
    for name in protocols():
        module = find_protocol(name)
        traits = module.TRAITS
        rows.append(
            [
                f"`{name}`",
                module.Config.default_port,
                traits.unit,
                traits.first_position,
                ", ".join(f"`{column}`" for column in traits.columns),
                ", ".join(f"`{kind}`" for kind in traits.compressions),
            ]
        )
    head = ["format", "port", "positions count", "first", "columns", "compression"]
    return _render(head, *rows)


def render_carried() -> str:
    """Write which protocol carries what, by the columns of its driver."""
    what = {
        "partition": "several partitions",
        "value": "value",
        "key": "key",
        "timestamp": "time of the record",
        "type": "type, and Null records",
    }
    columns = {name: find_protocol(name).TRAITS.columns for name in protocols()}
    rows = [
        [text, *("yes" if column in columns[name] else _NONE for name in columns)]
        for column, text in what.items()
    ]
    return _render(["", *(f"`{name}`" for name in columns)], *rows)


def render_limits() -> str:
    """Write the limits of the wire formats, in bytes."""
    limits = {
        "fluvio": (fluvio.PAYLOAD_BYTES_MAX, _NONE, _NONE),
        "kimberlite": (
            kimberlite.PAYLOAD_BYTES_MAX,
            kimberlite.EVENT_BYTES_MAX,
            _NONE,
        ),
        "lance": (
            lwp.PAYLOAD_BYTES_MAX,
            lwp.RECORD_VALUE_BYTES_MAX,
            lwp.record.KEY_BYTES_MAX,
        ),
        "rustlog": (rustlog.FRAME_BYTES_MAX, rustlog.VALUE_BYTES_MAX, _NONE),
        "tank": (tank.PAYLOAD_BYTES_MAX, _NONE, tank.KEY_BYTES_MAX),
    }
    names = protocols()
    rows = [
        [what, *(limits[name][row] for name in names)]
        for row, what in enumerate(("frame", "value", "key"))
    ]
    return _render(["bytes at most", *(f"`{name}`" for name in names)], *rows)


def render_rustlog_errors() -> str:
    """Write RustLog's codes and the classes that stand for them."""
    names = {kind.COMMAND: kind.__name__ for kind in rustlog.REQUESTS.values()}
    rows = [
        [
            f"`{code}`",
            f"`{kind.__name__}`",
            names[command] if command else "any request",
        ]
        for code, kind, command in RUSTLOG_ERRORS
    ]
    return _render(["code", "class", "in answer to"], *rows)


def render_tank_errors() -> str:
    """Write TANK's codes, the classes that stand for them, and what they mean."""
    rows = []
    told: list[object] = []
    for kind, codes in tank.ERROR_CODES.items():
        if codes in told:
            continue
        told.append(codes)
        for code, (exception, text) in sorted(codes.items()):
            rows.append([kind.name, f"`0x{code:02X}`", f"`{exception.__name__}`", text])
    return _render(["message", "code", "class", "meaning"], *rows)


def render_kimberlite_errors() -> str:
    """Write Kimberlite's codes and the classes that stand for them."""
    rows = [
        [f"`{code}`", name, f"`{kind.__name__}`"]
        for code, (name, kind) in sorted(kimberlite.ERROR_CODES.items())
    ]
    return _render(["code", "name", "class"], *rows)


def render_fluvio_errors() -> str:
    """Write Fluvio's codes, the classes that stand for them, and what they mean."""
    rows = [
        [f"`{code}`", f"`{kind.__name__}`", text]
        for code, (kind, text) in sorted(fluvio.ERROR_CODES.items())
    ]
    return _render(["code", "class", "meaning"], *rows)


TABLES: dict[str, Callable[[], str]] = {
    "traits": render_traits,
    "carried": render_carried,
    "limits": render_limits,
    "rustlog-errors": render_rustlog_errors,
    "kimberlite-errors": render_kimberlite_errors,
    "fluvio-errors": render_fluvio_errors,
    "tank-errors": render_tank_errors,
}


def replace_tables(page: str) -> str:
    """Return the text of a page with its tables as they have to be."""
    return _TABLE.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n\n{m[3]}", page)


def main() -> None:
    """Rewrite the pages."""
    for name in PAGES:
        page = (DOCS / name).read_text(encoding="utf-8")
        (DOCS / name).write_text(replace_tables(page), encoding="utf-8")


if __name__ == "__main__":
    main()
