"""The system message of a role: its prompt file with the rules of the run's contract filled in.

A prompt file (<role>.md, beside this module) says who the model is and the form of its answer;
rules.md says what holds for every kernel. What the run knows follows as the user message.
"""

from functools import cache
from importlib import resources
from string import Template

from kmem.explore.models.answers.schema import MAX_DIRECTIONS
from kmem.explore.models.roles import Role
from kmem.records import Contract, Precision, Purity

_PRECISION_RULES = {
    Precision.MATCH: (
        "Match eager PyTorch at its default flags: fp32 matrix products are exact fp32 (no TF32, "
        "no bf16: give every fp32 `tl.dot` an explicit "
        '`input_precision`, "ieee" or "bf16x6", or split its operands), convolutions may use TF32 '
        "as cuDNN does. It does not everywhere: grouped convolutions, and some with three input "
        "channels or three dimensions, it computes in full fp32, and then so must you. Accumulate "
        "in fp32."
    ),
    Precision.TF32: (
        "TF32 is allowed in matrix products and convolutions, for the baseline too; accumulate "
        "in fp32."
    ),
    Precision.BF16: (
        "The module and its floating inputs are bfloat16, for the baseline too; accumulate in "
        "fp32, return bfloat16."
    ),
}
_PURITY_RULES = {
    Purity.LIBRARY: (
        "Library operators (cuBLAS, cuDNN, SDPA through torch) may stay for parts where they "
        "win; the result says which share of GPU time was theirs."
    ),
    Purity.TRITON: (
        "All GPU time must be in Triton kernels of this file (at most 1% elsewhere) and no "
        "computing torch operator may run in forward; allocating (torch.empty) and viewing are "
        "free."
    ),
}


def system_prompt(role: Role, contract: Contract) -> str:
    """The system message of a role under a contract."""
    rules = _template("rules").substitute(
        precision=_PRECISION_RULES[contract.precision], purity=_PURITY_RULES[contract.purity]
    )
    text = _template(role.name).substitute(rules=rules.strip(), max_directions=MAX_DIRECTIONS)
    return text.strip()


@cache
def _template(name: str) -> Template:
    file = resources.files("kmem.explore.models.prompts") / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))
