"""What a page is asked and what it answers, free of any web server.

A page is a function of a memory and a PageRequest, so that `kmem report --html` and tests call it
as the server does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The address of a page: its path, the names in it, and its query.

    A page with several tables has one set of parameters for each: those of all but the first begin
    with the table's name and a dot (`part`).
    """

    path: str
    names: Mapping[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    prefix: str = ""

    def part(self, name: str) -> "PageRequest":
        """The same request as it is asked of one table of the page."""
        return replace(self, prefix=f"{name}.")

    def ask(self, key: str, default: str = "") -> str:
        """The value of a parameter."""
        return self.query.get(f"{self.prefix}{key}", default)

    def address(self, **changes: str) -> str:
        """The address of this page with other parameters; an empty one is left out."""
        changed = {f"{self.prefix}{key}": value for key, value in changes.items()}
        query = {key: value for key, value in (self.query | changed).items() if value}
        address = f"{self.path}?{urlencode(query)}" if query else self.path
        return f"{address}#{self.prefix.rstrip('.')}" if self.prefix else address


@dataclass(frozen=True, slots=True)
class Page:
    """A template with what it shows."""

    template: str
    title: str
    content: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Export:
    """A file for programs."""

    text: str
    media_type: str
    filename: str


class NoSuchPage(Exception):
    """There is nothing at this address; the message says what was looked for."""
