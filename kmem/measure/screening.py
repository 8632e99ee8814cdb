"""Judging many kernels cheaply: two input families each, then a race of those that pass.

`Judge.screen` tells the verdicts; here is what a kernel goes through. Answers to the two cases are
kept from kernel to kernel.
"""

from collections.abc import Callable, Mapping, Sequence

from kmem.measure.examine.cases import check_case
from kmem.measure.examine.examination import Examination
from kmem.measure.examine.loading import load_candidate, unload_candidate
from kmem.measure.examiner import Examiner
from kmem.measure.oracle.expected import Expected
from kmem.measure.oracle.families import SCREENING_FAMILIES
from kmem.measure.resources import JudgeResources
from kmem.measure.settings import JudgeSettings
from kmem.measure.timing.gpu_clock import Batch, ClockSettings, LoadedModule, sample_times
from kmem.measure.timing.race import race
from kmem.measure.timing.statistics import summarize_samples
from kmem.measure.verdicts import passed_measurement
from kmem.records import Kernel, Measurement


class Screening:
    """Checks kernels in the screening worker, and races them."""

    def __init__(
        self, examiner: Examiner, resources: JudgeResources, settings: JudgeSettings
    ) -> None:
        self._examiner = examiner
        self._resources = resources
        self._settings = settings
        self._cases: dict[str, Expected] = {}

    def close(self) -> None:
        """Let go of the kept answers."""
        self._cases.clear()

    def check(self, examination: Examination) -> None:
        """The step of one kernel: the problem's own values, and signed ones. Raises Refused."""
        load_candidate(examination, self._resources.reference())
        for family in SCREENING_FAMILIES:
            seed = self._resources.seed_for("screen", family)
            case = check_case(examination, family, seed, self._cases.get(family))
            if case is not None and case.is_kept:
                self._cases[family] = case
        if not self._settings.gpu:
            unload_candidate(examination)

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
        for name, samples in raced.items():
            timing = summarize_samples(samples)
            settle(int(name), passed_measurement(running[name], timing, {}, estimated=False))
        for examination in running.values():
            if self._resources.is_screening(examination.worker):
                unload_candidate(examination)
