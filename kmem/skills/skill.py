"""What a skill is once it has been read: one record, and the questions it answers by itself."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.records import Bottleneck, Claim, content_hash

#: `kmem-status` of a skill that `kmem skills distill` wrote; whether it has been verified since is
#: derived from the ledger.
DRAFT = "draft"

#: The skill that every author of code is told, whatever the task; it is never prescribed.
PITFALLS = "triton-pitfalls"

#: An architecture, or with a + that one and later: sm_90, sm_80+, gfx942.
ARCH_PATTERN = re.compile(r"^(?:(sm_)(\d+)|(gfx)([0-9a-f]+))(\+?)$")


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
class Step:
    """A role of knobs (vocabulary.KNOB_ROLES), and whether there is to be more of it."""

    role: str
    is_up: bool

    def __str__(self) -> str:
        return f"{self.role} {'up' if self.is_up else 'down'}"


@dataclass(frozen=True, slots=True)
class KnobMove:
    """A change of the knobs of whatever recipe wrote a kernel, and what it should do to a profile.

    All steps are taken together; it is for profiles of which no condition is known to be false.
    """

    steps: tuple[Step, ...]
    conditions: tuple[Condition, ...]
    claims: tuple[Claim, ...]

    def suits(self, values: Mapping[str, float]) -> bool:
        """Whether nothing known of a profile (metric -> value) speaks against it."""
        return all(condition.holds(values) is not False for condition in self.conditions)

    @property
    def change(self) -> str:
        """Its steps in words: `tile down and warps up`."""
        return " and ".join(map(str, self.steps))

    def __str__(self) -> str:
        cause = f" if {' and '.join(map(str, self.conditions))}" if self.conditions else ""
        return f"{self.change}{cause} then {' and '.join(map(str, self.claims))}"


@dataclass(frozen=True, slots=True)
class Combination:
    """Where a skill must not be applied: all of this at once, be it one thing.

    `skills` are those whose recipes wrote the kernel.
    """

    conditions: tuple[Condition, ...]
    skills: tuple[str, ...] = ()

    def is_met(self, values: Mapping[str, float], written_by: Sequence[str]) -> bool:
        """Whether it is known to be so; what is not known forbids nothing."""
        return all(condition.holds(values) for condition in self.conditions) and set(
            self.skills
        ).issubset(written_by)

    def __str__(self) -> str:
        return " and ".join([*map(str, self.conditions), *(f"by {name}" for name in self.skills)])


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
    has_rewrite: bool = False
    patterns: tuple[str, ...] = ()  # of the graph, any of which it acts on
    moves: tuple[KnobMove, ...] = ()  # of the knobs of other skills' recipes, the best first
    structure: tuple[Condition, ...] = ()  # what a kernel's text must have
    forbidden: tuple[Combination, ...] = ()  # any of which rules the skill out

    @property
    def acts(self) -> bool:
        """Whether the skill acts without a language model."""
        return self.has_code or bool(self.moves)

    @property
    def has_code(self) -> bool:
        """Whether it acts by code of its own: a recipe or a rewrite."""
        return self.has_recipe or self.has_rewrite

    def predictions(self, values: Mapping[str, float]) -> tuple[Claim, ...]:
        """What a change by the skill should do to a profile: that of its first move that suits."""
        return next((move.claims for move in self.moves if move.suits(values)), self.claims)

    def section(self, heading: str) -> str:
        """The text below a heading of the body; empty if there is none."""
        parts = re.split(r"^## ", self.body, flags=re.MULTILINE)
        found = [part for part in parts[1:] if part.split("\n", 1)[0].strip() == heading]
        return found[0].partition("\n")[2].strip() if found else ""

    @property
    def example(self) -> str:
        """The module as the skill writes it, in the problem contract; empty if it has none."""
        file = self.path / "examples" / "after.py"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def manner(self) -> str:
        """How it acts: `recipe`, `rewrite`, `moves`, or `prose for a model`."""
        if self.has_rewrite:
            return "rewrite"
        if self.has_recipe:
            return "recipe"
        return "moves" if self.moves else "prose for a model"

    @property
    def files(self) -> list[Path]:
        """Every file of the directory, sorted, without what Python compiled."""
        return sorted(
            path
            for path in self.path.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )

    @property
    def hash(self) -> str:
        """Over every file of the directory by relative path: any edit makes a new version."""
        # latin-1 maps every byte to one character, so that two different files never read the same.
        return content_hash(
            *(
                part
                for file in self.files
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
        """Whether the skill applies to an architecture.

        `sm_90` means exactly that one, `sm_80+` that one and later; no entry means all.
        """
        return arch_matches(self.arch, arch)


def embedded_text(name: str, description: str) -> str:
    """What is embedded of a skill: its name as words, and its description."""
    return f"{name.replace('-', ' ')}: {description}"


def arch_matches(patterns: Sequence[str], arch: str) -> bool:
    """Whether `arch` ("sm_90", "gfx942") fits any pattern ("sm_80+").

    Without patterns everything fits.
    """
    return not patterns or any(_arch_fits(pattern, arch) for pattern in patterns)


def _arch_fits(pattern: str, arch: str) -> bool:
    # "sm_90a" is sm_90 with extras. Source: CUDA C++ Programming Guide, architecture-specific
    # features.
    wanted = ARCH_PATTERN.match(pattern)
    found = ARCH_PATTERN.match(arch.removesuffix("a") if arch.startswith("sm_") else arch)
    if wanted is None or found is None or (wanted[1] or wanted[3]) != (found[1] or found[3]):
        return False
    base = 10 if wanted[1] else 16  # gfx90a, gfx942
    least, number = int(wanted[2] or wanted[4], base), int(found[2] or found[4], base)
    return number >= least if wanted[5] else number == least
