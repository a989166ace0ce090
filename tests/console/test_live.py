"""What moves while one looks: consumers and their lag, stages, failures, restarts."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.console import stream
from lance_spark.client import (
    Consumer,
    GroupedConsumer,
    LanceClient,
    StageWriter,
    connect,
)
from lance_spark.client.lwp.offsets import consumer_id
from tests.console.kit import (
    PATIENCE_MS,
    OpenPage,
    Problems,
    StartConsole,
    numbered,
    write,
)


def test_consumers_and_their_lag(broker: EmbeddedBroker, open_page: OpenPage) -> None:
    write(broker, "orders", numbered(10))
    page = open_page(broker, "#/consumers")
    expect(page.get_by_text("No groups.")).to_be_visible()
    expect(page.get_by_text("No consumer has committed")).to_be_visible()
    with (
        LanceClient(broker.address) as client,
        Consumer(client, "orders", name="audit") as consumer,
        GroupedConsumer(client, "billing", ["orders"], auto_commit=False) as member,
    ):
        consumer.poll()
        consumer.commit()
        while member.poll(timeout_s=1.0) is None:
            pass
        member.commit()
        expect(page.get_by_role("heading", name="billing")).to_be_visible()
        members = page.get_by_role("table", name="Members of group billing")
        expect(members).to_contain_text(member.member_id)
        lag = page.get_by_role("table", name="Lag of group billing")
        behind = lag.locator("td[data-label='Records behind']")
        expect(behind).to_have_text("0")
        everybody = page.get_by_role("table", name="All consumers")
        expect(everybody.locator("tbody tr")).to_have_count(2)

        line = lag.get_by_role("img")
        expect(line).to_have_accessible_name(re.compile("^behind over time: 0 B at"))
        write(broker, "orders", numbered(25))
        expect(behind).to_have_text("25")
        expect(line).to_have_accessible_name(
            re.compile(r"^behind over time: 0 B at first, at most (\d+ B), now \1$")
        )


def test_a_group_that_comes_later_is_named(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    write(broker, "orders", numbered(10))
    topic = broker.service.store.find_topic("orders")
    assert topic is not None
    # As after a restart: its offset is known, its members are not back yet.
    number = consumer_id("billing")
    broker.service.store.commit_offset(number, topic.metadata.id, 0)
    page = open_page(broker, "#/consumers")
    group = page.get_by_role("table", name="All consumers").locator(
        "td[data-label=Group]"
    )
    expect(group).to_have_text("\N{EN DASH}")
    with (
        LanceClient(broker.address) as client,
        GroupedConsumer(client, "billing", ["orders"], auto_commit=False),
    ):
        expect(group).to_have_text("billing")


def test_stages_come_and_go(broker: EmbeddedBroker, open_page: OpenPage) -> None:
    page = open_page(broker, "#/stages")
    expect(page.get_by_text("No stages are open.")).to_be_visible()
    with LanceClient(broker.address) as client:
        with StageWriter(client, "orders", "job-1", 7) as stage:
            stage.send(b"not yet")
            content = stage.finish()
        row = page.locator("tbody tr")
        expect(row.locator("[data-label=Writer]")).to_have_text("job-1")
        expect(row.locator("[data-label=Sequence]")).to_have_text("7")
        expect(row.locator("[data-label=Batches]")).to_have_text("1")
        expect(page.get_by_role("button", name="Abort")).to_have_count(0)
        client.commit_stages("job-1", 7, [content])
    expect(page.get_by_text("No stages are open.")).to_be_visible()


def test_clients_come_and_go(start: StartConsole, open_page: OpenPage) -> None:
    broker = start(tank="127.0.0.1:0")
    page = open_page(broker, "#/clients")
    expect(page.get_by_text("No clients are connected.")).to_be_visible()
    with connect(f"tank://{broker.address_of('tank')}") as client:
        row = page.locator("tbody tr").first
        expect(row.locator("[data-label=Protocol]")).to_have_text("tank")
        expect(row.locator("th")).to_contain_text("127.0.0.1:")
        expect(row.locator("[data-label=Certificate]")).to_have_text("\N{EN DASH}")
        waiting = row.locator("[data-label='Waiting requests']")
        expect(waiting).to_have_text("0")
        client.append("orders", [b"one"], create=True)
        # Its long poll stands until a second record comes.
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(next, client.follow("orders"))
            expect(waiting).to_have_text("1")
            with connect(f"lance://{broker.address}") as other:
                other.append("orders", [b"two"])
                # A client of LWP may have more than one connection.
                lance = page.locator("[data-label=Protocol]").get_by_text("lance")
                expect(lance.first).to_be_visible()
            assert second.result(60)["value"].to_pylist() == [b"two"]
    expect(page.get_by_text("No clients are connected.")).to_be_visible()


def test_a_topic_that_is_deleted_meanwhile_is_an_error_that_is_shown(
    broker: EmbeddedBroker, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("404")
    write(broker, "orders", numbered(3))
    page = open_page(broker, "#/topics/orders")
    expect(page.locator("tr.record")).to_have_count(3)
    with LanceClient(broker.address) as client:
        client.delete_topic("orders")
    expect(page.get_by_text("Topic orders is not there.")).to_be_visible()
    expect(page.locator(".message.error")).to_contain_text("orders")
    expect(page.locator(".message.error .remedy")).not_to_be_empty()
    write(broker, "orders", numbered(2))
    expect(page.locator("tr.record")).to_have_count(2)


def test_the_page_outlives_the_broker(
    broker: EmbeddedBroker, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("net::ERR_", "503")
    write(broker, "orders", numbered(5))
    page = open_page(broker, "#/topics/orders")
    fact = page.locator(".facts div", has_text="Records").locator("dd")
    expect(fact).to_have_text("5")
    page.evaluate("window.stays = true")
    banner = page.locator("#lost")
    expect(banner).to_be_hidden()
    broker.stop()
    expect(banner).to_contain_text("Connection lost, trying again")
    page.get_by_role("button", name="Try now").click()
    expect(banner).to_be_visible()
    broker.start()
    write(broker, "orders", numbered(2))
    expect(banner).to_be_hidden()
    expect(page.get_by_text("The broker is back.")).to_be_visible()
    expect(fact).to_have_text("7")
    page.get_by_role("button", name="End ⇥").click()
    expect(page.locator("tr.record")).to_have_count(7)
    assert page.evaluate("window.stays")


def test_other_data_of_the_same_name_replaces_the_old(
    start: StartConsole, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("net::ERR_", "503")
    # Its data goes when it stops, and the topic is there again with the same id.
    broker = start(data_dir=None, topics={"orders": {}})
    made_s = int(time.time())
    write(broker, "orders", numbered(5))
    page = open_page(broker, "#/topics/orders")
    expect(page.locator("tr.record")).to_have_count(5)
    broker.stop()
    expect(page.locator("#lost")).to_contain_text("Connection lost")
    while int(time.time()) == made_s:  # Topics know the second they were made in.
        time.sleep(0.01)
    broker.start()
    expect(page.locator("tr.record")).to_have_count(0)
    write(broker, "orders", numbered(2))
    expect(page.locator("tr.record")).to_have_count(2)


def test_a_page_that_is_opened_too_early_waits(
    broker: EmbeddedBroker, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("ERR_FAILED")
    write(broker, "orders", numbered(5))
    page = open_page(broker)
    page.route("**/api/**", lambda route: route.abort())
    page.reload()
    expect(page.locator("#lost")).to_contain_text("Connection lost")
    page.unroute("**/api/**")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    expect(page.locator("#lost")).to_be_hidden()


COUNT_SHOWN = """() => {
  const line = document.querySelector(".chart:not([hidden]) .line-in");
  // Before the first event the line is there, and not drawn.
  return (line?.getAttribute("d") ?? "").split("L").length;
}"""
COUNT_NOTED = """async () =>
  (await (await fetch("/api/history?topic=orders")).json()).points.length"""


def test_rates_between_two_events_are_shown(
    start: StartConsole, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker notes three for each event, and the chart has them all."""
    monkeypatch.setattr(stream, "INTERVAL_S", 3.0)
    broker = start()
    write(broker, "orders", numbered(3))
    page = open_page(broker, "#/topics/orders")
    noted = page.evaluate(COUNT_NOTED) + 6
    ends_s = time.monotonic() + PATIENCE_MS / 1000
    while page.evaluate(COUNT_SHOWN) < noted:
        assert time.monotonic() < ends_s, "the chart has gaps"
        page.wait_for_timeout(200)  # No event tells of it.
