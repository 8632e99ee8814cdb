"""The corpus of kernels that are files: what each one says of itself in the comments that begin it.

Kernels lie in the directories `honest` and `dishonest` beside this file. Their first comments:

    # problem: the stem of a file in the directory `problems`, or `problems/` and an example's name
    # class: what is tried, in a few words
    # purity: library (the default) or triton
    # precision: match (the default) or bf16
    # by: what must refuse it; `source` (the source check), `judge` (the default: a whole verdict),
    #     `worker` (a whole verdict without the source check: the wall behind it), or several
    # says: a regular expression that the reason of a refusal matches
    # says on a gpu: another one for there, if it is refused for something else

Others of the same kind are judged too, by people who wrote them without looking here: a check that
knows one of these by its text is worth nothing.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from kmem.records import Contract, Precision, Problem, Purity

CORPUS = Path(__file__).parent
_EXAMPLES = CORPUS.parents[1] / "problems"
_SAID = re.compile(
    r"^\ufeff?# (problem|class|purity|precision|by|says(?: on a gpu)?): (.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class CorpusKernel:
    """One kernel of the corpus; `by` and both `says` are empty for an honest one."""

    name: str
    source: str
    problem: Problem
    kind: str
    contract: Contract
    by: tuple[str, ...]
    says: str
    says_on_gpu: str


def read_corpus(kind: str) -> list[CorpusKernel]:
    """The kernels of `honest` or `dishonest`, by name."""
    return [_read(path, kind == "honest") for path in sorted((CORPUS / kind).glob("*.py"))]


def _read(path: Path, honest: bool) -> CorpusKernel:
    source = path.read_bytes().decode("utf-8")
    said = dict(_SAID.findall(source))
    assert said.get("class"), f"{path.name} does not say its class"
    assert honest or said.get("says"), f"{path.name} does not say what must be said of it"
    contract = Contract(
        precision=Precision(said.get("precision", "match")),
        purity=Purity(said.get("purity", "library")),
    )
    by = () if honest else tuple(said.get("by", "judge").replace(",", " ").split())
    assert set(by) <= {"source", "judge", "worker"}, f"{path.name}: by {by}"
    problem = _problem(said["problem"])
    says = said.get("says", "")
    on_gpu = said.get("says on a gpu", says)
    return CorpusKernel(path.stem, source, problem, said["class"], contract, by, says, on_gpu)


def _problem(name: str) -> Problem:
    own = CORPUS / "problems" / f"{name}.py"
    example = _EXAMPLES / f"{name.removeprefix('problems/')}" / "problem.py"
    path = own if own.exists() else example
    return Problem(path.stem, str(path), path.read_text(encoding="utf-8"))
