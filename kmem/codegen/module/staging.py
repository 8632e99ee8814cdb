"""The part of a launcher that depends on parameters alone, parted from the rest.

A launcher that splits, packs or scales a weight before it multiplies does so at every call, though
the weight is the same. `part_launcher` moves the launches that read parameters alone, and write
memory that no other launch writes, into a function of their own, whose results a module keeps.
Where an operand is an input of the forward, its launches stay where they are.
"""

import ast
import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kmem.codegen.text.functions import JitFunction, bind
from kmem.codegen.text.launches import ALLOCATIONS, LaunchCall, is_library
from kmem.codegen.text.written import written_parameters
from kmem.host.syntax import parse_python

#: The parameter by which a launcher is given what was staged.
STAGED = "from_weights"


@dataclass(frozen=True, slots=True)
class Parted:
    """A launcher in two: `staging` returns what `rest` gets as its last argument.

    `staged` are the numbers of the launches that moved, `staging_reads` and `rest_reads` the places
    of the site's inputs that each function takes.
    """

    staging: ast.FunctionDef
    rest: ast.FunctionDef
    staged: tuple[int, ...]
    staging_reads: tuple[int, ...]
    rest_reads: tuple[int, ...]


def part_launcher(
    function: ast.FunctionDef,
    launches: Sequence[LaunchCall],
    steady: Collection[int],
    functions: Mapping[str, JitFunction],
) -> Parted | None:
    """Part a launcher; None where nothing of it depends on parameters alone.

    Args:
        function: its tree, constants where they are used; the nodes of its body are shared with
            both parts.
        steady: the places of the site's inputs that are parameters or made of parameters.
        functions: those of the kernels' text, by name.
    """
    if not steady or function.args.defaults:  # an input may be missing
        return None
    names = [argument.arg for argument in function.args.args]
    parting = _Parting(function, launches, functions, {names[place] for place in steady})
    staged = parting.find_staged()
    kept = parting.find_kept(staged)
    if not kept:
        return None
    memory = parting.memory_of(staged)
    moved, left = [], []
    for statement in function.body:
        target = _target(statement)
        if target in parting.facts:
            moved.append(copy.deepcopy(statement))
            left.append(statement)
        elif parting.numbers.get(id(statement)) in staged or target in memory:
            moved.append(statement)
        else:
            left.append(statement)
    moved, left = (_without_unread(part, parting.facts) for part in (moved, left))
    stand_in = next(name for name in names if name in parting.steady and _reads(moved, name))
    moved = [_StandIn(parting.steady, stand_in).visit(statement) for statement in moved]
    moved += parse_python(f"return ({', '.join(kept)},)").body
    left[:0] = parse_python(f"{', '.join(kept)}, = {STAGED}").body
    staging_reads = [place for place, name in enumerate(names) if _reads(moved, name)]
    rest_reads = [
        place for place, name in enumerate(names) if place not in steady or _reads(left, name)
    ]
    return Parted(
        _define(function, [names[place] for place in staging_reads], moved),
        _define(function, [*(names[place] for place in rest_reads), STAGED], left),
        tuple(sorted(staged)),
        tuple(staging_reads),
        tuple(rest_reads),
    )


@dataclass
class _Parting:
    """One launcher: what its launches touch and change."""

    function: ast.FunctionDef
    launches: Sequence[LaunchCall]
    functions: Mapping[str, JitFunction]
    steady: set[str]  # parameters that hold the module's own
    # what the launcher allocates, and what it asks of a tensor's device
    memory: dict[str, ast.Assign] = field(default_factory=dict)
    facts: dict[str, ast.Assign] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)  # of launches, by their statement's id
    touched: list[set[str]] = field(default_factory=list)  # by launch
    changed: list[set[str]] = field(default_factory=list)
    read: set[str] = field(default_factory=set)  # names that library calls read
    other: set[str] = field(default_factory=set)  # names that the remaining statements hold

    def __post_init__(self) -> None:
        calls = {id(launch.call): number for number, launch in enumerate(self.launches)}
        for statement in self.function.body:
            if isinstance(statement, ast.Expr) and id(statement.value) in calls:
                self.numbers[id(statement)] = calls[id(statement.value)]
            elif isinstance(statement, ast.Assign) and _is_allocation(statement):
                self.memory[str(_target(statement))] = statement
            elif isinstance(statement, ast.Assign) and self._is_fact(statement):
                self.facts[str(_target(statement))] = statement
            elif isinstance(statement, ast.Assign) and is_library(statement):
                self.read |= _names(statement.value)
                self.other.add(str(_target(statement)))
            else:
                self.other |= _names(statement)
        own = {argument.arg for argument in self.function.args.args}
        values = own | self.memory.keys() | self.other
        for launch in self.launches:
            given = bind(launch.call, self.functions[launch.kernel])
            written = written_parameters(launch.kernel, self.functions)
            self.touched.append(values & _names_of(given.values()))
            changed = [value for name, value in given.items() if name in written]
            self.changed.append(values & _names_of(changed))
        self.steady -= self.other.union(*self.changed)

    def find_staged(self) -> set[int]:
        """The launches that read parameters alone, through memory that only such launches write."""
        staged = set(self.numbers.values())
        while True:
            # what another statement may change, or return, has to be made at every call
            unsure = set(self.other)
            for number, changed in enumerate(self.changed):
                unsure |= changed if number not in staged else set()
            sure = self.steady | {
                name
                for name, statement in self.memory.items()
                if name not in unsure and self._can_move(statement)
            }
            left = {number for number in staged if self.touched[number] <= sure}
            if left == staged:
                break
            staged = left
        return staged if any(self.touched[number] & self.steady for number in staged) else set()

    def _is_fact(self, statement: ast.Assign) -> bool:
        """Whether a name is given to what only the device decides."""
        is_plain = not any(isinstance(node, ast.Call) for node in ast.walk(statement.value))
        return _target(statement) is not None and is_plain and self._can_move(statement)

    def _can_move(self, statement: ast.Assign) -> bool:
        """Whether a value can be made where no input is at hand: it may only ask for the device."""
        names = {argument.arg for argument in self.function.args.args}
        asked = {id(node.value) for node in ast.walk(statement.value) if _asks_device(node)}
        return all(
            node.id not in names or node.id in self.steady or id(node) in asked
            for node in ast.walk(statement.value)
            if isinstance(node, ast.Name)
        )

    def memory_of(self, staged: Collection[int]) -> set[str]:
        """The memory that staged launches touch, and what its allocations refer to."""
        found = set().union(*(self.touched[number] for number in staged)) & self.memory.keys()
        while True:
            more = _names_of(self.memory[name].value for name in found) & self.memory.keys()
            more -= found
            if not more:
                return found
            found |= more

    def find_kept(self, staged: Collection[int]) -> list[str]:
        """The memory that is made by staged launches and read by what is left."""
        memory = self.memory_of(staged)
        wanted = _names_of(self.memory[name].value for name in self.memory.keys() - memory)
        wanted |= self.read
        for number, touched in enumerate(self.touched):
            wanted |= touched if number not in staged else set()
        return [name for name in self.memory if name in memory and name in wanted]


class _StandIn(ast.NodeTransformer):
    """Asks a parameter for its device where an input was asked: all lie on one."""

    def __init__(self, steady: Collection[str], stand_in: str) -> None:
        self.steady, self.stand_in = steady, stand_in

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if _asks_device(node) and ast.unparse(node.value) not in self.steady:
            return ast.Attribute(ast.Name(self.stand_in, ast.Load()), node.attr, node.ctx)
        return self.generic_visit(node)


def _define(
    function: ast.FunctionDef, parameters: Sequence[str], body: list[ast.stmt]
) -> ast.FunctionDef:
    (made,) = parse_python(f"def {function.name}({', '.join(parameters)}):\n    pass\n").body
    assert isinstance(made, ast.FunctionDef)
    made.body = body
    return made


def _asks_device(node: ast.AST) -> bool:
    """Whether an attribute is the same for all tensors of a launcher."""
    is_asked = isinstance(node, ast.Attribute) and node.attr in ("device", "is_cpu", "is_cuda")
    return is_asked and isinstance(node.value, ast.Name)


def _is_allocation(statement: ast.Assign) -> bool:
    value = statement.value
    is_call = isinstance(value, ast.Call) and ast.unparse(value.func) in ALLOCATIONS
    return is_call and _target(statement) is not None


def _target(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns to."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else None


def _names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def _names_of(nodes: Iterable[ast.AST]) -> set[str]:
    return set().union(*map(_names, nodes))


def _without_unread(statements: list[ast.stmt], facts: Collection[str]) -> list[ast.stmt]:
    """Statements without the facts that none of them reads."""
    read = _names_of(each for each in statements if _target(each) not in facts)
    read |= _names_of(each.value for each in statements if isinstance(each, ast.Assign))
    return [each for each in statements if _target(each) not in facts or _target(each) in read]


def _reads(statements: Sequence[ast.stmt], name: str) -> bool:
    return any(name in _names(statement) for statement in statements)
