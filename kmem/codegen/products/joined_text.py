"""What follows joined products, as the statements of one function.

Each product has a bias and pointwise nodes of its own, whose operands are read at its own columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kmem.codegen.chains.epilogue import LOAD_OPERAND, Epilogue
from kmem.codegen.regions.pointwise import write_pointwise
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.expressions import Helper, order_helpers, write_number
from kmem.problem.operators.row import ProductTerms

#: Columns, and how many there are: where an operand is read.
Place = tuple[str, str]


@dataclass
class Statements:
    """Statements as they are written, and what they read."""

    graph: OpGraph
    lines: list[tuple[str, str]] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    read_at: list[Place] = field(default_factory=list)
    helpers: list[Helper] = field(default_factory=list)

    def read(self, name: str, place: Place) -> str:
        """The variable of one more operand."""
        self.operands.append(name)
        self.read_at.append(place)
        return f"x{len(self.operands) - 1}"

    def add_bias(self, terms: ProductTerms, source: str, name: str, place: Place) -> None:
        """What a product's own operator does to the sums `source`, under a name."""
        text = source if terms.alpha == 1 else f"{source} * {write_number(terms.alpha)}"
        if terms.bias is not None and terms.beta != 0:
            scale = "" if terms.beta == 1 else f" * {write_number(terms.beta)}"
            text += f" + {self.read(terms.bias, place)}{scale}"
        if text != name:
            self.lines.append((name, text))

    def add_members(
        self, members: Sequence[Node], variables: dict[str, str], prefix: str, place: Place
    ) -> None:
        """Pointwise nodes; `variables` are names of graph values, and get those of the nodes."""

        def name_of(name: str) -> str:
            if name not in variables:
                variables[name] = self.read(name, place)
            return variables[name]

        for index, node in enumerate(members):
            expression = write_pointwise(self.graph, node, name_of)
            assert expression is not None, "grow_from takes what can be written"
            self.helpers += expression.helpers
            variables[node.name] = f"{prefix}{index}"
            self.lines.append((variables[node.name], expression.text))

    def finish(self, places: Sequence[Place], before_reads: Sequence[Place]) -> Epilogue | None:
        """All of it; None if an operand is not a float tensor."""
        if any(self.graph.spec(name).dtype not in FLOATS for name in self.operands):
            return None
        loads = [LOAD_OPERAND] if self.operands else []
        return Epilogue(
            tuple(self.lines),
            tuple(self.operands),
            (*order_helpers(self.helpers), *loads),
            tuple(places),
            tuple(before_reads) if self.operands else (),
            tuple(self.read_at),
        )
