"""Released kernel files of other projects as candidates of kmem, for tools/compare_kernels.py.

A released file was written for another harness: it may set switches of the whole process, keep its
parameters under names of its own, or fold them in its constructor. In order: what can be read off
the text, mends that change no value of a forward, parameters paired, and the file under the
problem's names.

Covered: KernelBench's conventions (`ModelNew` takes the arguments of `Model`; the same seed before
both constructors makes the same weights). Not covered: parameters that a constructor folds or
transposes, for which there is no pair; files that import what a candidate may not.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

#: Switches of the whole process: the contract sets them, not a candidate.
_SWITCHES = ("cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32", "matmul.allow_tf32")
_SWITCHING_CALLS = ("torch.set_float32_matmul_precision",)
_PRIVATE_FANS = "init._calculate_fan_in_and_fan_out"
#: What a file multiplies with, if it calls these itself or keeps such a module and calls that.
_LIBRARY = {
    "library convolution": re.compile(r"(cudnn_)?(conv|Conv)(olution)?(_?[Tt]ranspose)?\d?d?$"),
    "library product": re.compile(r"(matmul|mm|bmm|addmm|baddbmm|linear|Linear|einsum)$"),
    "library recurrence": re.compile(r"(LSTM|GRU|RNN)$"),
}
_HALF = {"float16", "bfloat16", "half", "autocast"}


# ---- what can be read off the text


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; what is before a call or an index is left out."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def signs_of(source: str) -> tuple[str, ...]:
    """What a file does by its text: reduced precision, values kept by address, library calls.

    Raises SyntaxError.
    """
    tree = ast.parse(source)
    signs = set()
    held = _held_modules(tree)
    for node in ast.walk(tree):
        name = dotted(node)
        last = name.rpartition(".")[2]
        if last in _HALF or (isinstance(node, ast.Attribute) and node.attr in _HALF):
            signs.add("half precision")
        if isinstance(node, ast.Attribute) and node.attr in ("data_ptr", "_version"):
            signs.add("keeps by address")
        if isinstance(node, ast.Call):
            signs |= set(_signs_of_call(node, held))
        if isinstance(node, ast.Assign) and dotted(node.targets[0]).endswith("allow_tf32"):
            signs |= {"TF32"} if _is_true(node.value) else set()
    if not any(dotted(node).endswith("triton.jit") for node in ast.walk(tree)):
        signs.add("no kernel of its own")
    return tuple(sorted(signs))


def _held_modules(tree: ast.Module) -> Mapping[str, str]:
    """What `self.name` was given in a constructor: the class's last name."""
    return {
        target.attr: dotted(node.value.func).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }


def _signs_of_call(node: ast.Call, held: Mapping[str, str]) -> Iterator[str]:
    name = dotted(node.func)
    last = name.rpartition(".")[2]
    called = held.get(last, "") if name.startswith("self.") else last
    if name.startswith("tl."):
        if last == "dot":
            yield "own tl.dot"
            yield from ("TF32" for each in node.keywords if _allows_tf32(each))
        return
    if name == "torch.compile":
        yield "torch.compile"
    is_kept = name.startswith("self.")
    for sign, pattern in _LIBRARY.items():
        # nn.Conv2d(...) makes a module, and only a call of what was made is one of the library
        if pattern.match(called) and (is_kept or not called[:1].isupper()):
            yield sign


def _allows_tf32(given: ast.keyword) -> bool:
    said = isinstance(given.value, ast.Constant) and given.value.value
    return (given.arg == "allow_tf32" and said is True) or (
        given.arg == "input_precision" and str(said).startswith("tf32")
    )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


# ---- mends


class _Mend(ast.NodeTransformer):
    """Writes otherwise what a candidate may not say, where the values stay the same."""

    def __init__(self, tree: ast.Module) -> None:
        self.mends: list[str] = []
        self.at_top = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def _note(self, what: str) -> None:
        if what not in self.mends:
            self.mends.append(what)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        name = dotted(node.targets[0])
        if name.endswith(_SWITCHES):
            self._note(f"left out: {ast.unparse(node)}")
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Call) and dotted(node.value.func) in _SWITCHING_CALLS:
            self._note(f"left out: {ast.unparse(node)}")
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """`triton is not None`: an import that failed would be an error here."""
        is_module = isinstance(node.left, ast.Name) and node.left.id in ("triton", "tl")
        against = node.comparators[0]
        if is_module and isinstance(against, ast.Constant) and against.value is None:
            self._note(f"known: {ast.unparse(node)}")
            return ast.Constant(isinstance(node.ops[0], ast.IsNot))
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node = self.generic_visit(node)
        name = dotted(node.func)
        if name.endswith(_PRIVATE_FANS):
            self._note("fans of a weight written out")
            of = ast.unparse(node.args[0])
            return ast.parse(f"({of}[0].numel(), {of}.numel() // {of}.shape[1])", mode="eval").body
        if name == "getattr" and len(node.args) == 2 and isinstance(node.args[1], ast.JoinedStr):
            self._note("buffers taken by get_buffer")
            owner = ast.Attribute(node.args[0], "get_buffer", ast.Load())
            return ast.Call(owner, [node.args[1]], [])
        if ast.unparse(node.func) == "globals().get" and isinstance(node.args[0], ast.Constant):
            self._note("a name of the file taken as it is")
            is_bound = node.args[0].value in self.at_top
            default = node.args[1] if len(node.args) > 1 else ast.Constant(None)
            return ast.Name(str(node.args[0].value), ast.Load()) if is_bound else default
        return node


def mend_source(source: str) -> tuple[str, tuple[str, ...]]:
    """A file without what only its text is refused for, and what was mended.

    Precision that a file lowers by itself (autocast, casts) stays. Raises SyntaxError.
    """
    tree = ast.parse(source)
    mend = _Mend(tree)
    mended = ast.fix_missing_locations(mend.visit(tree))
    return (ast.unparse(mended) + "\n" if mend.mends else source), tuple(mend.mends)


# ---- the same weights


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter or buffer of a module, by its name."""

    name: str
    is_parameter: bool
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which of a released module's parameters are which of the problem's: (theirs, problem's).

    `alone` are those of the problem that have no counterpart; the released module does without
    them or makes something else of them in its constructor. `added` are its own.
    """

    pairs: tuple[tuple[str, str], ...]
    alone: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def is_needed(self) -> bool:
        """Whether the file cannot be given the problem's parameters as it is."""
        return bool(self.alone or self.added) or any(one != two for one, two in self.pairs)


def pair_parameters(problem: Sequence[Held], theirs: Sequence[Held]) -> Pairing:
    """Parameters of the same name and shape, then those of one shape in their order.

    Their order is that of construction, by which KernelBench's own harness gives both the same
    weights. A released module's buffers are its own unless they stand for one of the problem.
    """
    known = {each: each for each in theirs}
    pairs = [(each.name, each.name) for each in problem if each in known]
    left = defaultdict(list)
    for each in theirs:
        if each not in set(problem):
            left[each.is_parameter, each.shape].append(each)
    alone = []
    for each in problem:
        if each in known:
            continue
        of_shape = left[each.is_parameter, each.shape]
        if of_shape:
            pairs.append((of_shape.pop(0).name, each.name))
        else:
            alone.append(each.name)
    added = [each.name for rest in left.values() for each in rest if each.is_parameter]
    return Pairing(tuple(pairs), tuple(alone), tuple(added))


# ---- the file under the problem's names

_RELEASED, _PREFIX = "ReleasedModel", "Problem"
_UNDER_NAMES = '''

class ModelNew({model}):
    """The released module, which has the parameters of the problem's under their names."""

    def __init__(self, *args):
        super().__init__(*args)
        released = {released}(*args)
        tensors = dict(released.named_parameters(remove_duplicate=False))
        tensors.update(released.named_buffers(remove_duplicate=False))
        for theirs, name in {pairs}:
            place, _, last = name.rpartition(".")
            holder = self.get_submodule(place)
            if isinstance(tensors[theirs], torch.nn.Parameter):
                holder.register_parameter(last, tensors[theirs])
            else:
                holder.register_buffer(last, tensors[theirs])
        self.released = [released]

    def train(self, mode=True):
        self.released[0].train(mode)
        return super().train(mode)

    def forward(self, *inputs):
        return self.released[0](*inputs)
'''


def under_problem_names(source: str, problem: str, pairing: Pairing) -> str:
    """A file whose ModelNew has the problem's parameters, shared with the released module.

    Args:
        source: of the released file; its class gets another name.
        problem: the text of the problem's file, whose Model holds the parameters.
    """
    if re.search(r"^import torch$", source, re.MULTILINE) is None:
        source = f"import torch\n{source}"
    released = re.sub(r"\bModelNew\b", _RELEASED, source)
    wrapped = _UNDER_NAMES.format(
        model=f"{_PREFIX}Model", released=_RELEASED, pairs=list(pairing.pairs)
    )
    return f"{released}\n\n{_definitions(problem, released)}{wrapped}"


def _definitions(problem: str, beside: str) -> str:
    """What a problem's Model is made of, under names that no released file has."""
    tree = ast.parse(problem)
    bound = set(re.findall(r"^(\w+)\s*=", beside, re.MULTILINE))
    kept, names = [], set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if node.name not in ("get_inputs", "get_init_inputs"):
                kept.append(node)
                names.add(node.name)
        elif not isinstance(node, ast.Assign) or dotted(node.targets[0]) not in bound:
            kept.append(node)
    for node in (each for top in kept for each in ast.walk(top)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node in kept:
            node.name = f"{_PREFIX}{node.name}"
        elif isinstance(node, ast.Name) and node.id in names:
            node.id = f"{_PREFIX}{node.id}"
    return ast.unparse(ast.Module(kept, []))
