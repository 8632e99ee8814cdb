"""What a caller may say by keyword, held to what there is."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

Kind = TypeVar("Kind", bound=Enum)


def refuse_unknown(function: str, given: Mapping[str, object], known: type) -> None:
    """Raise TypeError for a keyword that a typed dictionary does not have, as a signature would."""
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(
                f"kmem.{function}() takes no {name}; it takes {', '.join(known.__annotations__)}"
            )


def choose(kind: type[Kind], value: str) -> Kind:
    """The member of an enum with this value. Raises ValueError: with the values there are."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise ValueError(f"{kind.__name__.lower()} is one of {known}, not {value!r}") from None
