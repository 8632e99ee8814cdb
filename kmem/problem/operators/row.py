"""The record of one operator: one row of the table, and the ways in which recipes can write it.

A row that recipes can write has a `lowering`. Its type says what kind of operator it is:

- `Pointwise`: an expression per element;
- `Reduction`: statements over the rows of a space (reductions, softmax, norms, losses);
- `Channelwise`: an expression per element whose parameters lie along dimension 1;
- `Product`, `Convolution`, `Scan`: what the recipes of these families read of it;
- `Layout`, `Fill`: elements moved, or one number everywhere.

An operator of which only some arguments can be written gives a function that chooses by the call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TypeAlias

from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.problem.operators.arithmetic import Arithmetic, per_result
from kmem.problem.operators.builder import RegionBuilder
from kmem.problem.operators.expressions import Expression, variable
from kmem.records import TensorSpec
from kmem.vocabulary import OPERATORS


class _Required:
    """Stands for the default of a parameter that must be given."""


REQUIRED = _Required()
#: Parameter -> default, in the order of the operator's schema.
Parameters: TypeAlias = Mapping[str, object]


def parameters(*required: str, **optional: object) -> Parameters:
    """Parameters of an operator in the order of its schema: `parameters("x", slope=0.01)`."""
    return MappingProxyType({**dict.fromkeys(required, REQUIRED), **optional})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator in a graph, with its arguments by name.

    Example: `call["eps"]` is the number that was given, or the parameter's default;
    `call.value("weight")` is the name of the graph value that was given, or None.
    """

    graph: OpGraph
    node: Node
    arguments: Mapping[str, object]

    @property
    def out(self) -> str:
        """The kernel variable of the result."""
        return variable(self.node.name)

    def __getitem__(self, name: str) -> Arg:
        """An argument; None if it is not given and has no default."""
        value = self.arguments.get(name)
        return None if value is REQUIRED else value

    def value(self, name: str) -> str | None:
        """The name of the graph value that an argument is; None for anything else."""
        given = self[name]
        return given.name if isinstance(given, Ref) else None

    def spec(self, name: str) -> TensorSpec:
        """The spec of an argument that is a graph value."""
        return self.graph.spec(self.value(name))


@dataclass(frozen=True, slots=True)
class Pointwise:
    """One expression per element, computed in fp32.

    Args:
        write: gets one text per parameter (a variable or a number; None and strings as they are)
            and returns the expression, or None if it cannot be written exactly enough.
        flags: parameters that take a bool tensor as it is; elsewhere a bool becomes 0.0 or 1.0.
        is_quotient: whether the expression is the first parameter over the second, so that one
            division per row is enough where the second is a value of the row.
        norm_order: the order of the norm that a sum of such elements belongs to, 1 for |x| and 2
            for squares; 0 for any other.
    """

    write: Callable[..., str | Expression | None]
    flags: tuple[str, ...] = ()
    is_quotient: bool = False
    norm_order: int = 0


class Grain(Enum):
    """What a row of a loss is: skills are about one grain each."""

    ELEMENTS = "elements"  # a term per element; everything is one row
    CLASSES = "classes"  # scores of one sample for every class
    FEATURES = "features"  # a vector that is compared with another


#: Reduced dimensions in ascending order, and whether the result keeps them as size 1.
Reduced: TypeAlias = tuple[tuple[int, ...], bool]


def has_loadable_results(build: RegionBuilder, call: Call) -> bool:
    """Whether every result is of a type that kernels store."""
    output = call.node.output
    results = output if isinstance(output, tuple) else (output,)
    return all(spec.dtype in (*FLOATS, "int64") for spec in results)


def _leaves_no_total(call: Call) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Summed:
    """What a reduction sums over everything, and what it makes of the sum.

    Args:
        term: appends the statements that make a term, and returns its variable.
        of_total: the result as a text over `total_0`, the sum of all terms of `x`.
        row: appends what makes the sum of a row otherwise, and returns its variable; None where
            there is no other way.
    """

    term: Callable[[RegionBuilder, Call], str]
    of_total: Callable[[Call], str]
    row: Callable[[RegionBuilder, Call], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Reduction:
    """Statements over the rows of a space.

    The operator's first parameter is called `x`: the tensor that it reduces.

    Args:
        dims: the dimensions that a row consists of; None if the call cannot be written.
        lower: appends the statements; the last of them makes `call.out`.
        supports: whether the other arguments of a call can be written.
        names_region: whether a region around it is called as the operator is (a norm, a softmax, a
            loss); a plain reduction may be part of something else.
        groups: the parameter that says how many groups dimension 1 falls into, if there is one.
        grain: of a loss: what a row is.
        leaves_total: whether a call ends in a sum over all rows.
        summed: of a sum or what is made of one alone: how what is summed is written, so that it may
            be summed by the rows of another space, and these once more.
    """

    dims: Callable[[Call], Reduced | None]
    lower: Callable[[RegionBuilder, Call], None]
    supports: Callable[[RegionBuilder, Call], bool] = has_loadable_results
    names_region: bool = False
    groups: str = ""
    grain: Grain | None = None
    leaves_total: Callable[[Call], bool] = _leaves_no_total
    summed: Summed | None = None


@dataclass(frozen=True, slots=True)
class Channelwise:
    """An expression per element whose parameters lie along dimension 1.

    Elsewhere parameters broadcast from the right.
    """

    lower: Callable[[RegionBuilder, Call], None]
    supports: Callable[[Call], bool]


@dataclass(frozen=True, slots=True)
class ProductTerms:
    """alpha * einsum(equation, a, b) + beta * bias, over names of graph values."""

    equation: str
    a: str
    b: str
    bias: str | None = None
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True)
class Product:
    """A product of two tensors; `read` returns None for calls that are no such product."""

    read: Callable[[Call], ProductTerms | None]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution over so many spatial dimensions. Its parameters have the names of torch's."""

    rank: int
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """A running reduction: kind "sum", "prod", "max" or "min"."""

    kind: str


class Layout(Enum):
    """What an operator does that moves elements, or describes them anew."""

    IDENTITY = auto()  # hands its first input on unchanged, up to shape
    CAST = auto()  # to another dtype
    RESHAPE = auto()  # other sizes of the same elements in the same order
    BROADCAST = auto()  # several tensors to one shape
    TAKE = auto()  # one result of an operator that has several
    MARKER = auto()  # a trace leaves it behind; nobody reads its value
    FLIP = auto()
    NARROW = auto()
    SLICE = auto()
    SELECT = auto()  # one place along a dimension, which falls away
    SPLIT = auto()  # several slices that follow each other along a dimension
    UNBIND = auto()  # every place along a dimension, which falls away
    SWAP = auto()  # two dimensions change places
    PERMUTE = auto()  # all dimensions in another order
    CONCATENATE = auto()
    STACK = auto()  # puts together along a new dimension
    PAD = auto()  # with a number around
    NEAREST = auto()  # every element as often as a result is a whole number of times longer
    SHUFFLE = auto()  # channels become blocks of pixels
    UNSHUFFLE = auto()  # and back
    UPPER = auto()  # keeps the upper triangle
    LOWER = auto()  # keeps the lower triangle
    DIAGONAL = auto()  # a matrix made from its diagonal, or the other way round


@dataclass(frozen=True, slots=True)
class Fill:
    """A new tensor with one number everywhere."""

    number: float


Lowering: TypeAlias = (
    Pointwise | Reduction | Channelwise | Product | Convolution | Scan | Layout | Fill
)


class Traffic(Enum):
    """How eager's own kernel reads its inputs."""

    ONCE = "once"
    TWICE = "twice"  # the first input: once for statistics, once for the result
    PART = "part"  # of the first input, only what is returned
    ROWS = "rows"  # of the first input, a row for each element of the second


@dataclass(frozen=True, slots=True)
class Operator:
    """One row: what everyone needs to know of an operator of the traced graph.

    `target` is as a node has it ("aten.relu.default"). Without its last part ("aten.relu") a row
    stands for every overload, in-place ones too, that has no row of its own. `name` is a word of
    vocabulary.OPERATORS. `lowering` is None if no recipe reads the operator from this table.

    `is_view`: the result is another view of the first input's memory, so that no kernel runs;
    `may_copy`: unless strides forbid it. `is_fresh`: the result is memory that nothing else holds,
    so that an in-place operator after it may be written out of place; False where nobody looked.
    `only_in_training`: in eval mode it does nothing. `checks_values`: a GPU stops at values that it
    has no answer for, such as an index out of range (a device-side assertion).
    """

    target: str
    name: str
    arithmetic: Arithmetic = per_result
    parameters: Parameters = field(default_factory=parameters)
    lowering: Lowering | Callable[[Call], Lowering | None] | None = None
    traffic: Traffic = Traffic.ONCE
    is_view: bool = False
    may_copy: bool = False
    is_fresh: bool = False
    only_in_training: bool = False
    checks_values: bool = False

    def __post_init__(self) -> None:
        if self.name not in OPERATORS:
            raise ValueError(
                f"{self.target} is called {self.name!r}, which is no operator of the vocabulary; "
                f"they are: {', '.join(OPERATORS)}"
            )
        if isinstance(self.lowering, Reduction) and next(iter(self.parameters), None) != "x":
            raise ValueError(f"{self.target} reduces; its first parameter must be called x")

    def call(self, graph: OpGraph, node: Node) -> Call:
        """A node of this operator with its arguments by name.

        What no parameter takes is kept under its keyword.
        """
        given = dict(zip(self.parameters, node.args, strict=False))
        return Call(graph, node, {**self.parameters, **given, **node.kwargs})

    def lowering_of(self, call: Call) -> Lowering | None:
        """How one call can be written; None if it cannot."""
        chosen = self.lowering
        return chosen(call) if callable(chosen) else chosen
