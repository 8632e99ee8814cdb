"""Refuses what no kernel needs in a candidate's source, with the line, the reason and what to do.

The source is read before it runs, as a syntax tree, not as text: comments and strings steer
nothing. This is an early, readable refusal, not the wall: what ran is judged from execution
(provenance.py), and the process boundary holds without it.

Covered: text that a reader and Python read differently, imports, names by what they stand for
(source_scopes.py, source_names.py), reflection, changed modules and classes, tensor subclasses. Not
covered: what a function of torch, triton or numpy does inside.
"""

import ast
import re
from dataclasses import dataclass

from kmem.host.syntax import parse_python
from kmem.measure.source_calls import attribute_faults, call_faults
from kmem.measure.source_names import find_object, import_advice, why_refused
from kmem.measure.source_scopes import CLASS_OF, Scope, Scopes

REFUSED_BUILTINS = {
    "exec": "runs text as code; write the code itself",
    "eval": "runs text as code; write the code itself",
    "compile": "runs text as code; write the code itself",
    "__import__": "imports out of sight; import at the top of the file",
    "open": "file access; keep constants in the source",
    "input": "reads the terminal; as a parameter or a local of a function the name is fine",
    "breakpoint": "starts a debugger; remove it",
    "exit": "ends the process; raise an exception",
    "quit": "ends the process; raise an exception",
    "help": "reaches modules out of sight; remove it",
    "license": "reads files; remove it",
    "copyright": "reads files; remove it",
    "credits": "reads files; remove it",
    "globals": "reaches names out of sight; name what you need",
    "locals": "reaches names out of sight; name what you need",
    "vars": "reaches names out of sight; name what you need",
    "dir": "reaches names out of sight; name what you need",
    "__builtins__": "reaches names out of sight; name what you need",
    "__loader__": "imports out of sight; import at the top of the file",
    "__spec__": "imports out of sight; import at the top of the file",
    "SystemExit": "ends the process; raise another exception",
    "KeyboardInterrupt": "ends the process; raise another exception",
}
#: May be called where they stand, with a name that is written out, but not passed on.
_REFLECTION = ("getattr", "setattr", "delattr", "hasattr", "type")
#: Names with two underscores that say nothing about how Python works inside.
_PLAIN_DUNDERS = frozenset(
    """
    __init__ __name__ __qualname__ __doc__ __version__ __len__ __getitem__ __setitem__ __call__
    __enter__ __exit__ __eq__ __hash__ __repr__ __str__ __iter__ __next__ __contains__ __class__
    __post_init__ __all__ __annotations__ __add__ __mul__ __sub__ __truediv__ __matmul__
    __setattr__ __getattr__ __ne__ __lt__ __le__ __gt__ __ge__ __bool__ __int__ __float__
    __index__ __copy__ __deepcopy__ __getstate__ __file__ __new__ __slots__ __match_args__
    __set_name__
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
#: Attributes that lead out of what was given, on whatever object, and methods that Python or torch
#: call out of sight.
_INTERNAL = frozenset(
    """
    f_back f_globals f_locals f_builtins gi_frame gi_code cr_frame cr_code ag_frame ag_code
    tb_frame tb_next func_globals _share_cuda_ _new_shared_cuda from_file _module _make_subclass
    _make_wrapper_subclass storage untyped_storage as_subclass
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
_MODULES_IN_MODULES = frozenset(
    """
    os sys subprocess ctypes importlib builtins threading multiprocessing inspect gc socket pickle
    shutil pathlib signal linecache _thread
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
_INTERNALS = "reaches interpreter or tensor internals; use public attributes and methods"
_CLASSES = "changes a class or module that others rely on; give the instance an attribute"
_SUBCLASSED = ("Tensor", "Parameter", "Buffer", "TorchDispatchMode", "TorchFunctionMode", "type")
_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_STRANGE = re.compile(
    "[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f\x85\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)
_WIDE = "the deepest expressions or blocks cannot be walked; write them flatter"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing found, at a line of the candidate."""

    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}: {self.why}"


def check_source(source: str, *, problem_source: str = "") -> list[Refusal]:
    """Everything refused in a candidate's source, in order of lines; empty if it may run.

    Args:
        problem_source: the problem file; what it imports or does itself is allowed as well.
    Raises:
        SyntaxError: if the candidate does not parse (a build failure, not a refusal).
    """
    if unreadable := _check_text(source):
        return unreadable  # the rest would be of a text that nobody sees
    extra = _imported_roots(problem_source)
    # An emitted module carries the problem's own Model: what the problem does itself is no fault of
    # the candidate.
    excused = {refusal.what for refusal in _find_refusals(problem_source, extra)}
    return [refusal for refusal in _find_refusals(source, extra) if refusal.what not in excused]


def _check_text(source: str) -> list[Refusal]:
    """Characters by which Python reads another text than people do."""
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        cookie = _COOKIE.match(line) if number <= 2 else None
        if cookie and cookie[1].lower().replace("_", "-") not in ("utf-8", "utf8"):
            why = "another reader would see other code; write UTF-8 and remove the line"
            found.append(Refusal(number, f"the coding {cookie[1]}", why))
        if strange := _STRANGE.search(line):
            what = f"the character U+{ord(strange[0]):04X}"
            why = "it hides or moves what is read; remove it, or write it as an escape in a string"
            found.append(Refusal(number, what, why))
    return found


def _find_refusals(source: str, extra: frozenset[str]) -> list[Refusal]:
    tree = parse_python(source)
    try:
        checker = _Checker(tree, extra, source.split("\n"))
        checker.visit(tree)
    except RecursionError:
        return [Refusal(1, "too deep a nesting", _WIDE)]
    return sorted(checker.refusals, key=lambda refusal: refusal.line)


def _imported_roots(source: str) -> frozenset[str]:
    roots = set()
    for node in ast.walk(parse_python(source)):
        if isinstance(node, ast.Import):
            roots.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots.add(node.module.split(".")[0])
    return frozenset(roots)


class _Checker(ast.NodeVisitor):
    """Walks one file, in the scope that each part of it lies in."""

    def __init__(self, tree: ast.Module, extra: frozenset[str], lines: list[str]) -> None:
        self.scopes = Scopes(tree)
        self.scope: Scope = self.scopes.of[tree]
        self.extra = extra
        self.lines = lines
        self.refusals: list[Refusal] = []
        self.in_kernel = False

    # ---- scopes

    def _visit_scope(self, node: ast.AST, outside: list[ast.AST]) -> None:
        """Visit what is evaluated around a scope, then what lies in it."""
        for part in outside:
            self.visit(part)
        before, self.scope = self.scope, self.scopes.of[node]
        for child in ast.iter_child_nodes(node):
            if child not in outside:
                self.visit(child)
        self.scope = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._check_defined(node)
        defaults = [each for each in node.args.defaults + node.args.kw_defaults if each]
        before, self.in_kernel = self.in_kernel, self.in_kernel or self._is_kernel(node)
        self._visit_scope(node, [*node.decorator_list, *defaults])
        self.in_kernel = before

    def _is_kernel(self, node: ast.FunctionDef) -> bool:
        called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
        return any("triton.jit" in self.scopes.paths(each, self.scope) for each in called)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        defaults = [each for each in node.args.defaults + node.args.kw_defaults if each]
        self._visit_scope(node, list(defaults))

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._visit_scope(node, [])

    visit_SetComp = visit_DictComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            for path in self.scopes.paths(base, self.scope):
                if path.rsplit(".", 1)[-1] in _SUBCLASSED or _is_special(find_object(path)):
                    self._refuse(
                        node,
                        f"a subclass of {path.removeprefix('builtins.')}",
                        "tensor subclasses, modes and metaclasses can defer or hide work; use "
                        "torch.nn.Module and plain functions",
                    )
        for keyword in node.keywords:
            if keyword.arg in ("metaclass", None):
                self._refuse(node, "a metaclass", "changes how classes work; write a plain class")
        outside = [*node.decorator_list, *node.bases, *(each.value for each in node.keywords)]
        self._visit_scope(node, outside)

    def _check_defined(self, node: ast.FunctionDef) -> None:
        name = node.name
        if name == "__del__":
            self._refuse(node, name, "runs at another time than forward; do the work in forward")
        elif _is_internal(name):
            self._refuse(node, name, _INTERNALS)
        if not node.decorator_list:
            return
        # Triton takes the first line that begins so for the kernel's own
        above = self.lines[node.decorator_list[0].lineno - 1 : node.lineno - 1]
        if any(re.match(r"\s*(async\s+)?def\s", line) for line in above):
            why = "a line of its decorators looks like another function; write them apart"
            self._refuse(node, f"the decorators of {name}", why)

    # ---- imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check_import(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            self._refuse(node, "a relative import", "a candidate is one file")
            return
        for alias in node.names:
            if alias.name == "*":
                why = "hides which names are used; import them by name"
                self._refuse(node, f"import * from {node.module}", why)
            self._check_import(node, f"{node.module}.{alias.name}".removesuffix(".*"))

    def _check_import(self, node: ast.stmt, name: str) -> None:
        why = why_refused(name, self.extra)
        if why is not None:
            root = name.split(".")[0]
            outside = why == import_advice(root)
            self._refuse(node, f"import of {root if outside and '.' not in name else name}", why)

    # ---- names and attributes

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._check_value(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if _is_internal(node.attr) or (
            node.attr in _MODULES_IN_MODULES and not _is_self(node.value)
        ):
            self._refuse(node, f".{node.attr}", _INTERNALS)
        for what, why in attribute_faults(node, in_kernel=self.in_kernel):
            self._refuse(node, what, why)
        if not isinstance(node.ctx, ast.Load):
            self._check_changed(node, node.value, f".{node.attr}")
            self.visit(node.value)
        elif not self._check_value(node):
            self._visit_owner(node.value)

    def _visit_owner(self, node: ast.expr) -> None:
        """Visit what an attribute is taken of: a module is no fault there."""
        if isinstance(node, ast.Name):
            self._check_value(node, may_be_module=True)
        elif isinstance(node, ast.Attribute):
            if not self._check_value(node, may_be_module=True):
                self._visit_owner(node.value)
            if _is_internal(node.attr):
                self._refuse(node, f".{node.attr}", _INTERNALS)
        else:
            self.visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._check_changed(node, node.value, "")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.visit(target)
        is_alias = all(isinstance(target, ast.Name) for target in node.targets)
        if is_alias and isinstance(node.value, ast.Name | ast.Attribute):
            self._visit_owner(node.value)  # another name for a module is followed
        else:
            self.visit(node.value)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:
            if _is_internal(name) or name in _MODULES_IN_MODULES:
                self._refuse(node, f".{name} in a pattern", _INTERNALS)
        self.generic_visit(node)

    def _check_value(self, node: ast.expr, *, may_be_module: bool = False) -> bool:
        """Hold what a name or chain may stand for to what is allowed; whether it was refused."""
        refused = False
        for path in sorted(self.scopes.paths(node, self.scope)):
            root = path.partition(".")[0]
            if root == "builtins":
                path = path.removeprefix("builtins.")
                why = REFUSED_BUILTINS.get(path.split(".")[0])
                if path in _REFLECTION:
                    why = "hides which attribute or class is used; call it where it stands"
            elif root == CLASS_OF.partition(".")[0]:
                continue
            else:
                why = why_refused(path, self.extra)
                if why is None and not may_be_module and _is_module(path):
                    why = "a module is passed on; name what you need of it"
            if why is not None:
                self._refuse(node, path, why)
                refused = True
        return refused

    def _check_changed(self, node: ast.expr, owner: ast.expr, name: str) -> None:
        paths = self.scopes.paths(owner, self.scope)
        for path in sorted(path for path in paths if not path.startswith("builtins.")):
            place = "a class" if path.startswith(CLASS_OF) else path
            self._refuse(node, f"assignment {'to' if name else 'into'} {place}{name}", _CLASSES)
        if name in (".__class__", ".__setattr__", ".__getattr__", ".__call__"):
            self._refuse(node, f"assignment to {name}", _CLASSES)

    # ---- calls

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        for what, why in call_faults(node, in_kernel=self.in_kernel):
            self._refuse(node, what, why)
        reflects = name in _REFLECTION and self.scopes.may_be_builtin(name, self.scope)
        if not reflects:
            self.generic_visit(node)
            return
        if name == "type":
            if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
                self._refuse(node, "type with more than one argument", "write the class itself")
        else:
            self._check_reflection(node, str(name))
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._visit_owner(part) if part is node.args[0] else self.visit(part)

    def _check_reflection(self, node: ast.Call, name: str) -> None:
        named = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
        if not named:
            advice = "write the name, or use a dictionary, nn.ModuleList or nn.ParameterList"
            why = f"hides which attribute is used; {advice}"
            self._refuse(node, f"{name} with a computed name", why)
            return
        attribute = str(node.args[1].value)
        if _is_internal(attribute):
            self._refuse(node, f"{name} of {attribute}", _INTERNALS)
        if name in ("setattr", "delattr"):
            for path in sorted(self.scopes.paths(node.args[0], self.scope)):
                self._refuse(node, f"{name} on {path}", _CLASSES)
        else:
            self._check_value(node)

    def _refuse(self, node: ast.AST, what: str, why: str) -> None:
        refusal = Refusal(node.lineno, what, why)
        if refusal not in self.refusals:
            self.refusals.append(refusal)


def _is_internal(name: str) -> bool:
    dunder = name.startswith("__") and name.endswith("__")
    return name in _INTERNAL or (dunder and name not in _PLAIN_DUNDERS)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_module(path: str) -> bool:
    return type(find_object(path)).__name__.endswith("module") or path in ("torch.ops",)


def _is_special(found: object) -> bool:
    """Whether a class derives from tensors, modes or metaclasses, by its own word."""
    names = {base.__name__ for base in type.mro(found)} if isinstance(found, type) else set()
    return bool(names & set(_SUBCLASSED)) and found is not object
