"""Judging many kernels cheaply: two input families each, a race, and every family for the fastest.

`Judge.screen` tells the verdicts; here is what a kernel goes through, in a worker that has seen no
other, while the next worker comes up. Kernels that this run's own recipes wrote have one worker in
common: their authors' code runs in kmem's own process too, and a worker takes half a second to come
up on a GPU. A kernel that would be the best so far is shown every
family that the final verification shows it, so that no search goes on from a kernel which that
refuses for its values. Answers are kept from kernel to kernel. Without a GPU the verification alone
shows every family: the interpreter takes seconds for each.
"""

import math
from collections.abc import Callable, Sequence

from kmem.measure.examine.cases import check_case
from kmem.measure.examine.examination import Examination, candidate_key
from kmem.measure.examine.loading import load_candidate, unload_candidate
from kmem.measure.examiner import Examiner
from kmem.measure.oracle.answers.expected import Expected
from kmem.measure.oracle.inputs.families import FAMILIES, SCREENING_FAMILIES
from kmem.measure.pool.process import WorkerFailure, WorkerLost, WorkerProcess
from kmem.measure.resources import JudgeResources
from kmem.measure.settings import JudgeSettings
from kmem.measure.timing.gpu_clock import Batch, ClockSettings, LoadedModule, sample_times
from kmem.measure.timing.race import race
from kmem.measure.timing.statistics import summarize_samples, take_steady
from kmem.measure.verdicts import passed_measurement
from kmem.measure.worker.commands import Unload
from kmem.records import Kernel, Measurement, Status, Timing

#: Kernels that are raced together: each has a process on the GPU meanwhile, with memory of its own.
ENTRANTS_AT_ONCE = 4


class Screening:
    """Checks kernels, each in a worker of its own; a `Contest` races them."""

    def __init__(
        self, examiner: Examiner, resources: JudgeResources, settings: JudgeSettings
    ) -> None:
        self._examiner = examiner
        self._resources = resources
        self._settings = settings
        self._cases: dict[tuple[str, str], Expected] = {}  # by workload and family
        self._commons: list[WorkerProcess] = []  # of kernels that recipes wrote; the last one lives
        # the fastest kernel that every family was shown to
        self._best_ms = math.inf

    def close(self) -> None:
        """Let go of the kept answers."""
        self._cases.clear()

    def examine(self, kernel: Kernel, *, in_common: bool = False) -> Measurement | Examination:
        """Show a kernel the problem's own values, and signed ones.

        Args:
            in_common: with a GPU, in the worker that others share who may as well.

        Returns:
            The verdict on one that failed, else the examination; its worker lives on with a GPU.
        """
        if (refused := self._examiner.refuse_source(kernel)) is not None:
            return refused  # before a worker is taken
        is_common = in_common and self._settings.gpu
        worker = self._take_common() if is_common else self._resources.workers.take()
        outcome = self._examiner.examine(kernel, self._check, worker)
        if isinstance(outcome, Measurement) or not self._settings.gpu:
            self.release(kernel, worker)
        return outcome

    def _take_common(self) -> WorkerProcess:
        if not self._commons or not self._commons[-1].alive:
            self._commons.append(self._resources.workers.take())
        return self._commons[-1]

    def _is_common(self, worker: WorkerProcess) -> bool:
        return any(worker is each for each in self._commons)

    def release(self, kernel: Kernel, worker: WorkerProcess) -> None:
        """Have a worker let go of a kernel; one that is nobody else's ends.

        Nobody waits for its end but who wants its device memory.
        """
        resources = self._resources
        if self._is_common(worker) and worker.alive:
            try:
                for workload in (resources.main, "small"):
                    unload = Unload(candidate_key(kernel, workload))
                    worker.request(unload, timeout_s=self._settings.run_timeout_s)
            except (WorkerFailure, WorkerLost):
                resources.workers.discard(worker)
            return
        inputs = resources.reference().inputs
        resources.workers.discard(worker, wait=inputs.is_large(inputs.values))

    def renew(self, entrant: Examination) -> Callable[[Examination], None] | None:
        """The step that loads an entrant again whose worker another kernel has ended, if so."""
        if entrant.worker.alive or not self._is_common(entrant.worker):
            return None
        entrant.worker = self._take_common()
        return lambda examination: load_candidate(examination, self._resources.reference())

    def open_race(
        self, kernels: Sequence[Kernel], is_late: Callable[[], bool], *, verified_next: bool = False
    ) -> "Contest":
        """A race of the kernels of a batch; none has entered.

        Args:
            is_late: whether an entrant that has been timed once is not to be timed again.
            verified_next: what would be the fastest so far is shown what costs next to nothing and
                refuses most, and the rest by the verification that follows.
        """
        contest = Contest(self, self._examiner, self._resources, self._settings, kernels, is_late)
        contest.verified_next = verified_next
        return contest

    def _check(self, examination: Examination) -> None:
        load_candidate(examination, self._resources.reference())
        self._check_families(examination, SCREENING_FAMILIES)

    def refuse_as_best(
        self, kernel: Kernel, entrant: Examination, timing: Timing, *, verified_next: bool = False
    ) -> Measurement | None:
        """The refusal of a kernel that would be the best so far; None if it holds or is slower."""
        if timing.latency_ms >= self._best_ms:
            return None
        is_loaded = entrant.worker.alive and entrant.reference is not None
        if not entrant.worker.alive:
            entrant.worker = self._resources.workers.take()

        def step(examination: Examination) -> None:
            if verified_next:
                self._check_at_small_size(examination)
            else:
                self._check_every_family(examination, entrant, is_loaded=is_loaded)

        outcome = self._examiner.examine(kernel, step, entrant.worker)
        if isinstance(outcome, Measurement):
            return outcome if outcome.status is not Status.INTERRUPTED else None
        entrant.errors += outcome.errors
        if not verified_next:
            self._best_ms = timing.latency_ms
        return None

    def _check_at_small_size(self, examination: Examination) -> None:
        """The step of a kernel that is verified next: a screening's families at the small size.

        That takes a tenth of the verification that refuses it there. Raises Refused.
        """
        if self._resources.has_small:
            load_candidate(examination, self._resources.reference("small"))
            self._check_families(examination, SCREENING_FAMILIES)
            unload_candidate(examination)

    def _check_every_family(
        self, examination: Examination, entrant: Examination, *, is_loaded: bool
    ) -> None:
        """The step of a kernel that would be the best so far: what it has not seen, cheapest first.

        That is every family on the small workload, and on the full one those values that the
        verification shows there. Raises Refused.

        Args:
            entrant: what was found about the kernel so far, on the full workload.
            is_loaded: whether the worker has it loaded for that workload.
        """
        resources = self._resources
        rest = [family for family in FAMILIES if family not in SCREENING_FAMILIES]
        if resources.has_small:
            load_candidate(examination, resources.reference("small"))
            self._check_families(examination, FAMILIES)
            unload_candidate(examination)
            if examination.launches or not entrant.launches:  # else it stepped aside there
                rest = ["large"]
        examination.reference = resources.reference()
        if not is_loaded:
            load_candidate(examination, resources.reference())
        self._check_families(examination, rest)

    def _check_families(self, examination: Examination, families: Sequence[str]) -> None:
        workload = examination.loaded_reference.name
        for family in families:
            seed = self._resources.seed_for("screen", workload, family)
            case = check_case(examination, family, seed, self._cases.get((workload, family)))
            if case is not None and case.is_kept:
                self._cases[workload, family] = case


class Contest:
    """Short timings of the kernels of one batch that passed, most for the fastest. Only with a GPU.

    They are raced a few at a time, so that few processes are on the GPU; the fastest so far keeps
    its worker.
    """

    def __init__(
        self,
        screening: Screening,
        examiner: Examiner,
        resources: JudgeResources,
        settings: JudgeSettings,
        kernels: Sequence[Kernel],
        is_late: Callable[[], bool],
    ) -> None:
        self._screening, self._examiner = screening, examiner
        self._resources, self._settings = resources, settings
        self._kernels = kernels
        self._is_late = is_late
        self.verified_next = False  # what would be the fastest so far
        self._heat: dict[int, Examination] = {}  # by index: passed, and not yet timed
        self._timed: dict[int, tuple[Examination, Timing]] = {}

    def enter(
        self, index: int, examination: Examination, settle: Callable[[int, Measurement], None]
    ) -> None:
        """Take part with a kernel that passed, whose worker has it loaded.

        Args:
            settle: told the verdict on each entrant that fails while it is timed.
        """
        self._heat[index] = examination
        if len(self._heat) >= ENTRANTS_AT_ONCE:
            self._race(settle)

    def finish(self, settle: Callable[[int, Measurement], None]) -> None:
        """Race who is left, and tell the verdicts on all, the fastest first."""
        if self._heat:
            self._race(settle)
        for index in self._ranked():
            entrant, timing = self._timed[index]
            refusal = None
            if not self._is_late():
                refusal = self._screening.refuse_as_best(
                    self._kernels[index], entrant, timing, verified_next=self.verified_next
                )
            passed = passed_measurement(entrant, timing, {}, estimated=False)
            settle(index, refusal or passed)
            self._screening.release(self._kernels[index], entrant.worker)

    def _ranked(self) -> list[int]:
        return sorted(self._timed, key=lambda index: self._timed[index][1].latency_ms)

    def _race(self, settle: Callable[[int, Measurement], None]) -> None:
        inputs = self._resources.timed_inputs()
        l2_bytes = self._resources.traced.device.l2_bytes
        clock = ClockSettings(l2_bytes, self._settings.run_timeout_s)
        running = {str(index): examination for index, examination in self._heat.items()}
        self._heat = {}
        begun: set[str] = set()

        def sample(name: str, count: int) -> list[float] | None:
            if self._is_late() and name in begun:
                return []
            taken: list[float] = []
            load = self._screening.renew(running[name])

            def step(examination: Examination) -> None:
                if load is not None:
                    load(examination)
                inputs.show(examination.worker)
                inputs.refresh(examination.worker)
                names = inputs.names(examination.worker)
                entrant = LoadedModule(examination.worker, running[name].key)
                batch = Batch(names, count, warmup=1)
                taken.extend(take_steady(lambda: sample_times(entrant, batch, clock).event_ms))
                begun.add(name)

            outcome = self._examiner.examine(self._kernels[int(name)], step, running[name].worker)
            if isinstance(outcome, Measurement):
                settle(int(name), outcome)
                self._screening.release(self._kernels[int(name)], running[name].worker)
            return None if isinstance(outcome, Measurement) else taken

        self._resources.workers.wait_for_spare()
        # for the whole race at once: to get the GPU alone may take long
        with self._resources.hold_gpu("racing", exclusive=True), inputs.while_timing():
            raced = race(list(running), sample)
        for name, samples in raced.items():
            self._timed[int(name)] = running[name], summarize_samples(samples)
        for index in self._ranked()[1:]:
            entrant = self._timed[index][0]
            self._screening.release(self._kernels[index], entrant.worker)
            entrant.reference = None  # not loaded any more, though its worker may live on
