"""The user's own test of a kernel: a further check of a final verdict, never instead of another.

The test is a file for pytest, or a script that exits with 0 where the kernel is good. It runs in a
process of its own behind the walls that candidates live behind, in a directory with the candidate
as kernel.py and the problem as problem.py: `from kernel import ModelNew`. Without a GPU Triton's
interpreter runs the kernel, so that a test wants small sizes there.

Covered: a test that fails, hangs, or prints without end. Not covered: a kernel that spoils the test
from within its process; for that there are the other checks.
"""

import ast
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import kmem
from kmem.errors import CaseError
from kmem.host.confinement import Limits, Walls
from kmem.host.environment import scrubbed_environment
from kmem.host.process_group import kill_group
from kmem.host.project_modules import imported_directories
from kmem.host.syntax import parse_python
from kmem.records import Kernel, Problem, UserTest

#: In the interpreter a forward of a small workload takes seconds.
TIMEOUT_S = 300.0
#: Of what a test printed, the end is told.
_TOLD_LINES, _TOLD_CHARACTERS = 12, 2_000
_KMEM = str(Path(kmem.__file__).resolve().parent)


def read_user_test(path: Path) -> UserTest:
    """Read a test file, and find out what runs it.

    Raises CaseError: if it cannot be read, is no Python, or wants pytest where there is none.
    """
    try:
        source = path.read_text(encoding="utf-8")
        tree = parse_python(source, filename=str(path))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as ex:
        raise CaseError(
            f"The test {path} cannot be read: {ex}; mend it or leave --test out"
        ) from ex
    is_pytest = any(
        (isinstance(node, ast.FunctionDef) and node.name.startswith("test"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in tree.body
    )
    if is_pytest and find_spec("pytest") is None:
        raise CaseError(f"The test {path} is one for pytest, which is not here; pip install pytest")
    return UserTest(str(path.resolve()), source, is_pytest)


def run_user_test(
    test: UserTest, kernel: Kernel, problem: Problem, *, gpu: bool, timeout_s: float = TIMEOUT_S
) -> str:
    """Run a test on a kernel; why it fails, or nothing if it passes."""
    name = Path(test.path).name
    with tempfile.TemporaryDirectory(prefix="kmem-test-", ignore_cleanup_errors=True) as made:
        place = Path(made).resolve()
        for file, text in (
            ("kernel.py", kernel.source),
            ("problem.py", problem.source),
            (name, test.source),
        ):
            (place / file).write_text(text, encoding="utf-8")
        reads = [
            *imported_directories(test.source, test.path),
            *imported_directories(problem.source, problem.path),
        ]
        walls = Walls((str(place), *reads), (str(place),), _KMEM, gpu=gpu)
        limits = Limits(address_bytes=0) if gpu else Limits()
        order = {
            "walls": asdict(walls),
            "limits": asdict(limits),
            "file": name,
            "is_pytest": test.is_pytest,
            "imports": reads,
        }
        own = {} if gpu else {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (place / "said.txt").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kmem.measure.user_test_process", json.dumps(order)],
                cwd=place,
                env=scrubbed_environment(own),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"your test {name} did not end within {timeout_s:.0f} s"
        finally:
            kill_group(process.pid)  # with what the test or the kernel has left behind
            process.wait()
        if code == 0:
            return ""
        said = (place / "said.txt").read_text(encoding="utf-8", errors="replace")
    end = "\n".join(said.strip().splitlines()[-_TOLD_LINES:])[-_TOLD_CHARACTERS:]
    return f"your test {name} fails (exit code {code}):\n{end}"
