"""One kernel in one worker, held to the reference case by case.

Any fault ends it as a `Refused` with the status and the reason.

In order: loading, one case (outputs, mutation, accuracy), state, repeats, other sizes and layouts,
provenance.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from kmem.host.lease import GpuLease
from kmem.measure.loading import attach_once, detach, load_module, write_candidate
from kmem.measure.oracle.correctness import Difference, is_within, measure_error
from kmem.measure.oracle.expected import KEPT_BYTES, Answer, Comparison, Expected, InputsChanged
from kmem.measure.oracle.families import SCREENING_FAMILIES, other_layouts, other_sizes
from kmem.measure.oracle.forward import tensor_bytes
from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.spots import LOOKED_AT, SETTLED, Spots
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.pool.process import WorkerFailure, WorkerProcess
from kmem.measure.provenance import impurity, library_share
from kmem.records import Contract, ErrorReport, Kernel, Status


class Refused(Exception):
    """A verdict against the candidate; `taints_worker` says that it left its worker unfit for
    others.
    """

    def __init__(self, status: Status, reason: str, *, taints_worker: bool = False) -> None:
        super().__init__(reason)
        self.status, self.taints_worker = status, taints_worker


@dataclass
class Examination:
    """What has been found about one kernel so far; `worker` may be shared with other kernels,
    `kernel` is loaded in it by `load`.
    """

    kernel: Kernel
    worker: WorkerProcess
    contract: Contract
    load_timeout_s: float
    run_timeout_s: float
    lease: GpuLease | None = None  # held shared meanwhile; None without a GPU
    errors: list[ErrorReport] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    # families and sizes left out: what the module itself raises
    refused: dict[str, str] = field(default_factory=dict)
    share: float | None = None
    launches: int = 0
    # to a case at the workload's own sizes; known once one was checked
    answer: Answer | None = None
    reference: Reference | None = None
    deadline: float | None = None  # time.monotonic() after which optional cases are left out
    operators: Mapping[str, int] = field(default_factory=dict)  # what one forward dispatched
    gpu_kernels: tuple[tuple[str, float], ...] = ()  # what one forward ran, with microseconds
    binaries: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the PTX by Triton kernel
    # by side and block
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return (
            f"{self.kernel.hash[:16]}-{self.reference.name}"
            if self.reference
            else self.kernel.hash[:16]
        )

    # ---- loading

    def load(self, reference: Reference) -> None:
        """Import the file, construct `ModelNew` and give it the reference's parameters."""
        self._pause()
        self.reference = reference
        path = write_candidate(self.kernel.source, self.worker.directory)
        attach_once(self.worker, reference.state)
        attach_once(self.worker, reference.inputs)
        load_module(
            self.worker, self.key, path, "ModelNew", reference, timeout_s=self.load_timeout_s
        )

    def release_outputs(self) -> None:
        """Large outputs leave the device while the kernel is timed: the memory is wanted for fresh
        inputs.
        """
        shared = self._reference.outputs
        if (
            shared is not None
            and shared.nbytes > KEPT_BYTES
            and shared.name in self.worker.attached
        ):
            detach(self.worker, shared)
            self._reference.drop_outputs()

    def unload(self) -> None:
        self.worker.request("unload", timeout_s=self.run_timeout_s, key=self.key)

    # ---- values

    def check_case(
        self, family: str, seed: int, expected: Expected | None = None
    ) -> Expected | None:
        """One family on the workload's own inputs: shapes, mutation, accuracy.

        Args: expected: computed before for the same family and seed (screening judges many kernels
            on one case).
        Returns: The right answer; None where the module itself refuses such values, and so defines
            no answer for them.
        """
        reference = self._reference
        self._pause()
        reference.fill(family, seed)
        if expected is None:
            expected = reference.expect_case(family, reference.inputs.values, seed)
            if expected is None:
                return None
            if expected.answer.changed_inputs:
                reference.fill(family, seed)
        self.answer = expected.answer
        self._run_and_compare(
            reference.inputs, reference.output_arguments(expected), expected, family, seed
        )
        reference.note_adversaries(expected)
        return expected

    def check_families(self, families: Sequence[str], seed_for: Callable[..., int]) -> None:
        """One case per family, each under a seed of its own.

        Beyond the deadline the artificial ones are left out: "abridged".
        """
        for family in families:
            if self._is_late and family not in SCREENING_FAMILIES:
                self.flags.add("abridged")
                return
            self.check_case(family, seed_for("family", self._reference.name, family))

    def check_state(self, expected: Expected) -> None:
        """Parameters and buffers after one forward of a freshly loaded module are those the
        reference would have.
        """
        reference = self._reference
        if not reference.state_names:
            return
        after = reference.new_arguments("state-after", list(reference.initial_state.values()))
        try:
            attach_once(self.worker, after)
            after.poison()
            self.worker.request(
                "state",
                timeout_s=self.run_timeout_s,
                key=self.key,
                outputs=after.name,
                names=reference.state_names,
            )
            after.fetch()
            for name, value in zip(reference.state_names, after.values, strict=True):
                assert isinstance(value, torch.Tensor)
                answer = expected.answer
                if name in answer.eager_state:
                    floor = reference.floor_for(value.dtype)
                    eager = answer.eager_state[name]
                    oracle = answer.oracle_state.get(name, answer.eager_state[name].double())
                    if not is_within(
                        measure_error(value, oracle, eager),
                        measure_error(eager, oracle, eager),
                        floor,
                    ):
                        raise Refused(
                            Status.WRONG_VALUES,
                            f"after a forward, buffer {name} is not what the module leaves there",
                        )
                elif not torch.equal(value, reference.initial_state[name]):
                    raise Refused(
                        Status.MUTATED_INPUT,
                        f"a forward changed {name}, which the module leaves alone",
                    )
            detach(self.worker, after)
        finally:
            after.remove()

    def check_repeats(self, seed: int) -> None:
        """The same call twice gives the same answer, and a later call leaves an earlier result
        alone.
        """
        reference = self._reference
        reference.fill("drawn", seed)
        expected = reference.expect(reference.inputs.values, seed)
        if expected.answer.changed_inputs:
            return  # each call starts from other values: nothing to repeat
        outputs = reference.output_arguments(expected)
        first = self._run(reference.inputs, outputs, expected, seed, keep="first")
        bits = [bit_sum(value) for value in first]
        eager = self._compare(first, expected, "repeat", seed).eager
        for _ in range(1 if self.deadline else 2):  # in the interpreter nothing races
            again = self._run(reference.inputs, outputs, expected, seed)
            if [bit_sum(value) for value in again] == bits:
                continue
            # the first answer takes its place
            again = [value.to("cpu", copy=True) for value in again]
            for one, two, floor, own in zip(
                self._reread("first", outputs, expected),
                again,
                expected.answer.floors,
                eager,
                strict=True,
            ):
                if not is_within(measure_error(two, one, one), own, floor):
                    raise Refused(
                        Status.NOT_REPEATABLE,
                        "the same call on the same inputs gave another answer",
                    )
        if not expected.answer.aliases_inputs:  # views of the inputs change with them
            reference.fill("drawn", seed + 1)
            self._run(reference.inputs, outputs, expected, seed)
            if [bit_sum(value) for value in self._reread("first", outputs, expected)] != bits:
                raise Refused(
                    Status.NOT_REPEATABLE,
                    (
                        "a later call changed the result of an earlier one: it returns a buffer "
                        "that it uses again"
                    ),
                )
        self._forget("first")

    def check_timed(self, spots: Spots, seed: int) -> None:
        """Timed calls returned what is right for their inputs: some of them, chosen now that all
        have run, by the spots they left.

        Those are ranked by their distance from eager. The furthest are held to the contract:
        eager's answer, with what the call returned in its places.
        """
        reference = self._reference
        for result in spots.results:
            check_description(result.described, spots.answer, reference.device)
        chosen = random.Random(seed).sample(spots.results, min(LOOKED_AT, len(spots.results)))
        distances: list[float] = []
        for result in chosen:
            self._pause()
            reference.fill("drawn", result.seed)
            distances.append(
                result.distance(reference.run_eager(reference.inputs.values, result.seed))
            )
        for index in sorted(range(len(chosen)), key=lambda index: -distances[index])[:SETTLED]:
            result = chosen[index]
            self._pause()
            reference.fill("drawn", result.seed)
            expected = reference.expect(reference.inputs.values, result.seed)
            if expected.answer.changed_inputs:
                reference.fill("drawn", result.seed)
            mixed = result.put_into(reference.run_eager(reference.inputs.values, result.seed))
            self._compare(mixed, expected, "timed", result.seed)

    def _forget(self, keep: str) -> None:
        """Have the worker let go of a kept result: its memory is wanted."""
        self.worker.request("forget", timeout_s=self.run_timeout_s, keep=keep)

    def _reread(
        self, keep: str, outputs: SharedArguments, expected: Expected
    ) -> list[torch.Tensor]:
        """What a result that was kept in the worker holds now."""
        attach_once(self.worker, outputs)
        outputs.poison()
        answer = self.worker.request(
            "reread", timeout_s=self.run_timeout_s, keep=keep, outputs=outputs.name
        )
        check_description(answer, expected.answer, self._reference.device)
        outputs.fetch()
        return [value for value in outputs.values if isinstance(value, torch.Tensor)]

    def check_variants(self, seed: int, *, own_size_only: bool = False) -> None:
        """The same values in other layouts, and other sizes, wherever the module itself accepts
        them.

        With `own_size_only`, for a kernel that works at this size alone: not where copies of the
        inputs would crowd the device, and not misaligned, for which eager's library may have
        kernels of another accuracy.
        """
        reference = self._reference
        if own_size_only and tensor_bytes(reference.inputs.values) > KEPT_BYTES:
            return
        reference.fill("drawn" if "normal" in reference.refused else "normal", seed)
        base = [
            value.clone() if isinstance(value, torch.Tensor) else value
            for value in reference.inputs.values
        ]
        fallbacks = 0
        variants: list[tuple[str, list[object], list | None]] = [
            (name, base, layout) for name, layout in other_layouts(base)
        ]
        variants += [(name, values, None) for name, values in other_sizes(base)]
        for name, values, layout in variants:
            if own_size_only and name == "misaligned":
                continue
            if self._is_late:
                self.flags.add("abridged")
                break
            shared = reference.new_arguments("variant", values, layout)
            try:
                shared.write(values)
                expected = reference.expect_case(name, shared.values, seed)
                # what the module itself does not accept, no candidate has to
                if expected is None or expected.answer.changed_inputs:
                    continue
                fallbacks += self._check_variant(name, shared, expected, seed)
            finally:
                shared.remove()
        if fallbacks and self.launches:
            self.flags.add("specialised")

    def _check_variant(
        self, name: str, shared: SharedArguments, expected: Expected, seed: int
    ) -> int:
        """1 if no Triton kernel was launched for this variant, else 0."""
        outputs = self._reference.new_arguments("variant-outputs", expected.answer.layouts)
        try:
            attach_once(self.worker, shared)
            attach_once(self.worker, outputs)
            launches = self.launches
            try:
                self._run_and_compare(shared, outputs, expected, f"{name}", seed)
            except WorkerFailure as failure:
                raise Refused(
                    Status.WRONG_CONTRACT,
                    f"{name}: the module accepts such inputs, the candidate raises {failure}",
                ) from failure
            ran, self.launches = self.launches, launches
            for place in (shared, outputs):
                detach(self.worker, place)
            return int(ran == 0)
        finally:
            outputs.remove()

    def take_flags(self, reference: Reference) -> None:
        """What is true of the problem rather than of the kernel: "degenerate", "stochastic",
        "oracle_on_cpu", and what it refuses.
        """
        self.flags |= reference.flags
        self.refused |= reference.refused
        if reference.surviving_adversaries:
            self.flags.add("degenerate")

    # ---- provenance

    def check_provenance(self, seed: int, *, gpu: bool) -> None:
        """What ran: operators, Triton launches that matter, GPU kernels and their binaries.

        Raises Refused with IMPURE.
        """
        reference = self._reference
        reference.fill("drawn", seed)
        self.operators = self.worker.request(
            "operators",
            timeout_s=self.run_timeout_s,
            key=self.key,
            inputs=reference.inputs.name,
            seed=seed,
        )["operators"]
        needs_launches = not self.launches or self._needs_launches(seed)
        if gpu:
            # beside other work kernels take longer than they do
            with self.lease.hold(exclusive=True) if self.lease else nullcontext():
                seen = self.worker.request(
                    "kernels",
                    timeout_s=self.run_timeout_s,
                    key=self.key,
                    inputs=reference.inputs.name,
                )
            self.gpu_kernels = tuple(
                (str(name), float(time_us)) for name, time_us in seen["kernels"]
            )
            self.binaries = {str(name): str(digest) for name, digest in seen["binaries"].items()}
            self.share = library_share(self.gpu_kernels, seen["own"])
        reason = impurity(
            self.contract.purity, self.operators, self.share, self.launches, needs_launches
        )
        if reason is not None:
            raise Refused(Status.IMPURE, reason)

    def _needs_launches(self, seed: int) -> bool:
        """Whether the answer is wrong once every Triton launch is a no-op.

        On values of its own: partial results of an earlier call may still lie in the scratch memory
        that this one is given.
        """
        reference = self._reference
        reference.fill("drawn", seed + 1)
        expected = reference.expect(reference.inputs.values, seed)
        if expected.answer.changed_inputs:
            reference.fill("drawn", seed + 1)
        outputs = reference.output_arguments(expected)
        try:
            values = self._run(reference.inputs, outputs, expected, seed, suppress=True)
        except (WorkerFailure, Refused):
            return True
        try:
            return not expected.compare(values).is_within
        except InputsChanged as ex:
            raise Refused(Status.MUTATED_INPUT, str(ex)) from ex

    # ---- one run

    def _pause(self) -> None:
        """Between two steps: let others time."""
        if self.lease is not None:
            self.lease.pause()

    @property
    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def _reference(self) -> Reference:
        assert self.reference is not None, "load comes first"
        return self.reference

    def _run_and_compare(
        self,
        inputs: SharedArguments,
        outputs: SharedArguments,
        expected: Expected,
        family: str,
        seed: int,
    ) -> None:
        before = inputs.checksums()
        values = self._run(inputs, outputs, expected, seed)
        inputs.fetch()
        after = inputs.checksums()
        tensors = [
            index for index, value in enumerate(inputs.values) if isinstance(value, torch.Tensor)
        ]
        changed = {
            index for index, one, two in zip(tensors, before, after, strict=True) if one != two
        }
        allowed = set(expected.answer.changed_inputs)
        if changed - allowed:
            raise Refused(
                Status.MUTATED_INPUT,
                f"{family}: input {min(changed - allowed)} was changed by the forward",
            )
        if allowed - changed:
            raise Refused(
                Status.WRONG_VALUES,
                f"{family}: the module modifies input {min(allowed)}, the candidate does not",
            )
        self._compare(values, expected, family, seed, inputs)

    def _run(
        self,
        inputs: SharedArguments,
        outputs: SharedArguments,
        expected: Expected,
        seed: int,
        *,
        keep: str | None = None,
        suppress: bool = False,
    ) -> list[torch.Tensor]:
        """One forward; its outputs, in the shared until something else is put there.

        With `keep` the worker holds on to them.
        """
        self._pause()
        attach_once(self.worker, outputs)
        outputs.poison()
        answer = self.worker.request(
            "run",
            timeout_s=self.run_timeout_s,
            key=self.key,
            inputs=inputs.name,
            outputs=outputs.name,
            seed=seed,
            suppress=suppress,
            keep=keep,
        )
        if answer["patched"]:
            raise Refused(
                Status.REFUSED_SOURCE,
                f"while it ran it replaced {', '.join(answer['patched'][:5])}",
                taints_worker=True,
            )
        check_description(answer, expected.answer, self._reference.device)
        if not suppress:
            self.launches = int(answer["launches"])
        outputs.fetch()
        return [value for value in outputs.values if isinstance(value, torch.Tensor)]

    def _compare(
        self,
        values: Sequence[torch.Tensor],
        expected: Expected,
        family: str,
        seed: int,
        inputs: SharedArguments | None = None,
    ) -> Comparison:
        try:
            compared = expected.compare(values)
            noise: Sequence[Difference | None] = [None] * len(compared.found)
            if inputs is not None and family != "drawn" and not compared.is_within:
                noise = self._reference.input_noise(expected, seed)
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
    """Hold what the worker says about its outputs to the reference's: how many, what type, shape
    and dtype. Raises Refused.
    """
    outputs = answer.get("outputs")
    if not isinstance(outputs, list) or len(outputs) != len(wanted.layouts):
        count = len(outputs) if isinstance(outputs, list) else None
        raise Refused(Status.WRONG_CONTRACT, f"{count} outputs, expected {len(wanted.layouts)}")
    if (answer.get("structure") != "tensor") != wanted.returns_tuple:
        raise Refused(
            Status.WRONG_CONTRACT,
            (
                f"returns a {answer.get('structure')}, expected a "
                f"{'tuple' if wanted.returns_tuple else 'tensor'}"
            ),
        )
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
