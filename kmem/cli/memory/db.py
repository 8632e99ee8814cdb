"""`kmem db`: where the database lies, whether it is whole, and what can be saved if it is not."""

from pathlib import Path

import click

from kmem.errors import MemoryStoreError
from kmem.memory.location import default_db_path
from kmem.memory.recover import recover_memory
from kmem.memory.store import Memory
from kmem.memory.verify import verify_memory


@click.group(invoke_without_command=True)
@click.pass_context
def db(ctx: click.Context) -> None:
    """Find, check and recover the database file (default: path)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(path)


@db.command()
def path() -> None:
    """Print where the database lies: KMEM_DB, or kmem.db in your data directory."""
    click.echo(str(default_db_path()))


@db.command()
def verify() -> None:
    """Check the whole file and derive every content hash again; print each fault."""
    check_database()


def check_database() -> None:
    """Print each fault of the database.

    Raises MemoryStoreError if there are any.
    """
    with Memory.to_read() as memory:
        faults = verify_memory(memory)
        for fault in faults:
            click.echo(fault)
        if faults:
            raise MemoryStoreError(
                f"Database {memory.path} has {len(faults)} faults; restore a copy, or save what is "
                f"whole with `kmem db recover`"
            )
        click.echo(f"{memory.path}: no faults", err=True)


@db.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The new file; default: beside the damaged one, with -recovered in its name.",
)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
def recover(file: Path | None, out: Path | None) -> None:
    """Save what can be read of a damaged database into a new file, and say what was lost.

    FILE is the database of `kmem db path` unless named; it is only read. Outcomes and kernels are
    saved only if they have the hash that they are kept under. Prints the new file, which takes the
    place of the old one when you move it there.
    """
    damaged = file or default_db_path()
    target = out or damaged.with_name(f"{damaged.stem}-recovered{damaged.suffix}")
    for entry in recover_memory(damaged, target):
        if entry.rows or entry.lost:
            lost = f", {entry.lost} or fewer lost" if entry.lost else ""
            click.echo(f"{entry.table}: {entry.rows} saved{lost}", err=True)
    click.echo(str(target))
