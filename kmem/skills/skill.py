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

    @property
    def acts(self) -> bool:
        """Whether the skill acts without a language model: it has a recipe, a rewrite, or both."""
        return self.has_recipe or self.has_rewrite

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
