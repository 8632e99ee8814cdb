"""The six roles a language model plays, how much each may read and write, and which model plays it.

What a role is told is put together in prompts/; what it may answer is in answers/schema.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmem.errors import ProviderError
from kmem.interfaces import Provider
from kmem.plugins import lookup
from kmem.records import ModelChoice

#: A `ModelChoice` with this role serves every role without one of its own.
ANY_ROLE = "any"


@dataclass(frozen=True, slots=True)
class Role:
    """One role: `prompt_tokens` bounds what it reads, `output_tokens` what it writes by default.

    `prompt_tokens` counts all messages of a question, those of its re-ask too, as
    prompts/message.py estimates them.

    Roles that read a kernel have room for the longest one that a bundled recipe writes (36 kB,
    12,000 tokens by that estimate). Output limits leave room for a reasoning model's thinking,
    which providers count as output.
    """

    name: str
    prompt_tokens: int
    output_tokens: int


GENERATOR = Role("generator", prompt_tokens=32_000, output_tokens=32_000)
DIAGNOSER = Role("diagnoser", prompt_tokens=24_000, output_tokens=8_000)
PLANNER = Role("planner", prompt_tokens=24_000, output_tokens=8_000)
OPTIMISER = Role("optimiser", prompt_tokens=32_000, output_tokens=32_000)
REPAIRER = Role("repairer", prompt_tokens=32_000, output_tokens=32_000)
REFLECTOR = Role("reflector", prompt_tokens=24_000, output_tokens=8_000)

ROLES: tuple[Role, ...] = (GENERATOR, DIAGNOSER, PLANNER, OPTIMISER, REPAIRER, REFLECTOR)


def choose_models(models: tuple[ModelChoice, ...]) -> Mapping[str, ModelChoice]:
    """Which model plays each role: its own choice, else that for any role.

    Raises:
        ProviderError: if a role has neither, or two choices.
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


def check_models(models: Sequence[ModelChoice], providers: Mapping[str, Provider]) -> None:
    """See that every model can be asked at all, before anything is begun.

    Raises NotRegistered for a provider that nobody registered, and ProviderError with the remedy.
    """
    for choice in models:
        provider = lookup(providers, choice.provider, "provider")
        provider.check(choice.model, choice.base_url)
