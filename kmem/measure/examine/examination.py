"""What has been found about one kernel, one run of it, and one comparison with the reference.

The checks are functions of an `Examination`, in the modules beside this one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from kmem.host.lease import GpuLease
from kmem.measure.examine.forgiving import compare_with_origins, forgiven_noise
from kmem.measure.oracle.answers.answer import Answer, Comparison, InputsChanged
from kmem.measure.oracle.answers.expected import Expected
from kmem.measure.oracle.answers.wrong_elements import describe_wrong
from kmem.measure.oracle.correctness import Difference, allowances, error_over_allowance, is_within
from kmem.measure.oracle.inputs.families import NON_FINITE
from kmem.measure.oracle.lost import find_lost
from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.spots import TimedResult
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.pool.process import WorkerProcess
from kmem.measure.worker.commands import Run
from kmem.measure.worker.lineage import UNSEEN
from kmem.records import Contract, ErrorReport, Kernel, Purity, Status

#: A worker is given at least so long to answer, whatever is left of the run's minutes.
_LEAST_TIMEOUT_S = 1.0
#: Why a kernel has no verdict.
CUT_OFF = "the run's minutes were over before the judge came to a verdict"
#: Results of the first calls that a worker holds on to, each and together: buffers that are
#: returned by turns come to these again.
_HELD, _HELD_BYTES = 3, 2**28


@dataclass(frozen=True, slots=True)
class HowToRun:
    """What is special about one forward.

    `keep` is a name under which the worker holds on to the result. With `suppress` Triton launches
    do nothing; `shuffle` is a seed for the order of their programs, where an interpreter sets it.
    `mode` is "grad" or "inference" where gradients are not merely left unrecorded. With `goes_on`
    the module keeps the state that earlier calls left; with `state` it is given its parameters
    again, "written" or "replaced" by others.
    `arguments` are given to launches in place of their own (worker/launches.py).
    """

    keep: str | None = None
    suppress: bool = False
    shuffle: int | None = None
    mode: str = ""
    goes_on: bool = False
    state: str = ""
    arguments: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Refused(Exception):
    """A verdict against the candidate."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class SeenLaunch:
    """What one launch of a forward was in the interpreter: a kernel, and its arguments.

    `arguments` are by name all that were seen, as text.
    """

    identity: str
    arguments: dict[str, set[str]] = field(default_factory=dict)


def candidate_key(kernel: Kernel, workload: str) -> str:
    """What a kernel is called in a worker that has it loaded for a workload."""
    return f"{kernel.hash[:16]}-{workload}"


@dataclass
class Examination:
    """What has been found about one kernel so far.

    The worker may be shared with other kernels; loading.py loads this kernel in it. The lease is
    held shared meanwhile.
    """

    kernel: Kernel
    worker: WorkerProcess
    contract: Contract
    load_limit_s: float
    run_limit_s: float
    lease: GpuLease | None = None  # None without a GPU
    budget_s: float | None = None  # processor time that forwards may take together; None for any
    spent_s: float = 0.0
    seconds_left: Callable[[], float] = lambda: math.inf  # until the examination is cut off
    reference: Reference | None = None  # whose parameters the kernel was given last
    errors: list[ErrorReport] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    # families and sizes left out, with what the module itself raises
    refused: dict[str, str] = field(default_factory=dict)
    launches: int = 0  # of Triton kernels, in the last run
    kernels_seen: tuple[str, ...] = ()  # their names in order, in the interpreter alone
    first_call_s: float | None = None  # of the first run in this worker; None without a GPU
    first_kernels: tuple[str, ...] | None = None  # those of the first call after loading
    # what launches were in all runs so far, by the kernels of their forward and the number in it
    described_seen: dict[tuple[tuple[str, ...], int], SeenLaunch] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)  # results' names, with their bits
    holds: bool = False  # whether results are to be held at all
    # where the outputs of the last run lay (worker/overlap.py)
    places: Mapping[str, list] = field(default_factory=dict)
    # to a case at the workload's own sizes; known once such a case was checked
    answer: Answer | None = None
    operators: Mapping[str, int] = field(default_factory=dict)  # what one forward dispatched
    # what any run at the first reference's own sizes did, where purity asks for it
    run_operators: dict[str, int] = field(default_factory=dict)
    # outputs that in one of these runs held bytes which nobody was seen to make, and those of which
    # that is true in the module itself
    unseen: set[int] = field(default_factory=set)
    unseen_by_module: frozenset[int] = frozenset()
    first_reference: Reference | None = None
    gpu_kernels: tuple[tuple[str, float], ...] = ()  # what one forward ran, with microseconds
    binaries: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the PTX by Triton kernel
    share: float | None = None  # of GPU time that is not the file's own Triton kernels'
    # by side ("candidate" or a baseline) and A B B A block
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    @property
    def load_timeout_s(self) -> float:
        """How long the worker may take to load the kernel: its limit, or what is left of it."""
        return min(self.load_limit_s, max(_LEAST_TIMEOUT_S, self.seconds_left()))

    @property
    def run_timeout_s(self) -> float:
        """How long the worker may take for anything else."""
        return min(self.run_limit_s, max(_LEAST_TIMEOUT_S, self.seconds_left()))

    @property
    def key(self) -> str:
        """What the kernel is called in the worker."""
        return candidate_key(self.kernel, self.reference.name if self.reference else "")

    @property
    def loaded_reference(self) -> Reference:
        """The reference whose parameters the kernel has."""
        assert self.reference is not None, "load comes first"
        return self.reference

    @property
    def interpreted(self) -> bool:
        """Whether kernels run in Triton's interpreter."""
        return self.lease is None

    def pause(self) -> None:
        """Between two steps: let others time. Raises Refused: once the time is over."""
        if self.seconds_left() <= 0:
            raise Refused(Status.INTERRUPTED, CUT_OFF)
        if self.lease is not None:
            self.lease.pause()

    def take_flags(self, reference: Reference) -> None:
        """Take over what is true of the problem rather than of the kernel.

        The reference's flags, "degenerate" if trivial outputs passed, and what the module refuses.
        """
        self.flags |= reference.flags
        self.refused |= reference.refused
        if reference.surviving_adversaries:
            self.flags.add("degenerate")

    def run(
        self,
        inputs: SharedArguments,
        outputs: SharedArguments,
        expected: Expected,
        seed: int,
        how: HowToRun | None = None,
    ) -> list[torch.Tensor]:
        """The outputs of one forward, which `outputs` holds until something else is put there.

        A module that changes its own buffers starts from those of the reference.

        Raises:
            Refused: if its outputs are not of the expected kind.
            WorkerFailure, WorkerLost: if it raised, or brought the worker down.
        """
        how = how or HowToRun()
        self.pause()
        self.worker.attach(outputs)
        outputs.poison()
        reference, wanted = self.loaded_reference, expected.answer
        keep = how.keep or self._name_to_hold(outputs, wanted, how)
        has_state = how.state or (wanted.eager_state and not how.goes_on)
        command = Run(
            self.key,
            inputs.name,
            outputs.name,
            seed,
            suppress=how.suppress,
            keep=keep,
            state=reference.state_places if has_state else None,
            replace=how.state == "replaced",
            shuffle=how.shuffle,
            mode=how.mode,
            observe=self._is_observed(inputs) and not how.suppress,
            arguments={index: dict(changed) for index, changed in how.arguments.items()},
        )
        started_s = self.worker.processor_s
        answer = self.worker.request(command, timeout_s=self.run_timeout_s)
        self._spend(self.worker.processor_s - started_s)
        self.run_operators |= answer["operators"]
        self.note_origins(answer["origins"])
        check_description(answer, wanted, reference.device)
        self.places = answer["places"]
        if answer["races"]:
            raise Refused(
                Status.NOT_REPEATABLE,
                f"programs of one launch load {answer['races']} places that others of it store: on "
                f"a GPU they run in no order; use tl.atomic_add, or a second launch",
            )
        if not how.suppress:
            self.launches = int(answer["launches"])
            self.kernels_seen = tuple(map(str, answer["names"]))
            self._note_described(answer["described"])
            if self.first_call_s is None and not self.interpreted:
                self.first_call_s = float(answer["seconds"])
            if self.first_kernels is None:
                self.first_kernels = self.kernels_seen
        outputs.fetch()
        values = [value for value in outputs.values if isinstance(value, torch.Tensor)]
        if keep is not None and how.keep is None:
            self.held[keep] = [bit_sum(value) for value in values]
        return values

    def _note_described(self, launches: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        for index, (identity, arguments) in enumerate(launches):
            place = self.kernels_seen, index
            seen = self.described_seen.get(place)
            if seen is None or seen.identity != identity:
                seen = self.described_seen[place] = SeenLaunch(identity)
            for name, value in arguments.items():
                seen.arguments.setdefault(name, set()).add(value)

    def note_origins(self, outputs: Sequence[int]) -> None:
        """Take over where each output of a run came from (worker/lineage.py)."""
        self.unseen |= {index for index, origins in enumerate(outputs) if origins & UNSEEN}

    def _spend(self, seconds: float) -> None:
        """Count a forward's processor time. Raises Refused: if all of it is spent."""
        self.spent_s += seconds
        if self.budget_s is not None and self.spent_s > self.budget_s:
            raise Refused(
                Status.TIMED_OUT,
                f"its forwards take more than {self.budget_s:g} s of processor time in Triton's "
                f"interpreter; give the problem get_small_inputs(), or judge it on a GPU",
            )

    def _name_to_hold(self, outputs: SharedArguments, wanted: Answer, how: HowToRun) -> str | None:
        """A name to hold a result by that no later call may change; None where it is not held."""
        is_own = outputs is self.loaded_reference.outputs and not wanted.aliases_inputs
        if not self.holds or not is_own or how.suppress:
            return None
        if len(self.held) >= _HELD or (len(self.held) + 1) * outputs.nbytes > _HELD_BYTES:
            return None
        return f"held {len(self.held)}"

    def _is_observed(self, inputs: SharedArguments) -> bool:
        """Whether it counts what a run dispatches: at the first workload's own sizes and layout.

        A kernel may step aside elsewhere.
        """
        self.first_reference = self.first_reference or self.loaded_reference
        own = self.loaded_reference is self.first_reference
        of_interest = self.contract.purity is Purity.TRITON
        return of_interest and own and inputs is self.loaded_reference.inputs.shared

    def compare(
        self,
        values: Sequence[torch.Tensor],
        expected: Expected,
        family: str,
        seed: int,
        *,
        forgive_noise: bool = False,
    ) -> Comparison:
        """Hold outputs to the accuracy contract, and note their errors.

        Args:
            family: or the name of a layout, a size or other parameters.
            forgive_noise: allow what one rounding of the inputs changes, where the values are not
                the problem's own.

        Raises Refused: if they are outside the contract, or an input was changed.
        """
        if family in NON_FINITE:
            values = expected.without_undefined(values)
        try:
            compared = compare_with_origins(values, expected, self.loaded_reference, seed)
            noise: Sequence[Difference | None] = [None] * len(compared.found)
            if forgive_noise and family != "drawn" and not compared.is_within:
                noise = forgiven_noise(compared, expected, self.loaded_reference, family, seed)
        except InputsChanged as ex:
            raise Refused(Status.MUTATED_INPUT, f"{family}: {ex}") from ex
        self._hold(compared, noise, family, seed, partial(describe_wrong, expected, values))
        if (lost := find_lost(expected, values, self.loaded_reference, seed)) is not None:
            report = self.errors.pop(lost.index - len(compared.found))
            self.errors.append(replace(report, excess=lost.excess))
            raise Refused(Status.WRONG_VALUES, f"family {family}: {lost.text}")
        return compared

    def compare_spots(self, result: TimedResult, expected: Expected, family: str) -> None:
        """Hold what a timed call left to the accuracy contract, by its own norm. Raises Refused."""
        try:
            compared = expected.compare_at(result.places, result.values)
        except InputsChanged as ex:
            raise Refused(Status.MUTATED_INPUT, f"{family}: {ex}") from ex
        self._hold(compared, [None] * len(compared.found), family, result.seed)

    def _hold(
        self,
        compared: Comparison,
        noise: Sequence[Difference | None],
        family: str,
        seed: int,
        describe: Callable[[int, float], str] = lambda index, allowed: "",
    ) -> None:
        """Note errors. Raises Refused: if outside the contract, with what `describe` says."""
        for index, (found, eager, floor, spare) in enumerate(
            zip(compared.found, compared.eager, compared.floors, noise, strict=True)
        ):
            allowed, row_allowed = allowances(eager, floor, spare)
            excess = error_over_allowance(found, eager, floor, spare)
            both = found.relative_error, eager.relative_error
            self.errors.append(ErrorReport(family, seed, *both, allowed, excess))
            if family == "drawn" and found.beyond_kernelbench:
                self.flags.add("beyond_kernelbench")
            if not is_within(found, eager, floor, spare):
                detail = found.fault or (
                    f"relative error {found.relative_error:.2e} (allowed {allowed:.2e}, eager "
                    f"{eager.relative_error:.2e}), "
                    f"worst row {found.row_error:.2e} (allowed {row_allowed:.2e}, eager "
                    f"{eager.row_error:.2e})"
                )
                if self.loaded_reference.is_stochastic:
                    detail += (
                        "; draws its own random numbers: those of the module come from torch's "
                        "generator, so draw them with the same operator of torch"
                    )
                detail = f"{detail}\n{describe(index, allowed)}".rstrip()
                raise Refused(Status.WRONG_VALUES, f"output {index} on family {family}: {detail}")


def check_description(answer: Mapping[str, object], wanted: Answer, device: torch.device) -> None:
    """Hold what the worker says about its outputs to the reference's.

    How many there are, and the type, shape and dtype of each. Raises Refused.
    """
    structure = answer.get("structure")
    if structure not in (("list", "tuple") if wanted.returns_tuple else ("tensor",)):
        expected = "list or tuple" if wanted.returns_tuple else "tensor"
        raise Refused(Status.WRONG_CONTRACT, f"returns a {structure}, expected a {expected}")
    outputs = answer.get("outputs")
    if not isinstance(outputs, list) or len(outputs) != len(wanted.layouts):
        count = len(outputs) if isinstance(outputs, list) else None
        raise Refused(Status.WRONG_CONTRACT, f"{count} outputs, expected {len(wanted.layouts)}")
    for index, (found, right) in enumerate(zip(outputs, wanted.layouts, strict=True)):
        if found.get("type") != "tensor":
            raise Refused(
                Status.WRONG_CONTRACT,
                f"output {index} is a {found.get('type')}, expected a plain torch.Tensor",
            )
        for name, value in (
            ("shape", list(right.shape)),
            ("dtype", str(right.dtype)),
            ("device", device.type),
        ):
            if found.get(name) != value:
                raise Refused(
                    Status.WRONG_CONTRACT,
                    f"output {index} has {name} {found.get(name)}, expected {value}",
                )
        if found.get("expanded") and all(
            step != 0 or size <= 1 for size, step in zip(right.shape, right.stride(), strict=True)
        ):
            raise Refused(
                Status.WRONG_CONTRACT,
                f"output {index} is an expanded view; the module writes every element",
            )
