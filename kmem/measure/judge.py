"""The judge: verdicts on kernels, and times worth comparing.

The loop and `kmem verify` talk to this class alone. It owns the reference, the inputs, the seeds
and the clock (resources.py, oracle/, timing/); kernels run in workers (pool/, worker/) and are held
to the reference check by check (examiner.py, examine/).

Order of work in `Judge.verify`: source check, fresh worker, state, repeats, provenance, all input
families, layouts and other sizes, paired timing with spots of every timed result, floor, one more
check on fresh inputs after the timing, bundle.

Covered: candidates that compute the wrong thing, that compute it elsewhere or at another time, that
hang, crash or leak, and that patch what they are observed with. A result is read inside the
observed and timed call; oracle and eager work on draws that no worker maps, and baselines have
memory of their own; what a candidate replaces or leaves running ends its verdict; the text that was
checked is the text that runs. Workers and the compile process are confined
(kmem/host/confinement.py; `kmem doctor` says which walls hold here).

Only made dearer, not closed:

- Code that gets past the source check and rewrites its own worker from inside (other memory of the
  process, or the check of what was replaced itself). It could claim false operators, and false
  times down to the physical floor and to a third of what the judge's own clock saw, but not false
  values, which are compared here.
- Large inputs on a GPU: there is no room for a private copy. The oracle is computed piece by piece
  from copies that are held to the bits that the candidate was given.
- A worker on a GPU may open /dev/shm and connect to the driver's services; screened candidates
  share a worker, and all share a cache of compiled kernels. Baselines have one of their own.
- The program that a GPU profiler watches is not confined: profilers reach into it from outside.
- Purity: a kernel that only copies is told from one that computes, not from one that multiplies by
  one; what the library computed for it is seen as operators, readings of values, or threads.
- A candidate that goes wrong after a time, that knows problems by name, or in a narrow window of
  values.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kmem.errors import EvidenceError
from kmem.host.lease import gpu_uuid
from kmem.host.memory_share import MemoryShare
from kmem.measure.bundle import write_bundle
from kmem.measure.examine.cases import check_case, check_families
from kmem.measure.examine.examination import Examination
from kmem.measure.examine.loading import load_candidate, release_outputs
from kmem.measure.examine.provenance import check_all_runs, check_provenance
from kmem.measure.examine.repeats import check_repeats, check_state
from kmem.measure.examine.variants import check_variants
from kmem.measure.examiner import Examiner
from kmem.measure.oracle.families import FAMILIES, SCREENING_FAMILIES
from kmem.measure.oracle.forward import room_for
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.resources import JudgeResources, open_lease
from kmem.measure.screening import Screening
from kmem.measure.settings import JudgeSettings
from kmem.measure.stopwatch import time_against_best
from kmem.measure.timing.baseline import COMPILE_MODES, time_baseline
from kmem.measure.timing.gpu_clock import LoadedModule
from kmem.measure.timing.statistics import estimated_timing
from kmem.measure.verdicts import failed_measurement, make_bundle, passed_measurement
from kmem.problem.traced import TracedProblem
from kmem.records import Baseline, Kernel, Measurement, Status, Timing, fastest_baseline

#: Device memory a judge asks for, over the bytes the problem must move: copies of inputs and
#: outputs, here, in workers and in a baseline.
_ROOM_RATIO = 4


class Judge:
    """Judges kernels for one problem on one device under one contract.

    A context manager; `close` ends every worker.
    """

    def __init__(
        self,
        traced: TracedProblem,
        settings: JudgeSettings,
        *,
        estimate_ms: Callable[[Kernel], float] | None = None,
        workers: WorkerPool | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing runs yet; workers and the reference are made when first needed.

        Args:
            traced: the graphs are not used and may be left out. The time of the bound, at measured
                ceilings, is the physical floor.
            estimate_ms: predicts a latency where there is no GPU; required there.
            workers: processes to use instead of own ones; closed with the judge.
            on_event: told in a few words what is being done.

        Raises:
            ValueError: without a GPU and without estimate_ms.
            ExecutorError: if work_dir or cache_dir cannot be written.
        """
        if not settings.gpu and estimate_ms is None:
            raise ValueError(
                "a judge without a GPU needs estimate_ms: a passed measurement has a timing"
            )
        self._traced = traced
        self._settings = settings
        self._estimate_ms = estimate_ms
        self._on_event = on_event or (lambda text: None)
        settings.work_dir.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="judge-", dir=settings.work_dir))
        self._workers = workers or WorkerPool(
            directory,
            "cuda:0" if settings.gpu else "cpu",
            settings.cache_dir,
            keep_spare=settings.gpu and settings.keep_spare,
        )
        # of the GPU, for others who take turns with this judge
        self.locks = settings.cache_dir / "locks"
        lease = open_lease(self.locks, self._on_event) if settings.gpu else None
        self._memory_share: MemoryShare | None = None
        if settings.gpu:
            self._memory_share = MemoryShare(
                self.locks, gpu_uuid(), traced.device.memory_bytes, self._on_event
            )
        self._waited_for_memory_s = 0.0
        self._resources = JudgeResources(
            traced,
            seed=settings.seed,
            directory=directory,
            workers=self._workers,
            lease=lease,
            on_event=self._on_event,
        )
        self._examiner = Examiner(self._resources, settings)
        self._screening = Screening(self._examiner, self._resources, settings)

    def open(self) -> "Judge":
        """Wait for room on the GPU, and start a worker ahead of need."""
        if self._memory_share is not None:
            bound = self._traced.bound
            self._waited_for_memory_s = self._memory_share.acquire(
                _ROOM_RATIO * bound.bytes if bound else 0
            )
        self._workers.prepare()
        return self

    def __enter__(self) -> "Judge":
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every worker and remove shared memory; directories with logs and candidates stay."""
        self._screening.close()
        self._resources.close()
        if self._memory_share is not None:
            self._memory_share.release()

    @property
    def gpu_held_s(self) -> float:
        """How long this judge has had the GPU to itself so far, in seconds."""
        return self._resources.lease.exclusive_s if self._resources.lease else 0.0

    @property
    def waited_s(self) -> float:
        """How long others have kept this judge from the GPU or its memory so far, in seconds."""
        return self._waited_for_memory_s + (
            self._resources.lease.waited_s if self._resources.lease else 0.0
        )

    @property
    def own_time(self) -> float:
        """A clock in seconds that stands while others have the GPU."""
        return time.monotonic() - self.waited_s

    # ---- the competition

    def baselines(self) -> tuple[Baseline, ...]:
        """Time eager, torch.compile and max-autotune, each in a clean worker. Only with a GPU.

        A baseline that fails has no timing and says why. The best one's worker stays, for paired
        timing against it.
        """
        resources = self._resources
        with resources.hold_gpu(exclusive=False), room_for(self._traced.problem):
            inputs = resources.timed_inputs()
        starting = {name: self._workers.start(clean=True) for name in COMPILE_MODES}
        found: list[Baseline] = []
        for name, worker in starting.items():
            self._on_event(f"timing baseline {name}")
            worker.wait_ready()
            with resources.hold_gpu(exclusive=False), room_for(self._traced.problem):
                inputs.show(worker)
                inputs.refresh(worker)
            found.append(
                time_baseline(
                    LoadedModule(worker, name),
                    inputs.names(worker),
                    resources.reference(),
                    resources.lease,
                    l2_bytes=self._traced.device.l2_bytes,
                )
            )
            best = fastest_baseline(found)
            for slower in [other.name for other in found if best is None or other is not best]:
                self._workers.discard(starting[slower])  # at once: device memory is wanted
        if best is not None:
            resources.keep_baseline_worker(best.name, starting[best.name])
        return tuple(found)

    # ---- many kernels, cheaply

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        deadline_s: float,
    ) -> list[Measurement]:
        """Judge a batch cheaply: two input families each, then a race of short timings.

        Without a GPU there are estimates instead of the race.

        Args:
            on_result: called once per kernel with its index, as soon as its verdict is known.
            deadline_s: seconds from now, less what others keep the GPU; kernels not reached are
                INTERRUPTED.

        Returns:
            One measurement per kernel, in order.
        """
        deadline = self.own_time + deadline_s
        results: dict[int, Measurement] = {}
        entrants: dict[int, Examination] = {}

        def settle(index: int, measurement: Measurement) -> None:
            results[index] = measurement
            on_result(index, measurement)

        for index, kernel in enumerate(kernels):
            if self.own_time > deadline:
                late = "the deadline of this batch came first"
                settle(index, self._failed(Status.INTERRUPTED, late))
                continue
            self._on_event(f"checking candidate {index + 1} of {len(kernels)}")
            outcome = self._examiner.examine(kernel, self._screening.check)
            if isinstance(outcome, Measurement):
                settle(index, outcome)
            elif self._settings.gpu:
                entrants[index] = outcome
            else:
                settle(index, self._passed(outcome, self._estimate(kernel)))
        if entrants:
            self._screening.race(kernels, entrants, lambda: self.own_time > deadline, settle)
        return [results[index] for index in range(len(kernels))]

    # ---- one kernel, with everything there is

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        """Judge one kernel with everything there is, in a fresh worker.

        On a GPU it is timed in pairs against the best baseline. A kernel that passes leaves its
        bundle, if there is a place for it; a bundle that cannot be written costs no verdict.
        """
        self._on_event("verifying")
        if self._settings.gpu and (best := fastest_baseline(baselines)) is not None:
            self._resources.prepare_baseline_worker(best.name)
        timed: list[tuple[Timing, Mapping[str, str]]] = []
        worker = self._workers.take(then_prepare=False)  # there may be no other
        try:
            outcome = self._examiner.examine(
                kernel,
                lambda examination: timed.append(self._verify_one(examination, baselines)),
                worker,
            )
        finally:
            self._workers.discard(worker)
        if isinstance(outcome, Measurement):
            return outcome
        measurement = self._passed(outcome, *timed[0])
        self._leave_bundle(outcome, measurement, baselines)
        return measurement

    def _verify_one(
        self, examination: Examination, baselines: Sequence[Baseline]
    ) -> tuple[Timing, Mapping[str, str]]:
        resources, gpu = self._resources, self._settings.gpu
        reference, seed_for = resources.reference(), resources.seed_for
        load_candidate(examination, reference)
        expected = check_case(examination, "drawn", seed_for("verify", "drawn"))
        assert expected is not None, "the problem's own values are defined, or it is no problem"
        if not expected.answer.changed_inputs:
            check_state(examination, expected)
        del expected  # at full size it holds gigabytes
        check_repeats(examination, seed_for("verify", "repeat"))
        launches = examination.launches
        check_provenance(examination, seed_for("verify", "provenance"), gpu=gpu)
        families = (*SCREENING_FAMILIES, "large") if resources.has_small else FAMILIES
        check_families(examination, families, seed_for)
        check_all_runs(examination)
        if not resources.has_small:
            check_variants(examination, seed_for("verify", "variants"))
        if gpu:
            release_outputs(examination)
            timing, environment = time_against_best(
                examination, baselines, resources, self._settings.seed
            )
            check_case(examination, "drawn", seed_for("verify", "after timing"))
        else:
            timing, environment = self._estimate(examination.kernel), {}
        examination.take_flags(reference)
        if resources.has_small and not self._check_small(examination, launches):
            # At the small size the kernel stepped aside: what it was not tried with there is tried
            # here.
            load_candidate(examination, reference)
            untried = [family for family in FAMILIES if family not in families]
            check_families(examination, untried, seed_for)
            check_variants(examination, seed_for("verify", "variants"), own_size_only=True)
            check_all_runs(examination)
        return timing, environment

    def _check_small(self, examination: Examination, launches: int) -> bool:
        """Every family, other sizes and layouts on the small workload.

        That is cheap, and the sizes are ones that the kernel may not have been written for. False
        if the file launches kernels at the full size and none here: then its kernels have not been
        tried with these values.

        Args:
            launches: of one forward at the full size.
        """
        resources = self._resources
        reference = resources.reference("small")
        load_candidate(examination, reference)
        check_families(examination, FAMILIES, resources.seed_for)
        launched = bool(examination.launches) or not launches
        if not launched:
            examination.flags.add("specialised")
        check_variants(examination, resources.seed_for("small", "variants"))
        examination.take_flags(reference)
        return launched

    # ---- measurements

    def _estimate(self, kernel: Kernel) -> Timing:
        assert self._estimate_ms is not None, "the constructor demands it without a GPU"
        return estimated_timing(self._estimate_ms(kernel))

    def _passed(
        self, examination: Examination, timing: Timing, environment: Mapping[str, str] | None = None
    ) -> Measurement:
        estimated = not self._settings.gpu
        return passed_measurement(examination, timing, environment or {}, estimated=estimated)

    def _failed(self, status: Status, log: str) -> Measurement:
        return failed_measurement(status, log, None, estimated=not self._settings.gpu)

    def _leave_bundle(
        self, examination: Examination, measurement: Measurement, baselines: Sequence[Baseline]
    ) -> None:
        if self._settings.bundle_dir is None:
            return
        path = self._settings.bundle_dir / f"{examination.kernel.hash}.json"
        bundle = make_bundle(examination, measurement, baselines, self._traced, self._settings)
        try:
            write_bundle(path, bundle)
            self._on_event(f"evidence: {path}")
        except EvidenceError as ex:
            self._on_event(str(ex))
