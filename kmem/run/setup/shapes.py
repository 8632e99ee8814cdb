"""One run for each shape of a problem, which learn from one another through memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kmem.errors import OutputError
from kmem.problem.sizing.shapes import Shape, label_of, problem_at
from kmem.records import Problem, Run
from kmem.run.setup.settings import RunSettings, new_run


def write_shapes(
    problem: Problem, shapes: Sequence[Shape], directory: Path
) -> tuple[tuple[str, Path], ...]:
    """Write the problem at each shape; returns their labels and files, in their order.

    Raises OutputError: if the directory cannot be written.
    """
    written = []
    for shape in shapes:
        place = directory / "problems" / f"{problem.name}_{label_of(shape)}.py"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(problem_at(problem, shape), encoding="utf-8")
        except OSError as ex:
            raise OutputError(f"Cannot write {place}: {ex.strerror}; choose another --out") from ex
        written.append((label_of(shape), place))
    return tuple(written)


def runs_for_files(
    files: Sequence[tuple[str, Path]], settings: RunSettings, directory: Path
) -> tuple[tuple[str, Run], ...]:
    """A run for each file, in their order, that share the minutes equally.

    Args:
        files: a problem at several shapes, with their labels.
        directory: gets each run's directory.

    Raises ProblemError: if the module does not work at a shape. TargetError: for the device.
    """
    share = replace(settings.budget, minutes=settings.budget.minutes / len(files))
    return tuple(
        (label, new_run(place, replace(settings, budget=share, out=directory / place.stem)))
        for label, place in files
    )
