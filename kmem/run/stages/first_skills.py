"""The skills that a language model is told for a first kernel, before anything was profiled.

First the one whose exact algebra leaves less work, then those whose recipe can write the parts of
the graph that take most of eager's time, of equals those that won on like graphs; then those that
fit what limits the forward.
"""

from collections.abc import Sequence

from kmem.memory.store import Memory
from kmem.prescribe.rank import MAX_PRESCRIPTIONS
from kmem.problem.costs.bound import node_costs_ms
from kmem.records import Bottleneck, Diagnosis, Prescription, Recalled, Run, Signature
from kmem.run.setup.session import Session
from kmem.run.stages.consulting import describe_record, prescribe

#: What to do about a limit of the hardware: move no byte twice, and use the units that the bound
#: counts on.
_LIMITED_BY = {
    "bytes": Bottleneck.REDUNDANT_TRAFFIC,
    "fp32": Bottleneck.FMA_BOUND,
    "tf32": Bottleneck.TENSOR_CORE_IDLE,
    "fp16": Bottleneck.TENSOR_CORE_IDLE,
    "bf16": Bottleneck.TENSOR_CORE_IDLE,
    "special": Bottleneck.SPECIAL_FUNCTION_BOUND,
}
#: A skill is of no use for a first kernel if its recipe can write less of the forward's time.
_LEAST_SHARE = 0.05
#: More skills for one part of the graph would say the same.
_ALIKE = 2


def first_skills(
    run: Run, session: Session, memory: Memory, winners: Sequence[Recalled] = ()
) -> tuple[Prescription, ...]:
    """The skills, best first; none for a run that asks no model."""
    if not run.models:
        return ()
    found = {entry.skill: entry for entry in _rewriting(run, session, memory)}
    for entry in _matching(run, session, memory, winners):
        found.setdefault(entry.skill, entry)
    if len(found) < MAX_PRESCRIPTIONS:
        skills = list(session.skills.values())
        for entry in prescribe(_expected_limit(session), skills, run, session, memory):
            found.setdefault(entry.skill, entry)
    return tuple(found.values())[:MAX_PRESCRIPTIONS]


def _rewriting(run: Run, session: Session, memory: Memory) -> list[Prescription]:
    """The skill of the best rewritten form of the problem: less work comes before faster work."""
    forms = list(session.rewritten.items())[:1]
    return [
        Prescription(name, 1.0, form.reasons, _record(name, run, memory)) for name, form in forms
    ]


def _record(skill: str, run: Run, memory: Memory) -> str | None:
    """What a skill has earned; None in a run without memory."""
    if run.memory_mode == "off":
        return None
    return describe_record(memory.track_records.of_skill(skill))


def _matching(
    run: Run, session: Session, memory: Memory, winners: Sequence[Recalled]
) -> list[Prescription]:
    """Skills whose recipes match this graph, the larger share of eager's time first."""
    traced = session.traced
    costs = node_costs_ms(traced.graph, traced.device, traced.contract)
    total = sum(costs.values())
    nodes: dict[str, set[str]] = {}
    for (recipe, _), names in session.site_nodes.items():
        nodes.setdefault(recipe, set()).update(names)
    won = [hit.outcome.skill for hit in winners]
    shares = {
        recipe: sum(costs.get(name, 0.0) for name in names) / total if total else 0.0
        for recipe, names in nodes.items()
        if recipe in session.skills
    }
    ranked = sorted(
        (recipe for recipe, share in shares.items() if share >= _LEAST_SHARE),
        key=lambda recipe: (
            -round(shares[recipe], 2),
            won.index(recipe) if recipe in won else len(won),
            recipe,
        ),
    )
    chosen: list[str] = []
    for recipe in ranked:
        alike = [other for other in chosen if nodes[other] & nodes[recipe]]
        if len(alike) < _ALIKE:
            chosen.append(recipe)
    return [
        Prescription(
            recipe,
            shares[recipe],
            (f"its recipe can write {shares[recipe]:.0%} of what takes eager's time here",),
            _record(recipe, run, memory),
        )
        for recipe in chosen[:MAX_PRESCRIPTIONS]
    ]


def _expected_limit(session: Session) -> Diagnosis:
    """What limits the forward as traced, in place of a diagnosis."""
    bound = session.traced.bound
    limiter = bound.limiter if bound is not None else "unknown"
    return Diagnosis(
        _LIMITED_BY.get(limiter, Bottleneck.UNKNOWN),
        (),
        Signature({}),
        None,
        None,
        f"nothing was measured yet; the hardware limits the forward by {limiter}",
        None,
        estimated=True,
    )
