"""Compiled kernels found in Triton's cache without reading the whole of Triton first.

Triton names what it compiled by a hash over its own files, half a gigabyte, which every process
computes anew: half a second of a first call. Here that hash is kept in Triton's cache, under the
sizes and times of the files that it was computed from.
"""

import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: What Triton's hash is computed from, below its package.
_READ_BY_TRITON = ("runtime/cache.py", "compiler/**/*", "backends/**/*", "language/**/*", "_C/*")

_lock = threading.Lock()
_entered = 0  # threads that are inside
_own: Callable[[], str] | None = None  # Triton's function, while another stands in its place


@contextmanager
def warm_start() -> Iterator[None]:
    """Let first calls of kernels find Triton's hash of itself; what they had to compute is kept.

    Where it cannot be read or written, or Triton is another than is known here, a first call is as
    slow as it is without.
    """
    place = _place()
    if place is None:
        yield
        return
    _enter(place)
    try:
        yield
    finally:
        own = _leave()
        if own.cache_info().currsize and not place.is_file():
            with suppress(OSError):
                _write(place, own())


def _enter(place: Path) -> None:
    global _entered, _own
    from triton.runtime import cache

    with _lock:
        if not _entered:
            _own = cache.triton_key
            known = _read(place)
            if known:
                cache.triton_key = lambda: known
        _entered += 1


def _leave() -> Callable[[], str]:
    global _entered
    from triton.runtime import cache

    with _lock:
        _entered -= 1
        if not _entered:
            cache.triton_key = _own
        return _own


def _place() -> Path | None:
    """Where the hash of Triton's files is kept; None for a Triton that is not known here."""
    try:
        import triton
        from triton.runtime import cache

        is_known = _entered or hasattr(cache.triton_key, "cache_info")
        name = f"triton-key-{_digest_of_times(Path(triton.__file__).parent)}"
        return Path(triton.knobs.cache.dir) / name if is_known else None
    except (ImportError, AttributeError, OSError):
        return None


@functools.cache
def _digest_of_times(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _READ_BY_TRITON for path in root.glob(pattern)):
        if path.suffix in (".py", ".so"):
            about = path.stat()
            times = f"{about.st_mtime_ns} {about.st_ctime_ns}"
            digest.update(f"{path} {about.st_size} {times}\n".encode())
    return digest.hexdigest()[:32]


def _read(place: Path) -> str:
    """The hash that is kept; empty if there is none, or not the whole of it."""
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    key = "".join(lines[:-1])
    return key if lines[-1:] == [hashlib.sha256(key.encode()).hexdigest()] else ""


def _write(place: Path, key: str) -> None:
    """Keep a hash; a kill leaves the whole file or none."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
        file.write(f"{key}\n{hashlib.sha256(key.encode()).hexdigest()}")
    os.replace(file.name, place)
