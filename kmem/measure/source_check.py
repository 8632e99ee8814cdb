"""Refuses what no kernel needs in a candidate's source, with the line and the reason.

The source is read before it runs, as a syntax tree, not as text: comments and strings steer
nothing. This is an early, readable refusal, not the wall: what ran is judged from execution
(provenance.py), and the process boundary holds without it.

Covered: imports, dynamic code, files, network, processes, threads, streams, frame walking, private
torch modules, changed modules and global flags, torch.compile and C++ extensions. Not covered: what
a function of torch, triton or numpy does inside.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from kmem.host.syntax import parse_python

#: What a kernel file may import; a problem file's own imports are added, since an emitted module
#: carries the problem's `Model`.
ALLOWED_MODULES = frozenset(
    {
        "torch",
        "triton",
        "math",
        "typing",
        "functools",
        "dataclasses",
        "collections",
        "itertools",
        "operator",
        "enum",
        "numbers",
        "abc",
        "contextlib",
        "warnings",
        "copy",
        "numpy",
        "__future__",
    }
)
#: Names of other modules that change nothing: emitted modules ask for KMEM_STRICT.
_ALLOWED_NAMES = frozenset({"os.getenv"})
#: Parts of torch and triton that are not for kernels, and why.
REFUSED_PATHS = {
    "torch.compile": "torch.compile inside a candidate is the baseline, not a kernel",
    "torch.jit": "TorchScript compiles code behind the judge's back",
    "torch._dynamo": "the compiler's internals",
    "torch._inductor": "the compiler's internals",
    "torch._C": "private bindings hide which operator is called",
    "torch._ops": "private bindings hide which operator is called",
    "torch.utils.cpp_extension": "C++ extensions are not Triton",
    "torch.utils._python_dispatch": "dispatch modes hide which operator is called",
    "torch.overrides": "function modes hide which operator is called",
    "torch.library": "custom operators hide which operator is called",
    "torch.ops.load_library": "C++ extensions are not Triton",
    "torch.multiprocessing": "processes",
    "torch.distributed": "processes and network",
    "torch.hub": "network access",
    "torch.load": "file access",
    "torch.save": "file access",
    "torch.from_file": "file access",
    "torch.UntypedStorage": "raw storage access",
    "torch.cuda.Stream": "work on another stream escapes the timed region",
    "torch.cuda.ExternalStream": "work on another stream escapes the timed region",
    "torch.cuda.stream": "work on another stream escapes the timed region",
    "torch.cuda.set_stream": "work on another stream escapes the timed region",
    "torch.cuda.graph": "a captured graph replays old inputs",
    "torch.cuda.CUDAGraph": "a captured graph replays old inputs",
    "torch.cuda.graphs": "a captured graph replays old inputs",
    "torch.cuda.make_graphed_callables": "a captured graph replays old inputs",
    "torch.cuda.cudart": "raw driver access",
    "torch.cuda.memory": "raw allocator access",
    "torch.set_default_dtype": "changes a global flag",
    "torch.set_default_device": "changes a global flag",
    "torch.set_float32_matmul_precision": "changes a global flag",
    "torch.use_deterministic_algorithms": "changes a global flag",
    "torch.set_num_threads": "changes a global flag",
    "torch.manual_seed": "changes the random state",
    "torch.autocast": "lowers precision behind the contract",
    "torch.amp": "lowers precision behind the contract",
    "torch.cuda.amp": "lowers precision behind the contract",
    "torch.Tensor._make_subclass": "tensor subclasses can defer work",
    "torch.Tensor._make_wrapper_subclass": "tensor subclasses can defer work",
    "numpy.load": "file access",
    "numpy.loadtxt": "file access",
    "numpy.genfromtxt": "file access",
    "numpy.fromfile": "file access",
    "numpy.memmap": "file access",
    "numpy.save": "file access",
    "numpy.savez": "file access",
    "numpy.savetxt": "file access",
    "numpy.ctypeslib": "foreign code",
    "triton.testing": "timers",
    "triton.compiler": "the compiler's internals",
}
REFUSED_NAMES = {
    "exec": "runs text as code",
    "eval": "runs text as code",
    "compile": "runs text as code",
    "__import__": "imports out of sight",
    "open": "file access",
    "input": "reads the terminal",
    "breakpoint": "starts a debugger",
    "exit": "ends the process",
    "quit": "ends the process",
    "globals": "reaches names out of sight",
    "vars": "reaches names out of sight",
    "__builtins__": "reaches names out of sight",
    "__loader__": "imports out of sight",
    "__spec__": "imports out of sight",
    "SystemExit": "ends the process",
    "KeyboardInterrupt": "ends the process",
}
REFUSED_ATTRIBUTES = frozenset(
    {
        "__globals__",
        "__code__",
        "__closure__",
        "__builtins__",
        "__subclasses__",
        "__bases__",
        "__mro__",
        "__dict__",
        "__getattribute__",
        "__loader__",
        "__spec__",
        "__import__",
        "f_back",
        "f_globals",
        "f_locals",
        "f_builtins",
        "gi_frame",
        "cr_frame",
        "ag_frame",
        "tb_frame",
        "tb_next",
        "__traceback__",
        "__reduce__",
        "__reduce_ex__",
        "_share_cuda_",
        "_new_shared_cuda",
        "from_file",
        "__torch_function__",
        "__torch_dispatch__",
    }
)
_REFUSED_SUBCLASSED = ("Tensor", "TorchDispatchMode", "TorchFunctionMode")
_COMPUTED_ACCESS = frozenset({"getattr", "setattr", "delattr", "hasattr"})


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
    allowed = ALLOWED_MODULES | _imported_roots(problem_source)
    # An emitted module carries the problem's own Model: what the problem does itself is no fault of
    # the candidate.
    excused = {refusal.what for refusal in _find_refusals(problem_source, allowed)}
    return [refusal for refusal in _find_refusals(source, allowed) if refusal.what not in excused]


def _find_refusals(source: str, allowed: Iterable[str]) -> list[Refusal]:
    tree = parse_python(source)
    checker = _Checker(allowed)
    checker.collect_aliases(tree)
    checker.visit(tree)
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
    """Walks one file; knows which local names stand for which module paths."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = frozenset(allowed)
        self.aliases: dict[str, str] = {}
        self.refusals: list[Refusal] = []

    def collect_aliases(self, tree: ast.Module) -> None:
        """Names bound to modules or their attributes, by import or by plain assignment.

        Assignments are gone through until nothing new is found.
        """
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.split(".")[0]
                    self.aliases[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        for _ in range(len(assignments)):
            known = len(self.aliases)
            for node in assignments:
                path = self._path(node.value)
                if path is not None:
                    self.aliases.update(
                        {
                            target.id: path
                            for target in node.targets
                            if isinstance(target, ast.Name) and target.id not in self.aliases
                        }
                    )
            if len(self.aliases) == known:
                break

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check_import(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            self._refuse(node, "a relative import", "a candidate is one file")
            return
        for alias in node.names:
            self._check_import(node, f"{node.module}.{alias.name}", wildcard=alias.name == "*")

    def visit_Name(self, node: ast.Name) -> None:
        if (
            isinstance(node.ctx, ast.Load)
            and node.id in REFUSED_NAMES
            and node.id not in self.aliases
        ):
            self._refuse(node, node.id, REFUSED_NAMES[node.id])
        self._check_path(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in REFUSED_ATTRIBUTES:
            self._refuse(node, f".{node.attr}", "reaches interpreter or tensor internals")
        path = self._path(node)
        if path is not None and not isinstance(node.ctx, ast.Load):
            self._refuse(
                node, f"assignment to {path}", "changes a module or global flag that others rely on"
            )
        elif not self._check_path(node):
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        path = self._path(node.value)
        if path is not None and not isinstance(node.ctx, ast.Load):
            self._refuse(node, f"assignment into {path}", "changes a module that others rely on")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _COMPUTED_ACCESS and node.args:
            owner = self._path(node.args[0])
            named = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if node.func.id in ("setattr", "delattr") and owner is not None:
                self._refuse(
                    node, f"{node.func.id} on {owner}", "changes a module that others rely on"
                )
            elif not named:
                self._refuse(
                    node, f"{node.func.id} with a computed name", "hides which attribute is used"
                )
            elif owner is not None:
                self._report_path(node, f"{owner}.{node.args[1].value}")
            if named and node.args[1].value in REFUSED_ATTRIBUTES:
                self._refuse(
                    node,
                    f"{node.func.id} of {node.args[1].value}",
                    "reaches interpreter or tensor internals",
                )
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            path = self._path(base) or ""
            if path.startswith("torch") and path.rsplit(".", 1)[-1] in _REFUSED_SUBCLASSED:
                self._refuse(
                    node,
                    f"a subclass of {path}",
                    "tensor subclasses and modes can defer or hide work",
                )
        self.generic_visit(node)

    def _check_import(self, node: ast.AST, name: str, wildcard: bool = False) -> None:
        if name.split(".")[0] not in self.allowed and name not in _ALLOWED_NAMES:
            self._refuse(
                node,
                f"import of {name.removesuffix('.*')}",
                "a kernel file may import torch, triton, numpy and a few standard modules only",
            )
        elif wildcard:
            self._refuse(
                node, f"import * from {name.removesuffix('.*')}", "hides which names are used"
            )
        else:
            self._report_path(node, name)

    def _path(self, node: ast.AST) -> str | None:
        """The dotted path of a name or attribute chain that starts at an imported module.

        None for anything else.
        """
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._path(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    def _check_path(self, node: ast.AST) -> bool:
        path = self._path(node)
        return path is not None and self._report_path(node, path)

    def _report_path(self, node: ast.AST, path: str) -> bool:
        for refused, why in REFUSED_PATHS.items():
            if path == refused or path.startswith(refused + "."):
                self._refuse(node, path, why)
                return True
        parts = path.split(".")
        if (
            parts[0] == "torch"
            and parts[:2] != ["torch", "ops"]
            and any(part.startswith("_") and not part.startswith("__") for part in parts[1:])
        ):
            self._refuse(node, path, "private parts of torch hide which operator is called")
            return True
        if (
            len(parts) > 1
            and parts[0] in ("torch", "triton", "numpy")
            and parts[1] in ("os", "sys", "ctypes", "inspect", "subprocess", "importlib")
        ):
            self._refuse(node, path, "a standard module reached through another one")
            return True
        return False

    def _refuse(self, node: ast.AST, what: str, why: str) -> None:
        refusal = Refusal(node.lineno, what, why)
        if refusal not in self.refusals:
            self.refusals.append(refusal)
