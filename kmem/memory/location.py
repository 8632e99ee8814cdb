"""Where the database lies, and the skills that its user added.

Standard library only, so that the command line can name the place without opening anything.
"""

import os
import sys
from pathlib import Path


def default_db_path() -> Path:
    """`KMEM_DB` if set, else kmem.db in the user's data directory.

    Source: XDG Base Directory Specification 0.8 (XDG_DATA_HOME, else ~/.local/share); on macOS
    ~/Library/Application Support.
    """
    named = os.environ.get("KMEM_DB")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "kmem" / "kmem.db"


def added_skills_root(db_path: Path) -> Path:
    """The directory beside a database that holds the skills its user added, one directory each."""
    return db_path.parent / "skills"


def vector_cache_path() -> Path:
    """The file that keeps vectors of texts for memories that are not kept themselves.

    Source: XDG Base Directory Specification 0.8 (XDG_CACHE_HOME, else ~/.cache); on macOS
    ~/Library/Caches.
    """
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "kmem" / "vectors.db"
