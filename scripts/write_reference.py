"""Write the pages of the API reference anew, from the names that packages export.

usage: python scripts/write_reference.py [DIRECTORY]

A page lists the public names of a package, each with the first sentence of its
docstring, so that it can be read in the repository; the site puts the whole
documentation of a name where its `:::` is. Without a directory docs/reference is
rewritten.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


@dataclass(frozen=True)
class Part:
    """A page of the reference.

    Attributes:
        file: its name.
        title: its heading.
        module: whose public names are on it.
        guide: the page that explains how they are used.
        text: what it says before the names.
        also: names of other modules that belong to it.
    """

    file: str
    title: str
    module: str
    guide: str
    text: str
    also: tuple[str, ...] = ()


PARTS = (
    Part(
        "spark.md",
        "Spark",
        "lance_spark",
        "reading.md",
        'The source has no names in Python: it is `format("lance")`, '
        '`format("rustlog")`, `format("kimberlite")`, `format("fluvio")` or '
        '`format("tank")` with its '
        "[options](../options.md). These are the names beside it.",
        also=(
            "lance_spark.spark.progress.StreamProgress",
            "lance_spark.spark.local.run_session",
            "lance_spark.spark.local.start_session",
        ),
    ),
    Part(
        "client.md",
        "Client",
        "lance_spark.client",
        "client.md",
        "Topics, producers, consumers, groups and exactly-once writes.",
    ),
    Part(
        "broker.md",
        "Broker",
        "lance_spark.broker",
        "broker.md",
        "A broker in threads of a program, and its settings.",
    ),
    Part(
        "testing.md",
        "Testing",
        "lance_spark.testing",
        "testing.md",
        "Brokers, topics and faults for tests of your own.",
    ),
    Part(
        "errors.md",
        "Errors",
        "lance_spark.errors",
        "errors.md",
        "Every error that is raised on purpose is a `LanceError`.",
    ),
)


def find_names(module: ModuleType) -> list[str]:
    """Give the public names of a module: those it lists, or the classes it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if not name.startswith("__")]
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


def summarise(value: object) -> str:
    """Give the first sentence of a docstring, on one line.

    Raises:
        ValueError: it has none.
    """
    text = inspect.getdoc(value)
    if not text:
        raise ValueError(f"{value!r} has no docstring")
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def render(part: Part) -> str:
    """Write a page."""
    module = importlib.import_module(part.module)
    names = [*(f"{part.module}.{name}" for name in find_names(module)), *part.also]
    rows = [f"| `{_show(name, part)}` | {_describe(name)} |" for name in names]
    parts = [
        f"# {part.title}",
        f"`{part.module}`: {part.text} [The guide](../{part.guide}) explains them.",
        "\n".join(["| name | what it is |", "|---|---|", *rows]),
        *(f"::: {name}" for name in names),
    ]
    return "\n\n".join(parts) + "\n"


def _show(name: str, part: Part) -> str:
    return name if name in part.also else name.removeprefix(f"{part.module}.")


def _describe(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    if not callable(value):
        return f"A constant, of type `{type(value).__name__}`."
    try:
        return summarise(value)
    except ValueError:
        raise ValueError(f"{name} has no docstring") from None


def render_index() -> str:
    """Write the first page of the reference."""
    rows = [f"| [{p.title}]({p.file}) | `{p.module}` | {p.text} |" for p in PARTS]
    table = "\n".join(["| page | package | what is in it |", "|---|---|---|", *rows])
    return (
        "# API reference\n\n"
        "Every public name, with its documentation as it is in the code. What is not "
        "listed here is an inner matter and may change with any version; "
        "[releasing](../releasing.md#what-is-public) says what is kept stable.\n\n"
        f"{table}\n"
    )


def render_all() -> dict[str, str]:
    """Write all pages, by their names."""
    pages = {part.file: render(part) for part in PARTS}
    return {"index.md": render_index(), **pages}


def main() -> None:
    """Write the pages into the directory that is named, or into that of the docs."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in render_all().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
