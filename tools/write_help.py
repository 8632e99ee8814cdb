"""Write every command's --help into README.md between its markers.

With `--check` nothing is written: the exit code is 1 if the file is not what the program prints.

python tools/write_help.py [--check]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from kmem.cli import cli
from kmem.cli.group import LazyCommand

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- help: begin (tools/write_help.py) -->", "<!-- help: end -->"


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
        parts.append(f"### `{' '.join(path)}`\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def main() -> None:
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    wanted = f"{head}{BEGIN}\n\n{render_help()}\n{END}{tail}"
    if "--check" in sys.argv:
        raise SystemExit(
            0
            if wanted == text
            else "README.md is not what the program prints; run python tools/write_help.py"
        )
    README.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
