"""A recipe's settings as a record: a field for each knob. What their tiles are laid out for."""

from dataclasses import fields
from functools import cache
from typing import TypeVar

from kmem.recipes import Settings

Record = TypeVar("Record")
VECTOR_BYTES = 16  # widest global load of one thread. Source: PTX ISA, ld: .v4.b32
WARP_THREADS = 32  # for which tiles are laid out, whatever the device


def read_settings(record: type[Record], settings: Settings) -> Record:
    """Read the knobs that a dataclass has fields for.

    A knob that the settings lack, because a site's space does not offer it, takes the field's
    default. The field of `ACCURACY` is `accuracy`.
    """
    # asked for every setting of a space: which knob is which field is found once
    return record(**{name: settings[knob] for knob, name in _fields(record, tuple(settings))})


@cache
def _fields(record: type, knobs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The knobs that a record has fields for, each with its field."""
    names = {field.name for field in fields(record)}
    return tuple((knob, knob.lower()) for knob in knobs if knob.lower() in names)
