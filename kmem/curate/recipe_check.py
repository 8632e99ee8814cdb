"""Whether the code of skills can be imported, found out without trusting it.

The code of a skill that nobody has used yet may do anything. It runs in a process that has given up
what the judge's workers give up: no network, no signals, no files but Python's, kmem's and the
skills' own, no secrets in its environment, a directory of its own. This module is that process too.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kmem.errors import SkillError
from kmem.host.confinement import Limits, Walls, restrict_process
from kmem.host.environment import scrubbed_environment
from kmem.skills import code_files, load_recipe, load_rewrite, read_skill

#: kmem's own modules, which recipes import.
_KMEM = Path(__file__).resolve().parents[1]
#: One recipe takes some tenths of a second, most of it for the first.
_TIMEOUT_S = 60.0


def recipe_faults(directories: Sequence[Path]) -> dict[Path, str]:
    """What is wrong with the code of these skill directories: what cannot be imported.

    A directory without code, or without a SKILL.md that can be read, has no such fault.
    """
    return ask_confined(__name__, [path for path in directories if code_files(path)])


def ask_confined(
    module: str, directories: Sequence[Path], *, timeout_s: float = _TIMEOUT_S
) -> dict[Path, str]:
    """What a module, run as a confined process, finds wrong with each of these directories.

    Args:
        module: its main program is `answer_confined`.
        timeout_s: for all directories that one process gets to.
    """
    left = [path.resolve() for path in directories]
    found: dict[Path, str] = {}
    while left:
        answers, ending = _ask(module, left, timeout_s)
        found |= {path: fault for path, fault in answers.items() if fault}
        left = [path for path in left if path not in answers]
        if left:  # the process ended, or hung, in the first that is not answered
            found[left[0]] = f"{code_files(left[0])[-1]} {ending}"
            left = left[1:]
    by_place = {path.resolve(): path for path in directories}
    return {by_place[path]: fault for path, fault in found.items()}


def _ask(
    module: str, directories: Sequence[Path], timeout_s: float
) -> tuple[Mapping[Path, str], str]:
    """The answers of one process, a fault or "" by directory, and how it ended."""
    with tempfile.TemporaryDirectory(prefix="kmem-recipes-") as scratch:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-B", "-m", module, *map(str, directories)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
                cwd=scratch,
                env=scrubbed_environment({"HOME": scratch, "TMPDIR": scratch}),
            )
            output, ending = done.stdout, f"ends the process (exit code {done.returncode})"
        except subprocess.TimeoutExpired as ex:
            output, ending = ex.stdout or b"", f"does not answer within {timeout_s:g} s"
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
            load_rewrite(skill)
    except SkillError as ex:
        return str(ex)
    return ""


def answer_confined(directories: Sequence[str], fault_of: Callable[[Path], str]) -> None:
    """Give up what a confined process may not have, then print an answer for each directory.

    Args:
        fault_of: what is wrong with a directory; "" if nothing is.
    """
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a recipe prints is no answer
    restrict_process(Limits(file_bytes=0), Walls(reads=(str(_KMEM), *directories)))
    for directory in directories:
        line = json.dumps([directory, fault_of(Path(directory))])
        os.write(answers, f"{line}\n".encode())


if __name__ == "__main__":
    answer_confined(sys.argv[1:], _fault_of)
