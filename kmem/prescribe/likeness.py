"""How alike a diagnosis and a skill are: by signature, by meaning, by words.

What is unknown is left out, never taken for zero.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kmem.memory.skills.search import RRF_K
from kmem.records import Signature
from kmem.vocabulary import SIGNATURE_METRICS

#: Signatures this far apart (root mean square over metrics, each in units of its scale) are 1/e
#: alike. Source: chosen; a quarter of a scale is what separates two levels of a throughput in the
#: diagnosis rules.
SIGNATURE_LENGTH = 0.25


@dataclass(frozen=True, slots=True)
class Likeness:
    """0 to 1, the mean of what is known; None if nothing is. `reasons` names each part."""

    value: float | None
    reasons: tuple[str, ...]


def skill_likeness(
    similarity: float | None,
    text_rank: int | None,
    signature: Signature,
    winning: Mapping[str, float] | None,
) -> Likeness:
    """Compare a diagnosis with a skill.

    Args:
        similarity: cosine of the diagnosis' summary and the skill's description; None if unknown.
        text_rank: the skill's place, from 1, among those that share words with the summary; None if
            it shares none.
        winning: mean signature of what the skill improved before
            (`Memory.track_records.winning_signatures`); None if nothing is recorded.
    """
    parts: list[tuple[float, str]] = []
    distance = signature_distance(signature.values, winning or {})
    if distance is not None:
        parts.append(
            (
                math.exp(-distance / SIGNATURE_LENGTH),
                f"signature distance {distance:.2f} from what it improved before",
            )
        )
    if similarity is not None:
        parts.append((max(0.0, similarity), f"similarity {similarity:.2f}"))
    if text_rank is not None:
        parts.append((_rank_likeness(text_rank), f"full-text rank {text_rank}"))
    if not parts:
        return Likeness(None, ())
    return Likeness(
        sum(value for value, _ in parts) / len(parts), tuple(reason for _, reason in parts)
    )


def greatest_likeness(similarity: float | None, text_rank: int | None) -> float:
    """What `skill_likeness` is at most, whatever signatures the skill improved before."""
    total, count = 1.0, 1
    if similarity is not None:
        total, count = total + max(0.0, similarity), count + 1
    if text_rank is not None:
        total, count = total + _rank_likeness(text_rank), count + 1
    return total / count


def _rank_likeness(text_rank: int) -> float:
    return (RRF_K + 1) / (RRF_K + text_rank)


def signature_distance(first: Mapping[str, float], second: Mapping[str, float]) -> float | None:
    """Root mean square difference over the metrics both know; None if they share none.

    Each difference is in units of its metric's scale and at most 1.
    """
    shared = [name for name in SIGNATURE_METRICS if name in first and name in second]
    if not shared:
        return None
    differences = [
        min(1.0, abs(first[name] - second[name]) / SIGNATURE_METRICS[name].scale) for name in shared
    ]
    return math.sqrt(sum(difference**2 for difference in differences) / len(differences))
