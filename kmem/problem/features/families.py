"""A graph with the family of each node, and ways through it, for patterns.py and spelled.py."""

from collections.abc import Iterator, Mapping

from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.table import find_operator
from kmem.vocabulary import OPERATORS

#: Views that turn the axes of a tensor.
TURNS = frozenset({"permute", "transpose", "t", "movedim"})


class Families:
    """A graph with the family of each node, and ways through it."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.names: Mapping[str, str] = {
            node.name: operator.name
            for node in graph.nodes
            if (operator := find_operator(node.target)) is not None
        }

    def family(self, name: str) -> str:
        """The family of what makes a value; "" for what the forward starts from."""
        return OPERATORS.get(self.names.get(name, ""), "")

    def of(self, *families: str) -> Iterator[Node]:
        """The nodes of some families, in execution order."""
        return (node for node in self.graph.nodes if self.family(node.name) in families)

    def sources(self, node: Node, through: tuple[str, ...] = ("layout",)) -> Iterator[str]:
        """The values that a node reads, behind nodes of the families that are looked through."""
        seen, waiting = set[str](), list(node.refs())
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = self.graph.node(name)
            if maker is not None and self.family(name) in through:
                waiting += maker.refs()
            else:
                yield name

    def readers(self, node: Node) -> Iterator[Node]:
        """The nodes that read a result, behind views and copies."""
        waiting = list(self.graph.users(node.name))
        while waiting:
            reader = waiting.pop()
            if self.family(reader.name) == "layout":
                waiting += self.graph.users(reader.name)
            else:
                yield reader

    def passed(self, name: str) -> Iterator[str]:
        """What the copies and views in a row before a value are called: "permute"."""
        return map(word_of, self.views(name))

    def origin(self, name: str) -> str:
        """The value that the copies and views in a row before a value begin with."""
        for view in self.views(name):
            name = next(iter(view.refs()), "")
        return name

    def views(self, name: str) -> Iterator[Node]:
        """The copies and views in a row before a value, the last first."""
        node = self.graph.node(name)
        while node is not None and self.family(node.name) == "layout":
            yield node
            node = self.graph.node(next(iter(node.refs()), ""))


def word_of(node: Node) -> str:
    """ "relu" of "aten.relu_.default"."""
    return node.target.split(".")[1].rstrip("_") if "." in node.target else node.target
