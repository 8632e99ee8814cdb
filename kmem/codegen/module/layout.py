"""Lay out generated Python: no line longer than 100 columns, and the same program.

Recipes write statements of any length. A statement that is too long is broken at the commas of its
longest bracket, filled, four spaces deeper; an expression with operators is put into parentheses
and broken before its loosest ones; a comment is filled. Line breaks go between tokens inside
brackets alone, so that the syntax tree stays as it is:

    x = tl.load(
        p0 + (o0 * S_x_0) + k * S_x_1 + r * S_x_2, mask=None if EVEN_R else valid,
        eviction_policy="evict_first"
    ).to(tl.float32)

Covered: what code generation writes. Left as it is, however long: text within a string, and
statements whose lines cannot be joined (comments between them, backslashes, semicolons).
"""

import re
import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

WIDTH = 100
_INDENT = "    "

_STRING = (
    r"[rRbBuUfF]{0,2}(?:"
    r'"""(?:[^\\]|\\.)*?"""|'
    r"'''(?:[^\\]|\\.)*?'''|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'(?:[^'\\\n]|\\.)*')"
)
#: What decides where a statement ends.
_BOUNDARY = re.compile(rf"(?P<string>{_STRING})|(?P<comment>#[^\n]*)|[\[({{\])}}\n\\;]", re.DOTALL)
#: A line with one of these needs a look at each of its marks; of any other, counting is enough.
_INTRICATE = re.compile(r"""["'#\\;]""")
#: Keywords before an expression that may stand in parentheses.
_HEAD = re.compile(r"(?:return|if|elif|while)\b ?")
#: Statements that are no such expression.
_WHOLE = re.compile(
    r"(?:def|class|for|with|assert|raise|import|from|del|global|nonlocal|async|try|except|else"
    r"|yield|await|lambda)\b|@"
)

#: Operators of an expression from the loosest binding to the tightest.
_LEVELS = (
    ("for",),
    ("if", "else"),
    ("or",),
    ("and",),
    ("==", "!=", "<", ">", "<=", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "//", "%", "@"),
)
#: Kinds of marks; an operator's kind is its level.
_OPEN = -1
_CLOSE = -2
_COMMA = -3
_LAMBDA = -4
_ASSIGNMENT = -5
_OTHER = -6
_KINDS = {
    **dict.fromkeys("([{", _OPEN),
    **dict.fromkeys(")]}", _CLOSE),
    **{operator: level for level, operators in enumerate(_LEVELS) for operator in operators},
    ",": _COMMA,
    "lambda": _LAMBDA,
    **dict.fromkeys(("=", "**=", "//=", "<<=", ">>="), _ASSIGNMENT),
    **dict.fromkeys((f"{sign}=" for sign in "+-*/%@&|^"), _ASSIGNMENT),
}
#: Where a statement may be broken. Strings, and numbers with an exponent's sign, are matched so
#: that nothing within them counts.
_MARK = re.compile(
    rf"(?P<skipped>{_STRING}|\b\d[\w.]*[eE][-+]\d+)"
    r"|\b(?:for|if|else|or|and|lambda)\b"
    r"|(?:\*\*|//|<<|>>)=?|[-+*/%@&|^<>=!:]=|->|[-+*/%@&|^<>=,(\[{)\]}]",
    re.DOTALL,
)
#: What stands before an operator between two operands, and words that are no operand.
_OPERAND_ENDS = ")]}\"'."
_NO_OPERANDS = {"and", "or", "not", "if", "else", "in", "is", "for", "return", "while", "elif"}


def lay_out(text: str) -> str:
    """The same program in lines of at most WIDTH columns, as far as its strings allow."""
    if not _has_long_line(text):
        return text
    return "".join(map(_lay_out_logical, _logical_lines(text)))


def _has_long_line(text: str) -> bool:
    return len(text) > WIDTH and any(len(line) > WIDTH for line in text.split("\n"))


# --- statements of a text


class _Logical(NamedTuple):
    """Physical lines that make one statement, line end included, or a line without any."""

    text: str
    comments: Sequence[tuple[int, int]]  # where in the text
    is_fixed: bool  # its lines cannot be joined


def _logical_lines(text: str) -> Iterator[_Logical]:
    place = 0
    while place < len(text):
        line = _logical_line(text, place)
        yield line
        place += len(line.text)


def _logical_line(text: str, start: int) -> _Logical:
    depth, place = 0, start
    comments: list[tuple[int, int]] = []
    is_fixed = False
    while place < len(text):
        end = text.find("\n", place) + 1 or len(text)
        line = text[place:end]
        if _INTRICATE.search(line) is None:
            depth += line.count("(") + line.count("[") + line.count("{")
            depth -= line.count(")") + line.count("]") + line.count("}")
            place = end
        else:
            place = len(text)
            for match in _BOUNDARY.finditer(text, end - len(line)):
                mark = match.group()
                if match.lastgroup == "comment":
                    comments.append((match.start() - start, match.end() - start))
                elif match.lastgroup == "string":
                    is_fixed = is_fixed or "\n" in mark
                elif mark == "\n":
                    place = match.end()
                    break
                elif mark in "\\;":
                    is_fixed = True
                else:
                    depth += 1 if mark in "([{" else -1
        if depth <= 0:
            break
    return _Logical(text[start:place], comments, is_fixed)


def _lay_out_logical(line: _Logical) -> str:
    if not _has_long_line(line.text):
        return line.text
    body = line.text.strip()
    indent = line.text[: len(line.text) - len(line.text.lstrip())].rpartition("\n")[2]
    end = "\n" if line.text.endswith("\n") else ""
    if body.startswith("#"):
        return "\n".join(_fill_comment(body, indent)) + end
    is_commented_inside = any(line.text[stop:].strip("\n") for _, stop in line.comments)
    if line.is_fixed or is_commented_inside:
        return line.text
    lines: list[str] = []
    if line.comments:
        begin, stop = line.comments[0]
        lines = _fill_comment(line.text[begin:stop], indent)
        body = line.text[:begin].strip()
    return "\n".join([*lines, *_lay_out_statement(_join(body), indent)]) + end


def _fill_comment(comment: str, indent: str) -> list[str]:
    text = comment.lstrip("#: ")
    lead = indent + comment[: len(comment) - len(text)].rstrip() + " "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=lead,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _join(body: str) -> str:
    """A statement in one line."""
    joined = ""
    for part in (part.strip() for part in body.split("\n")):
        is_tight = not joined or joined[-1] in "([{" or part[:1] in (")", "]", "}")
        joined += part if is_tight else f" {part}"
    return joined


# --- one statement


class _Span(NamedTuple):
    """A part of a statement: its characters, and the marks among them."""

    start: int
    end: int
    first: int
    last: int


def _lay_out_statement(text: str, indent: str) -> list[str]:
    if len(indent) + len(text) <= WIDTH:
        return [indent + text]
    statement = _Statement(text)
    head = _HEAD.match(text)
    takes_colon = head is not None and not text.startswith("return")
    if _WHOLE.match(text) or (takes_colon and not text.endswith(":")):
        return statement.break_whole(indent)
    start = statement.value_start() if head is None else head.end()
    if head is None and statement.lists_targets(start):
        names, value = text[:start].rstrip(" ="), text[start:].lstrip()
        if len(names) > len(value) or len(indent) + len(names) > WIDTH - len(" = "):
            return _Statement(f"({names}) = {value}").break_whole(indent)
    return statement.lay_out_value(start, len(text) - takes_colon, indent)


class _Statement:
    """A statement in one line, and the places at which it may be broken."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.kinds: list[int] = []
        self.partners: dict[int, int] = {}  # opening mark -> closing mark
        opened: list[int] = []
        for match in _MARK.finditer(text):
            if match.lastgroup is not None:
                continue
            kind = _KINDS.get(match.group(), _OTHER)
            if kind >= 0 and not match.group().isalpha() and not self._is_binary(match.start()):
                kind = _OTHER
            if kind == _OPEN:
                opened.append(len(self.kinds))
            elif kind == _CLOSE and opened:
                self.partners[opened.pop()] = len(self.kinds)
            self.starts.append(match.start())
            self.ends.append(match.end())
            self.kinds.append(kind)
        self.whole = _Span(0, len(text), 0, len(self.kinds))

    def _is_binary(self, place: int) -> bool:
        """Whether an operator has an operand before it; otherwise it is a sign or unpacks."""
        end = place
        while end and self.text[end - 1] == " ":
            end -= 1
        start = end
        while start and (self.text[start - 1].isalnum() or self.text[start - 1] == "_"):
            start -= 1
        if start < end:
            return self.text[start:end] not in _NO_OPERANDS
        return end > 0 and self.text[end - 1] in _OPERAND_ENDS

    def _outermost(self, span: _Span) -> Iterator[int]:
        """Numbers of the marks of a span that no bracket of the span holds."""
        number = span.first
        while number < span.last:
            yield number
            number = self.partners.get(number, number + 1)

    def value_start(self) -> int:
        """Where the value of an assignment starts; 0 for any other statement."""
        outer = self._outermost(self.whole)
        ends = [self.ends[number] for number in outer if self.kinds[number] == _ASSIGNMENT]
        return ends[-1] if ends else 0

    def lists_targets(self, start: int) -> bool:
        """Whether an assignment gives several names values, without parentheses around them."""
        outer = self._outermost(self.whole)
        kinds = [self.kinds[number] for number in outer if self.starts[number] < start]
        return _COMMA in kinds and kinds.count(_ASSIGNMENT) == 1

    def break_whole(self, indent: str) -> list[str]:
        """The statement broken inside its longest bracket."""
        return self.break_bracket(self.whole, indent)

    def lay_out_value(self, start: int, end: int, indent: str) -> list[str]:
        """The statement, its value in parentheses if it can be broken before operators."""
        span = self._cut(self.whole, [start, end])[1 if start else 0]
        pieces = self._items(span)
        if len(pieces) == 1:
            pieces = self._terms(span)
        if len(pieces) == 1:
            return self.break_bracket(self.whole, indent)
        head, tail = self.text[: span.start], self.text[span.end :]
        return [f"{indent}{head}(", *self._fill(pieces, indent + _INDENT), f"{indent}){tail}"]

    def break_bracket(self, span: _Span, indent: str) -> list[str]:
        """A span broken inside its longest bracket; as it is if it fits or has none."""
        bracket = self._longest_bracket(span)
        while bracket is not None and len(indent) + self.starts[bracket] - span.start >= WIDTH:
            before = span._replace(end=self.starts[bracket], last=bracket)
            earlier = self._longest_bracket(before)
            if earlier is None:
                break
            bracket = earlier
        if len(indent) + span.end - span.start <= WIDTH or bracket is None:
            return [indent + self.text[span.start : span.end]]
        closing = self.partners[bracket]
        content = _Span(self.ends[bracket], self.starts[closing], bracket + 1, closing)
        head = indent + self.text[span.start : content.start]
        rest = _Span(content.end, span.end, closing + 1, span.last)
        return [
            head,
            *self._fill(self._items(content), indent + _INDENT),
            *self.break_bracket(rest, indent),
        ]

    def _longest_bracket(self, span: _Span) -> int | None:
        best: int | None = None
        longest = 0
        for number in self._outermost(span):
            closing = self.partners.get(number)
            if closing is not None and self.starts[closing] - self.ends[number] > longest:
                best, longest = number, self.starts[closing] - self.ends[number]
        return best

    def _items(self, span: _Span) -> list[_Span]:
        """The items of a list, each with its comma."""
        outer = list(self._outermost(span))
        if any(self.kinds[number] == _LAMBDA for number in outer):
            return [span]
        return self._cut(span, [self.ends[n] for n in outer if self.kinds[n] == _COMMA])

    def _terms(self, span: _Span) -> list[_Span]:
        """An expression cut before its loosest operators."""
        outer = list(self._outermost(span))
        kinds = [self.kinds[number] for number in outer]
        loosest = min((kind for kind in kinds if kind >= 0), default=None)
        if loosest is None or _LAMBDA in kinds:
            return [span]
        return self._cut(span, [self.starts[n] for n in outer if self.kinds[n] == loosest])

    def _cut(self, span: _Span, places: Sequence[int]) -> list[_Span]:
        """Parts of a span between places, without the spaces around them."""
        parts = []
        first = span.first
        bounds = [span.start, *places, span.end]
        for start, end in zip(bounds, bounds[1:], strict=False):
            while start < end and self.text[start] == " ":
                start += 1
            while start < end and self.text[end - 1] == " ":
                end -= 1
            last = bisect_left(self.starts, end, first, span.last)
            if start < end:
                parts.append(_Span(start, end, first, last))
            first = last
        return parts

    def _fill(self, pieces: Sequence[_Span], indent: str) -> list[str]:
        """Pieces in as few lines as hold them; one that is too long by itself is broken further."""
        lines: list[str] = []
        current = ""
        for piece in pieces:
            text = self.text[piece.start : piece.end]
            if current and len(indent) + len(current) + 1 + len(text) <= WIDTH:
                current = f"{current} {text}"
                continue
            lines += [indent + current] if current else []
            current = text
            if len(indent) + len(text) > WIDTH:
                lines += self._break_piece(piece, indent)
                current = ""
        return [*lines, indent + current] if current else lines

    def _break_piece(self, piece: _Span, indent: str) -> list[str]:
        """An item or a term that is too long for one line, inside brackets.

        An operator or a keyword argument's name stays with the first line, a comma with the last.
        """
        span = piece
        first = piece.first
        if first < piece.last and self._leads(first, piece):
            span = self._cut(piece, [self.ends[first]])[-1]
            span = span._replace(first=first + 1)
        if piece.first < piece.last and self.kinds[piece.last - 1] == _COMMA:
            span = span._replace(end=self.starts[piece.last - 1], last=piece.last - 1)
        terms = self._terms(span)
        if len(terms) == 1:
            return self.break_bracket(piece, indent)
        terms[-1] = terms[-1]._replace(end=piece.end, last=piece.last)
        lead = indent + self.text[piece.start : span.start]
        room = max(len(lead), len(indent) + len(_INDENT))
        head, *rest = self._fill(terms, " " * room)
        return [lead + head[room:], *(indent + _INDENT + line[room:] for line in rest)]

    def _leads(self, number: int, piece: _Span) -> bool:
        """Whether a mark belongs to how a piece begins.

        That is the operator before which the piece was cut, or what follows the name of a keyword
        argument.
        """
        is_operator = self.kinds[number] >= 0 and self.starts[number] == piece.start
        return is_operator or (
            self.kinds[number] == _ASSIGNMENT
            and self.text[piece.start : self.starts[number]].isidentifier()
        )
