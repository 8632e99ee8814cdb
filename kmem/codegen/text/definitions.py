"""Jitted functions from lines: what writes all kernels and functions that are generated.

    define("norm_loop", ["p0", "q0"], ["R", "KI"], ["x = tl.load(p0 + R)", ...], "Row by row.")

Lines are those of the body, without the indentation of the function. Of the lines, the pointers and
the constants, what nothing reads is left out. A name ends in a hash of the text, so
that two functions of one name are one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kmem.codegen.text.calls import write_call
from kmem.records import content_hash

_WORD = re.compile(r"\w+")
_ASSIGNMENT = re.compile(r"(?P<indent> *)(?P<names>\w+(?:, \w+)*) = (?P<value>.*)")


@dataclass(frozen=True, slots=True)
class Definition:
    """A jitted function, and which pointers and constants it takes, in this order."""

    name: str
    text: str
    pointers: tuple[str, ...]
    constants: tuple[str, ...]

    @property
    def kernel(self) -> tuple[str, str]:
        """As emissions hold it."""
        return self.name, self.text

    def write_launch(
        self, programs: str, values: Mapping[str, object], options: Mapping[str, object]
    ) -> str:
        """A launch of so many programs.

        Args:
            values: of pointers and constants, by name; one that is not among them is in the
                launcher what it is here.
        """
        pointers = [str(values.get(name, name)) for name in self.pointers]
        given = {name: values.get(name, name) for name in self.constants} | options
        arguments = [*pointers, *(f"{name}={value}" for name, value in given.items())]
        return f"{self.name}[({programs},)]({', '.join(arguments)})"


def define(
    name: str, pointers: Iterable[str], constants: Iterable[str], lines: Sequence[str], says: str
) -> Definition:
    """A function that takes what its lines read.

    Args:
        name: to which a hash is added.
        says: its docstring.
    """
    body = _without_unread(lines)
    read = set(_WORD.findall("\n".join(body)))
    own = tuple(each for each in pointers if each in read)
    known = tuple(each for each in constants if each in read)
    unique = f"{name}_{content_hash(*own, '', *known, '', *body, says)[:8]}"
    text = write_definition(unique, (", ".join(own), _constexpr(known)), body, says)
    return Definition(unique, text, own, known)


def write_definition(name: str, parameters: Sequence[str], lines: Iterable[str], says: str) -> str:
    """The text of a jitted function with these groups of parameters."""
    head = write_call(f"def {name}", *parameters)
    body = "".join(f"    {line}\n" for line in lines)
    return f'@triton.jit\n{head}:\n    """{says}"""\n{body}'


def _constexpr(names: Iterable[str]) -> str:
    return ", ".join(f"{name}: tl.constexpr" for name in names)


def _without_unread(lines: Sequence[str]) -> list[str]:
    """Lines without those that only make what no line reads.

    Where a line makes several values, an underscore leads the names of those.
    """
    parts = [_ASSIGNMENT.fullmatch(line) if _is_whole(line) else None for line in lines]
    sources = [part["value"] if part else line for part, line in zip(parts, lines, strict=True)]
    read = set(_WORD.findall("\n".join(sources)))
    kept = []
    for part, line in zip(parts, lines, strict=True):
        names = part["names"].split(", ") if part else []
        if part is None or all(name in read or name[0] == "_" for name in names):
            kept.append(line)
        elif read & set(names):
            told = ", ".join(name if name in read else "_" + name for name in names)
            kept.append(f"{part['indent']}{told} = {part['value']}")
    return kept if kept == list(lines) else _without_unread(kept)


def _is_whole(line: str) -> bool:
    """Whether a statement ends with its line."""
    return all(line.count(left) == line.count(right) for left, right in ("()", "[]"))
