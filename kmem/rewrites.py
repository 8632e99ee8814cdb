"""The API against which a skill's rewrite.py is written, and rewrites applied to a problem.

A rewrite is deterministic code that turns a part of the graph into another that computes the same
with less work. A rewrite.py defines `REWRITE`, an instance of a `Rewrite` subclass. It works with
kmem.problem.editing and writes no kernels: the recipes then match the rewritten graph, and what
they leave is the library's, as ever. `kmem.testing.check_rewrite` holds a rewrite to its contract.

What a rewrite did stands among the choices of a kernel, before those of its sites, each under the
rewrite's name: a choice without knobs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kmem.errors import RecipeError, foreign_code
from kmem.problem.costs.bound import graph_bound
from kmem.problem.graph import OpGraph
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, SiteChoice

#: The flag of a kernel that leaves out work by exact algebra.
ALGEBRAIC = "algebraic"


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One place where a rewrite applies: the whole graph after it, and why it computes the same.

    `site` is the name of its anchor node, stable between workloads of one problem. `reason` is a
    sentence for people. `flags` go into the result: "algebraic" where exact algebra removed work.
    """

    site: str
    operator: str  # vocabulary.OPERATORS
    graph: OpGraph
    reason: str
    flags: tuple[str, ...] = (ALGEBRAIC,)


class Rewrite(ABC):
    """An executable skill that finds its places in a graph and gives equal graphs.

    Contract (kmem.testing.check_rewrite holds it): the graph of every rewriting has the
    placeholders, outputs and effects of the one it was made from, and equals it in real arithmetic
    on every family of inputs, those with infinities and NaN included; what it cannot keep equal it
    does not match. `rewritings` is a pure function.
    """

    name: str = ""  # set by the loader: the skill's name

    @abstractmethod
    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every place where this rewrite applies, in graph order, each applied by itself."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A problem with rewritten graphs, and how they came about.

    `bound` of `traced` is that of the rewritten graph: what its kernels need at least, not what
    the problem is held to.
    """

    traced: TracedProblem
    steps: tuple[SiteChoice, ...]
    reasons: tuple[str, ...]
    flags: tuple[str, ...]


class Rewrites:
    """The rewrites of a library, and the graphs that they make of problems, each made once."""

    def __init__(self, loaded: Mapping[str, Rewrite] | None = None) -> None:
        self.loaded = dict(loaded or {})
        # both hold what they were made of, so that its id stays its own
        self._made: dict[tuple[int, tuple[SiteChoice, ...]], tuple[TracedProblem, Rewritten]] = {}
        self._next: dict[tuple[str, int], tuple[TracedProblem, Sequence[Rewritten]]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.loaded

    def steps_of(self, choices: Sequence[SiteChoice]) -> tuple[SiteChoice, ...]:
        """Those of a kernel's choices that are rewrites."""
        return tuple(choice for choice in choices if choice.recipe in self.loaded)

    def apply(self, traced: TracedProblem, choices: Sequence[SiteChoice]) -> Rewritten | None:
        """A problem rewritten as these choices say; as it is where none of them is a rewrite.

        Returns: None if one of them does not apply, as where a rewrite has changed since.
        """
        steps = self.steps_of(choices)
        key = id(traced), steps
        if key in self._made:
            return self._made[key][1]
        made: Rewritten | None = Rewritten(traced, (), (), ())
        for step in steps:
            made = None if made is None else self._one_more(made, step)
        if made is not None:
            self._made[key] = traced, made
        return made

    def next_steps(self, rewritten: Rewritten, names: Sequence[str]) -> list[Rewritten]:
        """What each place of these rewrites makes of a problem, one step further.

        A place that is not found at every workload is passed over: one module must serve all.

        Raises RecipeError: if the code of a rewrite raises anything.
        """
        return [further for name in names for further in self._next_steps_of(name, rewritten)]

    def _next_steps_of(self, name: str, rewritten: Rewritten) -> Sequence[Rewritten]:
        key = name, id(rewritten.traced)
        if key not in self._next:
            places = self._match(name, rewritten.traced, "full")
            steps = [SiteChoice(site, each.operator, name, ()) for site, each in places.items()]
            further = [self._one_more(rewritten, step) for step in steps]
            found = [each for each in further if each is not None]
            self._next[key] = rewritten.traced, found
        return self._next[key][1]

    def _match(self, name: str, traced: TracedProblem, workload: str) -> Mapping[str, Rewriting]:
        """The places of a rewrite by their sites, in graph order."""
        with foreign_code(f"the rewrite of {name}", RecipeError):
            return traced.graphs[workload].once(_places, self.loaded[name], traced.contract)

    def _one_more(self, rewritten: Rewritten, step: SiteChoice) -> Rewritten | None:
        traced, graphs = rewritten.traced, {}
        first: Rewriting | None = None
        for workload in traced.graphs:
            rewriting = self._match(step.recipe, traced, workload).get(step.site)
            if rewriting is None:
                return None
            graphs[workload] = rewriting.graph
            first = first or rewriting
        targets = [[node.target for node in graph.nodes] for graph in graphs.values()]
        if first is None or any(each != targets[0] for each in targets):
            return None
        bound = graph_bound(graphs["full"], traced.device, traced.contract)
        return Rewritten(
            replace(traced, graphs=graphs, bound=bound),
            (*rewritten.steps, step),
            (*rewritten.reasons, first.reason),
            tuple(sorted({*rewritten.flags, *first.flags})),
        )


def _places(graph: OpGraph, rewrite: Rewrite, contract: Contract) -> Mapping[str, Rewriting]:
    places: dict[str, Rewriting] = {}
    for rewriting in rewrite.rewritings(graph, contract):
        places.setdefault(rewriting.site, rewriting)
    return places
