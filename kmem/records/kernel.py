"""A kernel, the choices that wrote it, and what a profiler saw of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmem.records.identity import ABSENT_IF_NONE, Knob, content_hash
from kmem.records.problem import Bound


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """Which recipe wrote one site of the graph, and with which knobs (sorted by name).

    `members` are the nodes of a site that the recipe finds only where the nodes around it belong to
    others; None for one that it finds in the whole graph.
    """

    site: str
    operator: str
    recipe: str
    knobs: tuple[tuple[str, Knob], ...]
    members: tuple[str, ...] | None = field(default=None, metadata=ABSENT_IF_NONE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A whole emitted module: one Python file with `ModelNew`."""

    source: str
    parent: str | None = None  # hash of the kernel it was derived from
    choices: tuple[SiteChoice, ...] = ()  # empty if no recipe wrote it
    flags: tuple[str, ...] = ()  # "algebraic", "specialised", ...
    # the block of constants that takes the place of the source's own where the judge checks small
    # sizes; empty if there is none
    small_constants: str = ""
    # values that a tuner may put in place of module-level constants of the source, by name; only
    # for kernels that no recipe wrote
    knob_space: tuple[tuple[str, tuple[Knob, ...]], ...] = ()

    @property
    def hash(self) -> str:
        """A hash over the source text alone."""
        return content_hash(self.source)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch of a forward, with raw counters under the profiler's own names.

    `serves` are the graph's nodes that it computes, where that is known.
    """

    name: str
    duration_ms: float | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    metrics: Mapping[str, float]
    serves: tuple[str, ...] | None = field(default=None, metadata=ABSENT_IF_NONE)


@dataclass(frozen=True, slots=True)
class Structure:
    """What a kernel's text is made of.

    `features` has all of vocabulary.SOURCE_FEATURES; `skills` are those whose recipes wrote it.
    """

    features: Mapping[str, float]
    skills: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """Every launch of one forward, as one profiler saw it.

    `bound` is that of the problem, where the profiler was given one: a diagnosis is held to it.
    `operators` are those of its graph, what takes longest first; `patterns` what else the graph
    shows (vocabulary.GRAPH_PATTERNS). `structure` is that of the kernel's text.
    """

    kernel: str  # hash; "" for a report that was made elsewhere
    profiler: str  # ncu, cupti, static
    device: str
    estimated: bool
    launches: tuple[Launch, ...]
    bound: Bound | None = field(default=None, metadata=ABSENT_IF_NONE)
    operators: tuple[str, ...] | None = field(default=None, metadata=ABSENT_IF_NONE)
    patterns: tuple[str, ...] | None = field(default=None, metadata=ABSENT_IF_NONE)
    structure: Structure | None = field(default=None, metadata=ABSENT_IF_NONE)
