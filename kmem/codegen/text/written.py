"""Which of its pointers a kernel may store through, read from its text.

A pointer is followed through assignments, arithmetic and calls of the file's own functions, those
that a kernel is handed among them. What is not understood counts as a store, so that a pointer that
is not named here is only read.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kmem.codegen.text.functions import JitFunction, bind
from kmem.host.syntax import parse_python

#: Python's own functions that kernels call; they store nothing.
_PURE = frozenset({"range", "min", "max", "abs", "len", "print", "int", "float"})


#: What gives a name a value.
_ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)


@dataclass(frozen=True, slots=True)
class PointerUse:
    """Parameters of a function whose memory it may change, and whose address it may return."""

    written: frozenset[str]
    returned: frozenset[str]


def written_parameters(name: str, functions: Mapping[str, JitFunction]) -> frozenset[str]:
    """Parameters of a function whose memory a call of it may change.

    Args:
        functions: all of the file, by name.
    """
    reached: dict[str, JitFunction] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in functions and each not in reached:
            reached[each] = functions[each]
            waiting += functions[each].reads
    return _written_parameters(name, frozenset(reached.values()))


@lru_cache(maxsize=1024)
def _written_parameters(name: str, functions: frozenset[JitFunction]) -> frozenset[str]:
    """A kernel is written at many settings, in the same functions."""
    return _Reader({each.name: each for each in functions}).use_of(name).written


#: Functions that a call hands in: what the callee's parameters are called in the file.
_HandedIn = frozenset[tuple[str, str]]


class _Reader:
    """Reads the functions of one file, each once for what it is handed."""

    def __init__(self, functions: Mapping[str, JitFunction]) -> None:
        self.functions = functions
        self._found: dict[tuple[str, _HandedIn], PointerUse] = {}

    def use_of(self, name: str, handed_in: _HandedIn = frozenset()) -> PointerUse:
        key = name, handed_in
        if key not in self._found:
            function = self.functions[name]
            everything = frozenset(parameter.name for parameter in function.parameters)
            self._found[key] = PointerUse(everything, everything)  # of one that calls itself
            if "pointer_type" not in function.text:  # addresses may be made of numbers there
                self._found[key] = _Flow(self, function, handed_in).use
        return self._found[key]


class _Flow:
    """Of which parameters each name of a function may hold the address."""

    def __init__(self, reader: _Reader, function: JitFunction, handed_in: _HandedIn) -> None:
        self.reader = reader
        self.handed_in = dict(handed_in)
        self.held = {parameter.name: {parameter.name} for parameter in function.parameters}
        nodes = list(ast.walk(parse_python(function.text)))
        assignments = [node for node in nodes if isinstance(node, _ASSIGNMENTS)]
        while self._follow(assignments):
            pass
        written: set[str] = set()
        returned: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Call):
                written.update(*map(self._of, self._stored_through(node)))
            elif isinstance(node, ast.Return) and node.value is not None:
                returned |= self._of(node.value)
        self.use = PointerUse(frozenset(written), frozenset(returned))

    def _follow(self, assignments: list[ast.AST]) -> bool:
        """Take every assignment once; whether any name holds more than before."""
        before = sum(map(len, self.held.values()))
        for node in assignments:
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.For):
                targets, value = [node.target], node.iter
            else:
                targets, value = [node.target], node.value
            held = set() if value is None else self._of(value)
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        self.held.setdefault(name.id, set()).update(held)
        return sum(map(len, self.held.values())) > before

    def _of(self, node: ast.AST) -> set[str]:
        """The parameters whose addresses an expression may hold."""
        if isinstance(node, ast.Name):
            return self.held.get(node.id, set())
        if isinstance(node, ast.Attribute) and node.attr == "dtype":
            return set()
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            if _is_load(node.func):
                return set()  # what lies there is no address
            callee = self._callee(node)
            if callee is not None:
                parts = self._given(node, callee, self._use_of(node, callee).returned)
        return set().union(*map(self._of, parts))

    def _callee(self, call: ast.Call) -> JitFunction | None:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        return self.reader.functions.get(self.handed_in.get(name, name))

    def _use_of(self, call: ast.Call, callee: JitFunction) -> PointerUse:
        names = {
            parameter: self.handed_in.get(value.id, value.id)
            for parameter, value in bind(call, callee).items()
            if isinstance(value, ast.Name)
        }
        handed_in = {each for each in names.items() if each[1] in self.reader.functions}
        return self.reader.use_of(callee.name, frozenset(handed_in))

    def _given(
        self, call: ast.Call, callee: JitFunction, parameters: frozenset[str]
    ) -> list[ast.AST]:
        """What a call gives for some parameters; everything where that cannot be told."""
        if any(isinstance(each, ast.Starred) for each in call.args):
            return list(call.args)
        bound = bind(call, callee)
        return [bound[name] for name in sorted(parameters) if name in bound]

    def _stored_through(self, call: ast.Call) -> Iterator[ast.AST]:
        """Arguments of a call whose memory it may change."""
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        callee = self._callee(call)
        if callee is not None:
            yield from self._given(call, callee, self._use_of(call, callee).written)
        elif isinstance(call.func, ast.Name):
            yield from given if call.func.id not in _PURE else ()
        elif isinstance(call.func, ast.Attribute):
            what = call.func.attr
            if what.startswith(("store", "atomic")):
                yield from [call.func.value, *given[:1], *self._pointers(call)]
            elif "asm" in what:
                yield from given

    def _pointers(self, call: ast.Call) -> Iterator[ast.AST]:
        return (keyword.value for keyword in call.keywords if keyword.arg == "pointer")


def _is_load(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "load"
        and isinstance(function.value, ast.Name)
        and function.value.id == "tl"
    )
