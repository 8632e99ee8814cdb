"""The extension points: a plugin implements any of these hooks as a function of the same name.

Such a function is marked with `@kmem.hookimpl`:

    import kmem

    @kmem.hookimpl
    def register_skills(register):
        register(Path(__file__).parent / "skills" / "my-skill")
"""

from collections.abc import Callable
from pathlib import Path

import click
import pluggy

from kmem.interfaces import Author, Checker, Executor, Profiler, Provider
from kmem.problem.operators.row import Operator

hookspec = pluggy.HookspecMarker("kmem")


@hookspec
def register_skills(register: Callable[[Path], None]) -> None:
    """Register skills: call register(path) with the path of a skill directory."""


@hookspec
def register_providers(register: Callable[[Provider], None]) -> None:
    """Register language-model providers: call register(provider); import no SDK here."""


@hookspec
def register_profilers(register: Callable[[Profiler], None]) -> None:
    """Register profilers: call register(profiler); touch no GPU here."""


@hookspec
def register_executors(register: Callable[[Executor], None]) -> None:
    """Register executors: call register(executor); start no machine here."""


@hookspec
def register_authors(register: Callable[[Author], None]) -> None:
    """Register authors of kernels: call register(author); load no model here."""


@hookspec
def register_checkers(register: Callable[[Checker], None]) -> None:
    """Register source checks: call register(checker); import nothing heavy here."""


@hookspec
def register_operators(register: Callable[[Operator], None]) -> None:
    """Register operators of traced graphs: call register(row) for each; import no torch here."""


@hookspec
def register_commands(cli: click.Group) -> None:
    """Register commands: add click commands or groups to cli, under names of their own."""
