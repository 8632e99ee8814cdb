"""`kmem models`: which language models the registered providers offer, and what they cost."""

import json

import click

from kmem.errors import ProviderError
from kmem.explore.models.cost.prices import Price, known_prices
from kmem.plugins import Registry, lookup


@click.group(invoke_without_command=True)
@click.pass_context
def models(ctx: click.Context) -> None:
    """List language models (default: list)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models)


@models.command("list")
@click.option(
    "--provider",
    help="Only this provider, such as anthropic; default: every one, or openai with --base-url.",
)
@click.option(
    "--base-url",
    help="Ask this server instead of the vendor's own, such as http://localhost:8000/v1 (no key "
    "needed).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: an array of models under `models`.",
)
@click.pass_obj
def list_models(
    registry: Registry,
    provider: str | None = None,
    base_url: str | None = None,
    as_json: bool = False,
) -> None:
    """List the models that providers offer, with their price where it is known.

    Keys come from OPENAI_API_KEY and ANTHROPIC_API_KEY, in the environment or in a .env file in
    this directory. Providers `command` and `replay` have no list: a model is any shell command
    line, or any file of recorded conversations.
    """
    one = provider or ("openai" if base_url else None)
    asked = (
        [lookup(registry.providers, one, "provider")]
        if one
        else [registry.providers[name] for name in sorted(registry.providers)]
    )
    prices = known_prices()
    rows: list[tuple[str, str, Price | None]] = []
    for entry in asked:
        try:
            names = entry.models(base_url)
        except ProviderError as ex:
            if one:
                raise
            click.echo(f"{entry.name}: {ex}", err=True)
            continue
        rows += [(entry.name, name, prices.find(entry.name, name, base_url)) for name in names]
    if not rows and not one:
        raise ProviderError(
            "No provider has a list of models; set a key as said above, or name a server with "
            "--base-url"
        )
    if as_json:
        click.echo(json.dumps({"models": [_model_data(*row) for row in rows]}))
        return
    for provider_name, name, price in rows:
        cost = _describe(price) if price else ""
        click.echo(f"{provider_name:10} {name:40} {cost}".rstrip())


def _describe(price: Price) -> str:
    return (
        f"{price.usd_per_million_input:g} / {price.usd_per_million_output:g} USD per million "
        f"tokens ({price.date})"
    )


def _model_data(provider: str, name: str, price: Price | None) -> dict[str, object]:
    return {
        "provider": provider,
        "model": name,
        "usd_per_million_input": price.usd_per_million_input if price else None,
        "usd_per_million_output": price.usd_per_million_output if price else None,
        "price_source": price.source if price else None,
        "price_date": price.date if price else None,
    }
