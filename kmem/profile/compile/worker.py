"""The process that compiles kernels without a GPU: one JSON line in per kernel, one JSON line out.

Started by process.py only, which names the places where it may write. It is confined as the judge's
workers are, before torch is imported; the files that it may read are fewer from the first problem
on, whose directory is among them.

A line with a problem sets it up (session.py); the kernels that follow are of that problem, until
the next one. A candidate's file is imported, its module and inputs are built on the meta device,
and one forward runs in which every Triton launch becomes a compilation for the target and every
vendor operator only computes shapes (recorder.py). Launches of `triton.autotune` kernels compile
their first configuration: choosing among them needs a GPU.

Covered: anything a candidate can raise or print. Not covered: a candidate that patches torch or
triton for those after it in this process; its figures are estimates for ranking and never a
verdict.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kmem.host.confinement import Limits, Walls, restrict_files, restrict_process
from kmem.host.project_modules import imported_directories

if TYPE_CHECKING:
    from kmem.profile.compile.session import CompileSession

#: Longest text kept of a compiler's or a candidate's error.
LOG_LIMIT = 4000
_KMEM = str(Path(__file__).resolve().parents[2])


def serve(
    requests: TextIO,
    answers: TextIO,
    make_session: "type[CompileSession]",
    writes: tuple[str, ...],
) -> None:
    """Answer each line with one line: a set-up line first, then kernels of that problem.

    The loop ends where a problem cannot be set up. Before the answer about a kernel there may be a
    line that asks for more cores, which is answered by how many there are.

    Args:
        writes: the places where this process may write.
    """
    session: CompileSession | None = None

    def ask_for_cores(wanted: int) -> int:
        _answer(answers, {"wanted_cores": wanted})
        return json.loads(next(requests))["cores"]

    for line in requests:
        request = json.loads(line)
        if "problem" in request:
            if session is not None:
                session.close()
            else:
                path, source = request["problem"]["path"], request["problem"]["source"]
                place = os.path.dirname(path)
                reads = (*([place] if place else []), *imported_directories(source, path))
                restrict_files(Walls((*writes, *reads), writes, _KMEM))
            try:
                session = make_session(request)
            # the problem's own code runs here and may raise anything; the parent reports it
            except Exception:  # noqa: BLE001
                _answer(answers, {"status": "failed", "log": _shorten(traceback.format_exc())})
                return
            _answer(answers, {"status": "ready"})
            continue
        start = time.monotonic()
        try:
            ptx_hash = session.compile(request["source"], ask_for_cores)
            told = ("name", "products", "identity", "arguments", "constants")
            first = [
                {name: launch[name] for name in told}
                for launch in session.first_launches
                if "products" in launch
            ]
            answer = {"status": "ok", "log": "", "ptx_hash": ptx_hash, "first": first}
        # a candidate may raise anything, SystemExit and KeyboardInterrupt included: its report
        except BaseException as ex:  # noqa: BLE001
            answer = {
                "status": "needs_values" if _needs_values(ex) else "failed",
                "log": _shorten(traceback.format_exc()),
            }
        _answer(
            answers, {**answer, "launches": session.launches, "seconds": time.monotonic() - start}
        )


def _needs_values(ex: BaseException) -> bool:
    """Whether a forward stopped only because meta tensors hold no data.

    Source: messages of torch 2.11-2.13 for item(), copies and missing Meta kernels.
    """
    return isinstance(ex, RuntimeError | NotImplementedError) and any(
        text in str(ex)
        for text in ("meta tensor", "Meta tensor", "'Meta' backend", "DataDependent")
    )


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _shorten(text: str) -> str:
    if len(text) <= LOG_LIMIT:
        return text
    return f"{text[: LOG_LIMIT // 4]}\n[...]\n{text[-LOG_LIMIT * 3 // 4 :]}"


def _end_with(parent: int) -> None:
    """Kill this process and its children (ptxas) once the parent is gone.

    A run that was killed must not leave compilers behind.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(0, signal.SIGKILL)


def main(writes: tuple[str, ...]) -> None:
    """Confine this process, import what compiling takes, and serve."""
    restrict_process(Limits(), Walls(("/",), writes))
    gc.disable()  # what is imported stays: a sixth of the time went into looking for garbage in it
    # imported in here: what a process gives up is given up before torch starts threads
    from kmem.profile.compile.session import CompileSession

    gc.freeze()
    gc.enable()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # A candidate that prints must not write into the answers: they get the real stdout under
    # another number, stdout becomes stderr.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, channel, CompileSession, writes)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
