"""Which language model plays which role: the options of `kmem optimize` for it, and their grammar.

    -m MODEL            -m PROVIDER/MODEL            -m ROLE=MODEL            -m ROLE=PROVIDER/MODEL

PROVIDER is the name of a registered one, so that the slash in a name like Qwen/Qwen3-32B belongs to
the name. The other options take VALUE or ROLE=VALUE. A role without a model of its own uses the one
given without a role.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from kmem.errors import ProviderError

if TYPE_CHECKING:
    from kmem.records import ModelChoice

#: Those of kmem/explore/models/roles.py, which a test compares; importing them here would make
#: `kmem --help` slower.
ROLES = ("generator", "diagnoser", "planner", "optimiser", "repairer", "reflector")
EFFORTS = ("low", "medium", "high")
_ANY = "any"
#: A role before "=": a word, so that a command line with options is not mistaken for one.
_ROLE = re.compile(r"^([a-z_]+)=(.*)$", re.DOTALL)
#: Names that only one vendor gives its models. Source: platform.openai.com/docs/models,
#: docs.claude.com/en/docs/about-claude/models.
_VENDORS = {"openai": re.compile(r"^(gpt-|chatgpt-|o[0-9])"), "anthropic": re.compile(r"^claude-")}

Value = TypeVar("Value")
Command = TypeVar("Command", bound=Callable)


def model_options(command: Command) -> Command:
    """Add the options; see the module."""
    for option in reversed(
        [
            click.option(
                "-m",
                "--model",
                "models",
                metavar="[ROLE=][PROVIDER/]MODEL",
                multiple=True,
                envvar="KMEM_MODEL",
                help=(
                    f"Language model for every role, or for one of {', '.join(ROLES)}; repeatable. "
                    f"`kmem models list` shows providers."
                ),
            ),
            click.option(
                "--base-url",
                envvar="KMEM_BASE_URL",
                help=(
                    "OpenAI-compatible server to ask; holds for models given without a provider or "
                    "with openai/."
                ),
            ),
            click.option(
                "--temperature",
                "temperatures",
                metavar="[ROLE=]NUMBER",
                multiple=True,
                help="Sampling temperature; default: the provider's.",
            ),
            click.option(
                "--effort",
                "efforts",
                metavar="[ROLE=]EFFORT",
                multiple=True,
                help=(
                    f"How long models think, where they can be told: {', '.join(EFFORTS)}; "
                    f"default: the provider's."
                ),
            ),
            click.option(
                "--max-output-tokens",
                "output_limits",
                metavar="[ROLE=]TOKENS",
                multiple=True,
                help="Limit of one answer, thinking included; default: each role's own.",
            ),
        ]
    ):
        command = option(command)
    return command


def choose_models(
    models: Sequence[str],
    providers: Collection[str],
    base_url: str | None,
    temperatures: Sequence[str],
    efforts: Sequence[str],
    output_limits: Sequence[str],
) -> "tuple[ModelChoice, ...]":
    """What the options say, one entry per role that has something of its own.

    Raises ProviderError: for a model whose provider cannot be told. UsageError: for a value that is
    none, or two for one role.
    """
    from kmem.records import ModelChoice

    chosen: dict[str, ModelChoice] = {}
    for role, name in _by_role("-m", models, str).items():
        provider, model = _provider_of(name, providers, base_url)
        chosen[role] = ModelChoice(
            role, provider, model, base_url if provider == "openai" else None
        )
    temperature_of = _by_role("--temperature", temperatures, _temperature)
    effort_of = _by_role("--effort", efforts, _effort)
    limit_of = _by_role("--max-output-tokens", output_limits, _tokens)
    for role in {**temperature_of, **effort_of, **limit_of}:
        if role not in chosen and _ANY in chosen:
            chosen[role] = replace(chosen[_ANY], role=role)
        elif role not in chosen:
            raise click.UsageError(
                f"A setting is given for the role '{role}', which has no model; give one with -m"
            )
    return tuple(
        replace(
            choice,
            temperature=_setting(temperature_of, role),
            effort=_setting(effort_of, role),
            max_output_tokens=_setting(limit_of, role),
        )
        for role, choice in chosen.items()
    )


def _setting(of_role: Mapping[str, Value], role: str) -> Value | None:
    return of_role.get(role, of_role.get(_ANY))


def _by_role(option: str, texts: Sequence[str], read: Callable[[str], Value]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for text in texts:
        match = _ROLE.match(text)
        role, value = (match[1], match[2]) if match else (_ANY, text)
        if role in found:
            raise click.UsageError(
                f"{option} is given twice for "
                f"{'every role' if role == _ANY else f'the role {role}'}; give it once"
            )
        try:
            found[role] = read(value)
        except ValueError as ex:
            raise click.UsageError(f"{option} {text}: {ex}") from None
    return found


def _provider_of(name: str, providers: Collection[str], base_url: str | None) -> tuple[str, str]:
    """Provider and model of `[PROVIDER/]MODEL`.

    Only names that one vendor alone gives are recognised without a provider.
    """
    prefix, slash, rest = name.partition("/")
    if slash and prefix in providers:
        return prefix, rest
    if base_url is not None:
        return "openai", name
    for provider, pattern in _VENDORS.items():
        if pattern.match(name):
            return provider, name
    known = ", ".join(f"{provider}/{name}" for provider in sorted(providers))
    raise ProviderError(
        f"Which provider offers the model '{name}'? Say one of {known or 'none registered'}, or "
        f"give --base-url"
    )


def _temperature(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 2:
        raise ValueError("a temperature is 0 to 2")
    return value


def _effort(text: str) -> str:
    if text not in EFFORTS:
        raise ValueError(f"an effort is one of {', '.join(EFFORTS)}")
    return text


def _tokens(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("a limit is at least 1 token")
    return value
