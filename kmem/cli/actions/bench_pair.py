"""`kmem bench --compare`: the rows of two benches, pair by pair."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from kmem.bench.comparing import compare_rows, render_comparison
from kmem.bench.results import read_manifest, read_rows


def compare_benches(first: Path, second: Path, *, as_json: bool) -> None:
    """Print how the answers of the second bench compare with those of the first.

    Raises UsageError if they cannot be paired.
    """
    manifests = {root: read_manifest(root) for root in (first, second)}
    for root, manifest in manifests.items():
        if manifest is None:
            raise click.UsageError(f"{root} is no directory of kmem bench.")
    measured = {manifest.measured for manifest in manifests.values() if manifest is not None}
    if len(measured) > 1:
        raise click.UsageError("One bench was measured and the other estimated.")
    compared = compare_rows(read_rows(first), read_rows(second))
    if compared is None:
        raise click.UsageError(f"No problem ended in both {first} and {second}.")
    if as_json:
        click.echo(json.dumps(asdict(compared), default=lambda value: value.value))
        return
    click.echo(render_comparison(compared, {"first": first.name, "second": second.name}))
