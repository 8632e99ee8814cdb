"""One rule of a diagnosis: the conditions that name a bottleneck, in three-valued logic.

A rule fires if every condition of `all_of` holds and, where given, one of `any_of`, and none of
`unless`. A fact that is unknown makes no condition hold, so that a missing counter neither names
nor hides a bottleneck. Facts are the signature's metrics and those of bottleneck.collect_facts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kmem.records import Bottleneck, Evidence
from kmem.skills import Condition

_COMPARISONS = (">=", "<=")

#: Facts a rule may use beside vocabulary.SIGNATURE_METRICS.
EXTRA_FACTS: Mapping[str, str] = {
    "mean_launch_us": "mean time of one kernel, in microseconds",
    "tail_efficiency_pct": "waves over waves rounded up: how full the last wave leaves the device",
    "bound_tensor_pct": "share of the bound that tensor cores would be busy",
    "bound_fma_ratio": "what the bound's products would take as fp32 arithmetic, over the bound",
    "least_traffic_ratio": "bytes that device memory moves at least over those that must move",
    "least_dram_pct": "share of the time that these bytes take at the peak of device memory",
    "measured_dram_pct": "dram_throughput_pct where the time was measured: an estimate assumes it",
    "sm_over_dram_pct": "by how much an estimate has an SM pipe busier than device memory",
    "masked_out_pct": "lanes of loads or stores that masks leave out, at least",
    "product_stages": "stages of the loop in which products are added up",
    "loaded_by_thread": "bytes that a program loads in all, over its threads",
    "bytes_in_flight_pct": "bytes asked for at once over those that keep device memory busy",
    "bound_bytes_pct": "share of the bound that device memory would be busy",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One bottleneck, the conditions that name it, and why those thresholds.

    `phrase` explains the bottleneck, and is embedded.
    """

    bottleneck: Bottleneck
    all_of: tuple[Condition, ...]
    any_of: tuple[Condition, ...]
    unless: tuple[Condition, ...]
    phrase: str
    source: str

    def evidence(self, facts: Mapping[str, float]) -> tuple[Evidence, ...] | None:
        """The facts that make the rule fire; None if it does not."""
        if not all(condition.holds(facts) for condition in self.all_of):
            return None
        if any(condition.holds(facts) for condition in self.unless):
            return None
        alternatives = tuple(condition for condition in self.any_of if condition.holds(facts))
        if self.any_of and not alternatives:
            return None
        return tuple(
            Evidence(item.metric, facts[item.metric], item.comparison, item.number)
            for item in (*self.all_of, *alternatives)
        )

    def lacks(self, facts: Mapping[str, float]) -> tuple[str, ...] | None:
        """The facts that are not known and without which the rule neither fires nor fails.

        None if it is ruled out by what is known; none of them where it fires.
        """
        if any(condition.holds(facts) is False for condition in self.all_of):
            return None
        if any(condition.holds(facts) for condition in self.unless):
            return None
        alternatives = [condition.holds(facts) for condition in self.any_of]
        if alternatives and all(answer is False for answer in alternatives):
            return None
        asked = [*self.all_of, *([] if True in alternatives else self.any_of)]
        return tuple(dict.fromkeys(item.metric for item in asked if item.metric not in facts))


def _conditions(text: str) -> tuple[Condition, ...]:
    parts = (part.split() for part in text.split(",") if part.strip())
    found = tuple(
        Condition(metric, comparison, float(number)) for metric, comparison, number in parts
    )
    assert all(condition.comparison in _COMPARISONS for condition in found), text
    return found


def make_rule(
    bottleneck: Bottleneck,
    *,
    phrase: str,
    source: str,
    all_of: str = "",
    any_of: str = "",
    unless: str = "",
) -> Rule:
    """A rule whose conditions are written `metric comparison number`, commas between them."""
    return Rule(
        bottleneck, _conditions(all_of), _conditions(any_of), _conditions(unless), phrase, source
    )
