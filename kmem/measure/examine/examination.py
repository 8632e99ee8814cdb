"""What has been found about one kernel, one run of it, and one comparison with the reference.

The checks themselves are functions of an `Examination`, in the modules beside this one.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kmem.host.lease import GpuLease
from kmem.measure.oracle.correctness import Difference, is_within
from kmem.measure.oracle.expected import Answer, Comparison, Expected, InputsChanged
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.process import WorkerProcess
from kmem.measure.worker.commands import Run
from kmem.records import Contract, ErrorReport, Kernel, Purity, Status


class Refused(Exception):
    """A verdict against the candidate."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class Examination:
    """What has been found about one kernel so far.

    The worker may be shared with other kernels; loading.py loads this kernel in it. The lease is
    held shared meanwhile.
    """

    kernel: Kernel
    worker: WorkerProcess
    contract: Contract
    load_timeout_s: float
    run_timeout_s: float
    lease: GpuLease | None = None  # None without a GPU
    deadline: float | None = None  # time.monotonic() after which optional cases are left out
    reference: Reference | None = None  # whose parameters the kernel was given last
    errors: list[ErrorReport] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    # families and sizes left out, with what the module itself raises
    refused: dict[str, str] = field(default_factory=dict)
    launches: int = 0  # of Triton kernels, in the last run
    # to a case at the workload's own sizes; known once such a case was checked
    answer: Answer | None = None
    operators: Mapping[str, int] = field(default_factory=dict)  # what one forward dispatched
    # what any run at the first reference's own sizes did, where purity asks for it
    run_operators: dict[str, int] = field(default_factory=dict)
    first_reference: Reference | None = None
    gpu_kernels: tuple[tuple[str, float], ...] = ()  # what one forward ran, with microseconds
    binaries: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the PTX by Triton kernel
    share: float | None = None  # of GPU time that is not the file's own Triton kernels'
    # by side ("candidate" or a baseline) and A B B A block
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What the kernel is called in the worker."""
        name = self.kernel.hash[:16]
        return f"{name}-{self.reference.name}" if self.reference else name

    @property
    def loaded_reference(self) -> Reference:
        """The reference whose parameters the kernel has."""
        assert self.reference is not None, "load comes first"
        return self.reference

    @property
    def is_late(self) -> bool:
        """Whether optional cases are to be left out."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def pause(self) -> None:
        """Between two steps: let others time."""
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
        *,
        keep: str | None = None,
        suppress: bool = False,
    ) -> list[torch.Tensor]:
        """The outputs of one forward, which `outputs` holds until something else is put there.

        Args:
            keep: a name under which the worker holds on to the result.
            suppress: make every Triton launch do nothing.

        Raises:
            Refused: if its outputs are not of the expected kind.
            WorkerFailure, WorkerLost: if it raised, or brought the worker down.
        """
        self.pause()
        self.worker.attach(outputs)
        outputs.poison()
        observe = self._is_observed(inputs) and not suppress
        command = Run(self.key, inputs.name, outputs.name, seed, suppress, keep, observe)
        answer = self.worker.request(command, timeout_s=self.run_timeout_s)
        self.run_operators |= answer["operators"]
        check_description(answer, expected.answer, self.loaded_reference.device)
        if not suppress:
            self.launches = int(answer["launches"])
        outputs.fetch()
        return [value for value in outputs.values if isinstance(value, torch.Tensor)]

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
            forgive_noise: allow what one rounding of the inputs changes, where the values are not
                the problem's own.

        Raises Refused: if they are outside the contract, or an input was changed.
        """
        try:
            compared = expected.compare(values)
            noise: Sequence[Difference | None] = [None] * len(compared.found)
            if forgive_noise and family != "drawn" and not compared.is_within:
                noise = self.loaded_reference.input_noise(expected, seed)
        except InputsChanged as ex:
            raise Refused(Status.MUTATED_INPUT, f"{family}: {ex}") from ex
        for index, (found, eager, floor, spare) in enumerate(
            zip(compared.found, compared.eager, compared.floors, noise, strict=True)
        ):
            allowed = max(2 * eager.relative_error, floor, spare.relative_error if spare else 0.0)
            self.errors.append(
                ErrorReport(family, seed, found.relative_error, eager.relative_error, allowed)
            )
            if family == "drawn" and found.beyond_kernelbench:
                self.flags.add("beyond_kernelbench")
            if not is_within(found, eager, floor, spare):
                detail = found.fault or (
                    f"relative error {found.relative_error:.2e} (allowed {allowed:.2e}, eager "
                    f"{eager.relative_error:.2e}), "
                    f"worst row {found.row_error:.2e} (eager {eager.row_error:.2e})"
                )
                raise Refused(Status.WRONG_VALUES, f"output {index} on family {family}: {detail}")
        return compared


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
