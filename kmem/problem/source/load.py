"""Read a problem file, hold it to the contract, and build its module and inputs at a workload.

The contract is KernelBench's: `Model(*get_init_inputs())` applied to `get_inputs()`;
`get_init_inputs` may be absent. A problem may offer `get_small_inputs()` for machines without a
GPU. The file's author is the user, so the file is executed in this process. Every fault of the file
is a ProblemError of one line. workload.py derives the small workload, trace.py the graph.
"""

import ast
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kmem.errors import DeviceMemoryError, ProblemError, first_line
from kmem.host.deadline import DeadlinePassed, deadline
from kmem.host.project_modules import project_directories, use_project
from kmem.host.syntax import parse_python
from kmem.problem.source.reach import assigned_constants
from kmem.problem.source.substitution import compiled, keep_parts
from kmem.problem.tracing.fake import (
    cast_fake_module,
    cast_floating,
    casting_constructors,
    quiet_fake_tensors,
)
from kmem.records import Precision, Problem, Workload

FULL = Workload("full")

#: For one forward on fake tensors, which compute nothing: the largest models take seconds.
FORWARD_DEADLINE_S = 60.0

_NAME_NO_DEVICE = "name no device in the file: kmem puts the module and its inputs on the GPU"


def load_problem(path: str | Path) -> Problem:
    """Read and check a problem file without executing it.

    A directory stands for the `problem.py` in it.

    Raises ProblemError: if there is no such file, it does not parse, or it lacks `Model` or
        `get_inputs`.
    """
    place = Path(path)
    if place.is_dir():
        place = place / "problem.py"
    if not place.is_file():
        if ":" in place.name:
            raise ProblemError(
                f"{place} names a model, as FILE:NAME or PACKAGE:NAME, and this takes a problem "
                "file; `kmem plan` shows what a run would make of a model, `kmem optimize` makes "
                "it fast"
            )
        raise ProblemError(
            f"No problem file at {place}; give the path of a Python file with Model and get_inputs"
        )
    try:
        source = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as ex:
        raise ProblemError(
            f"Cannot read {place}: {first_line(ex)}; give a readable UTF-8 file"
        ) from ex
    try:
        tree = parse_python(source, filename=str(place))
    except (SyntaxError, ValueError) as ex:
        where = f"line {ex.lineno}: {ex.msg}" if isinstance(ex, SyntaxError) else str(ex)
        raise ProblemError(f"{place} is not valid Python, {where}; mend it and run again") from ex
    defined = _top_level_names(tree)
    for name, what in (
        ("Model", "a torch.nn.Module"),
        ("get_inputs", "a function that returns the list of forward's inputs"),
    ):
        if name not in defined:
            raise ProblemError(
                f"{place} defines no {name}; the KernelBench contract wants {name}, {what}"
            )
    absolute = place.resolve()
    directory = absolute.parent.name if place.name == "problem.py" else ""
    return Problem(directory or place.stem, str(absolute), source)


def _top_level_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in statement.names)
        else:
            names.update(name for name, _ in assigned_constants(statement))
    return names


def execute_problem(problem: Problem, workload: Workload = FULL) -> types.ModuleType:
    """Run the file's top level, with the workload's sizes put in place of the file's own.

    Raises ProblemError: if the top level raises.
    """
    module = types.ModuleType(f"kmem_problem_{problem.hash[:12]}_{workload.name}")
    module.__file__ = problem.path
    use_project(project_directories(problem.path))
    sizes = dict(workload.constants)
    try:
        with redirect_stdout(sys.stderr):  # stdout carries kmem's data alone
            for code in compiled(problem, sizes):
                exec(code, module.__dict__)
    except ModuleNotFoundError as ex:
        raise ProblemError(
            f"{problem.path} needs the module {ex.name}, which is neither installed here nor lies "
            "beside the file or at the root of its project; install it, or put it there"
        ) from ex
    except (Exception, SystemExit) as ex:
        if _is_relative_import(ex):
            raise ProblemError(
                f"{problem.path} imports relatively ({ex}), but a problem is run by itself; write "
                "`from package.module import ...`, counted from the root of its project"
            ) from ex
        raise ProblemError(
            f"{problem.path} fails when it is run: {first_line(ex)}; mend it and run again"
        ) from ex
    if workload.small_inputs:
        module.get_inputs = module.get_small_inputs
    elif any(name.startswith("inputs[") for name in sizes):
        module.get_inputs = keep_parts(module.get_inputs, sizes)
    return module


def _is_relative_import(ex: BaseException) -> bool:
    return isinstance(ex, ImportError) and "relative import" in str(ex)


def build_model(
    module: types.ModuleType, device: torch.device | str, precision: Precision = Precision.MATCH
) -> torch.nn.Module:
    """`Model(*get_init_inputs())` on a device, in the mode in which its constructor leaves it.

    With BF16 the module is cast to bfloat16.

    Raises ProblemError: if `get_init_inputs` or the constructor raises, the former returns no list,
        or Model is no module. DeviceMemoryError: if it does not fit.
    """
    model = construct_model(module, device)
    model = _call(module, "Model", lambda: model.to(device))
    return model.to(torch.bfloat16) if precision is Precision.BF16 else model


def construct_model(module: types.ModuleType, device: torch.device | str) -> torch.nn.Module:
    init_inputs = constructor_arguments(module)

    def construct() -> torch.nn.Module:
        with torch.device(device):
            return module.Model(*init_inputs)

    model = _call(module, f"Model({', '.join(map(_shorten, init_inputs))})", construct)
    if not isinstance(model, torch.nn.Module):
        raise ProblemError(
            f"{module.__file__}: Model makes a {type(model).__name__}; "
            "the contract wants a torch.nn.Module"
        )
    return model


def constructor_arguments(module: types.ModuleType) -> list[object]:
    """What `get_init_inputs()` returns; nothing where the file has no such function.

    Raises ProblemError: if it raises or returns no list.
    """
    if not hasattr(module, "get_init_inputs"):
        return []
    returned = _call(module, "get_init_inputs", module.get_init_inputs)
    wanted = "the list of Model's arguments, as in [4] or []"
    return _listed(module, "get_init_inputs()", returned, wanted)


def build_inputs(
    module: types.ModuleType, device: torch.device | str, precision: Precision = Precision.MATCH
) -> list[object]:
    """`get_inputs()` made directly on a device, with BF16 floating tensors cast to bfloat16.

    Raises ProblemError: if it raises, returns anything but a list with something in it, or makes
        tensors on a GPU that is not there. DeviceMemoryError: if they do not fit.
    """

    def make() -> object:
        with torch.device(device):
            return module.get_inputs()

    wanted = "the list of forward's inputs"
    inputs = _listed(module, "get_inputs()", _call(module, "get_inputs()", make), wanted)
    if not inputs:
        raise ProblemError(
            f"{module.__file__}: get_inputs() returned an empty list; it must return {wanted}"
        )
    # fake tensors may be on any device; real ones, as a run makes them later, may not
    named_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs)
    if named_gpu and not torch.cuda.is_available():
        raise ProblemError(
            f"{module.__file__}: get_inputs() makes tensors on a GPU, and there is none here; "
            f"{_NAME_NO_DEVICE}"
        )
    on = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    if "meta" in on and torch.device(device).type != "meta":
        raise ProblemError(
            f"{module.__file__}: get_inputs() makes tensors on the meta device, which have no "
            "values; make them without a device"
        )
    moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs]
    if precision is Precision.BF16:
        moved = [cast_floating(value, torch.bfloat16) for value in moved]
    return moved


def sketch_inputs(
    module: types.ModuleType, precision: Precision = Precision.MATCH
) -> list[object] | None:
    """`build_inputs` on fake tensors, which take no memory; None where values must be looked at.

    Raises ProblemError: as `build_inputs` does.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), quiet_fake_tensors():
            return build_inputs(module, "cpu", precision)
    except ProblemError as ex:
        if not isinstance(ex.__cause__, DataDependentOutputException | DynamicOutputShapeException):
            raise
        return None


@dataclass(frozen=True, slots=True)
class ForwardSizes:
    """Elements of all that a forward returns, and of its module's parameters and buffers.

    `calls` are those that it makes of torch: a loop over time steps makes some for each.
    """

    outputs: int
    parameters: int
    calls: int


class _Calls(TorchFunctionMode):
    """Counts calls of torch, composite operators once each.

    Where `sizes_only` are wanted, a batch norm makes what is as large as its input: on meta tensors
    torch takes it apart, 2 ms for each in a network of a hundred. One value of a channel is left to
    torch, which may refuse.
    """

    def __init__(self, *, sizes_only: bool) -> None:
        super().__init__()
        self.count = 0
        self._sizes_only = sizes_only

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.count += 1
        if self._sizes_only and function is torch.nn.functional.batch_norm and args:
            values = args[0]
            if values.dim() > 1 and values.numel() > values.shape[1]:
                return torch.empty_like(values)
        return function(*args, **(kwargs or {}))


def check_forward(
    module: types.ModuleType, precision: Precision = Precision.MATCH
) -> ForwardSizes | None:
    """Run one forward on fake tensors: nothing is computed, no memory is taken.

    Covered: shapes, dtypes, devices and numbers of arguments that do not fit. Not covered: what
    depends on values; such a forward passes.

    Returns: How large it is; None if that depends on values.

    Raises ProblemError: if `get_inputs`, the constructor or the forward raises, with its own error
        in one line, or does not end, or no tensor is returned.
    """
    try:
        with _in_time(module), FakeTensorMode(allow_non_fake_inputs=True), quiet_fake_tensors():
            return _run_forward(module, "cpu", precision)
    except ProblemError as ex:
        if not isinstance(ex.__cause__, DataDependentOutputException | DynamicOutputShapeException):
            raise
        return None


def size_forward(module: types.ModuleType) -> ForwardSizes:
    """How large a forward is, found on meta tensors: often in a quarter of `check_forward`'s time.

    Raises ProblemError: as `check_forward` does; and where a value is asked for, or tensors are
        made on a device by name, which fake tensors put up with.
    """
    with _in_time(module), torch.device("meta"):
        return _run_forward(module, "meta", Precision.MATCH)


@contextmanager
def _in_time(module: types.ModuleType) -> Iterator[None]:
    try:
        with deadline(FORWARD_DEADLINE_S):
            yield
    except DeadlinePassed as ex:
        raise ProblemError(
            f"{module.__file__}: get_inputs, Model and forward have not ended after "
            f"{FORWARD_DEADLINE_S:g} s on tensors without data; look for a loop that never ends"
        ) from ex


def _run_forward(module: types.ModuleType, device: str, precision: Precision) -> ForwardSizes:
    with torch.no_grad(), casting_constructors():
        inputs = build_inputs(module, device, precision)
        model = construct_model(module, device)
        if precision is Precision.BF16:
            model = cast_fake_module(model, torch.bfloat16)
        with _Calls(sizes_only=device == "meta") as calls:
            outputs = _call(module, "forward", lambda: model(*inputs))
    leaves = tree_leaves(outputs)
    if all(isinstance(leaf, int | float | str | None) for leaf in leaves):
        raise ProblemError(
            f"{module.__file__}: forward returned {_shorten(outputs)}; "
            "it must return a tensor, or several"
        )
    if any(isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided for leaf in leaves):
        raise ProblemError(
            f"{module.__file__}: forward returned a sparse tensor; it must return dense ones"
        )
    returned = sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return ForwardSizes(returned, _count_elements(model), calls.count)


def count_parameters(module: types.ModuleType) -> int:
    """Elements of the parameters and buffers of `Model`, which is built on fake tensors.

    Raises ProblemError: if that fails.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, casting_constructors(), quiet_fake_tensors():
        return _count_elements(construct_model(module, "cpu"))


def _count_elements(model: torch.nn.Module) -> int:
    held = {id(value): value for value in (*model.parameters(), *model.buffers())}
    return sum(value.numel() for value in held.values())


def _call(module: types.ModuleType, what: str, function: Callable[[], object]) -> object:
    """Call the user's code; whatever it raises becomes one line that names the file and the call.

    An exit is among what it may raise.
    """
    try:
        with redirect_stdout(sys.stderr):
            return function()
    except torch.OutOfMemoryError as ex:
        raise DeviceMemoryError(
            f"{module.__file__}: {what} does not fit the device's memory; "
            "make its size constants smaller"
        ) from ex
    except (Exception, SystemExit) as ex:
        reason = first_line(ex)
        remedy = "it must run in PyTorch as it is"
        if "cuda" in reason.lower():
            remedy = _NAME_NO_DEVICE
        raise ProblemError(f"{module.__file__}: {what} raised {reason}; {remedy}") from ex


def _listed(module: types.ModuleType, what: str, returned: object, wanted: str) -> list[object]:
    """What the user's function returned, as a list. Raises ProblemError: if it is none."""
    if isinstance(returned, list | tuple):
        return list(returned)
    said = " ".join(_shorten(returned).split())  # one line
    if isinstance(returned, torch.Tensor):  # its text is the values, or says that it is fake
        said = "a tensor"
    raise ProblemError(f"{module.__file__}: {what} returned {said}; it must return {wanted}")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
