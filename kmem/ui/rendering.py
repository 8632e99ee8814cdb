"""Pages as HTML: templates that escape everything they are given, unless it is markup of ours."""

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import kmem
from kmem.ui.plots.frame import LEFT, RIGHT, WIDTH
from kmem.ui.requests import Page

ROOT = Path(__file__).parent
STATIC = ROOT / "static"
_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
#: What stands at the top of every page: names and addresses.
SECTIONS = (
    ("Runs", "/"),
    ("Problems", "/problems"),
    ("Skills", "/skills"),
    ("Landscapes", "/landscapes"),
    ("Memory", "/memory"),
    ("Machine", "/machine"),
)


@cache
def environment() -> Environment:
    """The templates. A name that a page does not give is an error, not an empty text."""
    made = Environment(
        loader=FileSystemLoader(ROOT / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=show_directions,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"frame_left": LEFT, "frame_right": WIDTH - RIGHT}
    made.filters["css"] = css_name
    made.filters["ticks"] = show_ticks
    return made


def show_directions(value: object) -> object:
    """A text with the characters that turn its direction made visible.

    They would let a name or a source read otherwise than it is. Source: trojansource.codes.
    """
    if isinstance(value, str) and _TURNING.search(value):
        marked = _TURNING.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", value)
        return Markup(marked) if isinstance(value, Markup) else marked
    return value


def css_name(text: str) -> str:
    """A text as part of the name of a class."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)


def show_ticks(text: str) -> Markup:
    """A text of kmem as HTML, with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a tick without its pair
        return escape(text)
    marked = (
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )
    return Markup("").join(marked)


def render(page: Page, **frame: object) -> str:
    """A page as HTML.

    Args:
        frame: what stands around the page: its section, the database, what the visitor may do.
    """
    around = {
        "version": kmem.__version__,
        "alone": False,
        "may_change": False,
        "form_token": "",
        "section": "",
        "database": "",
        "self_href": "",
        "sections": SECTIONS,
        "refresh": "",  # seconds after which the page asks for itself, until it has no more to ask
        "refresh_plain": "",  # the same where it has events, for browsers without scripts
    }
    template = environment().get_template(page.template)
    return template.render({**around, **frame, "title": page.title, **page.content})


def render_alone(page: Page) -> str:
    """A page as one file that needs nothing else: no script, no link to a server."""
    style = (STATIC / "page.css").read_text(encoding="utf-8")
    return render(page, alone=True, style=style)
