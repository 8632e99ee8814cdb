"""Whether a skill applies to a diagnosis: typed tests in three-valued logic.

True, False or None (unknown): a False anywhere excludes the skill; an unknown neither passes as
true nor excludes, and the reasons name it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.prescribe.figures import OF_THE_KERNEL, can_move, is_share_of_peak, known_figures
from kmem.records import Bottleneck, Contract, Diagnosis, Precision
from kmem.skills import Condition, Skill
from kmem.vocabulary import GRAPH_PATTERNS, OPERATORS, SYMPTOMS

#: Kinds of tests that may be given up so that something can be offered, in this order.
RELAXABLE = ("signature", "bottleneck", "operator")
#: What an operator's family counts beside the operator itself, and a bottleneck named second beside
#: the first. Source: chosen, so that the order of backing off is operator, family, any operator.
RELATED = 0.6
LATER = 0.5
#: The same of a diagnosis that was estimated: which of two busy units is the busier one is then a
#: guess. And what each place further back in a skill's list of bottlenecks leaves: what it names
#: first is what it is for. Source: chosen on the tuned half of `tools/retrieval_hits.py`, the
#: latter among 0.5, 0.7, 0.8, 0.9 and 1 (mean reciprocal rank with counters 0.80 to 0.86).
LATER_ESTIMATED = 0.7
FURTHER_BACK = 0.9
#: Figures that are read of binaries and launches: at most the least time of one is estimated.
_READ = frozenset(
    {"waves", "spill_bytes_per_thread", "product_stages", "launches", "mean_launch_us"}
    | {"masked_out_pct", "loaded_by_thread"}
)
#: What a condition on a figure that is not known counts among a skill's tests: without counters
#: skills that say little of themselves would else come before those that say much.
#: Source: chosen among 0, 1/4, 1/2 and 1 on the tuned half of `tools/retrieval_hits.py`.
UNKNOWN = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate's answer with its reasons.

    `strength` is the share of the skill's typed tests that are known to hold (1.0 if it has none);
    a condition on an unknown figure counts UNKNOWN, and nothing where the graph shows the matter.
    `relevance`, 0 to 1, says how closely the skill is about this very case; see `Gate.relevance`.
    `refused` names the kinds of tests (RELAXABLE, "architecture", "precision", "forbidden") that
    are known not to hold.
    """

    strength: float
    relevance: float
    reasons: tuple[str, ...]
    refused: frozenset[str]

    @property
    def applies(self) -> bool:
        return not self.refused

    @property
    def is_forbidden(self) -> bool:
        """Whether the skill may not be used here whatever else is relaxed.

        It would not run, not be accurate enough, or undo what the kernel rests on.
        """
        return bool(self.refused - set(RELAXABLE))

    @property
    def relaxed(self) -> int:
        """How far tests must be relaxed to let the skill through.

        0 is not at all, 1 signature, 2 bottleneck too, 3 operator too.
        """
        return max(
            (RELAXABLE.index(kind) + 1 for kind in self.refused if kind in RELAXABLE), default=0
        )

    @property
    def relaxed_name(self) -> str:
        """The kinds of tests that had to be relaxed, in words."""
        return " and ".join(kind for kind in RELAXABLE if kind in self.refused)


@dataclass(frozen=True, slots=True)
class SkillQuery:
    """What skills are wanted for: a diagnosis, the operators at hand, and where they run.

    `diagnosis` is None where there is none; `operators` is empty where they are not known.
    """

    diagnosis: Diagnosis | None
    operators: Sequence[str]
    arch: str
    contract: Contract


def gate_skill(skill: Skill, query: SkillQuery) -> Verdict:
    """Test one skill; see `Gate`."""
    return Gate(query).test(skill)


class Gate:
    """The tests of one query: operator, architecture, precision, bottleneck, signature."""

    def __init__(self, query: SkillQuery) -> None:
        diagnosis = query.diagnosis
        self._query = query
        self._patterns = diagnosis.patterns if diagnosis else None
        self._operators = operators = _spelled(query.operators, self._patterns)
        # What `passes` asks of every skill there is, worked out once.
        families = {OPERATORS[name] for name in operators}
        self._related = {
            "any",
            *(name for name, family in OPERATORS.items() if family in families or not operators),
        }
        self._precisions = {
            name for name, contracts in _ALLOWED.items() if query.contract.precision in contracts
        }
        self._archs: dict[tuple[str, ...], bool] = {}
        self._treated = (diagnosis.bottleneck, *diagnosis.secondary) if diagnosis else ()
        self._possible = diagnosis.possible if diagnosis else ()
        evidence = diagnosis.evidence if diagnosis else ()
        self._is_read = bool(evidence) and {each.metric for each in evidence} <= _READ
        self._known = known_figures(diagnosis) if diagnosis else {}
        structure = diagnosis.structure if diagnosis else None
        self._written_by = structure.skills if structure else ()
        self._operator_tests: dict[tuple[str, ...], tuple[bool | None, str]] = {}
        self._informations: dict[tuple[str, ...], float] = {}

    def passes(self, skill: Skill) -> bool:
        """Whether `test` would let the skill through."""
        return self.strength(skill) is not None

    def forbids(self, skill: Skill) -> str:
        """The combination in words that forbids a skill here; empty if none does."""
        met = (each for each in skill.forbidden if each.is_met(self._known, self._written_by))
        return next((f"forbidden where {each}" for each in met), "")

    def strength(self, skill: Skill, *, heed: bool = True) -> float | None:
        """The strength `test` would give a skill it lets through, else None; without the reasons.

        Ten thousand skills take milliseconds.

        Args:
            heed: whether what forbids the skill counts.
        """
        if skill.precision not in self._precisions:
            return None
        if self._related.isdisjoint(skill.operators) and not self._shows(skill):
            return None
        if skill.arch not in self._archs:
            self._archs[skill.arch] = skill.covers_arch(self._query.arch)
        if not self._archs[skill.arch]:
            return None
        if heed and skill.forbidden and self.forbids(skill):
            return None
        tests, unknown = 3.0, 0.0
        if self._query.diagnosis is not None:
            if skill.bottlenecks:
                treats = self._treats(skill)
                if treats is False:
                    return None
                tests += 1
                unknown += treats is None
            shows = self._shows(skill)
            for condition in (*skill.signature, *skill.structure):
                holds = condition.holds(self._known)
                if holds is False and not self._is_guess(condition):
                    return None
                if holds is None and condition.metric in OF_THE_KERNEL:
                    continue  # there is no text or binary to ask
                if holds is None:
                    unasked = 0.0 if shows else UNKNOWN
                    tests, unknown = tests + unasked, unknown + unasked
                tests, unknown = tests + (holds is not None), unknown + (holds is False)
            promises = self._promises(skill)
            tests += promises is not None
            unknown += promises is False
        if self._asks_graph(skill):
            tests += 1
            unknown += not self._shows(skill)
        unknown += self._match_operators(skill)[0] is None
        return (tests - unknown) / tests

    def test(self, skill: Skill) -> Verdict:
        """Every test with its reason."""
        tests: list[tuple[str, bool | None, str]] = [
            ("operator", *self._match_operators(skill)),
            ("architecture", *_match_arch(skill, self._query.arch)),
            ("precision", *_match_precision(skill, self._query.contract)),
        ]
        if self._asks_graph(skill):
            tests.append(("graph", self._shows(skill) or None, self._shown(skill)))
        diagnosis = self._query.diagnosis
        if diagnosis is not None:
            if skill.bottlenecks:
                tests.append(("bottleneck", self._treats(skill), self._treated_words(skill)))
            for condition in (*skill.signature, *skill.structure):
                holds = condition.holds(self._known)
                if holds is None and (self._shows(skill) or condition.metric in OF_THE_KERNEL):
                    continue  # the graph shows what would be asked, or there is nothing to ask
                state = {True: "holds", False: "does not hold", None: "unknown"}[holds]
                if holds is False and self._is_guess(condition):
                    tests.append(("estimate", None, f"{condition} {state} by an estimate"))
                else:
                    tests.append(("signature", holds, f"{condition} {state}"))
            promises = self._promises(skill)
            if promises is not None:
                words = "what it claims is still to be had"
                tests.append(
                    ("claims", promises or None, words if promises else f"not {words[5:]}")
                )
        held = sum(answer is True for _, answer, _ in tests)
        refused = frozenset(kind for kind, answer, _ in tests if answer is False)
        asked = sum(
            UNKNOWN if kind == "signature" and answer is None else 1.0 for kind, answer, _ in tests
        )
        if forbids := self.forbids(skill):
            return Verdict(0.0, 0.0, (forbids,), refused | {"forbidden"})
        return Verdict(
            held / asked,
            self.relevance(skill),
            tuple(reason for _, _, reason in tests),
            refused,
        )

    def relevance(self, skill: Skill) -> float:
        """How closely a skill is about this very case, 0 to 1.

        It is the mean of 1 (the skill passed), how much naming these operators says, and which of
        the bottlenecks the skill treats.

        A skill that names one operator says the most about it, one for any operator nothing: the
        share of the vocabulary's information, 1 - log(operators named) / log(operators there are),
        counting RELATED for a family and less where it names few of the graph's operators. The
        first bottleneck counts 1, a later one LATER (LATER_ESTIMATED), none 0, and less where the
        skill names others before. Source: inverse document frequency,
        Sparck Jones, "A statistical interpretation of term specificity", Journal of Documentation
        28(1), 1972. A pattern of the graph that the skill acts on says the most, too, and counts as
        a bottleneck where the facts name none that the skill treats: the graph shows what is to be
        saved. It is the first one where the facts were only estimated, else a later one.
        """
        if skill.operators not in self._informations:
            self._informations[skill.operators] = self._operator_information(skill)
        information = 1.0 if self._shows(skill) else self._informations[skill.operators]
        return (1.0 + information + self._bottleneck_focus(skill)) / 3.0

    def _match_operators(self, skill: Skill) -> tuple[bool | None, str]:
        if skill.operators not in self._operator_tests:
            self._operator_tests[skill.operators] = match_operators(skill, self._operators)
        found = self._operator_tests[skill.operators]
        return (True, self._shown(skill)) if found[0] is not True and self._shows(skill) else found

    def _is_guess(self, condition: Condition) -> bool:
        """Whether a condition is about a share of a peak that was only estimated; it refuses none.

        An estimate takes the kernel to run at the speed of its busiest unit, and knows of no stall.
        """
        diagnosis = self._query.diagnosis
        estimated = diagnosis is not None and diagnosis.estimated
        return estimated and is_share_of_peak(condition.metric)

    def _asks_graph(self, skill: Skill) -> bool:
        """Whether a pattern is a test of its own, and not another spelling of the operator."""
        if not skill.patterns or self._patterns is None:
            return False
        spelled = {GRAPH_PATTERNS[name].spells for name in skill.patterns}
        return self._shows(skill) or not any(
            name in spelled and name in skill.operators for name in self._operators
        )

    def _shows(self, skill: Skill) -> bool:
        """Whether the graph has a pattern that the skill acts on, or the text what it mends."""
        if self._patterns and not set(skill.patterns).isdisjoint(self._patterns):
            return True
        return any(each.metric in SYMPTOMS for each in skill.structure) and all(
            each.holds(self._known) for each in skill.structure
        )

    def _shown(self, skill: Skill) -> str:
        found = [name for name in skill.patterns if name in (self._patterns or ())]
        if found:
            return f"the graph has a {found[0]}"
        if self._shows(skill):
            return f"the text has {' and '.join(map(str, skill.structure))}"
        return f"acts on {', '.join(skill.patterns)}: the graph has none"

    def _promises(self, skill: Skill) -> bool | None:
        """Whether the figures leave anything of what the skill claims to do; None if none is known.

        A skill that coalesces loads has nothing to do where every sector is used.
        """
        claims = skill.predictions(self._known) if self._known else ()
        if not claims:
            return None
        open_ = [
            can_move(claim, self._known[claim.metric])
            for claim in claims
            if claim.metric in self._known
        ]
        return any(open_) if open_ else None

    def _treated_words(self, skill: Skill) -> str:
        named = self._treats_any(skill) or not self._shows(skill)
        return _treats(skill, self._query.diagnosis) if named else self._shown(skill)

    def _treats(self, skill: Skill) -> bool | None:
        """None where the diagnosis does not rule out what the skill treats, nor name it."""
        if self._treats_any(skill) or self._shows(skill):
            return True
        return None if any(each in skill.bottlenecks for each in self._possible) else False

    def _treats_any(self, skill: Skill) -> bool:
        # Asked ten thousand times: `in` of a tuple compares by identity first, where a set would
        # hash each enum in Python.
        for bottleneck in self._treated:  # noqa: SIM110 - a generator takes three times as long
            if bottleneck in skill.bottlenecks:
                return True
        return False

    def _operator_information(self, skill: Skill) -> float:
        if "any" in skill.operators or not self._operators:
            return 0.0
        information = 1.0 - math.log(len(skill.operators)) / math.log(len(OPERATORS))
        named = sum(name in skill.operators for name in self._operators)
        if not named:
            return RELATED * information if not self._related.isdisjoint(skill.operators) else 0.0
        return information * (1.0 + named / len(self._operators)) / 2.0

    def _bottleneck_focus(self, skill: Skill) -> float:
        diagnosis = self._query.diagnosis
        if diagnosis is None:
            return 0.0
        if not skill.claims and diagnosis.bottleneck is not Bottleneck.AT_BOUND:
            return 0.0
        is_guess = diagnosis.estimated and not self._is_read
        later = LATER_ESTIMATED if is_guess else LATER
        if not self._treats_any(skill):
            seen = 1.0 if is_guess else later
            return seen if self._shows(skill) else 0.0
        return max(
            (1.0 if place == 0 else later) * FURTHER_BACK ** skill.bottlenecks.index(bottleneck)
            for place, bottleneck in enumerate(self._treated)
            if bottleneck in skill.bottlenecks
        )


def _spelled(operators: Sequence[str], patterns: Sequence[str] | None) -> tuple[str, ...]:
    """The operators with those that patterns of the graph spell out."""
    spelled = (GRAPH_PATTERNS[name].spells for name in patterns or ())
    return tuple(dict.fromkeys((*operators, *filter(None, spelled))))


def _treats(skill: Skill, diagnosis: Diagnosis) -> str:
    for bottleneck in (diagnosis.bottleneck, *diagnosis.secondary):
        if bottleneck in skill.bottlenecks:
            return f"treats {bottleneck.value}"
    for bottleneck in diagnosis.possible:
        if bottleneck in skill.bottlenecks:
            return f"treats {bottleneck.value}, which nothing names or rules out"
    return f"does not treat {diagnosis.bottleneck.value}"


def match_operators(skill: Skill, operators: Sequence[str]) -> tuple[bool | None, str]:
    """Whether a skill speaks of one of the operators, of their family, or of any."""
    if "any" in skill.operators:
        return True, "applies to any operator"
    if not operators:
        return None, f"operators {', '.join(skill.operators)}: the graph's are unknown"
    exact = [name for name in operators if name in skill.operators]
    if exact:
        return True, f"operator {exact[0]}"
    families = {OPERATORS[name] for name in skill.operators}
    related = [name for name in operators if OPERATORS[name] in families]
    if related:
        return None, f"family {OPERATORS[related[0]]} of {related[0]}"
    return False, f"written for {', '.join(skill.operators)}"


def _match_arch(skill: Skill, arch: str) -> tuple[bool | None, str]:
    if not skill.arch:
        return True, "any architecture"
    if skill.covers_arch(arch):
        return True, f"architecture {arch}"
    return False, f"written for {', '.join(skill.arch)}, not {arch}"


#: A skill of precision X may be used under the contracts in its row.
_ALLOWED = {
    "exact": {Precision.MATCH, Precision.TF32, Precision.BF16},
    "match": {Precision.MATCH, Precision.TF32, Precision.BF16},
    "tf32": {Precision.TF32, Precision.BF16},
    "bf16": {Precision.BF16},
}


def _match_precision(skill: Skill, contract: Contract) -> tuple[bool | None, str]:
    fits = contract.precision in _ALLOWED[skill.precision]
    how = "fits" if fits else "is below"
    return fits, f"precision {skill.precision} {how} the contract {contract.precision.value}"
