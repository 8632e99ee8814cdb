"""The problem's module as the judge runs it: eager at the contract's precision, and in float64.

The judge makes one for each workload. A worker is sent its constructor arguments and its
parameters, never the module. After each forward the module is put back to its initial state.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from kmem.errors import ProblemError
from kmem.measure.oracle.correctness import error_floor
from kmem.measure.oracle.running.adding import Adding, find_adding
from kmem.measure.oracle.running.copies import copy_module
from kmem.measure.oracle.running.forward import (
    PROCESS_STATE,
    UNDEFINED,
    contract_flags,
    copy_of_view,
    in_double,
    leaves_of,
    seed_generators,
    widen,
)
from kmem.measure.oracle.running.own_precision import OwnPrecisionProducts
from kmem.measure.oracle.running.slices import Run
from kmem.measure.worker.tensors import encode_value
from kmem.problem.source.load import build_inputs, build_model, execute_problem
from kmem.records import Contract, Precision, Problem, Workload

logger = logging.getLogger(__name__)

#: cuDNN's recurrences as pieces of a model call them.
_RECURRENT = re.compile(r"aten\.(lstm|gru|rnn_tanh|rnn_relu)\.")


@dataclass(frozen=True, slots=True)
class Forward:
    """What one forward gave."""

    outputs: tuple[torch.Tensor, ...]
    changed_buffers: dict[str, torch.Tensor]
    returns_tuple: bool
    aliases_inputs: bool = False  # whether an output was a view of an input
    shares_outputs: bool = False  # whether two outputs shared memory
    # what it left in inputs that it wrote to, by index
    changed_inputs: Mapping[int, torch.Tensor] = field(default_factory=dict)


class ReferenceModule:
    """The module at one workload on one device, with its parameters as they were drawn."""

    def __init__(
        self,
        problem: Problem,
        workload: Workload,
        contract: Contract,
        device: torch.device,
        *,
        seed: int,
    ) -> None:
        """Build the module with parameters drawn from `seed`.

        Raises ProblemError: if the problem cannot be built, or no worker can be given its
        constructor arguments.
        """
        self.problem = problem
        self.contract = contract
        self.device = device
        self.ran_on_cpu = False  # the float64 forward, for want of device memory
        self._double: torch.nn.Module | None = None
        self._adding: Adding | None = None  # known once the float64 forward found no room
        self._namespace = execute_problem(problem, workload)
        with PROCESS_STATE:
            torch.manual_seed(seed)
            self.model = build_model(self._namespace, device, contract.precision)
        arguments = (
            list(self._namespace.get_init_inputs())
            if hasattr(self._namespace, "get_init_inputs")
            else []
        )
        with encodable_values(problem):
            self.init = [encode_value(value) for value in arguments]

    @cached_property
    def initial_state(self) -> dict[str, torch.Tensor]:
        """Copies of parameters and buffers, made when first asked for, before any forward."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    @property
    def parameter_names(self) -> set[str]:
        """Which of the initial state are parameters; the others are buffers."""
        return {name for name, _ in self.model.named_parameters(remove_duplicate=False)}

    def put_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Have other parameters and buffers from now on: the module starts every forward there."""
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(state[name])
        self.initial_state = dict(state)
        self._double = None

    def has_sizes_of_values(self, values: Sequence[object]) -> bool:
        """Whether what is in the inputs decides how large something gets, as of `one_hot`.

        It is tried on the meta device, where nothing has a value.
        """
        on_meta = [
            value.to("meta") if isinstance(value, torch.Tensor) else value for value in values
        ]
        try:
            copy_module(self.model).to("meta")(*on_meta)
        except (*UNDEFINED, NotImplementedError):
            return True
        return False

    def build_inputs(self) -> list[object]:
        """Inputs as the problem makes them, from the random state as it is."""
        return build_inputs(self._namespace, self.device, self.contract.precision)

    @property
    def convolves(self) -> bool:
        """Whether there are convolutions: PyTorch's defaults let a GPU have them in TF32."""
        return "conv" in self.problem.source.lower()

    @property
    def may_be_tf32(self) -> bool:
        """Whether PyTorch's defaults let a GPU have something of it in TF32: what cuDNN does."""
        is_recurrent = any(isinstance(each, torch.nn.RNNBase) for each in self.model.modules())
        return self.convolves or is_recurrent or bool(_RECURRENT.search(self.problem.source))

    def floor_for(self, dtype: torch.dtype) -> float:
        """The error allowed in a result of this type whatever eager does.

        Where the CPU stands in for a GPU, eager's convolutions and recurrences are more accurate
        than those that users have.
        """
        precision = Precision.TF32 if self.stands_in else self.contract.precision
        return error_floor(dtype, precision)

    @property
    def stands_in(self) -> bool:
        """Whether eager is in fp32 here, and would be in TF32 on a GPU."""
        is_matched = self.contract.precision is Precision.MATCH
        return self.device.type == "cpu" and is_matched and self.may_be_tf32

    def floors_for(self, outputs: Sequence[torch.Tensor]) -> tuple[float, ...]:
        return tuple(self.floor_for(value.dtype) for value in outputs)

    # ---- at the contract's precision

    def run_eager(self, values: Sequence[object], seed: int, *, calls: int = 1) -> Forward:
        """The module's own answer.

        An output that is a view of an input is copied, for the input will be overwritten. Whatever
        the module raises comes through.

        Args:
            calls: how many in a row, each from the state that the one before left; the last counts.
        """
        before = _versions(values)
        with contract_flags(self.contract.precision), torch.no_grad(), self._products():
            for _ in range(calls):
                seed_generators(seed, self.device)
                result = self.model(*values)
            outputs, returns_tuple = leaves_of(result)
        left = {index: value.clone() for index, value in _written(values, before).items()}
        given = {
            value.untyped_storage().data_ptr()
            for value in values
            if isinstance(value, torch.Tensor)
        }
        storages = {value.untyped_storage().data_ptr() for value in outputs if value.numel()}
        is_shared = len(storages) < sum(value.numel() > 0 for value in outputs)
        views = [value.untyped_storage().data_ptr() in given for value in outputs]
        outputs = tuple(
            copy_of_view(value) if is_view else value
            for value, is_view in zip(outputs, views, strict=True)
        )
        return Forward(
            outputs, self._take_changes(self.model), returns_tuple, any(views), is_shared, left
        )

    def _products(self) -> AbstractContextManager[object]:
        return OwnPrecisionProducts() if "cumprod" in self.problem.source else nullcontext()

    def eager_run(self, seed: int) -> Run:
        """`run_eager` under one seed, for its outputs alone."""
        return lambda values: self.run_eager(values, seed).outputs

    # ---- in float64

    def run_oracle(
        self, values: Sequence[object], seed: int, *, calls: int = 1, may_cut: bool = False
    ) -> Forward:
        """The answer in float64, in pieces or on the CPU if the device has no room.

        Args:
            calls: as for `run_eager`.
            may_cut: whether to try pieces, of one call of a module that draws no random numbers.
        """
        if may_cut and self._adding is not None:
            return self._add_up(self._adding, values, seed)
        try:
            return self.run_double(values, seed, calls=calls)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        if may_cut and self.parameter_names == set(self.initial_state):
            try:
                self._adding = self._find_adding(values, seed)
                if self._adding is not None:
                    return self._add_up(self._adding, values, seed)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        logger.info("the float64 oracle does not fit %s; it runs on the CPU", self.device)
        self.ran_on_cpu = True
        self._double = None  # what was cut off may have changed its buffers
        on_cpu = [value.cpu() if isinstance(value, torch.Tensor) else value for value in values]
        ran = self._run_double(copy_module(self._double_model()).cpu(), on_cpu, seed, calls)
        return replace(
            ran,
            outputs=tuple(value.to(self.device) for value in ran.outputs),
            changed_inputs={
                index: value.to(self.device) for index, value in ran.changed_inputs.items()
            },
        )

    def _find_adding(self, values: Sequence[object], seed: int) -> Adding | None:
        self._double = None  # what was cut off may have changed it
        dtypes = [value.dtype for value in values if isinstance(value, torch.Tensor)]
        floor = max(map(self.floor_for, dtypes), default=0.0)
        return find_adding(
            self.eager_run(seed),
            lambda values: self.run_double(values, seed).outputs,
            values,
            floor,
        )

    def _add_up(self, adding: Adding, values: Sequence[object], seed: int) -> Forward:
        last: list[Forward] = []

        def run(part: Sequence[object]) -> tuple[torch.Tensor, ...]:
            last[:] = [self.run_double(part, seed)]
            return last[0].outputs

        outputs = adding.run(run, values)
        return replace(last[0], outputs=outputs, changed_inputs={})

    def run_double(self, values: Sequence[object], seed: int, *, calls: int = 1) -> Forward:
        """The answer in float64. Raises torch.OutOfMemoryError: if the device has no room.

        Convolutions run as products of PyTorch's own: cuDNN has no fast kernels for float64. On an
        H200 it takes 70.5 ms where they take 9.2 (transposed, 3x3x3, 16 to 64 channels, 2^19
        places), and 25.6 where they take 4.3 (transposed, 3x3, 64 to 64). They want more memory.
        """
        try:
            with torch.backends.cudnn.flags(enabled=False):
                return self._run_double(self._double_model(), values, seed, calls)
        except torch.OutOfMemoryError:
            if not self.convolves:
                raise
        torch.cuda.empty_cache()
        self._double = None  # what was cut off may have changed its buffers
        return self._run_double(self._double_model(), values, seed, calls)

    def _double_model(self) -> torch.nn.Module:
        if self._double is None:
            self._double = copy_module(self.model)
            self._double._apply(widen)  # as .double(), which leaves complex parameters as they are
        return self._double

    def _run_double(
        self, model: torch.nn.Module, values: Sequence[object], seed: int, calls: int
    ) -> Forward:
        doubled = [widen(value) if isinstance(value, torch.Tensor) else value for value in values]
        # What is wide already comes back as itself: the oracle must not modify the inputs it was
        # given.
        doubled = [
            value.clone() if isinstance(value, torch.Tensor) and value is given else value
            for value, given in zip(doubled, values, strict=True)
        ]
        before = _versions(doubled)
        with torch.no_grad(), in_double(self.problem):
            for _ in range(calls):
                seed_generators(seed, self.device)
                result = model(*doubled)
            outputs, returns_tuple = leaves_of(result)
        left = _written(doubled, before)
        return Forward(outputs, self._take_changes(model), returns_tuple, changed_inputs=left)

    def _take_changes(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Buffers that a forward changed; the module is put back to its initial state."""
        changed = {}
        with torch.no_grad():
            for name, value in model.named_buffers():
                start = self.initial_state.get(name)
                if start is not None and not torch.equal(
                    value.to(start.device, start.dtype), start
                ):
                    changed[name] = value.clone()
                    value.copy_(start)
        return changed


def _versions(values: Sequence[object]) -> list[int]:
    """How often each value was written to; 0 for what is no tensor."""
    return [value._version if isinstance(value, torch.Tensor) else 0 for value in values]


def _written(values: Sequence[object], before: Sequence[int]) -> dict[int, torch.Tensor]:
    """The tensors that were written to since, by index."""
    return {
        index: value
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value._version != before[index]
    }


@contextmanager
def encodable_values(problem: Problem) -> Iterator[None]:
    """Say in one line that no worker can be given some value. Raises ProblemError."""
    try:
        yield
    except TypeError as ex:
        raise ProblemError(
            f"{problem.path}: {ex}; use dense tensors, numbers, strings and lists of numbers "
            f"as inputs and constructor arguments"
        ) from ex
