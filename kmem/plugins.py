"""Build the plugin manager, and collect what plugins register into one `Registry`.

kmem's own parts (kmem/default_plugins) register through the same hooks as anybody's. Two plugins
that register one name are an error that names both. `KMEM_LOAD_PLUGINS` limits installed plugins to
a comma-separated list of distributions; an empty list means none.
"""

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Protocol, TypeVar

import pluggy

from kmem import hookspecs
from kmem.errors import NotRegistered, PluginError
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

KINDS = ("skills", "providers", "profilers", "executors", "authors", "checkers", "operators")
#: What entries are told apart by, where it is not their `name`.
_KEYS = {"operators": "target"}

Registered = TypeVar("Registered")


class Named(Protocol):
    """What can be registered: anything with a name."""

    @property
    def name(self) -> str: ...


@dataclass
class Registry:
    """Everything that plugins registered, by name.

    `origins` says which plugin registered what, by kind ("skills", "authors") and name.
    """

    skills: dict[str, Path] = field(default_factory=dict)
    providers: dict[str, Provider] = field(default_factory=dict)
    profilers: dict[str, Profiler] = field(default_factory=dict)
    executors: dict[str, Executor] = field(default_factory=dict)
    authors: dict[str, Author] = field(default_factory=dict)
    checkers: dict[str, Checker] = field(default_factory=dict)
    operators: dict[str, Operator] = field(default_factory=dict)  # plugins' alone
    origins: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, entry: Named, *, kind: str, plugin: str) -> None:
        """Put one registered object into its table. Raises PluginError if the name is taken."""
        name = getattr(entry, _KEYS.get(kind, "name"))
        if (kind, name) in self.origins:
            raise PluginError(
                f"Plugins {self.origins[kind, name]} and {plugin} both register the "
                f"{kind.removesuffix('s')} '{name}'; remove one"
            )
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


def build_plugin_manager() -> pluggy.PluginManager:
    """Register the built-in plugins and the installed ones.

    Raises PluginError for one that fails to import or misspells a hook.
    """
    manager = pluggy.PluginManager("kmem")
    manager.add_hookspecs(hookspecs)
    for name in DEFAULT_PLUGINS:
        manager.register(importlib.import_module(name), name=name)
    wanted = os.environ.get("KMEM_LOAD_PLUGINS")
    for entry in metadata.entry_points(group="kmem"):
        distribution = entry.dist.name if entry.dist else ""
        if wanted is None or distribution in wanted.split(","):
            try:
                plugin = entry.load()
            except Exception as ex:
                raise PluginError(
                    f"Plugin '{entry.name}' of {distribution} fails to import: "
                    f"{type(ex).__name__}: {ex}; uninstall or mend it"
                ) from ex
            manager.register(plugin, name=f"{distribution}:{entry.name}")
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as ex:
        raise PluginError(f"{ex}; the hooks are those of kmem/hookspecs.py") from ex
    return manager


def collect(manager: pluggy.PluginManager) -> Registry:
    """Call every register_* hook and collect the results by name.

    Operators go into the table of operators too, in place of those of an earlier call.
    """
    registry = Registry()
    registry.origins |= {("operators", row.target): "kmem" for row in BUILT_IN}
    for kind in KINDS:
        for implementation in getattr(manager.hook, f"register_{kind}").get_hookimpls():
            implementation.function(
                register=partial(registry.add, kind=kind, plugin=implementation.plugin_name)
            )
    install_operators(registry.operators.values())
    return registry
