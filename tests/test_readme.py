"""README.md is tried as a reader would: its problem is written and its commands are run."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from kmem.cli import cli
from kmem.plugins import build_plugin_manager, collect

ROOT = Path(__file__).parent.parent
#: Commands that are not run here, by how they begin, and why.
LEFT_OUT = {
    "kmem optimize problem.py": "takes minutes, a GPU or a language model",
    "kmem skills add my-skill": "an untouched template is refused (tests/test_guide.py adds one)",
    "kmem memory sync": "needs somebody's git repository (tests/test_sync.py)",
    "kmem runs re": "need a run (tests/test_replay.py, tests/test_cli_optimize.py)",
}
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """The lines of README's shell blocks that call kmem, and such lines within its text."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    lines += [" ".join(text.split()) for text in re.findall(r"`(kmem [^`]+ [^`]+)`", prose)]
    return list(dict.fromkeys(line for line in lines if line.startswith("kmem ")))


def is_left_out(command: str) -> bool:
    return any(command.startswith(beginning) for beginning in LEFT_OUT)


def test_what_is_left_out_is_in_the_readme() -> None:
    for beginning in LEFT_OUT:
        assert any(command.startswith(beginning) for command in commands()), beginning


@pytest.mark.slow
def test_the_readmes_problem_and_commands_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = re.findall(r"```python\n# problem\.py\n(.*?)```", README, re.DOTALL)
    for name in ("problems", "db"):  # as in a clone
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "data" / "kmem.db"))
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.chdir(tmp_path)

    def run(command: str) -> str:
        said = ""
        for part in command.split(" | "):
            # in this process: each of a dozen would import torch anew
            registry = collect(build_plugin_manager())
            done = CliRunner().invoke(cli, shlex.split(part)[1:], input=said, obj=registry)
            assert done.exit_code == 0, f"{part}: {done.output}"
            said = done.stdout
        return said

    wanted = [command for command in commands() if not is_left_out(command)]
    begins = "kmem problem new problem.py"
    wanted.remove(begins)
    assert run(begins) == "problem.py\n"
    (tmp_path / "problem.py").write_text(source, encoding="utf-8")
    said = {command: run(command) for command in wanted}
    assert "linear, pointwise" in said["kmem problem check problem.py"]
    assert "separable-pooling" in next(
        text for command, text in said.items() if command.startswith("kmem skills search")
    )
    offered = next(text for command, text in said.items() if "| kmem prescribe" in command)
    assert '"operator rms_norm"' in offered and "treats redundant_traffic" in offered
