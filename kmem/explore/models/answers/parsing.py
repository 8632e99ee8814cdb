"""Read the text of an answer: one JSON object and, from authors of code, one Python file.

Both stand in fenced blocks, or nearly so. Whatever an answer lacks is one `Malformed`, worded for
the model that is asked again. Types are strict (a "3" is no number); fields nobody asked for are
ignored, for a second answer costs more than a stray remark.

Covered: blocks in any order and with any label, prose around them, an object outside a block,
fences inside longer fences. Not covered: JSON with comments or trailing commas; that is malformed.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from kmem.host.syntax import parse_python

AnswerT = TypeVar("AnswerT")

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*$")
#: Faults of one answer that are worth telling at once.
_FAULTS_SHOWN = 5


class Malformed(Exception):
    """An answer that cannot be used, and exactly why; the text is sent back to the model once.

    `usable` is the part of the answer that has no fault, if that part is worth having when the
    second answer is no better.
    """

    def __init__(self, message: str, usable: object | None = None) -> None:
        super().__init__(message)
        self.usable = usable


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `closed` is False if the answer ends inside it."""

    label: str
    text: str
    closed: bool


def read_fields(cls: type[AnswerT], text: str) -> AnswerT:
    """The JSON object of an answer as a dataclass.

    Raises:
        Malformed: naming the fields that do not fit.
    """
    from pydantic import TypeAdapter, ValidationError  # 100 ms that `kmem --help` should not pay

    try:
        return TypeAdapter(cls).validate_json(
            encodable(_without_escapes(_find_object(text))), strict=True
        )
    except ValidationError as ex:
        faults = [
            f"{'.'.join(map(str, error['loc'])) or 'the object'}: {error['msg']}"
            for error in ex.errors()
        ]
        raise Malformed(
            "the JSON object does not fit: " + "; ".join(faults[:_FAULTS_SHOWN])
        ) from ex


def read_file(text: str) -> str:
    """The Python file of an answer, ending in a newline.

    Raises:
        Malformed: if there is none or more than one with ModelNew, it is cut off, does not parse,
            or defines no class ModelNew.
    """
    blocks = [block for block in find_blocks(text) if block.label.lower() != "json"]
    if not blocks:
        raise Malformed("there is no ```python block with the whole file")
    named = [
        block for block in blocks if re.search(r"^class ModelNew\b", block.text, flags=re.MULTILINE)
    ]
    if len(named) > 1:
        raise Malformed(
            f"there are {len(named)} blocks with a class ModelNew; give the whole file once, in "
            "one ```python block"
        )
    block = named[0] if named else blocks[-1]
    if not block.closed:
        raise Malformed("the ```python block is not closed: the file is cut off")
    try:
        tree = parse_python(block.text)
    except SyntaxError as ex:
        raise Malformed(f"the file is not valid Python: line {ex.lineno}: {ex.msg}") from ex
    # null bytes; nesting beyond what the parser can do
    except (ValueError, RecursionError, MemoryError) as ex:
        raise Malformed(f"the file is not valid Python: {ex}") from ex
    if not any(
        isinstance(statement, ast.ClassDef) and statement.name == "ModelNew"
        for statement in tree.body
    ):
        raise Malformed("the file defines no class ModelNew at module level")
    return block.text.strip("\n") + "\n"


def read_bare_file(text: str) -> str | None:
    """The file of an answer that is nothing but one, as programs give that know no other form.

    One fenced block, or none and the whole text, which must be Python with a class ModelNew; prose
    may stand around a block. None if the answer holds a JSON object, or no such file.
    """
    blocks = find_blocks(text)
    if len(blocks) > 1 or any(block.label.lower() == "json" for block in blocks):
        return None
    if next(_objects_in(_without(text, blocks)), None) is not None:
        return None
    try:
        return read_file(text if blocks else f"~~~~~~~~python\n{text}\n~~~~~~~~")
    except Malformed:
        return None


def encodable(text: str) -> str:
    """The text without lone surrogates, which JSON may carry but no file, hash or request can."""
    return text.encode("utf-8", "replace").decode("utf-8")


def find_blocks(text: str) -> list[Block]:
    """All fenced blocks, in order; a fence closes with at least as many of the same characters."""
    blocks: list[Block] = []
    fence, label = "", ""
    lines: list[str] = []
    for line in re.split(r"\r\n|\r|\n", text):
        match = _FENCE.match(line)
        if not fence:
            if match:
                fence = match[1]
                label = match[2]
                lines = []
        elif match and not match[2] and match[1].startswith(fence):
            blocks.append(Block(label, "\n".join(lines), closed=True))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append(Block(label, "\n".join(lines), closed=False))
    return blocks


def _without(text: str, blocks: list[Block]) -> str:
    """A text without what stands in its blocks."""
    for block in blocks:
        text = text.replace(block.text, "")
    return text


def _find_object(text: str) -> str:
    """The text of the first JSON object of an answer.

    A json block comes first, then another block that is an object, then the prose.
    """
    blocks = find_blocks(text)
    labelled = [block for block in blocks if block.label.lower() == "json"]
    for block in labelled or [block for block in blocks if block.text.lstrip().startswith("{")]:
        try:
            json.loads(block.text)
        except (ValueError, RecursionError) as ex:
            cut_off = "" if block.closed else " (the block is not closed: the answer is cut off)"
            raise Malformed(f"the JSON block is not valid JSON: {ex}{cut_off}") from ex
        return block.text
    found = next(_objects_in(text), None)
    if found is None:
        raise Malformed("there is no JSON object; begin with a ```json block that holds one")
    return found


def _without_escapes(text: str) -> str:
    """The same JSON with its characters written out, for an escape may be half a character."""
    return json.dumps(json.loads(text), ensure_ascii=False)


def _objects_in(text: str) -> Iterator[str]:
    decoder = json.JSONDecoder()
    for match in re.finditer(r"^[ \t]*\{", text, flags=re.MULTILINE):
        start = match.end() - 1
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        yield text[start:end]
