"""The Python file of an answer, wherever it stands in it.

Nothing but a text that parses and defines the class ModelNew is ever taken for a file. Covered: a
block with any label, or none; a file in a string of a JSON object; an object in front of the file
in one block; blocks in blocks; a fence that nobody closed; prose around a file without a fence; the
same file several times; a quotation of the file that the model was given.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from kmem.explore.models.answers.blocks import all_blocks, encodable, find_blocks, spoken_text
from kmem.explore.models.answers.malformed import Malformed
from kmem.explore.models.answers.objects import find_objects
from kmem.host.syntax import parse_python

_NAMED = re.compile(r"^class ModelNew\b", re.MULTILINE)
_FIRST_LINE = re.compile(r'^(?:import |from \w[\w.]* import |"""|#!|# )', re.MULTILINE)
#: What models use without importing it, as such files call it.
_MODULES = ("torch", "nn", "triton", "tl", "math")
#: A line of code, which no remark behind a file begins with.
_CODE = re.compile(r"^(?:\s+\S|@|def |class |import |from |return\b)", re.MULTILINE)


def read_file(text: str, given: str = "") -> str:
    """The one Python file of an answer, ending in a newline.

    Args:
        given: the file that the model was shown; a copy of it beside another file is a quotation.

    Raises:
        Malformed: if there is none, or more than one: what each lacks to be one.
    """
    found: dict[str, str] = {}  # by what it says, however it is set
    faults: list[str] = []
    for source, closed in _texts(spoken_text(text)):
        try:
            tree = _parse(source, closed=closed)
        except Malformed as ex:
            faults.append(str(ex))
            continue
        found.setdefault(ast.dump(tree), source.strip("\n") + "\n")
    whole = _without(found, given)
    if len(whole) == 1:
        return encodable(next(iter(whole.values())))
    if whole:
        raise Malformed(
            f"there are {len(whole)} different files with a class ModelNew; give the whole file "
            "once, in one ```python block"
        )
    raise Malformed(faults[0] if faults else "there is no ```python block with the whole file")


def _without(found: Mapping[str, str], given: str) -> Mapping[str, str]:
    """The files, less what stands beside a whole one: sketches that import nothing, a quotation."""
    if len(found) > 1:
        importing = {key: source for key, source in found.items() if "import" in source}
        found = importing or found
    if len(found) > 1 and given:
        try:
            quoted = ast.dump(parse_python(given))
        except (SyntaxError, ValueError):
            quoted = ""
        found = {key: source for key, source in found.items() if key != quoted}
    return found


def _texts(said: str) -> Iterator[tuple[str, bool]]:
    """What may be a file, and whether it is known to be complete; likelier places first."""
    named = []
    for block in all_blocks(said):
        if not _NAMED.search(block.text):
            continue
        named.append(block)
        inner = [other for other in find_blocks(block.text) if _NAMED.search(other.text)]
        if inner and not _parses(block.text):
            continue  # the file is within
        yield _without_objects(block.text), block.closed
    if named:
        return
    strings = [
        value
        for found in find_objects(said)
        for value in found.values()
        if isinstance(value, str) and _NAMED.search(value)
    ]
    for value in strings:
        inner = [block for block in all_blocks(value) if _NAMED.search(block.text)]
        yield (inner[0].text if inner else value), True
    if not strings and _NAMED.search(said):
        yield _without_prose(said), False
    elif not strings:
        blocks = [block for block in find_blocks(said) if block.label.lower() != "json"]
        yield from ((block.text, block.closed) for block in blocks[-1:])


def _parse(source: str, *, closed: bool) -> ast.Module:
    """The tree of a whole file. Raises Malformed, saying what it lacks."""
    try:
        tree = parse_python(source)
    except SyntaxError as ex:
        cut_off = "" if closed else " (the ```python block is not closed: is the file cut off?)"
        raise Malformed(
            f"the file is not valid Python: line {ex.lineno}: {ex.msg}{cut_off}"
        ) from ex
    # null bytes; nesting beyond what the parser can do
    except (ValueError, RecursionError, MemoryError) as ex:
        raise Malformed(f"the file is not valid Python: {ex}") from ex
    models = [
        statement
        for statement in tree.body
        if isinstance(statement, ast.ClassDef) and statement.name == "ModelNew"
    ]
    if not models:
        raise Malformed(f"the file defines no class ModelNew at module level{_misnamed(tree)}")
    if forgotten := _not_imported(tree):
        raise Malformed(
            f"the file uses {', '.join(forgotten)} and imports no such name; give the whole file, "
            "with its imports"
        )
    if not closed and not any(isinstance(node, ast.Return) for node in ast.walk(models[-1])):
        raise Malformed("the ```python block is not closed: the file is cut off")
    return tree


def _misnamed(tree: ast.Module) -> str:
    """What the class is called that is meant, where it can be told."""
    classes = [statement.name for statement in tree.body if isinstance(statement, ast.ClassDef)]
    return f"; call the class {classes[0]} so" if len(classes) == 1 else ""


def _not_imported(tree: ast.Module) -> list[str]:
    """The usual modules that a file uses and nothing in it gives a name to."""
    used, bound = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    if "*" in bound:
        return []  # which names that gives is not known here
    return [name for name in _MODULES if name in used - bound]


def _parses(source: str) -> bool:
    try:
        parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _without_objects(source: str) -> str:
    """A file less the JSON objects that stand in front of it or behind it in one block."""
    if source.lstrip().startswith("{"):
        start = _FIRST_LINE.search(source)
        source = source[start.start() :] if start else source
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    lines = source.split("\n")
    for statement in reversed(tree.body):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Dict):
            del lines[statement.lineno - 1 : statement.end_lineno]
    return "\n".join(lines)


def _without_prose(said: str) -> str:
    """A file that stands in an answer without a fence, less the prose before and behind it.

    Prose behind it is what does not parse, if no line of it looks like code: else something of the
    file itself would be cut off.
    """
    start = _FIRST_LINE.search(said)
    source = said[start.start() :] if start else said
    try:
        parse_python(source)
    except SyntaxError as ex:
        lines = source.split("\n")
        end = (ex.lineno or 1) - 1
        tail = "\n".join(lines[end:])
        if not _CODE.search(tail):
            return "\n".join(lines[:end])
    except (ValueError, RecursionError, MemoryError):
        pass
    return source
