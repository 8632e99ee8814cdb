"""Kernel text at known constants: the branches that they decide are taken.

A kernel's template serves many settings and asks about them (`if EXACT:`, `None if EVEN else
mask`). What is written into a file is one setting.
"""

import ast
import re
from collections.abc import Sequence

from kmem.codegen.edited_text import EditedText, pass_instead, read_tree, without_spare_passes
from kmem.codegen.evaluating import Known, evaluate


def fold(text: str, known: Known) -> str:
    """A text in which every branch that known names decide is taken."""
    while True:
        edited = EditedText(text)
        _Folder(edited, known).visit(read_tree(text))
        folded = edited.result()
        if folded == text:
            return _NO_MASK.sub("", _without_spare_brackets(without_spare_passes(text)))
        text = folded


class _Folder(ast.NodeVisitor):
    """Notes the outermost branches that are decided."""

    def __init__(self, text: EditedText, known: Known) -> None:
        self.text = text
        self.known = known

    def _decide(self, test: ast.expr) -> bool | None:
        try:
            return bool(evaluate(test, self.known))
        except ValueError:
            return None

    def visit_IfExp(self, node: ast.IfExp) -> None:
        decided = self._decide(node.test)
        if decided is None:
            self.generic_visit(node)
        else:
            self.text.replace(node, self.text.segment(node.body if decided else node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        first = self._decide(node.values[0])
        if first is None:
            self.generic_visit(node)
        elif first is isinstance(node.op, ast.Or):
            self.text.replace(node, self.text.segment(node.values[0]))
        else:
            word = " or " if isinstance(node.op, ast.Or) else " and "
            self.text.replace(node, word.join(map(self._operand, node.values[1:])))

    def _operand(self, node: ast.expr) -> str:
        text = self.text.segment(node)
        return f"({text})" if isinstance(node, ast.BoolOp | ast.IfExp) else text

    def visit_Call(self, node: ast.Call) -> None:
        first = node.args[0] if len(node.args) == 2 else None
        is_range = isinstance(node.func, ast.Name) and node.func.id == "range"
        if is_range and isinstance(first, ast.Constant) and first.value == 0:
            self.text.replace(node, f"range({self.text.segment(node.args[1])})")
        else:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value
        is_assertion = isinstance(value, ast.Call) and ast.unparse(value.func) == "tl.static_assert"
        if is_assertion and self._decide(value.args[0]):
            assert node.end_lineno is not None
            self.text.replace_lines(node.lineno, node.end_lineno, pass_instead(node))
        else:
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        decided = self._decide(node.test)
        header = self._header(node)
        if decided is None or node.body[0].lineno <= header:
            self.generic_visit(node)
            return
        assert node.end_lineno is not None
        self.text.replace_lines(node.lineno, node.end_lineno, self._taken(node, decided, header))

    def _header(self, node: ast.If) -> int:
        """The last line of `if ...:`."""
        assert node.test.end_lineno is not None
        line = node.test.end_lineno
        while not self.text.line(line).split("#")[0].rstrip().endswith(":"):
            line += 1
        return line

    def _taken(self, node: ast.If, decided: bool, header: int) -> str:
        is_elif = self.text.line(node.lineno).lstrip().startswith("elif")
        if decided:
            text = self._block(header + 1, node.body, node)
            indented = " " * node.col_offset
            if is_elif:
                deeper = "".join(f"    {line}" for line in text.splitlines(keepends=True))
                return f"{indented}else:\n{deeper}"
            return text
        if not node.orelse:
            return "" if is_elif else pass_instead(node)
        first = node.orelse[0]
        if isinstance(first, ast.If) and self.text.line(first.lineno).lstrip().startswith("elif"):
            assert first.end_lineno is not None
            lines = [self.text.line(n) for n in range(first.lineno, first.end_lineno + 1)]
            if not is_elif:
                lines[0] = lines[0].replace("elif", "if", 1)
            return "".join(lines)
        begin = first.lineno
        while self.text.line(begin).strip().split("#")[0].rstrip() != "else:":
            begin -= 1
        if is_elif:
            last = node.orelse[-1].end_lineno
            assert last is not None
            return "".join(self.text.line(number) for number in range(begin, last + 1))
        return self._block(begin + 1, node.orelse, node)

    def _block(self, begin: int, body: Sequence[ast.stmt], node: ast.If) -> str:
        """The lines of a block, moved to where the `if` stood."""
        last = body[-1].end_lineno
        assert last is not None
        less = body[0].col_offset - node.col_offset
        lines = [self.text.line(number) for number in range(begin, last + 1)]
        return "".join(line[less:] if line[:less].isspace() else line for line in lines)


_AROUND_NAME = re.compile(r"(?<![\w)\]])\(([A-Za-z_]\w*)\)")
_NO_MASK = re.compile(r",\s*mask=None(?=[,)])")
_SPARE = re.compile(r"(?<=[=(\[,\s])\((?P<inner>[^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)(?=[,)\]\n])")


def _without_spare_brackets(text: str) -> str:
    """A text without brackets around a whole argument that a branch has left behind."""

    def shorten(match: re.Match[str]) -> str:
        before = text[: match.start()].rstrip(" ")
        inner = match["inner"]
        is_whole = before.endswith(("(", "[", ",")) or (
            before.endswith("=") and not before.endswith(("==", "!=", "<=", ">="))
        )
        if not is_whole or not inner.strip() or _is_tuple(inner):
            return match[0]
        return inner

    return _AROUND_NAME.sub(r"\1", _SPARE.sub(shorten, text))


def _is_tuple(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            return True
    return " for " in text
