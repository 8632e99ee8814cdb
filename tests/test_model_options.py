"""Which model plays which role: the grammar of -m and its companions, and what breaks it."""

from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kmem.cli import cli
from kmem.cli.options.models import ModelOptions, choose_models
from kmem.errors import ProviderError
from kmem.explore.models import roles
from kmem.memory.location import default_db_path
from kmem.plugins import build_plugin_manager, collect
from kmem.records import ModelChoice

PROVIDERS = ("openai", "anthropic", "command", "replay")


def chosen(
    *models: str, base_url: str | None = None, **settings: tuple[str, ...]
) -> dict[str, ModelChoice]:
    typed = ModelOptions(
        models,
        (base_url,) if base_url else (),
        settings.get("temperatures", ()),
        settings.get("efforts", ()),
        settings.get("limits", ()),
        no_stream=False,
    )
    found = choose_models(typed, PROVIDERS)
    assert len({choice.role for choice in found}) == len(found)
    return {choice.role: choice for choice in found}


@pytest.mark.parametrize(
    ("text", "base_url", "role", "provider", "model"),
    [
        ("openai/gpt-5", None, "any", "openai", "gpt-5"),
        ("gpt-5", None, "any", "openai", "gpt-5"),
        ("o3-mini", None, "any", "openai", "o3-mini"),
        ("claude-opus-4", None, "any", "anthropic", "claude-opus-4"),
        ("optimiser=claude-opus-4", None, "optimiser", "anthropic", "claude-opus-4"),
        ("planner=openai/gpt-5", None, "planner", "openai", "gpt-5"),
        ("Qwen/Qwen3-32B", "http://here/v1", "any", "openai", "Qwen/Qwen3-32B"),
        ("openai/Qwen/Qwen3-32B", "http://here/v1", "any", "openai", "Qwen/Qwen3-32B"),
        ("claude-opus-4", "http://relay/v1", "any", "openai", "claude-opus-4"),
        ("command/claude -p --model=opus", None, "any", "command", "claude -p --model=opus"),
        ("replay/runs/kept.jsonl", None, "any", "replay", "runs/kept.jsonl"),
    ],
)
def test_a_model_names_its_role_and_provider_or_has_them_inferred(
    text: str, base_url: str | None, role: str, provider: str, model: str
) -> None:
    (choice,) = chosen(text, base_url=base_url).values()
    assert (choice.role, choice.provider, choice.model) == (role, provider, model)
    assert choice.base_url == base_url


def test_the_roles_of_the_help_are_those_that_are_played() -> None:
    said = " ".join(CliRunner().invoke(cli, ["optimize", "--help"]).stdout.split())
    assert f"one of {', '.join(role.name for role in roles.ROLES)}; repeatable" in said


def test_a_server_holds_for_what_is_not_sent_elsewhere_by_name() -> None:
    found = chosen("local-model", "optimiser=anthropic/claude-opus-4", base_url="http://here/v1")
    assert found["any"].base_url == "http://here/v1"
    assert found["optimiser"].base_url is None


def test_each_provider_has_its_own_server_and_all_may_be_asked_for_whole_answers() -> None:
    typed = ModelOptions(
        ("local-model", "optimiser=anthropic/claude-opus-4"),
        ("http://here/v1", "anthropic=http://relay"),
        (),
        (),
        (),
        no_stream=True,
    )
    found = choose_models(typed, PROVIDERS)
    assert [choice.base_url for choice in found] == ["http://here/v1", "http://relay"]
    assert not any(choice.stream for choice in found)
    for urls, message in {
        ("command=http://here",): "command has no servers to choose from",
        ("http://here", "openai=http://there"): "given twice for openai",
    }.items():
        with pytest.raises(click.UsageError, match=message):
            choose_models(replace(typed, base_urls=urls), PROVIDERS)


@pytest.mark.parametrize("text", ["llama-3", "Qwen/Qwen3-32B", "planner=mistral"])
def test_a_provider_that_cannot_be_told_is_asked_for_in_one_line(text: str) -> None:
    with pytest.raises(ProviderError, match=r"Say one of anthropic/.*, or give --base-url"):
        chosen(text)


def test_settings_hold_for_every_role_or_for_one() -> None:
    found = chosen(
        "gpt-5",
        "planner=gpt-5-mini",
        temperatures=("0.2", "generator=1"),
        efforts=("planner=low",),
        limits=("20000",),
    )
    assert (found["any"].temperature, found["any"].effort, found["any"].max_output_tokens) == (
        0.2,
        None,
        20000,
    )
    assert (found["generator"].model, found["generator"].temperature) == ("gpt-5", 1.0)
    assert (found["planner"].model, found["planner"].temperature, found["planner"].effort) == (
        "gpt-5-mini",
        0.2,
        "low",
    )


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (("gpt-5", "gpt-4"), {}, "-m is given twice for every role"),
        (("gpt-5",), {"temperatures": ("3",)}, "a temperature is 0 to 2"),
        (("gpt-5",), {"temperatures": ("warm",)}, "could not convert"),
        (("gpt-5",), {"efforts": ("planner=huge",)}, "one of low, medium, high"),
        (("gpt-5",), {"limits": ("0",)}, "at least 1 token"),
        (
            ("planner=gpt-5",),
            {"efforts": ("generator=low",)},
            "the role 'generator', which has no model",
        ),
    ],
)
def test_a_setting_that_is_none_is_a_usage_error(
    models: tuple[str, ...], settings: dict, message: str
) -> None:
    with pytest.raises(click.UsageError) as raised:
        chosen(*models, **settings)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--author", "llm"], "give one with -m"),
        (["-m", "gpt-5", "--author", "recipes"], "add --author llm"),
    ],
)
def test_an_author_without_a_model_and_a_model_without_an_author_are_usage_errors(
    words: list[str], message: str, tmp_path: Path
) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text("class Model: pass\ndef get_inputs(): return []\n")
    registry = collect(build_plugin_manager())
    result = CliRunner().invoke(
        cli, ["optimize", str(problem), "--target", "h200", *words], obj=registry
    )
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "anthropic/claude-x"], "No key for anthropic; set ANTHROPIC_API_KEY"),
        (["-m", "x", "--base-url", "http://127.0.0.1:9/v1"], "No server answers at"),
        (["-m", "command/no-such-program --ask"], "`no-such-program --ask` is not found"),
        (["-m", "replay/nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_a_model_that_cannot_be_asked_is_told_before_anything_is_begun(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problem.py").write_text("class Model: pass\ndef get_inputs(): return []\n")
    registry = collect(build_plugin_manager())
    result = CliRunner().invoke(
        cli, ["optimize", "problem.py", "--target", "h200", *words], obj=registry
    )
    assert result.exit_code == 1
    assert message in result.stderr
    assert [place.name for place in tmp_path.iterdir()] == ["problem.py"]
    assert not default_db_path().exists()


def test_a_model_alone_asks_for_both_authors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        "kmem.cli.actions.optimize.make_run",
        lambda problem, options, models: asked.append((options.authors, models[0].model)),
    )
    monkeypatch.setattr("kmem.cli.actions.optimize.execute_run", lambda *_, **__: None)
    registry = collect(build_plugin_manager())
    result = CliRunner().invoke(cli, ["optimize", "p.py", "-m", "command/cat"], obj=registry)
    assert result.exit_code == 0, result.output
    assert asked == [(("recipes", "llm"), "cat")]
    assert "--author both" in result.stderr


def test_models_in_the_environment_do_not_get_in_the_way_of_recipes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KMEM_MODEL", "gpt-5")
    registry = collect(build_plugin_manager())
    result = CliRunner().invoke(
        cli, ["optimize", str(tmp_path / "nowhere.py"), "--target", "h200"], obj=registry
    )
    assert result.exit_code == 1
    assert "nowhere.py" in result.stderr
