"""The six roles a language model plays: its prompt (prompts/<role>.md), its typed answer, and how
much it may read and write.

The prompt file is the system message: who the model is, the rules (prompts/rules.md), and the form
of the answer. What the run knows follows as the user message, made by sections.py and fitted by
prompt.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template

from kmem.errors import ProviderError
from kmem.explore.models.answers import MAX_DIRECTIONS
from kmem.records import Contract, ModelChoice, Precision, Purity

#: A `ModelChoice` with this role serves every role without one of its own.
ANY_ROLE = "any"

_PRECISION_RULES = {
    Precision.MATCH: (
        "Match eager PyTorch at its default flags: fp32 matrix products are exact fp32 (no TF32, "
        "no bf16: give every fp32 `tl.dot` an "
        'explicit `input_precision="ieee"` or split its operands), convolutions may use TF32 as '
        "cuDNN does. Accumulate in fp32."
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


@dataclass(frozen=True, slots=True)
class Role:
    """One role. `prompt_tokens` bounds all messages of a question, those of its re-ask too, as
    prompt.py estimates them; `output_tokens` is the default limit.

    Roles that read a kernel have room for the longest one that a bundled recipe writes (36 kB,
    12,000 tokens by that estimate). Output limits leave room for a reasoning model's thinking,
    which providers count as output.
    """

    name: str
    prompt_tokens: int
    output_tokens: int


GENERATOR = Role("generator", prompt_tokens=16_000, output_tokens=32_000)
DIAGNOSER = Role("diagnoser", prompt_tokens=24_000, output_tokens=8_000)
PLANNER = Role("planner", prompt_tokens=24_000, output_tokens=8_000)
OPTIMISER = Role("optimiser", prompt_tokens=32_000, output_tokens=32_000)
REPAIRER = Role("repairer", prompt_tokens=32_000, output_tokens=32_000)
REFLECTOR = Role("reflector", prompt_tokens=24_000, output_tokens=8_000)

ROLES: tuple[Role, ...] = (GENERATOR, DIAGNOSER, PLANNER, OPTIMISER, REPAIRER, REFLECTOR)


def system_prompt(role: Role, contract: Contract) -> str:
    """The system message of a role under a contract."""
    rules = _template("rules").substitute(
        precision=_PRECISION_RULES[contract.precision], purity=_PURITY_RULES[contract.purity]
    )
    return (
        _template(role.name).substitute(rules=rules.strip(), max_directions=MAX_DIRECTIONS).strip()
    )


def choose_models(models: tuple[ModelChoice, ...]) -> Mapping[str, ModelChoice]:
    """Which model plays each role: its own choice, else that for any role.

    Raises ProviderError: if a role has neither, or two choices.
    """
    chosen: dict[str, ModelChoice] = {}
    known = {ANY_ROLE, *(role.name for role in ROLES)}
    for choice in models:
        if choice.role not in known:
            raise ProviderError(
                f"There is no role {choice.role!r} for {choice.model}; the roles are "
                f"{', '.join(sorted(known))}"
            )
        if choice.role in chosen:
            raise ProviderError(
                f"Two models for the role {choice.role}: {chosen[choice.role].model} and "
                f"{choice.model}; name one"
            )
        chosen[choice.role] = choice
    for role in ROLES:
        if role.name not in chosen and ANY_ROLE not in chosen:
            raise ProviderError(
                f"No language model for the role {role.name}; name one with -m MODEL"
            )
    return {role.name: chosen.get(role.name) or chosen[ANY_ROLE] for role in ROLES}


@cache
def _template(name: str) -> Template:
    return Template(
        (resources.files("kmem.explore.models") / "prompts" / f"{name}.md").read_text(
            encoding="utf-8"
        )
    )
