"""Answer a search from a landscape: everything in the run is kmem's own but the evaluator.

The session has the recorded sites and, of each recipe, the recorded settings and nothing else: the
author ranks and moves among them as it would among all. Of a landscape whose recording was cut off
these are the settings judged until then. Kernels' texts are stand-ins that name their settings, for
nothing compiles or runs them. Times are the recorded medians as they are: the same search of the
same landscape is the same run, to the last byte.

Covered: landscapes whose kernels cover one site each. Not covered: timing noise between repeats,
settings of several sites at once, kernels that no recipe wrote, and the cost of compiling.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from kmem.errors import LandscapeError
from kmem.learning.landscape import Choices, Knobs, Landscape, Point, RecordedSite, knobs_of
from kmem.problem.costs.bound import graph_bound
from kmem.problem.graph import OpGraph
from kmem.problem.source.load import FULL, execute_problem
from kmem.problem.traced import TracedProblem
from kmem.problem.tracing.trace import trace_problem
from kmem.profile.compile.report import CompileStatus
from kmem.profile.estimate import estimate_launches
from kmem.profile.static import StaticProfiler
from kmem.recipes import Emission, Recipe, Settings, Site, Space
from kmem.records import Attempt, Baseline, Contract, Device, Kernel, Knob, Measurement, Profile
from kmem.run.evaluation.evaluator import Admitted, Evaluator
from kmem.run.setup.session import Session
from kmem.skills import Skill

_LAUNCHER = """
def launch({inputs}):
    raise RuntimeError("a stand-in: recorded settings {settings}")
"""


class RecordedRecipe(Recipe):
    """One recipe of a landscape: its sites, their recorded settings, and the predicted times.

    The predicted times are the cost model's at the time of recording.
    """

    def __init__(self, name: str, sites: Sequence[RecordedSite], points: Sequence[Point]) -> None:
        self.name = name
        self.operators = tuple(dict.fromkeys(site.operator for site in sites))
        self._sites = tuple(_restore(site) for site in sites)
        self._spaces: dict[str, Space] = {}
        self._costs: dict[tuple[str, Knobs], float] = {}
        for site in sites:
            here = [point for point in points if point.choices[0].site == site.name]
            self._spaces[site.name] = _space(site, here)
            self._costs |= {
                (site.name, point.choices[0].knobs): point.estimated_ms for point in here
            }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return self._sites

    def space(self, site: Site, device: Device) -> Space:
        return self._spaces[site.name]

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return self._costs[site.name, knobs_of(settings)]

    def emit(self, site: Site, settings: Settings) -> Emission:
        inputs = ", ".join(operand.name for operand in site.inputs)
        return Emission((), _LAUNCHER.format(inputs=inputs, settings=knobs_of(settings)))


def _restore(site: RecordedSite) -> Site:
    return Site(
        site.name,
        site.operator,
        site.nodes,
        site.inputs,
        site.outputs,
        None,
        site.bytes,
        site.flops,
        site.flags,
    )


def _space(site: RecordedSite, points: Sequence[Point]) -> Space:
    """The recorded settings as a space.

    Each knob has the values that occur, in the recipe's order.
    """
    recorded = {point.choices[0].knobs for point in points}
    occurring: dict[str, set[Knob]] = {}
    for knobs in recorded:
        for name, value in knobs:
            occurring.setdefault(name, set()).add(value)
    values = {
        name: tuple(value for value in order if value in occurring.get(name, ()))
        for name, order in site.knobs
    }
    return Space(values, lambda settings: knobs_of(settings) in recorded)


def open_recorded_session(landscape: Landscape, skills: Mapping[str, Skill]) -> Session:
    """The session of a run on a landscape, as if the recorded device were here.

    Args:
        skills: the skill library, by name.

    Raises:
        LandscapeError: if the problem no longer traces to the recorded sites, or a kernel of the
            landscape covers several sites.
    """
    header = landscape.header
    graph = trace_problem(execute_problem(header.problem, FULL), header.contract.precision)
    nodes = {node.name for node in graph.nodes}
    if not all(nodes.issuperset(site.nodes) for site in header.sites):
        raise LandscapeError(
            f"{landscape.name} traces to another graph than when it was recorded; record it again"
        )
    if any(len(choices) > 1 for choices in landscape.settings):
        raise LandscapeError(
            f"Kernels of {landscape.name} cover several sites at once, which cannot be simulated; "
            "leave it out"
        )
    recipes: dict[str, Recipe] = {}
    writable: dict[str, float] = {}
    for name in sorted({choices[0].recipe for choices in landscape.settings}):
        points = [
            point for choices, point in landscape.settings.items() if choices[0].recipe == name
        ]
        written = {point.choices[0].site for point in points}
        sites = [site for site in header.sites if site.recipe == name and site.name in written]
        recipes[name] = RecordedRecipe(name, sites, points)
        writable[name] = float(sum(site.bytes for site in sites))
    bound = graph_bound(graph, header.device, header.contract)
    traced = TracedProblem(
        header.problem, header.contract, header.device, {"full": FULL}, {"full": graph}, bound
    )
    return Session(
        traced,
        not header.estimated,
        dict(skills),
        recipes,
        header.operators,
        writable,
        ("simulated from a recorded landscape",),
    )


class RecordedEvaluator(Evaluator):
    """Answers for one run on one landscape."""

    def __init__(self, landscape: Landscape, session: Session) -> None:
        self._landscape, self._session = landscape, session
        self._points = landscape.settings
        self._binaries: set[str] = set()

    @property
    def seconds_left(self) -> float:
        """No limit: a simulated run is limited by its rounds."""
        return math.inf

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        """Eager alone, for no other baseline was recorded."""
        eager = self._landscape.eager
        if eager is not None and eager.timing:
            on_found(Baseline("eager", eager.timing, self._landscape.header.estimated))

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        failed, ready = [], []
        for kernel in kernels:
            point = self._point(kernel)
            if point.compile_status is CompileStatus.FAILED:
                failed.append((kernel, point.log))
            elif point.ptx_hash is None or point.ptx_hash not in self._binaries:
                self._binaries.add(point.ptx_hash or kernel.hash)
                ready.append(kernel)
        return Admitted(tuple(failed), tuple(ready))

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        for index, kernel in enumerate(kernels):
            on_result(index, self._measurement(kernel))

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        """The verdict of the screening, with the ratio to eager: nothing more was recorded."""
        found = self._measurement(kernel)
        eager = next(
            (baseline.timing for baseline in baselines if baseline.timing is not None), None
        )
        if found.timing is None or eager is None:
            return found
        ratio = eager.latency_ms / found.timing.latency_ms
        return replace(
            found,
            timing=replace(
                found.timing, reference="eager", reference_ms=eager.latency_ms, ratio=ratio
            ),
        )

    def profile(self, attempt: Attempt) -> Profile:
        """The static profile of the recorded compile report."""
        kernel, traced = attempt.candidate.kernel, self._session.traced
        launches = estimate_launches(self._point(kernel).launches, traced.bound, traced.device)
        return Profile(kernel.hash, StaticProfiler.name, traced.device.name, True, launches)

    def close(self) -> None:
        """Nothing was started, so nothing is ended."""

    def _point(self, kernel: Kernel) -> Point:
        choices: Choices = kernel.choices
        if choices not in self._points:
            raise LandscapeError(
                f"Nothing is recorded of {choices} in {self._landscape.name}; simulate recipes only"
            )
        return self._points[choices]

    def _measurement(self, kernel: Kernel) -> Measurement:
        point = self._point(kernel)
        return Measurement(
            point.status,
            point.timing,
            self._landscape.header.estimated,
            flags=point.flags,
            log=point.log,
        )
