"""A question to a process of its own: a module of kmem answers with marked lines of JSON.

What runs a user's model or a kernel on a GPU does so here, so that neither a crash nor the memory
that it took stays with the run. Each line is a whole answer, and the last one counts: what was
known before the time was over is not lost.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from kmem.errors import ExecutorError, first_line
from kmem.memory.location import default_db_path
from kmem.whole.turns import lacks_memory, make_room, of_the_worker

Tell = Callable[[Mapping[str, Any]], None]
Find = Callable[[dict[str, Any], Tell], Mapping[str, Any]]

#: What an answer's line begins with.
_MARK = "kmem answers "
#: How long the pipes of a killed process are read on.
_PIPES_S = 5.0


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
        is_late = False
        try:
            if on_begun is not None:
                on_begun(process)
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            is_late = True
            process.kill()
            stdout, stderr = _left_by(process)
        finally:  # also where this thread is interrupted
            process.kill()
    found = _last_answer(stdout)
    if is_late and found is None:
        raise ExecutorError(f"{module} has not ended within {timeout_s:g} s")
    if found is None or (process.returncode and not is_late):
        said = (stderr.strip().splitlines() or ["no word"])[-1]
        raise ExecutorError(f"{module} ended with {process.returncode}: {said}")
    if "failed" in found:
        raise ExecutorError(found["failed"])
    return found


def _left_by(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a killed process had written; nothing if a child of it keeps the pipes open."""
    try:
        return process.communicate(timeout=_PIPES_S)
    except subprocess.TimeoutExpired:
        return "", ""


def _last_answer(stdout: str) -> dict[str, Any] | None:
    """The last line that is an answer: a model may print, and the last line may be cut off."""
    for line in reversed(stdout.splitlines()):
        if line.startswith(_MARK):
            with suppress(ValueError):
                return dict(json.loads(line.removeprefix(_MARK)))
    return None


def _caches(*below: str) -> dict[str, str]:
    """Where compilers keep what they make: kernels where the judge of each piece compiled them, or
    in a directory below that.
    """
    place = default_db_path().parent.joinpath("cache", *below)
    return {
        "TRITON_CACHE_DIR": str(place / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
    }


def leave_caches_of_kernels() -> None:
    """Have what this process compiles from now on in caches that no judge's worker writes.

    A kernel's could have left there what slows a baseline down.
    """
    if "TRITON_CACHE_DIR" in os.environ:
        os.environ.update(_caches("whole"))


def interpret_as_the_judge() -> None:
    """Where kernels are interpreted, have Triton's interpreter as the judge's workers have it.

    By itself it cuts off what a GPU rounds to bfloat16, among others.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        of_the_worker("interpreting").prepare_interpreter()


def answer(find: Find) -> None:
    """Answer the question in the process's first argument on a line of stdout.

    What ran out of device memory is done once more, after all have given back what they can.

    Args:
        find: is also given whom to tell an answer that stands if there is no time for a better one.
    """
    try:
        found = _answer_of(find, json.loads(sys.argv[1]))
    except Exception as ex:  # noqa: BLE001 - kernels and the user's model may raise anything
        found = {"failed": first_line(ex)}
    _tell(found)


def _answer_of(find: Find, asked: dict[str, Any]) -> Mapping[str, Any]:
    try:
        return find(asked, _tell)
    except RuntimeError as ex:
        if not torch.cuda.is_available() or not lacks_memory(ex):
            raise
    make_room()  # not in the handler, where the error holds what had the memory
    return find(asked, _tell)


def _tell(found: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{_MARK}{json.dumps(found)}\n")
    sys.stdout.flush()
