"""The page as such: hostile content, narrow windows, colours, contrast, keyboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker import console as console_package
from lance_spark.client import Consumer, LanceClient, StageWriter
from tests.console.kit import OpenPage, Row, cells, numbered, overflow, write

PAGE = Path(console_package.__file__).parent / "page"
STYLE = (PAGE / "style.css").read_text(encoding="utf-8")

# What would turn text into markup or code.
MAKES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
)
MARKUP = "<img src=x onerror=\"document.title='owned'\">"
RIGHT_TO_LEFT = "evil\u202egnp.exe"
# What browsers might take for something else than text.
HOSTILE: list[Row] = [
    (MARKUP, MARKUP.encode()),
    (
        f"<script>{MARKUP}",
        b"</pre></td></table><script>document.title='owned'</script>",
    ),
    ("nul\0key", b"a\0b\0<b>bold</b>"),
    (RIGHT_TO_LEFT, RIGHT_TO_LEFT.encode()),
    (None, b"<b>" * 350_000),
    (None, b"\xff\xfe<svg onload=alert(1)>"),
    (None, b'{"__proto__": {"x": "<img src=x onerror=alert(1)>"}}'),
    (None, b"[" * 60_000),
    ("x" * 60_000, b""),
]


def test_records_are_text_and_nothing_else(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    # A slash can't be in a name, and need not be for markup.
    topic = "<img src=x onerror=alert(1)>" + RIGHT_TO_LEFT
    write(broker, topic, HOSTILE)
    with LanceClient(broker.address) as client:
        with StageWriter(client, topic, MARKUP, 1) as stage:
            stage.send(b"x")
            stage.finish()
        with Consumer(client, topic, name=MARKUP) as consumer:
            consumer.poll()
            consumer.commit()
    page = open_page(broker)
    link = page.get_by_role(
        "link", name="<img src=x onerror=alert(1)>evil⟨U+202E⟩gnp.exe"
    )
    link.click()
    expect(page.locator("tr.record")).to_have_count(len(HOSTILE))
    for button in page.locator(".expand").all():
        button.click()
    for mode in ("JSON", "Text", "Hex"):
        for choice in page.get_by_role("radio", name=mode, exact=True).all():
            choice.check()
    assert overflow(page) == 0
    assert "⟨U+202E⟩" in cells(page, "Key")[3]
    for view in ("Consumers", "Stages", "Clients", "Health"):
        page.get_by_role("link", name=view, exact=True).click()
        expect(page.get_by_role("heading", name=view, level=1)).to_be_visible()
        if view not in ("Clients", "Health"):
            expect(page.locator("tbody tr").first).to_be_visible()
    page.evaluate("history.go(-4)")
    expect(page.locator("tr.record")).to_have_count(len(HOSTILE))
    # One image: the mark in the header, which is ours.
    assert page.locator("img").count() == 1
    assert page.locator("script").count() == 2
    assert page.title().endswith("· LANCE console")


def test_400_pixels_are_enough(broker: EmbeddedBroker, open_page: OpenPage) -> None:
    write(broker, "orders", [*numbered(5), ("k" * 300, b"v" * 300)])
    write(broker, "n" * 200, numbered(1))
    with LanceClient(broker.address) as client:
        with Consumer(client, "orders", name="audit") as consumer:
            consumer.commit()
        with StageWriter(client, "orders", "w" * 200, 1) as stage:
            stage.send(b"x")
            stage.finish()
    page = open_page(broker, viewport={"width": 400, "height": 800})
    for view, title, row in (
        ("#/", "Overview", "tbody tr"),
        ("#/consumers", "Consumers", "tbody tr"),
        ("#/stages", "Stages", "tbody tr"),
        ("#/clients", "Clients", ".empty-title"),
        ("#/health", "Health", "dd"),
        ("#/topics/orders", "orders", "tr.record"),
    ):
        page.evaluate("(view) => { location.hash = view }", view)
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(page.locator(row).first).to_be_visible()
        assert overflow(page) == 0, view
    page.locator(".expand").last.click()
    expect(page.locator("tr.detail:visible pre").first).to_be_visible()
    assert overflow(page) == 0


def test_colours_follow_the_system_and_the_choice(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    def background() -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    page = open_page(broker, color_scheme="dark")
    dark = background()
    page.emulate_media(color_scheme="light")
    light = background()
    assert light != dark
    page.get_by_label("Colours").select_option("Dark")
    assert background() == dark
    page.reload()
    assert background() == dark
    page.get_by_label("Colours").select_option("Auto")
    assert background() == light


def test_everything_can_be_reached_with_the_keyboard(
    broker: EmbeddedBroker, open_page: OpenPage
) -> None:
    write(broker, "orders", numbered(2))
    page = open_page(broker)
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "orders":
            break
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.get_by_label("Single keys").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_every_control_has_a_name(broker: EmbeddedBroker, open_page: OpenPage) -> None:
    write(broker, "orders", numbered(2))
    page = open_page(broker, "#/topics/orders")
    page.locator(".expand").first.click()
    for control in page.locator("button, input, select, a[href]").all():
        if control.is_visible():
            expect(control).to_have_accessible_name(re.compile(r"\w|\?"))
    heads = page.locator("thead th")
    assert heads.count() == heads.and_(page.locator("[scope=col]")).count() > 0


# Contrast (WCAG 2, 1.4.3), computed from the style sheet.


def _read_colours() -> dict[str, tuple[str, str]]:
    pairs = re.findall(
        r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STYLE
    )
    return {name: (light, dark) for name, light, dark in pairs}


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


BACKGROUNDS = ("page", "panel", "raised")
TEXTS = [
    *((text, back) for text in ("text", "muted", "link") for back in BACKGROUNDS),
    ("on-accent", "accent"),
    ("error", "panel"),
    *((kind, f"{kind}-back") for kind in ("ok", "warning", "error")),
    *(("text", f"{kind}-back") for kind in ("ok", "warning", "error")),
]
# Lines of charts, borders of controls, the focus: 3 to 1 is enough (1.4.11).
MARKS = [
    *((mark, "panel") for mark in ("accent", "out", "control", "focus")),
    ("control", "page"),
    ("focus", "page"),
]


def test_contrast_is_known() -> None:
    assert _contrast("#000000", "#ffffff") == 21
    assert round(_contrast("#777777", "#ffffff"), 2) == 4.48


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(theme: int) -> None:
    colours = _read_colours()
    faint = {
        (text, back): round(_contrast(colours[text][theme], colours[back][theme]), 2)
        for pairs, least in ((TEXTS, 4.5), (MARKS, 3.0))
        for text, back in pairs
        if _contrast(colours[text][theme], colours[back][theme]) < least
    }
    assert faint == {}


def test_colours_come_from_the_variables_alone() -> None:
    """A colour that is written elsewhere would escape the test above."""
    rules = STYLE[STYLE.index("* { box-sizing") :]
    assert re.findall(r"#[0-9a-f]{3,8}\b", rules) == []
    used = set(re.findall(r"(?<![-\w])color: var\(--([\w-]+)\)", rules))
    assert used <= {text for text, _ in TEXTS}


# What the page is made of.


def test_every_module_is_asked_for_at_once() -> None:
    index = (PAGE / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|modulepreload" href)="/static/(\w+\.js)"', index)
    assert sorted(named) == sorted(file.name for file in PAGE.glob("*.js"))


def test_the_page_asks_nobody_else_and_writes_no_markup() -> None:
    files = sorted(PAGE.iterdir())
    assert {"index.html", "style.css", "app.js", "icon.svg"} <= {f.name for f in files}
    for file in files:
        source = file.read_text(encoding="utf-8")
        hosts = re.findall(r"https?://([\w.]+)", source)
        assert set(hosts) <= {"www.w3.org"}, file.name
        assert not MAKES_MARKUP.search(source), file.name
