"""What the site needs beyond the pages in docs/; MkDocs calls the `on_` functions.

The pages are written for the repository, where a link may lead to any file and a block
may have a title that tests read. Here files that are linked become pages of the site,
links are led to them, and titles are written in the way of the site. Nothing is written
outside of the site's directory.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
# Files of the repository that are pages of their own.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    f"{DOCS}/README.md": "index.md",
}
# Where the other files go that pages link to.
SOURCES = "source"

_LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".json": "json", ".c": "c"}
# A fenced block, which is left as it is, or a link or picture with its target.
_LINK = re.compile(
    r"^ *(`{3,}|~{3,}).*?^ *\1$|`[^`\n]*`|(?P<link>(?<=\]\()(?P<target>[^)\s]+)(?=\)))",
    re.MULTILINE | re.DOTALL,
)
_ITEM = re.compile(r" *(?:[-*+]|\d{1,9}\.) +(?=\S)")
_FENCED = re.compile(r"(`{3,}|~{3,})")
_FENCE = re.compile(r"^( *```)([\w-]+) +(\S.*)$", re.MULTILINE)
_SHORT = re.compile(r"<code>([^\s<]{1,24})</code>")
# Titles that tell the tests what to do, and people nothing.
_TITLES_OF_TESTS = ("not run", "with a member")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, and what those link to."""
    origins = {f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()}
    origins -= {f"{DOCS}/README.md"}
    waiting = [*sorted(origins), *(name for name in PAGES if name != "docs/README.md")]
    seen = set(origins)
    while waiting:
        origin = waiting.pop()
        if origin not in origins and origin not in seen:
            seen.add(origin)
            text = _render(origin)
            files.append(File.generated(config, _uri(origin), content=text))
        for target in _targets(origin):
            if not target.startswith(f"{DOCS}/") and target not in seen:
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to where the files are in the site, and name blocks in its way."""
    uri = page.file.src_uri
    origin = _origins().get(uri, f"{DOCS}/{uri}")
    if page.file.generated_by and uri.startswith(f"{SOURCES}/"):
        origin = _unpack(uri)
    markdown = _rewrite(markdown, lambda target: _lead(target, origin, uri))
    return _FENCE.sub(_name, indent_lists(markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Mark short names, which are not to be broken at their hyphens."""
    return _SHORT.sub(r'<code class="name">\1</code>', html)


def _name(found: re.Match[str]) -> str:
    fence, kind, title = found.groups()
    if "=" in title:
        return found[0]
    if title in _TITLES_OF_TESTS:
        return f"{fence}{kind}"
    return f'{fence}{kind} title="{title}"'


def _origins() -> dict[str, str]:
    return {uri: origin for origin, uri in PAGES.items() if origin.count("/") == 0}


# Lists.


def indent_lists(markdown: str) -> str:
    """Indent what is inside of list items as the site's Markdown wants it.

    In the repository it is inside if it starts below the item's text, and a list may
    follow a line of text. Here it is four columns per level and a line apart.
    """
    lines: list[str] = []
    # Where the text of each open item starts.
    open_items: list[int] = []
    fence, shift = "", 0
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        item = None if fence else _ITEM.match(line)
        if text and not fence:
            before = lines[-1].strip() if lines else ""
            # Else it goes on with the paragraph of the item, however it is indented.
            while open_items and indent < open_items[-1] and (item or not before):
                open_items.pop()
            if item and not open_items and before and not _follows_item(lines):
                lines.append("")
            shift = 4 * len(open_items) - (open_items[-1] if open_items else 0)
            if open_items and indent - open_items[-1] < 4:
                shift = 4 * len(open_items) - indent
        lines.append(" " * max(0, indent + shift) + text if text else "")
        if item:
            open_items.append(len(item[0]))
        if mark := _FENCED.match(text):
            fence = "" if fence and text.strip() == fence else fence or mark[1]
    return "\n".join(lines)


def _follows_item(lines: list[str]) -> bool:
    """Tell whether the last paragraph is that of an item of a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False


# Links.


def _rewrite(markdown: str, lead: Callable[[str], str]) -> str:
    def replace(found: re.Match[str]) -> str:
        return lead(found["target"]) if found["link"] else found[0]

    return _LINK.sub(replace, markdown)


def _targets(origin: str) -> Iterator[str]:
    """Give the files and directories that a Markdown file links to."""
    path = ROOT / origin
    if path.suffix != ".md":
        return
    markdown = path.read_text(encoding="utf-8")
    for found in _LINK.finditer(markdown):
        if found["link"] and (target := _resolve(found["target"], origin)):
            yield target


def _resolve(target: str, origin: str) -> str | None:
    """Find what a link of a file means; None if it is not in the repository."""
    path = unquote(target.partition("#")[0])
    if not path or re.match(r"[a-z]+:", path) or path.startswith("/"):
        return None
    base = posixpath.dirname(origin)
    found = posixpath.normpath(posixpath.join(base, path))
    if found.startswith("..") or not (ROOT / found).exists():
        return None
    # What there is to read of a directory.
    readme = f"{found}/README.md"
    return readme if (ROOT / readme).exists() else found


def _lead(target: str, origin: str, uri: str) -> str:
    path, hash_, anchor = target.partition("#")
    found = _resolve(target, origin)
    if found is None or not path:
        return target
    # Only headings have anchors; lines of a program have none here.
    anchor = f"{hash_}{anchor}" if found.endswith(".md") else ""
    return posixpath.relpath(_uri(found), posixpath.dirname(uri) or ".") + anchor


def _uri(origin: str) -> str:
    """Say where a file of the repository is in the site."""
    if origin in PAGES:
        return PAGES[origin]
    if origin.startswith(f"{DOCS}/"):
        return origin.removeprefix(f"{DOCS}/")
    path = ROOT / origin
    if path.is_dir():
        name = (
            f"{origin}/README.md" if (path / "README.md").exists() else f"{origin}.md"
        )
        return f"{SOURCES}/{name}"
    return f"{SOURCES}/{origin}" + ("" if origin.endswith(".md") else ".md")


def _unpack(uri: str) -> str:
    name = uri.removeprefix(f"{SOURCES}/")
    return name if (ROOT / name).exists() else name.removesuffix(".md")


# Files as pages.


def _render(origin: str) -> str:
    """Write a file of the repository as a page."""
    path = ROOT / origin
    if path.is_dir():
        return _render_directory(path, origin)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path.name}\n\n"
    if path.suffix == ".ipynb":
        return f"---\ntitle: {path.stem}\n---\n\n" + "\n\n".join(_render_cells(text))
    language = _LANGUAGES.get(path.suffix, "text")
    return f"{head}`{origin}`\n\n{_fence(text, language)}\n"


def _render_directory(path: Path, origin: str) -> str:
    names = sorted(p.name for p in path.iterdir() if p.name[0] not in "._")
    return f"# {origin}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"


def _render_cells(text: str) -> Iterator[str]:
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield _fence(source, "python")
        for output in cell.get("outputs", []):
            yield from _render_output(output)


def _render_output(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        address = f"data:image/png;base64,{picture}"
        yield f'<img alt="what the cell above shows" src="{address}">'
    elif "text/html" in data:
        yield f'<div class="output">\n{"".join(data["text/html"])}\n</div>'
    elif "text" in output or "text/plain" in data:
        shown = output.get("text") or data["text/plain"]
        yield _fence("".join(shown), "text")


def _fence(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
