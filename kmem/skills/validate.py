"""Every fault of a skill, said at once.

Faults are of two kinds: what is wrong in a skill's directory (read_skill), and what is wrong beside
the other skills of a library or in what a skill says (validate_library).

A fault is one line of text that names the key, the section or the other skill. What a recipe.py
does wrong shows when load.py imports it, and when kmem.testing.check_recipe runs it.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kmem.records import Bottleneck, Claim
from kmem.skills.form import (
    CHECK_SECTION,
    FRONTMATTER_KEYS,
    KMEM_KEYS,
    MAX_BODY_LINES,
    NAME_PATTERN,
    PRECISIONS,
    SECTIONS,
    Form,
    allowed_words,
    is_name,
    parse_claim,
    parse_combination,
    parse_condition,
    parse_feature,
    parse_move,
    read_form,
    read_sections,
    read_words,
)
from kmem.skills.skill import ARCH_PATTERN, DRAFT, Combination, Condition, Skill
from kmem.skills.template import remains_of
from kmem.vocabulary import GRAPH_PATTERNS, OPERATORS, SIGNATURE_METRICS

if TYPE_CHECKING:
    import numpy as np

#: Descriptions nearer than this say the same thing: a search could not tell the two skills apart.
#: Source: measured with all-MiniLM-L6-v2 over 109 bundled skills, the two nearest (both about split
#: matmuls) are at 0.82, 99% of all pairs below 0.58.
NEAR_DUPLICATE_COSINE = 0.9

#: A metric, then a number in the same clause: something kmem-claims can state.
_NUMBERED_METRIC = re.compile(rf"\b(?:{'|'.join(SIGNATURE_METRICS)})\b[^.;:(]*?\b\d")

Value = TypeVar("Value")


def read_skill(path: Path) -> tuple[Skill | None, list[str]]:
    """The skill of a directory as far as it can be read, and every fault found."""
    file = path / "SKILL.md"
    if not file.is_file():
        return None, [f"no SKILL.md in {path}"]
    try:
        form = read_form(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as ex:
        return None, [f"SKILL.md cannot be read: {ex}"]
    except ValueError as ex:
        return None, [str(ex)]
    faults = _front_faults(form, path)
    metadata = _read_metadata(form, faults)
    skill = Skill(
        name=_name(form),
        description=_description(form),
        body=form.body,
        path=path,
        license=str(form.front.get("license", "")),
        operators=tuple(read_words(metadata.get("kmem-ops", "any"))),
        bottlenecks=_read_bottlenecks(metadata, faults),
        signature=_read_list(metadata, "kmem-signature", parse_condition, faults),
        arch=tuple(read_words(metadata.get("kmem-arch", ""))),
        precision=metadata.get("kmem-precision", "exact"),
        conflicts=tuple(read_words(metadata.get("kmem-conflicts", ""))),
        source=metadata.get("kmem-source", ""),
        has_recipe=(path / "recipe.py").is_file(),
        has_rewrite=(path / "rewrite.py").is_file(),
        status=metadata.get("kmem-status", ""),
        claims=_read_list(metadata, "kmem-claims", parse_claim, faults),
        patterns=tuple(read_words(metadata.get("kmem-graph", ""))),
        structure=_read_list(metadata, "kmem-structure", parse_feature, faults),
        forbidden=_read_list(metadata, "kmem-forbidden", parse_combination, faults, between=";"),
        moves=_read_list(metadata, "kmem-moves", parse_move, faults, between=";"),
    )
    ways = {"recipe.py": skill.has_recipe, "rewrite.py": skill.has_rewrite}
    ways["kmem-moves"] = bool(skill.moves)
    if sum(ways.values()) > 1:
        named = " and ".join(name for name, is_there in ways.items() if is_there)
        faults.append(f"{named} in one directory: an idea a skill, so make two")
    return skill, [*faults, *_key_faults(skill), *_body_faults(form.body), *remains_of(form)]


def _name(form: Form) -> str:
    return str(form.front.get("name", ""))


def _description(form: Form) -> str:
    return str(form.front.get("description", "")).strip()


def _front_faults(form: Form, path: Path) -> list[str]:
    """Faults of the frontmatter's own keys."""
    name, description = _name(form), _description(form)
    faults = [
        f"frontmatter key '{key}' is not one of {', '.join(FRONTMATTER_KEYS)}"
        for key in form.front
        if key not in FRONTMATTER_KEYS
    ]
    if not is_name(name):
        faults.append(f"name '{name}' must be 1-64 lower-case letters, digits and single hyphens")
    if name != path.resolve().name:
        faults.append(f"name '{name}' differs from the directory '{path.resolve().name}'")
    if not 1 <= len(description) <= 1024:
        faults.append(f"description has {len(description)} characters; the format allows 1-1024")
    elif "Use when" not in description:
        faults.append("description lacks 'Use when ...'")
    length = len(str(form.front.get("compatibility", "-")))
    if not 1 <= length <= 500:
        faults.append(f"compatibility has {length} characters; the format allows 1-500")
    return faults


def _read_metadata(form: Form, faults: list[str]) -> dict[str, str]:
    """The metadata's keys; what is wrong with them is added to `faults`."""
    metadata = form.front.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()
    ):
        faults.append("metadata must map strings to strings (quote numbers)")
        return {}
    faults += [
        f"metadata key '{key}' is unknown; kmem's are {', '.join(KMEM_KEYS)}"
        for key in metadata
        if key.startswith("kmem-") and key not in KMEM_KEYS
    ]
    return metadata


def _read_bottlenecks(metadata: dict[str, str], faults: list[str]) -> tuple[Bottleneck, ...]:
    """The bottlenecks that are known; the words that are not are added to `faults`."""
    words = read_words(metadata.get("kmem-bottlenecks", ""))
    # nothing cures what is not known
    known = [each.value for each in Bottleneck if each is not Bottleneck.UNKNOWN]
    faults += [
        f"kmem-bottlenecks '{word}' is not a bottleneck; {allowed_words(word, known)}"
        for word in words
        if word not in known
    ]
    return tuple(Bottleneck(word) for word in words if word in known)


def _read_list(
    metadata: dict[str, str],
    key: str,
    parse: Callable[[str], Value],
    faults: list[str],
    *,
    between: str = ",",
) -> tuple[Value, ...]:
    """What `parse` makes of each entry of a key; what it refuses is added to `faults`."""
    found = []
    for entry in filter(None, (part.strip() for part in metadata.get(key, "").split(between))):
        try:
            found.append(parse(entry))
        except ValueError as ex:
            faults.append(f"{key} {ex}")
    return tuple(found)


def _key_faults(skill: Skill) -> list[str]:
    """Faults of what kmem's keys say."""
    faults = [
        f"kmem-ops '{word}' is not an operator; {allowed_words(word, ['any', *OPERATORS])}"
        for word in skill.operators
        if word != "any" and word not in OPERATORS
    ]
    faults += [
        f"kmem-graph '{word}' is not a pattern; {allowed_words(word, GRAPH_PATTERNS)}"
        for word in skill.patterns
        if word not in GRAPH_PATTERNS
    ]
    faults += [
        f"kmem-arch '{word}' is not like sm_90 or sm_80+"
        for word in skill.arch
        if not ARCH_PATTERN.match(word)
    ]
    if skill.precision not in PRECISIONS:
        faults.append(f"kmem-precision '{skill.precision}' is not one of {', '.join(PRECISIONS)}")
    if skill.status not in ("", DRAFT):
        faults.append(
            f"kmem-status '{skill.status}' is not {DRAFT}: what else a skill is, its outcomes say"
        )
    faults += [
        f"kmem-conflicts '{word}' is not a skill's name"
        for word in skill.conflicts
        if not NAME_PATTERN.match(word)
    ]
    if skill.name in skill.conflicts:
        faults.append("kmem-conflicts names the skill itself")
    faults += [
        f"kmem-forbidden '{each}' forbids whatever kmem-structure and kmem-signature demand"
        for each in skill.forbidden
        if not each.skills and _is_always_met(each, (*skill.structure, *skill.signature))
    ]
    if any(skill.name in each.skills for each in skill.forbidden):
        faults.append("kmem-forbidden names the skill itself")
    return faults + _idle_claims(skill)


def _is_always_met(combination: Combination, demanded: Sequence[Condition]) -> bool:
    """Whether whatever meets the demands meets the combination, too."""
    return all(
        any(_implies(demand, condition) for demand in demanded)
        for condition in combination.conditions
    )


def _implies(demand: Condition, condition: Condition) -> bool:
    """Whether a value that meets one condition must meet another."""
    if demand.metric != condition.metric or demand.comparison[0] != condition.comparison[0]:
        return False
    is_lower = demand.comparison[0] == ">"
    if demand.number == condition.number:
        return demand.comparison == condition.comparison or condition.comparison.endswith("=")
    return demand.number > condition.number if is_lower else demand.number < condition.number


def _idle_claims(skill: Skill) -> list[str]:
    """Faults of claims that say nothing: an unchanged profile would fulfil them too."""
    stated = [("kmem-claims", claim, skill.signature) for claim in skill.claims]
    for move in skill.moves:
        stated += [
            (f"kmem-moves '{move.change}'", claim, (*skill.signature, *move.conditions))
            for claim in move.claims
        ]
    return [
        f"{key} '{claim}' holds if nothing changes; {_remedy(claim)}"
        for key, claim, conditions in stated
        if not needs_change(claim, conditions)
    ]


def _remedy(claim: Claim) -> str:
    if claim.relative:
        side = "below" if claim.comparison == "<=" else "above"
        return f"a multiple of the parent's value that needs a change is {side} 1x"
    opposite = ">" if claim.comparison == "<=" else "<"
    return (
        f"say it as a multiple of the parent's value, or demand `{claim.metric} {opposite} "
        f"{claim.number:g}` of the profile (kmem-signature, or `if` of a move)"
    )


def needs_change(claim: Claim, conditions: Sequence[Condition]) -> bool:
    """Whether no profile that meets the conditions fulfils a claim as it is."""
    is_upper = claim.comparison == "<="
    if claim.relative:
        return claim.number < 1 if is_upper else claim.number > 1
    return any(
        condition.metric == claim.metric
        and condition.comparison[0] == (">" if is_upper else "<")
        and not _meet(claim.number, condition, is_upper=is_upper)
        for condition in conditions
    )


def _meet(number: float, condition: Condition, *, is_upper: bool) -> bool:
    """Whether a value fulfils both a claim up (or down) to a number and an opposite condition."""
    if number == condition.number:
        return condition.comparison in (">=", "<=")
    return number > condition.number if is_upper else number < condition.number


def _body_faults(body: str) -> list[str]:
    """Faults of the text below the frontmatter."""
    lines = body.splitlines()
    headings = {line.lstrip("#").strip() for line in lines if line.startswith("## ")}
    faults = []
    if len(lines) > MAX_BODY_LINES:
        faults.append(f"body has {len(lines)} lines; at most {MAX_BODY_LINES}")
    faults += [
        f"body lacks the section '## {section}'" for section in SECTIONS if section not in headings
    ]
    return faults


def validate_library(
    skills: Sequence[Skill], embed: "Callable[[list[str]], np.ndarray] | None" = None
) -> list[str]:
    """Every fault that only shows among skills, or in what a skill says: one line each.

    Two skills of one name; a conflict that names no skill, or a forbidden combination one without
    a recipe; an empty section; "How to check it
    worked" that names no metric a profile can falsify, or not those of kmem-claims, or a number
    that kmem-claims leaves out; and, given an embedder, descriptions nearer than
    NEAR_DUPLICATE_COSINE to another's. A line begins with the skill's name.

    Args:
        embed: texts -> (n, dim) float32, unit norm.
    """
    names = {skill.name for skill in skills}
    writers = {skill.name for skill in skills if skill.has_code}
    faults = []
    seen: dict[str, Path] = {}
    for skill in skills:
        first = seen.setdefault(skill.name, skill.path)
        if first != skill.path:
            faults.append(f"{skill.name}: two directories have this name: {first} and {skill.path}")
        faults += [
            f"{skill.name}: kmem-conflicts '{other}' is not a skill"
            for other in skill.conflicts
            if other not in names
        ]
        faults += [
            f"{skill.name}: kmem-forbidden 'by {other}': there is no such skill with a recipe"
            for each in skill.forbidden
            for other in each.skills
            if other not in writers
        ]
        faults += [f"{skill.name}: {fault}" for fault in _section_faults(skill)]
    # Drafts of one kind of operator say nearly the same until somebody has learnt why they work.
    written = [skill for skill in skills if skill.status != DRAFT]
    if embed is not None and len(written) > 1:
        faults += _near_duplicates(written, embed)
    return faults


def _section_faults(skill: Skill) -> list[str]:
    """Faults of what a skill's sections say."""
    sections = dict(read_sections(skill.body))
    faults = [
        f"section '{section}' is empty"
        for section in SECTIONS
        if section in sections and not sections[section]
    ]
    check = sections.get(CHECK_SECTION, "")
    named = set(re.findall(r"\w+", check))
    faults += [
        f"kmem-claims '{claim}' is not explained in '{CHECK_SECTION}'"
        for claim in skill.claims
        if claim.metric not in named
    ]
    if not skill.claims and _NUMBERED_METRIC.search(check):
        faults.append(
            f"'{CHECK_SECTION}' gives a number for a metric, but kmem-claims does not state it"
        )
    if named.isdisjoint(SIGNATURE_METRICS):
        faults.append(
            f"'{CHECK_SECTION}' names no signature metric, such as traffic_ratio (kmem.vocabulary)"
        )
    return faults


def _near_duplicates(
    skills: Sequence[Skill], embed: "Callable[[list[str]], np.ndarray]"
) -> list[str]:
    vectors = embed([skill.embedded_text for skill in skills])
    cosines = vectors @ vectors.T
    return [
        f"{first.name}: the description is a near-duplicate of {second.name}'s (cosine "
        f"{cosines[i, j]:.2f}, limit {NEAR_DUPLICATE_COSINE})"
        for i, first in enumerate(skills)
        for j, second in enumerate(skills)
        if i < j and cosines[i, j] > NEAR_DUPLICATE_COSINE
    ]
