"""One run for each of many shapes, and one package of what they found."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kmem.deploy.entries import Wide
from kmem.deploy.package import Package, export_package
from kmem.records import Run, RunResult
from kmem.run.report.first_screen import summarise
from kmem.run.report.result import Result


@dataclass(frozen=True, slots=True)
class Bucketed:
    """What came of each shape; `kmem.apply` takes it as a package.

    A shape at which nothing beat the best baseline has no row in the table: there, as at every
    shape that was not named, the module's own code runs. Inside a range the nearest shape in log
    space serves, where its kernel was proved to (widening.py).
    """

    results: tuple[tuple[str, Result], ...]  # by the shape's label, as in batch8_seq128
    package: Package | None  # None if nothing beat the baseline at any shape

    @property
    def is_faster(self) -> bool:
        """Whether there is a kernel for at least one shape."""
        return self.package is not None

    @property
    def speedup(self) -> float:
        """Geometric mean over all shapes of the best baseline's time over the package's."""
        return math.exp(math.fsum(map(math.log, self._speedups())) / len(self.results))

    @property
    def worst_speedup(self) -> float:
        """The least of them."""
        return min(self._speedups())

    def _speedups(self) -> list[float]:
        """By shape; where there is no kernel eager runs, which may be slower than a baseline."""
        return [
            result.speedup or _speedup_of_eager(result.baselines_ms) for _, result in self.results
        ]

    def __str__(self) -> str:
        kernels = sum(result.is_faster for _, result in self.results)
        text = f"{kernels} of {len(self.results)} shapes have a kernel"
        if self.package is None:
            return text
        return (
            f"{text}; {self.speedup:.2f}x the best baseline in the geometric mean, "
            f"{self.worst_speedup:.2f}x at the worst shape: {self.package.directory}"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(label)}</td><td>{escape(summarise(result.outcome))}</td></tr>"
            for label, result in self.results
        )
        return f"<p>{escape(str(self))}</p><table>{rows}</table>"


def _speedup_of_eager(baselines_ms: Mapping[str, float]) -> float:
    eager_ms = baselines_ms.get("eager")
    return min(baselines_ms.values()) / eager_ms if eager_ms else 1.0


def carry_out_all(
    runs: Sequence[tuple[str, Run]],
    carry_out: Callable[[Run], RunResult],
    directory: Path,
    announce: Callable[[str], None],
    widen: Callable[[str, Result], Sequence[Wide]] = lambda label, result: (),
) -> Bucketed:
    """Carry out runs one after the other, and ship what they found as one package.

    Args:
        runs: with the labels of their shapes; of one problem.
        carry_out: searches, and returns what came of it.
        directory: gets the package, in `package`.
        announce: told which shape is next, and what came of it.
        widen: the sizes around a shape's own that its winner serves, from its label and run.

    Raises OutputError: if a winner cannot be shipped.
    """
    results: list[tuple[str, Result]] = []
    for label, run in runs:
        announce(f"{label}:")
        results.append((label, Result(run, carry_out(run))))
        announce(summarise(results[-1][1].outcome))
    faster = [result for _, result in results if result.is_faster]
    package = None
    if faster:
        label, run = runs[0]
        name = run.problem.name.removesuffix(f"_{label}").lower()
        place = directory / "package"
        # first what there is: asking about the sizes between takes a while, and may be interrupted
        package = export_package(faster, place, name, force=True)
        between = {
            result.run.id: list(widen(label, result))
            for label, result in results
            if result.is_faster
        }
        if any(between.values()):
            package = export_package(faster, place, name, force=True, between=between)
    return Bucketed(tuple(results), package)
