"""Write the results page of one or more benches, with its plot beside it.

    python tools/write_results_page.py DIR... [--page PAGE]

Each DIR is a directory of `kmem bench` (manifest.json, results.jsonl); PAGE is db/results.md by
default. Of a problem that several of them ran, the last one counts. Without kept run directories
the page still says all it needs to: date, versions, device and the exact commands come from the
manifests.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kmem.bench.page import write_page
from kmem.bench.results import Manifest, read_manifest, read_rows
from kmem.errors import KmemError

PAGE = Path(__file__).parent.parent / "db" / "results.md"


def join_manifests(manifests: Sequence[tuple[Path, Manifest]]) -> Manifest:
    """One manifest for all.

    They may differ in the minutes a problem was given (each command says them), of which the most
    are named.

    Raises:
        OutputError: if they differ in anything else that results depend on.
    """
    most = max(manifest.settings.minutes for _, manifest in manifests)
    (_, joined), *others = [
        (directory, replace(manifest, settings=replace(manifest.settings, minutes=most)))
        for directory, manifest in manifests
    ]
    for directory, manifest in others:
        joined = joined.extend(manifest, directory)
    return joined


def main(directories: Sequence[Path], page: Path) -> None:
    manifests = []
    rows = {}
    for directory in directories:
        manifest = read_manifest(directory)
        if manifest is None:
            raise SystemExit(
                f"{directory} has no manifest.json; give a directory that kmem bench made"
            )
        manifests.append((directory, manifest))
        rows |= {row.problem: row for row in read_rows(directory)}
    print(write_page(page, join_manifests(manifests), list(rows.values())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    try:
        main(options.directories, options.page)
    except KmemError as ex:
        raise SystemExit(f"Error: {ex}") from ex
