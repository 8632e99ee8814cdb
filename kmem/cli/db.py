"""`kmem db`: where the database lies, and whether it is whole."""

import click

from kmem.errors import MemoryStoreError
from kmem.memory.location import default_db_path
from kmem.memory.store import Memory
from kmem.memory.verify import verify_memory


@click.group(invoke_without_command=True)
@click.pass_context
def db(ctx: click.Context) -> None:
    """Find and check the database file (default: path)."""
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
    with Memory() as memory:
        faults = verify_memory(memory)
        for fault in faults:
            click.echo(fault)
        if faults:
            raise MemoryStoreError(
                f"Database {memory.path} has {len(faults)} faults; restore a copy, or start anew "
                f"and import an export"
            )
        click.echo(f"{memory.path}: no faults", err=True)
