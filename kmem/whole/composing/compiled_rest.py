"""The rest of a composed graph compiled by Inductor, around the kernels of its pieces.

Each kernel is an operator of torch.library, as deploy/shipped makes them: traced where it can be,
opaque otherwise. A piece without a kernel is compiled with the rest. The graph is traced once, with
the shapes that it was captured at, and handed to Inductor as it is: nothing guards a call but what
guards the composed graph, nothing breaks it, and no call compiles anew.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kmem.deploy.shipped.ops import Operator, operator
from kmem.deploy.shipped.supports import is_capturing, objection_to_context
from kmem.deploy.shipped.table import Entry, State, read_input
from kmem.errors import first_line

#: Random numbers are drawn as eager draws them, from the same generators.
_OPTIONS = {"fallback_random": True}
#: Layouts of weights and kinds of devices that one graph is compiled for, each at its first call.
_MOST_LAYOUTS = 4
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

#: What a piece makes of its inputs and state.
Traced = Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]


@dataclass(frozen=True, slots=True)
class RestPiece:
    """A piece of a graph: what it makes of inputs and state, and where its state lies among all.

    `make` is asked once, before the graph is traced, and may refuse by any exception.
    """

    make: Callable[[], Traced]
    places: tuple[int, ...]


def piece_operator(data: Mapping[str, Any], kernel: Path) -> Operator:
    """The operator of a piece, from its row in composed.json.

    Raises ValueError: if it can be none. CannotShare: if its kernel keeps tensors of its own.
    """
    told = data["operator"]
    if told is None:
        raise ValueError(f"{data['kernel']} returns what it is given, which no operator may")
    digest = hashlib.sha256(kernel.read_bytes()).hexdigest()
    entry = Entry(
        name=data["kernel"],
        graph=repr((told["training"], told["changes"])),
        calls=(),
        inputs=tuple(map(read_input, told["inputs"])),
        outputs=tuple(map(read_input, told["outputs"])),
        returns_tuple=told["returns_tuple"],
        state=tuple(
            State(
                each["name"],
                tuple(each["shape"]),
                tuple(each["stride"]),
                getattr(torch, each["dtype"]),
            )
            for each in told["state"]
        ),
        parameters=(),
        training=told["training"],
        init=tuple(data["init"]),
        device="",
        kernel=kernel,
        kernel_sha256=digest,
        evidence=kernel,
        evidence_sha256=digest,
        changes=tuple(told["changes"]),
    )
    return operator(entry)


def compile_graph(graph: fx.GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """What Inductor makes of a graph of ATen operators."""
    # PyTorch's own entry point for graphs that its Python tracer did not make
    return torch._inductor.compile(graph, list(given), options=_OPTIONS)


class CompiledRest:
    """One composed graph, compiled at its first call for what that is given."""

    def __init__(self, function: Callable[..., Any], pieces: Sequence[RestPiece]) -> None:
        self._function, self._pieces = function, pieces
        self._traced: list[Traced] = []
        self._known: list[tuple[list[Any], _Compiled]] = []
        self._fault = ""  # why it is no longer tried
        self._ids: list[int] = []  # of the state at the last call
        self._kinds: list[Any] = []  # of each: its type, and the first that is the same
        #: How often a compiler was asked.
        self.compilations = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies compile for themselves: operators and what compilers make cannot be copied."""
        return CompiledRest, (self._function, self._pieces)

    @property
    def fault(self) -> str:
        """Why the rest, or a kernel in it, is not run as it was compiled; empty if it is."""
        faults = [each.fault for each in self._traced if isinstance(each, Operator)]
        return self._fault or next(filter(None, faults), "")

    def answer(
        self, state: Sequence[torch.Tensor], leaves: Sequence[Any]
    ) -> Sequence[torch.Tensor] | None:
        """The values that the graph returns; None where its operators must run one by one.

        That is where gradients are recorded, under a tracer, where a graph is captured before a
        first call, and after the compiler has failed once, of which there is one warning.
        """
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        given = [*tensors, *state]
        if self._fault or not given or torch.compiler.is_compiling():
            return None
        if any(type(each) not in _PLAIN for each in tensors):
            return None
        if objection_to_context(given[0].device.type, any_order=False) is not None:
            return None
        if torch.is_grad_enabled() and any(each.requires_grad for each in given):
            return None
        layout = self._layout(tensors, state)
        known = next((each for key, each in self._known if key == layout), None)
        if known is not None:
            return known(given)
        return self._begin(given, leaves, layout)

    def _layout(self, tensors: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> list[Any]:
        """What a compiled graph depends on: strides, devices, and which tensors are one.

        All that is asked of the state at every call is its strides: a large model has hundreds.
        """
        ids = list(map(id, state))
        if ids != self._ids:
            self._ids, self._kinds = ids, [(type(each), ids.index(id(each))) for each in state]
        memory = [each.untyped_storage().data_ptr() for each in tensors]  # may be written to
        every = [*map(id, tensors), *ids]
        layout: list[Any] = [
            (type(each), each.stride(), each.device, memory.index(place), every.index(id(each)))
            for each, place in zip(tensors, memory, strict=True)
        ]
        layout += [place for place, each in enumerate(ids) if each in every[: len(tensors)]]
        if state:
            layout.append(state[0].device)  # the composed graph is for tensors of one device
        layout += [each.stride() for each in state]
        return layout + self._kinds

    def _begin(
        self,
        given: Sequence[torch.Tensor],
        leaves: Sequence[Any],
        layout: list[Any],
    ) -> Sequence[torch.Tensor] | None:
        """The first call with such tensors, which compiles."""
        is_plain = all(type(each) in _PLAIN for each in given)
        if not is_plain or is_capturing(given[0].device) or len(self._known) == _MOST_LAYOUTS:
            return None
        try:
            compiled = self._compile(given, leaves)
            if not compiled.writes:  # the eager rest may begin again
                found = compiled(given)
        except Exception as ex:  # noqa: BLE001 - compilers raise anything
            self._fault = f"the rest could not be compiled: {first_line(ex)}"
            warnings.warn(f"Its operators run one by one: {self._fault}", stacklevel=2)
            return None
        self._known.append((layout, compiled))
        return compiled(given) if compiled.writes else found

    def _compile(self, given: Sequence[torch.Tensor], leaves: Sequence[Any]) -> "_Compiled":
        self.compilations += 1
        seen: dict[int, int] = {}
        firsts = [seen.setdefault(id(each), place) for place, each in enumerate(given)]
        self._traced = self._traced or [each.make() for each in self._pieces]
        places = [place for place, first in enumerate(firsts) if place == first]
        order = {place: number for number, place in enumerate(places)}

        def run(*unknown: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values = [unknown[order[first]] for first in firsts]
            rest = iter(values)
            inputs = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
            state = list(rest)
            pieces = [
                _with_state(traced, [state[place] for place in piece.places])
                for traced, piece in zip(self._traced, self._pieces, strict=True)
            ]
            return tuple(self._function(state, pieces, inputs))

        own = [given[place] for place in places]
        # Inductor keeps what it made for other processes where it knows that no size is free
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(each, static_shapes=True) for each in own]
        with torch.no_grad(), tracing(TracingContext(mode)):
            # before dispatch: the compiler sees what it sees of a model, linear maps and norms
            graph = make_fx(run, tracing_mode="fake", pre_dispatch=True)(*fakes)
            writes = any(map(_writes, graph.graph.nodes))
            memory = [each.untyped_storage().data_ptr() for each in own if each.numel()]
            if writes and len(set(memory)) < len(memory):
                raise ValueError("tensors share memory, and the graph writes to some")
            return _Compiled(compile_graph(graph, fakes), places, writes)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled graph, on the tensors that stand at some places among those given."""

    function: Callable[..., Any]
    places: Sequence[int]
    writes: bool  # to what it is given

    def __call__(self, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return self.function(*[given[place] for place in self.places])


def _with_state(traced: Traced, state: Sequence[torch.Tensor]) -> Callable[..., Any]:
    return lambda *inputs: traced(inputs, state)


def _writes(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    # schemas of these do not say that they write to running statistics
    is_norm = any(name in target.name() for name in ("batch_norm", "instance_norm"))
    return target._schema.is_mutable or is_norm
