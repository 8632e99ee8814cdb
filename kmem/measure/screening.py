"""Judging many kernels cheaply: two input families each, a race, and every family for the fastest.

`Judge.screen` tells the verdicts; here is what a kernel goes through. A kernel that would be the
best so far is shown every family that the final verification shows it, so that no search goes on
from a kernel which that refuses for its values. Answers are kept from kernel to kernel. Without a
GPU the verification alone shows every family: the interpreter takes seconds for each.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from kmem.measure.examine.cases import check_case
from kmem.measure.examine.examination import Examination
from kmem.measure.examine.loading import load_candidate, unload_candidate
from kmem.measure.examiner import Examiner
from kmem.measure.oracle.expected import Expected
from kmem.measure.oracle.families import FAMILIES, SCREENING_FAMILIES
from kmem.measure.resources import JudgeResources
from kmem.measure.settings import JudgeSettings
from kmem.measure.timing.gpu_clock import Batch, ClockSettings, LoadedModule, sample_times
from kmem.measure.timing.race import race
from kmem.measure.timing.statistics import summarize_samples
from kmem.measure.verdicts import passed_measurement
from kmem.records import Kernel, Measurement, Status, Timing


class Screening:
    """Checks kernels in the screening worker, and races them."""

    def __init__(
        self, examiner: Examiner, resources: JudgeResources, settings: JudgeSettings
    ) -> None:
        self._examiner = examiner
        self._resources = resources
        self._settings = settings
        self._cases: dict[tuple[str, str], Expected] = {}  # by workload and family
        # the fastest kernel that every family was shown to
        self._best_ms = math.inf

    def close(self) -> None:
        """Let go of the kept answers."""
        self._cases.clear()

    def check(self, examination: Examination) -> None:
        """The step of one kernel: the problem's own values, and signed ones. Raises Refused."""
        load_candidate(examination, self._resources.reference())
        self._check_families(examination, SCREENING_FAMILIES)
        if not self._settings.gpu:
            unload_candidate(examination)

    def check_every_family(self, examination: Examination, entrant: Examination) -> None:
        """The step of a kernel that would be the best so far: what it has not seen, cheapest first.

        That is every family on the small workload, and on the full one those values that the
        verification shows there. Raises Refused.

        Args:
            entrant: what was found about the kernel so far, on the full workload.
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
        if examination.worker is not entrant.worker:
            load_candidate(examination, resources.reference())
        self._check_families(examination, rest)

    def _check_families(self, examination: Examination, families: Sequence[str]) -> None:
        workload = examination.loaded_reference.name
        for family in families:
            seed = self._resources.seed_for("screen", workload, family)
            case = check_case(examination, family, seed, self._cases.get((workload, family)))
            if case is not None and case.is_kept:
                self._cases[workload, family] = case

    def race(
        self,
        kernels: Sequence[Kernel],
        entrants: Mapping[int, Examination],
        is_late: Callable[[], bool],
        settle: Callable[[int, Measurement], None],
    ) -> None:
        """Short timings of the kernels that passed, most for the fastest. Only with a GPU.

        Args:
            entrants: the examinations of the kernels that passed, by index.
            is_late: whether an entrant that has been timed once is not to be timed again.
            settle: told the verdict on each; an entrant that fails here drops out with its status.
        """
        inputs = self._resources.timed_inputs()
        l2_bytes = self._resources.traced.device.l2_bytes
        clock = ClockSettings(l2_bytes, self._settings.run_timeout_s)
        running = {str(index): examination for index, examination in entrants.items()}
        timed: set[str] = set()

        def sample(name: str, count: int) -> list[float] | None:
            if is_late() and name in timed:
                return []
            taken: list[float] = []

            def step(examination: Examination) -> None:
                inputs.show(examination.worker)
                # an entrant brought the worker down: load this one again
                if running[name].worker is not examination.worker:
                    load_candidate(examination, self._resources.reference())
                    examination.errors = running[name].errors
                    running[name] = examination
                inputs.refresh(examination.worker)
                names = inputs.names(examination.worker)
                entrant = LoadedModule(examination.worker, running[name].key)
                taken.extend(sample_times(entrant, Batch(names, count, warmup=1), clock).event_ms)
                timed.add(name)

            outcome = self._examiner.examine(kernels[int(name)], step)
            if isinstance(outcome, Measurement):
                settle(int(name), outcome)
            return None if isinstance(outcome, Measurement) else taken

        # for the whole race at once: to get the GPU alone may take long
        with self._resources.hold_gpu(exclusive=True), inputs.while_timing():
            raced = race(list(running), sample)
        timings = {name: summarize_samples(samples) for name, samples in raced.items()}
        for name in sorted(timings, key=lambda name: timings[name].latency_ms):
            kernel, entrant = kernels[int(name)], running[name]
            refusal = None if is_late() else self._refuse_as_best(kernel, entrant, timings[name])
            passed = passed_measurement(entrant, timings[name], {}, estimated=False)
            settle(int(name), refusal or passed)
        for examination in running.values():
            if self._resources.is_screening(examination.worker):
                unload_candidate(examination)

    def _refuse_as_best(
        self, kernel: Kernel, entrant: Examination, timing: Timing
    ) -> Measurement | None:
        """The refusal of a kernel that would be the best so far; None if it holds or is slower."""
        if timing.latency_ms >= self._best_ms:
            return None
        outcome = self._examiner.examine(
            kernel, lambda examination: self.check_every_family(examination, entrant)
        )
        if isinstance(outcome, Measurement):
            return outcome if outcome.status is not Status.INTERRUPTED else None
        entrant.errors += outcome.errors
        self._best_ms = timing.latency_ms
        return None
