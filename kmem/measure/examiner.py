"""Takes a kernel through steps of an examination: whatever goes wrong with it becomes a verdict.

In order: source checks, a worker, the steps that the judge asks for, and the status of what went
wrong. What runs out of device memory beside others is tried once more alone, and counts then.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeGuard

import torch

from kmem.measure.examine.examination import CUT_OFF, Examination, Refused
from kmem.measure.oracle.running.forward import room_for
from kmem.measure.pool.process import WorkerFailure, WorkerLost, WorkerProcess, failure_status
from kmem.measure.resources import JudgeResources
from kmem.measure.settings import JudgeSettings
from kmem.measure.shortage import describe_neighbours
from kmem.measure.source_check import check_source
from kmem.measure.timing.gpu_clock import ClocksDisagree
from kmem.measure.verdicts import failed_measurement
from kmem.measure.worker.commands import Forget
from kmem.records import Kernel, Measurement, Status

#: The interpreter may take seconds a run; processor time, so that a busy machine costs no verdict.
INTERPRETER_BUDGET_S = 300.0


class Examiner:
    """Examines kernels of one judge, one at a time."""

    def __init__(
        self,
        resources: JudgeResources,
        settings: JudgeSettings,
        seconds_left: Callable[[], float] | None = None,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing runs yet.

        Args:
            seconds_left: until what is under way is cut off; None for no such limit.
            is_shared: whether others have device memory of the GPU by now.
        """
        self._resources = resources
        self._is_shared = is_shared
        self._settings = settings
        self._seconds_left = seconds_left or (lambda: math.inf)
        self._problem = resources.traced.problem
        # by source: each step of a kernel asks
        self._refused: dict[str, tuple[Status, list[str]]] = {}

    @contextmanager
    def within(self, seconds_left: Callable[[], float]) -> Iterator[None]:
        """Meanwhile cut off what is under way at an earlier end, where there is a limit at all."""
        before = self._seconds_left
        if not math.isinf(before()):
            self._seconds_left = lambda: min(before(), seconds_left())
        try:
            yield
        finally:
            self._seconds_left = before

    def examine(
        self,
        kernel: Kernel,
        step: Callable[[Examination], None],
        worker: WorkerProcess,
    ) -> Measurement | Examination:
        """Run one step on a kernel, and if it runs out of memory beside others once more alone.

        Args:
            worker: one that has seen no other candidate.

        Returns:
            The examination, or the verdict on a kernel that failed.
        """
        if (refused := self.refuse_source(kernel)) is not None:
            return refused
        outcome = self._try(kernel, step, worker)
        if not _lacks_memory(outcome) or not self._is_shared():
            return outcome

        def step_again(examination: Examination) -> None:
            worker.request(Forget(), timeout_s=examination.run_timeout_s)
            step(examination)

        with self._resources.hold_gpu_with_room("out of memory, tried again"):
            outcome = self._try(kernel, step_again, worker)
            if not _lacks_memory(outcome):
                return outcome
            total_bytes = self._resources.traced.device.memory_bytes
            own_bytes = torch.cuda.memory_allocated()
        others = describe_neighbours(outcome.log, own_bytes, total_bytes)
        return replace(outcome, status=Status.INTERRUPTED, log=others) if others else outcome

    def _try(
        self, kernel: Kernel, step: Callable[[Examination], None], worker: WorkerProcess
    ) -> Measurement | Examination:
        settings = self._settings
        examination = Examination(
            kernel,
            worker,
            self._resources.traced.contract,
            settings.load_timeout_s,
            settings.run_timeout_s,
            self._resources.lease,
            budget_s=None if settings.gpu else INTERPRETER_BUDGET_S,
            seconds_left=self._seconds_left,
        )
        try:
            self._resources.try_on_cpu()
            with self._resources.hold_gpu("screening", exclusive=False), room_for(self._problem):
                step(examination)
        except Refused as ex:
            return self._failed(ex.status, str(ex), examination)
        except ClocksDisagree as ex:
            return self._failed(Status.IMPLAUSIBLE, str(ex), examination)
        except WorkerFailure as ex:
            status = failure_status(ex)
            # mostly sticky: nothing else will run in this context
            is_cuda = "CUDA error" in ex.message or "Error [CUDA]" in ex.message
            if is_cuda and status is not Status.OUT_OF_MEMORY:
                self._resources.workers.discard(examination.worker)
            return self._failed(status, f"{ex}\n{ex.traceback}", examination)
        except WorkerLost as ex:
            self._resources.workers.discard(examination.worker)
            if ex.status is Status.TIMED_OUT and self._seconds_left() <= 0:
                return self._failed(Status.INTERRUPTED, CUT_OFF, examination)
            return self._failed(ex.status, str(ex), examination)
        return examination

    def refuse_source(self, kernel: Kernel) -> Measurement | None:
        """The verdict on a file that is not run at all; None for any other."""
        if kernel.source not in self._refused:
            try:
                self._refused[kernel.source] = Status.REFUSED_SOURCE, self._refusals(kernel.source)
            except (SyntaxError, ValueError) as ex:
                self._refused[kernel.source] = Status.BUILD_FAILED, [f"not valid Python: {ex}"]
        status, reasons = self._refused[kernel.source]
        return self._failed(status, "\n".join(reasons)) if reasons else None

    def _refusals(self, source: str) -> list[str]:
        """What the source checks say, one line each. Raises SyntaxError."""
        found = [
            str(refusal) for refusal in check_source(source, problem_source=self._problem.source)
        ]
        return found + [
            f"{checker.name}: {reason}"
            for checker in self._settings.checkers
            for reason in checker.check(source)
        ]

    def _failed(
        self, status: Status, log: str, examination: Examination | None = None
    ) -> Measurement:
        return failed_measurement(status, log, examination, estimated=not self._settings.gpu)


def _lacks_memory(outcome: Measurement | Examination) -> TypeGuard[Measurement]:
    return isinstance(outcome, Measurement) and outcome.status is Status.OUT_OF_MEMORY
