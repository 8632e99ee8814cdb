"""A description as operators in the order in which they are applied.

"a of b" applies b first; all else is applied as it is said. Every word must be understood: a
description that is half understood would be another problem.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmem.errors import ProblemError
from kmem.problem.described.phrases import Kind, Phrase, known_phrases
from kmem.problem.described.shapes import TENSOR, Tensor, find_tensors

#: Words that say nothing about what is computed.
_FILLING = frozenset(
    """
    a an the fused fuse fast write make me kernel kernels operator module forward for over along on
    in of with and then followed by by to its each every all row rows along using input inputs
    tensor tensors tensor, between against computed compute computes that which it is plus from as
    elementwise activation scaled at
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
_DIMENSION = re.compile(
    r"\b(?:(?P<place>last|first|second|third)\s+(?:dim|dimension|axis)"
    r"|(?:dim|dimension|axis)\s*=?\s*(?P<number>-?\d+))\b"
)
_PLACES = {"last": -1, "first": 0, "second": 1, "third": 2}
_SCALE = re.compile(
    r"\b(?P<what>times|multiplied by|scaled by|divided by)\s+(?P<number>\d+(?:\.\d+)?)\b"
)
_FEATURES = re.compile(r"\b(?:to|into)\s+(?P<number>\d+)\s*(?:features|outputs|channels)?\b")
_MARKS = {
    "residual": re.compile(r"\b(?:an?\s+|the\s+)?residual(?:\s+(?:connection|input|add))?\b"),
    "bias": re.compile(r"\b(?:an?\s+|the\s+)?bias\b"),
    "causal": re.compile(r"\bcausal(?:\s+mask)?\b"),
    "no_weight": re.compile(r"\bwithout\s+(?:an?\s+)?(?:weights?|affine(?:\s+parameters)?)\b"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One operator, or a number that is multiplied by (`code` is then the whole text)."""

    phrase: Phrase
    name: str


@dataclass(frozen=True, slots=True)
class Description:
    """What was said: the steps in order, the tensors, and what is to hold of them."""

    text: str
    steps: tuple[Step, ...]
    tensors: tuple[Tensor, ...]
    dim: int = -1
    features: int | None = None
    residual: bool = False
    bias: bool = False
    causal: bool = False
    weighted: bool = True

    @property
    def wants(self) -> Sequence[str]:
        """What is still to be said, one question each; empty if a file can be written."""
        questions = []
        if not self.steps:
            questions.append("which operators, such as `rms norm` or `softmax then gelu`")
        if not self.tensors:
            questions.append("the input's type and sizes, such as `bf16[32, 4096]`")
        kinds = [step.phrase.kind for step in self.steps]
        if Kind.PRODUCT in kinds and len(self.tensors) == 1:
            questions.append("the second factor's type and sizes, such as `bf16[4096, 1024]`")
        if Kind.LINEAR in kinds and len(self.tensors) == 1 and self.features is None:
            questions.append("how many features a linear layer has, such as `to 4096 features`")
        return questions


def read_description(text: str) -> Description:
    """Read what a description says; what is missing is in its `wants`.

    Raises ProblemError: if a word is not understood.
    """
    rest = " ".join(text.lower().split()).rstrip(".")
    tensors = find_tensors(rest)
    rest = TENSOR.sub(" ", rest)
    marks = {}
    for name, pattern in _MARKS.items():
        marks[name] = pattern.search(rest) is not None
        rest = pattern.sub(" ", rest)
    dimension = _DIMENSION.search(rest)
    rest = _DIMENSION.sub(" ", rest)
    steps, left = _find_steps(rest)
    # of what is left, sizes of a linear layer
    features = _FEATURES.search(left)
    left = _FEATURES.sub(" ", left)
    _refuse_unknown(text, left)
    return Description(
        text.strip(),
        tuple(steps),
        tuple(tensors),
        _dimension(dimension.groupdict() if dimension else {}),
        int(features["number"]) if features else None,
        marks["residual"],
        marks["bias"],
        marks["causal"],
        not marks["no_weight"],
    )


def _dimension(found: Mapping[str, str | None]) -> int:
    place, number = found.get("place"), found.get("number")
    if place is not None:
        return _PLACES[place]
    return int(number) if number is not None else -1


def _find_steps(text: str) -> tuple[list[Step], str]:
    """The operators in the order in which they are applied, and the text without them."""
    known = known_phrases()
    spaces = r"[\s_-]+"
    names = [
        spaces.join(re.escape(word) for word in name.split())
        for name in sorted(known, key=len, reverse=True)
    ]
    pattern = re.compile(rf"\b(?:{'|'.join(names)})\b")
    places: list[tuple[int, int, Step]] = []
    for found in _SCALE.finditer(text):
        sign = "/" if found["what"] == "divided by" else "*"
        phrase = Phrase(Kind.POINTWISE, f"{{x}} {sign} {found['number']}")
        places.append((found.start(), found.end(), Step(phrase, found[0])))
    for found in pattern.finditer(_SCALE.sub(lambda match: " " * len(match[0]), text)):
        name = re.sub(r"[\s_-]+", " ", found[0])
        phrase = known.get(found[0]) or known[name]
        places.append((found.start(), found.end(), Step(phrase, name)))
    places.sort(key=lambda place: place[0])
    ordered: list[Step] = []
    group: list[Step] = []
    last = 0
    for start, end, step in places:
        if group and text[last:start].strip().split() != ["of"]:
            ordered += reversed(group)  # "a of b" applies b first
            group = []
        group.append(step)
        last = end
    ordered += reversed(group)
    left, behind = "", 0
    for start, end, _ in places:
        left += text[behind:start] + " "
        behind = end
    return ordered, left + text[behind:]


def _refuse_unknown(text: str, left: str) -> None:
    words = [word for word in re.findall(r"[^\s,;:()]+", left) if word not in _FILLING]
    if words:
        raise ProblemError(
            f"In {text.strip()!r} this is not understood: {', '.join(words)}. Say operators that "
            "kmem knows and shapes, as in `fused rms norm over the last dimension of bf16[32, "
            "4096, 8192] with a residual`, let a model write it with -m MODEL, or start from `kmem "
            "problem new FILE.py`"
        )
