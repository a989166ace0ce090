"""Write the option tables of docs/options.md anew, from the table in the code.

usage: python scripts/write_options.py [PAGE]

A table stands between `<!-- options:NAME -->` and the next `<!-- /options -->`, where
NAME is a scope: all, read or write. Everything between them is replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lance_spark.spark.options import Scope, render_options

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
TABLES = {"all": Scope.ALL, "read": Scope.READ, "write": Scope.WRITE}


def replace_tables(page: str) -> str:
    """Return the text of the page with its tables as they have to be.

    Raises:
        ValueError: if there is no place for one of them.
    """
    for name, scope in TABLES.items():
        before, begin, rest = page.partition(f"<!-- options:{name} -->\n")
        _, end, after = rest.partition("<!-- /options -->")
        if not begin or not end:
            raise ValueError(f"no <!-- options:{name} --> ... <!-- /options --> there")
        page = f"{before}{begin}\n{render_options(scope)}\n\n{end}{after}"
    return page


def main() -> None:
    """Rewrite the page that is named, or the one of the project."""
    path = Path(sys.argv[1]) if sys.argv[1:] else PAGE
    page = path.read_text(encoding="utf-8")
    path.write_text(replace_tables(page), encoding="utf-8")


if __name__ == "__main__":
    main()
