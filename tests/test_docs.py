"""README and docs: snippets run, links lead somewhere, tables and bytes are true.

One file for all pages, long as it is: what takes blocks and tables out of a page is
shared by all of it.
"""

from __future__ import annotations

import glob
import importlib.util
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import click
import pytest

from benchmarks.plot import read_tables
from lance_spark import errors
from lance_spark.broker import BrokerConfig
from lance_spark.broker.access import Policy, Principal, decide, parse_rule
from lance_spark.broker.config import parse_settings
from lance_spark.broker.metrics import METRICS
from lance_spark.cli.group import COMMANDS, group
from lance_spark.cli.main import main
from lance_spark.client import ClientConfig, GroupedConsumer, LanceClient
from lance_spark.store import StoreConfig, check_store
from lance_spark.wire.lwp import ERROR_CODES, validate
from tests.child import Child
from tests.each import each

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
# tests/wire/test_docs.py runs those of docs/codec.md, tests/spark/test_docs.py those of
# the README and of the pages on Spark and protocols.
WITH_SNIPPETS = (
    "docs/broker.md",
    "docs/client.md",
    "docs/columnar.md",
    "docs/console.md",
    "docs/errors.md",
    "docs/security.md",
    "docs/store.md",
    "docs/store-format.md",
)

# What tables show where there is nothing.
NOT_SET = "\N{EN DASH}"

_BLOCK = re.compile(r"^```(\S*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[tuple[str, str]]:
    """Return title and text of the fenced blocks of a kind."""
    return [(t, text) for name, t, text in _BLOCK.findall(read(page)) if name == kind]


def run_snippets(page: str) -> None:
    """Run the shell blocks of a page, then the Python blocks in one namespace."""
    names: dict[str, Any] = {}
    for _, source in blocks(page, "sh"):
        if "openssl" in source and shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        subprocess.run(
            ["bash", "-euc", source], check=True, capture_output=True, timeout=300
        )
    for number, (_, source) in enumerate(blocks(page, "python"), 1):
        exec(compile(source, f"{page} snippet {number}", "exec"), names)


def parse_hex(text: str) -> bytes:
    """Read lines of hex, each with a comment behind at least two spaces."""
    return bytes.fromhex("".join(line.split("  ")[0] for line in text.splitlines()))


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the first table below a heading, by their first cell."""
    section = read(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.mark.parametrize("page", WITH_SNIPPETS)
def test_snippets_run_and_leave_a_clean_store(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    run_snippets(page)
    if Path("data").exists():
        assert check_store("data", framing=validate) == []


@each("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        found = page.parent / target if target else page
        assert found.exists(), link
        if anchor:
            headings = _HEADING.findall(found.read_text(encoding="utf-8"))
            assert anchor in map(anchor_of, headings), link


def anchor_of(heading: str) -> str:
    """Make the anchor that Markdown viewers make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_index_lists_every_page() -> None:
    pages = {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"}
    assert pages <= set(_LINK.findall(read("docs/README.md")))


@each("page", PAGES, ids=lambda path: path.name)
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^\$ )make ([a-z-]+)\b", text, re.MULTILINE)
    assert set(named) <= set(targets)


def test_readme_lists_every_make_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", read("Makefile"), re.MULTILINE)
    listed = {name.removeprefix("make ") for name in rows_of("README.md", "Targets")}
    assert listed == set(targets)


def show_default(value: object) -> str:
    """Write a default as the tables do."""
    if value in (None, (), {}):
        return NOT_SET
    return f"`{value.value if isinstance(value, Enum) else value}`"


@pytest.mark.parametrize(
    ("page", "heading", "config"),
    [
        ("docs/store.md", "Settings", StoreConfig()),
        ("docs/broker.md", "Settings", BrokerConfig()),
        ("docs/client.md", "Connect", ClientConfig()),
    ],
)
def test_every_setting_is_documented_with_its_default(
    page: str, heading: str, config: Any
) -> None:
    table = rows_of(page, heading)
    names = [field.name for field in fields(config)]
    assert sorted(table) == sorted(names)
    for name in names:
        shown = show_default(getattr(config, name))
        # A switch is written as in the file where there is one.
        if page == "docs/broker.md":
            shown = {"`True`": "`true`", "`False`": "`false`"}.get(shown, shown)
        assert table[name][0] == shown, name
        assert table[name][1], name


@pytest.mark.parametrize("page", ["docs/broker.md", "docs/security.md"])
def test_configuration_files_can_be_used(page: str) -> None:
    files = blocks(page, "toml")
    assert files
    for _, text in files:
        settings = parse_settings(tomllib.loads(text), where=page)
        config = BrokerConfig(**settings)
        for topic in config.topics.values():
            parse_rule(topic.get("auth"))


def test_tied_client_is_as_the_page_says() -> None:
    (text,) = (t for _, t in blocks("docs/security.md", "toml") if "partner" in t)
    topics = tomllib.loads(text)["topics"]
    rules = {n: parse_rule(topics[name]["auth"]) for n, name in enumerate(topics, 1)}
    known = {n: rule for n, rule in rules.items() if rule is not None}
    policy = Policy(authority=frozenset([b"any"]), rules=known)

    def may(name: str) -> list[int]:
        client = Principal(name, frozenset([b"any"]))
        return [n for n in (1, 2, 3) if decide(client, policy, n) is None]

    assert may("partner") == [1, 2]
    assert may("billing") == [1, 3]


def test_every_metric_is_documented() -> None:
    table = rows_of("docs/broker.md", "Metrics")
    assert list(table) == [metric.name for metric in METRICS]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or NOT_SET
        assert table[metric.name] == [metric.kind, labels, metric.help]


def test_every_error_code_is_documented() -> None:
    table = rows_of("docs/errors.md", "Codes")
    assert list(table) == [f"0x{code:02X}" for code in ERROR_CODES]
    for code, known in ERROR_CODES.items():
        name, exception, retriable, cause, remedy = table[f"0x{code:02X}"]
        assert (name, remedy) == (known.name, known.remedy)
        assert exception == f"`{known.exception.__name__}`"
        assert retriable == ("yes" if known.retriable else "no")
        assert cause.endswith(".")


def test_every_error_of_the_client_is_documented() -> None:
    table = rows_of("docs/errors.md", "Errors of the client")
    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    others = (errors.BrokerError, errors.StoreError)
    names = {k.__name__ for k in kinds if issubclass(k, errors.LanceError)}
    names -= {k.__name__ for k in kinds if issubclass(k, others)}
    assert set(table) == names - {"ProtocolError"}
    for name, row in table.items():
        assert row[0] == ("yes" if getattr(errors, name).retriable else "no")
        assert len(row) == 3 and all(row), name


def test_architecture_names_every_module() -> None:
    page = read("docs/architecture.md")
    section = page.partition("\n## Where things are\n")[2].partition("\n## ")[0]
    named = set()
    for line in section.splitlines():
        folder = ""
        for name in re.findall(r"`([\w/]+\.py)`", line):
            # A row names its folder once.
            folder = name[: name.rfind("/") + 1] or folder
            named.add(folder + name[name.rfind("/") + 1 :])
    package = ROOT / "lance_spark"
    there = {str(p.relative_to(package)) for p in package.rglob("*.py")}
    # The command line is a module per command, which its own page lists.
    there = {name for name in there if "__" not in name and not name.startswith("cli/")}
    assert named == there


def test_every_store_error_is_documented() -> None:
    table = rows_of("docs/store.md", "Errors")
    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    names = {kind.__name__ for kind in kinds if issubclass(kind, errors.StoreError)}
    others = {"OptionError", "RecordError", "Timeout"}
    assert set(table) == names | others
    assert all(len(row) == 2 and all(row) for row in table.values())


def test_format_shows_the_bytes_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "docs/store-format.md"
    monkeypatch.chdir(tmp_path)
    run_snippets(page)
    shown = dict(blocks(page, "hex"))
    assert len(shown) == 4
    for name, text in shown.items():
        written = (tmp_path / "data" / name).read_bytes()
        if name == "journal.log":
            written = written[:68]  # The entries are shown as JSON.
        assert parse_hex(text).hex(" ") == written.hex(" "), name
    documents = {name: text for name, text in blocks(page, "json") if name}
    journal = documents.pop("journal.log")
    for name, text in documents.items():
        assert text == (tmp_path / "data" / name).read_text(), name
    assert parse_documents(journal) == read_journal(tmp_path / "data" / "journal.log")


def parse_documents(text: str) -> list[Any]:
    """Read JSON documents that stand one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def read_journal(path: Path) -> list[Any]:
    """Read the entries of a journal as the page says that they are written."""
    data, found, at = path.read_bytes(), [], 64
    while at < len(data):
        assert data[at : at + 4] == b"LSJE"
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        found.append(json.loads(data[at + 12 : at + 12 + length]))
        at += 12 + length
    return found


def test_tables_of_protocols_are_those_of_the_code() -> None:
    path = ROOT / "scripts" / "write_protocols.py"
    spec = importlib.util.spec_from_file_location("write_protocols", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = "".join(read(f"docs/{name}") for name in script.PAGES)
    assert found == script.replace_tables(found)
    assert {*re.findall(r"<!-- protocols:([\w-]+) -->", found)} == set(script.TABLES)


# The command line.


def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Give a command and all that are below it, by their full names."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            assert found is not None
            yield from walk(found, f"{name} {part}")


def test_every_command_and_option_is_documented() -> None:
    page = read("docs/cli.md")
    headings = set(_HEADING.findall(page))
    shared = page.partition("\n## Options of a server\n")[2].partition("\n## ")[0]
    for name, command in walk(group, "lance-spark"):
        if name == "lance-spark":
            continue
        assert name in headings, name
        own = page.partition(f"# {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for option in (*parameter.opts, *parameter.secondary_opts):
                    assert (
                        re.search(rf"{option}(?![\w-])", own) or f"`{option}`" in shared
                    ), f"{name} {option}"


def test_cli_lists_the_commands_in_their_order() -> None:
    table = re.findall(
        r"^\| \[`lance-spark (\w+)`\]", read("docs/cli.md"), re.MULTILINE
    )
    assert table == list(COMMANDS)


# What is another one each time: times, rates, names that are made up, processes.
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|(?<=\"created_at\": )\d+|group-[0-9a-f]{16}"
    r"|[\d.,]+ s: [\d,]+ records/s, [\d.,]+ [kMG]?B/s|(?<=process )\d+|\d{19}(?=\.lnc)"
)


class Terminal:
    """Runs the blocks of a page as somebody would who types them."""

    def __init__(self) -> None:
        self._broker: Child | None = None
        self._address = ""

    def run(self, line: str) -> str:
        """Run a line, and return what a terminal would show."""
        if line == "^C":
            return self.interrupt()
        feed, found, command = line.rpartition("lance-spark ")
        if not found:
            done = subprocess.run(
                line, shell=True, capture_output=True, text=True, timeout=300
            )
            return done.stdout + done.stderr
        arguments = [name for word in shlex.split(command) for name in expand(word)]
        if arguments[0] == "broker":
            return self._start_broker(arguments)
        data = b""
        if feed:
            shell = feed.removesuffix("| ")
            data = subprocess.run(
                shell, shell=True, capture_output=True, timeout=300
            ).stdout
        return self._run_here(arguments, data)

    def _start_broker(self, arguments: list[str]) -> str:
        program = [sys.executable, "-m", "lance_spark", *arguments]
        self._broker = Child(
            [*program, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert self._broker.stdout is not None
        line = self._broker.stdout.readline()
        self._address = line.split()[4].rstrip(",")
        return self._hide(line)

    def interrupt(self) -> str:
        """Press Ctrl-C in the broker's terminal."""
        broker, self._broker = self._broker, None
        if broker is None:
            return ""
        broker.send_signal(signal.SIGINT)
        rest, _ = broker.communicate(timeout=30)
        assert broker.returncode == 0
        return rest

    def _run_here(self, arguments: list[str], data: bytes) -> str:
        remote = arguments[0] in ("topics", "produce", "consume", "groups")
        if remote and arguments[1:2] != ["auth"]:
            arguments = [*arguments, "--servers", self._address]
        shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        usual, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data))
        try:
            with redirect_stdout(shown), redirect_stderr(shown):
                main(arguments)
        finally:
            sys.stdin = usual
        assert isinstance(shown.buffer, io.BytesIO)
        return self._hide(shown.buffer.getvalue().decode())

    def _hide(self, text: str) -> str:
        return text.replace(self._address, "127.0.0.1:1992")

    @contextmanager
    def member(self) -> Iterator[None]:
        """Have somebody in the group `readers`."""
        with (
            LanceClient(self._address) as client,
            GroupedConsumer(client, "readers", ["events"]) as consumer,
        ):
            assert consumer.poll(timeout_s=30) is not None
            consumer.commit()
            yield


def expand(word: str) -> list[str]:
    """Expand a word with a star to the files that it means."""
    return sorted(glob.glob(word)) if "*" in word else [word]


def parse_session(text: str) -> list[tuple[str, str]]:
    """Take a console block apart: what is typed, and what is shown."""
    parts = re.split(r"^(?:\$ (.*)|(\^C))\n", text, flags=re.MULTILINE)
    assert parts[0] == ""
    typed = [a or b for a, b in zip(parts[1::3], parts[2::3], strict=True)]
    return list(zip(typed, parts[3::3], strict=True))


def replay(terminal: Terminal) -> Iterator[tuple[str, str, str]]:
    """Give for each line of the page: what is typed, what it shows, what it says."""
    for title, text in blocks("docs/cli.md", "console"):
        if title == "not run":
            continue
        is_grouped = title == "with a member"
        with terminal.member() if is_grouped else nullcontext():
            for typed, shown in parse_session(text):
                yield typed, terminal.run(typed), shown


def test_commands_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = Terminal()
    try:
        for typed, printed, shown in replay(terminal):
            assert _VOLATILE.sub("~", printed) == _VOLATILE.sub("~", shown), typed
    finally:
        terminal.interrupt()


# Commands on other pages are for a machine of one's own, and are not run.
_TYPED = re.compile(r"^\$ (?:.*\| |[A-Z_]+=\S+ )?\S*lance-spark (.*)$", re.MULTILINE)


@each("page", PAGES, ids=lambda path: path.name)
def test_commands_on_all_pages_are_there(page: Path) -> None:
    for typed in _TYPED.findall(page.read_text(encoding="utf-8")):
        words = shlex.split(typed.removesuffix("&"), comments=True)
        command: click.Command | None = group
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, typed
        # Values are judged when it runs; names of options can't be wrong.
        parser = command.make_parser(click.Context(command))
        parser.parse_args(args=words)


@each("page", PAGES, ids=lambda path: path.name)
def test_targets_on_all_pages_are_there(page: Path) -> None:
    makefile = read("Makefile")
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^\$ make ([a-z -]+)", text, re.MULTILINE):
        for target in line.split():
            assert f"\n{target}:" in makefile


def test_the_readme_has_the_figures_of_the_benchmarks() -> None:
    page = read("docs/performance.md")

    def ratio(bench: str, name: str) -> str:
        tables = read_tables(page, bench).values()
        (row,) = (row for rows in tables for row in rows if row[0] == name)
        return row[-1].removesuffix(" x")

    said = " ".join(read("README.md").split())
    produced = ratio("broker", "produce, against its `send_batch`")
    consumed = ratio("broker", "consume")
    assert f"some {produced} times and consumes some {consumed} times" in said
    taken = ratio("spark", "read, all columns, 100 bytes")
    assert f"a read in Spark has {taken} of the speed" in said
