"""The form of a SKILL.md: the Agent Skills format, with kmem's typed keys in its metadata.

Reading stops at the first fault of the text as a whole, such as missing frontmatter. Faults of what
the keys say are validate.py's.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kmem.records import Claim
from kmem.skills.skill import Combination, Condition, KnobMove, Step
from kmem.vocabulary import KNOB_ROLES, SIGNATURE_METRICS, SOURCE_FEATURES

#: The six frontmatter keys of the Agent Skills format. Source: agentskills.io/specification.
FRONTMATTER_KEYS = ("name", "description", "license", "compatibility", "allowed-tools", "metadata")
KMEM_KEYS = (
    "kmem-ops",
    "kmem-bottlenecks",
    "kmem-graph",
    "kmem-signature",
    "kmem-structure",
    "kmem-arch",
    "kmem-precision",
    "kmem-conflicts",
    "kmem-forbidden",
    "kmem-claims",
    "kmem-moves",
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
_BY = re.compile(r"^by ([a-z0-9-]+)$")
_STEP = re.compile(r"^([a-z]+) (up|down)$")
_MOVE = re.compile(r"^(?P<steps>.+?)(?: if (?P<conditions>.+?))? then (?P<claims>.+)$")
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
        mark = getattr(ex, "problem_mark", None)
        where = f", line {mark.line + 2}" if mark is not None else ""  # after the --- line, from 1
        reason = getattr(ex, "problem", None) or str(ex).splitlines()[0]
        raise ValueError(f"frontmatter is not valid YAML{where}: {reason}") from ex
    if not isinstance(front, dict):
        raise ValueError("frontmatter is not a mapping")
    return Form(front, match[2].strip())


def read_sections(body: str) -> Iterator[tuple[str, str]]:
    """The heading and the text of every section of a body."""
    for part in re.split(r"^## ", body, flags=re.MULTILINE)[1:]:
        heading, text = [*part.split("\n", 1), ""][:2]
        yield heading.strip(), text.strip()


def read_words(text: str) -> list[str]:
    """The words of a key that holds several, separated by spaces or commas."""
    return [word for word in re.split(r"[\s,]+", text) if word]


def allowed_words(word: str, known: Iterable[str]) -> str:
    """What may stand in place of an unknown word, the nearest first."""
    words = list(known)
    near = difflib.get_close_matches(word, words, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    others = [each for each in words if each not in near]
    return f"{meant}allowed are: {', '.join([*near, *others])}"


def is_name(name: str) -> bool:
    """Whether the format allows this name."""
    return NAME_PATTERN.match(name) is not None and len(name) <= MAX_NAME


def parse_condition(text: str) -> Condition:
    """Read `metric comparison number`.

    Raises ValueError, saying what is wrong, if it is not that or the metric is unknown.
    """
    return _condition(text, SIGNATURE_METRICS, "metric")


def parse_feature(text: str) -> Condition:
    """Read `feature comparison number`, of vocabulary.SOURCE_FEATURES.

    Raises ValueError, saying what is wrong, if it is not that or the feature is unknown.
    """
    return _condition(text, SOURCE_FEATURES, "feature")


def _condition(text: str, known: Iterable[str], kind: str) -> Condition:
    match = _CONDITION.match(text)
    if match is None:
        raise ValueError(f"'{text}' is not `{kind} op number`")
    if match[1] not in known:
        raise ValueError(f"{kind} '{match[1]}' is unknown; {allowed_words(match[1], known)}")
    return Condition(match[1], match[2], float(match[3]))


def _any_condition(text: str) -> Condition:
    return _condition(text, {**SIGNATURE_METRICS, **SOURCE_FEATURES}, "metric")


def parse_combination(text: str) -> Combination:
    """Read `CONDITION|by SKILL [and ...]`; a condition is of a metric or a feature of the text.

    Raises ValueError, saying what is wrong, if it is not that or a word is unknown.
    """
    parts = [part.strip() for part in text.split(" and ")]
    named = [match[1] for part in parts if (match := _BY.match(part))]
    conditions = [_any_condition(part) for part in parts if not _BY.match(part)]
    return Combination(tuple(conditions), tuple(named))


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
        raise ValueError(
            f"metric '{match[1]}' is unknown; {allowed_words(match[1], SIGNATURE_METRICS)}"
        )
    return Claim(match[1], match[2], float(match[3]), relative=bool(match[4]))


def parse_move(text: str) -> KnobMove:
    """Read `ROLE up|down [and ...] [if CONDITION [and ...]] then CLAIM [and ...]`.

    Raises ValueError, saying what is wrong, if it is not that or a word is unknown.
    """
    match = _MOVE.match(text)
    if match is None:
        raise ValueError(
            f"'{text}' is not `ROLE up|down [and ...] [if CONDITION [and ...]] then CLAIM "
            "[and ...]`"
        )
    conditions = match["conditions"]
    return KnobMove(
        tuple(_parse_step(part) for part in match["steps"].split(" and ")),
        tuple(_any_condition(part) for part in conditions.split(" and ")) if conditions else (),
        tuple(parse_claim(part) for part in match["claims"].split(" and ")),
    )


def _parse_step(text: str) -> Step:
    match = _STEP.match(text)
    if match is None:
        raise ValueError(f"'{text}' is not `ROLE up` or `ROLE down`")
    if match[1] not in KNOB_ROLES:
        raise ValueError(f"role '{match[1]}' is unknown; {allowed_words(match[1], KNOB_ROLES)}")
    return Step(match[1], match[2] == "up")
