"""Load and validate a skill directory: SKILL.md in the Agent Skills format, with kmem's typed keys
in its metadata.

In order: what a skill is, loading one (every fault of a directory is collected and reported at
once), its recipe, checks over a whole library, the template of a new one. A skill's recipe.py is
imported only from directories a plugin registered or the user added, and only when it is needed.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kmem.errors import SkillError
from kmem.recipes import Recipe
from kmem.records import Bottleneck, Claim, content_hash
from kmem.vocabulary import OPERATORS, SIGNATURE_METRICS

if TYPE_CHECKING:
    import numpy as np

#: The six frontmatter keys of the Agent Skills format. Source: agentskills.io/specification.
FRONTMATTER_KEYS = ("name", "description", "license", "compatibility", "allowed-tools", "metadata")
KMEM_KEYS = (
    "kmem-ops",
    "kmem-bottlenecks",
    "kmem-signature",
    "kmem-arch",
    "kmem-precision",
    "kmem-conflicts",
    "kmem-claims",
    "kmem-source",
    "kmem-status",
)
#: `kmem-status` of a skill that `kmem skills distill` wrote; whether it has been verified since is
#: derived from the ledger.
DRAFT = "draft"
PRECISIONS = ("exact", "match", "tf32", "bf16")
SECTIONS = (
    "Mechanism",
    "Use when",
    "Do not use when",
    "In Triton",
    "Pitfalls",
    "How to check it worked",
)
MAX_BODY_LINES = 150
#: Descriptions nearer than this say the same thing: a search could not tell the two skills apart.
#: Source: measured with all-MiniLM-L6-v2 over 109 bundled skills, the two nearest (both about split
#: matmuls) are at 0.82, 99% of all pairs below 0.58.
NEAR_DUPLICATE_COSINE = 0.9

_CONDITION = re.compile(r"^([a-z0-9_]+) (>=|<=|>|<) (-?\d+(?:\.\d+)?)$")
_CLAIM = re.compile(r"^([a-z0-9_]+) (>=|<=) (\d+(?:\.\d+)?)(x?)$")
#: A metric, then a number in the same clause: something kmem-claims can state.
_NUMBERED_METRIC = re.compile(rf"\b(?:{'|'.join(SIGNATURE_METRICS)})\b[^.;:(]*?\b\d")
_NAME = re.compile(r"^[a-z0-9]+(?:-[a-z0-9]+)*$")
_ARCH = re.compile(r"^(?:(sm_)(\d+)|(gfx)([0-9a-f]+))(\+?)$")


@dataclass(frozen=True, slots=True)
class Condition:
    """One conjunct of a signature: `metric comparison number`."""

    metric: str
    comparison: str
    number: float

    def holds(self, values: Mapping[str, float]) -> bool | None:
        """Three-valued: None if the metric is unknown."""
        if self.metric not in values:
            return None
        value = values[self.metric]
        return {
            ">=": value >= self.number,
            "<=": value <= self.number,
            ">": value > self.number,
            "<": value < self.number,
        }[self.comparison]

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.number:g}"


@dataclass(frozen=True, slots=True)
class Skill:
    """One directory of knowledge.

    `operators` may be ("any",); empty `bottlenecks` or `arch` mean any.
    """

    name: str
    description: str
    body: str
    path: Path
    license: str
    operators: tuple[str, ...]
    bottlenecks: tuple[Bottleneck, ...]
    signature: tuple[Condition, ...]
    arch: tuple[str, ...]
    precision: str
    conflicts: tuple[str, ...]
    source: str
    has_recipe: bool
    status: str = ""  # DRAFT, or nothing
    claims: tuple[Claim, ...] = ()  # what the next profile must show if it worked

    @property
    def hash(self) -> str:
        """Over every file of the directory by relative path: any edit makes a new version."""
        files = sorted(
            path
            for path in self.path.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
        # latin-1 maps every byte to one character, so that two different files never read the same.
        return content_hash(
            *(
                part
                for file in files
                for part in (
                    file.relative_to(self.path).as_posix(),
                    file.read_bytes().decode("latin-1"),
                )
            )
        )

    @property
    def text(self) -> str:
        """What full-text search indexes."""
        return f"{self.name}\n{self.description}\n{self.body}"

    @property
    def embedded_text(self) -> str:
        """What is embedded for search."""
        return embedded_text(self.name, self.description)

    def covers_operators(self, operators: Sequence[str]) -> bool:
        """Whether the skill is about any of these operators (or about any operator at all)."""
        return "any" in self.operators or any(operator in self.operators for operator in operators)

    def covers_arch(self, arch: str) -> bool:
        """Whether the skill applies to an architecture: `sm_90` means exactly that one, `sm_80+`
        that one and later; no entry means all.
        """
        return arch_matches(self.arch, arch)


def embedded_text(name: str, description: str) -> str:
    """What is embedded of a skill: its name as words, and its description."""
    return f"{name.replace('-', ' ')}: {description}"


def arch_matches(patterns: Sequence[str], arch: str) -> bool:
    """Whether `arch` ("sm_90", "gfx942") fits any pattern ("sm_80+"); without patterns everything
    fits.
    """
    return not patterns or any(_arch_fits(pattern, arch) for pattern in patterns)


def _arch_fits(pattern: str, arch: str) -> bool:
    # "sm_90a" is sm_90 with extras. Source: CUDA C++ Programming Guide, architecture-specific
    # features.
    wanted = _ARCH.match(pattern)
    found = _ARCH.match(arch.removesuffix("a") if arch.startswith("sm_") else arch)
    if wanted is None or found is None or (wanted[1] or wanted[3]) != (found[1] or found[3]):
        return False
    base = 10 if wanted[1] else 16  # gfx90a, gfx942
    least, number = int(wanted[2] or wanted[4], base), int(found[2] or found[4], base)
    return number >= least if wanted[5] else number == least


def parse_condition(text: str) -> Condition:
    """Read `metric comparison number`.

    Raises ValueError, saying what is wrong, if it is not that or the metric is unknown.
    """
    match = _CONDITION.match(text)
    if match is None:
        raise ValueError(f"'{text}' is not `metric op number`")
    if match[1] not in SIGNATURE_METRICS:
        raise ValueError(f"metric '{match[1]}' is unknown")
    return Condition(match[1], match[2], float(match[3]))


def parse_claim(text: str) -> Claim:
    """Read `metric <= number` or `metric >= number`, with an x after a number that is a multiple of
    the parent's value.

    Raises ValueError, saying what is wrong, if it is not that or the metric is unknown.
    """
    match = _CLAIM.match(text)
    if match is None:
        raise ValueError(
            f"'{text}' is not `metric <= number` or `metric >= number`, with an x after a multiple "
            f"of the parent's value"
        )
    if match[1] not in SIGNATURE_METRICS:
        raise ValueError(f"metric '{match[1]}' is unknown")
    return Claim(match[1], match[2], float(match[3]), relative=bool(match[4]))


def bundled_skills_root() -> Path:
    """The skills that ship with kmem: beside the package in a checkout, inside it in an installed
    wheel.
    """
    installed = Path(__file__).parent / "bundled_skills"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "skills"


def skill_directories(root: Path) -> list[Path]:
    """Directories below a root that hold a SKILL.md, by name; empty if there is no such root."""
    return sorted(file.parent for file in root.glob("*/SKILL.md"))


def load_skill(path: Path) -> Skill:
    """Load one directory. Raises SkillError listing every fault."""
    skill, faults = read_skill(path)
    if faults or skill is None:
        raise SkillError(
            f"Skill directory {path} has faults:\n" + "\n".join(f"  {fault}" for fault in faults)
        )
    return skill


def read_skill(path: Path) -> tuple[Skill | None, list[str]]:
    """Load one directory leniently: the skill as far as it can be read, and every fault found."""
    file = path / "SKILL.md"
    if not file.is_file():
        return None, [f"no SKILL.md in {path}"]
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as ex:
        return None, [f"SKILL.md cannot be read: {ex}"]
    front, body, faults = _split(text)
    if front is None:
        return None, faults
    faults += [
        f"frontmatter key '{key}' is not one of {', '.join(FRONTMATTER_KEYS)}"
        for key in front
        if key not in FRONTMATTER_KEYS
    ]
    name, description = str(front.get("name", "")), str(front.get("description", "")).strip()
    if not _NAME.match(name) or len(name) > 64:
        faults.append(f"name '{name}' must be 1-64 lower-case letters, digits and single hyphens")
    if name != path.resolve().name:
        faults.append(f"name '{name}' differs from the directory '{path.resolve().name}'")
    if not 1 <= len(description) <= 1024:
        faults.append(f"description has {len(description)} characters; the format allows 1-1024")
    elif "Use when" not in description:
        faults.append("description lacks 'Use when ...'")
    if "compatibility" in front and not 1 <= len(str(front["compatibility"])) <= 500:
        faults.append(
            f"compatibility has {len(str(front['compatibility']))} characters; the format allows "
            f"1-500"
        )
    metadata = front.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()
    ):
        faults.append("metadata must map strings to strings (quote numbers)")
        metadata = {}
    faults += [
        f"metadata key '{key}' is unknown; kmem's are {', '.join(KMEM_KEYS)}"
        for key in metadata
        if key.startswith("kmem-") and key not in KMEM_KEYS
    ]
    operators = tuple(metadata.get("kmem-ops", "any").split())
    faults += [
        f"kmem-ops '{word}' is not an operator"
        for word in operators
        if word != "any" and word not in OPERATORS
    ]
    bottlenecks = []
    for word in metadata.get("kmem-bottlenecks", "").split():
        try:
            bottlenecks.append(Bottleneck(word))
        except ValueError:
            faults.append(f"kmem-bottlenecks '{word}' is not a bottleneck")
    signature = []
    for text in filter(
        None, (part.strip() for part in metadata.get("kmem-signature", "").split(","))
    ):
        try:
            signature.append(parse_condition(text))
        except ValueError as ex:
            faults.append(f"kmem-signature {ex}")
    claims = []
    for text in filter(None, (part.strip() for part in metadata.get("kmem-claims", "").split(","))):
        try:
            claims.append(parse_claim(text))
        except ValueError as ex:
            faults.append(f"kmem-claims {ex}")
    arch = tuple(metadata.get("kmem-arch", "").split())
    faults += [
        f"kmem-arch '{word}' is not like sm_90 or sm_80+" for word in arch if not _ARCH.match(word)
    ]
    precision = metadata.get("kmem-precision", "exact")
    if precision not in PRECISIONS:
        faults.append(f"kmem-precision '{precision}' is not one of {', '.join(PRECISIONS)}")
    status = metadata.get("kmem-status", "")
    if status not in ("", DRAFT):
        faults.append(
            f"kmem-status '{status}' is not {DRAFT}: what else a skill is, its outcomes say"
        )
    lines = body.strip().splitlines()
    if len(lines) > MAX_BODY_LINES:
        faults.append(f"body has {len(lines)} lines; at most {MAX_BODY_LINES}")
    headings = [line.lstrip("#").strip() for line in lines if line.startswith("## ")]
    faults += [
        f"body lacks the section '## {section}'" for section in SECTIONS if section not in headings
    ]
    conflicts = tuple(metadata.get("kmem-conflicts", "").split())
    faults += [
        f"kmem-conflicts '{word}' is not a skill's name"
        for word in conflicts
        if not _NAME.match(word)
    ]
    if name in conflicts:
        faults.append("kmem-conflicts names the skill itself")
    skill = Skill(
        name,
        description,
        body.strip(),
        path,
        str(front.get("license", "")),
        operators,
        tuple(bottlenecks),
        tuple(signature),
        arch,
        precision,
        conflicts,
        metadata.get("kmem-source", ""),
        (path / "recipe.py").is_file(),
        status=status,
        claims=tuple(claims),
    )
    return skill, faults


def _split(text: str) -> tuple[dict[str, object] | None, str, list[str]]:
    import yaml  # 20 ms that `kmem --help` should not pay

    match = re.match(r"\A---\n(.*?)\n---\n(.*)\Z", text.replace("\r\n", "\n"), re.DOTALL)
    if match is None:
        return None, "", ["SKILL.md does not begin with frontmatter between --- lines"]
    try:
        front = yaml.safe_load(match[1])
    except yaml.YAMLError as ex:
        return None, "", [f"frontmatter is not valid YAML: {str(ex).splitlines()[0]}"]
    if not isinstance(front, dict):
        return None, "", ["frontmatter is not a mapping"]
    return front, match[2], []


def load_recipe(skill: Skill) -> Recipe | None:
    """Import a skill's recipe.py; None if it has none.

    Raises SkillError: if importing fails or the file defines no RECIPE.
    """
    if not skill.has_recipe:
        return None
    file = skill.path / "recipe.py"
    spec = importlib.util.spec_from_file_location(
        f"kmem_recipe_{skill.name.replace('-', '_')}", file
    )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as ex:  # noqa: BLE001 - the file is somebody else's code and may raise anything; it is named with its error
        raise SkillError(f"{file} fails on import: {type(ex).__name__}: {ex}") from ex
    recipe = getattr(module, "RECIPE", None)
    if not isinstance(recipe, Recipe):
        raise SkillError(f"{file} defines no RECIPE that is a kmem.recipes.Recipe")
    recipe.name = skill.name
    return recipe


def validate_library(
    skills: Sequence[Skill], embed: "Callable[[list[str]], np.ndarray] | None" = None
) -> list[str]:
    """Every fault that only shows among skills, or in what a skill says: one line each, beginning
    with the skill's name.

    Two skills of one name; a conflict that names no skill; an empty section; "How to check it
    worked" that names no metric a profile can falsify, or not those of kmem-claims, or a number
    that kmem-claims leaves out; and, given an embedder, descriptions nearer than
    NEAR_DUPLICATE_COSINE to another's.

    Args:
        embed: texts -> (n, dim) float32, unit norm.
    """
    names = {skill.name for skill in skills}
    faults = []
    seen: dict[str, Path] = {}
    for skill in skills:
        if skill.name in seen:
            faults.append(
                f"{skill.name}: two directories have this name: {seen[skill.name]} and {skill.path}"
            )
        seen.setdefault(skill.name, skill.path)
        faults += [
            f"{skill.name}: kmem-conflicts '{other}' is not a skill"
            for other in skill.conflicts
            if other not in names
        ]
        sections = dict(_sections(skill.body))
        faults += [
            f"{skill.name}: section '{section}' is empty"
            for section in SECTIONS
            if section in sections and not sections[section]
        ]
        claim = sections.get("How to check it worked", "")
        faults += [
            f"{skill.name}: kmem-claims '{entry}' is not explained in 'How to check it worked'"
            for entry in skill.claims
            if not re.search(rf"\b{entry.metric}\b", claim)
        ]
        if not skill.claims and _NUMBERED_METRIC.search(claim):
            faults.append(
                f"{skill.name}: 'How to check it worked' gives a number for a metric, but "
                f"kmem-claims does not state it"
            )
        if not any(re.search(rf"\b{metric}\b", claim) for metric in SIGNATURE_METRICS):
            faults.append(
                f"{skill.name}: 'How to check it worked' names no signature metric, such as "
                f"traffic_ratio (kmem.vocabulary)"
            )
    # Drafts of one kind of operator say nearly the same until somebody has learnt why they work.
    written = [skill for skill in skills if skill.status != DRAFT]
    if embed is not None and len(written) > 1:
        faults += _near_duplicates(written, embed)
    return faults


def _sections(body: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^## ", body, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        yield heading.strip(), text.strip()


def _near_duplicates(
    skills: Sequence[Skill], embed: "Callable[[list[str]], np.ndarray]"
) -> list[str]:
    vectors = embed([skill.embedded_text for skill in skills])
    cosines = vectors @ vectors.T
    return [
        (
            f"{first.name}: the description is a near-duplicate of {second.name}'s (cosine "
            f"{cosines[i, j]:.2f}, limit {NEAR_DUPLICATE_COSINE})"
        )
        for i, first in enumerate(skills)
        for j, second in enumerate(skills)
        if i < j and cosines[i, j] > NEAR_DUPLICATE_COSINE
    ]


def skill_template(name: str) -> dict[str, str]:
    """The files of a new skill (relative path -> text): valid as they are, and telling the writer
    what belongs where.

    Raises:
        SkillError: if the name is not one the format allows.
    """
    if not _NAME.match(name) or len(name) > 64:
        raise SkillError(
            f"Skill name '{name}' must be 1-64 lower-case letters, digits and single hyphens, like "
            f"separable-pooling"
        )
    return {"SKILL.md": _TEMPLATE.replace("{name}", name)}


_TEMPLATE = """---
name: {name}
description: State in one sentence what makes the kernel faster. Use when the profile shows a symptom an engineer would search for.
license: Apache-2.0
metadata:
  kmem-ops: any
  kmem-bottlenecks: redundant_traffic
  kmem-signature: traffic_ratio >= 1.3
  kmem-claims: traffic_ratio <= 1.1
  kmem-precision: exact
  kmem-source: the URL or paper this comes from
---
## Mechanism
What the hardware does now, what it does after the change, and why that takes less time.

## Use when
- The counters or the shape of the code that tell that this applies.

## Do not use when
- Cases in which it costs more than it saves.

## In Triton
The change, in terms of Triton's own names, with a short piece of code.

## Pitfalls
- What goes wrong at the edges: sizes, alignment, precision.

## How to check it worked
- `traffic_ratio` should fall below 1.1: name the metric, the direction and the amount, so that the next profile can prove it wrong.
"""
