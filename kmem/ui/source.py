"""Source text as HTML: highlighted by Pygments, with numbers of lines; diffs with their colours.

Pygments escapes what it shows, and every token becomes a class, not a style: the page's content
security policy allows no inline styles.
"""

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import DiffLexer, MarkdownLexer, PythonLexer

#: Longer texts are shown without colours: the lexer would take longer than a page may.
MOST_COLOURED = 200_000


def show_python(source: str) -> Markup:
    """A Python file, a line for each line."""
    return _show(source, PythonLexer(stripnl=False))


def show_diff(diff: str) -> Markup:
    """A unified diff."""
    return _show(diff, DiffLexer(stripnl=False))


def show_markdown(text: str) -> Markup:
    """Markdown as its author wrote it."""
    return _show(text, MarkdownLexer(stripnl=False))


def _show(text: str, lexer: PythonLexer | DiffLexer | MarkdownLexer) -> Markup:
    if len(text) > MOST_COLOURED:
        return Markup('<div class="source"><pre>{}</pre></div>').format(text)
    return Markup(highlight(text, lexer, HtmlFormatter(cssclass="source", wrapcode=True)))
