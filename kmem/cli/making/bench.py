"""`kmem bench`: the main job over directories of problems, or the recording of landscapes."""

from pathlib import Path

import click

from kmem.cli.exit_codes import EXIT_SOME_FAILED
from kmem.cli.options.authors import needed_models, with_author
from kmem.cli.options.bench import BenchOptions
from kmem.cli.options.records import takes
from kmem.memory.store import Memory
from kmem.memory.team.sync import remembered_settings
from kmem.plugins import Registry


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(path_type=Path))
@takes(BenchOptions)
@click.option(
    "--json", "as_json", is_flag=True, help="Print manifest, scores and rows as one JSON object."
)
@click.pass_obj
def bench(
    registry: Registry, paths: tuple[Path, ...], options: BenchOptions, as_json: bool
) -> None:
    """Run `kmem optimize` on many problems and print how much was gained.

    PATH is a problem file, a directory of problems, or a KernelBench checkout as it is. Each
    problem runs in a process of its own, so that a crash is one row of the table.

    Rows are kept in DIR/results.jsonl as they come. After a kill the same command with --resume DIR
    goes on; kmem bench --resume DIR alone takes problems and settings from DIR. Problems that have
    a row, failed ones too, are not repeated; --retry-failed repeats these. A run that was cut off
    goes on where it was, if it gets the same GPU again. DIR also gets the page results.md with its
    plot, the logs and the run directories.

    Speedup is best baseline over kernel. A problem without a verified improvement counts with ratio
    1.0 in the means, a failed one too. A win is a ratio above 1.02. fast_1, fast_1.2 and fast_2 are
    the shares of all problems with a ratio above 1, 1.2 and 2. Without a GPU all times are
    estimates, labelled so, and never share a directory with measured ones.

    With -m language models write, too. A run that asked them goes on where it was killed, so that
    no answer is paid for twice. --usd ends the bench when what is left does not pay for a further
    problem; the same command with a higher one goes on.

    --control DIR gives best-of-n as many measurements on each problem as the bench in DIR made;
    --compare DIR CONTROL then pairs the two row by row, as it does any two benches, with intervals.

    With --record nothing is searched for: some settings of every recipe that matches are compiled,
    checked and timed once, and kept with their verdicts, so that searches can be repeated without a
    GPU. --minutes-per-problem then limits the judging, and the same command goes on after a kill. A
    suite file is JSON that lists problems with sizes, such as problems/landscapes.json.

    With --executor the problems run on other machines. This process alone writes the database: each
    worker gets a copy, and what its run commits comes back as it goes. A worker that is lost costs
    one line, and its problem goes on from what had come back. Only workers whose card and versions
    are those of the first one measure.

    With GPUs the share of time that each of them was in use between its first and its last
    measurement, and what for, is told at the end, and kept in DIR/utilisation.jsonl.

    Exit code 0: every problem was run; 1: some failed; 130: interrupted.
    """
    if options.compare is not None:
        from kmem.cli.actions.bench_pair import compare_benches

        compare_benches(*options.compare, as_json=as_json)
        return
    if options.record is None and (options.listed or options.within is not None):
        raise click.UsageError("--list and --within go with --record DIR; name it, too")
    if options.record is None:
        options = with_author(options)
        needed_models(registry, options)
        from kmem.cli.actions.bench import run_bench  # loads torch

        if not options.sync:
            run_bench(paths, options, registry, as_json=as_json)
            return
        _refuse_without_remote()
        try:
            run_bench(paths, options, registry, as_json=as_json)
        except SystemExit as ex:
            if ex.code == EXIT_SOME_FAILED:  # what else was measured is shared all the same
                _sync()
            raise
        _sync()
        return
    if options.sync or options.control is not None or options.ahead:
        raise click.UsageError(
            "--sync, --control and --compile-ahead go with a bench of runs, not with --record; "
            "leave them out"
        )
    from kmem.cli.actions.record import record_suite  # loads torch

    record_suite(paths, options, options.record, registry)


def _refuse_without_remote() -> None:
    """Raise UsageError now, and not after hours, if nobody said where to share."""
    with Memory.to_read() as memory:
        if remembered_settings(memory) is None:
            raise click.UsageError(
                "--sync shares with the remote that is remembered, and there is none yet: kmem "
                "memory sync REMOTE"
            )


def _sync() -> None:
    from kmem.cli.memory.team import sync  # loads what curates skills

    click.get_current_context().invoke(sync)
