"""The text of an answer taken apart: thoughts are dropped, fenced blocks are found.

Covered: a byte order mark, any line ends, thinking tags, fences of backquotes or tildes of any
length and with any label, fences inside fences, and a fence that nobody closed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*$")
#: How deep blocks within blocks are looked for.
_MOST_LEVELS = 4
_THOUGHT = re.compile(
    r"^[ \t]*<(think|thinking|thought|reasoning|analysis)>.*?</\1>", re.MULTILINE | re.DOTALL
)
#: Some servers leave out the tag that opens, because it was part of their template.
_END_OF_THOUGHT = re.compile(r"\A.*^[^\n]*</(?:think|thinking|thought|reasoning)>", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `closed` is False if the answer ends inside it."""

    label: str
    text: str
    closed: bool


def spoken_text(text: str) -> str:
    """What an answer says, with plain line ends, and without a mark of byte order or thoughts.

    An answer that is nothing but thoughts is left as it is: there is nothing else to read.
    """
    plain = re.sub(r"\r\n?", "\n", text).replace("\ufeff", "")
    said = _END_OF_THOUGHT.sub("", _THOUGHT.sub("", plain))
    return said if said.strip() else plain


def encodable(text: str) -> str:
    """The text without lone surrogates, which JSON may carry but no file, hash or request can."""
    return text.encode("utf-8", "replace").decode("utf-8")


def find_blocks(text: str) -> list[Block]:
    """All fenced blocks, in order; a fence closes with at least as many of the same characters."""
    blocks: list[Block] = []
    fence, label = "", ""
    lines: list[str] = []
    for line in text.split("\n"):
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


def all_blocks(text: str, levels: int = _MOST_LEVELS) -> Iterator[Block]:
    """All fenced blocks, and after each those that stand within it.

    A block within another is what an answer looks like that is fenced as a whole, or whose first
    fence nobody closed.
    """
    for block in find_blocks(text):
        yield block
        if levels > 1:
            yield from all_blocks(block.text, levels - 1)


def without_blocks(text: str) -> str:
    """The text outside of all fenced blocks."""
    outside: list[str] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not fence and match:
            fence = match[1]
        elif fence and match and not match[2] and match[1].startswith(fence):
            fence = ""
        elif not fence:
            outside.append(line)
    return "\n".join(outside)
