"""The first view: tiles, the table of topics, sorting, filtering, live numbers."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from lance_spark import __version__
from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.log import connect
from tests.console.kit import OpenPage, StartConsole, cells, numbered, overflow, write


def test_it_lists_topics_and_says_who_it_is(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    write(broker, "orders", numbered(30))
    write(broker, "clicks", numbered(1200))
    page = open_page(broker)
    expect(page).to_have_title("Overview · LANCE console")
    expect(page.locator("#address")).to_have_text(broker.address)
    expect(page.locator("#version")).to_have_text(f"v{__version__}")
    expect(page.locator("#badge")).to_contain_text(re.compile("Healthy|Warning"))
    expect(page.get_by_role("table", name="Topics")).to_be_visible()
    assert cells(page, "Name") == ["clicks", "orders"]
    assert cells(page, "Records") == ["1,200", "30"]
    expect(page.get_by_text("2 topics", exact=True)).to_be_visible()
    for title in ("Records in", "Records out", "Connections", "Disk"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()


def test_without_topics_it_says_how_to_write_one(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    page = open_page(broker)
    expect(page.get_by_text("No topics yet: here is how to write one.")).to_be_visible()
    code = page.locator("pre code").inner_text()
    assert broker.address in code
    exec(compile(code, "the page's example", "exec"), {})
    expect(page.get_by_role("link", name="events")).to_be_visible()


def test_columns_are_sorted_by_keyboard_and_mouse(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    for name, count in (("a", 20), ("b", 3), ("c", 100)):
        write(broker, name, numbered(count))
    page = open_page(broker)
    expect(page.get_by_text("3 topics", exact=True)).to_be_visible()
    head = page.get_by_role("columnheader", name="Records")
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute(
        "aria-sort", "ascending"
    )
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert cells(page, "Name") == ["b", "a", "c"]
    page.keyboard.press("Space")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert cells(page, "Name") == ["c", "a", "b"]
    page.get_by_role("columnheader", name="Name").get_by_role("button").click()
    assert cells(page, "Name") == ["a", "b", "c"]
    expect(head).to_have_attribute("aria-sort", "none")


def test_the_filter_is_a_key_away(broker: EmbeddedBroker, open_page: OpenPage) -> None:
    for name in ("orders", "orders-late", "clicks"):
        write(broker, name, numbered(1))
    page = open_page(broker)
    expect(page.get_by_text("3 topics", exact=True)).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter")).to_be_focused()
    page.keyboard.type("ORDERS")
    expect(page.get_by_text("2 of 3 topics")).to_be_visible()
    assert cells(page, "Name") == ["orders", "orders-late"]
    page.keyboard.type(" nothing like it")
    expect(page.get_by_text("No topic has this in its name.")).to_be_visible()


def test_numbers_change_without_a_reload(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    write(broker, "orders", numbered(5))
    page = open_page(broker)
    records = page.locator("td[data-label=Records]")
    expect(records).to_have_text("5")
    page.evaluate("window.stays = true")
    write(broker, "orders", numbered(7))
    expect(records).to_have_text("12")
    write(broker, "payments", numbered(1))
    expect(page.get_by_role("link", name="payments")).to_be_visible()
    assert page.evaluate("window.stays")


def test_the_focus_stays_where_rows_move(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    write(broker, "a", numbered(2))
    write(broker, "b", numbered(3))
    page = open_page(broker)
    page.get_by_role("columnheader", name="Records").get_by_role("button").click()
    assert cells(page, "Name") == ["a", "b"]
    page.get_by_role("link", name="a", exact=True).focus()
    write(broker, "a", numbered(5))
    expect(page.locator("tbody tr").first).to_contain_text("b")
    expect(page.get_by_role("link", name="a", exact=True)).to_be_focused()


def test_many_topics_are_shown_in_parts(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    with LanceClient(broker.address) as client:
        for n in range(230):
            client.create_topic(f"topic-{n:03}")
    page = open_page(broker)
    expect(page.get_by_text("230 topics")).to_be_visible()
    assert len(cells(page, "Name")) == 200
    page.get_by_role("button", name="Show more (30 left)").click()
    assert len(cells(page, "Name")) == 230
    page.get_by_label("Filter").fill("topic-229")
    expect(page.get_by_text("1 of 230 topics")).to_be_visible()


def test_protocols_and_partitions(start: StartConsole, open_page: OpenPage) -> None:
    broker = start(tank="127.0.0.1:0", ui_admin=True)
    tank = f"tank://{broker.address_of('tank')}"
    with connect(tank) as client:
        client.append("orders", [b"a", b"b"], 1, create=True, partitions=12)
    write(broker, "alone", numbered(1))
    page = open_page(broker)
    protocols = page.get_by_role("region", name="Protocols")
    expect(protocols).to_be_visible()
    assert protocols.locator("dt").all_inner_texts() == ["lance", "tank"]
    with connect(tank):
        said = f"{broker.address_of('tank')}, 1 client"
        expect(protocols.locator("dd").nth(1)).to_have_text(said)
    expect(protocols.locator("dd").nth(1)).to_contain_text("0 clients")
    expect(page.get_by_text("2 topics", exact=True)).to_be_visible()
    assert cells(page, "Name") == ["alone", "orders 12 partitions"]
    assert cells(page, "Records") == ["1", "2"]
    assert overflow(page) <= 0
    page.get_by_role("link", name="orders 12 partitions", exact=True).click()
    expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    assert cells(page, "Partition") == [f"partition {n}" for n in range(12)]
    assert cells(page, "Records")[:3] == ["0", "2", "0"]
    assert overflow(page) <= 0
    page.get_by_role("link", name="partition 1", exact=True).click()
    expect(page.get_by_role("heading", name="orders/1", level=1)).to_be_visible()
    expect(page.locator("dl.facts")).to_contain_text("1 of 12")
    expect(page.get_by_role("button", name="Delete…")).to_have_count(0)
    expect(page.locator("tbody").first).to_contain_text("b")
    page.get_by_role("link", name="← orders").click()
    # All partitions are deleted in one step.
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_contain_text("orders in its 12 partitions")
    page.get_by_label("Type the topic's name to confirm").fill("orders")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("1 topic", exact=True)).to_be_visible()
    assert [log.metadata.name for log in broker.service.store.topics()] == ["alone"]
    page.goto(f"{broker.ui_url}#/partitions/orders")
    expect(page.get_by_text("Topic orders is not there.")).to_be_visible()


def test_lwp_alone_needs_no_list(broker: EmbeddedBroker, open_page: OpenPage) -> None:
    page = open_page(broker)
    expect(page.locator("#badge")).to_be_visible()
    expect(page.get_by_role("region", name="Protocols")).to_be_hidden()


def test_health_says_how_the_broker_is_set_up(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    page = open_page(broker)
    page.get_by_role("link", name=re.compile("^Health:")).click()
    expect(page.get_by_role("heading", name="Health", level=1)).to_be_visible()
    facts = dict(
        zip(
            page.locator("dt").all_inner_texts(),
            page.locator("dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["Address"] == broker.address
    assert facts["TLS"] == "off" and facts["Durability (fsync)"] == "none"
