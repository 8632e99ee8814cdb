"""Build the plugin manager, and collect what plugins register into one `Registry`.

kmem's own parts (kmem/default_plugins) register through the same hooks as anybody's. A plugin that
is broken is left out, with one line that says why, and kmem goes on without it: it fails to import,
misspells a hook, raises, registers something of the wrong type, or takes a name that kmem or an
earlier plugin has. `KMEM_LOAD_PLUGINS` limits installed plugins to a comma-separated list of
distributions; an empty list means none.
"""

import importlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import click
import pluggy

from kmem import hookspecs
from kmem.errors import NotRegistered, PluginError, foreign_code
from kmem.interfaces import Author, Checker, Executor, Profiler, Provider
from kmem.problem.operators.row import Operator
from kmem.problem.operators.table import BUILT_IN, install_operators

DEFAULT_PLUGINS = (
    "kmem.default_plugins.bundled_skills",
    "kmem.default_plugins.authors",
    "kmem.default_plugins.providers",
    "kmem.default_plugins.profilers",
    "kmem.default_plugins.executors",
    "kmem.default_plugins.checkers",
)

#: What can be registered, and of which type.
_TYPES: dict[str, type] = {
    "skills": Path,
    "providers": Provider,
    "profilers": Profiler,
    "executors": Executor,
    "authors": Author,
    "checkers": Checker,
    "operators": Operator,
    "commands": click.Command,
}
KINDS = tuple(_TYPES)
#: What entries are told apart by, where it is not their `name`.
_KEYS = {"operators": "target"}
_WAY_OUT = "uninstall or mend it, or leave all plugins out with KMEM_LOAD_PLUGINS="

Registered = TypeVar("Registered")


class Plugins(pluggy.PluginManager):
    """The plugins that could be loaded; `left_out` says of the others why not, a line each."""

    def __init__(self) -> None:
        super().__init__("kmem")
        self.left_out: list[str] = []


@dataclass
class Registry:
    """Everything that plugins registered, by name.

    `origins` says which plugin registered what, by kind ("skills", "authors") and name. `left_out`
    says what is broken and not in the tables, a line each.
    """

    skills: dict[str, Path] = field(default_factory=dict)
    providers: dict[str, Provider] = field(default_factory=dict)
    profilers: dict[str, Profiler] = field(default_factory=dict)
    executors: dict[str, Executor] = field(default_factory=dict)
    authors: dict[str, Author] = field(default_factory=dict)
    checkers: dict[str, Checker] = field(default_factory=dict)
    operators: dict[str, Operator] = field(default_factory=dict)  # plugins' alone
    commands: dict[str, click.Command] = field(default_factory=dict)  # plugins' alone
    origins: dict[tuple[str, str], str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def name_of(self, entry: object, kind: str, plugin: str) -> str:
        """The name under which an entry of a kind goes into its table.

        Raises PluginError if the entry is of another type, or its name is none or taken.
        """
        noun = kind.removesuffix("s")
        if not isinstance(entry, _TYPES[kind]):
            raise PluginError(
                f"register_{kind} registers {entry!r:.60}, which is a {type(entry).__name__} and "
                f"no {_TYPES[kind].__name__}"
            )
        name = getattr(entry, _KEYS.get(kind, "name"), None)
        if not isinstance(name, str) or not name:
            raise PluginError(f"register_{kind} registers the {noun} {entry!r:.60} without a name")
        if (kind, name) in self.origins:
            raise PluginError(
                f"plugins {self.origins[kind, name]} and {plugin} both register the {noun} '{name}'"
            )
        return name

    def add(self, entry: object, *, kind: str, plugin: str) -> None:
        """Put one entry into its table. Raises PluginError as `name_of` does."""
        name = self.name_of(entry, kind, plugin)
        getattr(self, kind)[name] = entry
        self.origins[kind, name] = plugin


def lookup(table: Mapping[str, Registered], name: str, kind: str) -> Registered:
    """An entry by name. Raises NotRegistered, which lists the names there are."""
    try:
        return table[name]
    except KeyError:
        raise NotRegistered(
            f"No {kind} named '{name}'. Registered: {', '.join(sorted(table)) or 'none'}"
        ) from None


def build_plugin_manager() -> Plugins:
    """Register the built-in plugins and the installed ones that can be loaded."""
    manager = Plugins()
    manager.add_hookspecs(hookspecs)
    for name in DEFAULT_PLUGINS:
        manager.register(importlib.import_module(name), name=name)
    wanted = os.environ.get("KMEM_LOAD_PLUGINS")
    for entry in metadata.entry_points(group="kmem"):
        distribution = entry.dist.name if entry.dist else ""
        if wanted is None or distribution in wanted.split(","):
            try:
                _load_plugin(manager, entry, f"{distribution}:{entry.name}")
            except PluginError as ex:
                manager.left_out.append(
                    f"Plugin {distribution}:{entry.name} is left out: {ex}; {_WAY_OUT}"
                )
    return manager


def _load_plugin(manager: Plugins, entry: metadata.EntryPoint, name: str) -> None:
    """Import a plugin and register its hooks. Raises PluginError if it is broken."""
    with foreign_code("importing it", PluginError):
        plugin = entry.load()
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    # what pluggy raises for a misspelt hook, and for a second entry point of one plugin
    except (pluggy.PluginValidationError, ValueError) as ex:
        if manager.get_plugin(name) is not None:
            manager.unregister(name=name)
        reason = str(ex).strip().splitlines()[-1]
        raise PluginError(f"{reason}; the hooks are those of kmem/hookspecs.py") from ex


def collect(manager: Plugins, taken_commands: Collection[str] = ()) -> Registry:
    """Call the register_* hooks of every plugin and collect the results by name.

    A plugin whose entries cannot all be taken is left out whole; of the skills alone, one whose
    name is taken is left out by itself. Operators go into the table of operators too, in place of
    those of an earlier call.

    Args:
        taken_commands: names of commands that no plugin may replace.
    """
    registry = Registry(left_out=list(manager.left_out))
    registry.origins |= {("operators", row.target): "kmem" for row in BUILT_IN}
    registry.origins |= {("commands", name): "kmem" for name in taken_commands}
    for name, plugin in manager.list_name_plugin():
        try:
            _collect_plugin(registry, manager, name, plugin)
        except PluginError as ex:
            if name in DEFAULT_PLUGINS:
                raise  # kmem's own: a bug
            registry.left_out.append(f"Plugin {name} is left out: {ex}; {_WAY_OUT}")
    install_operators(registry.operators.values())
    return registry


def _collect_plugin(registry: Registry, manager: Plugins, name: str, plugin: object) -> None:
    """Put all that a plugin registers into the registry, or nothing.

    Raises PluginError if it raises, or registers what cannot be taken.
    """
    named: dict[tuple[str, str], object] = {}
    clashes = []
    for kind, entry in _offered(manager, plugin):
        try:
            key = registry.name_of(entry, kind, name)
            if (kind, key) in named:
                raise PluginError(f"it registers the {kind.removesuffix('s')} '{key}' twice")
            named[kind, key] = entry
        except PluginError as ex:
            if not isinstance(entry, Path):
                raise
            clashes.append(f"Skill directory {entry} is left out: {ex}; remove one")
    for (kind, _), entry in named.items():
        registry.add(entry, kind=kind, plugin=name)
    registry.left_out += clashes


def _offered(manager: Plugins, plugin: object) -> Iterator[tuple[str, object]]:
    """What the hooks of a plugin register, with its kind."""
    for kind in KINDS:
        hook = getattr(manager.hook, f"register_{kind}")
        for implementation in hook.get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            entries: list[object] = []
            group = click.Group()  # commands are looked at before any is put into kmem's own group
            given = {"register": entries.append, "cli": group}
            with foreign_code(f"register_{kind}", PluginError):
                implementation.function(*(given[name] for name in implementation.argnames))
            yield from ((kind, entry) for entry in (*entries, *group.commands.values()))
