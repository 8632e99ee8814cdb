"""The group of commands: listed without loading them, loaded when asked for, open to plugins."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kmem.cli import cli
from kmem.cli.commands import BUILT_IN
from kmem.cli.group import Group, LazyCommand
from kmem.cli.options.records import nested, option, takes
from kmem.cli.skills.skills import skills
from kmem.errors import KmemError

LAZY = (*BUILT_IN, *(each for each in skills.commands.values() if isinstance(each, LazyCommand)))


@pytest.mark.parametrize("command", LAZY, ids=lambda command: command.name)
def test_the_listed_sentence_is_the_first_of_the_commands_own_help(command: LazyCommand) -> None:
    own = command.load()
    assert own.name == command.name
    assert command.help == own.get_short_help_str(limit=10_000)


def run_python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout


def test_help_loads_no_command() -> None:
    loaded = run_python(
        "import sys, click.testing, kmem.cli\n"
        "result = click.testing.CliRunner().invoke(kmem.cli.cli, ['--help'])\n"
        "assert 'optimize' in result.output\n"
        "from kmem.cli.commands import BUILT_IN\n"
        "print({command.module for command in BUILT_IN} & set(sys.modules))"
    )
    assert loaded == "set()\n"


def test_help_and_completion_of_a_command_wait_for_no_torch() -> None:
    """The modules of commands declare options; what loads torch lies in kmem/cli/actions."""
    loaded = run_python(
        "import sys\n"
        "from kmem.cli.commands import BUILT_IN\n"
        "for command in BUILT_IN: command.load()\n"
        "print({'torch', 'triton', 'mcp', 'openai', 'anthropic', 'matplotlib'} & set(sys.modules))"
    )
    assert loaded == "set()\n"


def complete(*words: str, incomplete: str) -> list[str]:
    found = ShellComplete(cli, {}, "kmem", "_KMEM_COMPLETE").get_completions([*words], incomplete)
    return [item.value for item in found]


def test_commands_subcommands_options_and_choices_are_completed() -> None:
    assert complete(incomplete="p") == ["plan", "plugins", "prescribe", "problem", "profile"]
    assert complete("skills", incomplete="se") == ["search"]
    assert complete("optimize", incomplete="--p") == [
        "--precision",
        "--purity",
        "--pieces",
        "--piece-minutes",
    ]
    assert complete("optimize", "--precision", incomplete="") == ["match", "tf32", "bf16"]


def test_an_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    result = CliRunner().invoke(cli, ["optimise"])
    assert result.exit_code == 2
    assert "optimize" in result.stderr


def test_a_plugins_command_is_listed_and_runs(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(
        "import click, kmem\n"
        "@click.command()\n"
        "def greet():\n"
        '    """Greet whoever asks."""\n'
        "    click.echo('hello')\n"
        "@kmem.hookimpl\n"
        "def register_commands(cli):\n"
        "    cli.add_command(greet)\n"
    )
    about = tmp_path / "kmem_greeting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kmem-greeting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[kmem]\ngreeting = greeting\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def kmem(*words: str) -> str:
        line = [sys.executable, "-m", "kmem", *words]
        done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    assert "  greet      Greet whoever asks.\n" in kmem("--help")
    assert kmem("greet") == "hello\n"


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KmemError("no room; make some"), 1, "Error: no room; make some\n"),
        (KeyboardInterrupt(), 130, "\nInterrupted\n"),
    ],
)
def test_an_error_that_can_be_mended_and_an_interrupt_are_one_line(
    raised: BaseException, code: int, said: str
) -> None:
    @click.command()
    def fail() -> None:
        raise raised

    result = CliRunner().invoke(Group("kmem", commands=[fail]), ["fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", said)


@dataclass(frozen=True, slots=True)
class Size:
    width: int = option("--width", type=int, default=3, help="Columns.")
    height: int = option("--height", type=int, default=4, help="Rows.")


@dataclass(frozen=True, slots=True)
class Drawing:
    name: str = option("--name", default="a", help="Name.")
    size: Size = nested(Size)
    colours: tuple[str, ...] = option("-c", "--colour", multiple=True, help="Colours.")


def test_options_of_nested_records_reach_a_command_as_one_record_in_the_order_of_the_fields() -> (
    None
):
    @click.command()
    @click.argument("place")
    @takes(Drawing)
    @click.option("--dry", is_flag=True, help="Do nothing.")
    def draw(place: str, options: Drawing, dry: bool) -> None:
        click.echo(repr((place, options, dry)))

    words = ["here", "--height", "5", "-c", "red", "-c", "blue"]
    expected = ("here", Drawing("a", Size(3, 5), ("red", "blue")), False)
    assert CliRunner().invoke(draw, words).stdout == f"{expected!r}\n"
    assert [parameter.opts[-1] for parameter in draw.params] == [
        "place",
        "--name",
        "--width",
        "--height",
        "--colour",
        "--dry",
    ]


_CRASH = """
import os, signal, sys
import kmem.cli
@kmem.cli.cli.command("crash")
def crash():
    os.kill(os.getpid(), signal.SIGSEGV)
sys.argv = ["kmem", "crash"]
kmem.cli.main()
"""


def test_a_crash_of_native_code_leaves_the_lines_that_the_process_was_at() -> None:
    done = subprocess.run([sys.executable, "-c", _CRASH], capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr and "in crash" in done.stderr
