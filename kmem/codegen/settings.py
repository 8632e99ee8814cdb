"""The settings of a recipe as a record: a field for each knob."""

from dataclasses import fields
from typing import TypeVar

from kmem.recipes import Settings

Record = TypeVar("Record")


def read_settings(record: type[Record], settings: Settings) -> Record:
    """Read the knobs that a dataclass has fields for.

    A knob that the settings lack, because a site's space does not offer it, takes the field's
    default.
    """
    names = (field.name for field in fields(record))
    return record(**{name: settings[name] for name in names if name in settings})
