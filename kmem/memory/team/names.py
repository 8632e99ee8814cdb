"""What a contributor is called among people: a name beside the random one that outcomes carry.

The name that was set by `kmem memory name` goes first, then KMEM_CONTRIBUTOR, then git's user.name.
It travels with what is published, and with a redacted publication only if it was set for kmem.
"""

import os
import subprocess

from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory

#: Longer is no name.
_LONGEST = 60
_TIMEOUT_S = 5.0


def checked_name(name: str) -> str:
    """The name without spaces around it. Raises MemoryStoreError if it is none."""
    name = " ".join(name.split())
    if not name or len(name) > _LONGEST or not name.isprintable() or set(name) & set("<>"):
        raise MemoryStoreError(
            f"'{name[:_LONGEST]}' is no name; give up to {_LONGEST} characters in one line, "
            f"without < and >"
        )
    return name


def find_name(memory: Memory, *, redact: bool) -> str | None:
    """What this memory's contributor is called; None if nobody has said.

    Args:
        redact: whether git's user.name, which was not given to kmem, stays here.
    """
    known = memory.contributors.names().get(memory.contributors.own_name)
    if known is not None:
        return known
    if named := os.environ.get("KMEM_CONTRIBUTOR"):
        return checked_name(named)
    return None if redact else _git_user()


def _git_user() -> str | None:
    try:
        done = subprocess.run(
            ["git", "config", "--global", "--get", "user.name"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return checked_name(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, MemoryStoreError):
        return None
