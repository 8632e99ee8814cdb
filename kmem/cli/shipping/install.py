"""`kmem install`: a package of kernels, checked and kept on this machine."""

from functools import partial

import click


@click.command()
@click.argument("source", metavar="PACKAGE|HUB:OWNER/NAME|RUN")
@click.option(
    "--trust", is_flag=True, help="Take recorded verdicts as they are; hashes are checked anyway."
)
@click.option("--force", is_flag=True, help="Replace an installed package of the same name.")
def install(source: str, trust: bool, force: bool) -> None:
    """Install a package of kernels, after judging each of them again here.

    PACKAGE is a directory that `kmem export` wrote, HUB:OWNER/NAME such a repository at Hugging
    Face, RUN the directory or id of a run, whose winner becomes a package. Hashes of kernels and
    evidence are checked, then every kernel goes before the judge: on this GPU, or without one in
    the Triton interpreter. torch.compile(model, backend="kmem") uses what is installed,
    kmem.load(NAME) gives it. Prints where it lies.
    """
    from kmem.deploy.installing import install as install_package  # loads torch

    installed = install_package(
        source, trust=trust, force=force, announce=partial(click.echo, err=True)
    )
    for verdict in installed.verdicts:
        click.echo(verdict, err=True)
    click.echo(str(installed.package.directory))
