"""What the ledger keeps of an attempt, and what a run gets back from it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from kmem.records.diagnosis import Bottleneck, Claim, Signature
from kmem.records.identity import ABSENT_IF_NONE, Knob, content_hash
from kmem.records.kernel import SiteChoice
from kmem.records.plan import Move
from kmem.records.problem import Contract
from kmem.records.verdict import Status

#: What stands in an outcome for what its owner kept back (memory/ledger/redaction.py).
REDACTED = "redacted"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ledger keeps of a measured attempt: enough to learn from it and to use it again.

    Every time in an outcome was measured, except `predicted_ms`.

    `versions` are those of torch and its kin, and of each recipe that wrote the kernel
    (`recipe_component`).

    `graph_hash` identifies operators, shapes, dtypes and constants; `structure_hash` the same
    without sizes. `choices` are the recipe and knobs; `source_hash` names the kernel, whose text is
    stored apart (and may be left out of an export).
    """

    problem: str
    graph_hash: str
    structure_hash: str
    operators: tuple[str, ...]
    workload: str
    device: str
    arch: str
    contract: Contract
    skill: str
    choices: tuple[SiteChoice, ...]
    move: Move
    bottleneck: Bottleneck | None
    signature: Signature | None
    source_hash: str
    parent_hash: str | None
    status: Status
    latency_ms: float | None
    latency_ms_p20: float | None
    latency_ms_p80: float | None
    parent_ms: float | None
    baseline: str | None
    baseline_ms: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    bound_ms: float | None
    flags: tuple[str, ...]
    versions: Mapping[str, str]
    origin: str
    created_at: str  # ISO 8601, UTC
    # of the graph (problem.graph.graph_sizes): they tell how near two graphs of one structure are
    sizes: tuple[int, ...] = ()
    # of the run or verdict, where known; whoever repeats the measurement draws another
    seed: int | None = field(default=None, metadata=ABSENT_IF_NONE)
    # the cost model's prediction, where one was asked
    predicted_ms: float | None = field(default=None, metadata=ABSENT_IF_NONE)
    # what the change was predicted to do to the parent's profile, where it was prescribed
    claims: tuple[Claim, ...] | None = field(default=None, metadata=ABSENT_IF_NONE)

    @property
    def hash(self) -> str:
        """A hash over every field: the same measurement merged twice is one outcome.

        What is not known of later fields (seed, prediction, derived figures, members) is left
        out, so that outcomes from before there were such fields keep their hash.
        """
        data = asdict(self)
        if data["signature"] is not None and data["signature"]["derived"] is None:
            del data["signature"]["derived"]
        for choice in data["choices"]:
            if choice["members"] is None:
                del choice["members"]
        for name in ("seed", "predicted_ms", "claims"):
            if data[name] is None:
                del data[name]
        return content_hash(json.dumps(data, sort_keys=True, default=lambda value: value.value))


def recipe_component(recipe: str) -> str:
    """What `Outcome.versions` calls the version of a recipe."""
    return f"recipe {recipe}"


def is_recipe_component(name: str) -> bool:
    """Whether a key of `Outcome.versions` is that of a recipe."""
    return name.startswith(recipe_component(""))


def is_aged(outcome: Outcome, recipe_versions: Mapping[str, str]) -> bool:
    """Whether a recipe that wrote the kernel has changed since, or its version was not kept.

    Args:
        recipe_versions: of the recipes at hand, by name.
    """
    return any(
        outcome.versions.get(recipe_component(choice.recipe)) != recipe_versions.get(choice.recipe)
        for choice in outcome.choices
    )


@dataclass(frozen=True, slots=True)
class Recalled:
    """A remembered winner for this graph (`exact`) or for a like one, best first.

    `aged`: a recipe that wrote it has changed since, so that it may be far from what is possible.
    """

    outcome: Outcome
    source: str | None
    exact: bool
    # 0 for exact; mean absolute log2 ratio of sizes for the same structure; infinite where sizes
    # cannot be compared
    distance: float
    aged: bool = False
    small_constants: str = ""  # of the kernel; see Kernel


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel that recipes wrote, by what they chose, and the least time it was seen to take."""

    choices: tuple[SiteChoice, ...]
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Experience:
    """A measured setting of a recipe: its time, the cost model's prediction, and the graph."""

    recipe: str
    knobs: tuple[tuple[str, Knob], ...]
    latency_ms: float
    predicted_ms: float | None  # None if the prediction was not kept
    graph: str  # the hash of the graph that the setting was for
    structure: str  # the hash of that graph without sizes
    sizes: tuple[int, ...]  # problem.graph.graph_sizes of the graph
    aged: bool = False  # whether the recipe has changed since


@dataclass(frozen=True, slots=True)
class Descent:
    """How the best time of an earlier search fell, measurement by measurement.

    `best_ms` has the best time after each measurement, None while nothing had passed. `trust` is
    what the search counts by origin and age. `from_winner`: it began with a kernel that an earlier
    search of the same graph had found.
    """

    graph: str  # the hash of the graph that was searched
    structure: str  # the hash of that graph without sizes
    sizes: tuple[int, ...]  # problem.graph.graph_sizes of the graph
    recipes: tuple[str, ...]  # that wrote its kernels
    best_ms: tuple[float | None, ...]
    is_own: bool  # whether this memory recorded it
    trust: float = 1.0
    bound_ms: float | None = None
    from_winner: bool = False
