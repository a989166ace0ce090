"""One Chromium for all tests of the page, a window and a broker for each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.console.kit import PATIENCE_MS, OpenPage, Problems, StartConsole
from tests.integration.certificate import Certificates, issue_certificates

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Making a store syncs the disk, which these tests would spend their time with.
MEMORY = Path("/dev/shm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, and have one process run all of it: it has the browser."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "open_page" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


# Of the package, not of the session: while it is there the thread has an event loop
# that runs, and tests elsewhere run their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser, started once."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no Chromium: scripts/browser installs it")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is missing: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        playwright.expect.set_options(timeout=PATIENCE_MS)
        # Root has no sandbox, and containers have little shared memory. What is opened
        # is our own page only.
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left at the end of the test, the last one first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(stack: ExitStack) -> StartConsole:
    """Start a broker with a console and some settings."""
    where = MEMORY if MEMORY.is_dir() else None

    def start(**settings: Any) -> EmbeddedBroker:
        directory = tempfile.TemporaryDirectory(prefix="lance-test-", dir=where)
        path = stack.enter_context(directory)
        defaults = {"ui": True, "fsync": "none", "data_dir": path}
        return stack.enter_context(EmbeddedBroker(**{**defaults, **settings}))

    return start


@pytest.fixture
def broker(start: StartConsole) -> EmbeddedBroker:
    """A broker with a console, as it comes: read-only, without tokens."""
    return start()


@pytest.fixture
def problems() -> Problems:
    """What went wrong in the browser; `expect` what the test is about."""
    return Problems()


@pytest.fixture
def open_page(
    browser: Browser, problems: Problems, stack: ExitStack
) -> Iterator[OpenPage]:
    """Open a console in a window of its own, and fail if anything goes wrong in it.

    It asks for `stack` so that windows are closed before the brokers they look at.
    """
    contexts = []

    def open_page(broker: EmbeddedBroker, view: str = "", **options: Any) -> Page:
        defaults = {
            "viewport": {"width": 1280, "height": 800},
            "timezone_id": "UTC",
            "locale": "en-GB",
            "color_scheme": "light",
            "reduced_motion": "reduce",
        }
        context = browser.new_context(**{**defaults, **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        problems.watch(page)
        page.goto(f"{broker.ui_url}{view}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems.unexpected == []


@pytest.fixture(scope="package")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of a server and of clients."""
    return issue_certificates(tmp_path_factory.mktemp("certificates"))
