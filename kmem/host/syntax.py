"""Parse Python text, one thread at a time.

CPython 3.11 counts the depth of a tree under construction in one place for all threads: two that
parse at once may end with "SystemError: AST constructor recursion depth mismatch" (seen on 3.11.7
with two models writing at once). Models write in threads, so parsing is guarded.
"""

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()
#: How deep a tree may be: whoever walks it uses some three frames a level, of Python's thousand.
MOST_LEVELS = 200


def parse_python(source: str, filename: str = "<unknown>") -> ast.Module:
    """The syntax tree of a file's text.

    Raises what `ast.parse` raises for text that is no Python: SyntaxError, also where it nests so
    deeply that nothing could walk it, and ValueError.
    """
    try:
        with _ONE_AT_A_TIME:
            tree = ast.parse(source, filename=filename)
    except (RecursionError, MemoryError) as ex:
        raise _too_deep(filename, 1) from ex
    level: list[ast.AST] = [tree]
    for _ in range(MOST_LEVELS):
        level = _children(level)
    if level:
        raise _too_deep(filename, min(getattr(node, "lineno", 1) for node in level))
    return tree


def _children(nodes: list[ast.AST]) -> list[ast.AST]:
    """Child nodes that have fields; `ast.iter_child_nodes` takes twice as long."""
    found: list[ast.AST] = []
    for node in nodes:
        for value in vars(node).values():
            if type(value) is list:
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                found.append(value)
    return found


def _too_deep(filename: str, line: int) -> SyntaxError:
    text = f"expressions or blocks nest more than {MOST_LEVELS} levels deep; write them flatter"
    return SyntaxError(text, (filename, line, 1, None))
