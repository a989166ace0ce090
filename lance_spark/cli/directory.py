"""Data directories that commands are given."""

from __future__ import annotations

from pathlib import Path

from lance_spark.errors import StoreError

# One of these is there unless all of a store is gone.
_TRACES = ("store.json", "journal.log", "segments")


def check_can_be_store(path: Path) -> None:
    """Refuse a path where something else is than a directory.

    Raises:
        StoreError: with the reason.
    """
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: not a directory: a broker keeps its data in one")


def check_is_store(path: Path) -> None:
    """Refuse a path where no store is, without making one there.

    Raises:
        StoreError: with the reason.
    """
    if not path.exists():
        raise StoreError(f"{path}: no such directory")
    if not path.is_dir():
        raise StoreError(f"{path}: not a directory; `lance-spark inspect` shows files")
    if not any((path / name).exists() for name in _TRACES):
        raise StoreError(f"{path}: there is no store here (no {', '.join(_TRACES)})")
