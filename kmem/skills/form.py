"""The form of a SKILL.md: the Agent Skills format, with kmem's typed keys in its metadata.

Reading stops at the first fault of the text as a whole, such as missing frontmatter. Faults of what
the keys say are validate.py's.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kmem.errors import SkillError
from kmem.records import Claim
from kmem.skills.skill import Condition
from kmem.vocabulary import SIGNATURE_METRICS

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
PRECISIONS = ("exact", "match", "tf32", "bf16")
SECTIONS = (
    "Mechanism",
    "Use when",
    "Do not use when",
    "In Triton",
    "Pitfalls",
    "How to check it worked",
)
#: The section whose metrics the next profile can prove wrong.
CHECK_SECTION = SECTIONS[-1]
MAX_BODY_LINES = 150
NAME_PATTERN = re.compile(r"^[a-z0-9]+(?:-[a-z0-9]+)*$")
MAX_NAME = 64

_CONDITION = re.compile(r"^([a-z0-9_]+) (>=|<=|>|<) (-?\d+(?:\.\d+)?)$")
_CLAIM = re.compile(r"^([a-z0-9_]+) (>=|<=) (\d+(?:\.\d+)?)(x?)$")


@dataclass(frozen=True, slots=True)
class Form:
    """A SKILL.md taken apart: the frontmatter's keys, and the body below it."""

    front: dict[str, object]
    body: str


def read_form(text: str) -> Form:
    """Take a SKILL.md apart.

    Raises ValueError, saying what is wrong, if its frontmatter cannot be read.
    """
    import yaml  # 20 ms that `kmem --help` should not pay

    match = re.match(r"\A---\n(.*?)\n---\n(.*)\Z", text.replace("\r\n", "\n"), re.DOTALL)
    if match is None:
        raise ValueError("SKILL.md does not begin with frontmatter between --- lines")
    try:
        # the C parser, where PyYAML has it: ten times as fast, and a library has a hundred skills
        front = yaml.load(match[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as ex:
        raise ValueError(f"frontmatter is not valid YAML: {str(ex).splitlines()[0]}") from ex
    if not isinstance(front, dict):
        raise ValueError("frontmatter is not a mapping")
    return Form(front, match[2].strip())


def read_sections(body: str) -> Iterator[tuple[str, str]]:
    """The heading and the text of every section of a body."""
    for part in re.split(r"^## ", body, flags=re.MULTILINE)[1:]:
        heading, text = [*part.split("\n", 1), ""][:2]
        yield heading.strip(), text.strip()


def is_name(name: str) -> bool:
    """Whether the format allows this name."""
    return NAME_PATTERN.match(name) is not None and len(name) <= MAX_NAME


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
    """Read `metric <= number` or `metric >= number`.

    An x after the number makes it a multiple of the parent kernel's value.

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


def skill_template(name: str) -> dict[str, str]:
    """The files of a new skill, relative path -> text.

    They are valid as they are, and each part tells the writer what belongs there.

    Raises:
        SkillError: if the name is not one the format allows.
    """
    if not is_name(name):
        raise SkillError(
            f"Skill name '{name}' must be 1-64 lower-case letters, digits and single hyphens, like "
            f"separable-pooling"
        )
    return {"SKILL.md": _TEMPLATE.format(name=name)}


_TEMPLATE = """---
name: {name}
description: State in one sentence what makes the kernel faster. Use when the profile shows a \
symptom an engineer would search for.
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
- `traffic_ratio` should fall below 1.1: name the metric, the direction and the amount, so that the
  next profile can prove it wrong.
"""
