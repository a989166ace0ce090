"""A topic's records: pages, jumps, searches, ways to show a value, following."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone

import pytest
from playwright.sync_api import Page, expect

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from tests.console.kit import OpenPage, Problems, cells, numbered, write


def numbers(page: Page) -> list[int]:
    """Read the record numbers of the page, once it is there."""
    expect(page.locator(".records-status")).not_to_have_text("Loading …")
    return [int(text.replace(",", "")) for text in cells(page, "Record")]


@pytest.fixture
def orders(broker: EmbeddedBroker) -> EmbeddedBroker:
    """A broker with 130 records in a topic."""
    write(broker, "orders", numbered(130))
    return broker


def test_pages_go_forward_and_back(orders: EmbeddedBroker, open_page: OpenPage) -> None:
    page = open_page(orders, "#/topics/orders")
    expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    expect(page.locator("tr.record")).to_have_count(50)
    assert numbers(page) == list(range(80, 130))
    expect(page.get_by_role("button", name="Next →")).to_be_disabled()

    page.get_by_role("button", name="⇤ Start").click()
    expect(page.locator("tr.record").first).to_contain_text("row 0")
    assert numbers(page) == list(range(50))
    expect(page.get_by_role("button", name="← Previous")).to_be_disabled()

    page.get_by_role("button", name="Next →").click()
    expect(page.locator("tr.record").first).to_contain_text("row 50")
    assert numbers(page) == list(range(50, 100))
    page.locator("h1").click()
    page.keyboard.press("n")
    expect(page.locator("tr.record").first).to_contain_text("row 100")
    assert numbers(page) == list(range(100, 130))
    page.keyboard.press("p")
    expect(page.locator("tr.record").first).to_contain_text("row 50")
    page.go_back()
    expect(page.locator("tr.record").first).to_contain_text("row 100")


def test_it_jumps_and_a_page_has_an_address(
    orders: EmbeddedBroker, open_page: OpenPage
) -> None:
    page = open_page(orders, "#/topics/orders?from=start&limit=20")
    expect(page.locator("tr.record")).to_have_count(20)
    page.get_by_label("Jump to").select_option("Record number")
    page.get_by_label("Offset or record number").fill("77")
    page.keyboard.press("Enter")
    expect(page.locator("tr.record").first).to_contain_text("row 77")
    offset = cells(page, "Offset")[3].replace(",", "")
    page.get_by_label("Jump to").select_option("Offset")
    page.get_by_label("Offset or record number").fill(offset)
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.locator("tr.record").first).to_contain_text("row 80")
    page.get_by_label("Page size").select_option("100")
    expect(page.locator("tr.record")).to_have_count(50)
    page.reload()
    expect(page.locator("tr.record").first).to_contain_text("row 80")


def test_it_jumps_to_a_time(broker: EmbeddedBroker, open_page: OpenPage) -> None:
    write(broker, "orders", numbered(3))
    between_ms = time.time_ns() // 1_000_000 + 2
    while time.time_ns() // 1_000_000 <= between_ms:
        pass  # Two milliseconds: the next append is behind them.
    write(broker, "orders", numbered(2, first=3))
    page = open_page(broker, f"#/topics/orders?from=time:{between_ms}")
    expect(page.locator("tr.record")).to_have_count(2)
    assert numbers(page) == [3, 4]

    page.get_by_label("Jump to").select_option("Time")
    page.get_by_label("Time", exact=True).fill("2020-01-01T00:00:00")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.locator("tr.record")).to_have_count(5)
    later = datetime.fromtimestamp(time.time() + 86_400, tz=timezone.utc)
    page.get_by_label("Time", exact=True).fill(later.strftime("%Y-%m-%dT%H:%M:%S"))
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.get_by_text("There are no records from here on.")).to_be_visible()


def test_it_searches_by_key_and_text(
    orders: EmbeddedBroker, open_page: OpenPage
) -> None:
    page = open_page(orders, "#/topics/orders")
    expect(page.locator("tr.record")).to_have_count(50)
    page.get_by_label("Key", exact=True).fill("k7")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".records-status")).to_contain_text("13 records found")
    assert set(cells(page, "Key")) == {"k7"}
    page.get_by_label("Text", exact=True).fill("row 1")
    page.keyboard.press("Enter")
    expect(page.locator(".records-status")).to_contain_text("4 records found")
    assert numbers(page) == [17, 107, 117, 127]
    page.get_by_label("Text", exact=True).fill("nobody wrote this")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("tr.record")).to_have_count(50)


def test_a_value_is_shown_as_json_text_and_hex(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    value = b'{"id": 12345678901234567890, "tags": [], "nested": {"a": [1, 2.50]}}'
    write(broker, "mixed", [("k", value), (None, bytes(range(20))), (None, None)])
    page = open_page(broker, "#/topics/mixed")
    page.get_by_role("button", name="Record at offset 0").press("Enter")
    box = page.get_by_label("Value", exact=True)
    assert box.inner_text() == (
        '{\n  "id": 12345678901234567890,\n  "tags": [],\n  "nested": {\n'
        '    "a": [\n      1,\n      2.50\n    ]\n  }\n}'
    )
    shown_as = page.get_by_role("group", name="Value shown as")
    shown_as.get_by_label("Text").check()
    assert box.inner_text() == value.decode()
    shown_as.get_by_label("Hex").check()
    assert box.inner_text().startswith("00000000  7b 22 69 64 22 3a 20 31  32 33")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == value

    page.locator(".expand").nth(0).click()
    page.locator(".expand").nth(1).click()
    expect(page.locator("tr.detail:visible pre")).to_contain_text(
        "00000000  00 01 02 03 04 05 06 07  08 09"
    )
    page.locator(".expand").nth(1).click()
    page.locator(".expand").nth(2).click()
    expect(page.get_by_text("This is a Null record")).to_be_visible()


def test_a_large_value_is_shown_in_part_and_then_whole(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    whole = json.dumps({"text": "x" * 200_000, "end": "the end"}).encode()
    write(broker, "large", [("k", whole)])
    page = open_page(broker, "#/topics/large")
    page.locator(".expand").click()
    box = page.get_by_label("Value", exact=True)
    assert "the end" not in box.inner_text()
    expect(page.get_by_text("The beginning of 195 KiB.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(box).to_contain_text("the end")


def test_following_adds_what_is_written(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    write(broker, "orders", numbered(3))
    page = open_page(broker, "#/topics/orders")
    expect(page.locator("tr.record")).to_have_count(3)
    page.get_by_role("button", name="Follow").click()
    expect(page.locator(".records-status")).to_contain_text("Following")
    write(broker, "orders", numbered(40, first=3))
    expect(page.locator("tr.record")).to_have_count(43)
    expect(page.locator("tr.record").last).to_be_in_viewport()
    write(broker, "orders", numbered(2000, first=43))
    expect(page.locator("tr.record").last).to_contain_text("row 2042")
    expect(page.locator("tr.record")).to_have_count(500)
    page.locator("h1").click()
    page.keyboard.press("f")
    expect(page.locator(".records-status")).not_to_contain_text("Following")


def test_an_empty_topic_says_so_and_shows_the_first_records(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    write(broker, "orders", [])
    page = open_page(broker, "#/topics/orders")
    expect(page.get_by_text("This topic is empty.")).to_be_visible()
    write(broker, "orders", numbered(2))
    expect(page.locator("tr.record")).to_have_count(2)


def test_the_topic_without_a_name_has_a_view_too(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    with LanceClient(broker.address) as client, Producer(client, 0) as producer:
        producer.send(b"to nobody in particular")
    page = open_page(broker)
    page.get_by_role("link", name="(default topic)").click()
    expect(page.locator("tr.record")).to_contain_text("to nobody in particular")
    page.locator(".expand").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b"to nobody in particular"


def test_facts_and_rates_are_live(orders: EmbeddedBroker, open_page: OpenPage) -> None:
    page = open_page(orders, "#/topics/orders")
    fact = page.locator(".facts div", has_text="Records").locator("dd")
    expect(fact).to_have_text("130")
    write(orders, "orders", numbered(1000))
    expect(fact).to_have_text("1,130")
    summary = page.locator(".chart-summary:visible")
    expect(summary).to_contain_text(re.compile("Highest in this time: [1-9]"))
    page.get_by_label("Bytes", exact=True).check()
    expect(page.get_by_text("Bytes per second")).to_be_visible()
    expect(page.locator(".chart:visible .line-in")).to_have_attribute(
        "d", re.compile("^M.+L")
    )


def test_a_topic_that_is_not_there_says_so(
    broker: EmbeddedBroker, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("404")
    page = open_page(broker, "#/topics/nobody")
    expect(page.get_by_text("Topic nobody is not there.")).to_be_visible()
    expect(page.locator(".message.error")).to_be_visible()
    page.get_by_role("button", name="Dismiss this message").click()
    expect(page.locator(".message.error")).to_have_count(0)
