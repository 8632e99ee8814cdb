"""Write docs/commands.md: the --help of every command.

With `--check` nothing is written: the exit code is 1 if the file is not what the program prints.

python tools/write_help.py [--check]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from kmem.cli import cli
from kmem.cli.group import LazyCommand

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
HEAD = """# Commands

The help of every command as the program prints it (`python tools/write_help.py` writes this page).

"""


def command_paths(
    command: click.Command, path: tuple[str, ...] = ("kmem",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group from one on down, loaded, in the order of the help."""
    if isinstance(command, LazyCommand):
        command = command.load()
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from command_paths(command.commands[name], (*path, name))


def render_help() -> str:
    """Markdown with the help of each command."""
    parts = []
    for path, command in command_paths(cli):
        context = click.Context(
            command, info_name=" ".join(path), terminal_width=100, max_content_width=100
        )
        parts.append(f"## `{' '.join(path)}`\n\n```\n{command.get_help(context)}\n```\n")
    return HEAD + "\n".join(parts)


def main() -> None:
    wanted = render_help()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != wanted:
        raise SystemExit(
            "docs/commands.md is not what the program prints; run python tools/write_help.py"
        )


if __name__ == "__main__":
    main()
