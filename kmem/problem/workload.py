"""Derive the small workload of a problem: sizes at which the interpreter ends in seconds.

Triton's interpreter runs programs one by one. The module-level integers of a problem file that only
shape the inputs are replaced by smaller ones; those that reach `get_init_inputs` (directly or
through other constants) shape parameters and stay. Every choice is checked by tracing on fake
tensors: the same operators in the same order on the same parameters as at full size.

Covered: integers and tuples or lists of integers assigned once at top level; what is computed from
them follows when the file runs. Not covered: sizes written inside `get_inputs` (the problem must
then offer `get_small_inputs()`), and whether the values still mean the same.
"""

import ast
import logging
import math
import symtable
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.errors import ProblemError
from kmem.host.syntax import parse_python
from kmem.problem.fake import quiet_fake_tensors
from kmem.problem.graph import OpGraph
from kmem.problem.load import FULL, assigned_constants, build_inputs, check_forward, execute_problem
from kmem.problem.trace import trace_problem
from kmem.records import Problem, TensorSpec, Workload

logger = logging.getLogger(__name__)

#: Elements of all inputs and outputs that the interpreter handles in seconds.
MAX_SMALL_ELEMENTS = 65536

#: A workload of fewer elements hardly exercises a kernel's loops and masks; another way to shrink
#: is tried then.
_AMPLE_ELEMENTS = 2048

#: Constants up to this size are left alone: they are dimensions, kernel sizes, axes, or small
#: already.
_KEEP_BELOW = 4

#: Sizes tried, largest first.
_LADDER = sorted(
    {2, 3} | {step * 2**power for power in range(14) for step in (4, 5, 6, 7)}, reverse=True
)

Sizes = dict[str, int | tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Style:
    """One way to make the numbers of constants about as large as a size.

    `shrink(value, size, index)` does so with the `index`-th number. With `small_batch`, batches get
    an eighth of the other sizes, for they repeat what one element shows.
    """

    name: str
    shrink: Callable[[int, int, int], int]
    small_batch: bool = False


def derive_small_workload(problem: Problem) -> Workload:
    """The workload named "small".

    Returns: One with `small_inputs` if the problem has `get_small_inputs`; one without constants if
        the problem is small as it is; else the largest sizes within MAX_SMALL_ELEMENTS. Where
        parameters are so large that no sizes are, the smallest sizes that work, and a warning in
        the log.
    Raises ProblemError: if the inputs are large and no top-level constant shapes them alone.
    """
    full = execute_problem(problem)
    if hasattr(full, "get_small_inputs"):
        return Workload("small", small_inputs=True)
    search = _Search(problem, trace_problem(full, both_modes=False))
    if search.elements(FULL) <= MAX_SMALL_ELEMENTS:
        return Workload("small")
    constants = find_input_constants(problem, full)
    if not constants:
        raise ProblemError(
            f"{problem.path}: no top-level integer shapes the inputs alone, "
            "so no small workload can be derived; "
            "name the sizes at top level or define get_small_inputs()"
        )
    workload = search.run(constants)
    if workload is None:
        raise ProblemError(
            f"{problem.path}: the module works at no smaller sizes of {', '.join(constants)}; "
            "define get_small_inputs()"
        )
    total = search.elements(workload)
    if total > MAX_SMALL_ELEMENTS:
        logger.warning(
            "%s: its parameters keep the small workload at %d elements; "
            "the interpreter will be slow",
            problem.path,
            total,
        )
    return workload


def find_input_constants(problem: Problem, module: types.ModuleType) -> Sizes:
    """Top-level integers, and tuples of them, that shape the inputs alone, with their full values.

    They reach `get_inputs` and neither `get_init_inputs` nor `Model`.
    """
    tree = parse_python(problem.source)
    expressions: dict[str, ast.expr] = {}
    assigned_again: set[str] = set()
    for statement in tree.body:
        for name, expression in assigned_constants(statement):
            if name in expressions:
                assigned_again.add(name)
            expressions[name] = expression
    reads = {name: _names(expression) for name, expression in expressions.items()}
    reads |= _definitions_read(problem, tree)
    shaping = _reached({"get_inputs"}, reads)
    protected = _reached({"get_init_inputs", "Model"}, reads)
    found: Sizes = {}
    for name in expressions:  # in the file's order
        value = module.__dict__.get(name)
        numbers = value if isinstance(value, tuple | list) else (value,)
        is_computed = bool(reads[name] & expressions.keys())
        if name not in shaping - protected - assigned_again or is_computed:
            continue
        are_sizes = numbers and all(type(number) is int for number in numbers)
        if are_sizes and max(numbers) > _KEEP_BELOW:
            found[name] = value if isinstance(value, int) else tuple(value)
    return found


def _definitions_read(problem: Problem, tree: ast.Module) -> dict[str, set[str]]:
    """The module-level names that each top-level function and class reads.

    Bodies, defaults and bases are looked at.
    """
    reads: dict[str, set[str]] = {}
    for scope in symtable.symtable(problem.source, problem.path, "exec").get_children():
        reads.setdefault(scope.get_name(), set()).update(_globals_read(scope))
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            reads[statement.name].update(*map(_names, statement.bases))
        elif isinstance(statement, ast.FunctionDef):
            reads[statement.name].update(*map(_names, statement.args.defaults))
    return reads


def _globals_read(scope: symtable.SymbolTable) -> set[str]:
    """Module-level names that a function or class reads.

    A parameter of the same name is another thing.
    """
    names = {
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_global() and symbol.is_referenced()
    }
    return names.union(*(_globals_read(child) for child in scope.get_children()))


def _reached(roots: set[str], reads: dict[str, set[str]]) -> set[str]:
    """Everything the roots read, directly or through other constants, functions and classes."""
    reached: set[str] = set()
    waiting = set(roots)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting |= reads.get(name, set())
    return reached


def _names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def _odd_like(value: int, size: int) -> int:
    """An odd size stays odd."""
    return size | 1 if value % 2 else size


def _off_powers_of_two(value: int, size: int, index: int) -> int:
    """Sizes that exercise masks."""
    return _odd_like(value, size + (1, 3, 2)[index % 3] if size > 3 else size)


def _equal(value: int, size: int, index: int) -> int:
    """Equal sizes stay equal, for modules that rely on it."""
    return _odd_like(value, size + 1)


def _power_of_two(value: int, size: int, index: int) -> int:
    """Sizes for modules that divide."""
    return _odd_like(value, 2 ** (size.bit_length() - 1))


def _halved(value: int, size: int, index: int) -> int:
    """Halves of the full size, for modules that divide."""
    return value >> max(0, math.ceil(math.log2(value / size)))


#: Ways to shrink, best first.
_STYLES = (
    _Style("off powers of two", _off_powers_of_two, small_batch=True),
    _Style("equal sizes", _equal),
    _Style("powers of two", _power_of_two, small_batch=True),
    _Style("halves", _halved),
)


class _Search:
    """Tries sizes for one problem; remembers what the full graph looks like."""

    def __init__(self, problem: Problem, graph: OpGraph) -> None:
        self.problem = problem
        self.graph = graph

    def run(self, constants: Sizes) -> Workload | None:
        """The largest sizes within the budget; else the smallest that work.

        If nothing works, the same is tried with the constants that can be shrunk alone.
        """
        chosen = self._shrink(constants)
        if chosen is None:
            alone = {
                name: value
                for name, value in constants.items()
                if self._shrink({name: value}) is not None
            }
            chosen = self._shrink(alone) if alone and len(alone) < len(constants) else None
        return chosen

    def _shrink(self, constants: Sizes) -> Workload | None:
        """The first style whose largest fitting sizes are ample, else the best of all styles.

        If none fits, the smallest sizes that work.
        """
        best, most = None, 0
        smallest: Workload | None = None
        for style in _STYLES:
            for workload in _proposals(constants, style):
                is_last = workload == _propose(constants, style, _LADDER[-1])
                if self._input_elements(workload) > MAX_SMALL_ELEMENTS and not is_last:
                    continue
                total = self._valid_elements(workload)
                if total is not None and total <= MAX_SMALL_ELEMENTS:
                    if total >= _AMPLE_ELEMENTS:
                        return workload
                    if total > most:
                        best, most = workload, total
                    break
                if total is not None and smallest is None:
                    smallest = workload
        return best or smallest

    def elements(self, workload: Workload) -> int:
        """Elements of all inputs and, if the graph can be traced, outputs."""
        graph = self.graph
        if workload is not FULL:
            graph = trace_problem(execute_problem(self.problem, workload), both_modes=False)
        return self._input_elements(workload) + _output_elements(graph)

    def _input_elements(self, workload: Workload) -> int:
        """Without tracing; more than any budget if `get_inputs` does not work at these sizes."""
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), quiet_fake_tensors():
                inputs = build_inputs(execute_problem(self.problem, workload), "cpu")
        except ProblemError:
            if workload is FULL:
                raise
            return MAX_SMALL_ELEMENTS + 1
        return sum(value.numel() for value in inputs if isinstance(value, torch.Tensor))

    def _valid_elements(self, workload: Workload) -> int | None:
        """Elements of inputs and outputs; None if the forward is another program at these sizes.

        It must run the same operators on the same parameters.
        """
        try:
            module = execute_problem(self.problem, workload)
            graph = trace_problem(module, both_modes=False)
            if graph.opaque_reason is not None:
                check_forward(module)
        except ProblemError:
            return None
        if _shape_of_program(graph) != _shape_of_program(self.graph):
            return None
        return self._input_elements(workload) + _output_elements(graph)


def _shape_of_program(graph: OpGraph) -> tuple[object, ...]:
    parameters = [
        placeholder.spec
        for placeholder in graph.placeholders
        if placeholder.kind in ("parameter", "buffer")
    ]
    ranks = [_rank(node.output) for node in graph.nodes]
    return (graph.opaque_reason is None, [node.target for node in graph.nodes], ranks, parameters)


def _rank(output: TensorSpec | tuple[TensorSpec, ...] | None) -> object:
    return len(output.shape) if isinstance(output, TensorSpec) else None


def _output_elements(graph: OpGraph) -> int:
    return sum(graph.spec(name).numel for name in graph.outputs)


def _proposals(constants: Sizes, style: _Style) -> Iterator[Workload]:
    """Workloads of one style, largest sizes first, each once."""
    yield from dict.fromkeys(_propose(constants, style, size) for size in _LADDER)


def _propose(constants: Sizes, style: _Style, size: int) -> Workload:
    """Every number shrunk to about `size`, in one style."""
    index = 0
    chosen: list[tuple[str, int | tuple[int, ...]]] = []
    for name, value in constants.items():
        numbers = []
        aim = max(2, size // 8) if style.small_batch and "batch" in name.lower() else size
        for number in value if isinstance(value, tuple) else (value,):
            if number > _KEEP_BELOW:
                number = max(2, min(number, style.shrink(number, aim, index)))
            numbers.append(number)
            index += 1
        chosen.append((name, tuple(numbers) if isinstance(value, tuple) else numbers[0]))
    return Workload("small", tuple(chosen))
