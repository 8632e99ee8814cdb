"""Python text changed in place, so that comments and line breaks stay."""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache

from kmem.host.syntax import parse_python


@lru_cache(maxsize=8)
def read_tree(text: str) -> ast.Module:
    """The tree of a text, to be read alone; one round asks for it several times."""
    return parse_python(text)


class EditedText:
    """A text and its edits: ranges of bytes, as syntax trees count columns, with what goes there.

    An edit within another one is left out: the next round finds it.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.encode().splitlines(keepends=True)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[tuple[int, int, bytes]] = []

    def segment(self, node: ast.expr) -> str:
        """The text of an expression, without parentheses around it."""
        return b"".join(self.lines)[slice(*self._span(node))].decode()

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def replace(self, node: ast.expr, text: str) -> None:
        """Put a text in the place of an expression."""
        self._edits.append((*self._span(node), text.encode()))

    def replace_lines(self, first: int, last: int, text: str) -> None:
        """Put a text in the place of whole lines, counted from 1, the last one included."""
        self._edits.append((self._starts[first - 1], self._starts[last], text.encode()))

    def line(self, number: int) -> str:
        """One line, counted from 1."""
        return self.lines[number - 1].decode()

    def result(self) -> str:
        """The text with its edits."""
        source = b"".join(self.lines)
        pieces, place = [], 0
        for start, end, text in sorted(self._edits, key=lambda edit: (edit[0], -edit[1])):
            if start >= place:
                pieces += [source[place:start], text]
                place = end
        return b"".join([*pieces, source[place:]]).decode()


def replace_names(text: str, names: Mapping[str, str]) -> str:
    """A text with other text where names are read."""
    edited = EditedText(text)
    for node in ast.walk(read_tree(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            edited.replace(node, names[node.id])
    return take_elements(edited.result())


def take_elements(text: str) -> str:
    """A text with the element in the place of `(a, b)[0]`."""
    if ")[" not in text:
        return text
    edited = EditedText(text)
    for node in ast.walk(read_tree(text)):
        element = _element(node) if isinstance(node, ast.Subscript) else None
        if isinstance(node, ast.Subscript) and element is not None:
            edited.replace(node, edited.segment(element))
    return edited.result()


def _element(node: ast.expr) -> ast.expr | None:
    """What an expression stands for if it is an element of a tuple that is written out."""
    if not isinstance(node, ast.Subscript):
        return node
    owner = _element(node.value)
    is_known = isinstance(owner, ast.Tuple) and isinstance(node.slice, ast.Constant)
    return owner.elts[node.slice.value] if is_known else None


def pass_instead(node: ast.stmt) -> str:
    """A line that does nothing, where a statement stood."""
    return f"{' ' * node.col_offset}pass\n"


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def without_spare_passes(text: str) -> str:
    """A text without `pass` where something else stands beside it."""
    if "pass" not in text:
        return text
    edited = EditedText(text)
    for block in _blocks(read_tree(text)):
        passes = [item for item in block if isinstance(item, ast.Pass)]
        for item in passes[len(passes) == len(block) :]:
            edited.replace_lines(item.lineno, item.lineno, "")
    return edited.result()
