"""How first kernels differ: how much of a module each takes on, and which skill it rests on.

The sizes are: everything, the fused whole in several kernels, the hottest operators, or the hottest
one. A seed of every size is asked for, because neither the largest nor the smallest is reliably
best: a full rewrite can fuse the most and fails most often. Which operators are hot is an estimate
from the traced graph. Each of the first seeds rests on another skill of those that fit the graph,
and one on none, so that a wrong skill does not lead them all astray.
"""

from dataclasses import dataclass

from kmem.interfaces import UNAIDED, Situation
from kmem.problem.bound import node_cost_ms
from kmem.records import Purity

#: Operators that "several" takes on together.
_SEVERAL = 3


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
    sizes = seed_instructions(situation)
    known = [
        entry.skill
        for entry in situation.background.first_skills
        if entry.skill in situation.skills
    ]
    skills = [*known[: max(1, len(sizes) - 1)], UNAIDED] if known else [UNAIDED]
    count = max(len(sizes), len(skills))
    return [
        _seed(*sizes[place % len(sizes)], skills[min(place, len(skills) - 1)])
        for place in range(count)
    ]


def _seed(size: str, text: str, skill: str) -> Seed:
    if skill == UNAIDED:
        return Seed(size, skill, text)
    return Seed(f"{size}, by {skill}", skill, f"{text} Build it on the skill {skill}.")


def seed_instructions(situation: Situation) -> list[tuple[str, str]]:
    """Sizes of a first kernel, each with what to do, most promising first.

    Sizes that the module does not have, or its contract forbids, are left out. A forward that could
    not be traced has no parts to choose from, so only a full rewrite is left; where all GPU time
    must be Triton's, nothing may be left to torch.
    """
    graph = situation.traced.graph
    costs = {
        node.name: node_cost_ms(graph, node, situation.traced.device, situation.traced.contract)
        for node in graph.nodes
    }
    hottest = sorted((name for name in costs if costs[name] > 0), key=lambda name: -costs[name])
    full = (
        "full rewrite",
        "Write the whole forward in Triton, in as few kernels as move each input and output once.",
    )
    if len(hottest) < 2:
        return [full]
    beside = "the reduction, norm, product, convolution or pooling beside it"
    fuse = f"Fuse every pointwise operator, cast and broadcast into the kernel of {beside}"
    if situation.traced.contract.purity is Purity.TRITON:
        return [("fuse", f"{fuse}; write one kernel for each of those."), full]
    seeds = [
        ("fuse", f"{fuse}; leave to torch only operators that a library does better."),
        full,
        (
            "hottest operator",
            (
                f"Write only the operator that takes most time, {hottest[0]}, in Triton; the rest "
                "stays torch."
            ),
        ),
    ]
    if len(hottest) > _SEVERAL:
        names = ", ".join(hottest[:_SEVERAL])
        text = (
            f"Write the operators that take most time, {names}, each as a Triton kernel; the rest "
            "stays torch."
        )
        seeds.append(("several operators", text))
    return seeds
