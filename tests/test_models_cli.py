"""`kmem models list`: what providers offer, with prices, or one line why they cannot answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from scripted_server import Reply, ScriptedServer, in_order

from kmem.cli.group import Group
from kmem.cli.making.models import models
from kmem.plugins import build_plugin_manager, collect

OK = in_order(Reply("ok"))


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No .env, plugins or prices of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KMEM_LOAD_PLUGINS", "")
    monkeypatch.delenv("KMEM_PRICES", raising=False)


def invoke(*arguments: str) -> Result:
    group = Group("kmem", commands={"models": models})  # the group that makes one line of an error
    result = CliRunner().invoke(group, ["models", *arguments], obj=collect(build_plugin_manager()))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_compatible_servers_models_need_no_key(provider: str) -> None:
    with ScriptedServer(OK, models=("gpt-6.2-sol", "my-model")) as server:
        url = server.url_openai if provider == "openai" else server.url_anthropic
        result = invoke("list", "--provider", provider, "--base-url", url)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        [provider, "gpt-6.2-sol"],
        [provider, "my-model"],
    ]


def test_a_base_url_alone_means_an_openai_compatible_server_and_prices_are_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "prices.json"
    entry = {
        "model": "my-model",
        "usd_per_million_input": 0.25,
        "usd_per_million_output": 1,
        "source": "own",
        "date": "2026-11-21",
    }
    prices.write_text(json.dumps({"prices": [entry]}))
    monkeypatch.setenv("KMEM_PRICES", str(prices))
    with ScriptedServer(OK, models=("other", "my-model")) as server:
        listed = json.loads(invoke("list", "--base-url", server.url_openai, "--json").stdout)
        plain = invoke("list", "--base-url", server.url_openai).stdout
    assert listed == {
        "models": [
            {
                "provider": "openai",
                "model": "my-model",
                "usd_per_million_input": 0.25,
                "usd_per_million_output": 1.0,
                "price_source": "own",
                "price_date": "2026-11-21",
            },
            {
                "provider": "openai",
                "model": "other",
                "usd_per_million_input": None,
                "usd_per_million_output": None,
                "price_source": None,
                "price_date": None,
            },
        ]
    }
    assert "0.25 / 1 USD per million tokens (2026-11-21)" in plain


def test_without_a_key_each_provider_says_so_and_nothing_is_listed() -> None:
    result = invoke()
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "anthropic: No key for anthropic; set ANTHROPIC_API_KEY" in result.stderr
    assert "openai: No key for openai; set OPENAI_API_KEY" in result.stderr
    assert (
        "Error: No provider has a list of models; set a key as said above, or name a server "
        "with --base-url"
    ) in result.stderr


def test_one_provider_that_cannot_answer_is_one_line_and_exit_1() -> None:
    assert invoke("list", "--provider", "openai").stderr == (
        "Error: No key for openai; set OPENAI_API_KEY in the environment or in a .env file in this "
        "directory\n"
    )
    unknown = invoke("list", "--provider", "nobody")
    assert unknown.exit_code == 1
    assert (
        unknown.stderr
        == "Error: No provider named 'nobody'. Registered: anthropic, command, openai, replay\n"
    )


def test_providers_without_a_list_print_none() -> None:
    result = invoke("list", "--provider", "command")
    assert (result.exit_code, result.stdout) == (0, "")


def test_the_installed_command_lists_models_with_a_key_from_the_env_file(tmp_path: Path) -> None:
    with ScriptedServer(OK, models=("my-model",), key="sk-from-file") as server:
        (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-from-file\n")
        line = [
            sys.executable,
            "-m",
            "kmem",
            "models",
            "list",
            "--base-url",
            server.url_openai,
            "--json",
        ]
        result = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert [entry["model"] for entry in json.loads(result.stdout)["models"]] == ["my-model"]
