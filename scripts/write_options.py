"""Write the option tables of the docs anew, from the table in the code.

usage: python scripts/write_options.py [PAGE ...]

A table stands between `<!-- options:NAME -->` and the next `<!-- /options -->`, where
NAME is a scope: all, read, stream or write. Everything between them is replaced.
Without a page those of the project are rewritten.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lance_spark.spark.setting import Scope, render_options

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("options.md", "reading.md", "writing.md")
TABLES = {
    "all": Scope.ALL,
    "read": Scope.READ,
    "stream": Scope.STREAM_READ,
    "write": Scope.WRITE,
}
_TABLE = re.compile(r"(<!-- options:(\w+) -->\n).*?(<!-- /options -->)", re.DOTALL)


def replace_tables(page: str) -> str:
    """Return the text of a page with its tables as they have to be.

    Raises:
        ValueError: if it has no table, or one that there is not.
    """

    def render(found: re.Match[str]) -> str:
        if found[2] not in TABLES:
            raise ValueError(f"no table {found[2]}; there are {', '.join(TABLES)}")
        return f"{found[1]}\n{render_options(TABLES[found[2]])}\n\n{found[3]}"

    page, count = _TABLE.subn(render, page)
    if not count:
        raise ValueError("no <!-- options:NAME --> ... <!-- /options --> there")
    return page


def main() -> None:
    """Rewrite the pages that are named, or those of the project."""
    for path in map(Path, sys.argv[1:] or [str(DOCS / name) for name in PAGES]):
        page = path.read_text(encoding="utf-8")
        path.write_text(replace_tables(page), encoding="utf-8")


if __name__ == "__main__":
    main()
