"""`kmem doctor --executor`: the machines of a cluster, and what differs between them."""

import json
from dataclasses import asdict

import click

from kmem.cli.actions.crews import find_executor
from kmem.cli.options.executor import ExecutorOptions
from kmem.engines.nodes import differences
from kmem.plugins import Registry


def show_cluster(registry: Registry, options: ExecutorOptions, *, as_json: bool) -> None:
    """Print the machines of a cluster.

    Raises ExecutorError if it does not answer.
    """
    nodes = find_executor(registry, options).nodes(options.address)
    found = differences(nodes)
    if as_json:
        data = {"nodes": [asdict(node) for node in nodes], "differences": found}
        click.echo(json.dumps(data))
        return
    for node in nodes:
        click.echo(f"{node.host:24} {node.cores:4} cores {node.gpus:3} GPUs")
        for name, text in node.facts.items():
            click.echo(f"{'':24} {name:8} {text}")
    cores, gpus = sum(node.cores for node in nodes), sum(node.gpus for node in nodes)
    click.echo(f"{len(nodes)} machines, {cores} cores, {gpus} GPUs")
    for line in found:
        click.echo(f"DIFFERS {line}")
