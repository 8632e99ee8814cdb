"""The functions of a kernel file as text: their parameters, and what a call gives these."""

import ast
from dataclasses import dataclass
from functools import lru_cache

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
    def parameters(self) -> tuple[Parameter, ...]:
        return _parameters(self.text)

    @property
    def reads(self) -> frozenset[str]:
        """Names that the body reads."""
        return _reads(self.text)


def bind(call: ast.Call, callee: JitFunction) -> dict[str, ast.expr]:
    """What each parameter of a function gets from a call; its default is not among them."""
    names = [parameter.name for parameter in callee.parameters]
    bound = dict(zip(names, call.args, strict=False))
    return bound | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


@lru_cache(maxsize=256)
def split_functions(text: str) -> tuple[JitFunction, ...]:
    """The functions of a kernel's text, in order, each with the comments before it."""
    lines = text.splitlines(keepends=True)
    found, begin = [], 0
    for statement in parse_python(text).body:
        assert statement.end_lineno is not None
        if isinstance(statement, ast.FunctionDef):
            own = "".join(lines[begin : statement.end_lineno]).strip("\n") + "\n"
            found.append(JitFunction(statement.name, own))
            begin = statement.end_lineno
    return tuple(found)


@lru_cache(maxsize=1024)
def _parameters(text: str) -> tuple[Parameter, ...]:
    arguments = _definition(text).args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    return tuple(
        Parameter(
            argument.arg,
            argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation),
            None if default is None else ast.unparse(default),
        )
        for argument, default in zip(arguments.args, defaults, strict=True)
    )


@lru_cache(maxsize=1024)
def _reads(text: str) -> frozenset[str]:
    nodes = (node for statement in _definition(text).body for node in ast.walk(statement))
    return frozenset(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


@lru_cache(maxsize=1024)
def _definition(text: str) -> ast.FunctionDef:
    """The tree of a function, to be read alone."""
    (definition,) = (item for item in parse_python(text).body if isinstance(item, ast.FunctionDef))
    return definition
