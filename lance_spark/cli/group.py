"""The table of commands, and the click group that loads one when it is called.

A new command is a module with a click command called `command`, and a line in
`COMMANDS`. `--help` is written from the table, so that it imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

import click

from lance_spark import __version__


class Entry(NamedTuple):
    """Where a command is, and one line of help."""

    module: str
    help: str


def _entry(name: str, help: str) -> Entry:
    return Entry(f"lance_spark.cli.{name}", help)


COMMANDS: Mapping[str, Entry] = {
    "broker": _entry("broker", "Run a broker on a data directory."),
    "topics": _entry("topics", "List, create, describe, change and delete topics."),
    "produce": _entry("produce", "Send lines of a file or of stdin to a topic."),
    "consume": _entry("consume", "Print the records of a topic, or follow it."),
    "groups": _entry("groups", "Show consumer groups and how far they are behind."),
    "offsets": _entry("offsets", "Show how far a Spark query has read."),
    "inspect": _entry("inspect", "Show what is inside a file of a store or a capture."),
    "check": _entry("check", "Verify a data directory and report damage."),
    "bench": _entry("bench", "Measure a server, or an embedded broker."),
    "demo": _entry("demo", "Kill a broker under load and show that nothing is lost."),
}


class LazyGroup(click.Group):
    """A group of commands that are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is no such one."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = import_module(entry.module).command
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(
    "lance-spark",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="lance-spark %(version)s")
def group() -> None:
    """LANCE log topics: a broker, its clients, and tools for its files.

    Each command has --help. The exit code is 0 when all went well, 1 when something
    could not be done (one line says why), 2 for wrong usage, 130 after Ctrl-C.
    """


def run_group(arguments: list[str]) -> int:
    """Run a command and return its exit code; errors that are not click's pass."""
    try:
        with group.make_context("lance-spark", arguments) as context:
            result = group.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0
