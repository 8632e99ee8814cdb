"""The settings of a recipe as a record: a field for each knob."""

from dataclasses import fields
from functools import cache
from typing import TypeVar

from kmem.recipes import Settings

Record = TypeVar("Record")


def read_settings(record: type[Record], settings: Settings) -> Record:
    """Read the knobs that a dataclass has fields for.

    A knob that the settings lack, because a site's space does not offer it, takes the field's
    default. The field of `ACCURACY` is `accuracy`.
    """
    names = _names(record)
    known = {name.lower(): value for name, value in settings.items()}
    return record(**{name: value for name, value in known.items() if name in names})


@cache
def _names(record: type[Record]) -> frozenset[str]:
    # asked for every setting of a space
    return frozenset(field.name for field in fields(record))
