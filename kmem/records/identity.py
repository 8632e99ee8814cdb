"""What tells records apart: a hash of exactly what matters."""

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

Knob: TypeAlias = int | str


#: Metadata of a field that was added after records had been stored: None is not written, so that
#: records stored before keep their hash.
ABSENT_IF_NONE: Mapping[str, bool] = {"absent_if_none": True}


def content_hash(*parts: str) -> str:
    """SHA-256 over the parts, length-prefixed so that no two different lists collide."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()
