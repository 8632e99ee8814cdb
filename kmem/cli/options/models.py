"""Which language model plays which role: the options of `kmem optimize` for it, and their grammar.

    -m MODEL            -m PROVIDER/MODEL            -m ROLE=MODEL            -m ROLE=PROVIDER/MODEL
    --base-url URL      --base-url PROVIDER=URL

PROVIDER is the name of a registered one, so that the slash in a name like Qwen/Qwen3-32B belongs to
the name. The other options take VALUE or ROLE=VALUE. A role without a model of its own uses the one
given without a role.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import click

from kmem.cli.options.records import option
from kmem.errors import ProviderError
from kmem.explore.models.roles import ANY_ROLE, ROLES
from kmem.records import ModelChoice

EFFORTS = ("low", "medium", "high")
#: A role before "=": a word, so that a command line with options is not mistaken for one.
_ROLE = re.compile(r"^([a-z_]+)=(.*)$", re.DOTALL)
#: Names that only one vendor gives its models. Source: platform.openai.com/docs/models,
#: docs.claude.com/en/docs/about-claude/models.
_VENDORS = {"openai": re.compile(r"^(gpt-|chatgpt-|o[0-9])"), "anthropic": re.compile(r"^claude-")}

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Models and their settings as they were typed; `choose_models` reads them."""

    models: tuple[str, ...] = option(
        "-m",
        "--model",
        metavar="[ROLE=][PROVIDER/]MODEL",
        multiple=True,
        envvar="KMEM_MODEL",
        help="Language model for every role, or for one of "
        f"{', '.join(role.name for role in ROLES)}; repeatable. `kmem models list` shows "
        "providers.",
    )
    base_urls: tuple[str, ...] = option(
        "--base-url",
        metavar="[PROVIDER=]URL",
        multiple=True,
        envvar="KMEM_BASE_URL",
        help="Server to ask: URL for models given without a provider or with openai/ (any "
        "OpenAI-compatible one), anthropic=URL for a relay of Anthropic's Messages API.",
    )
    temperatures: tuple[str, ...] = option(
        "--temperature",
        metavar="[ROLE=]NUMBER",
        multiple=True,
        help="Sampling temperature; default: the provider's.",
    )
    efforts: tuple[str, ...] = option(
        "--effort",
        metavar="[ROLE=]EFFORT",
        multiple=True,
        help=f"How long models think, where they can be told: {', '.join(EFFORTS)}; default: the "
        "provider's.",
    )
    output_limits: tuple[str, ...] = option(
        "--max-output-tokens",
        metavar="[ROLE=]TOKENS",
        multiple=True,
        help="Limit of one answer, thinking included; default: each role's own.",
    )
    no_stream: bool = option(
        "--no-stream",
        is_flag=True,
        help="Ask for answers that come whole, of servers that cannot stream.",
    )


def choose_models(options: ModelOptions, providers: Collection[str]) -> tuple[ModelChoice, ...]:
    """What the options say, one entry per role that has something of its own.

    Raises:
        ProviderError: if the provider of a model cannot be told.
        UsageError: if a value cannot be read, or two are given for one role or provider.
    """
    urls = _urls(options.base_urls)
    chosen: dict[str, ModelChoice] = {}
    for role, name in _by_role("-m", options.models, str).items():
        provider, model = _provider_of(name, providers, urls.get("openai"))
        chosen[role] = ModelChoice(
            role, provider, model, urls.get(provider), stream=not options.no_stream
        )
    temperature_of = _by_role("--temperature", options.temperatures, _temperature)
    effort_of = _by_role("--effort", options.efforts, _effort)
    limit_of = _by_role("--max-output-tokens", options.output_limits, _tokens)
    for role in {**temperature_of, **effort_of, **limit_of}:
        if role not in chosen and ANY_ROLE in chosen:
            chosen[role] = replace(chosen[ANY_ROLE], role=role)
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
    return of_role.get(role, of_role.get(ANY_ROLE))


def _urls(texts: Sequence[str]) -> dict[str, str]:
    """Servers by provider, from URL or PROVIDER=URL."""
    found: dict[str, str] = {}
    for text in texts:
        match = _ROLE.match(text)
        provider, url = (match[1], match[2]) if match else ("openai", text)
        if provider not in _VENDORS:
            raise click.UsageError(
                f"--base-url {text}: {provider} has no servers to choose from; give URL, or "
                "anthropic=URL"
            )
        if provider in found:
            raise click.UsageError(f"--base-url is given twice for {provider}; give it once")
        found[provider] = url
    return found


def _by_role(flag: str, texts: Sequence[str], read: Callable[[str], Value]) -> dict[str, Value]:
    """Values by role, as `read` makes them from VALUE or ROLE=VALUE."""
    found: dict[str, Value] = {}
    for text in texts:
        match = _ROLE.match(text)
        role, value = (match[1], match[2]) if match else (ANY_ROLE, text)
        if role in found:
            raise click.UsageError(
                f"{flag} is given twice for "
                f"{'every role' if role == ANY_ROLE else f'the role {role}'}; give it once"
            )
        try:
            found[role] = read(value)
        except ValueError as ex:
            raise click.UsageError(f"{flag} {text}: {ex}") from None
    return found


def _provider_of(name: str, providers: Collection[str], base_url: str | None) -> tuple[str, str]:
    """Provider and model of `[PROVIDER/]MODEL`.

    Only names that one vendor alone gives are recognised without a provider.
    """
    parts = name.split("/", 1)
    if len(parts) == 2 and parts[0] in providers:
        return parts[0], parts[1]
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
