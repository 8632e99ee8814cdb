"""Parse Python text, one thread at a time.

CPython 3.11 counts the depth of a tree under construction in one place for all threads: two that
parse at once may end with "SystemError: AST constructor recursion depth mismatch" (seen on 3.11.7
with two models writing at once). Models write in threads, so parsing is guarded.
"""

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()


def parse_python(source: str, filename: str = "<unknown>") -> ast.Module:
    """The syntax tree of a file's text.

    Raises what `ast.parse` raises: SyntaxError, ValueError, RecursionError, MemoryError.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source, filename=filename)
