"""The judge: verdicts on kernels, and times worth comparing.

The loop and `kmem verify` talk to this class alone. It owns the reference, the inputs, the seeds
and the clock (resources.py, oracle/, timing/); kernels run in workers (pool/, worker/) and are held
to the reference check by check (examiner.py, examine/).

Order of work in `Judge.verify`: source check, fresh worker, state, repeats, what is compiled
(without a GPU), provenance, all input families, layouts, scalars and other sizes, gradients
recorded, results of the first calls once more, other parameters, paired timing with spots of every
timed result, floor, one more check on fresh inputs after the timing, bundle.

Made dearer, but not closed: a candidate that is wrong after more calls than are made here, in a
window so narrow that not two elements of a draw fall into it, for one small element in a thousand,
or for a problem that it knows by name; one that does something else on a GPU in the same launches.

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
- Inputs larger than a sixteenth of the free device memory have no private copy. The oracle is
  computed piece by piece from copies that are held to the bits that the candidate was given.
- A worker on a GPU may open /dev/shm and connect to the driver's services; all candidates share a
  cache of compiled kernels. Baselines have one of their own.
- The program that ncu watches is not confined, for ncu reaches into it from outside; what CUPTI
  watches is (kmem/profile/harness.py).
- Purity: outputs are followed to what made them, and what no operator and no kernel made is refused
  (worker/lineage.py). A kernel that works a foreign value out and back again (x + 1 - 1) counts as
  one that computes it, on a GPU also one that multiplies by one; what the library computed for it
  is seen as operators, readings of values, threads, or GPU kernels.
- Without a GPU a candidate can find out that there is none, by what no process here can imitate
  (addresses, times, the build of torch). What it launches, computes by the library and gives its
  kernels is held to what was interpreted at the same sizes. Constants that only the full size
  brings are run at sizes between where some bring them (problem/sizing/between.py); others are
  compiled and not run, which the flag "constants_unproved" says. A verdict on a GPU runs what it
  judges.
- A candidate that goes wrong after a time, that knows problems by name, or in a narrow window of
  values.
"""

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from pathlib import Path

import torch

from kmem.errors import BundleError
from kmem.host.lease import gpu_uuid
from kmem.host.memory_share import MemoryShare
from kmem.host.project_modules import imported_directories
from kmem.measure.bundle import write_bundle
from kmem.measure.competition import Awaited, Competition
from kmem.measure.examine.compiled import (
    CompiledForward,
)
from kmem.measure.examine.examination import Examination
from kmem.measure.examiner import Examiner
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.resources import JudgeResources, open_lease
from kmem.measure.screening import Screening
from kmem.measure.settings import JudgeSettings
from kmem.measure.user_test import run_user_test
from kmem.measure.verdicts import failed_measurement, make_bundle, passed_measurement
from kmem.measure.verification import Verification
from kmem.problem.costs.footprint import most_inner_bytes
from kmem.problem.traced import TracedProblem
from kmem.records import (
    BASELINES,
    Baseline,
    Kernel,
    Measurement,
    Status,
    Timing,
    Workload,
    fastest_baseline,
)

#: Device memory a judge asks for: so many times the bytes that the problem must move, for copies of
#: inputs and outputs, here, in workers and in baselines, and what the CUDA contexts of all these
#: take. Source: H200, 2026-11-22: five runs at once of problems that move 4.3 GB filled 139.8 GB,
#: and candidates were refused for want of memory. Of parameters there are more copies: in the
#: module, in float64, as they were drawn, and in each worker, where kernels keep what they made of
#: them. Source: 2 H200s, 2026-11-23: two of six runs crashed whose weights are 4.3 GB. What lies
#: between inputs and outputs is there for eager, twice as large for the oracle, and in the workers
#: of a candidate and of a baseline. Source: 2 H100s, 2026-11-28: seven candidates of three problems
#: ran out of memory whose inputs and outputs are a fraction of that (attention over 16,384 places).
_ROOM_RATIO, _CONTEXTS_BYTES = 7, 3 * 2**30
_PARAMETERS_RATIO, _INNER_RATIO = 8, 5

#: How long what is under way at the deadline of a screening may go on: a kernel that hangs must not
#: take the time of the final verification.
_OVERTIME_S = 5.0


def _room_for(traced: TracedProblem) -> int:
    """Bytes of device memory that judging a problem takes, about."""
    graph, bound = traced.graphs.get("full"), traced.bound
    parameters = sum(
        each.spec.bytes
        for each in (graph.placeholders if graph else ())
        if each.kind == "parameter" and each.spec is not None
    )
    moved, inner = bound.bytes if bound else 0, most_inner_bytes(graph) if graph else 0
    copies = _ROOM_RATIO * moved + _PARAMETERS_RATIO * parameters + _INNER_RATIO * inner
    return int(_CONTEXTS_BYTES + copies)


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
        compile_at: Callable[[Kernel, Workload], CompiledForward] | None = None,
        workers: WorkerPool | None = None,
        on_event: Callable[[str], None] | None = None,
        seconds_left: Callable[[], float] | None = None,
    ) -> None:
        """Nothing runs yet; workers and the reference are made when first needed.

        Args:
            traced: the graphs are not used and may be left out. The time of the bound, at measured
                ceilings, is the physical floor.
            estimate_ms: predicts a latency where there is no GPU; required there.
            compile_at: compiles a kernel for the device at a workload; where there is no
                GPU, what it compiles is held to what was proved. None where that was done.
            workers: processes to use instead of own ones; closed with the judge.
            on_event: told in a few words what is being done.
            seconds_left: until whatever is under way is cut off, its kernel INTERRUPTED; None for
                no such limit.

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
        self._on_event = on_event or (lambda text: None)
        settings.work_dir.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="judge-", dir=settings.work_dir))
        self._workers = workers or WorkerPool(
            directory,
            "cuda:0" if settings.gpu else "cpu",
            settings.cache_dir,
            keep_spare=settings.gpu and settings.keep_spare,
            reads=imported_directories(traced.problem.source, traced.problem.path),
        )
        # of the GPU, for others who take turns with this judge
        self.locks = settings.cache_dir / "locks"
        lease = open_lease(self.locks, self._on_event) if settings.gpu else None
        self._memory_share: MemoryShare | None = None
        if settings.gpu:
            self._memory_share = MemoryShare(
                self.locks,
                gpu_uuid(),
                traced.device.memory_bytes,
                self._on_event,
                lambda: torch.cuda.mem_get_info()[0],
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
        is_shared = self._memory_share.is_shared if self._memory_share else lambda: False
        self._examiner = Examiner(self._resources, settings, seconds_left, is_shared)
        self._verification = Verification(
            self._resources, settings, traced.device.name, estimate_ms, compile_at
        )
        self._screening = Screening(self._examiner, self._resources, settings)
        self._proved: dict[str, Examination] = {}  # by kernel hash: what passed a final verdict

    def open(self) -> "Judge":
        """Wait for room on the GPU, and start a worker ahead of need."""
        if self._memory_share is not None:
            self._waited_for_memory_s = self._memory_share.acquire(_room_for(self._traced))
        self._workers.prepare(profiles=self._settings.gpu)
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

    def baselines(
        self,
        names: Sequence[str] = BASELINES,
        limit_s: float = math.inf,
        on_found: Callable[[Baseline], None] = lambda baseline: None,
    ) -> tuple[Baseline, ...]:
        """Time ways to run the module itself, each in a clean worker. Only with a GPU.

        May be asked for in a thread of its own while another has kernels judged: both take turns on
        the GPU. A baseline that fails has no timing and says why. The best one's worker stays, for
        paired timing against it.

        Args:
            names: in the order in which they are timed.
            limit_s: seconds from now; a baseline that is not timed by then is `timed_out`.
            on_found: given each baseline the moment it is known.
        """
        competition = Competition(
            self._resources, self._workers, self.locks, limit_s, self._on_event
        )
        return competition.time_all(names, on_found)

    def load_baseline(self, name: str) -> None:
        """Load a baseline that was timed before, for paired timing; in any thread."""
        self._resources.baseline_worker(name)

    # ---- many kernels, cheaply

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        deadline_s: float,
        verified_next: bool = False,
        by_recipes: Set[str] = frozenset(),
    ) -> list[Measurement]:
        """Judge a batch cheaply: two input families each, then a race of short timings.

        What would be the fastest so far is shown every family. Without a GPU there are estimates
        instead of the race.

        Args:
            on_result: called once per kernel with its index, as soon as its verdict is known.
            deadline_s: seconds from now, less what others keep the GPU; kernels not reached are
                INTERRUPTED, and so is one that is under way `_OVERTIME_S` later.
            verified_next: the fastest is to be verified at once, which shows it every family.
            by_recipes: hashes of kernels that recipes wrote in this process; with a GPU these share
                a worker, which is as safe as it is to run the recipes.

        Returns:
            One measurement per kernel, in order.
        """
        deadline = self.own_time + deadline_s
        results: dict[int, Measurement] = {}
        contest = self._screening.open_race(
            kernels, lambda: self.own_time > deadline, verified_next=verified_next
        )

        def settle(index: int, measurement: Measurement) -> None:
            results[index] = measurement
            on_result(index, measurement)

        with self._examiner.within(lambda: deadline + _OVERTIME_S - self.own_time):
            for index, kernel in enumerate(kernels):
                if self.own_time > deadline:
                    late = "the deadline of this batch came first"
                    settle(index, self._failed(Status.INTERRUPTED, late))
                    continue
                self._on_event(f"checking candidate {index + 1} of {len(kernels)}")
                outcome = self._screening.examine(kernel, in_common=kernel.hash in by_recipes)
                if isinstance(outcome, Measurement):
                    settle(index, outcome)
                elif self._settings.gpu:
                    contest.enter(index, outcome, settle)
                else:
                    settle(index, self._passed(outcome, self._verification.estimate(kernel)))
            contest.finish(settle)
        return [results[index] for index in range(len(kernels))]

    # ---- one kernel, with everything there is

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline] | Awaited) -> Measurement:
        """Judge one kernel with everything there is, in a fresh worker.

        A kernel that this judge has passed before is timed again and not proved again. On a GPU it
        is timed in pairs against the best baseline. A kernel that passes leaves its bundle, if
        there is a place for it; a bundle that cannot be written costs no verdict.

        Args:
            baselines: those that are awaited are waited for once everything else is checked.
        """
        self._on_event("verifying")
        timed_already = () if isinstance(baselines, Awaited) else baselines
        if self._settings.gpu and (best := fastest_baseline(timed_already)) is not None:
            self._resources.prepare_baseline_worker(best.name)
        timed: list[tuple[Timing, Mapping[str, str]]] = []
        proved = self._proved.get(kernel.hash)

        def step(examination: Examination) -> None:
            if proved is None:
                timed.append(self._verification.run(examination, baselines))
            else:
                timed.append(self._verification.time_again(examination, baselines, proved))

        worker = self._workers.take(then_prepare=False)  # there may be no other
        try:
            if self._settings.gpu:
                worker.prepare_profiler()
            outcome = self._examiner.examine(kernel, step, worker)
        finally:
            self._workers.discard(worker)
        self._workers.refill()  # for the next verdict
        if isinstance(outcome, Measurement):
            return outcome
        if kernel.hash not in self._proved and (why := self._why_test_fails(kernel)):
            return self._failed(Status.WRONG_VALUES, why)
        outcome = self._proved.setdefault(kernel.hash, outcome)
        measurement = self._passed(outcome, *timed[0])
        known = baselines.known() if isinstance(baselines, Awaited) else baselines
        self._leave_bundle(outcome, measurement, known)
        return measurement

    def _why_test_fails(self, kernel: Kernel) -> str:
        """Why the user's own test fails on a kernel that passed all else; empty if it does not."""
        test, lease = self._settings.test, self._resources.lease
        if test is None:
            return ""
        self._on_event(f"running {Path(test.path).name}")
        with lease.hold(exclusive=True, purpose="the user's test") if lease else nullcontext():
            return run_user_test(test, kernel, self._traced.problem, gpu=self._settings.gpu)

    # ---- measurements

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
        except BundleError as ex:
            self._on_event(str(ex))
