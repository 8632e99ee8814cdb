"""Which baselines a kernel must beat, and how long timing them may take."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from kmem.cli.options.records import option
from kmem.records import BASELINES


class _Names(click.ParamType):
    """Names with commas between them, each of BASELINES; eager at least."""

    name = "names"

    def convert(
        self, value: str | Sequence[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = value.split(",") if isinstance(value, str) else list(value)
        unknown = [name for name in names if name not in BASELINES]
        if unknown or "eager" not in names:
            known = ", ".join(BASELINES)
            self.fail(f"{','.join(names)!r} must be of {known}, and eager among them", param, ctx)
        return tuple(name for name in BASELINES if name in names)


@dataclass(frozen=True, slots=True)
class BaselineOptions:
    """The options about baselines that a run and a bench share."""

    baselines: tuple[str, ...] = option(
        "--baselines",
        type=_Names(),
        metavar="NAME,...",
        default=",".join(BASELINES),
        show_default=True,
        help="What a kernel must beat; timed beside the search. Of a whole model the ways to run "
        "it that are timed; eager alone also leaves what is outside of its kernels uncompiled.",
    )
    baseline_minutes: float | None = option(
        "--baseline-minutes",
        type=click.FloatRange(min=0, min_open=True),
        help="How long timing them may take; a run waits for them at its end. Default: as long as "
        "the run may.",
    )
