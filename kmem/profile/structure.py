"""What the Triton text of a kernel is made of, for skills that act on some texts and not on others.

Only functions that `ModelNew` reaches count, each once, however often it is launched; of a module
without such a class all of them do. The text is parsed, never run.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeGuard

from kmem.records import Kernel, Structure
from kmem.vocabulary import SOURCE_FEATURES

_ENTRY = "ModelNew"
#: The words of Triton's language that make a feature.
_WORDS: Mapping[str, frozenset[str]] = {
    "loads": frozenset({"load"}),
    "stores": frozenset({"store"}),
    "dots": frozenset({"dot", "dot_scaled"}),
    "reductions": frozenset({"sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum"}),
    "scans": frozenset({"cumsum", "cumprod", "associative_scan"}),
    "specials": frozenset(
        {"exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "sqrt", "sqrt_rn"}
        | {"rsqrt", "sigmoid", "softmax", "erf", "erfc", "pow"}
    ),
    "turns": frozenset({"trans", "permute"}),
}
#: What copies or converts a tensor in a launch of its own, wherever it is called.
_COPIES = frozenset(
    {"clone", "repeat", "repeat_interleave", "cat", "pad", "flip", "roll"}
    | {"half", "float", "bfloat16"}
)
#: What makes of `.contiguous()` a copy; of what is so already it is none.
_TURNS = frozenset({"t", "transpose", "permute", "movedim", "expand"})
#: What makes a tensor and writes it full of one number.
_FILLS = frozenset({"zeros", "zeros_like", "new_zeros", "ones", "full", "full_like", "new_full"})
#: What a kernel does with an argument that has to hold something before.
_READS = frozenset({"load", "atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg"})
#: Calls that leave values what they are.
_MOVES = frozenset({"load", "to", "trans", "permute", "reshape", "broadcast_to"})
#: Whose words are Triton's; a descriptor has `load` and `store` of its own.
_LANGUAGES = frozenset({"tl", "language", "libdevice", "math"})
#: Where a mask stands in a call when it is not named.
_MASK_PLACES = {"load": 1, "store": 2}


def read_structure(kernel: Kernel) -> Structure | None:
    """What a kernel's text has of vocabulary.SOURCE_FEATURES, and which skills wrote it.

    A text without a Triton function has none of them. None where it is no Python.
    """
    try:
        tree = ast.parse(kernel.source)
    except (SyntaxError, ValueError):
        return None
    counted: Counter[str] = Counter()
    kernels: dict[str, _Text] = {}
    host: list[ast.stmt] = []
    for statement in _reached(tree):
        if isinstance(statement, ast.FunctionDef) and _is_kernel(statement):
            kernels[statement.name] = _Text(statement)
            counted.update(kernels[statement.name].count())
        else:
            host.append(statement)
    for statement in host:
        counted["copies"] += sum(map(_is_copy, ast.walk(statement)))
        counted["copies"] += len(_overwritten_fills(statement, kernels))
    skills = dict.fromkeys(choice.recipe for choice in kernel.choices)
    return Structure(
        {name: float(counted[name]) for name in SOURCE_FEATURES}, tuple(filter(None, skills))
    )


def _reached(tree: ast.Module) -> Iterator[ast.stmt]:
    """The entry and the functions, classes and tables that it reaches, in the order of the text."""
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign):  # a table of kernels leads on to those it names
            names = (target.id for target in statement.targets if isinstance(target, ast.Name))
            defined.update(dict.fromkeys(names, statement))
    waiting = [_ENTRY] if _ENTRY in defined else list(defined)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in defined and name not in seen:
            seen.add(name)
            waiting += [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    yield from (statement for name, statement in defined.items() if name in seen)


def _is_kernel(function: ast.FunctionDef) -> bool:
    named = (node for each in function.decorator_list for node in ast.walk(each))
    return any(getattr(node, "attr", getattr(node, "id", "")) == "jit" for node in named)


class _Text:
    """One Triton function, with every value that each of its names is given."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function
        self._given: dict[str, list[ast.expr]] = defaultdict(list)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._give(target, node.value)
            elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
                self._give(node.target, node.value)

    def _give(self, target: ast.expr, value: ast.expr) -> None:
        """Note the value of each name of a target, of a tuple's names each its own."""
        names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        for place, name in enumerate(names):
            own = values[place] if len(values) == len(names) > 1 else value
            if isinstance(name, ast.Name):
                self._given[name.id].append(own)
            elif isinstance(name, ast.Tuple | ast.List):
                self._give(name, own)

    def count(self) -> Counter[str]:
        """How often the text has each feature."""
        found: Counter[str] = Counter()
        for node in ast.walk(self._function):
            if isinstance(node, ast.Call):
                word = _word(node)
                found.update(name for name, words in _WORDS.items() if word in words)
                found["atomics"] += word.startswith("atomic_")
                found["masks"] += _is_masked(node, word)
                found["gathers"] += (
                    word == "load" and bool(node.args) and self._hangs_on(node.args[0], _is_load)
                )
            elif isinstance(node, ast.For | ast.While):
                found["unrolled" if _is_unrolled(node) else "loops"] += 1
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                found["divisions"] += self._hangs_on(node.left, _is_lanes)
        found["rereads"] = self._count_rereads()
        found["copies"] = self._only_moves()
        return found

    def only_stores_to(self, place: int) -> bool:
        """Whether the argument at a place is stored to, and neither loaded nor updated."""
        names = [each.arg for each in self._function.args.args[place : place + 1]]
        used = {
            _word(node)
            for node in ast.walk(self._function)
            if isinstance(node, ast.Call) and _word(node) and self._argument(node) in names
        }
        return "store" in used and used.isdisjoint(_READS)

    def _only_moves(self) -> bool:
        """Whether all that is stored was loaded and is not changed, only moved."""
        stores = [node for node in ast.walk(self._function) if _is_store(node)]
        return bool(stores) and all(self._is_moved(store.args[1]) for store in stores)

    def _is_moved(self, value: ast.expr, depth: int = 8) -> bool:
        """Whether a value is a load, be it turned, converted or by way of names."""
        if isinstance(value, ast.Name) and depth:
            made = self._given[value.id]
            return bool(made) and all(self._is_moved(each, depth - 1) for each in made)
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
            return False
        if value.func.attr not in _MOVES:
            return False
        read = value.func.value if _word(value) == "" else next(iter(value.args), value.func)
        return _is_load(value) or self._is_moved(read, depth)

    def _hangs_on(
        self,
        value: ast.AST,
        is_source: Callable[[ast.AST], bool],
        seen: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether a value is made of something, be it by way of names."""
        for node in ast.walk(value):
            if is_source(node):
                return True
            if isinstance(node, ast.Name) and node.id not in seen:
                seen |= {node.id}
                if any(self._hangs_on(each, is_source, seen) for each in self._given[node.id]):
                    return True
        return False

    def _count_rereads(self) -> int:
        """How many arguments are loaded from in more than one of the loops that follow another."""
        loops: dict[str, set[int]] = defaultdict(set)
        for place, loop in enumerate(_outermost_loops(self._function)):
            for node in ast.walk(loop):
                if isinstance(node, ast.Call) and _is_load(node):
                    loops[self._argument(node)].add(place)
        return sum(len(places) > 1 for name, places in loops.items() if name)

    def _argument(self, load: ast.Call) -> str:
        """The argument that a load's addresses begin at; "" where they do not begin at a name."""
        arguments = {each.arg for each in self._function.args.args}
        value: ast.AST = load.args[0] if load.args else load.func
        seen: set[str] = set()
        while True:
            if isinstance(value, ast.BinOp):
                value = value.left
            elif isinstance(value, ast.Name) and value.id in arguments:
                return value.id
            elif isinstance(value, ast.Name) and value.id not in seen and self._given[value.id]:
                seen.add(value.id)
                value = self._given[value.id][0]
            else:
                return ""


def _overwritten_fills(host: ast.stmt, kernels: Mapping[str, _Text]) -> set[str]:
    """The names of tensors that are filled, and then only stored to by the kernels launched."""
    filled: set[str] = set()
    written: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(host):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = getattr(node.value.func, "attr", "")
            filled |= {_name(each) for each in node.targets if called in _FILLS}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            text = kernels.get(_name(node.func.value))
            for place, each in enumerate(node.args if text else ()):
                (written if text.only_stores_to(place) else read).add(_name(each))
    return filled & written - read - {""}


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _outermost_loops(node: ast.AST) -> Iterator[ast.For | ast.While]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.For | ast.While) and not _is_unrolled(child):
            yield child
        else:
            yield from _outermost_loops(child)


def _word(call: ast.Call) -> str:
    """ "load" of `tl.load(...)` and of a descriptor's `.load(...)`; "" of what is not Triton's."""
    if not isinstance(call.func, ast.Attribute):
        return ""
    owner = call.func.value
    named = getattr(owner, "attr", getattr(owner, "id", ""))
    return call.func.attr if named in _LANGUAGES or call.func.attr in _MASK_PLACES else ""


def _is_masked(call: ast.Call, word: str) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if word not in _MASK_PLACES or getattr(owner, "id", "") not in _LANGUAGES:
        return False
    place = _MASK_PLACES[word]
    masks = [each.value for each in call.keywords if each.arg == "mask"]
    masks += call.args[place : place + 1]
    return any(not (isinstance(mask, ast.Constant) and mask.value is None) for mask in masks)


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _word(node) == "load"


def _is_store(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and _word(node) == "store" and len(node.args) > 1


def _is_copy(node: ast.AST) -> bool:
    """Whether a call of the host copies or converts a tensor."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in _COPIES:
        return True
    read = node.func.value
    if node.func.attr == "contiguous" and isinstance(read, ast.Subscript):
        return _leaves_gaps(read.slice)
    turned = {getattr(getattr(each, "func", None), "attr", "") for each in ast.walk(node.func)}
    return node.func.attr in ("contiguous", "reshape") and not _TURNS.isdisjoint(turned)


def _leaves_gaps(taken: ast.expr) -> bool:
    """Whether what a subscript takes lies apart: it steps, or parts another than the first axis."""
    given = taken.elts if isinstance(taken, ast.Tuple) else [taken]
    # None makes an axis of one element, which moves nothing
    axes = [axis for axis in given if not (isinstance(axis, ast.Constant) and axis.value is None)]
    whole = ast.dump(ast.Slice())
    return any(isinstance(axis, ast.Slice) and axis.step is not None for axis in axes) or any(
        ast.dump(axis) != whole for axis in axes[1:]
    )


def _is_lanes(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "arange"


def _is_unrolled(loop: ast.For | ast.While) -> bool:
    return isinstance(loop, ast.For) and any(
        getattr(node, "attr", "") == "static_range" for node in ast.walk(loop.iter)
    )
