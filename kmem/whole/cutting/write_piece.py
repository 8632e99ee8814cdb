"""A piece of a model as a problem file: real shapes, strides, dtypes and spreads of values.

Sizes that are free (free_sizes.py) are constants at the top of the file and reach `Model` as
arguments, so that the piece can be shrunk with its weights, and asked for at `--shapes`.
"""

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kmem.codegen.module.library_calls import write_arg, write_call, write_constant
from kmem.problem.graph import DEVICE, Literal, Node, OpGraph, Placeholder, Ref
from kmem.records import TensorSpec
from kmem.whole.cutting.free_sizes import Sizes, fixed_sizes, with_sizes
from kmem.whole.cutting.values import Spread, usual_spread

_FILE = '''\
"""{title}"""

import torch

{constants}

class Model(torch.nn.Module):
    def __init__(self{arguments}):
        super().__init__()
{state}

    def forward({inputs}):
{forward}


def get_inputs():
    return [
{drawn}
    ]


def get_init_inputs():
    return [{given}]
'''
_RESERVED = ("self", "torch")
_RECURRENCES = {f"aten.{kind}.input" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a piece beside its graph: its title, sizes and spreads by value.

    `state` are the model's own names of the piece's parameters and buffers, in their order.
    """

    title: str
    sizes: Sizes
    state: Sequence[str] = ()
    spreads: Mapping[str, Spread] | None = None

    def spread(self, name: str, spec: TensorSpec, state: str) -> Spread:
        """What was seen of a value, else what is usual."""
        seen = (self.spreads or {}).get(state or name)
        return seen if seen is not None else usual_spread(state, spec)


def write_problem_file(graph: OpGraph, facts: Facts) -> str:
    """The text of the file."""
    inputs = [each for each in graph.placeholders if each.kind == "input"]
    if not all(each.spec is None or order_in_memory(each.spec) is not None for each in inputs):
        facts = replace(facts, sizes=fixed_sizes(graph))  # strides with gaps are numbers
    sizes = facts.sizes
    names = list(sizes.free)
    constants = "".join(f"{name} = {value}\n" for name, value in sizes.free.items())
    return _FILE.format(
        title=facts.title.replace('"', "'"),
        constants=constants,
        arguments="".join(f", {name.lower()}" for name in names),
        state="\n".join(f"        {line}" for line in _write_state(graph, facts)),
        inputs=", ".join(["self", *(python_name(each.name) for each in inputs)]),
        forward="\n".join(f"        {line}" for line in _write_forward(graph, sizes)),
        drawn="\n".join(f"        {_draw_input(each, graph, facts)}," for each in inputs),
        given=", ".join(names),
    )


def python_name(name: str) -> str:
    """A name for a value of a graph that Python allows."""
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


def _lower(expression: str) -> str:
    """An expression of constants as one of a constructor's arguments."""
    return re.sub(r"\b(BATCH|SIZE_\d+)\b", lambda match: match[0].lower(), expression)


# --- the constructor


def _write_state(graph: OpGraph, facts: Facts) -> Iterator[str]:
    used = sorted({name for text in facts.sizes.literals.values() for name in _names(text)})
    for name in used:
        yield f"self.{name} = {name}"
    held = [each for each in graph.placeholders if each.kind in ("parameter", "buffer")]
    for place, each in enumerate(held):
        state = facts.state[place] if place < len(facts.state) else each.target
        shape = _shape(facts.sizes.dims[each.name], lower=True)
        drawn = _draw(each.spec, shape, facts.spread(each.name, each.spec, state))
        comment = f"  # {state}" if state else ""
        if each.kind == "parameter":
            yield f"self.{each.target} = torch.nn.Parameter({drawn}){comment}"
        else:
            yield f'self.register_buffer("{each.target}", {drawn}){comment}'
    if not graph.training:
        yield "self.eval()"


def _names(expression: str) -> list[str]:
    return re.findall(r"\b(?:batch|size_\d+)\b", _lower(expression))


def _shape(dims: Sequence[str], *, lower: bool = False) -> str:
    texts = [_lower(each) if lower else each for each in dims]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _draw(spec: TensorSpec, shape: str, spread: Spread) -> str:
    """An expression that draws a tensor like one that was seen."""
    dtype = f"torch.{spec.dtype}"
    if spread.pattern == "tril":
        return f"torch.ones({shape}).tril().to({dtype})"
    if spread.pattern == "binary":
        return f"(torch.rand({shape}) < {spread.mean:.4g}).to({dtype})"
    if spec.dtype == "bool":
        return f"torch.rand({shape}) < {spread.mean:.4g}" if spread.mean < 1 else _ones(shape)
    if "complex" in spec.dtype:
        return f"torch.randn({shape}, dtype={dtype})"
    if "float" not in spec.dtype:
        low, high = int(spread.low), int(spread.high) + 1
        return f"torch.randint({low}, {max(high, low + 1)}, {shape}, dtype={dtype})"
    if spread.low == spread.high:
        return f"torch.full({shape}, {spread.low!r}, dtype={dtype})"
    cast = "" if spec.dtype == "float32" else f".to({dtype})"
    if spread.low >= 0:  # a variance or a probability stays positive
        return f"torch.empty({shape}).uniform_({spread.low:.4g}, {spread.high:.4g}){cast}"
    text = f"torch.randn({shape})"
    if f"{spread.deviation:.3g}" != "1":
        text += f" * {spread.deviation:.4g}"
    if abs(spread.mean) > 0.01 * spread.deviation:
        text += f" + {spread.mean:.4g}"
    return f"({text}){cast}" if cast else text


def _ones(shape: str) -> str:
    return f"torch.ones({shape}, dtype=torch.bool)"


# --- the inputs


def order_in_memory(spec: TensorSpec) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost; None where there are gaps."""
    order = sorted(range(len(spec.shape)), key=lambda axis: (-spec.stride[axis], axis))
    step = 1
    for axis in reversed(order):
        if spec.shape[axis] != 1 and spec.stride[axis] != step:
            return None
        step *= spec.shape[axis]
    return order


def _draw_input(each: Placeholder, graph: OpGraph, facts: Facts) -> str:
    if each.spec is None:
        return repr(each.value)
    dims, spread = facts.sizes.dims[each.name], facts.spread(each.name, each.spec, "")
    rows = _table_rows(each.name, graph, facts.sizes)
    if rows is not None:
        return f"torch.randint(0, {rows}, {_shape(dims)}, dtype=torch.{each.spec.dtype})"
    if "int" in each.spec.dtype and (facts.spreads or {}).get(each.name) is None:
        spread = Spread(0.5, 0.5, 0, 1)
    order = order_in_memory(each.spec)
    if order is None:
        drawn = _draw(each.spec, _shape(dims), spread)
        made = f"torch.empty_strided({_shape(dims)}, {each.spec.stride}, dtype=torch."
        return f"{made}{each.spec.dtype}).copy_({drawn})"
    if order == list(range(len(order))):
        return _draw(each.spec, _shape(dims), spread)
    back = sorted(range(len(order)), key=order.__getitem__)
    drawn = _draw(each.spec, _shape([dims[axis] for axis in order]), spread)
    drawn = drawn if drawn.endswith(")") and "*" not in drawn else f"({drawn})"
    return f"{drawn}.permute({', '.join(map(str, back))})"


def _table_rows(name: str, graph: OpGraph, sizes: Sizes) -> str | None:
    """How many rows the table has that a value picks from; None for a value that picks none."""
    for user in graph.users(name):
        if user.target.startswith("aten.embedding.") and user.args[1] == Ref(name):
            table = user.args[0]
            found = sizes.dims.get(table.name)
            return found[0] if found else None
    return None


# --- the forward


def _write_forward(graph: OpGraph, sizes: Sizes) -> Iterator[str]:
    lines = []
    for each in graph.placeholders:
        if each.kind in ("parameter", "buffer"):
            lines.append(f"{python_name(each.name)} = self.{each.target}")
        elif each.kind == "constant":
            lines.append(f"{python_name(each.name)} = {write_constant(each)}")
    used: list[str] = []
    for node in graph.nodes:
        written = {
            where: text for (name, where), text in sizes.literals.items() if name == node.name
        }
        used += [name for text in written.values() for name in _names(text)]
        swapped = {where: Literal(_size(text)) for where, text in written.items()}
        lines += _checks_of(graph, node)
        lines.append(_write_node(graph, with_sizes(renamed(node), swapped)))
    yield from (f"{name} = self.{name}" for name in dict.fromkeys(used))
    if any(DEVICE.expression in line for line in lines):
        first = next(
            each for each in graph.placeholders if each.kind == "input" and each.spec is not None
        )
        yield f"{DEVICE.expression} = {python_name(first.name)}.device"
    yield from lines
    outputs = ", ".join(python_name(name) for name in graph.outputs)
    yield f"return ({outputs},)" if graph.returns_tuple else f"return {outputs}"


def _checks_of(graph: OpGraph, node: Node) -> Iterator[str]:
    """What the module that a recurrence stands for checks and the operator does not.

    On the CPU the operator writes beyond its state if the input has more rows than the state.
    """
    if node.target not in _RECURRENCES:
        return
    value, states = node.args[:2]
    state = states[0] if isinstance(states, tuple) else states
    if len(graph.spec(value.name).shape) == 3:
        axis = 0 if node.args[-1] is True or node.kwargs.get("batch_first") is True else 1
        rows, held = python_name(value.name), python_name(state.name)
        yield f"if {rows}.shape[{axis}] != {held}.shape[1]:"
        yield '    raise ValueError("the state is of another batch than the input")'


def _size(expression: str) -> str:
    lower = _lower(expression)
    return lower if re.fullmatch(r"\w+", lower) else f"({lower})"


def _write_node(graph: OpGraph, node: Node) -> str:
    call = write_call(graph, node)
    if node.target == "getitem":
        call = f"{write_arg(node.args[0])}[{write_arg(node.args[1])}]"
    return call if node.output is None else f"{python_name(node.name)} = {call}"


def renamed(node: Node) -> Node:
    """A node that reads values by names that Python allows."""
    return node.reading({name: python_name(name) for name in node.refs()})
