"""A user message made of sections, within a role's limit.

The least valuable section shrinks first, and code is whole or absent. sections.py and history.py
make the sections; nothing here knows what they say. Everything is deterministic.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from kmem.explore.models.roles import Role

#: The section that ends what is the same in all questions of a run.
LAST_STABLE = "Device and bound"
#: For an estimate on the high side, before anything is sent; budgets are charged with the
#: provider's own counts. English has about 4 characters a token; 3 leaves room for code. Source:
#: OpenAI, "What are tokens and how to count them?".
BYTES_PER_TOKEN = 3.0


class PromptTooLong(Exception):
    """What a role cannot do without is longer than its limit; the message says how long."""


class Worth(IntEnum):
    """The order in which sections are given up when a prompt is too long, least worth first."""

    OTHER_KERNELS = 1
    STRUCTURE = 2
    OTHER_SKILLS = 3
    GRAPH = 4
    DIFFERENCES = 5
    REMEMBERED = 6
    LAUNCHES = 7
    SIGNATURE = 8
    LESSONS = 9
    VETOES = 10
    FAILURES = 11
    HISTORY = 12
    PITFALLS = 13
    LOG = 14
    START = 15
    SKILL = 16
    TASK = 17


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a message: its texts from the fullest to the shortest, and its worth.

    An empty text leaves the section out.
    """

    title: str
    texts: tuple[str, ...]
    worth: Worth


def estimate_tokens(text: str) -> int:
    """An estimate of a text's tokens, on the high side."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def fit_prompt(role: Role, system: str, sections: Sequence[Section], *, reserved: int = 0) -> str:
    """The user message: sections in order, shrunk until it fits beside the system message.

    Sections shrink one step at a time, the least worth first; of two sections of one worth the
    later shrinks first. What then fits again, because a larger section of more worth had to shrink
    too, comes back, the most worth first. `reserved` tokens of the role's limit stay free.

    Raises:
        PromptTooLong: if the shortest texts do not fit.
    """
    steps = [0] * len(sections)
    by_worth = sorted(range(len(sections)), key=lambda place: (sections[place].worth, -place))
    sizes = [
        [estimate_tokens(_render(section.title, text)) for text in section.texts]
        for section in sections
    ]
    fixed, limit = estimate_tokens(system), role.prompt_tokens - reserved
    while (
        tokens := fixed + sum(size[step] for size, step in zip(sizes, steps, strict=True))
    ) > limit:
        place = next(
            (place for place in by_worth if steps[place] + 1 < len(sections[place].texts)), None
        )
        if place is None:
            raise PromptTooLong(
                f"the prompt of the {role.name} needs about {tokens} tokens and holds at most "
                f"{limit}"
            )
        steps[place] += 1
    for place in reversed(by_worth):
        size, step = sizes[place], steps[place]
        room = limit - tokens + size[step]
        steps[place] = next(fuller for fuller in range(len(size)) if size[fuller] <= room)
        tokens += size[steps[place]] - size[step]
    return "".join(
        _render(section.title, section.texts[step])
        for section, step in zip(sections, steps, strict=True)
    ).rstrip("\n")


def stable_chars(user: str) -> int:
    """The characters of a user message that other questions of its role in the run begin with.

    The module, its graph and the device come first and stay; what follows changes with every round.
    """
    found = re.search(rf"^## {re.escape(LAST_STABLE)}$", user, re.MULTILINE)
    behind = re.search(r"^## ", user[found.end() :], re.MULTILINE) if found else None
    return found.end() + behind.start() if found and behind else 0


def _render(title: str, text: str) -> str:
    body = text.strip("\n")
    return f"## {title}\n{body}\n\n" if body else ""
