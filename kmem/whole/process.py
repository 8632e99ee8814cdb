"""A question to a process of its own: a module of kmem answers with one line of JSON.

What runs a user's model or a kernel on a GPU does so here, so that neither a crash nor the memory
that it took stays with the run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kmem.errors import ExecutorError, first_line

_WORKER = Path(__file__).parent.parent / "measure" / "worker"


def ask(
    module: str,
    question: Mapping[str, Any],
    *,
    gpu: bool,
    timeout_s: float,
    on_begun: Callable[[subprocess.Popen[str]], None] | None = None,
) -> dict[str, Any]:
    """The answer of `python -m module`, which calls `answer`.

    Args:
        gpu: whether kernels run there; else in Triton's interpreter.
        on_begun: given the process, which another thread may end.

    Raises ExecutorError: if there is none, with what was said last.
    """
    # a kernel that does not take what it is given must not hide behind what it replaces
    environment = {**os.environ, "KMEM_STRICT": "1"}
    environment.pop("TRITON_INTERPRET", None)
    if not gpu:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", module, json.dumps(question)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            if on_begun is not None:
                on_begun(process)
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as ex:
            raise ExecutorError(f"{module} has not ended within {timeout_s:g} s") from ex
        finally:  # also where this thread is interrupted
            process.kill()
    lines = stdout.strip().splitlines()
    if process.returncode or not lines:
        said = (stderr.strip().splitlines() or ["no word"])[-1]
        raise ExecutorError(f"{module} ended with {process.returncode}: {said}")
    found = json.loads(lines[-1])
    if "failed" in found:
        raise ExecutorError(found["failed"])
    return dict(found)


def interpret_as_the_judge() -> None:
    """Where kernels are interpreted, have Triton's interpreter as the judge's workers have it.

    By itself it cuts off what a GPU rounds to bfloat16, among others.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.path.append(str(_WORKER))
        from interpreting import prepare_interpreter  # of the worker, which has no package

        prepare_interpreter()


def answer(find: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Answer the question in the process's first argument on the last line of stdout."""
    try:
        found: Mapping[str, Any] = find(json.loads(sys.argv[1]))
    except Exception as ex:  # noqa: BLE001 - kernels and the user's model may raise anything
        found = {"failed": first_line(ex)}
    sys.stdout.write(f"\n{json.dumps(found)}\n")
