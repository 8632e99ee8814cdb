"""`kmem export`: winners of runs as a package that a team ships."""

from pathlib import Path

import click


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the package; it is made, and is refused if it is in use.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["package", "hf", "flashinfer"]),
    default="package",
    show_default=True,
    help="package: a Python package that needs torch and Triton, not kmem; hf: a repository that "
    "Hugging Face's kernels loads; flashinfer: definitions, solutions and traces of "
    "FlashInfer-Bench.",
)
@click.option("--name", help="Name of the Python package; default: that of the directory.")
@click.option("--force", is_flag=True, help="Replace what an earlier export left there.")
def export(
    runs: tuple[str, ...], directory: Path, form: str, name: str | None, force: bool
) -> None:
    """Write the kernels that runs found as a package to ship.

    RUN is a run's directory, its id or the beginning of one; several become one package, a kernel
    each. It holds the kernels as they were verified, operators of torch.library, apply(model) with
    undo and status, a table of which kernel serves which inputs on which device, tests, a
    benchmark, and a card with evidence, accuracy and licence. Prints the directory.
    """
    from kmem.run.report.loading import load_run  # loads torch, as what follows

    results = [load_run(run) for run in runs]
    if form == "flashinfer":
        from kmem.deploy.flashinfer import export_flashinfer

        if name is not None:
            raise click.UsageError("--format flashinfer takes no --name: each run has its own")
        names = export_flashinfer(results, directory, force=force)
        click.echo(str(directory))
        click.echo(f"{', '.join(names)}: a data set for FIB_DATASET_PATH", err=True)
        return
    from kmem.deploy.package import export_hub_kernel, export_package

    write = export_hub_kernel if form == "hf" else export_package
    package = write(results, directory, name, force=force)
    click.echo(str(package.directory))
    click.echo(f"{package}; README.md says how it is used", err=True)
