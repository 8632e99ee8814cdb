"""One run for each shape of a problem, which learn from one another through memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kmem.errors import OutputError
from kmem.problem.shapes import Shape, label_of, problem_at
from kmem.records import Problem, Run
from kmem.run.settings import RunSettings, new_run


def runs_for_shapes(
    problem: Problem, shapes: Sequence[Shape], settings: RunSettings, directory: Path
) -> tuple[Run, ...]:
    """A run for each shape, in their order, that share the minutes equally.

    Args:
        directory: gets the problem at each shape, and each run's directory.

    Raises ProblemError: if the module does not work at a shape. OutputError: if the directory
        cannot be written. TargetError: for the device.
    """
    minutes = settings.budget.minutes / len(shapes)
    runs = []
    for shape in shapes:
        name = f"{problem.name}_{label_of(shape)}"
        place = directory / "problems" / f"{name}.py"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(problem_at(problem, shape), encoding="utf-8")
        except OSError as ex:
            raise OutputError(f"Cannot write {place}: {ex.strerror}; choose another --out") from ex
        told = replace(
            settings, budget=replace(settings.budget, minutes=minutes), out=directory / name
        )
        runs.append(new_run(place, told))
    return tuple(runs)
