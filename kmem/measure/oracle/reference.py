"""The reference, owned by the judge alone: the problem's module at one workload, its inputs, and
what the right answer is.

Made here: the float64 oracle, eager's own outputs at the contract's flags, the error eager makes,
state that a forward changes, and which trivial outputs the problem cannot tell from right ones. A
worker is sent nothing of it but inputs, parameters and constructor arguments.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from kmem.errors import ProblemError, first_line
from kmem.measure.oracle.correctness import Difference, error_floor
from kmem.measure.oracle.drawing import draw_into
from kmem.measure.oracle.expected import KEPT_BYTES, Answer, Expected, SlicedExpected, WholeExpected
from kmem.measure.oracle.families import apply_family
from kmem.measure.oracle.forward import (
    UNDEFINED,
    contract_flags,
    copy_of_view,
    in_double,
    layouts_of,
    leaves_of,
    room_for,
    round_once,
    tensor_bytes,
    widen,
)
from kmem.measure.oracle.randomness import are_random, has_drawn
from kmem.measure.oracle.slices import PIECES, Run, Sameness, Slicing, compare_pieces, find_slicing
from kmem.measure.oracle.traits import find_traits_in_turn, input_traits
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.worker.tensors import encode_value
from kmem.problem.load import build_inputs, build_model, execute_problem
from kmem.records import Contract, Problem, Workload

logger = logging.getLogger(__name__)

#: Inputs and outputs up to this size, or this share of the device's free memory, are given to the
#: oracle whole; float64 copies and intermediates of larger ones would crowd the device.
_WHOLE_BYTES = 2**27
_WHOLE_SHARE = 1 / 64
#: Pieces of very large inputs and outputs that are small beside these; where memory is short they
#: become finer (expected.py).
_ENOUGH_PIECES = 16


class Reference:
    """One problem at one workload on one device."""

    def __init__(
        self,
        problem: Problem,
        workload: Workload,
        contract: Contract,
        device: torch.device,
        *,
        seed: int,
        directory: Path,
        ipc: bool,
    ) -> None:
        """Build the module with parameters drawn from `seed`, and one draw of its inputs.

        Raises ProblemError: if the problem cannot be built, has inputs no worker can be given, or
        returns no tensors. Wants `room_for`.
        """
        self.problem = problem
        self.contract = contract
        self.device = device
        self.directory = directory
        self.ipc = ipc
        free = (
            torch.cuda.mem_get_info(device)[0]
            if device.type == "cuda"
            else _WHOLE_BYTES / _WHOLE_SHARE
        )
        self._whole_bytes = min(_WHOLE_BYTES, int(free * _WHOLE_SHARE))
        self._growth = 1.0  # inputs and outputs over inputs, by bytes
        self.module = execute_problem(problem, workload)
        self.name = f"{workload.name}"
        torch.manual_seed(seed)
        self.model = build_model(self.module, device, contract.precision)
        first = self.draw(seed + 1)
        init = (
            list(self.module.get_init_inputs()) if hasattr(self.module, "get_init_inputs") else []
        )
        try:
            self.init = [encode_value(value) for value in init]
            like = [
                value.to("meta") if isinstance(value, torch.Tensor) else value for value in first
            ]
            if is_large := self._is_large(first):
                # of large inputs there is no room for two draws beside what else is on the device
                del first
                torch.cuda.empty_cache()
            self.inputs = SharedArguments(f"{self.name}-inputs", like, device, directory, ipc=ipc)
            self.inputs.describe()
        except TypeError as ex:
            raise ProblemError(
                f"{problem.path}: {ex}; use tensors, numbers, strings and lists of them as inputs "
                f"and constructor arguments"
            ) from ex
        if is_large:
            write = partial(self.write_draw, self.inputs)
            self.traits = find_traits_in_turn(
                self.inputs.values, write, self.draw, (seed + 1, seed + 2)
            )
        else:
            self.inputs.write(first)
            self.traits = [
                input_traits(one, other)
                for one, other in zip(first, self.draw(seed + 2), strict=True)
            ]
        self._initial = {
            name: value.detach().clone() for name, value in self.model.state_dict().items()
        }
        self.state = SharedArguments(
            f"{self.name}-state", list(self._initial.values()), device, directory, ipc=ipc
        )
        self.state.write(list(self._initial.values()))
        self.outputs: SharedArguments | None = None
        self._filled = "drawn", seed + 1  # family and seed of what the inputs hold
        self._double: torch.nn.Module | None = None
        self.is_stochastic: bool | None = None
        # known, as is_stochastic and _slicing, after the first case
        self._mutates: bool | None = None
        self._slicing: Slicing | None = None
        self._survivors: set[str] | None = None
        self._earlier: tuple[torch.Tensor, ...] | None = None
        self.flags: set[str] = set()
        # families and sizes that the module raises for, with what it says
        self.refused: dict[str, str] = {}

    @property
    def training(self) -> bool:
        return self.model.training

    @property
    def state_names(self) -> list[str]:
        return list(self._initial)

    @property
    def initial_state(self) -> dict[str, torch.Tensor]:
        return self._initial

    @property
    def surviving_adversaries(self) -> tuple[str, ...]:
        """Trivial outputs that passed every case so far."""
        return tuple(sorted(self._survivors or ()))

    def draw(self, seed: int) -> list[object]:
        """Fresh inputs as the problem makes them."""
        torch.manual_seed(seed)
        return build_inputs(self.module, self.device, self.contract.precision)

    def fill(self, family: str, seed: int) -> None:
        """Overwrite the shared inputs with one family; deterministic in family and seed."""
        self._filled = family, seed
        self.write_draw(self.inputs, seed)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        values = self.inputs.values
        apply_family(family, values, self.traits, generator)
        self.inputs.publish()

    def write_draw(self, shared: SharedArguments, seed: int, *, keep: bool = False) -> None:
        """Overwrite a list of shared arguments of inputs with a fresh draw.

        Of large ones nothing else is in memory while it is made, nor, unless that is to be kept,
        afterwards.
        """
        if not self._is_large(shared.values):
            shared.write(self.draw(seed))
            return
        if not keep:
            torch.cuda.empty_cache()
        values = draw_into(
            shared.values,
            lambda: build_inputs(self.module, self.device, self.contract.precision),
            seed=seed,
        )
        shared.write(values)
        del values
        if not keep:
            torch.cuda.empty_cache()

    def expect_case(self, name: str, values: Sequence[object], seed: int) -> Expected | None:
        """The right answer for one family or size; None where the module refuses such values, and
        `refused` says what it raised.

        Raises ProblemError: if it refuses the values the problem itself draws, or fails in a way
        the device does not recover from.
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
            return self._run_eager(values, seed)[0]

    def expect(self, values: Sequence[object], seed: int) -> Expected:
        """The right answer for these inputs.

        Whatever the module raises for them comes through: it defines no answer for them.

        Raises DeviceMemoryError: if the module's own forward finds no room.
        """
        with room_for(self.problem):
            expected = self._expect(values, seed)
        if self.device.type == "cuda" and self._is_large(values):
            torch.cuda.empty_cache()  # the candidate may want what finding out has left
        return expected

    def _expect(self, values: Sequence[object], seed: int) -> Expected:
        if self.is_stochastic is None:
            self._explore(values, seed)
        if self._slicing is not None and self._is_large(values):
            answer = replace(self._sliced_answer, layouts=self._layouts_for(values))
            return SlicedExpected(
                answer,
                values,
                self._slicing,
                run_eager=self._eager_run(seed),
                run_oracle=lambda part: self._run_double(self._double_model(), part, seed)[0],
            )
        oracle, oracle_state, returns_tuple = self._run_oracle(values, seed)
        kept = [int(value._version) if isinstance(value, torch.Tensor) else 0 for value in values]
        eager, eager_state, aliases = self._run_eager(values, seed)
        changed = tuple(
            index
            for index, value in enumerate(values)
            if isinstance(value, torch.Tensor) and value._version != kept[index]
        )
        if self.is_stochastic:
            oracle = tuple(
                value.double() if value.is_floating_point() else value for value in eager
            )
        answer = Answer(
            returns_tuple,
            layouts_of(eager),
            self._floors(eager),
            changed,
            aliases,
            eager_state,
            oracle_state,
        )
        expected = WholeExpected(
            answer,
            oracle,
            eager,
            values,
            lambda part: self._run_oracle(part, seed)[0],
            self._earlier,
        )
        if self._earlier is None and sum(value.nbytes for value in eager) <= KEPT_BYTES:
            self._earlier = eager
        return expected

    def _explore(self, values: Sequence[object], seed: int) -> None:
        """Find out, once, what kind of module it is: whether it draws random numbers, modifies
        inputs, can be cut along the batch.
        """
        self._mutates = self._modifies_inputs(values, seed)
        if self._mutates:
            self.is_stochastic = False  # each call starts from other values: nothing to compare
            return
        first, state, aliases = self._run_eager(values, seed + 1)
        second, _, _ = self._run_eager(values, seed)
        self.is_stochastic = are_random(
            first, second, self.floor_for, drew=has_drawn(self.device, seed)
        )
        del first
        if self.is_stochastic:
            self.flags.add("stochastic")
            return
        given = tensor_bytes(values)
        self._growth = (given + tensor_bytes(second)) / max(given, 1)
        if self._is_large(values) and not state and all(value.dim() > 1 for value in second):
            nbytes = self._growth * given
            wanted = max(self._whole_bytes, nbytes / _ENOUGH_PIECES)
            pieces = next((pieces for pieces in PIECES if nbytes / pieces <= wanted), PIECES[-1])
            slicing = find_slicing(
                self._eager_run(seed), values, second, self.floor_for, pieces=pieces
            )
            layouts, floors = layouts_of(second), self._floors(second)
            del second
            if slicing is not None and self._is_cut_alike(slicing, seed):
                self._try_oracle(
                    slicing, values, seed, Answer(False, layouts, floors, aliases_inputs=aliases)
                )

    def _eager_run(self, seed: int) -> Run:
        return lambda values: self._run_eager(values, seed)[0]

    def _is_cut_alike(self, slicing: Slicing, seed: int) -> bool:
        """Whether the cut is right for signed values too: an extreme over all rows may be the same
        in every slice of a draw.

        The inputs are put back to what they were.
        """
        if "normal" in self.refused:
            return True  # none of them will be judged
        family, drawn = self._filled
        self.fill("normal", seed + 2)
        run = self._eager_run(seed)
        try:
            return (
                compare_pieces(
                    run, self.inputs.values, run(self.inputs.values), slicing, self.floor_for
                )
                is not Sameness.NONE
            )
        except torch.OutOfMemoryError:
            raise
        except UNDEFINED:
            return True
        finally:
            self.fill(family, drawn)

    def _modifies_inputs(self, values: Sequence[object], seed: int) -> bool:
        """Whether a forward writes to its inputs; tried on copies, of large inputs on their first
        rows if the module accepts these.
        """
        tensors = [
            index
            for index, value in enumerate(values)
            if isinstance(value, torch.Tensor) and value.dim() > 0
        ]
        attempts = [tensors, tensors[:1], []] if self._is_large(values) else [[]]
        for cut in attempts:
            copies = [
                (value[:1] if index in cut else value).clone()
                if isinstance(value, torch.Tensor)
                else value
                for index, value in enumerate(values)
            ]
            before = [value._version for value in copies if isinstance(value, torch.Tensor)]
            try:
                self._run_eager(copies, seed + 1)
            except torch.OutOfMemoryError:
                raise
            except UNDEFINED:
                if not cut:
                    raise
                continue
            return [value._version for value in copies if isinstance(value, torch.Tensor)] != before
        raise AssertionError("the last attempt returns or raises")

    def _try_oracle(
        self, slicing: Slicing, values: Sequence[object], seed: int, answer: Answer
    ) -> None:
        """Cut the oracle too, if it accepts a piece."""
        _, part = next(slicing.parts(values))
        try:
            returns_tuple = self._run_double(self._double_model(), part, seed)[2]
        except torch.OutOfMemoryError:
            raise
        except UNDEFINED:
            return
        self._slicing, self._sliced_answer = slicing, replace(answer, returns_tuple=returns_tuple)

    def _is_large(self, values: Sequence[object]) -> bool:
        """Whether the oracle is not to be run whole.

        With float64 inputs there is no eager run to compare slices with.
        """
        is_rounded = all(
            value.dtype is not torch.float64 for value in values if isinstance(value, torch.Tensor)
        )
        return self._growth * tensor_bytes(values) > self._whole_bytes and is_rounded

    def _layouts_for(self, values: Sequence[object]) -> tuple[torch.Tensor, ...]:
        """Of the outputs for inputs that may have other sizes than the first case had."""
        if all(
            value.shape == own.shape
            for value, own in zip(values, self.inputs.values, strict=True)
            if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor)
        ):
            return self._sliced_answer.layouts
        return layouts_of(self._run_eager(values, 0)[0])

    def _floors(self, outputs: Sequence[torch.Tensor]) -> tuple[float, ...]:
        return tuple(self.floor_for(value.dtype) for value in outputs)

    def floor_for(self, dtype: torch.dtype) -> float:
        """The error allowed in a result of this type whatever eager does."""
        return error_floor(dtype, self.contract.precision, interpreted=self.device.type == "cpu")

    def input_noise(self, expected: Expected, seed: int) -> tuple[Difference, ...]:
        """What one rounding of the floating inputs changes in the oracle: the error no arithmetic
        in the input's type can avoid.

        Asked only where an artificial family (constants, huge values) makes the module
        ill-conditioned and eager is exact by luck. Source: Higham, "Accuracy and Stability of
        Numerical Algorithms", 2002, section 1.5 (backward error).
        """
        generator = torch.Generator(device=self.device).manual_seed(seed)
        return expected.noise(lambda values: round_once(values, generator))

    def note_adversaries(self, expected: Expected) -> None:
        """Strike out the trivial outputs that this case, at the workload's own sizes, tells from
        right ones.
        """
        passing = expected.passing_adversaries()
        self._survivors = (
            passing | {"previous output"} if self._survivors is None else self._survivors & passing
        )

    def output_arguments(self, expected: Expected) -> SharedArguments:
        """Where a worker puts outputs of this shape; made once, for the workload's own sizes."""
        if self.outputs is None:
            self.outputs = self.new_arguments("outputs", expected.answer.layouts)
        return self.outputs

    def drop_outputs(self) -> None:
        """Give the outputs' memory back; the next case makes it anew."""
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
        layouts: Sequence[tuple[tuple[int, ...], int] | None] | None = None,
    ) -> SharedArguments:
        """Another list of shared arguments of this workload."""
        return SharedArguments(
            f"{self.name}-{purpose}",
            like,
            self.device,
            self.directory,
            ipc=self.ipc,
            layouts=layouts,
        )

    def close(self) -> None:
        """Remove shared files."""
        for shared in (self.inputs, self.state, self.outputs):
            if shared is not None:
                shared.remove()

    def _run_eager(
        self, values: Sequence[object], seed: int
    ) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], bool]:
        """Outputs, changed buffers, and whether an output is a view of an input (then it is copied,
        for the input will be overwritten).
        """
        torch.manual_seed(seed)
        with contract_flags(self.contract.precision), torch.no_grad():
            outputs, _ = leaves_of(self.model(*values))
        given = {
            value.untyped_storage().data_ptr()
            for value in values
            if isinstance(value, torch.Tensor)
        }
        views = [value.untyped_storage().data_ptr() in given for value in outputs]
        outputs = tuple(
            copy_of_view(value) if is_view else value
            for value, is_view in zip(outputs, views, strict=True)
        )
        return outputs, self._take_changes(self.model), any(views)

    def _run_oracle(
        self, values: Sequence[object], seed: int
    ) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], bool]:
        """Whole, on the CPU if the device has no room."""
        try:
            return self._run_double(self._double_model(), values, seed)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        logger.info("the float64 oracle does not fit %s; it runs on the CPU", self.device)
        self.flags.add("oracle_on_cpu")
        on_cpu = [value.cpu() if isinstance(value, torch.Tensor) else value for value in values]
        outputs, state, returns_tuple = self._run_double(
            copy.deepcopy(self._double_model()).cpu(), on_cpu, seed
        )
        return tuple(value.to(self.device) for value in outputs), state, returns_tuple

    def _double_model(self) -> torch.nn.Module:
        if self._double is None:
            self._double = copy.deepcopy(self.model)
            self._double._apply(widen)  # as .double(), which leaves complex parameters as they are
        return self._double

    def _run_double(
        self, model: torch.nn.Module, values: Sequence[object], seed: int
    ) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], bool]:
        doubled = [widen(value) if isinstance(value, torch.Tensor) else value for value in values]
        # What is wide already comes back as itself: the oracle must not modify the inputs it was
        # given.
        doubled = [
            value.clone() if isinstance(value, torch.Tensor) and value is given else value
            for value, given in zip(doubled, values, strict=True)
        ]
        torch.manual_seed(seed)
        with torch.no_grad(), in_double(self.problem):
            outputs, returns_tuple = leaves_of(model(*doubled))
        return outputs, self._take_changes(model), returns_tuple

    def _take_changes(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Buffers a forward changed; the module is put back to its initial state."""
        changed = {}
        initial = self._initial
        with torch.no_grad():
            for name, value in model.named_buffers():
                start = initial.get(name)
                if start is not None and not torch.equal(
                    value.to(start.device, start.dtype), start
                ):
                    changed[name] = value.clone()
                    value.copy_(start)
        return changed
