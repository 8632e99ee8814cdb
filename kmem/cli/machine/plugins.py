"""`kmem plugins`: what is registered, and by whom."""

import json

import click

from kmem.plugins import KINDS, Registry


@click.command()
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: all registered names under `plugins`.",
)
@click.pass_obj
def plugins(registry: Registry, as_json: bool) -> None:
    """List what plugins registered: skills, authors, providers, commands and all other kinds.

    Commands and operators are those of plugins alone. What is broken is left out: `kmem doctor`
    lists it. KMEM_LOAD_PLUGINS names the distributions whose plugins are loaded, separated by
    commas; KMEM_LOAD_PLUGINS= loads none.
    """
    rows = [
        (kind.removesuffix("s"), name, registry.origins[kind, name])
        for kind in KINDS
        for name in sorted(getattr(registry, kind))
    ]
    if as_json:
        listed = [{"kind": kind, "name": name, "plugin": plugin} for kind, name, plugin in rows]
        click.echo(json.dumps({"plugins": listed}))
        return
    for kind, name, plugin in rows:
        click.echo(f"{kind:10} {name:32} {plugin}")
