"""Values that lie within the result of a concatenation: who writes them there, and into what.

A recipe's launcher allocates what it returns, with the strides that the graph says. Where these are
those of a slice (kmem/problem/homes.py), the forward allocates the whole once and hands launchers
their slices: the allocation falls away, and nothing is put together later. What the library makes,
and what a launcher makes that keeps its memory to itself, is copied into its slice.
"""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmem.codegen.text.launches import ALLOCATIONS
from kmem.host.syntax import parse_python
from kmem.problem.graph import Node, OpGraph
from kmem.problem.homes import Home, copied_parts, find_homes, home_in_memory
from kmem.recipes import Emission, Operand, Site

#: What a launcher allocates to write it whole, and whether its second argument are strides.
_UNWRITTEN = {"torch.empty": False, "torch.empty_strided": True}
assert _UNWRITTEN.keys() <= ALLOCATIONS


@dataclass(frozen=True, slots=True)
class Placement:
    """Where values of one forward lie.

    `homes` are slices of whole allocations, which bear the names of the outermost concatenations.
    `wholes` are the concatenations that some value lies in, each with its other parts, which are
    copied. `given` has, by site, the outputs whose slices its launcher is handed.
    """

    homes: Mapping[str, Home] = field(default_factory=dict)
    wholes: Mapping[str, Sequence[tuple[str, Home]]] = field(default_factory=dict)
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Slices:
    """Writes the statements of a forward that values need which lie in something larger."""

    def __init__(self, graph: OpGraph, placement: Placement, device: str) -> None:
        """Nothing is allocated yet.

        Args:
            device: where the forward runs, as an expression.
        """
        self.graph, self.device = graph, device
        self.homes, self.wholes = placement.homes, placement.wholes
        self._given = placement.given
        self._allocated: set[str] = set()

    def given_to(self, site: Site) -> list[str]:
        """The slices that a site's launcher is handed behind its inputs, as expressions."""
        return [_slice(self.homes[name]) for name in self._given.get(site.name, ())]

    def around_launch(self, site: Site, launch: str) -> list[str]:
        """A launch behind the allocations that it needs, and copies of what it keeps to itself."""
        outputs = [operand.name for operand in site.outputs]
        given = self._given.get(site.name, ())
        kept = [name for name in outputs if name in self.homes and name not in given]
        if outputs == list(given) and not any(map(self._is_read, outputs)):
            launch = launch.partition(" = ")[2]
        return [*self._allocate(outputs), launch, *(self._move(name, name) for name in kept)]

    def around_call(self, name: str, call: str) -> list[str]:
        """A library call whose result is copied to where it lies."""
        return [*self._allocate([name]), self._move(name, call)]

    def put_together(self, cat: Node) -> list[str]:
        """What is left to do for a concatenation that some of its parts lie in."""
        lines, left = self._allocate([cat.name]), self.wholes[cat.name]
        if cat.name in self.homes and (left or self._is_read(cat.name)):
            lines.append(f"{cat.name} = {_slice(self.homes[cat.name])}")
        return lines + [f"{_slice(home)}.copy_({part})" for part, home in left]

    def _move(self, name: str, value: str) -> str:
        moved = f"{_slice(self.homes[name])}.copy_({value})"
        return f"{name} = {moved}" if self._is_read(name) else moved

    def _is_read(self, name: str) -> bool:
        """Whether anything reads a value by its name, and not only where it lies."""
        return name in self.graph.outputs or any(
            user.name not in self.wholes or any(name == part for part, _ in self.wholes[user.name])
            for user in self.graph.users(name)
        )

    def _allocate(self, names: Sequence[str]) -> list[str]:
        """The wholes that values lie in, as far as none has been made yet."""
        wholes = dict.fromkeys(self.homes[name].cat for name in names if name in self.homes)
        new = [name for name in wholes if name not in self._allocated]
        self._allocated.update(new)
        return [self._write_allocation(name) for name in new]

    def _write_allocation(self, name: str) -> str:
        spec = self.graph.spec(name)
        kind = f"dtype=torch.{spec.dtype}, device={self.device}"
        return f"{name} = torch.empty({spec.shape!r}, {kind})"


def _slice(home: Home) -> str:
    return f"{home.cat}.narrow({home.dim}, {home.start}, {home.length})"


def place_values(graph: OpGraph, sites: Sequence[tuple[Site, Emission]]) -> Placement:
    """Where the values of a forward lie that has kernels at these sites."""
    inside = {name for site, _ in sites for name in site.nodes}
    # where a kernel puts parts together itself, they lie where it wants them
    homes = {name: home for name, home in find_homes(graph).items() if home.cat not in inside}
    homes = {name: home for name, home in homes.items() if _is_whole(graph, homes, home.cat)}
    given = {site.name: _given(site, emission, homes) for site, emission in sites}
    return Placement(
        {name: home_in_memory(homes, name) for name in homes},
        {cat: copied_parts(graph, graph.node(cat), homes) for cat in _cats(homes)},
        {name: outputs for name, outputs in given.items() if outputs},
    )


def _cats(homes: Mapping[str, Home]) -> list[str]:
    return list(dict.fromkeys(home.cat for home in homes.values()))


def _is_whole(graph: OpGraph, homes: Mapping[str, Home], cat: str) -> bool:
    """Whether a concatenation is an allocation of its own, or lies in one that is."""
    while cat in homes:
        cat = homes[cat].cat
    return graph.spec(cat).is_contiguous


def take_outputs(site: Site, emission: Emission, given: Sequence[str]) -> Emission:
    """The emission with a launcher that is given these outputs behind the site's inputs."""
    if not given:
        return emission
    function = _launch(emission)
    names = dict(zip((each.name for each in site.outputs), _returned(function), strict=True))
    for output in given:
        allocation = _allocation(function, names[output])
        function.body = [statement for statement in function.body if statement is not allocation]
        function.args.args.append(ast.arg(names[output]))
    return replace(emission, launcher=ast.unparse(ast.fix_missing_locations(function)) + "\n")


def _given(site: Site, emission: Emission, wanted: Collection[str]) -> tuple[str, ...]:
    """Those of a site's outputs whose memory a launcher can be given, in the site's order."""
    if all(output.name not in wanted for output in site.outputs):
        return ()
    function = _launch(emission)
    names = [] if function.args.defaults else _returned(function)
    if len(names) != len(site.outputs) or len({*names}) < len(names):
        return ()
    return tuple(
        output.name
        for output, name in zip(site.outputs, names, strict=True)
        if output.name in wanted and _lies_alike(_allocation(function, name), output)
    )


def _launch(emission: Emission) -> ast.FunctionDef:
    functions = parse_python(emission.launcher).body
    return next(item for item in functions if isinstance(item, ast.FunctionDef))


def _returned(function: ast.FunctionDef) -> list[str]:
    """The names that a launcher returns, where it returns nothing else; else none."""
    last = function.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    names = [each.id for each in values if isinstance(each, ast.Name)]
    return names if len(names) == len(values) else []


def _allocation(function: ast.FunctionDef, name: str) -> ast.Assign | None:
    """The statement that gives a name uninitialised memory; None if anything else does, too."""
    writes = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    for statement in function.body:
        if isinstance(statement, ast.Assign) and statement.targets == writes:
            return statement if isinstance(statement.value, ast.Call) else None
    return None


def _lies_alike(allocation: ast.Assign | None, output: Operand) -> bool:
    """Whether memory is allocated as the graph says that an output lies."""
    if allocation is None or not isinstance(allocation.value, ast.Call):
        return False
    call, spec = allocation.value, output.spec
    has_strides = _UNWRITTEN.get(ast.unparse(call.func))
    if has_strides is None or len(call.args) != 1 + has_strides:
        return False
    try:
        places = [ast.literal_eval(argument) for argument in call.args]
    except ValueError:
        return False
    if places[0] != spec.shape:
        return False
    return places[1] == spec.stride if has_strides else spec.is_contiguous
