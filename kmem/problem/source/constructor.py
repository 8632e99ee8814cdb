"""How a class of a file may be called, read from its text: the file is not run.

Covered: a constructor of its own, one inherited from a class of the file or of a module that is
loaded here (torch and whatever the problem imports), other names for these. Not covered:
decorators, metaclasses, `__new__` and bases that are computed; of these only a call can tell.
"""

import ast
import inspect
import sys

import torch

from kmem.problem.source.reach import assigned_constants

_NOTHING = inspect.Signature()
_Found = inspect.Signature | None


def constructor_signature(tree: ast.Module, name: str) -> _Found:
    """The parameters, without self, of what a name stands for; None if the text does not say."""
    return _resolve(ast.Name(name), _bindings(tree), frozenset())


def _bindings(tree: ast.Module) -> dict[str, ast.AST | str]:
    """What names stand for at the end of a module.

    That is a class, a function, an expression, or the dotted path of what was imported.
    """
    found: dict[str, ast.AST | str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                found[alias.asname or alias.name.partition(".")[0]] = _imported(alias)
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            for alias in statement.names:
                found[alias.asname or alias.name] = f"{statement.module}.{alias.name}"
        else:
            found.update(assigned_constants(statement))
    return found


def _imported(alias: ast.alias) -> str:
    """`import a.b` binds a, `import a.b as c` binds a.b."""
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _resolve(
    expression: ast.expr, bindings: dict[str, ast.AST | str], seen: frozenset[str]
) -> _Found:
    """The signature of what an expression stands for.

    Args:
        seen: names on the way here, so that none is followed in a circle.
    """
    root, *path = ast.unparse(expression).split(".")
    bound = bindings.get(root)
    if isinstance(bound, str):
        return _of_object(_loaded(".".join([bound, *path])))
    if path or root in seen or bound is None:
        return _NOTHING if root == "object" else None
    if isinstance(bound, ast.ClassDef):
        return _of_class(bound, bindings, seen | {root})
    if isinstance(bound, ast.FunctionDef):
        return None if bound.decorator_list else _of_arguments(bound.args)
    if not isinstance(bound, ast.Name | ast.Attribute):
        return None
    return _resolve(bound, bindings, seen | {root})


def _of_class(
    found: ast.ClassDef, bindings: dict[str, ast.AST | str], seen: frozenset[str]
) -> _Found:
    methods = {part.name: part for part in found.body if isinstance(part, ast.FunctionDef)}
    if found.decorator_list or found.keywords or "__new__" in methods:
        return None
    if "__init__" in methods:
        own = _of_arguments(methods["__init__"].args)
        return own.replace(parameters=list(own.parameters.values())[1:]) if own.parameters else None
    for base in found.bases:
        inherited = _resolve(base, bindings, seen)
        if inherited is None or inherited.parameters:
            return inherited
    return _NOTHING


def _of_arguments(arguments: ast.arguments) -> inspect.Signature:
    kinds = inspect.Parameter
    placed = [(each.arg, kinds.POSITIONAL_ONLY) for each in arguments.posonlyargs]
    placed += [(each.arg, kinds.POSITIONAL_OR_KEYWORD) for each in arguments.args]
    required = len(placed) - len(arguments.defaults)
    found = [
        kinds(name, kind, default=kinds.empty if index < required else None)
        for index, (name, kind) in enumerate(placed)
    ]
    if arguments.vararg:
        found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(
            kinds(each.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else None)
        )
    if arguments.kwarg:
        found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)


def _loaded(path: str) -> object | None:
    """What a dotted path names, if its module is loaded; nothing is imported for it."""
    names = path.split(".")
    loaded = len(names) - 1
    while loaded and ".".join(names[:loaded]) not in sys.modules:
        loaded -= 1
    found: object | None = sys.modules.get(".".join(names[:loaded]))
    for name in names[loaded:]:
        found = getattr(found, name, None)
    return found


def _of_object(found: object | None) -> _Found:
    if not inspect.isclass(found):
        return None
    if _takes_nothing(found.__init__):
        return _NOTHING
    try:
        own = inspect.signature(found.__init__)
    except (TypeError, ValueError):  # written in C
        return None
    return own.replace(parameters=list(own.parameters.values())[1:])


def _takes_nothing(constructor: object) -> bool:
    """Whether it takes nothing of its own; what comes later in the order of bases counts.

    Asked when it is needed: torch._dynamo puts another in the place of `torch.nn.Module.__init__`
    once it has compiled something (torch/_dynamo/mutation_guard.py).
    """
    return constructor in (object.__init__, torch.nn.Module.__init__)
