"""How first kernels differ: how much of a module each takes on, and which skill it rests on.

The sizes are: everything, the fused whole in several kernels, the hottest operators, or the hottest
one. A seed of every size is asked for, because neither the largest nor the smallest is reliably
best: a full rewrite can fuse the most and fails most often. Which operators are hot is an estimate
from the traced graph. Each of the first seeds rests on another skill of those that fit the graph,
and one on none, so that a wrong skill does not lead them all astray; a seed of some operators rests
on no skill that is about others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.interfaces import UNAIDED, Situation
from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.operators.table import find_operator
from kmem.records import Purity

#: Operators that "several" takes on together, and the least share of eager's time that each has: a
#: kernel of its own for less is a launch more.
_SEVERAL = 3
_LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a module a first kernel takes on: `nodes` of the graph, all if there are none."""

    name: str
    instruction: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seed:
    """One first kernel to ask for."""

    size: str
    skill: str
    instruction: str


def seeds(situation: Situation) -> list[Seed]:
    """First kernels to ask for, each unlike the others, most promising first.

    Sizes take turns with the skills for a first kernel; what is left over is unaided. Where there
    are skills and one size alone, it is asked for with each skill and without.
    """
    sizes = seed_sizes(situation)
    known = [
        entry.skill
        for entry in situation.background.first_skills
        if entry.skill in situation.skills
    ]
    waiting = known[: max(1, len(sizes) - 1)]
    count = max(len(sizes), len(waiting) + 1 if known else 1)
    offered = []
    for place in range(count):
        size = sizes[place % len(sizes)]
        skill = next((name for name in waiting if _suits(situation, name, size.nodes)), UNAIDED)
        if skill != UNAIDED:
            waiting.remove(skill)
        offered.append(_seed(size, skill))
    return offered


def _suits(situation: Situation, skill: str, nodes: Sequence[str]) -> bool:
    """Whether a skill is about one of these nodes; of a whole module it is about some."""
    rows = [
        find_operator(node.target) for node in situation.traced.graph.nodes if node.name in nodes
    ]
    operators = [row.name for row in rows if row is not None]
    return not nodes or situation.skills[skill].covers_operators(operators)


def _seed(size: Size, skill: str) -> Seed:
    if skill == UNAIDED:
        return Seed(size.name, skill, size.instruction)
    return Seed(
        f"{size.name}, by {skill}", skill, f"{size.instruction} Build it on the skill {skill}."
    )


def seed_sizes(situation: Situation) -> list[Size]:
    """Sizes of a first kernel, each with what to do, most promising first.

    Sizes that the module does not have, or its contract forbids, are left out. A forward that could
    not be traced has no parts to choose from, so only a full rewrite is left; where all GPU time
    must be Triton's, nothing may be left to torch.
    """
    graph = situation.traced.graph
    costs = node_costs_ms(graph, situation.traced.device, situation.traced.contract)
    hottest = sorted((name for name in costs if costs[name] > 0), key=lambda name: -costs[name])
    full = Size(
        "full rewrite",
        "Write the whole forward in Triton, in as few kernels as move each input and output once.",
    )
    if len(hottest) < 2:
        return [full]
    beside = "the reduction, norm, product, convolution or pooling beside it"
    fuse = f"Fuse every pointwise operator, cast and broadcast into the kernel of {beside}"
    if situation.traced.contract.purity is Purity.TRITON:
        return [Size("fuse", f"{fuse}; write one kernel for each of those."), full]
    rest = "with what is pointwise directly before or after; the rest stays torch."
    sizes = [
        Size("fuse", f"{fuse}; leave to torch only operators that a library does better."),
        full,
        Size(
            "hottest operator",
            f"Write the operator that takes most time, {hottest[0]}, in Triton, {rest}",
            (hottest[0],),
        ),
    ]
    least = _LEAST_SHARE * sum(costs.values())
    several = tuple(name for name in hottest[:_SEVERAL] if costs[name] >= least)
    if 1 < len(several) < len(hottest):
        text = (
            f"Write the operators that take most time, {', '.join(several)}, in as few Triton "
            f"kernels as their order allows, {rest}"
        )
        sizes.append(Size("several operators", text, several))
    return sizes
