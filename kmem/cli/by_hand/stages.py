"""`kmem profile`, `kmem diagnose` and `kmem prescribe`: the first stages, which pipe JSON lines."""

import sys
from pathlib import Path
from typing import TypeVar

import click

from kmem.cli.display.diagnosis import describe_diagnosis
from kmem.cli.options.records import takes
from kmem.cli.options.stages import DiagnoseOptions, PrescribeOptions, ProfileOptions
from kmem.cli.options.whole import is_no_file
from kmem.errors import ProfilerError
from kmem.plugins import Registry
from kmem.records import Diagnosis, Profile
from kmem.serialize import from_json, to_json

Stage = TypeVar("Stage", Profile, Diagnosis)


@click.command()
@click.argument("model")
@click.argument(
    "kernel", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False
)
@takes(ProfileOptions)
@click.pass_obj
def profile(registry: Registry, model: str, kernel: Path | None, options: ProfileOptions) -> None:
    """Profile every launch of one forward and print a Profile as one JSON line.

    The line carries the problem's bound. MODEL is a problem file; KERNEL a file with ModelNew, by
    default the problem's own Model. Pipe the line into `kmem diagnose`. With ncu the counters are
    those of the launches that hold 95% of the time, 16 at most, of equal ones the first's; others
    have their times alone.

    With --tables, and for any other model (problem.py:factory, package:Class(arguments), or a
    config.json of Hugging Face transformers), it prints where the time goes instead: by operator,
    by submodule, by launch, and by piece, with what each piece could gain the whole.
    """
    if options.tables or options.picture is not None or is_no_file(model):
        if kernel is not None:
            raise click.UsageError("The tables are of a model as it is; leave KERNEL out")
        from kmem.cli.actions.whole import profile_model, show_account  # loads torch

        account = profile_model(model, options)
        show_account(account, as_json=options.as_json)
        return
    from kmem.cli.actions.stages import profile_problem  # loads torch

    found = profile_problem(Path(model), kernel, options, registry)
    click.echo(to_json(found))


@click.command()
@takes(DiagnoseOptions)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also when stdout is a terminal.")
def diagnose(options: DiagnoseOptions, as_json: bool) -> None:
    """Name the bottleneck with its evidence, by arithmetic.

    Reads a Profile JSON line on stdin (from `kmem profile`) or the --ncu report. Prints a Diagnosis
    as one JSON line, or text on a terminal.
    """
    from kmem.cli.actions.stages import diagnose_profile, read_report_profile

    if options.report:
        seen = read_report_profile(options.report, options.target)
    else:
        seen = _read_stdin(Profile, "kmem profile")
    found = diagnose_profile(seen, options)
    click.echo(to_json(found) if as_json or not sys.stdout.isatty() else describe_diagnosis(found))


@click.command()
@takes(PrescribeOptions)
@click.pass_obj
def prescribe(registry: Registry, options: PrescribeOptions) -> None:
    """Offer skills for a Diagnosis JSON line on stdin.

    Prints one Prescription a line, best first, each with its reasons.
    """
    from kmem.cli.actions import stages  # while the stage before still works

    diagnosis = _read_stdin(Diagnosis, "kmem diagnose")
    for prescription in stages.prescribe(diagnosis, options, registry):
        click.echo(to_json(prescription))


def _read_stdin(record: type[Stage], source: str) -> Stage:
    """What the stage before wrote.

    Raises:
        UsageError: if it wrote nothing.
        ProfilerError: if it wrote something else.
    """
    text = sys.stdin.readline() if not sys.stdin.isatty() else ""
    if not text.strip():
        raise click.UsageError(f"Nothing on stdin; pipe the output of `{source}` in")
    try:
        return from_json(record, text)
    except ValueError as ex:
        raise ProfilerError(
            f"stdin is not a {record.__name__} as `{source}` prints it: {str(ex).splitlines()[0]}"
        ) from ex
