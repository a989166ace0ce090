"""What the tests of the console's page share: a browser window, and data to look at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request, Response

# Nothing here takes so long; a test that is about to hang fails instead.
PATIENCE_MS = 15_000

# Key and value.
Row = tuple["str | None", "bytes | None"]
StartConsole = Callable[..., EmbeddedBroker]
OpenPage = Callable[..., "Page"]


@dataclass
class Problems:
    """What went wrong in the browser, apart from what a test is about.

    Scripts that fail, requests that fail, answers with an error status, and whatever
    the browser writes to its console.
    """

    found: list[str] = field(default_factory=list)
    _expected: list[re.Pattern[str]] = field(default_factory=list)

    def expect(self, *patterns: str) -> None:
        """Take problems that match one of these patterns as right."""
        self._expected += [re.compile(pattern) for pattern in patterns]

    @property
    def unexpected(self) -> list[str]:
        """Give those that nobody has expected."""
        return [
            text
            for text in self.found
            if not any(pattern.search(text) for pattern in self._expected)
        ]

    def watch(self, page: Page) -> None:
        """Note what goes wrong in a page from now on."""
        page.on("pageerror", lambda error: self.found.append(f"script: {error}"))
        page.on("console", self._hear)
        page.on("requestfailed", self._see_failure)
        page.on("response", self._see_answer)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            where = message.location.get("url", "")
            self.found.append(f"console: {message.text} {where}")

    def _see_failure(self, request: Request) -> None:
        # The page itself gives up what it no longer needs, and so does a window that
        # is closed.
        if request.failure != "net::ERR_ABORTED":
            self.found.append(f"request: {request.failure} {request.url}")

    def _see_answer(self, response: Response) -> None:
        if response.status >= 400:
            self.found.append(f"answer: {response.status} {response.url}")


def write(
    broker: EmbeddedBroker, topic: str, rows: Iterable[Row], **options: Any
) -> None:
    """Write rows of key and value to a topic, which is made if it is not there."""
    with (
        LanceClient(broker.address, **options) as client,
        Producer(client, topic, create_topic=True) as producer,
    ):
        for key, value in rows:
            producer.send(value, key=key)


def numbered(count: int, first: int = 0) -> list[Row]:
    """Make rows of JSON that say which ones they are."""
    return [
        (f"k{n % 10}", b'{"n": %d, "name": "row %d"}' % (n, n))
        for n in range(first, first + count)
    ]


def cells(page: Page, column: str) -> list[str]:
    """Read what the shown rows of the first table have in a column."""
    from playwright.sync_api import expect

    # It comes with the first overview, and so do the rows.
    expect(page.locator("#badge")).to_be_visible()
    found: list[str] = page.locator(
        f"main table >> nth=0 >> tbody > tr:not(.detail) > [data-label='{column}']"
    ).all_inner_texts()
    return found


def overflow(page: Page) -> int:
    """Tell by how many pixels the page is wider than its window."""
    found: int = page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return found
