"""The reference: the problem at one workload, and the right answer to any case of it.

The judge alone owns it. The right answer to a case is the float64 oracle beside eager's own outputs
(expected.py). A worker is sent nothing of the reference but inputs, parameters and constructor
arguments.

    reference = Reference(problem, workload, contract, placement, seed=1)
    reference.inputs.fill("drawn", seed)
    expected = reference.expect(reference.inputs.values, seed)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial

import torch

from kmem.errors import ProblemError, first_line
from kmem.host.project_modules import imported_directories
from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.answers.expected import KEPT_BYTES, Expected, SlicedExpected, WholeExpected
from kmem.measure.oracle.answers.origins import FindOrigins, find_origins
from kmem.measure.oracle.answers.whole import run_drawn, run_whole
from kmem.measure.oracle.correctness import Difference
from kmem.measure.oracle.exploration import ModuleKind, explore_module
from kmem.measure.oracle.inputs.families import INTEGER_FAMILIES, families_for
from kmem.measure.oracle.inputs.filled import ReferenceInputs, find_whole_bytes
from kmem.measure.oracle.running.forward import UNDEFINED, layouts_of, room_for, round_once
from kmem.measure.oracle.running.module import ReferenceModule
from kmem.measure.oracle.running.parameters import vary_state
from kmem.measure.pool.arguments import Layout, SharedArguments
from kmem.measure.worker.commands import Load
from kmem.measure.worker.tensors import Placement
from kmem.records import Contract, Precision, Problem, Workload


class Reference:
    """One problem at one workload on one device.

    `inputs` and `state` (the parameters and buffers) are shared with workers; `outputs` is where
    workers put theirs, None until a case was computed. `refused` holds the families and sizes that
    the module raises for, with what it says.
    """

    def __init__(
        self,
        problem: Problem,
        workload: Workload,
        contract: Contract,
        placement: Placement,
        *,
        seed: int,
    ) -> None:
        """Build the module with parameters drawn from `seed`, and one draw of its inputs.

        Wants `room_for`.

        Raises ProblemError: if the problem cannot be built, has inputs that no worker can be given,
        or returns no tensors.
        """
        self.problem = problem
        self.contract = contract
        self.device = placement.device
        self.name = workload.name
        self._placement = placement
        whole_bytes = find_whole_bytes(self.device)  # before the module takes device memory
        self.module = ReferenceModule(problem, workload, contract, self.device, seed=seed)
        self.inputs = ReferenceInputs(
            self.module, placement, self.name, seed=seed + 1, whole_bytes=whole_bytes
        )
        state = list(self.module.initial_state.values())
        self.state = self.new_arguments("state", state)
        self.state.write(state)
        self.outputs: SharedArguments | None = None
        self.refused: dict[str, str] = {}
        # whether what the module raises for was tried on the CPU, where nothing breaks
        self.is_tried = self.device.type == "cpu"
        # what candidates are told of their GPU where there is none
        self.target: dict[str, object] | None = None
        self._kind: ModuleKind | None = None  # known after the first case
        self._survivors: set[str] | None = None
        self._earlier: tuple[torch.Tensor, ...] | None = None

    @property
    def state_names(self) -> list[str]:
        """Names of the parameters and buffers, in the order of `state`."""
        return list(self.module.initial_state)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The types of inputs, parameters and buffers."""
        held = (*self.inputs.values, *self.module.initial_state.values())
        return {value.dtype for value in held if isinstance(value, torch.Tensor)}

    @property
    def state_places(self) -> list[list[object]]:
        """Where a worker finds parameters and buffers: [name, list of arguments, index]."""
        return [[name, self.state.name, index] for index, name in enumerate(self.state_names)]

    @property
    def families(self) -> tuple[str, ...]:
        """The input families that say something about this module, cheap and telling ones first."""
        return tuple(
            family
            for family in families_for(self.inputs.values, self.inputs.traits)
            if self.may_try(family)
        )

    def may_try(self, family: str) -> bool:
        """Whether the module may be asked: other integers may be out of range, or be sizes."""
        if family not in INTEGER_FAMILIES:
            return True
        return self.is_tried and not self._has_sizes_of_values

    @cached_property
    def _has_sizes_of_values(self) -> bool:
        return self.module.has_sizes_of_values(self.inputs.values)

    @property
    def is_stochastic(self) -> bool | None:
        """Whether the module draws random numbers; None before the first case."""
        return None if self._kind is None else self._kind.is_stochastic

    @property
    def remembers(self) -> bool:
        """Whether answers depend on earlier calls; False before the first case."""
        return self._kind is not None and self._kind.remembers

    @property
    def flags(self) -> set[str]:
        """What is true of the problem rather than of a kernel: "stochastic", "oracle_on_cpu"."""
        found = {"stochastic"} if self.is_stochastic else set()
        return found | ({"oracle_on_cpu"} if self.module.ran_on_cpu else set())

    @property
    def surviving_adversaries(self) -> tuple[str, ...]:
        """Trivial outputs that passed every case so far."""
        return tuple(sorted(self._survivors or ()))

    def load_command(
        self,
        key: str,
        path: str,
        source: str,
        class_name: str,
        *,
        compile_mode: str | None = None,
    ) -> Load:
        """What has a worker make a class of a text the same module as this, under a key.

        The worker must have been shown `state`.
        """
        precision = self.contract.precision
        return Load(
            key=key,
            path=path,
            source=source,
            class_name=class_name,
            init=self.module.init,
            state=self.state_places,
            training=self.module.model.training,
            dtype="bfloat16" if precision is Precision.BF16 else None,
            tf32=precision is Precision.TF32,
            compile_mode=compile_mode,
            project=list(imported_directories(self.problem.source, self.problem.path)),
            target=self.target,
        )

    @contextmanager
    def varied_state(self, seed: int) -> Iterator[bool]:
        """Meanwhile have other parameters and buffers, here and for workers given the state.

        The context is whether there are any: there are none where the module has no parameters, or
        is not finite with others.
        """
        initial = self.module.initial_state
        is_varied = self._vary_state(initial, seed)
        try:
            yield is_varied
        finally:
            if is_varied:
                self._put_state(initial)

    def _vary_state(self, initial: Mapping[str, torch.Tensor], seed: int) -> bool:
        finite = self._finite_outputs(seed)
        for signed in (True, False):
            generator = torch.Generator(device=self.device).manual_seed(seed)
            varied = vary_state(initial, self.module.parameter_names, generator, signed=signed)
            if all(varied[name] is value for name, value in initial.items()):
                return False
            self._put_state(varied)
            if self._finite_outputs(seed) == finite:
                return True
            self._put_state(initial)
        return False

    def _put_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.module.put_state(state)
        self.state.write(list(state.values()))

    def _finite_outputs(self, seed: int) -> list[int]:
        """How many elements of each output are finite for the problem's own values."""
        self.inputs.fill("drawn", seed)
        try:
            outputs = self.run_eager(self.inputs.values, seed)
        except UNDEFINED:
            return []
        return [int(torch.isfinite(value).sum()) for value in outputs]

    # ---- answers

    def expect_case(self, name: str, values: Sequence[object], seed: int) -> Expected | None:
        """The right answer for one family or size; None where the module refuses such values.

        `refused` then says what it raised.

        Raises ProblemError: if it refuses the values that the problem itself draws, or fails in a
        way that the device does not recover from.
        """
        if name in self.refused:
            return None
        try:
            return self.expect(values, seed)
        except UNDEFINED as ex:
            reason = first_line(ex)
            # a device-side assertion: nothing else will run in this process
            if "CUDA error" in reason:
                raise ProblemError(
                    f"{self.problem.path}: on inputs of the kind {name!r} forward raised {reason}; "
                    f"check them in it"
                ) from ex
            if name == "drawn":
                raise ProblemError(f"{self.problem.path}: forward raised {reason}") from ex
        self.refused[name] = reason
        return None

    def run_eager(self, values: Sequence[object], seed: int) -> tuple[torch.Tensor, ...]:
        """The module's own answer, at its own precision.

        Raises DeviceMemoryError, and whatever the module raises.
        """
        with room_for(self.problem):
            return self.module.run_eager(values, seed).outputs

    def expect(self, values: Sequence[object], seed: int) -> Expected:
        """The right answer for these inputs.

        Whatever the module raises for them comes through: it defines no answer for them.

        Raises DeviceMemoryError: if the module's own forward finds no room.
        """
        with room_for(self.problem):
            expected = self._expect(values, seed)
        if self.device.type == "cuda" and self.inputs.is_large(values):
            torch.cuda.empty_cache()  # the candidate may want what finding out has left
        return expected

    def answer_after(self, seed: int, calls: int) -> Answer:
        """What the module leaves in its buffers after so many forwards in a row of its inputs."""
        with room_for(self.problem):
            eager = self.module.run_eager(self.inputs.values, seed, calls=calls)
            oracle_state = {}
            if not self.is_stochastic:
                double = self.module.run_oracle(self.inputs.values, seed, calls=calls)
                oracle_state = double.changed_buffers
        return Answer(
            eager.returns_tuple,
            layouts_of(eager.outputs),
            self.module.floors_for(eager.outputs),
            eager_state=eager.changed_buffers,
            oracle_state=oracle_state,
            calls=calls,
        )

    def _expect(self, values: Sequence[object], seed: int) -> Expected:
        if self._kind is None:
            self._kind = explore_module(self.module, self.inputs, values, seed, self.refused)
        if self._kind.slicing is not None and self.inputs.is_large(values):
            return SlicedExpected(
                self._sliced_answer(values),
                values,
                self._kind.slicing,
                run_eager=self.module.eager_run(seed),
                run_oracle=lambda part: self.module.run_double(part, seed).outputs,
            )
        earlier = self._earlier
        run = run_drawn if self._kind.is_stochastic else run_whole
        found = run(self.module, values, seed, is_elementwise=self._kind.is_elementwise)
        if self._earlier is None and sum(value.nbytes for value in found.eager) <= KEPT_BYTES:
            self._earlier = found.eager
        return WholeExpected(
            found.answer, found.oracle, found.eager, values, found.run_oracle, earlier
        )

    def _sliced_answer(self, values: Sequence[object]) -> Answer:
        """The answer in slices for inputs that may have other sizes than the first case had."""
        assert self._kind is not None and self._kind.sliced_answer is not None, "it can be cut"
        answer = self._kind.sliced_answer
        if all(
            value.shape == own.shape
            for value, own in zip(values, self.inputs.values, strict=True)
            if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor)
        ):
            return answer
        return replace(answer, layouts=layouts_of(self.module.run_eager(values, 0).outputs))

    def input_noise(self, expected: Expected, seed: int) -> tuple[Difference, ...]:
        """What one rounding of the floating inputs changes in the oracle.

        That is the error that no arithmetic in the input's type can avoid. Asked only where an
        artificial family (constants, huge values) makes the module ill-conditioned and eager is
        exact by luck. Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
        section 1.5 (backward error).
        """
        generator = torch.Generator(device=self.device).manual_seed(seed)
        to_tf32 = self.module.stands_in
        return expected.noise(lambda values: round_once(values, generator, to_tf32=to_tf32))

    def origins_finder(self, seed: int) -> FindOrigins | None:
        """What finds how large the values were that outputs were computed from (origins.py).

        None for a stochastic module, which has no oracle.
        """
        return None if self.is_stochastic else partial(find_origins, seed=seed)

    def note_adversaries(self, expected: Expected) -> None:
        """Strike out the trivial outputs that this case tells from right ones.

        The case must be one at the workload's own sizes.
        """
        if self._survivors == set():
            return  # none is left
        passing = expected.passing_adversaries()
        self._survivors = (
            passing | {"previous output"} if self._survivors is None else self._survivors & passing
        )

    # ---- memory that workers see

    def output_arguments(self, expected: Expected) -> SharedArguments:
        """Where a worker puts outputs of this shape; made once, for the workload's own sizes."""
        if self.outputs is None:
            self.outputs = self.new_arguments("outputs", expected.answer.layouts)
        return self.outputs

    def drop_outputs(self) -> None:
        """Give the outputs' device memory back; the next case makes it anew."""
        if self.outputs is not None:
            self.outputs.remove()
            self.outputs = None
            if self.device.type == "cuda":
                torch.cuda.ipc_collect()
                torch.cuda.empty_cache()

    def new_arguments(
        self,
        purpose: str,
        like: Sequence[object],
        layouts: Sequence[Layout | None] | None = None,
        *,
        private: bool = False,
    ) -> SharedArguments:
        """Another list of shared arguments of this workload."""
        name = f"{self.name}-{purpose}"
        return SharedArguments(name, like, self._placement, layouts=layouts, private=private)

    def close(self) -> None:
        """Remove shared files."""
        for shared in (self.inputs.shared, self.state, self.outputs):
            if shared is not None:
                shared.remove()
