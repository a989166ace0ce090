"""The pictures of docs/console.md, taken of a broker at work.

`LANCE_SCREENSHOTS=1` (`make screenshots`) writes them to docs/images and lets the
broker work for a minute before, so that the charts show something. Otherwise they go to
a temporary directory: the test is that they can be taken.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from lance_spark.broker import EmbeddedBroker
from tests.console.kit import OpenPage, StartConsole
from tests.console.scenery import busy, fill

IS_FOR_DOCS = os.environ.get("LANCE_SCREENSHOTS") == "1"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
# Points of history, one a second, that there are at least before pictures are taken.
POINTS = 58 if IS_FOR_DOCS else 2
PATIENCE_S = POINTS + 30

# A line of at least two points.
_LINE = re.compile("^M.+L")
COUNT_POINTS = """async () =>
  (await (await fetch("/api/history")).json()).points.length"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the pictures go."""
    if not IS_FOR_DOCS:
        return tmp_path
    IMAGES.mkdir(exist_ok=True)
    return IMAGES


def take(page: Page, path: Path) -> None:
    """Take a picture of what is in the window."""
    page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size > 10_000


def wait_for_history(page: Page) -> None:
    """Wait until the charts have something to show."""
    end_s = time.monotonic() + PATIENCE_S
    while page.evaluate(COUNT_POINTS) < POINTS:
        assert time.monotonic() < end_s, "the broker notes no history"
        page.wait_for_timeout(200)  # No event tells of it.


def show_topic(broker: EmbeddedBroker, open_page: OpenPage) -> Page:
    """Open a topic with a record of it unfolded."""
    page = open_page(
        broker,
        "#/topics/orders?from=record:240&limit=20",
        viewport={"width": 1280, "height": 1100},
    )
    expect(page.locator("tr.record")).to_have_count(20)
    page.locator(".expand").nth(1).click()
    expect(page.locator(".chart-summary:visible")).to_contain_text("Now")
    return page


def test_pictures_for_the_docs(
    start: StartConsole, open_page: OpenPage, directory: Path, tmp_path: Path
) -> None:
    # Not in memory: how much room the disk has is in the picture.
    data_dir = str(tmp_path / "data")
    with EmbeddedBroker(data_dir=data_dir, fsync="none") as before:
        fill(before, share=1.0 if IS_FOR_DOCS else 0.02)
    broker = start(data_dir=data_dir)
    with busy(broker):
        page = open_page(broker, viewport={"width": 1280, "height": 480})
        wait_for_history(page)
        page.reload()
        expect(page.get_by_role("link", name="orders")).to_be_visible()
        expect(page.locator(".tile-value").first).not_to_have_text("0")
        take(page, directory / "console-overview.png")
        page.emulate_media(color_scheme="dark")
        take(page, directory / "console-overview-dark.png")
        page.emulate_media(color_scheme="light")
        page.get_by_role("link", name="Consumers").click()
        lag = page.get_by_role("table", name="Lag of group billing")
        expect(lag.locator("tbody tr")).to_have_count(2)
        expect(lag.locator(".spark-line").first).to_have_attribute("d", _LINE)
        page.set_viewport_size({"width": 1280, "height": 640})
        take(page, directory / "console-consumers.png")
        take(show_topic(broker, open_page), directory / "console-topic.png")
        phone = open_page(broker, viewport={"width": 400, "height": 820})
        expect(phone.get_by_role("link", name="orders")).to_be_visible()
        take(phone, directory / "console-phone.png")
