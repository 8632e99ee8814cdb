"""Which sizes of a piece may vary, and how all its others follow from them.

The graph is run on fake tensors whose sizes are symbols; what torch then demands of the symbols are
the equations between the sizes. Those that remain free get names, and every other size and every
size written in the graph (of a view, say) becomes an expression of them. So a piece can be shrunk
for the interpreter, weights and all, and asked for at other shapes.

What is found is held to the graph: at the sizes of the model every expression has the value that it
stands for, and a run at other sizes is the same operators. Where that fails all sizes stay numbers.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import FloorDiv

from kmem.host.deadline import DeadlinePassed, deadline
from kmem.problem.graph import Arg, Node, OpGraph, Placeholder, Ref
from kmem.problem.operators.row import Convolution
from kmem.problem.operators.table import find_operator
from kmem.problem.tracing.evaluate import evaluate_node
from kmem.problem.tracing.fake import quiet_fake_tensors

logger = logging.getLogger(__name__)

#: Sizes up to this are dimensions, kernel sizes or numbers of heads' parts: they stay.
_KEEP_UP_TO = 4
#: For one piece; a block of forty operators takes a second or two.
_DEADLINE_S = 30.0

#: Places of the arguments that are sizes, by operator; those of others are left alone.
_SIZE_ARGUMENTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "expand", "unflatten"), (1, 2)),
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty", "new_full"), (1,)),
    **dict.fromkeys(("zeros", "ones", "empty", "full"), (0,)),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "split_with_sizes"), (1,)),
    **dict.fromkeys(("select_backward", "slice_backward"), (1,)),
    "native_layer_norm_backward": (2,),
    "native_group_norm": (3, 4, 5),
    "native_group_norm_backward": (5, 6, 7),
    "convolution_backward": (3,),
    **dict.fromkeys(("split",), (1,)),
    **dict.fromkeys(("slice", "narrow"), (2, 3)),
    "arange": (0, 1),
}


#: By operator the argument whose sizes it is told again, and where: of which axes each is the
#: product.
_TIED: Mapping[str, tuple[int, Mapping[tuple[int, ...], slice]]] = {
    "native_layer_norm_backward": (1, {(2, 0): slice(-1, None)}),
    "native_group_norm": (
        0,
        {(3,): slice(0, 1), (4,): slice(1, 2), (5,): slice(2, None)},
    ),
    "native_group_norm_backward": (
        1,
        {(5,): slice(0, 1), (6,): slice(1, 2), (7,): slice(2, None)},
    ),
    "convolution_backward": (0, {(3, 0): slice(1, 2)}),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The free sizes of a graph by name, with what they are, and all others as Python expressions.

    `dims` has an expression for each dimension of each tensor placeholder, `literals` one for each
    size written in a node, by the node's name and the place in its arguments.
    """

    free: Mapping[str, int]
    dims: Mapping[str, tuple[str, ...]]
    literals: Mapping[tuple[str, tuple[int, ...]], str]


@dataclass(frozen=True, slots=True)
class Before:
    """What runs before a graph, whose sizes its own follow from.

    Placeholders of the graph are alike to the values of the same name there, those in `alike` to
    others; `made` says what is alike of the graph's outputs.
    """

    graph: OpGraph
    alike: Mapping[str, str]
    made: Mapping[str, str]


def find_sizes(graph: OpGraph, before: Before | None = None) -> Sizes:
    """The free sizes of a piece; none where they cannot be told."""
    try:
        with deadline(_DEADLINE_S), quiet_fake_tensors():
            return _Search(graph).run(before)
    except DeadlinePassed:
        logger.info("sizes of a piece are not told apart within %g s", _DEADLINE_S)
    except Exception as ex:  # noqa: BLE001 - torch and sympy raise anything for what they lack
        logger.info("sizes of a piece cannot be told apart: %s", ex)
    return fixed_sizes(graph)


def fixed_sizes(graph: OpGraph) -> Sizes:
    """Every size as the number that it is."""
    dims = {
        each.name: tuple(map(str, each.spec.shape))
        for each in graph.placeholders
        if each.spec is not None
    }
    return Sizes({}, dims, {})


def size_places(node: Node) -> list[tuple[tuple[int, ...], int]]:
    """Where a node has sizes written, as places in its nested arguments, with their values."""
    name = node.target.removeprefix("aten.").split(".")[0]
    found = []
    for place in _SIZE_ARGUMENTS.get(name, ()):
        if place >= len(node.args):
            continue
        arg = node.args[place]
        if isinstance(arg, tuple):
            found += [((place, inner), each) for inner, each in enumerate(arg)]
        else:
            found.append(((place,), arg))
    return [
        (where, value)
        for where, value in found
        if type(value) is int and _KEEP_UP_TO < value < 2**62
    ]


def with_sizes(node: Node, sizes: Mapping[tuple[int, ...], Arg]) -> Node:
    """A node with other arguments in some places."""

    def swap(arg: Arg, where: tuple[int, ...]) -> Arg:
        if where in sizes:
            return sizes[where]
        if isinstance(arg, tuple):
            return tuple(swap(item, (*where, place)) for place, item in enumerate(arg))
        return arg

    return replace(node, args=tuple(swap(arg, (place,)) for place, arg in enumerate(node.args)))


class _Search:
    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.env = ShapeEnv(duck_shape=False, specialize_zero_one=True)
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.hints: dict[sympy.Symbol, int] = {}

    def run(self, before: Before | None) -> Sizes:
        dims: dict[str, tuple[object, ...]] = {}
        literals: dict[tuple[str, tuple[int, ...]], object] = {}
        values: dict[str, Any] = {}
        earlier: dict[str, Any] = {}
        with self.mode, torch.no_grad():
            if before is not None:
                self._go(before.graph, earlier, {}, {})
                named = {each.name: each.name for each in self.graph.placeholders}
                for name, source in {**named, **before.alike}.items():
                    value = earlier.get(source)
                    if isinstance(value, torch.Tensor):
                        values[name] = value
                        dims[name] = tuple(value.shape)
            self._go(self.graph, values, dims, literals)
            for name, source in (before.made if before is not None else {}).items():
                for one, other in zip(values[name].shape, earlier[source].shape, strict=True):
                    torch._check(one == other)
        solved = self._solve()
        return self._name(solved, dims, literals)

    def _go(
        self,
        graph: OpGraph,
        values: dict[str, object],
        dims: dict[str, tuple[object, ...]],
        literals: dict[tuple[str, tuple[int, ...]], object],
    ) -> None:
        """Run a graph, and add what it starts from and makes, and its sizes, to what is known."""
        for each in graph.placeholders:
            if each.name in values:
                continue
            if each.spec is None:
                values[each.name] = each.value
                continue
            if each.kind == "constant":
                values[each.name] = _constant(each)
                continue
            fixed = _taps(graph, each.name)
            sizes = tuple(
                size if axis in fixed else self._symbol(size)
                for axis, size in enumerate(each.spec.shape)
            )
            dims[each.name] = sizes
            values[each.name] = self._tensor(each, sizes)
        for node in graph.nodes:
            for where, value in size_places(node):
                literals[node.name, where] = self._symbol(value)
            self._tie(node, values, literals)
            values[node.name] = self._call(node, values, literals)

    def _tie(
        self,
        node: Node,
        values: Mapping[str, object],
        literals: Mapping[tuple[str, tuple[int, ...]], object],
    ) -> None:
        """Demand of sizes in a node what its operator demands, and does not check on fake tensors.

        So it is with backwards, which are told sizes that are their inputs' own.
        """
        name = node.target.removeprefix("aten.").split(".")[0]
        read, tied = _TIED.get(name, (0, {}))
        for where, axes in tied.items():
            symbol = literals.get((node.name, where))
            if symbol is not None:
                shape = values[node.args[read].name].shape
                torch._check(symbol == math.prod(shape[axes]))

    def _symbol(self, hint: int) -> object:
        if hint <= _KEEP_UP_TO:
            return hint
        source = ConstantSource(f"size_{len(self.hints)}")
        symbol = self.env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        self.hints[symbol] = hint
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    def _tensor(self, placeholder: Placeholder, sizes: Sequence[object]) -> torch.Tensor:
        spec = placeholder.spec
        order = sorted(range(len(sizes)), key=lambda axis: -spec.stride[axis])
        dtype = getattr(torch, spec.dtype)
        made = torch.empty([sizes[axis] for axis in order], dtype=dtype, device="cpu")
        back = sorted(range(len(order)), key=order.__getitem__)
        return made.permute(back)

    def _call(
        self,
        node: Node,
        values: dict[str, object],
        literals: Mapping[tuple[str, tuple[int, ...]], object],
    ) -> object:
        given = {
            where: f"size of {node.name} {where}" for name, where in literals if name == node.name
        }
        for where, name in given.items():
            values[name] = literals[node.name, where]
        node = with_sizes(node, {where: Ref(name) for where, name in given.items()})
        return evaluate_node(node, values, device=torch.device("cpu"))

    def _solve(self) -> dict[sympy.Symbol, sympy.Expr]:
        """What symbols are replaced by, from the equations that the run demanded."""
        solved: dict[sympy.Symbol, sympy.Expr] = {}

        def now(expression: sympy.Expr) -> sympy.Expr:
            return sympy.expand(expression.xreplace(solved))

        equations = [guard.expr for guard in self.env.guards]
        equations += [sympy.Eq(old, new) for old, new in self.env.replacements.items()]
        todo = [each for each in equations if isinstance(each, sympy.Eq)]
        while todo:  # what cannot be isolated may be once others are
            later = []
            for equation in todo:
                left, right = _without_floors(now(equation.lhs), now(equation.rhs))
                left, right = now(left), now(right)
                if left == right:
                    continue
                found = None
                if not (left - right).atoms(sympy.Function):
                    try:
                        found = self._isolated(left, right)
                    except Exception as ex:  # noqa: BLE001 - sympy gives up in many ways
                        logger.debug("an equation of sizes is left out: %s (%s)", equation, ex)
                        continue
                if found is None:
                    later.append(equation)
                    continue
                symbol, value = found
                solved = {old: new.xreplace({symbol: value}) for old, new in solved.items()}
                solved[symbol] = value
            if len(later) == len(todo):
                break
            todo = later
        return solved

    def _isolated(
        self, left: sympy.Expr, right: sympy.Expr
    ) -> tuple[sympy.Symbol, sympy.Expr] | None:
        """A symbol of an equation by itself: the largest that is a polynomial of the others."""
        symbols = (left - right).free_symbols
        for symbol in sorted(symbols, key=lambda each: (-self.hints.get(each, 0), str(each))):
            for value in sympy.solve(sympy.Eq(left, right), symbol):
                value = sympy.expand(value)
                whole = value.is_polynomial(*value.free_symbols) and all(
                    coefficient.is_Integer
                    for coefficient in sympy.Poly(
                        value, *sorted(value.free_symbols, key=str)
                    ).coeffs()
                    if value.free_symbols
                )
                fits = value.is_Integer or (value.free_symbols and whole)
                if fits and value.subs(self.hints) == self.hints.get(symbol):
                    return symbol, value
        return None

    def _name(
        self,
        solved: Mapping[sympy.Symbol, sympy.Expr],
        dims: Mapping[str, tuple[object, ...]],
        literals: Mapping[tuple[str, tuple[int, ...]], object],
    ) -> Sizes:
        def expression(size: object) -> sympy.Expr:
            if isinstance(size, int):
                return sympy.Integer(size)
            return sympy.expand(size.node.expr.xreplace(solved))

        inputs = [each.name for each in self.graph.placeholders if each.kind == "input"]
        ordered = [*inputs, *(name for name in dims if name not in inputs)]
        taken = {value.name for value in (*self.graph.placeholders, *self.graph.nodes)}
        names: dict[sympy.Symbol, sympy.Symbol] = {}
        for name in ordered:
            for axis, size in enumerate(dims.get(name, ())):
                for symbol in sorted(expression(size).free_symbols, key=str):
                    is_batch = not names and axis == 0 and "batch" not in taken
                    label = "BATCH" if is_batch else f"SIZE_{len(names)}"
                    names.setdefault(symbol, sympy.Symbol(label, integer=True, positive=True))
        for size in literals.values():
            for symbol in sorted(expression(size).free_symbols, key=str):
                names.setdefault(symbol, sympy.Symbol(f"SIZE_{len(names)}", positive=True))

        def text(size: object) -> str:
            return sympy.pycode(expression(size).xreplace(names))

        return Sizes(
            {str(label): self.hints[symbol] for symbol, label in names.items()},
            {name: tuple(map(text, sizes)) for name, sizes in dims.items()},
            {where: text(size) for where, size in literals.items()},
        )


def _taps(graph: OpGraph, name: str) -> range:
    """The dimensions of a convolution's weight that are its taps, which another size changes."""
    for user in graph.users(name):
        operator = find_operator(user.target)
        is_convolution = operator is not None and isinstance(operator.lowering, Convolution)
        if is_convolution and len(user.args) > 1 and user.args[1] == Ref(name):
            return range(2, len(graph.spec(name).shape))
    return range(0)


def _without_floors(left: sympy.Expr, right: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """An equation with a quotient on one side as one of products.

    A floor of a quotient in a product stands for the quotient, for torch divides sizes without
    remainder where one size is split into two.
    """

    def exact(expression: sympy.Expr) -> sympy.Expr:
        return expression.replace(FloorDiv, lambda a, b: a / b)

    difference = sympy.together(exact(left) - exact(right))
    top, _ = sympy.fraction(difference)
    positive = sympy.expand(top)
    plus = [term for term in sympy.Add.make_args(positive) if not term.could_extract_minus_sign()]
    minus = [-term for term in sympy.Add.make_args(positive) if term.could_extract_minus_sign()]
    return sympy.Add(*plus), sympy.Add(*minus)


def _constant(placeholder: Placeholder) -> torch.Tensor:
    dtype = getattr(torch, placeholder.spec.dtype)
    return torch.tensor(placeholder.value, dtype=dtype).expand(placeholder.spec.shape)
