"""Whether the recipes of skills can be imported, found out without trusting them.

The code of a skill that nobody has used yet may do anything. It runs in a process that has given up
what the judge's workers give up: no network, no signals, no files but Python's, kmem's and the
skills' own, no secrets in its environment, a directory of its own. This module is that process too.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kmem.errors import SkillError
from kmem.host.confinement import Limits, Walls, restrict_process
from kmem.host.environment import scrubbed_environment
from kmem.skills import load_recipe, read_skill

#: kmem's own modules, which recipes import.
_KMEM = Path(__file__).resolve().parents[1]
#: One recipe takes some tenths of a second, most of it for the first.
_TIMEOUT_S = 60.0


def recipe_faults(directories: Sequence[Path]) -> dict[Path, str]:
    """What is wrong with the recipes of these skill directories: those that cannot be imported.

    A directory without a recipe.py, or without a SKILL.md that can be read, has no such fault.
    """
    left = [path.resolve() for path in directories if (path / "recipe.py").is_file()]
    found: dict[Path, str] = {}
    while left:
        answers, ending = _ask(left)
        found |= {path: fault for path, fault in answers.items() if fault}
        left = [path for path in left if path not in answers]
        if left:  # the process ended, or hung, in the first that is not answered
            found[left[0]] = f"{left[0] / 'recipe.py'} {ending}"
            left = left[1:]
    by_place = {path.resolve(): path for path in directories}
    return {by_place[path]: fault for path, fault in found.items()}


def _ask(directories: Sequence[Path]) -> tuple[Mapping[Path, str], str]:
    """The answers of one process, a fault or "" by directory, and how it ended."""
    with tempfile.TemporaryDirectory(prefix="kmem-recipes-") as scratch:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-B", "-m", __name__, *map(str, directories)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
                cwd=scratch,
                env=scrubbed_environment({"HOME": scratch, "TMPDIR": scratch}),
            )
            output, ending = done.stdout, f"ends the process (exit code {done.returncode})"
        except subprocess.TimeoutExpired as ex:
            output, ending = ex.stdout or b"", f"is not imported within {_TIMEOUT_S:g} s"
    answers = {}
    for line in output.decode("utf-8", errors="replace").splitlines():
        try:
            path, fault = json.loads(line)
        except ValueError:
            continue  # cut off in the middle
        answers[Path(path)] = fault
    return answers, ending


def _fault_of(directory: Path) -> str:
    skill, _ = read_skill(directory)
    try:
        if skill is not None:
            load_recipe(skill)
    except SkillError as ex:
        return str(ex)
    return ""


def _main(directories: Sequence[str]) -> None:
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a recipe prints is no answer
    restrict_process(Limits(file_bytes=0), Walls(reads=(str(_KMEM), *directories)))
    for directory in directories:
        line = json.dumps([directory, _fault_of(Path(directory))])
        os.write(answers, f"{line}\n".encode())


if __name__ == "__main__":
    _main(sys.argv[1:])
