"""The table of commands, and the click group that loads one when it is called.

A new command is a module of its name with a click command called `command`, and a line
in `COMMANDS`. `--help` is written from the table, so that it imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

from lance_spark import __version__

COMMANDS: Mapping[str, str] = {
    "broker": "Run a broker on a data directory.",
    "topics": "List, create, describe, change and delete topics.",
    "produce": "Send lines of a file or of stdin to a topic.",
    "consume": "Print the records of a topic, or follow it.",
    "groups": "Show consumer groups and how far they are behind.",
    "offsets": "Show how far a Spark query has read.",
    "inspect": "Show what is inside a file of a store or a capture.",
    "check": "Verify a data directory and report damage.",
    "bench": "Measure a server, or an embedded broker.",
    "demo": "Kill a broker under load and show that nothing is lost.",
}


class LazyGroup(click.Group):
    """A group of commands that are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if the table does not have it."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"lance_spark.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    "lance-spark",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="lance-spark %(version)s")
def group() -> None:
    """Log topics: a broker, clients of its protocols, and tools for its files.

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
