"""The command line: noun groups, verb commands.

Only this package prints; stdout carries data, stderr people's text.

Exit codes: 0 done (for `optimize`: a verified kernel that beats the best baseline), 1 error, 2
usage, 3 nothing beat the best baseline, 130 interrupted. Errors a user can mend are one line; bugs
keep their traceback.
"""

import click

import kmem
from kmem.errors import KmemError

EXIT_INTERRUPTED = 130


class Group(click.Group):
    """Prints every KmemError as one clear line and exits 1, so that no command needs its own
    handler.

    An interrupt is a line, too, and exit code 130; a command that can go on later says how itself.
    """

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KmemError as ex:
            raise click.ClickException(str(ex)) from ex
        except KeyboardInterrupt:
            click.echo("\nInterrupted", err=True)
            raise SystemExit(EXIT_INTERRUPTED) from None


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kmem.__version__, prog_name="kmem")
def cli() -> None:
    """Make PyTorch modules fast with Triton, and remember how.

    `kmem optimize problem.py` profiles a module, diagnoses its bottleneck against what the hardware
    could do, asks the skill memory what fixes it, writes Triton kernels, proves them correct,
    measures them, and records what happened.
    """


def add_commands() -> None:
    """Attach the built-in commands; done on demand so that importing this package stays cheap."""
    from kmem.cli.bench import bench
    from kmem.cli.db import db
    from kmem.cli.doctor import doctor
    from kmem.cli.mcp import mcp
    from kmem.cli.memory import memory
    from kmem.cli.models import models
    from kmem.cli.optimize import optimize
    from kmem.cli.plugins import plugins
    from kmem.cli.runs import runs
    from kmem.cli.skills import skills
    from kmem.cli.stages import diagnose, prescribe, profile
    from kmem.cli.verify import measure, verify
    from kmem.cli.why import why

    for command in (
        optimize,
        bench,
        models,
        skills,
        runs,
        why,
        memory,
        db,
        doctor,
        plugins,
        profile,
        diagnose,
        prescribe,
        verify,
        measure,
        mcp,
    ):
        cli.add_command(command)


def main() -> None:
    """Entry point of the `kmem` script."""
    from kmem.plugins import build_plugin_manager, collect

    try:
        add_commands()
        manager = build_plugin_manager()
        manager.hook.register_commands(cli=cli)
        registry = collect(manager)
    except KmemError as ex:
        raise SystemExit(f"Error: {ex}") from ex
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    cli(obj=registry)
