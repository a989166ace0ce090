"""The documentation site: it builds strictly, fetches nothing, and is current."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from benchmarks.plot import PICTURES, draw, parse_quantity, read_tables
from tests.each import each
from tests.test_docs import ROOT, read

PAGES = sorted(path.name for path in ROOT.glob("docs/*.md"))
CHROMIUM = shutil.which("chromium")


def load(name: str) -> ModuleType:
    """Import a script of the repository."""
    scripts = str(ROOT / "scripts")
    sys.path.insert(0, scripts)
    try:
        return __import__(name)
    finally:
        sys.path.remove(scripts)


# The site as a whole.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, as `make docs` does."""
    directory = tmp_path_factory.mktemp("site")
    done = build(ROOT, "--site-dir", str(directory))
    assert done.returncode == 0, done.stderr
    return directory


def build(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build with the options that the Makefile has."""
    found = re.search(r"/mkdocs build(.*)", read("Makefile"))
    assert found is not None
    command = [sys.executable, "-m", "mkdocs", "build", *found[1].split(), *options]
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("# Title\n\n[a](#title)", ""),
        ("[a](nowhere.md)", "'nowhere.md'"),
        ("[a](#nowhere)", "'#nowhere'"),
        ("[a](/nowhere)", "'/nowhere'"),
        ("![a](nowhere.png)", "'nowhere.png'"),
    ],
)
def test_broken_link_fails_the_build(tmp_path: Path, page: str, said: str) -> None:
    """Strict is easily switched off by mistake: `--quiet` does."""
    found = re.search(r"^validation:\n(?:  .*\n)+", read("mkdocs.yml"), re.MULTILINE)
    assert found is not None
    config = f"site_name: test\nplugins: []\nnav: [index.md]\n{found[0]}"
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(page)
    done = build(tmp_path)
    assert said in done.stderr
    assert (done.returncode == 0) is (said == ""), done.stderr


class Reader(HTMLParser):
    """Collects what a page fetches, and its text apart from code."""

    _CODE = ("code", "pre", "script", "style")
    _BLOCKS = ("p", "li", "h1", "h2", "h3", "h4")

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text: list[str] = []
        self._code = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, Any]]) -> None:
        given = dict(attributes)
        if "src" in given:
            self.fetched.append(given["src"])
        if tag == "link" and given.get("rel") != "canonical":
            self.fetched.append(given["href"])
        self._code += tag in self._CODE
        if tag in self._BLOCKS:
            self.text.append("\n")
        if tag in ("td", "th"):
            self.text.append("cell ")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in self._CODE

    def handle_data(self, data: str) -> None:
        self.text.append("code" if self._code else data)


def read_page(path: Path) -> Reader:
    """Read a page of the site."""
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_site_has_every_page(site: Path) -> None:
    for name in PAGES:
        built = "index.html" if name == "README.md" else name.replace(".md", ".html")
        assert (site / built).exists(), name
    for name in ("contributing", "changelog", "security-policy", "reference/client"):
        assert (site / f"{name}.html").exists(), name
    titles = {entry["title"] for entry in read_index(site)}
    assert {"Quickstart", "LanceClient", "EmbeddedBroker", "TopicNotFound"} <= titles


def read_index(site: Path) -> list[dict[str, Any]]:
    """Read what the search knows."""
    text = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["docs"]
    return entries


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for path in pages:
        for address in read_page(path).fetched:
            assert not re.match(r"(https?:)?//", address), (path.name, address)
    for path in (site / "assets").rglob("*.css"):
        found = re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", path.read_text())
        assert found == [], path.name


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_no_markdown_is_left_over(site: Path) -> None:
    """What the repository shows as a list, link or block is one in the site, too."""
    raw = re.compile(r"^\s*(?:[-*+]|\d+\.) +\S|```|\]\(|^\s*\||:::", re.MULTILINE)
    for path in site.rglob("*.html"):
        text = "".join(read_page(path).text)
        assert not raw.search(text), (path.name, raw.search(text))


def note_failure(request: Any, problems: list[str]) -> None:
    """Take note of what could not be fetched, but not of what a click has ended."""
    if request.failure != "net::ERR_ABORTED":
        problems.append(request.url)


def search(page: Any, text: str) -> Any:
    """Search for something, and give the first of what is found."""
    page.get_by_placeholder("Search").click()
    # What is typed before the index is loaded may go unheard; keys are listened to.
    page.get_by_text("Type to start searching").wait_for(timeout=30_000)
    page.get_by_placeholder("Search").press_sequentially(text)
    found = page.locator(".md-search-result__link").first
    found.wait_for(timeout=30_000)
    return found


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.xdist_group("site")
def test_search_works_from_a_disk_and_without_a_network(site: Path) -> None:
    if CHROMIUM is None or find_spec("playwright") is None:
        pytest.skip("no Chromium: scripts/browser installs one")
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        try:
            page = browser.new_page()
            page.on("console", lambda message: problems.append(message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("requestfailed", lambda request: note_failure(request, problems))
            page.goto((site / "reference" / "client.html").as_uri())
            search(page, "exactly once").click()
            page.wait_for_url("**/*.html*")
            # The narrowest screen has no need to scroll sideways.
            page.set_viewport_size({"width": 400, "height": 800})
            page.goto((site / "options.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
        finally:
            browser.close()
    assert problems == []


# What makes pages of files.


@each(
    ("markdown", "indented"),
    [
        ("text\n- a\n- b", "text\n\n- a\n- b"),
        ("1. a\n   - b\n   - c\n2. d", "1. a\n    - b\n    - c\n2. d"),
        ("- a\n  - b\n    - c\n- d", "- a\n    - b\n        - c\n- d"),
        ("- a\n  more\n\n  far\n\nout", "- a\n    more\n\n    far\n\nout"),
        ("1. a\n\n    ```\n      b\n    ```", "1. a\n\n    ```\n      b\n    ```"),
        ("- a\n\n  ```\n  - b\n  ```\n- c", "- a\n\n    ```\n    - b\n    ```\n- c"),
        ("```\ntext\n- a\n```\n", "```\ntext\n- a\n```\n"),
        ("    code\n\ntext", "    code\n\ntext"),
    ],
)
def test_lists_are_indented_for_the_site(markdown: str, indented: str) -> None:
    assert load("docs_hook").indent_lists(markdown) == indented


class FakeFile:
    """What the hook looks at of a file of the site."""

    def __init__(self, src_uri: str, generated_by: str | None = None) -> None:
        self.src_uri = src_uri
        self.generated_by = generated_by


class FakePage:
    """What the hook looks at of a page."""

    def __init__(self, *arguments: str) -> None:
        self.file = FakeFile(*arguments)


@each(
    ("page", "markdown", "led"),
    [
        (("index.md",), "[a](../CONTRIBUTING.md#tests)", "[a](contributing.md#tests)"),
        (("index.md",), "[a](README.md)", "[a](index.md)"),
        (("index.md",), "[a](../LICENSE)", "[a](source/LICENSE.md)"),
        (
            ("index.md",),
            "[a](../tests/test_docs.py#L3)",
            "[a](source/tests/test_docs.py.md)",
        ),
        (("reference/client.md",), "[a](../client.md#x)", "[a](../client.md#x)"),
        (
            ("contributing.md", "hook"),
            "[a](docs/architecture.md) [b](CHANGELOG.md)",
            "[a](architecture.md) [b](changelog.md)",
        ),
        (
            ("source/README.md", "hook"),
            "![a](docs/images/x.svg) [b](docs/cli.md)",
            "![a](docs/images/x.svg) [b](../cli.md)",
        ),
        (("index.md",), "[a](https://x.y/z) [b](#c)", "[a](https://x.y/z) [b](#c)"),
        (("index.md",), "`[a](../LICENSE)`", "`[a](../LICENSE)`"),
        (
            ("index.md",),
            "```text\n[a](../LICENSE)\n```",
            "```text\n[a](../LICENSE)\n```",
        ),
        (("cli.md",), "```console not run\n```", "```console\n```"),
        (("cli.md",), "```json a/b.json\n```", '```json title="a/b.json"\n```'),
        (("cli.md",), '```py title="x"\n```', '```py title="x"\n```'),
    ],
)
def test_links_and_blocks_are_those_of_the_site(
    page: tuple[str, ...], markdown: str, led: str
) -> None:
    assert load("docs_hook").on_page_markdown(markdown, FakePage(*page)) == led


def test_notebooks_become_pages() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [
                {"output_type": "stream", "text": ["1\n"]},
                {"data": {"image/png": "QUJD\n", "text/plain": ["<Figure>"]}},
                {"data": {"text/html": ["<b>x</b>"], "text/plain": ["x"]}},
                {"data": {"text/plain": ["```"]}},
            ],
        },
    ]
    shown = list(load("docs_hook")._render_cells(json.dumps({"cells": cells})))
    assert shown == [
        "# Title\ntext",
        "```python\nprint(1)\n```",
        "```text\n1\n```",
        '<img alt="what the cell above shows" src="data:image/png;base64,QUJD">',
        '<div class="output">\n<b>x</b>\n</div>',
        "````text\n```\n````",
    ]


# What is written by scripts.


def test_reference_is_that_of_the_code() -> None:
    pages = load("write_reference").render_all()
    directory = ROOT / "docs" / "reference"
    assert {path.name for path in directory.iterdir()} == set(pages)
    for name, text in pages.items():
        written = (directory / name).read_text(encoding="utf-8")
        assert written == text, f"{name}: run scripts/write_reference.py"


def test_name_without_docstring_is_refused() -> None:
    def nothing_to_say() -> None:
        pass

    with pytest.raises(ValueError, match="no docstring"):
        load("write_reference").summarise(nothing_to_say)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_show_the_numbers_of_the_tables(picture: Any) -> None:
    page = read("docs/performance.md")
    file = f"images/bench-{picture.name}.svg"
    assert f"]({file})" in page
    drawn = draw(picture, page)
    written = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert written == drawn, f"{file}: run python -m benchmarks.plot"


def test_bars_are_as_long_as_the_numbers() -> None:
    page = (
        "<!-- bench:store -->\n\nAppending large batches:\n\n"
        "| append | bytes/s | plain file, bytes/s |\n| --- | ---: | ---: |\n"
        "| one | 500 MB | 1 GB |\n| two & more | 2 GB | 250 MB |\n\n<!-- /bench -->"
    )
    (picture,) = (picture for picture in PICTURES if picture.name == "store")
    drawn = draw(picture, page)
    bars = re.findall(r'width="([\d.]+)" height="16.0"', drawn)
    assert bars == ["100.0", "200.0", "400.0", "50.0"]
    assert ">500 MB<" in drawn and "two &amp; more" in drawn
    with pytest.raises(ValueError, match="no column"):
        draw(picture, page.replace("plain file", "other"))
    with pytest.raises(ValueError, match="bench:spark"):
        read_tables(page, "spark")


@pytest.mark.parametrize(
    ("text", "value"),
    [("62 M", 62e6), ("1.24 GB", 1.24e9), ("0.036 x", 0.036), ("238 ms", 0.238)],
)
def test_quantities_are_read(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_quantity("fast")


# What GitHub reads.


def test_workflow_runs_what_everybody_runs() -> None:
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    (job,) = workflow["jobs"].values()
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    oldest = re.search(r'requires-python = ">=([\d.]+)"', read("pyproject.toml"))
    assert oldest is not None and oldest[1] in job["strategy"]["matrix"]["python"]


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_issue_forms_are_complete(name: str) -> None:
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    assert form["name"] and form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert all(part["id"] and part["attributes"]["label"] for part in asked)
