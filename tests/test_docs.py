"""Documentation cannot lie: help texts and README commands are what the program prints."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kmem.cli import cli
from kmem.cli.group import LazyCommand

ROOT = Path(__file__).parent.parent
#: Pages a person writes; docs/commands.md is generated.
GUIDES = sorted(
    f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name != "commands.md"
)


def loaded(command: click.Command) -> click.Command:
    return command.load() if isinstance(command, LazyCommand) else command


def all_commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    command = loaded(command)
    found = [(path, command)]
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            found += all_commands(child, (*path, name))
    return found


@pytest.mark.parametrize(
    ("path", "command"),
    all_commands(cli),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_every_command_and_option_has_help(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help, f"kmem {' '.join(path)} has no help"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"kmem {' '.join(path)} {parameter.opts[0]} has no help"


def test_docs_commands_shows_what_help_prints() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools/write_help.py"), "--check"], check=True)


def documented_commands() -> list[str]:
    documents = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", *GUIDES))
    text = "\n".join(path.read_text(encoding="utf-8") for path in documents)
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)
    lines = [
        line.split("  #")[0].strip().removeprefix("$ ")
        for block in blocks
        for line in block.splitlines()
    ]
    return sorted({line for line in lines if line.startswith(("kmem ", "make "))})


@pytest.mark.parametrize("line", documented_commands())
def test_every_command_in_the_documents_exists_with_its_options(line: str) -> None:
    words = shlex.split(line.split(" | ")[0].split(" > ")[0])
    if words[0] == "make":
        targets = re.findall(
            r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert set(words[1:]) <= set(targets)
        return
    command: click.Command = cli
    rest = words[1:]
    while (
        isinstance(command, click.Group)
        and rest
        and not rest[0].startswith("-")
        and rest[0] in command.commands
    ):
        command = loaded(command.commands[rest.pop(0)])
    options = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in rest:
        if word.startswith("--"):
            assert word.split("=")[0] in options | {"--help", "--version"}, (
                f"{line}: {word} is not an option"
            )
    arguments = [word for word in rest if not word.startswith("-")]
    assert arguments == [] or not isinstance(command, click.Group), f"{line}: no such command"


def test_help_answers_quickly_enough_to_be_pleasant() -> None:
    """No import of torch hides in the help; tools/benchmark_commands.py shows the time itself."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kmem", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {
        line.split("|")[-1].strip()
        for line in result.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert not imported & {"torch", "triton", "numpy", "sqlite_utils", "rich", "pydantic"}


def test_the_readme_is_short_and_makes_kmem_a_command_before_it_is_used_as_one() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200
    commands = [line for line in lines if line.startswith(("make ", ". ", "kmem "))]
    assert [command.split("#")[0].strip() for command in commands[:3]] == [
        "make demo",
        ". .venv/bin/activate",
        "kmem doctor",
    ]


def test_the_demo_can_be_run_twice_and_ends_with_what_to_do_next() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    run = next(line for line in done.stdout.splitlines() if "kmem optimize problems/" in line)
    assert "--out" not in run, "a directory belongs to one run"
    after = done.stdout[done.stdout.index(run) + len(run) :]
    assert all(text in after for text in ("/activate", "kmem doctor", "kmem problem new"))
