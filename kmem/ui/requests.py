"""What a page is asked and what it answers, free of any web server.

A page is a function of a memory and a PageRequest, so that `kmem report --html` and tests call it
as the server does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The address of a page: its path, the names in it, and its query."""

    path: str
    names: Mapping[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)


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
