"""What the names of a file stand for, scope by scope, as Python itself looks them up.

A name that a function binds anywhere is that function's own; a name that a module or class binds
may still be found among the builtins before it is bound, or if the binding never runs.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: What a class object is called here, whichever class it is.
CLASS_OF = "type()"


@dataclass(eq=False)
class Scope:
    """Names bound in one scope: to a dotted path, to an expression, or to something unknown."""

    kind: str  # module, class, function or comprehension
    parent: "Scope | None" = None
    bound: dict[str, list[ast.expr | str | None]] = field(default_factory=dict)
    global_names: set[str] = field(default_factory=set)

    def bind(self, name: str, value: ast.expr | str | None) -> None:
        place = self.module() if name in self.global_names else self
        place.bound.setdefault(name, []).append(value)

    def module(self) -> "Scope":
        return self if self.parent is None else self.parent.module()


class Scopes:
    """The scopes of a file, by the node that opens each."""

    def __init__(self, tree: ast.Module) -> None:
        self.of: dict[ast.AST, Scope] = {tree: Scope("module")}
        self._build(tree, self.of[tree])

    # ---- what is bound where

    def _build(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)):
                inner = Scope(_kind_of(child), scope)
                self.of[child] = inner
            self._bind(child, scope, inner)
            self._build(child, inner)

    def _bind(self, node: ast.AST, scope: Scope, inner: Scope) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    root = alias.name.split(".")[0]
                    scope.bind(alias.asname or root, alias.name if alias.asname else root)
            case ast.ImportFrom(module=module, names=names, level=0):
                for alias in names:
                    scope.bind(alias.asname or alias.name, f"{module}.{alias.name}")
            case ast.Global(names=names):
                scope.global_names.update(names)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                scope.bind(name, None)
                self._bind_arguments(node.args, inner)
            case ast.ClassDef(name=name):
                scope.bind(name, None)
            case ast.Lambda(args=arguments):
                self._bind_arguments(arguments, inner)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _bind_target(target, value, scope)
            case ast.AnnAssign(target=target, value=value):
                _bind_target(target, value, scope)
            case ast.AugAssign(target=target):
                _bind_target(target, None, scope)
            case ast.NamedExpr(target=target, value=value):
                while scope.kind == "comprehension" and scope.parent is not None:
                    scope = scope.parent  # Python binds it there
                _bind_target(target, value, scope)
            case ast.For(target=target, iter=items) | ast.AsyncFor(target=target, iter=items):
                _bind_target(target, _an_item_of(items), scope)
            case ast.comprehension(target=target, iter=items):
                _bind_target(target, _an_item_of(items), scope)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                _bind_target(target, value, scope)
            case ast.ExceptHandler(name=str() as name):
                scope.bind(name, None)
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                scope.bind(name, None)
            case ast.MatchMapping(rest=str() as name):
                scope.bind(name, None)

    def _bind_arguments(self, arguments: ast.arguments, scope: Scope) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        given = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        for argument, default in (
            *zip(positional, given, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ):
            scope.bind(argument.arg, default)
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                scope.bind(rest.arg, None)

    # ---- what an expression stands for

    def paths(self, node: ast.expr, scope: Scope) -> set[str]:
        """Dotted names that an expression may stand for; empty if it is none known here."""
        return set(self._paths(node, scope, frozenset()))

    def _paths(self, node: ast.expr, scope: Scope, seen: frozenset[ast.AST]) -> Iterator[str]:
        if node in seen:
            return
        seen |= {node}
        match node:
            case ast.Name(id=name):
                yield from self._name(name, scope, seen)
            case ast.Attribute(attr="__class__"):
                yield CLASS_OF
            case ast.Attribute(value=value, attr=name):
                yield from (f"{path}.{name}" for path in self._paths(value, scope, seen))
            case ast.Call(func=ast.Name(id="type"), args=[_]):
                yield CLASS_OF
            case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(str(name)), *_]):
                yield from (f"{path}.{name}" for path in self._paths(value, scope, seen))
            case ast.IfExp(body=one, orelse=other):
                yield from self._paths(one, scope, seen)
                yield from self._paths(other, scope, seen)
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self._paths(value, scope, seen)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                yield from self._paths(value, scope, seen)
            case ast.Subscript(value=value):
                yield from self._items(value, scope, seen)

    def _items(self, node: ast.expr, scope: Scope, seen: frozenset[ast.AST]) -> Iterator[str]:
        """What an item of a list, tuple or dictionary that is written out may stand for."""
        match node:
            case ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values):
                for value in values:
                    yield from self._paths(value, scope, seen)
            case ast.Dict(values=values):
                for value in values:
                    yield from self._paths(value, scope, seen)
            case ast.Name(id=name):
                for owner, value in self._bindings(name, scope):
                    if isinstance(value, ast.expr) and value not in seen:
                        yield from self._items(value, owner, seen | {value})

    def _name(self, name: str, scope: Scope, seen: frozenset[ast.AST]) -> Iterator[str]:
        for owner, value in self._bindings(name, scope):
            if isinstance(value, str):
                yield value
            elif value is not None:
                yield from self._paths(value, owner, seen)
        if self.may_be_builtin(name, scope):
            yield f"builtins.{name}"

    def may_be_builtin(self, name: str, scope: Scope) -> bool:
        """Whether Python may find a name among the builtins: no function around it binds it."""
        return all(each.kind in ("module", "class") for each, _ in self._bindings(name, scope))

    def _bindings(self, name: str, scope: Scope) -> list[tuple[Scope, ast.expr | str | None]]:
        """What a name may be bound to where it is read, each with the scope that binds it."""
        found: list[tuple[Scope, ast.expr | str | None]] = []
        here: Scope | None = scope
        while here is not None:
            if name in here.global_names:
                here = here.module()
            if name in here.bound and (here.kind != "class" or here is scope):
                found += [(here, value) for value in here.bound[name]]
                if here.kind in ("function", "comprehension"):
                    return found
            here = here.parent
        return found


def _bind_target(target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
    match target:
        case ast.Name(id=name):
            scope.bind(name, value)
        case ast.Starred(value=inner):
            _bind_target(inner, value, scope)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            match value:
                case ast.Tuple(elts=values) | ast.List(elts=values) if len(values) == len(targets):
                    for one, each in zip(targets, values, strict=True):
                        _bind_target(one, each, scope)
                case _:
                    for one in targets:
                        _bind_target(one, None if value is None else _an_item_of(value), scope)


def _kind_of(node: ast.AST) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    return "comprehension" if isinstance(node, _COMPREHENSIONS) else "function"


def _an_item_of(items: ast.expr) -> ast.expr:
    """An expression for any item of another one."""
    return ast.copy_location(
        ast.Subscript(items, ast.copy_location(ast.Constant(0), items), ast.Load()), items
    )
