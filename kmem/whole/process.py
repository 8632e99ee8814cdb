"""A question to a process of its own: a module of kmem answers with lines of JSON, each whole.

What runs a user's model or a kernel on a GPU does so here, so that neither a crash nor the memory
that it took stays with the run. The last line counts: what was known before the time was over is
not lost.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kmem.errors import ExecutorError, first_line
from kmem.memory.location import default_db_path
from kmem.whole.turns import gpu_with_room, lacks_memory, of_the_worker

Tell = Callable[[Mapping[str, Any]], None]


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
    if gpu:
        environment |= _caches()
    else:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", module, json.dumps(question)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            if on_begun is not None:
                on_begun(process)
            stdout, stderr = process.communicate(timeout=timeout_s)
            is_late = False
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            stdout = stdout[: stdout.rfind("\n") + 1]  # it may have been ended in a line
            is_late = True
        finally:  # also where this thread is interrupted
            process.kill()
    lines = stdout.strip().splitlines()
    if is_late and not lines:
        raise ExecutorError(f"{module} has not ended within {timeout_s:g} s")
    if (process.returncode and not is_late) or not lines:
        said = (stderr.strip().splitlines() or ["no word"])[-1]
        raise ExecutorError(f"{module} ended with {process.returncode}: {said}")
    found = json.loads(lines[-1])
    if "failed" in found:
        raise ExecutorError(found["failed"])
    return dict(found)


def _caches() -> dict[str, str]:
    """Where compilers find what they made before: kernels for the judge of each piece, and the
    model's compiled forms for its baselines.
    """
    cache = default_db_path().parent / "cache"
    return {
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "baseline" / "inductor"),
    }


def leave_caches_of_kernels() -> None:
    """Have what this process compiles from now on in caches that no kernel's process writes.

    A kernel's could have left there what slows a baseline down.
    """
    if "TRITON_CACHE_DIR" in os.environ:
        clean = default_db_path().parent / "cache" / "baseline" / "triton"
        os.environ["TRITON_CACHE_DIR"] = str(clean)


def interpret_as_the_judge() -> None:
    """Where kernels are interpreted, have Triton's interpreter as the judge's workers have it.

    By itself it cuts off what a GPU rounds to bfloat16, among others.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        of_the_worker("interpreting").prepare_interpreter()


def answer(find: Callable[[dict[str, Any], Tell], Mapping[str, Any]]) -> None:
    """Answer the question in the process's first argument on the last line of stdout.

    What ran out of device memory beside others is done once more with the GPU alone.

    Args:
        find: is also given whom to tell an answer that stands if there is no time for a better one.
    """
    try:
        found = _found(find, json.loads(sys.argv[1]))
    except Exception as ex:  # noqa: BLE001 - kernels and the user's model may raise anything
        found = {"failed": first_line(ex)}
    _tell(found)


def _found(
    find: Callable[[dict[str, Any], Tell], Mapping[str, Any]], asked: dict[str, Any]
) -> Mapping[str, Any]:
    try:
        return find(asked, _tell)
    except RuntimeError as ex:
        if not lacks_memory(ex):
            raise
    with gpu_with_room():  # not in the handler, where the error holds what had the memory
        return find(asked, _tell)


def _tell(found: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    sys.stdout.flush()
