"""Run the notebooks from clean, and write what they show into them: `make notebooks`.

    .venv/bin/python scripts/run_notebooks.py [--to DIRECTORY] [NAME…]

Each runs in a kernel of this Python, in a temporary directory, as it may be started
anywhere. What differs from run to run and says nothing (times of execution, the
version of Python) is not kept. With `--to` the results go elsewhere.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
# Of one cell. A quiet machine takes seconds.
TIMEOUT_S = 400


def run(path: Path) -> Any:
    """Run a notebook from clean, and return it with what it shows.

    Raises:
        CellExecutionError: a cell has raised something.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory() as directory:
        NotebookClient(
            notebook,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": directory}},
            timeout=TIMEOUT_S,
        ).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(description="Run the notebooks from clean.")
    parser.add_argument("--to", type=Path, default=NOTEBOOKS, metavar="DIRECTORY")
    parser.add_argument("names", nargs="*", metavar="NAME")
    chosen = parser.parse_args()
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if chosen.names and path.stem not in chosen.names:
            continue
        began_s = time.monotonic()
        nbformat.write(run(path), chosen.to / path.name)
        print(f"{path.name}: {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
