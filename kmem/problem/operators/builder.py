"""What a lowering writes with: loads, expressions and reductions over the rows of one space.

kmem/codegen implements it; rows of the table know this protocol alone, so that the table lies below
code generation.
"""

from enum import Enum
from typing import Protocol

from kmem.problem.graph import OpGraph
from kmem.problem.operators.expressions import Expression
from kmem.records import TensorSpec


class Form(Enum):
    """How a value's shape sits in a space of full shape and reduced dimensions."""

    FULL = "full"  # aligned to the full shape from the right, reduced dimensions perhaps 1
    SQUEEZED = "squeezed"  # the kept shape, as a reduction with keepdim=False leaves it
    FOLDED = "folded"  # all elements of the full shape in their order, in another shape
    TOTAL = "total"  # one number, summed over rows after everything else


class RegionBuilder(Protocol):
    """Statements of one region, appended in order. Names are variables of the kernel."""

    graph: OpGraph
    shape: tuple[int, ...]  # the full shape

    @property
    def columns(self) -> int:
        """Elements of a row."""

    def read(self, name: str, form: Form = Form.FULL) -> str:
        """The variable of a graph value; the value is loaded if it comes from outside."""

    def load(self, variable_name: str, name: str, strides: tuple[int, ...]) -> str:
        """Load a graph value along these strides, and return the variable."""

    def map(self, name: str, expression: str | Expression, *reads: str, share_of: str = "") -> str:
        """Append `name = expression` and return the name.

        Args:
            reads: the variables in the expression.
            share_of: a state of a softmax reduction, if the expression is exp(element - state).
                Programs that share a row then write the expression more cheaply.
        """

    def reduce(
        self, names: tuple[str, ...], kind: str, read: str, beside: str = ""
    ) -> tuple[str, ...]:
        """Reduce a variable over the row; the names become its states, which are returned.

        Args:
            beside: a second variable, of an "expectation": maximum m, sum of exponentials, and
                the sum of exp(read - m) (read - beside).
            kind: "sum", "prod", "max" and "min" have one state; "argmax" (value, index), "softmax"
                and "logsumexp" (maximum, sum of exponentials) and "moments" (mean, sum of squared
                deviations) have two.
        """

    def makes(self, name: str) -> bool:
        """Whether a graph value is one of the region's own."""

    def change(self, name: str, buffer: str, strides: tuple[int, ...]) -> None:
        """A row-level variable takes the place of what an input holds."""

    def add_total(self, values: tuple[str, ...], text: str) -> None:
        """Make the result `text`, an expression over total_0, total_1, ...

        These are the sums of row-level values over all rows.
        """

    def strides(self, spec: TensorSpec, form: Form = Form.FULL) -> tuple[int, ...]:
        """Strides of an operand that broadcasts from the right."""

    def channel_strides(self, spec: TensorSpec) -> tuple[int, ...]:
        """Strides of a vector that lies along dimension 1."""
