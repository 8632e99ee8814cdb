"""Which values of the graph each launch of a forward makes, where that can be told.

A kernel that kmem wrote names them: its forward assigns the graph's values from launchers, which
launch the kernels. A vendor's operator is a node's target or what torch makes of it, told by its
name; where several nodes have one such name, its launches are theirs in order.
"""

import ast
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kmem.problem.graph import OpGraph
from kmem.records import Launch

#: What torch calls an operator's implementation, where that is more than the operator's own name
#: with something before or after it.
_CALLED = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "linear", "mv", "dot"), "matmul"),
    **{f"conv{kind}{rank}d": "convolution" for kind in ("", "_transpose") for rank in (1, 2, 3)},
}
_AROUND = ("native_", "_with_indices")


def add_served(launches: Sequence[Launch], source: str, graph: OpGraph) -> tuple[Launch, ...]:
    """The launches with the names of the graph's values that they make.

    Args:
        launches: of one forward, in order.
        source: the module's text.
        graph: of the problem.
    """
    nodes = {node.name for node in graph.nodes}
    made = {
        kernel: tuple(name for name in values if name in nodes)
        for kernel, values in _made_values(source).items()
    }
    by_target: dict[str, deque[str]] = defaultdict(deque)
    for node in graph.nodes:
        by_target[_operator(node.target)].append(node.name)
    counts = Counter(_operator(launch.name) for launch in launches)
    served = []
    for launch in launches:
        values = made.get(launch.name, ())
        operator = _operator(launch.name)
        waiting = by_target.get(operator)
        if not values and waiting and counts[operator] <= len(waiting):
            values = (waiting.popleft(),)
            counts[operator] -= 1
        served.append(replace(launch, serves=values) if values else launch)
    return tuple(served)


def _operator(target: str) -> str:
    """The operator of "aten._softmax.default" or of "aten.softmax.int": "softmax"."""
    parts = target.split(".")
    name = parts[1].strip("_") if len(parts) > 1 else target
    for text in _AROUND:
        name = name.replace(text, "")
    return _CALLED.get(name, name)


def _made_values(source: str) -> Mapping[str, tuple[str, ...]]:
    """By kernel of a module that kmem wrote: the values that its launches go into."""
    try:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return {}
    launched = {function.name: set(_launched(function)) for function in functions}
    made: dict[str, dict[str, None]] = defaultdict(dict)
    for function in functions:
        for statement in ast.walk(function):
            if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
                continue
            called = statement.value.func
            kernels = launched.get(called.id, ()) if isinstance(called, ast.Name) else ()
            for name in (each.id for each in ast.walk(statement) if _is_target(each)):
                for kernel in kernels:
                    made[kernel][name] = None
    return {kernel: tuple(values) for kernel, values in made.items()}


def _launched(function: ast.FunctionDef) -> Iterator[str]:
    """The kernels that a function launches: `kernel[grid](...)`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            kernel = node.func.value
            if isinstance(kernel, ast.Name):
                yield kernel.id


def _is_target(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
