"""The functions of a kernel file as text, and what changes a function's parameters and calls."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kmem.codegen.edited_text import EditedText, read_tree, replace_names
from kmem.codegen.evaluating import Known
from kmem.codegen.folding import fold
from kmem.codegen.unused import drop_unused
from kmem.host.syntax import parse_python


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a jitted function; constexpr ones are known when it is compiled."""

    name: str
    is_constexpr: bool
    default: str | None

    def write(self) -> str:
        text = f"{self.name}: tl.constexpr" if self.is_constexpr else self.name
        return text if self.default is None else f"{text} = {self.default}"


@dataclass(frozen=True, slots=True)
class JitFunction:
    """One function of a kernel file: its text from the decorator to its last line."""

    name: str
    text: str

    @property
    def parameters(self) -> list[Parameter]:
        arguments = _definition(self.text).args
        defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
        return [
            Parameter(
                argument.arg,
                argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation),
                None if default is None else ast.unparse(default),
            )
            for argument, default in zip(arguments.args, defaults, strict=True)
        ]

    @property
    def reads(self) -> frozenset[str]:
        """Names that the body reads."""
        return _reads(self.text)

    @property
    def is_pure(self) -> bool:
        """Whether a call only computes a value."""
        return "tl.store" not in self.text and "tl.atomic" not in self.text

    def calls(self, name: str) -> list[ast.Call]:
        """Calls of a function of this file."""
        if name not in self.reads:
            return []
        return [
            node
            for node in ast.walk(_definition(self.text))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == name
        ]

    def settle(self, known: Known, pure: Collection[str]) -> "JitFunction":
        """The function with the branches that known names decide taken.

        Whatever is then without a reader is dropped.
        """
        asked = frozenset((name, type(known[name]), known[name]) for name in known)
        return replace(self, text=_settle(self.text, asked, frozenset(pure) & self.reads))

    def with_names(self, names: Mapping[str, str]) -> "JitFunction":
        """The function with other text where its body reads names."""
        return replace(self, text=replace_names(self.text, names)) if names else self

    def with_parameters(self, parameters: Sequence[Parameter]) -> "JitFunction":
        """The function with another list of parameters."""
        definition = _definition(self.text)
        edited = EditedText(self.text)
        last = definition.lineno
        while not edited.line(last).split("#")[0].rstrip().endswith(":"):
            last += 1
        head = ", ".join(parameter.write() for parameter in parameters)
        edited.replace_lines(definition.lineno, last, f"def {self.name}({head}):\n")
        return replace(self, text=edited.result())

    def without_arguments(self, callee: "JitFunction", dropped: Collection[str]) -> "JitFunction":
        """The function without arguments that a function it calls no longer takes."""
        edited = EditedText(self.text)
        for call in self.calls(callee.name):
            given = _arguments(call, callee, edited)
            kept = [value for name, value in given if name not in dropped]
            edited.replace(call, f"{callee.name}({', '.join(kept)})")
        return replace(self, text=edited.result())


def _arguments(call: ast.Call, callee: JitFunction, text: EditedText) -> Iterator[tuple[str, str]]:
    """Parameters that a call gives, each with the argument as it is written."""
    names = [parameter.name for parameter in callee.parameters]
    for name, value in zip(names, call.args, strict=False):
        yield name, text.segment(value)
    for keyword in call.keywords:
        assert keyword.arg is not None
        yield keyword.arg, f"{keyword.arg}={text.segment(keyword.value)}"


def bind(call: ast.Call, callee: JitFunction) -> dict[str, ast.expr]:
    """What each parameter of a function gets from a call; its default is not among them."""
    names = [parameter.name for parameter in callee.parameters]
    bound = dict(zip(names, call.args, strict=False))
    return bound | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def split_functions(text: str) -> list[JitFunction]:
    """The functions of a kernel's text, in order, each with the comments before it."""
    lines = text.splitlines(keepends=True)
    found, begin = [], 0
    for statement in parse_python(text).body:
        assert statement.end_lineno is not None
        if isinstance(statement, ast.FunctionDef):
            own = "".join(lines[begin : statement.end_lineno]).strip("\n") + "\n"
            found.append(JitFunction(statement.name, own))
            begin = statement.end_lineno
    return found


@lru_cache(maxsize=1024)
def _settle(text: str, known: frozenset[tuple[str, type, object]], pure: frozenset[str]) -> str:
    # the type is for the cache: 1 and True are equal
    return drop_unused(fold(text, {name: value for name, _, value in known}), pure)


@lru_cache(maxsize=1024)
def _reads(text: str) -> frozenset[str]:
    nodes = (node for statement in _definition(text).body for node in ast.walk(statement))
    return frozenset(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


@lru_cache(maxsize=1024)
def _definition(text: str) -> ast.FunctionDef:
    """The tree of a function, to be read alone."""
    (definition,) = (item for item in read_tree(text).body if isinstance(item, ast.FunctionDef))
    return definition
