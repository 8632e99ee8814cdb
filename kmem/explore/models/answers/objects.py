"""The JSON objects of an answer, wherever they stand in it.

Covered: a block with any label or none, an object in the prose or inside another block, commas
before a closing bracket, comments to the end of a line, and Python's spelling of a dictionary.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar

from kmem.explore.models.answers.blocks import (
    all_blocks,
    encodable,
    find_blocks,
    spoken_text,
    without_blocks,
)
from kmem.explore.models.answers.malformed import Malformed
from kmem.host.syntax import parse_python

AnswerT = TypeVar("AnswerT")
JsonObject: TypeAlias = Mapping[str, object]

#: Faults of one answer that are worth telling at once.
_FAULTS_SHOWN = 5
#: A string, a comment, or a comma before a closing bracket.
_LOOSE = re.compile(r'"(?:\\.|[^"\\\n])*"|(?<!:)//[^\n]*|,(?=\s*[}\]])')


def read_fields(cls: type[AnswerT], text: str) -> AnswerT:
    """The JSON object of an answer as a dataclass: of several objects the first that fits.

    Types are strict (a "3" is no number); fields nobody asked for are ignored, for a second answer
    costs more than a stray remark.

    Raises:
        Malformed: naming the fields of the first object that do not fit.
    """
    from pydantic import TypeAdapter, ValidationError  # 100 ms that `kmem --help` should not pay

    adapter: TypeAdapter[AnswerT] = TypeAdapter(cls)
    first: Malformed | None = None
    for found in find_objects(text):
        written = encodable(json.dumps(found, ensure_ascii=False))
        try:
            return adapter.validate_json(written, strict=True)
        except ValidationError as ex:
            faults = [
                f"{'.'.join(map(str, error['loc'])) or 'the object'}: {error['msg']}"
                for error in ex.errors()
            ]
            told = "; ".join(faults[:_FAULTS_SHOWN])
            first = first or Malformed(f"the JSON object does not fit: {told}")
    raise first or Malformed(_why_none(text))


def find_objects(text: str) -> Iterator[JsonObject]:
    """Every JSON object of an answer: those of json blocks, of other blocks, then of the prose."""
    said = spoken_text(text)
    blocks = list(all_blocks(said))
    labelled = [block.text for block in blocks if block.label.lower().startswith("json")]
    others = [block.text for block in blocks if not block.label.lower().startswith("json")]
    starting = [part for part in others if part.lstrip().startswith("{")]
    rest = [part for part in others if part not in starting]
    for part in [*labelled, *starting, without_blocks(said), *rest]:
        yield from _objects_in(part)


def _objects_in(text: str) -> Iterator[JsonObject]:
    """The objects that begin on a line of their own; as JSON, else as what is nearly JSON."""
    decoder = json.JSONDecoder()
    end = 0
    for match in re.finditer(r"^[ \t]*\{", text, flags=re.MULTILINE):
        start = match.end() - 1
        if start < end:  # within the last object
            continue
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        yield found
    if end == 0 and text.strip().startswith("{") and (found := _nearly_json(text)) is not None:
        yield found


def _nearly_json(text: str) -> JsonObject | None:
    """The object that a text is but for commas, comments or Python's spelling; None if none."""
    tidy = _LOOSE.sub(lambda match: match[0] if match[0].startswith('"') else "", text).strip()
    for read in (json.loads, _read_literal):
        try:
            found = read(tidy)
            json.dumps(found)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if isinstance(found, dict) and all(isinstance(name, str) for name in found):
            return found
    return None


def _read_literal(text: str) -> object:
    """The constants and brackets that a text is in Python. Raises ValueError, SyntaxError."""
    statement = parse_python(text).body[0]
    if not isinstance(statement, ast.Expr):
        raise ValueError("no expression")
    return ast.literal_eval(statement.value)


def _why_none(text: str) -> str:
    """Why there is no object: the fault of the block that was meant to be one, if any."""
    for block in find_blocks(spoken_text(text)):
        if block.label.lower().startswith("json") or block.text.lstrip().startswith("{"):
            cut_off = "" if block.closed else " (the block is not closed: the answer is cut off)"
            try:
                json.loads(block.text)
            except (ValueError, RecursionError) as ex:
                return f"the JSON block is not valid JSON: {ex}{cut_off}"
            return "the JSON block holds no object"
    return "there is no JSON object; begin with a ```json block that holds one"
