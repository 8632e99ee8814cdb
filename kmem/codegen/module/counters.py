"""Counters that a forward moves along, as a batch norm in training mode counts its batches.

Each is a launch of the library's for one number: twenty in a ResNet-18, one for every layer of a
dense network, and an operator that computes where `--purity triton` wants none. All that grow by
the same number are moved by one launch.

    @triton.jit
    def kmem_count_2(c0, c1, STEP: tl.constexpr):
        tl.store(c0, tl.load(c0) + STEP)
        tl.store(c1, tl.load(c1) + STEP)
"""

from collections.abc import Mapping, Sequence

from kmem.codegen.text.calls import write_launch, write_launch_function
from kmem.codegen.text.definitions import write_definition
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.recipes import Emission

_ADDS = "aten.add_.Tensor"
#: A launch moves so many at most: a kernel has 4 KiB for its parameters. Source: CUDA C++
#: Programming Guide, __global__ function parameters.
_MOST = 128


def find_counters(graph: OpGraph) -> list[tuple[int, tuple[Node, ...]]]:
    """By how much counters grow, and the nodes that move them along, those of one launch together.

    A counter is a buffer of one number that nothing else in the forward reads.
    """
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if is_counter(graph, node):
            groups.setdefault(node.args[1], []).append(node)
    return [
        (step, tuple(nodes[start : start + _MOST]))
        for step, nodes in groups.items()
        for start in range(0, len(nodes), _MOST)
    ]


def count_up(step: int, count: int) -> Emission:
    """What moves so many counters along."""
    counters = [f"c{place}" for place in range(count)]
    name = f"kmem_count_{count}"
    text = write_definition(
        name,
        (", ".join(counters), "STEP: tl.constexpr"),
        [f"tl.store({each}, tl.load({each}) + STEP)" for each in counters],
        "Counters of a forward, each moved along by STEP.",
    )
    launch = write_launch(name, 1, ", ".join(counters), f"STEP={step}", "num_warps=1")
    return Emission(((name, text),), write_launch_function(counters, [launch]))


def write_counting(function: str, nodes: Sequence[Node]) -> Mapping[str, str]:
    """By node, what is written in its place: a call of a launcher, "" but for the first."""
    names = ", ".join(node.refs()[0] for node in nodes)
    written = dict.fromkeys((node.name for node in nodes), "")
    return written | {nodes[0].name: f"{function}({names})"}


def is_counter(graph: OpGraph, node: Node) -> bool:
    """Whether a node does nothing but move a counter along."""
    if node.target != _ADDS or node.kwargs or len(node.args) != 2:
        return False
    value, step = node.args
    held = graph.placeholder(value.name) if isinstance(value, Ref) else None
    return (
        held is not None
        and held.kind == "buffer"
        and held.spec is not None
        and (held.spec.shape, held.spec.dtype) == ((), "int64")
        and isinstance(step, int)
        and graph.has_one_user(held.name)
        and not graph.users(node.name)
        and node.name not in graph.outputs
    )
