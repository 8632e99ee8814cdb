"""The judge: verdicts on kernels, and times worth comparing.

The loop and `kmem verify` talk to this class alone.

It owns the reference, the inputs, the seeds and the clock (resources.py, reference.py, families.py,
gpu_clock.py); kernels run in workers (process.py, serve.py) and are held to the reference case by
case (examine.py). Order of work in `verify`: source check, fresh worker, state, repeats,
provenance, all input families, layouts and other sizes, paired timing with spots of every timed
result (spots.py), floor, one more check on fresh inputs after the timing, evidence.

Covered: candidates that compute the wrong thing, that compute it elsewhere or at another time, that
hang, crash or leak, and that patch what they are observed with. Not covered: code that gets past
the source check and then rewrites the memory of its own worker to forge the worker's answers; it
could claim false times down to the physical floor and to a third of what the judge's own clock saw,
but not false values, which are compared here. Where the system allows it (`kmem doctor` says so)
workers have no network; they cannot signal other processes. They do share the user's files and a
cache of compiled kernels; baselines have one where no candidate can leave anything.
"""

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import kmem
from kmem.errors import EvidenceError
from kmem.host.lease import gpu_uuid
from kmem.host.memory_share import MemoryShare
from kmem.interfaces import Checker
from kmem.measure.baseline import COMPILE_MODES, time_baseline
from kmem.measure.bundle import FORMAT, Bundle, write_bundle
from kmem.measure.examine import Examination, Refused
from kmem.measure.oracle.expected import Expected
from kmem.measure.oracle.families import FAMILIES, SCREENING_FAMILIES
from kmem.measure.oracle.forward import room_for
from kmem.measure.pool.process import WorkerFailure, WorkerLost, WorkerProcess, failure_status
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.resources import JudgeResources, open_lease
from kmem.measure.source_check import check_source
from kmem.measure.stopwatch import time_against_best
from kmem.measure.timing.gpu_clock import ClocksDisagree, sample_times
from kmem.measure.timing.race import race
from kmem.measure.timing.statistics import estimated_timing, summarize_samples
from kmem.records import (
    Baseline,
    Bound,
    Contract,
    Device,
    Kernel,
    Measurement,
    Problem,
    Status,
    Timing,
    Workload,
    fastest_baseline,
)

#: In a measurement's environment: the input families that the module itself raises for, and what it
#: says. No candidate was given them.
REFUSED_FAMILIES = "refused_families"
LOAD_TIMEOUT_S = 90.0
RUN_TIMEOUT_S = 60.0
#: Memory a judge asks for, over the bytes the problem must move: copies of inputs and outputs,
#: here, in workers and in a baseline.
_SHARE = 4
#: The interpreter may take seconds a run: after this, `verify` leaves out the rest of the
#: artificial families and says "abridged".
INTERPRETER_BUDGET_S = 30.0


class Judge:
    """Judges kernels for one problem on one device under one contract.

    A context manager; `close` ends every worker.
    """

    def __init__(
        self,
        problem: Problem,
        workloads: Mapping[str, Workload],
        contract: Contract,
        device: Device,
        bound: Bound | None,
        *,
        seed: int,
        work_dir: Path,
        gpu: bool,
        estimate_ms: Callable[[Kernel], float] | None,
        cache_dir: Path,
        on_event: Callable[[str], None] | None = None,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        run_timeout_s: float = RUN_TIMEOUT_S,
        workers: WorkerPool | None = None,
        checkers: Sequence[Checker] = (),
        evidence_dir: Path | None = None,
        keep_spare: bool = True,
    ) -> None:
        """Nothing runs yet; workers and the reference are made when first needed.

        Args: workloads: "full" and, where there is one, "small". Without a GPU only the small one
            is run. bound: at measured ceilings; its time is the physical floor. None if unknown.
            seed: all inputs and parameters follow from it; workers never learn it. work_dir:
            workers' directories. cache_dir: compiled kernels, shared with whoever compiles ahead
            (cache_dir/triton), and the lock file of the GPU. estimate_ms: predicts a latency where
            there is no GPU; required there. on_event: told in a few words what is being done.
            workers: processes to use instead of own ones; closed with the judge. checkers: source
            checks beside the judge's own; each must be available. keep_spare: have a further worker
            coming up whenever one is taken; a waste of the GPU's memory where one kernel is judged.
            evidence_dir: where `verify` leaves a bundle, <kernel hash>.json, for each kernel that
            passes; None for none.
        Raises: ValueError: without a GPU and without estimate_ms. ExecutorError: if work_dir or
            cache_dir cannot be written.
        """
        if not gpu and estimate_ms is None:
            raise ValueError(
                "a judge without a GPU needs estimate_ms: a passed measurement has a timing"
            )
        self._problem = problem
        self._contract = contract
        self._device = device
        self._bound = bound
        self._seed = seed
        self._gpu = gpu
        self._estimate_ms = estimate_ms
        self._checkers, self._evidence_dir = tuple(checkers), evidence_dir
        self._load_timeout_s = load_timeout_s
        self._run_timeout_s = run_timeout_s
        self._on_event = on_event or (lambda text: None)
        work_dir.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="judge-", dir=work_dir))
        self._workers = workers or WorkerPool(
            directory, "cuda:0" if gpu else "cpu", cache_dir, keep_spare=gpu and keep_spare
        )
        self.locks = cache_dir / "locks"  # of the GPU, for others who take turns with this judge
        lease = open_lease(self.locks, self._on_event) if gpu else None
        self._memory_share = (
            MemoryShare(self.locks, gpu_uuid(), device.memory_bytes, self._on_event)
            if gpu
            else None
        )
        self._waited_for_memory_s = 0.0
        self._resources = JudgeResources(
            problem,
            workloads,
            contract,
            seed=seed,
            directory=directory,
            workers=self._workers,
            lease=lease,
            on_event=self._on_event,
        )
        self._screening_cases: dict[str, Expected] = {}

    def open(self) -> "Judge":
        """Wait for room on the GPU, and start a worker ahead of need."""
        if self._memory_share is not None:
            self._waited_for_memory_s = self._memory_share.acquire(
                _SHARE * self._bound.bytes if self._bound else 0
            )
        self._workers.prepare()
        return self

    def __enter__(self) -> "Judge":
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every worker and remove shared memory; directories with logs and candidates stay."""
        self._screening_cases.clear()
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

    # ---- what the loop asks

    def baselines(self) -> tuple[Baseline, ...]:
        """Time eager, torch.compile and max-autotune, each in a clean worker. Only with a GPU.

        A baseline that fails has no timing and says why. The best one's worker stays, for paired
        timing against it.
        """
        with self._resources.hold_gpu(exclusive=False), room_for(self._problem):
            inputs = self._resources.timed_inputs()
            inputs.refresh()
        starting = {name: self._workers.start(clean=True) for name in COMPILE_MODES}
        found: list[Baseline] = []
        for name, worker in starting.items():
            self._on_event(f"timing baseline {name}")
            inputs.show(worker.wait_ready())
            found.append(
                time_baseline(
                    worker, name, inputs.names, self._resources, l2_bytes=self._device.l2_bytes
                )
            )
            best = fastest_baseline(found)
            for slower in [other.name for other in found if best is None or other is not best]:
                self._workers.discard(starting[slower])  # at once: its memory is wanted
        if best is not None:
            self._resources.keep_baseline_worker(best.name, starting[best.name])
        return tuple(found)

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        deadline_s: float,
    ) -> list[Measurement]:
        """Judge a batch cheaply: two input families each, then a race of short timings (or
        estimates without a GPU).

        Args: on_result: called once per kernel with its index, as soon as its verdict is known.
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
                settle(
                    index, self._failed(Status.INTERRUPTED, "the deadline of this batch came first")
                )
                continue
            self._on_event(f"checking candidate {index + 1} of {len(kernels)}")
            outcome = self._judge(kernel, self._screen_one)
            if isinstance(outcome, Measurement):
                settle(index, outcome)
            elif self._gpu:
                entrants[index] = outcome
            else:
                settle(index, self._passed(outcome, self._estimate(kernel)))
        if entrants:
            self._race(kernels, entrants, deadline, settle)
        return [results[index] for index in range(len(kernels))]

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        """Judge one kernel with everything there is, in a fresh worker; on a GPU timed in pairs
        against the best baseline. One that passes leaves its evidence, if there is a place for it;
        evidence that cannot be written costs no verdict.
        """
        self._on_event("verifying")
        if self._gpu and (best := fastest_baseline(baselines)) is not None:
            self._resources.prepare_baseline_worker(best.name)
        timed: list[tuple[Timing, Mapping[str, str]]] = []
        worker = self._workers.take(then_prepare=False)  # there may be no other
        try:
            outcome = self._judge(
                kernel,
                lambda examination: timed.append(self._verify_one(examination, baselines)),
                worker,
            )
        finally:
            self._workers.discard(worker)
        if isinstance(outcome, Measurement):
            return outcome
        measurement = self._passed(outcome, *timed[0])
        self._leave_evidence(outcome, measurement, baselines)
        return measurement

    # ---- one kernel

    def _judge(
        self,
        kernel: Kernel,
        step: Callable[[Examination], None],
        worker: WorkerProcess | None = None,
    ) -> Measurement | Examination:
        """Run one step on a kernel; whatever goes wrong with the candidate becomes a measurement."""
        try:
            refusals = self._refusals(kernel.source)
        except (SyntaxError, ValueError) as ex:
            return self._failed(Status.BUILD_FAILED, f"not valid Python: {ex}")
        if refusals:
            return self._failed(Status.REFUSED_SOURCE, "\n".join(refusals))
        chosen = worker or self._resources.screening_worker()
        examination = Examination(
            kernel,
            chosen,
            self._contract,
            self._load_timeout_s,
            self._run_timeout_s,
            self._resources.lease,
        )
        examination.deadline = None if self._gpu else time.monotonic() + INTERPRETER_BUDGET_S
        try:
            with self._resources.hold_gpu(exclusive=False), room_for(self._problem):
                step(examination)
        except Refused as ex:
            if ex.taints_worker:
                self._workers.discard(examination.worker)
            return self._failed(ex.status, str(ex), examination)
        except ClocksDisagree as ex:
            return self._failed(Status.IMPLAUSIBLE, str(ex), examination)
        except WorkerFailure as ex:
            # mostly sticky: nothing else will run in this context
            if "CUDA error" in ex.message or "Error [CUDA]" in ex.message:
                self._workers.discard(examination.worker)
            return self._failed(failure_status(ex), f"{ex}\n{ex.traceback}", examination)
        except WorkerLost as ex:
            self._workers.discard(examination.worker)
            return self._failed(ex.status, str(ex), examination)
        return examination

    def _refusals(self, source: str) -> list[str]:
        """What the source checks say, one line each. Raises SyntaxError."""
        found = [
            str(refusal) for refusal in check_source(source, problem_source=self._problem.source)
        ]
        return found + [
            f"{checker.name}: {reason}"
            for checker in self._checkers
            for reason in checker.check(source)
        ]

    def _screen_one(self, examination: Examination) -> None:
        examination.load(self._resources.reference())
        for family in SCREENING_FAMILIES:
            case = examination.check_case(
                family,
                self._resources.seed_for("screen", family),
                self._screening_cases.get(family),
            )
            if case is not None and case.is_kept:
                self._screening_cases[family] = case
        if not self._gpu:
            examination.unload()

    def _verify_one(
        self, examination: Examination, baselines: Sequence[Baseline]
    ) -> tuple[Timing, Mapping[str, str]]:
        resources = self._resources
        reference, seed_for = resources.reference(), resources.seed_for
        examination.load(reference)
        expected = examination.check_case("drawn", seed_for("verify", "drawn"))
        assert expected is not None, "the problem's own values are defined, or it is no problem"
        if not expected.answer.changed_inputs:
            examination.check_state(expected)
        del expected  # at full size it holds gigabytes
        examination.check_repeats(seed_for("verify", "repeat"))
        launches = examination.launches
        examination.check_provenance(seed_for("verify", "provenance"), gpu=self._gpu)
        examination.check_families(
            (*SCREENING_FAMILIES, "large") if resources.has_small else FAMILIES, seed_for
        )
        if not resources.has_small:
            examination.check_variants(seed_for("verify", "variants"))
        if self._gpu:
            examination.release_outputs()
            timing, environment = time_against_best(
                examination, baselines, resources, self._bound, self._device, self._seed
            )
            examination.check_case("drawn", seed_for("verify", "after timing"))
        else:
            timing, environment = self._estimate(examination.kernel), {}
        examination.take_flags(reference)
        if resources.has_small and not self._check_small(examination, launches):
            # At the small size the kernel stepped aside: what it was not tried with there is tried
            # here.
            examination.load(reference)
            examination.check_families(
                [family for family in FAMILIES if family not in (*SCREENING_FAMILIES, "large")],
                seed_for,
            )
            examination.check_variants(seed_for("verify", "variants"), own_size_only=True)
        return timing, environment

    def _check_small(self, examination: Examination, launches: int) -> bool:
        """Every family, other sizes and layouts on the small workload: cheap, and sizes the kernel
        may not have been written for.

        False if the file launches kernels at the full size and none here: then its kernels have not
        been tried with these values.
        """
        reference = self._resources.reference("small")
        examination.load(reference)
        examination.check_families(FAMILIES, self._resources.seed_for)
        launched = bool(examination.launches) or not launches
        if not launched:
            examination.flags.add("specialised")
        examination.check_variants(self._resources.seed_for("small", "variants"))
        examination.take_flags(reference)
        return launched

    def _estimate(self, kernel: Kernel) -> Timing:
        assert self._estimate_ms is not None, "the constructor demands it without a GPU"
        return estimated_timing(self._estimate_ms(kernel))

    def _race(
        self,
        kernels: Sequence[Kernel],
        entrants: Sequence[int],
        deadline: float,
        settle: Callable[[int, Measurement], None],
    ) -> None:
        """Short timings of the kernels that passed, most for the fastest; an entrant that fails
        here drops out with its status.
        """
        inputs = self._resources.timed_inputs()
        running = {str(index): examination for index, examination in entrants.items()}
        timed: set[str] = set()

        def sample(name: str, count: int) -> list[float] | None:
            if self.own_time > deadline and name in timed:
                return []
            taken: list[float] = []

            def step(examination: Examination) -> None:
                inputs.show(examination.worker)
                # an entrant brought the worker down: load this one again
                if running[name].worker is not examination.worker:
                    examination.load(self._resources.reference())
                    examination.errors = running[name].errors
                    running[name] = examination
                inputs.refresh()
                key = running[name].key
                common = {"l2_bytes": self._device.l2_bytes, "timeout_s": self._run_timeout_s}
                taken.extend(
                    sample_times(examination.worker, key, inputs.names, count, warmup=1, **common)[
                        "event_ms"
                    ]
                )
                timed.add(name)

            outcome = self._judge(kernels[int(name)], step)
            if isinstance(outcome, Measurement):
                settle(int(name), outcome)
            return None if isinstance(outcome, Measurement) else taken

        # once for all: whoever wants it alone may wait long
        with self._resources.hold_gpu(exclusive=True), inputs.while_timing():
            raced = race(list(running), sample)
        for name, samples in raced.items():
            settle(int(name), self._passed(running[name], summarize_samples(samples)))
        for examination in running.values():
            if self._resources.is_screening(examination.worker):
                examination.unload()

    # ---- measurements

    def _passed(
        self, examination: Examination, timing: Timing, environment: Mapping[str, str] | None = None
    ) -> Measurement:
        refused = "; ".join(
            f"{name} ({examination.refused[name]})"
            for name in FAMILIES
            if name in examination.refused
        )
        left_out = {REFUSED_FAMILIES: refused} if refused else {}
        seen = {
            **(examination.worker.ready or {}),
            "kmem": kmem.__version__,
            **(environment or {}),
            **left_out,
        }
        return self._measurement(Status.PASSED, timing, "", examination, seen)

    def _failed(
        self, status: Status, log: str, examination: Examination | None = None
    ) -> Measurement:
        if examination is None:
            return Measurement(status, None, not self._gpu, log=log)
        return self._measurement(status, None, log, examination, examination.worker.ready or {})

    def _measurement(
        self,
        status: Status,
        timing: Timing | None,
        log: str,
        examination: Examination,
        environment: Mapping[str, str],
    ) -> Measurement:
        flags = tuple(sorted({*examination.flags, *examination.kernel.flags}))
        return Measurement(
            status,
            timing,
            not self._gpu,
            tuple(examination.errors),
            flags,
            log,
            examination.share,
            environment,
        )

    def _leave_evidence(
        self, examination: Examination, measurement: Measurement, baselines: Sequence[Baseline]
    ) -> None:
        if self._evidence_dir is None:
            return
        bundle = Bundle(
            format=FORMAT,
            problem=self._problem,
            problem_hash=self._problem.hash,
            kernel_source=examination.kernel.source,
            kernel_hash=examination.kernel.hash,
            kernel_flags=examination.kernel.flags,
            contract=self._contract,
            device=self._device,
            measured=self._gpu,
            seed=self._seed,
            checkers=tuple(checker.name for checker in self._checkers),
            measurement=measurement,
            baselines=tuple(baselines),
            samples_ms=examination.samples_ms,
            operators=examination.operators,
            gpu_kernels=examination.gpu_kernels,
            binaries=examination.binaries,
            command=shlex.join(sys.argv),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        path = self._evidence_dir / f"{examination.kernel.hash}.json"
        try:
            write_bundle(path, bundle)
            self._on_event(f"evidence: {path}")
        except EvidenceError as ex:
            self._on_event(str(ex))
