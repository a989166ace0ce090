"""Data directories that commands are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.cli.directory import check_is_store
from lance_spark.errors import StoreError


def test_store(store_path: Path) -> None:
    check_is_store(store_path)


def test_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, text in (
        (tmp_path / "none", "no such directory"),
        (tmp_path / "file", "not a directory"),
        (tmp_path, "there is no store here"),
    ):
        with pytest.raises(StoreError, match=text):
            check_is_store(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
