"""Which convolutions of a graph the vendor's library does, with what is around them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kmem.codegen.chains.epilogue import MAX_OPERANDS, Bias, Epilogue, grow_epilogue, write_epilogue
from kmem.codegen.convolutions.convolution import (
    Convolution,
    convolution_tensors,
    epilogue_steps,
    expects_exact_eager,
    padding_before,
)
from kmem.codegen.convolutions.windows import make_axes
from kmem.codegen.regions.pointwise import write_pointwise
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators import row
from kmem.problem.operators.table import find_operator
from kmem.problem.sizes import per_axis
from kmem.records import Precision

from .tails import extend_tail
from .vendor import Found, VendorConv, spare_outputs, steps_of


@dataclass(frozen=True, slots=True)
class _Opening:
    """What is read in the place of a convolution's input, and what is made of it first."""

    source: str
    chain: Epilogue = Epilogue()
    steps: tuple[tuple[int, int, int, int], ...] = ()


#: Input channels of a convolution that hands its result on, at least: over fewer, kernels of our
#: own are better.
LEAST_LINKED = 16


def find_vendor_convolutions(graph: OpGraph, precision: Precision) -> list[Found]:
    """Every convolution that the library can do in half precision, with what is around it."""
    found: list[Found] = []
    taken: set[str] = set()
    for node in graph.nodes:
        bare = None if node.name in taken else _read(graph, node, precision)
        if bare is None:
            continue
        # what surrounds it may read something whose positions are no single axis
        after = grow_epilogue(graph, node, taken)
        before = _grow_prologue(graph, node, taken)
        tries = ((before, after), ((), after), (before, ()), ((), ()))
        options = (_assemble(graph, node, bare, *each) for each in tries)
        whole = next((option for option in options if option is not None), None)
        if whole is not None:
            whole = extend_tail(graph, whole, taken)
            taken.update(whole.nodes)
            found.append(whole)
    return _link(graph, found)


def _link(graph: OpGraph, found: Sequence[Found]) -> list[Found]:
    """Convolutions one after the other as chains: one hands its result to the next alone."""
    chains: dict[str, Found] = {}  # by the value that they leave
    for each in found:
        first = chains.get(each.inputs[0])
        if first is not None and _hands_on(graph, first, each):
            del chains[first.result]
            each = replace(
                each,
                detail=replace(each.detail, before=first.detail),
                nodes=(*first.nodes, *each.nodes),
                inputs=(*first.inputs, *each.inputs[1:]),
            )
        chains[each.result] = each
    return list(chains.values())


def _hands_on(graph: OpGraph, first: Found, second: Found) -> bool:
    """Whether the result of one convolution may be staged for another and for nothing else."""
    one, other = first.detail, second.detail
    users = {user.name for user in graph.users(first.result)}
    if first.result in graph.outputs or not users <= {*second.nodes}:
        return False
    if one.is_summed or one.base.is_closed or other.prologue.statements:
        return False
    shape, known = graph.spec(first.result).shape, {*first.inputs}
    sizes = tuple(axis.size for axis in other.base.axes)
    is_whole = shape[1] == other.base.channels_in and shape[2:] == sizes[5 - len(shape) :]
    is_alone = known.isdisjoint(second.inputs[1:])
    is_plain = one.base.groups == other.base.groups == 1 and one.base.group_in >= LEAST_LINKED
    is_exact = one.base.is_eager_exact or other.base.is_eager_exact
    return (
        is_whole and is_alone and is_plain and not is_exact and one.base.dtype == other.base.dtype
    )


def _read(graph: OpGraph, node: Node, precision: Precision) -> VendorConv | None:
    """The convolution of a node by itself; None for other nodes, and for what is not covered."""
    operator = find_operator(node.target)
    if operator is None or not isinstance(operator.lowering, row.Convolution):
        return None
    rank, is_transposed = operator.lowering.rank, operator.lowering.is_transposed
    call = operator.call(graph, node)
    tensors = [graph.spec(name) for name in convolution_tensors(node).values()]
    source, weight = tensors[:2]
    result = node.spec
    if len(source.shape) != rank + 2 or source.dtype not in FLOATS or result.numel == 0:
        return None
    if any(spec.dtype != source.dtype for spec in (*tensors, result)):
        return None
    (groups,) = per_axis(call["groups"], 1, 1)
    if not weight.is_contiguous or groups == source.shape[1] > 1:  # depthwise
        return None
    stride, dilation = per_axis(call["stride"], rank, 1), per_axis(call["dilation"], rank, 1)
    before = padding_before(call, weight.shape[2:], dilation)
    axes = make_axes(source.shape[2:], result.shape[2:], weight.shape[2:], stride, before, dilation)
    more = per_axis(call["output_padding"], rank, 0) if is_transposed else ()
    if not is_transposed and any(spare_outputs(axis) is None for axis in axes):
        return None
    base = Convolution(
        axes, source.dtype, source.shape[0], source.shape[1], result.shape[1], groups, result
    )
    steps = steps_of(source), steps_of(result)
    if any(step is None for step in steps):
        return None
    # grouped ones of fp32 are exact in eager (see transposed-conv-phases), and ranked as such
    is_grouped = groups > 1 and base.dtype == "float32" and precision is not Precision.TF32
    is_exact = is_grouped or not is_transposed and expects_exact_eager(base, precision)
    base = replace(base, is_eager_exact=is_exact)
    return VendorConv(base, *steps, result, (0,) * (rank == 1 and is_transposed) + more)


def _grow_prologue(graph: OpGraph, node: Node, taken: set[str]) -> tuple[Node, ...]:
    """The pointwise nodes before a convolution of which it alone reads the last.

    In graph order; each has the shape of what is convolved.
    """
    first = convolution_tensors(node)["input"]
    shape, dtype = graph.spec(first).shape, graph.spec(first).dtype
    members: dict[str, Node] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        producer = graph.node(name)
        if producer is None or name in members or name in taken or name in graph.outputs:
            continue
        readers = {user.name for user in graph.users(name)}
        is_alike = producer.output is not None and not isinstance(producer.output, tuple)
        if (
            is_alike
            and readers <= {node.name, *members}
            and (producer.spec.shape, producer.spec.dtype) == (shape, dtype)
            and write_pointwise(graph, producer, str) is not None
        ):
            members[name] = producer
            waiting.extend(producer.refs())
    return tuple(sorted(members.values(), key=lambda member: graph.place(member.name)))


def _assemble(
    graph: OpGraph, node: Node, bare: VendorConv, before: Sequence[Node], after: Sequence[Node]
) -> Found | None:
    """A convolution with these nodes around it; None if they do not go together."""
    tensors = convolution_tensors(node)
    bias = tensors.get("bias")
    added = None if bias is None else Bias(bias)
    epilogue = write_epilogue(graph, node, added, None, after)
    steps = None if epilogue is None else epilogue_steps(graph, bare.base, epilogue, bias, after)
    last = after[-1] if after else node
    result = steps_of(last.spec)
    opened = _open_prologue(graph, tensors["input"], bare, before)
    if epilogue is None or steps is None or result is None or opened is None:
        return None
    detail = replace(
        bare,
        base=replace(bare.base, epilogue=epilogue, operand_steps=steps),
        source=steps_of(graph.spec(opened.source)) or bare.source,
        result=result,
        result_spec=last.spec,
        prologue=opened.chain,
        prologue_steps=opened.steps,
    )
    inputs = (opened.source, tensors["weight"], *epilogue.operands, *opened.chain.operands)
    nodes = (*(member.name for member in before), node.name, *(member.name for member in after))
    return Found(detail, node.name, nodes, inputs, last.name)


def _open_prologue(
    graph: OpGraph, given: str, bare: VendorConv, before: Sequence[Node]
) -> _Opening | None:
    """What is read in the place of a convolution's input, and what is made of it."""
    if not before:
        return _Opening(given)
    shape = graph.spec(given).shape
    inside = {member.name for member in before}
    outside = dict.fromkeys(name for member in before for name in member.refs())
    whole = [
        name
        for name in outside
        if name not in inside
        and graph.spec(name).shape == shape
        and graph.spec(name).dtype in FLOATS
        and steps_of(graph.spec(name)) is not None
    ]
    if not whole or len(outside.keys() - inside) > MAX_OPERANDS:
        return None
    # written as what follows a product, on a tile of the value that is read first
    start = Node(whole[0], "", (), {}, graph.spec(whole[0]))
    prologue = write_epilogue(graph, start, None, None, before)
    if prologue is None:
        return None
    seen_as_output = replace(bare.base, channels_out=bare.base.channels_in, out=graph.spec(given))
    steps = epilogue_steps(graph, seen_as_output, prologue, None, before)
    return None if steps is None else _Opening(whole[0], prologue, steps)
