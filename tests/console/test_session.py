"""Who may look and who may change: tokens, TLS, read-only and admin."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from lance_spark.client import LanceClient, StageWriter
from tests.console.kit import OpenPage, Problems, StartConsole, cells, numbered, write
from tests.integration.certificate import Certificates

TOKEN = "correct horse battery staple"

# Asks from within the page, as a script of the page would.
ASK = """([method, path, body]) => fetch(path, {
  method, body, headers: {"X-Lance-Console": "1", "Content-Type": "application/json"},
}).then((answer) => answer.status)"""


def ask(page: Page, method: str, path: str, body: str | None = None) -> int:
    """Ask the API from within the page; give the status."""
    status: int = page.evaluate(ASK, [method, path, body])
    return status


def test_a_token_lets_in_and_signing_out_ends_it(
    start: StartConsole, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("401")
    broker = start(tokens=(TOKEN,))
    write(broker, "orders", numbered(3), auth_token=TOKEN)
    page = open_page(broker)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_focused()
    expect(page.get_by_role("navigation", name="Views")).to_be_hidden()
    assert ask(page, "GET", "/api/overview") == 401

    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".message.error")).to_be_visible()
    expect(page.get_by_label("Token")).to_have_value("")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    expect(page.locator(".message")).to_have_count(0)
    # Neither scripts nor the page's storage have the token or the session.
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    page.reload()
    expect(page.get_by_role("link", name="orders")).to_be_visible()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_text("orders")).to_have_count(0)
    assert ask(page, "GET", "/api/overview") == 401
    assert not page.locator("#lost").is_visible()


def test_a_session_that_ends_elsewhere_asks_again(
    start: StartConsole, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("401")
    broker = start(tokens=(TOKEN,))
    page = open_page(broker)
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_text("No topics yet")).to_be_visible()
    assert ask(page, "DELETE", "/api/session") == 200
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_tls(
    start: StartConsole, open_page: OpenPage, certificates: Certificates
) -> None:
    broker = start(**certificates.server)
    write(broker, "orders", numbered(3), **certificates.client(None))
    assert broker.ui_url is not None and broker.ui_url.startswith("https://")
    page = open_page(broker, ignore_https_errors=True)
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.get_by_role("link", name="Health", exact=True).click()
    expect(page.locator(".facts div", has_text="TLS").locator("dd")).to_have_text("on")


def test_without_admin_there_is_nothing_to_change(
    start: StartConsole, open_page: OpenPage, problems: Problems
) -> None:
    problems.expect("403")
    broker = start()
    write(broker, "orders", numbered(3))
    page = open_page(broker)
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    expect(page.get_by_role("button", name="Create topic")).to_have_count(0)
    page.get_by_role("link", name="orders").click()
    expect(page.locator("tr.record")).to_have_count(3)
    expect(
        page.get_by_role("button", name=re.compile("Delete|Retention"))
    ).to_have_count(0)
    assert ask(page, "POST", "/api/topics", '{"name": "x"}') == 403
    assert ask(page, "DELETE", "/api/topics/orders") == 403
    retention = '{"max_age_s": 60, "max_bytes": null}'
    assert ask(page, "PUT", "/api/topics/orders/retention", retention) == 403
    assert (
        ask(page, "POST", "/api/stages/abort", '{"writer": "w", "sequence": 1}') == 403
    )
    with LanceClient(broker.address) as client:
        assert [topic.name for topic in client.topics()] == ["orders"]


def test_an_admin_creates_changes_and_deletes_a_topic(
    start: StartConsole, open_page: OpenPage, problems: Problems
) -> None:
    # The second topic of the same name, and what looks for the one that is deleted.
    problems.expect("400", "404", "409")
    broker = start(ui_admin=True)
    page = open_page(broker)
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name", exact=True).fill("events")
    page.get_by_label("Keep for at most", exact=True).fill("36")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_text("Topic events is created.")).to_be_visible()
    expect(page.get_by_role("link", name="events")).to_be_visible()
    assert cells(page, "Retention") == ["1 d 12 h"]

    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name", exact=True).fill("events")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("already exists")
    page.keyboard.press("Escape")

    page.get_by_role("link", name="events").click()
    page.get_by_role("button", name="Retention…").click()
    expect(page.get_by_label("Keep for at most", exact=True)).to_have_value("36")
    page.get_by_label("Keep for at most", exact=True).fill("")
    page.get_by_label("Keep at most", exact=True).fill("2")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator(".facts")).to_contain_text("2.0 GiB")

    page.get_by_role("button", name="Delete…").click()
    button = page.get_by_role("button", name="Delete", exact=True)
    name = page.get_by_label("Type the topic's name to confirm")
    name.fill("event")
    expect(button).to_be_disabled()
    name.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    name.fill("events")
    button.click()
    expect(page.get_by_text("Topic events is deleted.")).to_be_visible()
    expect(page.get_by_text("No topics yet")).to_be_visible()
    with LanceClient(broker.address) as client:
        assert client.topics() == []


def test_an_admin_aborts_stages(start: StartConsole, open_page: OpenPage) -> None:
    broker = start(ui_admin=True)
    with LanceClient(broker.address) as client:
        with StageWriter(client, "orders", "job-1", 7) as stage:
            stage.send(b"never committed")
            stage.finish()
        page = open_page(broker, "#/stages")
        row = page.locator("tbody tr")
        expect(row).to_contain_text("job-1")
        page.get_by_role("button", name="Abort all stages of job-1").click()
        page.get_by_role("button", name="Abort", exact=True).click()
        expect(page.get_by_text("1 stage is dropped.")).to_be_visible()
        expect(page.get_by_text("No stages are open.")).to_be_visible()
