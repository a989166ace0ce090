"""What the library logs, on standard error."""

from __future__ import annotations

import logging

import pytest

from lance_spark.cli.log import shown_log

logger = logging.getLogger("lance_spark.store.test")


def test_warnings_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_log():
        logger.info("of no interest")
        logger.warning("a disk\n is %s", "full")
        try:
            raise ValueError("a bug")
        except ValueError:
            logger.exception("session failed")
    assert capsys.readouterr() == (
        "",
        "lance-spark: warning: a disk is full\n"
        "lance-spark: error: session failed: ValueError: a bug\n",
    )


def test_verbose_tells_more(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_log(verbose=True):
        logger.info("of some interest")
        try:
            raise ValueError("a bug")
        except ValueError:
            logger.exception("session failed")
    err = capsys.readouterr().err
    assert "INFO lance_spark.store.test: of some interest\n" in err
    assert "Traceback" in err


def test_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger("lance_spark")
    before = root.level, list(root.handlers)
    with shown_log(verbose=True):
        assert root.level == logging.INFO
    assert (root.level, root.handlers) == before


def test_closed_stderr_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None: ...

    with shown_log():
        monkeypatch.setattr("sys.stderr", Gone())
        logger.warning("nobody hears this")
