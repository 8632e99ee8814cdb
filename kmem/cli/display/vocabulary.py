"""The words that a SKILL.md may use, with a line about each."""

from collections.abc import Iterator

from kmem.problem.operators.table import BUILT_IN
from kmem.vocabulary import (
    BOTTLENECK_MEANINGS,
    GRAPH_PATTERNS,
    KNOB_ROLES,
    OPERATORS,
    SIGNATURE_METRICS,
    SOURCE_FEATURES,
)

#: More operators of torch than these tell nothing new of one of kmem's.
_MOST_EXAMPLES = 4


def vocabulary_data() -> dict[str, dict[str, str]]:
    """Key of the frontmatter -> word -> its meaning."""
    examples: dict[str, list[str]] = {}
    for row in BUILT_IN:
        parts = row.target.split(".")
        named = examples.setdefault(row.name, [])
        if len(parts) > 1 and parts[1] not in named:
            named.append(parts[1])
    operators = {"any": "every operator"}
    for name, family in OPERATORS.items():
        known = ", ".join(examples.get(name, [])[:_MOST_EXAMPLES])
        operators[name] = f"family {family}" + (f": {known}" if known else "")
    return {
        "kmem-bottlenecks": BOTTLENECK_MEANINGS,
        "kmem-signature, kmem-claims": {
            name: f"{metric.meaning} ({metric.unit})" for name, metric in SIGNATURE_METRICS.items()
        },
        "kmem-graph": {name: pattern.meaning for name, pattern in GRAPH_PATTERNS.items()},
        "kmem-structure, kmem-forbidden": SOURCE_FEATURES,
        "kmem-moves": KNOB_ROLES,
        "kmem-ops": operators,
    }


def vocabulary_rows() -> Iterator[tuple[str, str, str]]:
    """The same as rows of a table."""
    for key, words in vocabulary_data().items():
        for word, meaning in words.items():
            yield key, word, meaning
