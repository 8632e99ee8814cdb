"""Records to and from JSON, exactly: what goes in comes back equal, types included.

A field of nested records becomes a nested object; enums their value; tuples lists. Reading goes
through pydantic, which validates against the annotations and runs `__post_init__`, so an illegal
record cannot be read back.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

RecordT = TypeVar("RecordT")


def to_data(record: object) -> dict[str, object]:
    """A record as plain dicts, lists, strings, numbers and None.

    Raises TypeError if it holds anything else.
    """
    data = _plain(record)
    if not isinstance(data, dict):
        raise TypeError(f"{type(record).__name__} is not a record")
    return data


def to_json(record: object) -> str:
    """A record as one line of JSON with sorted keys.

    Infinities and NaN are written as Python's json module writes them.

    Raises TypeError if it holds anything but records, enums, mappings, lists, tuples, strings,
    numbers and None.
    """
    if not isinstance(record, Mapping) and not is_dataclass(record):
        raise TypeError(f"{type(record).__name__} is not a record")
    return _JSON.encode(record)


def from_data(cls: type[RecordT], data: object) -> RecordT:
    """Build a record from what `to_data` made.

    Raises ValueError (pydantic's ValidationError) naming every field that does not fit.
    """
    record: RecordT = _adapter(cls).validate_python(data)  # type: ignore[arg-type] # see _adapter
    return record


def from_json(cls: type[RecordT], text: str | bytes) -> RecordT:
    """Build a record from what `to_json` made.

    Raises ValueError if the text is not JSON or does not fit.
    """
    return from_data(cls, json.loads(text))


def canonical_json(cls: type[RecordT], text: str) -> tuple[RecordT, str]:
    """A record from its JSON, and the line `to_json` writes for it.

    Raises ValueError if the text is not JSON or does not fit.
    """
    # straight from the text: half the time of `from_json`
    record: RecordT = _adapter(cls).validate_json(text)  # type: ignore[arg-type] # see _adapter
    return record, to_json(record)


@cache
def _reader(cls: type) -> "Callable[[object], dict[str, object]] | None":
    """A function that takes a record of this class apart, one layer; None if it is no record."""
    if not is_dataclass(cls):
        return None
    names = [field.name for field in fields(cls)]
    # what records.ABSENT_IF_NONE marks
    absent_if_none = [field.name for field in fields(cls) if field.metadata.get("absent_if_none")]

    def read(record: object) -> dict[str, object]:
        data = {name: getattr(record, name) for name in names}
        for name in absent_if_none:
            if data[name] is None:
                del data[name]
        return data

    return read


def _unwrap(value: object) -> object:
    """One layer of a value that JSON does not know.

    That is an enum's value, a record's fields, or a mapping as a dict.
    """
    if isinstance(value, Enum):
        return value.value
    read = _reader(type(value))  # type: ignore[arg-type] # see _adapter
    if read is not None:
        return read(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a record")


#: The one spelling of a record. Its C encoder walks plain values by itself and asks `_unwrap` for
#: others; a record holds no cycles.
_JSON = json.JSONEncoder(sort_keys=True, check_circular=False, default=_unwrap)


def _plain(value: object) -> object:
    # None and the plain types first, by identity of type: they are most of what a record holds.
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return _plain(_unwrap(value))


@cache  # mypy takes the __hash__ of a class for that of its instances, and refuses the class
def _adapter(cls: type) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # 100 ms that `kmem --help` should not pay

    return TypeAdapter(cls)
